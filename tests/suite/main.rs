//! The promises of the library, one module each.

mod graphs;
mod laws;
mod structure;
