//! The number of requests in flight that the library finds by itself, beside the best fixed number.
//!
//! `cargo bench --features http --bench flight [-- --json] [CASE...]`. A case is a size and a link, such
//! as `115kB,rtt=20` (`listed`: the sizes of objects are known), or a size and `local`, files in the
//! page cache (`local,open=5`: each opened after 5 ms); without one all run, in 25 minutes.
//!
//! For each, a pass over all objects is timed with every number of a grid and with none given, in
//! turn, each time by a new loader over new connections (`first epoch`), and by a loader that has read
//! them once (`second epoch`); also by a new loader with the settings that another has saved
//! (`first epoch, saved`). Prints the rate found beside the best of the grid, and the number in flight
//! at the end beside the best one. The server runs in a process of its own on the same cores, and
//! models the link (`examples/support/link.rs`).

#[path = "../examples/support/link.rs"]
mod link;
#[path = "support/slowly.rs"]
mod slowly;
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use datapipes::{BoxError, DataLoader, Graph};
use datapipes_io::prelude::*;
use datapipes_io::{FileRef, stores};
use link::Link;
use slowly::OpenSlowly;
use support::{Lines, median, usage};

/// Sizes of objects, with the number of them in a pass.
const SIZES: [(&str, usize, usize); 3] = [
    ("4kB", 4_000, 6_000),
    ("115kB", 115_000, 2_000),
    ("4MB", 4_000_000, 400),
];

/// Links, each with the numbers in flight to try.
const LINKS: [(&str, &[usize]); 12] = [
    ("rtt=0", &[2, 4, 8, 16, 32, 64, 128]),
    ("rtt=1", &[8, 16, 32, 64, 128, 256]),
    ("rtt=20", &[32, 64, 128, 256, 512]),
    ("rtt=20,listed", &[32, 64, 128, 256, 512]),
    ("rtt=150", &[128, 256, 512, 1024]),
    ("rtt=150,listed", &[128, 256, 512, 1024]),
    ("rtt=0,cap=100", &[2, 8, 32, 128]),
    ("rtt=20,cap=100", &[8, 32, 128, 512]),
    ("rtt=150,cap=100", &[64, 128, 256, 512]),
    ("rtt=20,slow=25", &[64, 128, 256, 512, 1024]),
    ("local", &[1, 2, 4, 8, 32]),
    ("local,open=5", &[16, 32, 64, 128, 256]),
];

/// Origin of a loader's number in flight.
#[derive(Clone, Copy)]
enum Number {
    Given(usize),
    Found,
    /// Found by an earlier loader, which saved it.
    Saved,
}

/// Passes with each number. The passes of all numbers are made in turn.
const ROUNDS: usize = 3;
/// Share of the best fixed number's rate to reach.
const GOAL: f64 = 0.9;
/// Bytes that all objects of a pass over a capped link may have: 5 s of it. Local files have no more.
const CAPPED: usize = 200_000_000;

