//! Batches of datapipes in candle.
