//! Parts of graphs in processes of their own, compared with threads: images that become 600 kB
//! tensors, values of 100 bytes, the start, and a crash. Peers are Python's loaders with processes
//! (`benches/peers/processes.py`) that are installed.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datapipes::{DataLoader, Graph, OnError, Rng, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{Image, resize};
use support::{bar, case, compare, median, peer, peer_case};

const CHILDREN: usize = 2;
const BATCH: usize = 64;
/// Size of a large item in bytes: an image of 224x224, three channels, as `f32`.
const LARGE: usize = 3 * 224 * 224 * 4;

/// Makes pictures of about 500x375, as JPEG files in memory.
fn pictures(count: usize) -> Vec<Bytes> {
    let mut rng = Rng::from_key([7; 4]);
    let mut picture = || {
        let coarse: Vec<u8> = (0..40 * 30 * 3).map(|_| rng.below(256) as u8).collect();
        let coarse = Image::new(40, 30, 3, coarse).expect("of this size");
        let mut image = resize(&coarse, 500, 375, Filter::CatmullRom).expect("a fine size");
        image
            .data_mut()
            .iter_mut()
            .for_each(|v| *v = v.saturating_add(rng.below(24) as u8));
        let mut file = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut file, 87);
        encoder
            .encode(image.data(), 500, 375, jpeg_encoder::ColorType::Rgb)
            .expect("a fine picture");
        Bytes::from(file)
    };
    (0..count).map(|_| picture()).collect()
}

/// Does the work of W2 on each picture.
fn decoded(files: Graph<Bytes>) -> Graph<Tensor> {
    files.image_rows(
        ImageRows::random_resized_crop(224)
            .random_hflip(0.5)
            .normalize(Normalize::IMAGENET),
    )
}

fn large(numbers: Graph<u64>) -> Graph<Tensor> {
    numbers.map(|n| Tensor::from_vec(vec![n as u8; LARGE], [LARGE]).expect("so many"))
}

fn small(numbers: Graph<u64>) -> Graph<[u8; 100]> {
    numbers.map(|n| [n as u8; 100])
}

fn loader<T: Send + 'static>(graph: Graph<T>) -> DataLoader<T> {
    DataLoader::builder(graph)
        .workers(CHILDREN)
        .build()
        .expect("a right graph")
}

/// Times one epoch, after an epoch that starts threads and processes.
fn again<'a, T: Send + 'static>(name: &str, loader: DataLoader<T>) -> support::Case<'a> {
    let mut epoch = 0;
    case(name, move || {
        epoch += 1;
        loader
            .epoch(epoch)
            .blocking()
            .for_each(|item| drop(std::hint::black_box(item.expect("no failures"))));
    })
}

/// Returns the seconds from making a loader to its first batch, in a process that has done nothing
/// before.
fn first_batch() -> f64 {
    let begun = Instant::now();
    let loader = loader(
        Graph::range(0..10_000)
            .in_processes(CHILDREN, small)
            .batch(BATCH),
    );
    assert_eq!(
        loader
            .epoch(0)
            .blocking()
            .next()
            .expect("a batch")
            .expect("no failure")
            .len(),
        BATCH
    );
    begun.elapsed().as_secs_f64()
}

