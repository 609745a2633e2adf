//! The promises of the library, one module each.

mod faults;
mod figures;
mod graphs;
mod in_flight;
mod kit;
mod laws;
mod review;
mod structure;
