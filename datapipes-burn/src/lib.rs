//! Batches of datapipes in burn.
