//! Predictions of `what_if` beside what happens: each loader runs with one choice of settings, then
//! its model predicts others, and then those run.
//!
//! The loads are small forms of W1 to W6. Work of another machine is a wait: of a closure on a
//! worker for decoding on many cores, of a request for a distant store, of the consumer for a step
//! on a GPU. Rates are of an epoch that has started. Lines that are more than a tenth off are marked.
//!
//! `cargo bench --bench what_if [-- --figures] [LOAD...]`: a load is a part of its name, such as `W2`;
//! `--figures` prints what the model is made from. Two minutes for all. Loads that compute (W1, W2, W4,
//! W5) tell nothing about the model while other programs use the cores.

#[path = "../examples/support/mod.rs"]
mod examples;

use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use datapipes::loader::{Prediction, Stats, WhatIf};
use datapipes::{BoxError, DataLoader, Graph, Result, Tensor};
use datapipes_io::formats::Array;
use datapipes_io::prelude::*;
use datapipes_io::{FileRef, list_files};
use examples::archive::write_tar;
use examples::{images, shards};

/// Time until an epoch is taken to have started.
const START: Duration = ms(300);
/// Runs of each choice of settings, and the time in which their batches are counted: of work that
/// computes, which anything else on the machine slows down, so that the best run counts; and of work
/// that waits for random times, which has to be seen for long.
const COMPUTES: (usize, Duration) = (4, ms(500));
const WAITS: (usize, Duration) = (1, ms(2200));
/// Epochs for the model, of which the fastest counts.
const FITS: u64 = 3;
/// Share by which a prediction may be off.
const CLOSE: f64 = 0.1;

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Settings of a loader and of what is around it.
#[derive(Clone, Copy)]
struct Settings {
    workers: usize,
    /// Number in flight of the step that has one.
    concurrency: usize,
    round_trip: Duration,
    step: Duration,
    /// True if the costly step's items come from a cache.
    cached: bool,
    /// Passes over files in an epoch.
    passes: u64,
    /// True for a source without end.
    endless: bool,
}

const BASE: Settings = Settings {
    workers: 2,
    concurrency: 16,
    round_trip: ms(10),
    step: ms(0),
    cached: false,
    passes: 100,
    endless: false,
};

/// A loader with the settings that it is measured with, and those to predict.
struct Load<'a, T> {
    name: &'a str,
    graph: &'a dyn Fn(Settings) -> Graph<T>,
    fit: Settings,
    /// The step that `concurrency` and `cached` are of.
    node: &'a str,
    runs: (usize, Duration),
    tries: &'a [(&'a str, Settings)],
}

/// Number of predictions, and of those that are close.
#[derive(Default)]
struct Tally {
    all: usize,
    close: usize,
}

impl<T: Send + 'static> Load<'_, T> {
    fn loader(&self, settings: Settings) -> Result<DataLoader<T>, BoxError> {
        let builder = DataLoader::builder((self.graph)(settings));
        Ok(builder.workers(settings.workers).build()?)
    }

    /// Returns the question that has these settings where they are not those of the fit.
    fn ask(&self, what_if: WhatIf, to: Settings) -> WhatIf {
        let fit = self.fit;
        let mut asked = what_if.workers(to.workers).step(to.step);
        if to.concurrency != fit.concurrency {
            asked = asked.concurrency_of(self.node, to.concurrency);
        }
        if to.round_trip != fit.round_trip {
            asked = asked.round_trip(to.round_trip);
        }
        if to.cached {
            asked = asked.cache_after(self.node);
        }
        asked
    }

    /// Returns the batches per second of an epoch that has started.
    fn measure(&self, settings: Settings) -> Result<f64, BoxError> {
        let endless = Settings {
            endless: true,
            ..settings
        };
        let loader = self.loader(endless)?;
        let (begun, mut counted) = (Instant::now(), None);
        for batch in loader.epoch(0).blocking() {
            drop(batch?);
            take(settings.step);
            let now = Instant::now();
            let (since, batches) = match &mut counted {
                None if now - begun >= START => counted.insert((now, 0u64)),
                None => continue,
                Some(counted) => {
                    counted.1 += 1;
                    counted
                }
            };
            if now - *since >= self.runs.1 {
                return Ok(*batches as f64 / (now - *since).as_secs_f64());
            }
        }
        Err("the epoch ended before it was measured".into())
    }

