//! Processes that work for this one.

mod vitals;
