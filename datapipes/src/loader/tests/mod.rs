//! Tests of the loader as a whole, one file a promise.

mod elastic;
mod ranks;
mod ready;
mod steps;

use super::*;
