//! Speed of reading arrays from memory: `cargo bench -p datapipes-io --features zip --bench
//! arrays`, or with `-- npy` (`order`, `npz`) a part of it. NumPy, and SPDL if it is installed, are
//! timed for comparison by the interpreter that `DATAPIPES_PEERS` names.

use std::hint::black_box;
use std::io::{Cursor, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datapipes::{Context, DataLoader, Graph, Tensor};
use datapipes_io::formats::{Array, FileEntry, Format, Npy, Npz, NpzMember, NpzWriter};
use datapipes_io::{File, prelude::*};

/// Returns the shortest time of some runs: the speed of the machine without other load.
fn best(mut run: impl FnMut()) -> Duration {
    let time = |run: &mut dyn FnMut()| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    };
    (0..9).map(|_| time(&mut run)).min().expect("some runs")
}

/// Times one epoch of a loader, after one to warm up.
fn epoch<T: Send + 'static>(graph: Graph<T>, workers: usize) -> Duration {
    let loader = DataLoader::builder(graph)
        .workers(workers)
        .build()
        .expect("a graph that is right");
    let run = || {
        loader
            .epoch(0)
            .blocking()
            .for_each(|item| drop(black_box(item.expect("no errors"))))
    };
    run();
    best(run)
}

/// Times work that is divided among threads of its own, without a loader.
fn in_threads(threads: usize, work: impl Fn(usize) + Sync) -> Duration {
    best(|| {
        std::thread::scope(|scope| {
            (0..threads).for_each(|thread| {
                drop(scope.spawn({
                    let work = &work;
                    move || work(thread)
                }))
            });
        });
    })
}

/// Makes numbers as a decoder or a sensor gives them: the lower bits are noise.
fn numbers(len: usize) -> Vec<f32> {
    let mut state = 7u32;
    let mut draw = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    (0..len)
        .map(|n| (n % 100) as f32 + (draw() % 64) as f32 / 64.0)
        .collect()
}

fn array(shape: &[usize]) -> Array {
    let values = numbers(shape.iter().product());
    Array::from_tensor(&Tensor::from_vec(values, shape).expect("as many")).expect("NumPy has it")
}

fn rate(bytes: usize, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}

/// Returns the peers' times for one file.
fn peers(kind: &str, threads: usize, count: usize, data: &[u8]) -> Vec<(String, f64)> {
    let Ok(python) = std::env::var("DATAPIPES_PEERS") else {
        return Vec::new();
    };
    let mut file = tempfile::NamedTempFile::new().expect("a place for a file");
    file.write_all(data).expect("room for it");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/arrays.py");
    let (threads, count) = (threads.to_string(), count.to_string());
    let output = Command::new(python)
        .args([script, kind, &threads, &count])
        .arg(file.path())
        .output();
    let output = output.expect("an interpreter");
    if !output.status.success() {
        println!(
            "  peers did not run: {}",
            String::from_utf8_lossy(&output.stderr)
                .lines()
                .last()
                .unwrap_or_default()
        );
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        line.split_once('\t')
            .map(|(name, time)| (name.to_owned(), time.parse().ok()))
    };
    lines
        .lines()
        .filter_map(line)
        .filter_map(|(name, time)| Some((name, time?)))
        .collect()
}

