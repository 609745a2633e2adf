//! Parts of graphs on workers that connect over TCP, here on loopback: images against threads on the
//! same cores, batches of 38.5 MB against plain TCP, small items, workers that wait, a distant worker, the
//! first batch, and the silence after a worker is killed.
//!
//! `cargo bench --bench remote [-- --json] [sections]`: images, batches, small, one_job, waiting, distance,
//! times; all by default. One line a case. Workers and consumer share the cores.
//! Peers are tf.data's service and `pyarrow.flight`, where `DATAPIPES_PEERS` names a Python with them.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datapipes::{DType, DataLoader, Graph, Remote, Result, Tensor};
use datapipes_image::prelude::*;
use support::pictures::{decoded, pictures};
use support::{Case, Lines, again, case, median, peer_case};

/// Images of a batch.
const BATCH: usize = 64;
/// Shape of a batch of images.
const SHAPE: [usize; 4] = [BATCH, 3, 224, 224];
const LEN: usize = BATCH * 3 * 224 * 224;
/// Means and standard deviations of ImageNet, of values from 0 to 1.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];
/// Workers that wait instead of computing.
const WAITING: usize = 16;

/// A worker machine, which ends when it is dropped.
struct Machine(Child);

impl Machine {
    fn start(address: SocketAddr, processes: usize) -> Machine {
        Machine::of(format!("tcp://{address}"), None, processes)
    }

    /// Starts one that trusts the certificate of a file.
    fn of(url: String, trusts: Option<&Path>, processes: usize) -> Machine {
        let executable = std::env::current_exe().expect("this program");
        let mut command = Command::new(executable);
        command
            .env("DATAPIPES_WORKER", url)
            .env("DATAPIPES_WORKER_PROCESSES", processes.to_string())
            .stderr(Stdio::null());
        if let Some(file) = trusts {
            command.env("DATAPIPES_WORKER_CA", file);
        }
        Machine(command.spawn().expect("it starts"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Passes on what comes, each piece after a delay.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (send, receive) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (due, bytes) in receive {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + delay;
        if send.send((due, buffer[..len].to_vec())).is_err() {
            return;
        }
    }
}

/// Returns an address from which everything takes half of a round trip, and back.
fn distant(to: SocketAddr, round_trip: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(to).expect("it listens");
            // A network holds nothing back until earlier pieces are acknowledged, as a socket would.
            for end in [&near, &far] {
                end.set_nodelay(true).expect("a connection");
            }
            let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let (near2, far2) = (clone(&near), clone(&far));
            std::thread::spawn(move || pass_on(near, far, round_trip / 2));
            std::thread::spawn(move || pass_on(far2, near2, round_trip / 2));
        }
    });
    address
}

fn listen() -> Remote {
    Remote::listen("127.0.0.1:0").expect("a free port")
}

/// A loader with workers of its own.
fn on_workers<T: Send + 'static>(
    processes: usize,
    graph: impl FnOnce(Remote) -> Graph<T>,
) -> (DataLoader<T>, Machine) {
    let remote = listen();
    let machine = Machine::start(remote.address(), processes);
    (loader(graph(remote), 2), machine)
}

