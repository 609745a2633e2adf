//! Where bytes come from.

pub mod local;
