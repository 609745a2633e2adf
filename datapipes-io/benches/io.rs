//! Speed of listing, reading and opening files: `cargo bench -p datapipes-io`, or with `-- read`
//! (`small`, `members`, `list`) a part of it. Files are made in `TMPDIR`.

use std::fs;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use datapipes::{DataLoader, Graph};
use datapipes_io::{File, list_files, prelude::*};

/// Returns the shortest time of some runs: the speed of the machine without other load.
fn best(mut run: impl FnMut()) -> Duration {
    let time = |run: &mut dyn FnMut()| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    };
    (0..7).map(|_| time(&mut run)).min().expect("some runs")
}

/// Times one epoch of a loader, after one to warm up, and returns the number of items too.
fn epoch<T: Send + 'static>(graph: Graph<T>, workers: usize) -> (u64, Duration) {
    let loader = DataLoader::builder(graph)
        .workers(workers)
        .build()
        .expect("a graph that is right");
    let run = || {
        loader.epoch(0).blocking().fold(0, |items, item| {
            black_box(item.expect("no errors"));
            items + 1
        })
    };
    let items = run();
    (items, best(|| assert_eq!(run(), items)))
}

fn archive(members: usize, size: usize) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let data: Vec<u8> = (0..size).map(|n| n as u8).collect();
    for n in 0..members {
        for suffix in ["jpg", "cls"] {
            let data = if suffix == "jpg" { &data[..] } else { b"7" };
            let mut header = tar::Header::new_ustar();
            header.set_size(data.len() as u64);
            header.set_cksum();
            archive
                .append_data(&mut header, format!("train/{n:06}.{suffix}"), data)
                .expect("in memory");
        }
    }
    archive.into_inner().expect("in memory")
}

fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}

fn read(dir: &Path) {
    let data = archive(260, 115_000);
    for n in 0..20 {
        fs::write(dir.join(format!("{n:02}.tar")), &data).expect("room for 600 MB");
    }
    let bytes = 20 * data.len() as u64;
    let mut buffer = vec![1; data.len()];
    let plain = best(|| {
        for n in 0..20 {
            let mut file = fs::File::open(dir.join(format!("{n:02}.tar"))).expect("made above");
            file.read_exact(&mut buffer).expect("made above");
        }
    });
    let fresh = best(|| {
        for n in 0..20 {
            black_box(fs::read(dir.join(format!("{n:02}.tar"))).expect("made above"));
        }
    });
    println!(
        "read 20 x {} MB: plain {}",
        data.len() / 1_000_000,
        rate(bytes, plain)
    );
    println!("  fs::read            {}", rate(bytes, fresh));
    for workers in [0, 2] {
        let (_, time) = epoch(list_files(dir, "*.tar").load_files(), workers);
        println!("  load_files, {workers} workers {}", rate(bytes, time));
        let (samples, time) = epoch(
            list_files(dir, "*.tar").load_files().untar().samples(),
            workers,
        );
        println!(
            "  … samples, {workers} workers {}, {samples} samples",
            rate(bytes, time)
        );
    }
}

fn small(dir: &Path) {
    let small = dir.join("small");
    fs::create_dir(&small).expect("a folder of one's own");
    for n in 0..10_000 {
        fs::write(small.join(format!("{n:05}.jpg")), vec![1; 10_000]).expect("room for 100 MB");
    }
    let names: Vec<_> = fs::read_dir(&small)
        .expect("made above")
        .map(|entry| entry.expect("made above").path())
        .collect();
    let plain = best(|| {
        names
            .iter()
            .for_each(|name| drop(black_box(fs::read(name).expect("made above"))))
    });
    println!("read 10000 x 10 kB: fs::read {:.1?}", plain);
    for workers in [0, 2] {
        println!(
            "  load_files, {workers} workers {:.1?}",
            epoch(list_files(&small, "*").load_files(), workers).1
        );
    }
}

fn members(_: &Path) {
    for (count, size) in [(20_000, 100), (260, 115_000)] {
        let members = 2 * count;
        let archives = vec![File::new("x.tar", archive(count, size)); 400_000 / members];
        let members = (members * archives.len()) as f64;
        let graph = Graph::from_vec(archives);
        let each = |time: Duration| time.as_nanos() as f64 / members;
        println!("members of {size} B and 1 B, inline, in ns each:");
        println!(
            "  untar          {:.0}",
            each(epoch(graph.clone().untar(), 0).1)
        );
        println!(
            "  untar, samples {:.0}",
            each(epoch(graph.clone().untar().samples(), 0).1)
        );
        println!(
            "  samples  {:.0}",
            each(epoch(graph.untar().samples(), 0).1)
        );
    }
}

fn list(dir: &Path) {
    let many = dir.join("many");
    fs::create_dir(&many).expect("a folder of one's own");
    for n in 0..300_000u32 {
        fs::write(
            many.join(format!("img_{:08}.jpg", n.wrapping_mul(2_654_435_761))),
            "",
        )
        .expect("room for names");
    }
    let begun = Instant::now();
    let loader = DataLoader::builder(list_files(&many, "*.jpg"))
        .workers(2)
        .build()
        .expect("a graph that is right");
    let mut epoch_of = loader.epoch(0).blocking();
    epoch_of.next();
    let first = begun.elapsed();
    drop(epoch_of);
    let plain = best(|| assert!(fs::read_dir(&many).expect("made above").count() > 0));
    println!(
        "list 300000 files of one folder: first after {first:.1?}, read_dir alone {plain:.1?}"
    );
    for workers in [0, 2] {
        println!(
            "  all, {workers} workers {:.1?}",
            epoch(list_files(&many, "*.jpg"), workers).1
        );
    }
}

fn main() {
    let dir = tempfile::tempdir().expect("a place for files");
    let only: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for (name, part) in [
        ("read", read as fn(&Path)),
        ("small", small),
        ("members", members),
        ("list", list),
    ] {
        if only.is_empty() || only.iter().any(|only| only == name) {
            part(dir.path());
        }
    }
}
