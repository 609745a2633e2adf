//! Derive macros of the `datapipes` crate.
