//! What is in the bytes: archives, compression, samples.

mod gzip;
mod samples;
mod tar;
mod untar;

pub use gzip::Gunzip;
pub use samples::{Sample, Samples};
pub use untar::Untar;
