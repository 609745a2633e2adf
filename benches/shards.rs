//! Reading tar shards from the page cache without decoding (W1), compared with plain `read()` of
//! the shards into one buffer.
//!
//! The shards are those of `$BENCH_DATA/wds`, or, if that is not set, eight of about 30 MB made for
//! the run.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use datapipes::DataLoader;
use datapipes_io::prelude::*;
use datapipes_io::{Sample, list_files};
use support::{bar, case, compare, peer_case, write_tar};

const EPOCHS: usize = 3;

fn make_shards(dir: &Path) -> std::io::Result<()> {
    let mut rng = datapipes::Rng::from_key([1; 4]);
    let noise: Vec<u8> = (0..1 << 20).map(|_| rng.next_u32() as u8).collect();
    for shard in 0..8 {
        let members = (0..250).flat_map(|i| {
            let len = 60_000 + rng.below(110_000) as usize;
            let from = rng.below((noise.len() - len) as u64) as usize;
            let name = shard * 250 + i;
            [
                (format!("{name:06}.jpg"), &noise[from..from + len]),
                (format!("{name:06}.cls"), &b"7"[..]),
            ]
        });
        let file = File::create(dir.join(format!("{shard:02}.tar")))?;
        write_tar(std::io::BufWriter::new(file), members)?.flush()?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let made = tempfile::tempdir()?;
    let dir = match std::env::var_os("BENCH_DATA") {
        Some(data) => PathBuf::from(data).join("wds"),
        None => {
            make_shards(made.path())?;
            made.path().to_owned()
        }
    };
    let mut shards: Vec<PathBuf> = std::fs::read_dir(&dir)?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    shards.sort();
    let bytes: u64 = shards
        .iter()
        .map(|s| s.metadata().map(|m| m.len()).unwrap_or(0))
        .sum();
    println!("{} shards, {:.1} MB", shards.len(), bytes as f64 / 1e6);

    let build = |workers| {
        let graph = list_files(&dir, "*.tar")
            .stream_untar()
            .samples()
            .batch(256);
        DataLoader::builder(graph)
            .workers(workers)
            .build()
            .expect("a right graph")
    };
    let epoch = |loader: &DataLoader<Vec<Sample>>| {
        for _ in 0..EPOCHS {
            let sizes = loader.epoch(0).blocking().map(|batch| {
                let batch = batch.expect("the shards are good");
                batch
                    .iter()
                    .map(|s| s.get("jpg").expect("each sample has an image").len())
                    .sum::<usize>()
            });
            std::hint::black_box(sizes.sum::<usize>());
        }
    };
    let mut buffer = vec![
        0u8;
        shards
            .iter()
            .map(|s| s.metadata().map_or(0, |m| m.len()))
            .max()
            .unwrap_or(0) as usize
            + 1
    ];
    let shards_ref = &shards;
    let read_all = move || {
        for _ in 0..EPOCHS {
            for shard in shards_ref {
                let mut file = File::open(shard).expect("the shard is there");
                let mut filled = 0;
                loop {
                    match file.read(&mut buffer[filled..]).expect("it can be read") {
                        0 => break,
                        n => filled += n,
                    }
                }
                std::hint::black_box(&buffer[..filled]);
            }
        }
    };
    let (inline, one, two) = (build(0), build(1), build(2));
    let megabytes = bytes as f64 * EPOCHS as f64 / 1e6;
    let cases = vec![
        case("read() of the shards into one buffer (floor)", read_all),
        case("inline", || epoch(&inline)),
        case("1 worker", || epoch(&one)),
        case("2 workers", || epoch(&two)),
    ];
    let ratios = compare(
        "W1: tar shards from the page cache",
        megabytes,
        "MB",
        15,
        cases,
    );
    bar("rate over plain read()", 1.0 / ratios[3], 0.8, true);
    println!("\n{}\n{}", two.explain(), two.stats().expect("it ran"));

    let paths: Vec<String> = shards.iter().map(|s| s.display().to_string()).collect();
    let once = |loader: &DataLoader<Vec<Sample>>| {
        loader
            .epoch(0)
            .blocking()
            .map(|b| b.expect("good").len())
            .sum::<usize>()
    };
    let samples = once(&two);
    let mut cases = vec![case("2 workers", || once(&two))];
    cases.extend(peer_case("WebDataset", "webdataset_w1.py", paths.clone()));
    cases.extend(peer_case(
        "DALI, 2 threads",
        "dali_w1.py",
        [vec![samples.to_string()], paths].concat(),
    ));
    if cases.len() > 1 {
        compare("W1 beside peers", bytes as f64 / 1e6, "MB", 5, cases);
    }
    Ok(())
}