/// A loader whose worker connects by TLS, with a certificate that is made for it.
fn over_tls(part: fn(Graph<u64>) -> Graph<Tensor>, count: u64) -> (DataLoader<Tensor>, Machine) {
    let folder = std::env::temp_dir().join(format!("datapipes-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let [certificate, key] = ["trainer.pem", "key.pem"].map(|name| folder.join(name));
    std::fs::write(&certificate, made.cert.pem()).expect("room");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("room");
    let remote = listen().tls(&certificate, &key).expect("good files");
    let url = format!("tls://{}", remote.address());
    let machine = Machine::of(url, Some(&certificate), 1);
    let loader = loader(Graph::range(0..count).on_workers(remote, part), 2);
    // The worker reads the file when it connects.
    loader.epoch(0).blocking().for_each(drop);
    std::fs::remove_dir_all(&folder).expect("it was made");
    (loader, machine)
}

/// Writes the pictures as files for a peer.
fn written(files: &[Bytes]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("datapipes-pictures-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("0")).expect("a folder");
    for (number, file) in files.iter().enumerate() {
        std::fs::write(folder.join(format!("0/{number:05}.jpg")), file).expect("room");
    }
    folder
}

fn loader<T: Send + 'static>(graph: Graph<T>, workers: usize) -> DataLoader<T> {
    let builder = DataLoader::builder(graph).workers(workers);
    builder.build().expect("a right graph")
}

/// Sends `count` batches of `bytes` over loopback, in and from memory that is used again.
fn plain_tcp(count: usize, bytes: usize) -> Case<'static> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut put =
        TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
    let (mut take, _) = listener.accept().expect("it was connected");
    let mut received = vec![0u8; bytes];
    let batch = vec![7u8; bytes];
    case("plain TCP", move || {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..count).for_each(|_| put.write_all(&batch).expect("it reads")));
            (0..count).for_each(|_| take.read_exact(&mut received).expect("it writes"));
        });
    })
}

/// Does the work of W2 but for the last step, which makes four bytes of each.
fn decoded_to_bytes(files: Graph<Bytes>) -> Graph<Tensor> {
    files.image_rows(ImageRows::random_resized_crop(224).random_hflip(0.5))
}

/// Does the last step on whole batches.
fn normalised(batches: Graph<Tensor>) -> Graph<Tensor> {
    batches.try_map(|batch| {
        let pixels = batch.as_slice::<u8>()?;
        let mut normalised = Tensor::zeros(DType::F32, batch.shape())?;
        let values = normalised.as_mut_slice::<f32>()?;
        let planes = pixels.chunks_exact(224 * 224);
        let planes = planes.zip(values.chunks_exact_mut(224 * 224));
        for (number, (plane, values)) in planes.enumerate() {
            let (mean, std) = (MEAN[number % 3], STD[number % 3]);
            let (scale, shift) = (1.0 / (255.0 * std), mean / std);
            for (value, &pixel) in values.iter_mut().zip(plane) {
                *value = f32::from(pixel) * scale - shift;
            }
        }
        datapipes::Ok(normalised)
    })
}

/// Returns a clone of a batch that is made once, since no side is to be timed for what it sends.
fn batch_of(dtype: DType, batch: &'static OnceLock<Tensor>) -> Result<Tensor> {
    if let Some(batch) = batch.get() {
        return Ok(batch.clone());
    }
    let values = Bytes::from(vec![7; LEN * dtype.size()]);
    let made = Tensor::from_bytes(values, dtype, SHAPE)?;
    Ok(batch.get_or_init(|| made).clone())
}

fn floats(numbers: Graph<u64>) -> Graph<Tensor> {
    static BATCH: OnceLock<Tensor> = OnceLock::new();
    numbers.try_map(|_| batch_of(DType::F32, &BATCH))
}

fn bytes(numbers: Graph<u64>) -> Graph<Tensor> {
    static BATCH: OnceLock<Tensor> = OnceLock::new();
    numbers.try_map(|_| batch_of(DType::U8, &BATCH))
}

/// Seconds from the start of an epoch to its first batch, with workers that are there.
fn first_batch() -> f64 {
    let (loader, _machine) = on_workers(2, |remote| {
        let made = Graph::range(0..6400).on_workers(remote, |numbers| numbers.map(|n| n));
        made.batch(BATCH)
    });
    loader.epoch(0).blocking().for_each(drop);
    let seconds = (1..20).map(|epoch| {
        let begun = Instant::now();
        let first = loader.epoch(epoch).blocking().next();
        assert_eq!(first.expect("a batch").expect("no failure").len(), BATCH);
        begun.elapsed().as_secs_f64()
    });
    median(seconds.collect())
}

