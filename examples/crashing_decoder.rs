//! A decoder that calls native code which crashes on one sample in a thousand, hangs on another,
//! and leaks now and then. In child processes it costs only the samples that it cannot decode: the
//! epoch delivers all others, in order, and names each bad sample with its error.
//!
//! `cargo run --release --no-default-features --example crashing_decoder [--n SAMPLES] [--processes
//! N]`

mod support;

use std::time::{Duration, Instant};

use datapipes::{BoxError, DataLoader, Graph, OnError, Processes, Result, Tensor};
use support::args::Args;

const USAGE: &str = "crashing_decoder [--n SAMPLES] [--processes N]";

/// Native code whose behavior depends on the sample's number.
mod native {
    /// First sample that makes it write to an invalid address; every thousandth after it does too.
    pub const CRASHES: u64 = 499;
    /// First sample that makes it run forever; every thousandth after it does too.
    pub const HANGS: u64 = 700;
    /// First sample that makes it leak 8 MiB; every tenth after it does too.
    pub const LEAKS: u64 = 5;

    /// Simulates a function of a C library.
    pub fn decode(sample: u64, pixels: &mut [u8]) {
        match sample % 1000 {
            // SAFETY: none. The example shows exactly this: the process ends here, by SIGSEGV.
            CRASHES => unsafe { std::ptr::without_provenance_mut::<u8>(8).write_volatile(1) },
            HANGS => loop {
                std::hint::spin_loop();
            },
            _ if sample % 10 == LEAKS => _ = std::hint::black_box(vec![1u8; 8 << 20]).leak(),
            _ => {}
        }
        pixels
            .iter_mut()
            .enumerate()
            .for_each(|(place, value)| *value = pixel(sample, place));
    }

    /// Computes a pixel, at about the cost of a real decoder.
    pub fn pixel(sample: u64, place: usize) -> u8 {
        let mix = |value: u64, _| (value ^ (value >> 7)).wrapping_mul(0x9e37_79b9);
        (0..12).fold(sample << 20 | place as u64, mix) as u8
    }
}

/// Decodes 256x256 gray pixels.
fn decode(sample: u64) -> Result<(u64, Tensor)> {
    let mut pixels = vec![0; 256 * 256];
    native::decode(sample, &mut pixels);
    Ok((sample, Tensor::from_vec(pixels, [256, 256])?))
}

fn main() -> Result<(), BoxError> {
    // If this process is a child process, it works here, and ends.
    datapipes::worker::init();

    let args = Args::parse("", "n processes", USAGE);
    let samples: u64 = args.get("n").unwrap_or(3000);
    let processes = Processes::new(args.get("processes").unwrap_or(2))
        // More than the decoder should need; a child process that has used nearly all of it is
        // replaced between two samples.
        .memory(96 << 20)
        // No valid sample takes this long.
        .time_limit(Duration::from_millis(500));

    let graph = Graph::range(0..samples)
        .in_processes(processes, |samples| samples.try_map(decode).named("decode"));
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(samples))
        .build()?;

    let begun = Instant::now();
    let mut delivered = Vec::new();
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    for sample in loader.epoch(0).blocking() {
        let (number, pixels) = sample?;
        assert_eq!(pixels.as_slice::<u8>()?[1], native::pixel(number, 1));
        delivered.push(number);
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    let took = begun.elapsed();

    let stats = loader.stats().expect("an epoch ran");
    for bad in &stats.skipped_items {
        println!("{}", bad.error);
    }
    let good = (0..samples).filter(|n| ![native::CRASHES, native::HANGS].contains(&(n % 1000)));
    assert!(
        good.eq(delivered.iter().copied()),
        "all others, in order, once"
    );
    println!(
        "\n{} of {samples} samples delivered, in order, in {:.2} s; {} given up; the longest wait was {:.0} ms",
        delivered.len(),
        took.as_secs_f64(),
        stats.skipped,
        longest.as_secs_f64() * 1e3
    );
    if let Some(processes) = &stats.segments[0].processes
        && samples >= 1000
    {
        assert!(
            processes.replaced > 0,
            "what leaks is replaced before it has no memory left"
        );
    }
    println!("\n{}\n\n{stats}", loader.explain());
    Ok(())
}
