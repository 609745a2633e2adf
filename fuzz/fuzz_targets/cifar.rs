//! Any bytes as a CIFAR file.
#![no_main]

use datapipes_io::datasets::{Cifar, CifarLabels};
use datapipes_io::testing::read_all;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for format in [
        Cifar::ten(),
        Cifar::hundred(CifarLabels::Fine),
        Cifar::hundred(CifarLabels::Coarse),
    ] {
        drop(read_all(format, data.to_vec()));
    }
});
