//! Constant memory for large data sets: ten million listed items, shuffled and batched; and a
//! folder of many files.

mod support;

use std::time::Instant;

use datapipes::{DataLoader, Graph};
use support::{bar, memory_mb};

const ITEMS: u64 = 10_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Names are made on demand, as a listing makes them.
    let names = Graph::from_iter_with(|| {
        (0..ITEMS).map(|i| format!("train/class{:03}/{i:08}.jpg", i % 1000))
    });
    let loader = DataLoader::builder(names.shuffle(10_000).batch(256))
        .workers(2)
        .build()?;
    let begun = Instant::now();
    let (mut first, mut early, mut count) = (None, 0.0, 0);
    for batch in loader.epoch(0).blocking() {
        count += batch?.len() as u64;
        first.get_or_insert_with(|| begun.elapsed());
        if count < ITEMS / 100 {
            early = memory_mb("VmRSS");
        }
    }
    assert_eq!(count, ITEMS);
    println!(
        "{ITEMS} names in {:.2} s, {:.0} ns each",
        begun.elapsed().as_secs_f64(),
        begun.elapsed().as_nanos() as f64 / ITEMS as f64
    );
    println!(
        "first batch after {:.1} ms",
        first.unwrap_or_default().as_secs_f64() * 1e3
    );
    println!(
        "memory after 1 %: {early:.1} MB, at most {:.1} MB",
        memory_mb("VmHWM")
    );
    bar("growth, MB", memory_mb("VmHWM") - early, 8.0, false);
    Ok(())
}