fn npy() {
    println!("npy, native, aligned: ns an array");
    for shape in [&[600, 1020][..], &[1000, 1000], &[4000, 4000]] {
        let file = Bytes::from(array(shape).to_npy());
        let rounds = 10_000;
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(rounds);
        let parse = best(|| {
            (0..rounds).for_each(|_| drop(black_box(Array::parse(black_box(file.clone())))))
        });
        let tensor = best(|| {
            for _ in 0..rounds {
                drop(black_box(
                    Array::parse(black_box(file.clone())).and_then(|array| array.tensor()),
                ));
            }
        });
        let files = Graph::from_vec(vec![File::new("a.npy", file.clone()); rounds as usize]);
        let graph = epoch(files.read_as(Npy::new()).try_map(|array| array.tensor()), 0);
        println!(
            "  {:>5.1} MB: header {:.0}, with tensor {:.0}, in a graph {:.0}",
            file.len() as f64 / 1e6,
            each(parse),
            each(tensor),
            each(graph)
        );
        if file.len() < 10_000_000 {
            for (name, time) in peers("npy", 1, 40, &file) {
                println!(
                    "    {name} {:.0}: {:.0} times as long",
                    time * 1e9,
                    time * 1e9 / each(graph)
                );
            }
        }
    }
}

fn order() {
    let (rows, columns) = (2000, 2000);
    let native = array(&[rows, columns]).to_npy();
    let bytes = native.len();
    let header = |from: &str, to: &str| {
        let mut file = native.clone();
        let at = file
            .windows(from.len())
            .position(|part| part == from.as_bytes())
            .expect("it is there");
        file[at..at + to.len()].copy_from_slice(to.as_bytes());
        Array::parse(file.into()).expect("a header that is right")
    };
    let floor = best(|| drop(black_box(native.clone())));
    println!(
        "order, {:.0} MB: memcpy {}",
        bytes as f64 / 1e6,
        rate(bytes, floor)
    );
    let shifted =
        Array::parse(Bytes::from([b"x", &native[..]].concat()).slice(1..)).expect("as it was");
    for (name, array) in [
        ("not aligned", shifted),
        ("big endian", header("<f4", ">f4")),
        ("Fortran order", header("False", "True ")),
    ] {
        let time = best(|| drop(black_box(array.tensor())));
        println!(
            "  {name:<14} {}, {:.2} of memcpy",
            rate(bytes, time),
            floor.as_secs_f64() / time.as_secs_f64()
        );
    }
}

