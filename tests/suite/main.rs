//! The promises of the library, one module each.

mod faults;
mod figures;
mod graphs;
mod kit;
mod laws;
mod review;
mod structure;
