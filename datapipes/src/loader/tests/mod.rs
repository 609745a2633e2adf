//! Tests of the loader as a whole, one file for each promise.

mod ahead;
mod elastic;
mod ranks;
mod ready;
mod steps;

use super::*;
