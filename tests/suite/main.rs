//! The promises of the library, one module each.

mod faults;
mod graphs;
mod laws;
mod review;
mod structure;
