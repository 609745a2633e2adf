//! The promises of the library, one module each.

mod faults;
mod figures;
mod graphs;
mod kit;
mod in_flight;
mod laws;
mod review;
mod structure;