/// The longest pause of a consumer after the kill of one of two machines, in seconds.
fn silence() -> f64 {
    let pauses = (0..5).map(|_| {
        let remote = listen();
        let address = remote.address();
        let mut machines = vec![Machine::start(address, 1), Machine::start(address, 1)];
        let made = Graph::range(0..20_000).on_workers(remote, |numbers| {
            numbers.map(|n| {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(200) {}
                n
            })
        });
        let loader = loader(made, 2);
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        for (number, item) in loader.epoch(0).blocking().enumerate() {
            item.expect("no failure");
            if number == 5000 {
                drop(machines.pop());
            }
            if number > 5000 {
                longest = longest.max(last.elapsed());
            }
            last = Instant::now();
        }
        longest.as_secs_f64()
    });
    median(pauses.collect())
}

/// Prints the lines of images of 500x375 on one and two workers.
fn images(lines: &Lines) {
    let files = pictures(512);
    let source = || Graph::from_vec(files.clone());
    let folder = written(&files);
    for count in [1, 2] {
        let threads = loader(decoded(source()).batch(BATCH).collate(), count);
        let (there, _machine) = on_workers(count, |remote| {
            source().on_workers(remote, decoded).batch(BATCH).collate()
        });
        let (lean, _machine) = on_workers(count, |remote| {
            let bytes = source().on_workers(remote, decoded_to_bytes);
            normalised(bytes.batch(BATCH).collate())
        });
        let byte_threads = loader(decoded_to_bytes(source()).batch(BATCH).collate(), count);
        let (byte_there, _machine) = on_workers(count, |remote| {
            let bytes = source().on_workers(remote, decoded_to_bytes);
            bytes.batch(BATCH).collate()
        });
        let names = [format!("{count} threads"), format!("{count} workers")];
        for (size, threads, there) in [
            ("600 kB", &threads, &there),
            ("150 kB, normalised here", &threads, &lean),
            ("150 kB, for a device", &byte_threads, &byte_there),
        ] {
            let mut cases = vec![again(&names[0], threads), again(&names[1], there)];
            if size == "600 kB" {
                let args = vec![folder.display().to_string(), count.to_string()];
                cases.extend(peer_case("tf.data service", "tfdata_service.py", args));
            }
            let name = format!("500x375 to {size}, {count} workers");
            lines.beside(&name, files.len() as f64, 7, &mut cases, (0.85, 5.0));
        }
    }
    std::fs::remove_dir_all(&folder).expect("it was written");
}

/// Prints the lines of large batches, also encrypted.
fn batches(lines: &Lines) {
    let count = 64;
    type Part = fn(Graph<u64>) -> Graph<Tensor>;
    for (name, size, part) in [
        ("batches of 38.5 MB, f32", 4, floats as Part),
        ("batches of 9.6 MB, u8", 1, bytes as Part),
    ] {
        let (there, _machine) = on_workers(1, |remote| {
            Graph::range(0..count as u64).on_workers(remote, part)
        });
        let mut cases = vec![plain_tcp(count, size * LEN), again("one worker", &there)];
        let args = vec![count.to_string(), (size * LEN).to_string()];
        cases.extend(peer_case("pyarrow.flight", "flight.py", args));
        lines.beside(name, count as f64, 7, &mut cases, (0.8, 1.0));
    }
    // Encryption takes a core of each side.
    let (there, _machine) = over_tls(floats, count as u64);
    let mut cases = [plain_tcp(count, 4 * LEN), again("one worker", &there)];
    lines.beside(
        "batches of 38.5 MB, f32, over TLS",
        count as f64,
        7,
        &mut cases,
        (0.3, 0.0),
    );
}

