//! Servers shared by the tests of stores.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod bad_http;
#[cfg(feature = "http")]
pub mod h2;
#[cfg(feature = "http")]
pub mod hub;
#[cfg(feature = "http")]
pub mod tls;
