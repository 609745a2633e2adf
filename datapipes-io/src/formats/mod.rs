//! What is in the bytes: archives, compression, samples.

mod gzip;
mod samples;
mod tar;
mod untar;
mod untar_samples;

pub use gzip::Gunzip;
pub use samples::{Sample, Samples};
pub use untar::Untar;
pub use untar_samples::UntarSamples;
