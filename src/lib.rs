//! Owner of the workspace's `examples/`, `tests/` and `benches/`; the library is in `datapipes/`.
#![doc = include_str!("../README.md")]
