//! A part of a graph on worker machines that are killed, stopped, cut off and started: the batches are
//! those of one process, in order.
//!
//! `cargo run --release --no-default-features --example remote [--batches N] [--trace FILE]`
//!
//! The machines are processes of this one, which connect over loopback, as they would from elsewhere:
//! `DATAPIPES_WORKER=tcp://TRAINER:7070 DATAPIPES_TOKEN=… ./train`.

mod support;

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use datapipes::{BoxError, DataLoader, Graph, Remote, Tensor};
use support::args::Args;
use support::trace::Trace;

const USAGE: &str = "remote [--batches N] [--trace FILE]";
const TOKEN: &str = "a long random secret, from a file in real life";
const BATCH: usize = 32;

/// Makes augmented images of 64x64, at about the cost of decoding a small image. The random numbers
/// belong to the item, so they are the same on every machine.
fn pictures(numbers: Graph<u64>) -> Graph<Tensor> {
    numbers.try_map_with_rng(|n, rng| {
        let begun = Instant::now();
        let pixels = (0..64 * 64 * 3).map(|at| (n + at) as u8 ^ rng.below(32) as u8);
        let picture = Tensor::from_vec(pixels.collect::<Vec<u8>>(), [64, 64, 3]);
        while begun.elapsed() < Duration::from_micros(500) {}
        picture
    })
}

/// A worker machine with one process for the part. The program itself, started with an address.
struct Machine(Child);

impl Machine {
    fn start(trainer: SocketAddr) -> Result<Machine, BoxError> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .env("DATAPIPES_WORKER", format!("tcp://{trainer}"))
            .env("DATAPIPES_WORKER_PROCESSES", "1")
            .env("DATAPIPES_TOKEN", TOKEN);
        Ok(Machine(command.spawn()?))
    }
}

/// Stops one of the connected workers, as a machine that hangs does.
fn stop_one<T: Send + 'static>(loader: &DataLoader<T>) -> Result<(), BoxError> {
    let stats = loader.stats().ok_or("an epoch runs")?;
    let mut processes = stats
        .segments
        .iter()
        .filter_map(|segment| segment.processes.as_ref());
    let workers = processes.next().ok_or("a part is in processes")?;
    if let Some(worker) = workers.children.first() {
        let stop = format!("kill -STOP {}", worker.process);
        Command::new("sh").args(["-c", &stop]).status()?;
    }
    Ok(())
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<(), BoxError> {
    // If this process was started as a worker, it works here, and ends.
    datapipes::worker::init();

    let args = Args::parse("", "batches trace", USAGE);
    let batches: u64 = args.get("batches").unwrap_or(300);
    let numbers = || Graph::range(0..batches * BATCH as u64).shuffle(1000);
    let build = |graph: Graph<Tensor>| {
        let graph = graph.shuffle(500).batch(BATCH).collate();
        DataLoader::builder(graph).seed(42).workers(2).build()
    };

    let remote = Remote::listen("127.0.0.1:0")?.token(TOKEN);
    let trainer = remote.address();
    let here = build(pictures(numbers()))?;
    let there = build(numbers().on_workers(remote, pictures))?;

    let trace = Trace::begin(args.get("trace"), &there)?;
    let mut machines = Vec::new();
    for _ in 0..3 {
        machines.push(Machine::start(trainer)?);
    }
    let (mut same, mut longest) = (0, Duration::ZERO);
    let mut from_there = there.epoch(0).blocking();
    for (step, expected) in here.epoch(0).blocking().enumerate() {
        let begun = Instant::now();
        let is = from_there.next().ok_or("a batch is missing")??;
        longest = longest.max(begun.elapsed());
        same += u64::from(is == expected?);
        match step as u64 * 6 / batches.max(6) {
            0 => {}
            1 if machines.len() == 3 => {
                println!("batch {step}: SIGKILL to one machine");
                drop(machines.pop());
            }
            2 if machines.len() == 2 => {
                println!("batch {step}: SIGSTOP to a worker, and a new machine");
                stop_one(&there)?;
                machines.push(Machine::start(trainer)?);
            }
            4 if machines.len() == 3 => {
                println!("batch {step}: all machines end; one more starts");
                machines.clear();
                machines.push(Machine::start(trainer)?);
            }
            _ => {}
        }
    }
    trace.finish()?;
    println!("{}", there.stats().ok_or("an epoch ran")?);
    println!("the longest wait for a batch was {longest:.1?}");
    println!("{same} batches of {batches}, those of one process, in order");
    if same != batches {
        return Err("the batches differ".into());
    }
    Ok(())
}