    fn run(&self, tally: &mut Tally) -> Result<(), BoxError> {
        let asked: Vec<String> = (std::env::args().skip(1))
            .filter(|arg| !arg.starts_with("--"))
            .collect();
        if !asked.is_empty() && !asked.iter().any(|arg| self.name.contains(arg)) {
            return Ok(());
        }
        let loader = self.loader(self.fit)?;
        let epoch = |number| {
            let mut batches = loader.epoch(number).blocking();
            for batch in batches.by_ref() {
                drop(batch?);
                take(self.fit.step);
            }
            Ok::<_, BoxError>(batches.stats().ok_or("it ran")?)
        };
        // The first epoch starts threads, and finds numbers in flight.
        epoch(0)?;
        let epochs: Vec<Stats> = (1..=FITS).map(epoch).collect::<Result<_, _>>()?;
        let fastest = epochs.iter().min_by_key(|stats| stats.wall);
        let stats = fastest.ok_or("at least one")?;
        let what_if = stats.what_if()?;
        if std::env::args().any(|arg| arg == "--figures") {
            println!("{stats}\n{}", what_if.predict()?);
        }
        let predictions: Vec<Prediction> = (self.tries.iter())
            .map(|(_, settings)| self.ask(what_if.clone(), *settings).predict())
            .collect::<Result<_>>()?;
        for ((name, settings), prediction) in self.tries.iter().zip(predictions) {
            let rates = (0..self.runs.0).map(|_| self.measure(*settings));
            let rates: Vec<f64> = rates.collect::<Result<_, _>>()?;
            let measured = rates.into_iter().fold(0.0, f64::max);
            let predicted = prediction.batches_per_second;
            let ratio = predicted / measured;
            let is_close = (ratio - 1.0).abs() <= CLOSE;
            tally.all += 1;
            tally.close += usize::from(is_close);
            println!(
                "{:<26} {name:<34} {predicted:>9.1} {measured:>9.1} {ratio:>6.2}{} {}",
                self.name,
                if is_close { "    " } else { " OFF" },
                prediction.bottleneck().part,
            );
        }
        Ok(())
    }
}

