//! A loader that tunes itself beside the best point of a full grid of workers and prefetch, the
//! grid of the tuner paper, and peers. It runs in the three ways of `Builder::tune`: with `true`; not
//! called, the default, which tunes the queue alone; with `false`. The peers are tf.data with
//! AUTOTUNE, and PyTorch with its defaults and with as many workers as cores, where the Python that
//! `DATAPIPES_PEERS` names has them.
//!
//! `cargo bench --features http --bench tuning [-- --json] [LOAD...]`. A load is a part of its name,
//! such as `W2`; without one all run, each in 4 to 6 minutes, of which the peers take one. Rates are
//! batches per second of an endless epoch.
//!
//! - W1: members of tar shards, page cache warm. W2: pictures, cropped and resized. W3: objects of
//!   115 kB, 20 and 150 ms away, over a link to a process on the same cores.
//! - mixed: W2 beside a consumer that computes for 15 ms a batch, as a training step on the CPU does.
//! - changing: a consumer that waits for a step at first and then no more; rates are those afterwards.

#[path = "../examples/support/mod.rs"]
mod examples;
mod support;

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use datapipes::loader::tune::{Point, Tuner};
use datapipes::{BoxError, DataLoader, Graph};
use datapipes_io::list_files;
use datapipes_io::prelude::*;
use datapipes_io::stores;
use examples::link::{self, Link};
use examples::{images, shards};
use support::{Lines, bar, median, peer};

/// Time for which a point of the grid is measured.
const MEASURED: Duration = ms(1000);
/// Number of times that each point is measured, in turn with the others.
const ROUNDS: usize = 2;
/// Longest queues of the grid.
const PREFETCH: [usize; 3] = [1, 3, 8];
/// Time for which a loader runs that may tune itself; the last third counts as tuned.
const ONLINE: Duration = ms(24_000);
/// Share of the grid's best rate to reach, and of the grid's time that may be lost meanwhile.
const GOAL: (f64, f64) = (0.97, 0.05);

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Ways in which a loader may tune itself, and their names; the first is compared with the goal.
const TUNES: [(Option<bool>, &str); 3] = [
    (Some(true), "tunes itself"),
    (None, "default, tunes its queue"),
    (Some(false), "tunes nothing"),
];

/// Consumer of the batches, in place of a training step.
#[derive(Clone, Copy)]
enum Consumer {
    Nothing,
    Computes(Duration),
    /// Waits for each batch during the first part of a run.
    Waits(Duration),
}

/// Measurements of an epoch: batches per second without its first part, and with it.
struct Rates {
    settled: f64,
    whole: f64,
    /// Settings that the loader tried by itself.
    tried: Vec<String>,
}

struct Load<'a, T> {
    name: &'a str,
    /// The load as `peers/tuning.py` names it, and where its data are.
    peers: [String; 2],
    graph: &'a dyn Fn() -> Result<Graph<T>, BoxError>,
    consumer: Consumer,
    /// Time from the first batch until the rate is that of a long run.
    starts: Duration,
}

impl<T: Send + 'static> Load<'_, T> {
    /// Returns a loader with these settings.
    fn at(&self, point: Point) -> Result<DataLoader<T>, BoxError> {
        let builder = DataLoader::builder((self.graph)()?).tune(false);
        let builder = builder.workers(point.workers).prefetch(point.prefetch);
        Ok(builder.build()?)
    }

    /// Returns a loader with the default settings.
    fn tuning(&self, tune: Option<bool>) -> Result<DataLoader<T>, BoxError> {
        let builder = DataLoader::builder((self.graph)()?);
        let builder = match tune {
            Some(tune) => builder.tune(tune),
            None => builder,
        };
        Ok(builder.build()?)
    }

