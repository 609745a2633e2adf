//! The promises of the library, one module each.

mod faults;
mod graphs;
mod kit;
mod laws;
mod structure;
