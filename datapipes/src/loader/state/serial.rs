//! A state for serde.