/// Returns the longest pause of an epoch in seconds, where one item in 500 ends two processes; and
/// the number of items given up.
fn crashes() -> (f64, usize) {
    let graph = Graph::range(0..5000).in_processes(CHILDREN, |numbers| {
        numbers.map(|n| {
            if n % 500 == 250 {
                std::process::abort();
            }
            // Takes as long as decoding a picture.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(200) {}
            n
        })
    });
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(100))
        .build()
        .expect("a right graph");
    let mut last = Instant::now();
    let mut longest: f64 = 0.0;
    for (place, item) in loader.epoch(0).blocking().enumerate() {
        item.expect("skipped");
        // The first item waits for the processes to start, so it does not count.
        longest = longest.max(if place > 0 {
            last.elapsed().as_secs_f64()
        } else {
            0.0
        });
        last = Instant::now();
    }
    let stats = loader.stats().expect("an epoch ran");
    (longest, stats.skipped_items.len())
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    datapipes::worker::init();
    if std::env::args().nth(1).as_deref() == Some("first") {
        println!("{}", first_batch());
        return Ok(());
    }

    let files = pictures(512);
    let source = || Graph::from_vec(files.clone());
    let ratios = compare(
        "Images of 500x375 to 600 kB tensors, one by one",
        files.len() as f64,
        "images",
        7,
        vec![
            again("2 threads", loader(decoded(source()))),
            again(
                "2 processes",
                loader(source().in_processes(CHILDREN, decoded)),
            ),
        ],
    );
    bar("processes to threads, images", 1.0 / ratios[1], 0.9, true);
    let ratios = compare(
        "The same in batches of 64",
        files.len() as f64,
        "images",
        7,
        vec![
            again(
                "2 threads",
                loader(decoded(source()).batch(BATCH).collate()),
            ),
            again(
                "2 processes",
                loader(
                    source()
                        .in_processes(CHILDREN, decoded)
                        .batch(BATCH)
                        .collate(),
                ),
            ),
        ],
    );
    bar(
        "processes to threads, images in batches",
        1.0 / ratios[1],
        0.9,
        true,
    );

    let count = 4000u64;
    let range = || Graph::range(0..count);
    let mut cases = vec![
        again("2 threads", loader(large(range()))),
        again("2 processes", loader(range().in_processes(CHILDREN, large))),
    ];
    let peers = [
        ("PyTorch DataLoader, 2 workers", "torch"),
        ("multiprocessing.Pool(2).imap", "pool"),
    ];
    let with = |size: &'static str, count: u64| {
        peers.iter().filter_map(move |(name, peer)| {
            peer_case(
                name,
                "processes.py",
                vec![(*peer).to_owned(), size.to_owned(), count.to_string()],
            )
        })
    };
    let own = cases.len();
    cases.extend(with("large", count));
    let ratios = compare(
        "Tensors of 600 kB, filled and no more",
        count as f64,
        "items",
        5,
        cases,
    );
    if let Some(best) = ratios[own..].iter().copied().reduce(f64::min) {
        bar("times the best peer, 600 kB", best / ratios[1], 5.0, true);
    }

    let count = 1_000_000u64;
    let range = || Graph::range(0..count);
    let small_peers = 100_000u64;
    let mut seconds = Vec::new();
    let mut apart = again("2 processes", loader(range().in_processes(CHILDREN, small)));
    let timed = support::Case {
        name: apart.name.clone(),
        run: Box::new(|| {
            let took = (apart.run)();
            seconds.push(took.as_secs_f64());
            took
        }),
    };
    compare(
        "Values of 100 bytes",
        count as f64,
        "items",
        5,
        vec![again("2 threads", loader(small(range()))), timed],
    );
    let rate = count as f64 / median(seconds);
    bar(
        "values of 100 bytes a second through 2 processes",
        rate,
        300_000.0,
        true,
    );
    for (name, script) in peers {
        let args = [script, "small", &small_peers.to_string()].map(str::to_owned);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if let Some(took) = peer("processes.py", &args) {
            println!("{name}: {:.0} items/s", small_peers as f64 / took);
            bar(
                &format!("times {name}, 100 bytes"),
                rate * took / small_peers as f64,
                5.0,
                true,
            );
        }
    }

    let this = std::env::current_exe()?;
    let mut starts = Vec::new();
    for _ in 0..9 {
        let output = Command::new(&this).arg("first").output()?;
        starts.push(String::from_utf8(output.stdout)?.trim().parse::<f64>()?);
    }
    bar(
        "milliseconds to the first batch, with 2 processes to start",
        median(starts) * 1e3,
        100.0,
        false,
    );
    let pauses: Vec<f64> = (0..5)
        .map(|_| crashes())
        .map(|(longest, given_up)| {
            assert_eq!(given_up, 10);
            longest
        })
        .collect();
    bar(
        "milliseconds of the longest pause, with 10 items that crash",
        median(pauses) * 1e3,
        100.0,
        false,
    );
    Ok(())
}