    fn rates(
        &self,
        loader: &DataLoader<T>,
        (skip, count): (Duration, Duration),
    ) -> Result<Rates, BoxError> {
        let mut batches = loader.epoch(0).blocking();
        let mut take = || {
            let batch = batches.next().ok_or("an endless epoch ended")?;
            batch.map_err(BoxError::from)
        };
        drop(take()?);
        let begun = Instant::now();
        let (mut before, mut after, mut since) = (0u64, 0u64, None);
        loop {
            drop(take()?);
            let elapsed = begun.elapsed();
            match self.consumer {
                Consumer::Computes(time) => compute(time),
                Consumer::Waits(time) if elapsed < skip / 2 => std::thread::sleep(time),
                _ => {}
            }
            match since {
                None if elapsed >= skip => since = Some(elapsed),
                None => before += 1,
                Some(since) => {
                    after += 1;
                    if elapsed >= skip + count {
                        let seconds = elapsed.as_secs_f64();
                        return Ok(Rates {
                            settled: after as f64 / (elapsed - since).as_secs_f64(),
                            whole: (before + after) as f64 / seconds,
                            tried: batches.stats().map_or(Vec::new(), |stats| stats.tuned),
                        });
                    }
                }
            }
        }
    }

    fn run(&self, lines: &Lines) -> Result<(), BoxError> {
        let asked: Vec<String> = (std::env::args().skip(1))
            .filter(|arg| !arg.starts_with("--"))
            .collect();
        if !asked.is_empty() && !asked.iter().any(|arg| self.name.contains(arg)) {
            return Ok(());
        }
        let at_grid = (self.starts, MEASURED);
        let cores = std::thread::available_parallelism()?.get();
        let points: Vec<Point> = numbers_of_workers(2 * cores)
            .flat_map(|workers| PREFETCH.map(|prefetch| Point { workers, prefetch }))
            .collect();
        let mut rates = vec![Vec::new(); points.len()];
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            for (rates, point) in rates.iter_mut().zip(&points) {
                rates.push(self.rates(&self.at(*point)?, at_grid)?.settled);
            }
        }
        let grid = begun.elapsed().as_secs_f64();
        let (_, point) = (rates.into_iter().map(median).zip(&points))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .ok_or("a grid has points")?;
        // The best of a noisy grid is too good, so it is measured again, in turn with the others.
        let (mut again, mut own) = (Vec::new(), TUNES.map(|_| Vec::new()));
        let (mut lost, mut tried) = (0.0, Vec::new());
        for _ in 0..ROUNDS {
            again.push(self.rates(&self.at(*point)?, at_grid)?.settled);
            for ((tune, _), own) in TUNES.into_iter().zip(&mut own) {
                let loader = self.tuning(tune)?;
                let rates = self.rates(&loader, (ONLINE * 2 / 3, ONLINE / 3))?;
                own.push(rates.settled);
                if tune == Some(true) {
                    let share = 1.0 - rates.whole / rates.settled;
                    lost += share * ONLINE.as_secs_f64() / ROUNDS as f64;
                    tried = rates.tried;
                }
            }
            again.push(self.rates(&self.at(*point)?, at_grid)?.settled);
        }
        let (best, own) = (median(again), own.map(median));
        let paper = self.paper()?;
        let of_paper = self.rates(&self.at(paper)?, at_grid)?.settled;
        let beside = |rate: f64, what: &str, goal: f64| {
            let name = format!("{}, {what}", self.name);
            lines.print(&name, rate, (&point.to_string(), best), rate / best, goal);
        };
        for (place, ((_, name), rate)) in TUNES.into_iter().zip(own).enumerate() {
            beside(rate, name, if place == 0 { GOAL.0 } else { 0.0 });
        }
        beside(of_paper, &format!("paper's grid ({paper})"), 0.0);
        if !matches!(self.consumer, Consumer::Waits(_)) {
            bar(
                "seconds lost while it tuned, of those of the grid",
                lost / grid,
                GOAL.1,
                false,
            );
        }
        tried.iter().for_each(|tried| eprintln!("    {tried}"));
        self.beside_peers(lines, own[0]);
        Ok(())
    }

    /// Prints the rate beside those of the peers.
    fn beside_peers(&self, lines: &Lines, rate: f64) {
        let [load, place] = &self.peers;
        let (consumer, time) = match self.consumer {
            Consumer::Nothing => ("none", Duration::ZERO),
            Consumer::Computes(time) => ("computes", time),
            Consumer::Waits(time) => ("waits", time),
        };
        let time = time.as_millis().to_string();
        for name in ["tfdata", "torch", "torch_workers"] {
            let args = [load.as_str(), name, place, consumer, &time];
            if let Some(other) = peer("tuning.py", &args) {
                let case = format!("{}, {}", self.name, TUNES[0].1);
                lines.print(&case, rate, (name, other), rate / other, 1.0);
            }
        }
    }

    /// Returns the point that the paper's grid finds.
    fn paper(&self) -> Result<Point, BoxError> {
        // The graph was made once without an error.
        let graph = (self.graph)()?;
        let consumer = self.consumer;
        let mut tuner = Tuner::new(|| DataLoader::builder(graph.clone()))
            .batches(64)
            .step(move |_| {
                match consumer {
                    Consumer::Computes(time) => compute(time),
                    Consumer::Waits(time) => std::thread::sleep(time),
                    Consumer::Nothing => {}
                }
                datapipes::Ok(())
            });
        Ok(tuner.grid()?.best)
    }
}