fn main() -> Result<(), BoxError> {
    link::serve_if_asked();
    let cases: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let lines = Lines::new("size and link", "objects/s");
    for (name, size, objects) in SIZES {
        let link = Link::noise(objects, size)?;
        let sizes = Link::sizes(objects, size);
        let folder = tempfile::tempdir()?;
        let saved = folder.path().join("settings.json");
        let mut run = 0;
        for (profile, grid) in LINKS {
            let case = format!("{name},{profile}");
            if !cases.is_empty() && !cases.contains(&case) {
                continue;
            }
            let is_local = profile.starts_with("local");
            let objects = match is_local || profile.contains("cap") {
                true => objects.min(CAPPED / size),
                false => objects,
            };
            let files = match is_local {
                true => write(folder.path(), objects, size)?,
                false => Vec::new(),
            };
            let given = grid.iter().copied().map(Number::Given);
            let settings: Vec<Number> = given.chain([Number::Found, Number::Saved]).collect();
            // By epoch and setting: the rate of each round, and the number in flight.
            let mut rates = [(); 2].map(|()| vec![Vec::new(); settings.len()]);
            let mut numbers = [(); 2].map(|()| vec![Vec::new(); settings.len()]);
            for _ in 0..ROUNDS {
                for (place, &number) in settings.iter().enumerate() {
                    // A link that no other pass has used.
                    run += 1;
                    let graph = match profile.strip_prefix("local") {
                        None => {
                            let (link_of, listed) = match profile.strip_suffix(",listed") {
                                Some(profile) => (profile, &*sizes),
                                None => (profile, &[][..]),
                            };
                            let url = link.url(&format!("{link_of},run={run}"));
                            remote(&url, objects, listed)?
                        }
                        Some("") => Graph::from_vec(files.clone()),
                        Some(_) => Graph::from_vec(files.clone()).pipe(OPEN),
                    };
                    let passes = passes(graph, objects, number, &saved)?;
                    for (epoch, (seconds, number)) in passes.into_iter().enumerate() {
                        rates[epoch][place].push(objects as f64 / seconds);
                        numbers[epoch][place].push(number as f64);
                    }
                }
            }
            let (found, saved) = (grid.len(), grid.len() + 1);
            for (epoch, place, name) in [
                (0, found, "first epoch"),
                (0, saved, "first epoch, saved"),
                (1, found, "second epoch"),
            ] {
                let rate = |place: usize| median(rates[epoch][place].clone());
                let best = (0..grid.len()).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
                let best = best.expect("a grid has numbers");
                let number = median(numbers[epoch][place].clone());
                let beside = format!("{} in flight; here {number}", grid[best]);
                lines.print(
                    &format!("{case}, {name}"),
                    rate(place),
                    (&beside, rate(best)),
                    rate(place) / rate(best),
                    GOAL,
                );
            }
        }
    }
    Ok(())
}

/// Time before each file is opened, of a network file system.
const OPEN: OpenSlowly = OpenSlowly(Duration::from_millis(5));

/// Writes files of this size.
fn write(folder: &Path, files: usize, size: usize) -> Result<Vec<FileRef>, BoxError> {
    let paths = (0..files).map(|n| folder.join(format!("{n:06}.bin")));
    paths
        .map(|path| {
            std::fs::write(&path, vec![1; size])?;
            Ok(FileRef::new(path))
        })
        .collect()
}

/// Returns the first objects of a link, with their sizes if a listing tells them.
fn remote(url: &str, objects: usize, sizes: &[u64]) -> Result<Graph<FileRef>, BoxError> {
    let store = stores::open(url)?;
    let file = |n| FileRef::stored(store.clone(), format!("{n:06}.jpg"), sizes.get(n).copied());
    Ok(Graph::from_vec((0..objects).map(file).collect()))
}

/// Reads objects twice, and returns the seconds of each epoch, with the number that may be in flight
/// at its end. A number that is found is saved.
fn passes(
    graph: Graph<FileRef>,
    objects: usize,
    number: Number,
    saved: &Path,
) -> Result<[(f64, u64); 2], BoxError> {
    let graph = graph.load_files().batch(64);
    let builder = DataLoader::builder(graph).workers(2);
    let loader = match number {
        Number::Given(number) => builder.concurrency(number),
        Number::Found => builder,
        Number::Saved => builder.settings_from(saved)?,
    }
    .build()?;
    let mut passes = [(0.0, 0); 2];
    for (epoch, pass) in passes.iter_mut().enumerate() {
        let (begun, mut read) = (Instant::now(), 0);
        for batch in loader.epoch(epoch as u64).blocking() {
            read += batch?.len();
        }
        assert_eq!(read, objects, "every object once");
        let seconds = begun.elapsed().as_secs_f64();
        let stats = loader.stats().ok_or("figures of the epoch")?;
        *pass = (seconds, stats.segments[0].concurrency);
    }
    if matches!(number, Number::Found) {
        loader.save_settings(saved)?;
    }
    Ok(passes)
}