fn npz() {
    const FILES: usize = 48;
    let arrays = [
        ("images", array(&[2, 3, 224, 224])),
        ("weights", array(&[311, 1000])),
    ];
    let pack = |deflated: bool| {
        let mut npz = NpzWriter::new(Cursor::new(Vec::new()));
        if deflated {
            npz = npz.deflated();
        }
        for (name, array) in &arrays {
            npz.add(name, array).expect("in memory");
        }
        npz.finish().expect("in memory").into_inner()
    };
    let bytes: usize = arrays.iter().map(|(_, array)| array.data().len()).sum();
    // Each file is in a buffer of its own and begins at its second byte, so that no array is
    // aligned, as in an archive that NumPy writes.
    let files = |data: &[u8]| -> Vec<Bytes> {
        (0..FILES)
            .map(|_| Bytes::from([b"x", data].concat()).slice(1..))
            .collect()
    };
    let stored = files(&pack(false));
    let deflated = files(&pack(true));
    let contents: Vec<Vec<Bytes>> = stored
        .iter()
        .map(|file| {
            let raw = Npz::new().unchecked();
            Graph::from_vec(vec![File::new("f", file.clone())])
                .read_as(raw)
                .collect()
                .expect("as it was written")
                .into_iter()
                .map(|array| array.data().clone())
                .collect()
        })
        .collect();
    let graph = |files: &[Bytes]| {
        Graph::from_vec(
            files
                .iter()
                .map(|data| File::new("a.npz", data.clone()))
                .collect::<Vec<_>>(),
        )
    };
    let raw: Vec<Vec<u8>> = arrays
        .iter()
        .map(|(_, array)| {
            let mut deflate =
                flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
            deflate.write_all(&array.to_npy()).expect("in memory");
            deflate.finish().expect("in memory")
        })
        .collect();
    let copies = Graph::from_vec(contents.iter().flatten().cloned().collect::<Vec<_>>());
    let all = bytes * FILES;
    println!(
        "npz, {FILES} files of two arrays, {:.2} MB each, {:.2} MB deflated",
        bytes as f64 / 1e6,
        deflated[0].len() as f64 / 1e6
    );
    for threads in [1, 2] {
        let part = |thread: usize| thread * FILES / threads..(thread + 1) * FILES / threads;
        let copy = in_threads(threads, |thread| {
            for file in &contents[part(thread)] {
                drop(black_box(
                    file.iter().map(|data| data.to_vec()).collect::<Vec<_>>(),
                ));
            }
        });
        let inflate = in_threads(threads, |thread| {
            for _ in part(thread) {
                for (data, (_, array)) in raw.iter().zip(&arrays) {
                    let mut out = Vec::with_capacity(array.data().len() + 200);
                    let mut inflate = flate2::Decompress::new(false);
                    inflate
                        .decompress_vec(data, &mut out, flate2::FlushDecompress::Finish)
                        .expect("as it was written");
                    assert!(out.len() > array.data().len());
                    black_box(out);
                }
            }
        });
        // The work of one thread is done inline, without a worker.
        let workers = if threads == 1 { 0 } else { threads };
        let in_graph = epoch(copies.clone().map(|data| data.to_vec()), workers);
        println!(
            "{threads} threads: memcpy {}, in a graph {}, flate2 {}",
            rate(all, copy),
            rate(all, in_graph),
            rate(all, inflate)
        );
        let line = |name: &str, time: Duration, floor: Duration| {
            let ratio = floor.as_secs_f64() / time.as_secs_f64();
            println!("  {name:<28} {}, {ratio:.2} of the floor", rate(all, time));
        };
        let alone = |files: &[Bytes], npz: &Npz| {
            in_threads(threads, |thread| {
                for data in &files[part(thread)] {
                    let file = File::new("a.npz", data.clone());
                    for entry in npz
                        .open(file, &Context::default())
                        .expect("as it was written")
                    {
                        let FileEntry::Item(_, array) = entry else {
                            panic!("{entry:?}")
                        };
                        black_box(array.tensor().expect("numbers"));
                    }
                }
            })
        };
        let tensors = |files: &[Bytes], npz: Npz| {
            epoch(
                graph(files)
                    .read_as(npz)
                    .try_map(|array: Array| array.tensor()),
                workers,
            )
        };
        line(
            "stored, unchecked, alone",
            alone(&stored, &Npz::new().unchecked()),
            copy,
        );
        line(
            "stored, CRC checked, alone",
            alone(&stored, &Npz::new()),
            copy,
        );
        line(
            "stored, unchecked",
            tensors(&stored, Npz::new().unchecked()),
            in_graph,
        );
        let checked = tensors(&stored, Npz::new());
        line("stored, CRC checked", checked, in_graph);
        line("deflated, alone", alone(&deflated, &Npz::new()), inflate);
        let inflated = tensors(&deflated, Npz::new());
        line("deflated", inflated, inflate);
        let members = graph(&deflated[..1])
            .repeat(FILES as u64)
            .read_as(Npz::new().members());
        let decoded = members.try_map(|member: NpzMember| member.decode()?.tensor());
        line("deflated, by member", epoch(decoded, workers), inflate);
        for (what, files, ours) in [
            ("stored", &stored, checked),
            ("deflated", &deflated, inflated),
        ] {
            let ours = ours.as_secs_f64() / FILES as f64;
            for (name, time) in peers(
                "npz",
                threads,
                if what == "stored" { 40 } else { 8 },
                &files[0],
            ) {
                println!(
                    "    {name} {what}: {}, {:.1} times as long",
                    rate(bytes, Duration::from_secs_f64(time)),
                    time / ours
                );
            }
        }
    }
}

fn main() {
    let only: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for (name, part) in [("npy", npy as fn()), ("order", order), ("npz", npz)] {
        if only.is_empty() || only.iter().any(|only| only == name) {
            part();
        }
    }
}