/// Returns the grid's numbers of workers: 1, 2, 3, 4, 6, 8, 12, 16, and so on, since a grid of all
/// numbers takes an hour where cores are many.
fn numbers_of_workers(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |n| Some(n + ((1 << n.ilog2()) / 2).max(1)))
        .take_while(move |n| *n <= most)
}

/// Keeps a core busy.
fn compute(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Writes shards of 20 kB members, and pictures in the folder of a class.
fn make(folder: &Path) -> Result<(), BoxError> {
    let noise: Vec<u8> = (0..20_000u32).map(|n| ((n * n) >> 7) as u8).collect();
    for shard in 0..8 {
        let mut tar = tar::Builder::new(File::create(folder.join(format!("{shard}.tar")))?);
        for member in 0..500 {
            let mut header = tar::Header::new_ustar();
            header.set_size(noise.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, format!("{member:04}.bin"), &noise[..])?;
        }
        tar.finish()?;
    }
    let class = folder.join("pictures/class");
    std::fs::create_dir_all(&class)?;
    for picture in 0..200 {
        std::fs::write(
            class.join(format!("{picture:04}.jpg")),
            shards::photo(picture, 1),
        )?;
    }
    Ok(())
}

fn main() -> Result<(), BoxError> {
    link::serve_if_asked();
    let folder = tempfile::tempdir()?;
    make(folder.path())?;
    let lines = Lines::new("load", "batches/s");
    let shards = || {
        let files = list_files(folder.path(), "*.tar").cycle().load_files();
        Ok(files.untar().samples().batch(256))
    };
    let pictures = || {
        let files = list_files(folder.path().join("pictures"), "**/*.jpg").cycle();
        let encoded = files.load_files().map(|file| (file.data, 0));
        Ok(images::training_batches(encoded.named("label"), 224, 32))
    };
    let of = |kind: &str, place: &Path| -> Result<[String; 2], BoxError> {
        let place = place.to_str().ok_or("a path that is text")?;
        Ok([kind.to_owned(), place.to_owned()])
    };
    let of_pictures = of("pictures", &folder.path().join("pictures"))?;
    Load {
        name: "W1",
        peers: of("shards", folder.path())?,
        graph: &shards,
        consumer: Consumer::Nothing,
        starts: ms(500),
    }
    .run(&lines)?;
    Load {
        name: "W2",
        peers: of_pictures.clone(),
        graph: &pictures,
        consumer: Consumer::Nothing,
        starts: ms(500),
    }
    .run(&lines)?;
    let link = Link::noise(2000, 115_000)?;
    let run = Cell::new(0);
    let far = [
        ("W3, 20 ms", "rtt=20", ms(1000)),
        ("W3, 150 ms", "rtt=150", ms(3000)),
    ];
    for (name, far, starts) in far {
        // A link that no other loader has used.
        let url = || {
            run.set(run.get() + 1);
            link.url(&format!("{far},run={}", run.get()))
        };
        let objects = || {
            let keys = (0..2000).map(|n| format!("{n:06}.jpg"));
            Ok(stores::open(&url())?
                .files(keys)
                .cycle()
                .load_files()
                .batch(64))
        };
        Load {
            name,
            peers: ["objects".to_owned(), url()],
            graph: &objects,
            consumer: Consumer::Nothing,
            starts,
        }
        .run(&lines)?;
    }
    let consumers = [
        ("mixed", Consumer::Computes(ms(15))),
        ("changing", Consumer::Waits(ms(100))),
    ];
    for (name, consumer) in consumers {
        Load {
            name,
            peers: of_pictures.clone(),
            graph: &pictures,
            consumer,
            starts: ms(500),
        }
        .run(&lines)?;
    }
    Ok(())
}
