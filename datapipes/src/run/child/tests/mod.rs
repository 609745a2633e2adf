//! Tests of child processes together with what is around them.

#[cfg(feature = "remote")]
mod simulation;