/// Prints the line of values of 100 bytes.
fn small(lines: &Lines) {
    let count = 100_000u64;
    let small = |numbers: Graph<u64>| numbers.map(|n| [n as u8; 100]);
    let apart = loader(Graph::range(0..count).in_processes(2, small), 2);
    let (there, _machine) =
        on_workers(2, |remote| Graph::range(0..count).on_workers(remote, small));
    let mut cases = [again("2 processes", &apart), again("2 workers", &there)];
    lines.beside(
        "values of 100 bytes",
        count as f64,
        7,
        &mut cases,
        (0.8, 0.0),
    );
}

/// Prints the line of one job of one item, and the begin and the end of an epoch.
fn one_job(lines: &Lines) {
    let one = |numbers: Graph<u64>| numbers.map(|n| n);
    let apart = loader(Graph::range(0..1).in_processes(1, one), 2);
    let (there, _machine) = on_workers(1, |remote| Graph::range(0..1).on_workers(remote, one));
    let epochs = 200;
    let many = |name: &str, loader: DataLoader<u64>| {
        let mut epoch = again(name, loader);
        let name = epoch.name.clone();
        case(name, move || {
            for _ in 0..epochs {
                (epoch.run)();
            }
        })
    };
    let mut cases = [many("1 process", apart), many("1 worker", there)];
    lines.beside(
        "one job of one tiny item",
        f64::from(epochs),
        7,
        &mut cases,
        (0.8, 0.0),
    );
}

/// Prints the line of workers that wait.
fn waiting(lines: &Lines) {
    let waits: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        numbers.map(|n| {
            std::thread::sleep(Duration::from_millis(5));
            n
        })
    };
    let count = 3200;
    let (there, _machine) = on_workers(WAITING, |remote| {
        Graph::range(0..count).on_workers(remote, waits)
    });
    let ideal = Duration::from_millis(5) * (count as u32 / WAITING as u32);
    let ideal = Case {
        name: "ideal".into(),
        run: Box::new(move || ideal),
    };
    let mut cases = [ideal, again("16 workers", &there)];
    lines.beside(
        "16 workers, 5 ms an item",
        count as f64,
        5,
        &mut cases,
        (0.95, 0.0),
    );
}

/// Prints the line of a distant worker.
fn distance(lines: &Lines) {
    let computes: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        numbers.map(|n| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(200) {}
            n
        })
    };
    let count = 10_000u64;
    let (near, _machine) = on_workers(1, |remote| {
        Graph::range(0..count).on_workers(remote, computes)
    });
    let remote = listen();
    let address = distant(remote.address(), Duration::from_millis(20));
    let _machine = Machine::start(address, 1);
    let far = loader(Graph::range(0..count).on_workers(remote, computes), 2);
    let mut cases = [again("1 worker, near", &near), again("1 worker", &far)];
    lines.beside(
        "rtt=20ms, 0.2 ms an item",
        count as f64,
        5,
        &mut cases,
        (0.9, 0.0),
    );
}

/// Prints the lines of single times: until the first batch, and after a kill.
fn times(lines: &Lines) {
    let first = first_batch();
    lines.print(
        "first batch, workers there (1/s)",
        1.0 / first,
        ("50 ms", 20.0),
        0.05 / first,
        1.0,
    );
    let silence = silence();
    lines.print(
        "silence after a kill (1/s)",
        1.0 / silence,
        ("300 ms", 1.0 / 0.3),
        0.3 / silence,
        1.0,
    );
}

fn main() {
    datapipes::worker::init();
    let wanted: Vec<String> = (std::env::args().skip(1))
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let lines = Lines::new("workers over loopback", "items/s");
    type Section = fn(&Lines);
    let sections: [(&str, Section); 7] = [
        ("images", images),
        ("batches", batches),
        ("small", small),
        ("one_job", one_job),
        ("waiting", waiting),
        ("distance", distance),
        ("times", times),
    ];
    for (name, section) in sections {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            section(&lines);
        }
    }
}
