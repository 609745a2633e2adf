//! Processes that work for this one.

mod isolate;
mod vitals;