/// Takes a time, more exactly than a sleep does.
fn take(step: Duration) {
    let end = Instant::now() + step;
    sleep(step.saturating_sub(Duration::from_micros(300)));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Returns a number from 0 to 1 that depends on an item.
fn fraction(item: u64) -> f64 {
    let mixed = item.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as f64 / u64::MAX as f64
}

fn items(settings: Settings, whole: u64) -> Graph<u64> {
    Graph::range(0..if settings.endless { 1 << 40 } else { whole })
}

/// Files of a folder, again and again.
fn files(settings: Settings, folder: &Path, pattern: &str) -> Graph<FileRef> {
    let files = list_files(folder, pattern);
    match settings.endless {
        true => files.cycle(),
        false => files.repeat(settings.passes),
    }
}

/// Writes shards of 20 kB members, pictures, and arrays of 100 kB.
fn make(folder: &Path) -> Result<(), BoxError> {
    let noise: Vec<u8> = (0..20_000u32).map(|n| ((n * n) >> 7) as u8).collect();
    for shard in 0..8 {
        let members = (0..50).map(|member| (format!("{member:04}.bin"), &noise));
        write_tar(File::create(folder.join(format!("{shard}.tar")))?, members)?;
    }
    for picture in 0..100 {
        let path = folder.join(format!("{picture:04}.jpg"));
        std::fs::write(path, shards::photo(picture, 1))?;
    }
    for file in 0..64u32 {
        let values: Vec<f32> = (0..25_000u32).map(|v| (v ^ file) as f32).collect();
        let array = Array::from_tensor(&Tensor::from_vec(values, [25_000])?)?;
        std::fs::write(folder.join(format!("{file:02}.npy")), array.to_npy())?;
    }
    Ok(())
}

/// Requests to a distant store, some of them slow.
fn requests(settings: Settings) -> Graph<Vec<u64>> {
    let round_trip = settings.round_trip;
    let request = move |item| async move {
        let more = 8.0 * fraction(item) + if fraction(!item) < 0.05 { 30.0 } else { 0.0 };
        tokio::time::sleep(round_trip + Duration::from_secs_f64(more / 1e3)).await;
        datapipes::Ok(item)
    };
    items(settings, 2000)
        .map_async(request)
        .named("request")
        .concurrency(settings.concurrency)
        .batch(16)
}

/// Work that waits on the workers, a step that looks at the stream as a whole, and more work.
fn work(settings: Settings) -> Graph<Vec<u64>> {
    let wait = |base: f64| {
        move |item| {
            sleep(Duration::from_secs_f64(base * (0.5 + fraction(item)) / 1e3));
            item
        }
    };
    let decoded = items(settings, 800).map(wait(3.0)).named("decode");
    let decoded = match settings.cached {
        // The items of a full cache.
        true => items(settings, 800).named("decode"),
        false => decoded,
    };
    let augmented = decoded.shuffle(32).map(wait(1.0)).named("augment");
    augmented.batch(8)
}

/// Work of which only so many items may be done at once.
fn limited(settings: Settings) -> Graph<Vec<u64>> {
    let wait = |item: u64| {
        let long = if fraction(!item) < 0.1 {
            12.0
        } else {
            1.0 + fraction(item)
        };
        sleep(Duration::from_secs_f64(long / 1e3));
        item
    };
    items(settings, 1000)
        .map(wait)
        .named("limited")
        .concurrency(settings.concurrency)
        .batch(10)
}

fn integers(settings: Settings) -> Graph<Vec<u64>> {
    items(settings, 40_000_000)
        .map(|v| v + 1)
        .filter(|v| v % 2 == 0)
        .shuffle(1000)
        .batch(1000)
}

fn main() -> Result<(), BoxError> {
    println!(
        "{:<26} {:<34} {:>9} {:>9} {:>6}      what sets the pace",
        "load", "settings", "predicted", "measured", "ratio"
    );
    let mut tally = Tally::default();
    let folder = tempfile::tempdir()?;
    make(folder.path())?;
    Load {
        name: "W1: tar shards",
        graph: &|settings| {
            let files = files(settings, folder.path(), "*.tar").load_files();
            files.untar().samples().batch(50)
        },
        fit: BASE,
        node: "untar",
        runs: COMPUTES,
        tries: &[
            ("1 worker", Settings { workers: 1, ..BASE }),
            ("no workers", Settings { workers: 0, ..BASE }),
            (
                "step 5 ms",
                Settings {
                    step: ms(5),
                    ..BASE
                },
            ),
        ],
    }
    .run(&mut tally)?;
    let one = Settings {
        workers: 1,
        passes: 4,
        ..BASE
    };
    Load {
        name: "W2: images",
        graph: &|settings| {
            let files = files(settings, folder.path(), "*.jpg").load_files();
            let encoded = files.map(|file| (file.data, 0)).named("label");
            images::training_batches(encoded, 224, 8)
        },
        fit: one,
        node: "image_rows",
        runs: COMPUTES,
        tries: &[
            ("2 workers", Settings { workers: 2, ..one }),
            ("no workers", Settings { workers: 0, ..one }),
            (
                "step 40 ms",
                Settings {
                    step: ms(40),
                    ..one
                },
            ),
            (
                "2 workers, step 30 ms",
                Settings {
                    workers: 2,
                    step: ms(30),
                    ..one
                },
            ),
        ],
    }
    .run(&mut tally)?;
    Load {
        name: "W4: arrays",
        graph: &|settings| {
            let files = files(settings, folder.path(), "*.npy").load_files();
            files.try_map(|file| Array::parse(file.data)).batch(16)
        },
        fit: BASE,
        node: "load_files",
        runs: COMPUTES,
        tries: &[
            ("1 worker", Settings { workers: 1, ..BASE }),
            ("no workers", Settings { workers: 0, ..BASE }),
            (
                "step 3 ms",
                Settings {
                    step: ms(3),
                    ..BASE
                },
            ),
        ],
    }
    .run(&mut tally)?;
    Load {
        name: "W3: files far away",
        graph: &requests,
        fit: BASE,
        node: "request",
        runs: WAITS,
        tries: &[
            (
                "32 in flight",
                Settings {
                    concurrency: 32,
                    ..BASE
                },
            ),
            (
                "64 in flight",
                Settings {
                    concurrency: 64,
                    ..BASE
                },
            ),
            (
                "8 in flight",
                Settings {
                    concurrency: 8,
                    ..BASE
                },
            ),
            (
                "round trip 40 ms",
                Settings {
                    round_trip: ms(40),
                    ..BASE
                },
            ),
            (
                "round trip 40 ms, 64 in flight",
                Settings {
                    round_trip: ms(40),
                    concurrency: 64,
                    ..BASE
                },
            ),
            (
                "round trip 2 ms",
                Settings {
                    round_trip: ms(2),
                    ..BASE
                },
            ),
            (
                "step 30 ms",
                Settings {
                    step: ms(30),
                    ..BASE
                },
            ),
            (
                "step 15 ms, 32 in flight",
                Settings {
                    step: ms(15),
                    concurrency: 32,
                    ..BASE
                },
            ),
        ],
    }
    .run(&mut tally)?;
    Load {
        name: "W6: decoding on many cores",
        graph: &work,
        fit: BASE,
        node: "decode",
        runs: WAITS,
        tries: &[
            ("1 worker", Settings { workers: 1, ..BASE }),
            ("4 workers", Settings { workers: 4, ..BASE }),
            ("8 workers", Settings { workers: 8, ..BASE }),
            (
                "16 workers",
                Settings {
                    workers: 16,
                    ..BASE
                },
            ),
            ("no workers", Settings { workers: 0, ..BASE }),
            (
                "8 workers, step 10 ms",
                Settings {
                    workers: 8,
                    step: ms(10),
                    ..BASE
                },
            ),
            (
                "8 workers, step 4 ms",
                Settings {
                    workers: 8,
                    step: ms(4),
                    ..BASE
                },
            ),
            (
                "4 workers, cache after decode",
                Settings {
                    workers: 4,
                    cached: true,
                    ..BASE
                },
            ),
        ],
    }
    .run(&mut tally)?;
    Load {
        name: "limited work",
        graph: &limited,
        fit: Settings {
            concurrency: 4,
            workers: 4,
            ..BASE
        },
        node: "limited",
        runs: WAITS,
        tries: &[
            (
                "8 workers, 8 at once",
                Settings {
                    workers: 8,
                    concurrency: 8,
                    ..BASE
                },
            ),
            (
                "8 workers, 2 at once",
                Settings {
                    workers: 8,
                    concurrency: 2,
                    ..BASE
                },
            ),
            (
                "4 workers, 12 at once",
                Settings {
                    workers: 4,
                    concurrency: 12,
                    ..BASE
                },
            ),
        ],
    }
    .run(&mut tally)?;
    Load {
        name: "W5: integers",
        graph: &integers,
        fit: BASE,
        node: "map",
        runs: COMPUTES,
        tries: &[
            ("1 worker", Settings { workers: 1, ..BASE }),
            ("no workers", Settings { workers: 0, ..BASE }),
            (
                "step 1 ms",
                Settings {
                    step: ms(1),
                    ..BASE
                },
            ),
        ],
    }
    .run(&mut tally)?;
    println!(
        "{} of {} predictions within {:.0} %",
        tally.close,
        tally.all,
        CLOSE * 100.0
    );
    Ok(())
}
