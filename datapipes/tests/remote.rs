//! Parts of graphs on workers: processes of this executable that connect over TCP, as those of other
//! machines do.

#![cfg(all(feature = "remote", target_os = "linux"))]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use datapipes::index::{Indexed, LengthGrouped};
use datapipes::loader::{Blocking, Builder, Checkpoint, ProcessStats};
use datapipes::{
    DataLoader, ErrorKind, Graph, OnError, Order, Reader, Remote, Tensor, Uneven, Wire, Writer,
};

datapipes::before_main!();

const TOKEN: &str = "the secret of these tests";
/// Variable of a machine on which a step hangs.
const HANGS: &str = "DATAPIPES_TEST_HANGS";
/// Variables of a trainer that is killed: the address at which it listens, and the folder of its
/// batches and its checkpoint.
const LISTENS: &str = "DATAPIPES_TEST_LISTENS";
const FOLDER: &str = "DATAPIPES_TEST_FOLDER";
/// Variable of one of two ranks that are killed: its number.
const RANK: &str = "DATAPIPES_TEST_RANK";
/// Variable with the number of faults of the longest test.
const FAULTS: &str = "DATAPIPES_FAULTS";
/// Silence after which a worker loses its work, in the longest test.
const SILENCE: Duration = Duration::from_millis(200);
/// Maximum time for anything to happen.
const TIMEOUT: Duration = Duration::from_secs(30);

fn remote() -> Remote {
    Remote::listen("127.0.0.1:0")
        .unwrap()
        .token(TOKEN)
        .wait(TIMEOUT)
}

/// A worker machine: an agent with its processes. Dropping it kills them all.
struct Machine(Child);

impl Machine {
    fn start(address: SocketAddr, processes: usize) -> Machine {
        let executable = std::env::current_exe().unwrap();
        Machine::of(&executable, address, processes, TOKEN)
    }

    fn of(executable: &Path, address: SocketAddr, processes: usize, token: &str) -> Machine {
        let mut command = Machine::command_of(executable, address, processes);
        Machine(command.env("DATAPIPES_TOKEN", token).spawn().unwrap())
    }

    fn command(address: SocketAddr, processes: usize) -> Command {
        let executable = std::env::current_exe().unwrap();
        Machine::command_of(&executable, address, processes)
    }

    fn command_of(executable: &Path, address: SocketAddr, processes: usize) -> Command {
        let mut command = Command::new(executable);
        command
            .env("DATAPIPES_WORKER", format!("tcp://{address}"))
            .env_remove("DATAPIPES_WORKER_CA")
            .env("DATAPIPES_WORKER_PROCESSES", processes.to_string())
            .env("DATAPIPES_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// The numbers of its worker processes.
    fn processes(&self) -> Vec<i32> {
        let agent = self.0.id();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
                continue;
            };
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(1));
            if parent == Some(&agent.to_string()) {
                found.push(pid);
            }
        }
        found
    }

    fn signal(&self, signal: &str) {
        signal_to(self.0.id() as i32, signal);
    }

    /// Waits for its end.
    fn ends(mut self) {
        assert!(self.0.wait().unwrap().success());
    }

    /// Waits for its end, and returns what it printed.
    fn end(mut self) -> String {
        let mut printed = String::new();
        let mut errors = self.0.stderr.take().unwrap();
        errors.read_to_string(&mut printed).unwrap();
        assert!(self.0.wait().unwrap().success(), "{printed}");
        printed
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal_to(pid: i32, signal: &str) {
    assert!(kill(pid, signal), "{signal} to {pid}");
}

/// Sends a signal, and returns true if the process was there.
fn kill(pid: i32, signal: &str) -> bool {
    let kill = format!("kill {signal} {pid} 2>/dev/null");
    let status = Command::new("sh").args(["-c", &kill]).status();
    status.unwrap().success()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < TIMEOUT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn loader(graph: Graph<Vec<u64>>) -> DataLoader<Vec<u64>> {
    builder(graph).build().unwrap()
}

fn builder(graph: Graph<Vec<u64>>) -> Builder<Vec<u64>> {
    DataLoader::builder(graph).seed(7).workers(2).resumable()
}

/// Random numbers that depend on the item, made where the part runs, by items of some microseconds.
fn part(numbers: Graph<u64>) -> Graph<u64> {
    numbers.map_with_rng(|n, rng| {
        let mut sum = n;
        for _ in 0..200 {
            sum = sum.wrapping_mul(31).wrapping_add(rng.next_u64());
        }
        sum
    })
}

fn graph(remote: Option<Remote>, part: fn(Graph<u64>) -> Graph<u64>) -> Graph<Vec<u64>> {
    let numbers = Graph::range(0..4000).shuffle(100);
    let made = match remote {
        Some(remote) => numbers.on_workers(remote, part),
        None => part(numbers),
    };
    made.shuffle(50).batch(32)
}

fn all(loader: &DataLoader<Vec<u64>>, epoch: u64) -> Vec<Vec<u64>> {
    loader.epoch(epoch).blocking().map(Result::unwrap).collect()
}

#[test]
fn the_sequence_is_that_of_one_process() {
    let here = loader(graph(None, part));
    let remote = remote();
    let machines = [1, 2].map(|processes| Machine::start(remote.address(), processes));
    let there = loader(graph(Some(remote), part));
    for epoch in 0..3 {
        assert_eq!(all(&there, epoch), all(&here, epoch));
    }
    assert_eq!(processes(&there).died, 0);
    drop(machines);
}

#[test]
fn settings_of_a_part_reach_the_workers() {
    let remote = remote();
    let address = remote.address();
    let settings = ("x".repeat(3), vec![7u64, 9]);
    // Computed where the settings are, and by what process.
    let graph = Graph::range(0..200).on_workers_with(remote, settings, |numbers, (text, add)| {
        let (text, add) = (text.clone(), add.clone());
        numbers.map(move |n| {
            (
                n + add[0] * add[1],
                text.clone(),
                u64::from(std::process::id()),
            )
        })
    });
    let loader = DataLoader::builder(graph).build().unwrap();
    let _machine = Machine::start(address, 1);
    let all: Vec<(u64, String, u64)> = loader.epoch(0).blocking().map(Result::unwrap).collect();
    let sums = all.iter().map(|(n, text, _)| (*n, &**text));
    assert!(sums.eq((0..200).map(|n| (n + 63, "xxx"))));
    assert!(
        all.iter()
            .all(|(_, _, id)| *id != u64::from(std::process::id()))
    );
}

#[test]
fn an_epoch_goes_on_from_a_checkpoint_with_other_workers() {
    let here = loader(graph(None, part));
    let remote1 = remote();
    let machine = Machine::start(remote1.address(), 2);
    let there = loader(graph(Some(remote1), part));
    let mut epoch = there.epoch(0).blocking();
    let mut batches: Vec<_> = epoch.by_ref().take(40).map(Result::unwrap).collect();
    let state = epoch.checkpoint().unwrap();
    drop((epoch, there, machine));
    let remote2 = remote();
    let _machine = Machine::start(remote2.address(), 1);
    let there = loader(graph(Some(remote2), part));
    let rest = there.resume(&state).unwrap().blocking();
    batches.extend(rest.map(Result::unwrap));
    assert_eq!(batches, all(&here, 0));
}

#[test]
fn row_138_workers_come_and_go_and_are_killed_and_nothing_is_lost_or_twice() {
    let here = loader(graph(None, part));
    let remote = remote();
    let address = remote.address();
    // Few batches are ready, so that the loop, which kills, is not far ahead of the work: three workers
    // that end at the same item would be the item's fault.
    let there = builder(graph(Some(remote), part)).prefetch(1).build();
    let there = there.unwrap();
    let mut rng = datapipes::Rng::from_key([5; 4]);
    let mut machines = vec![Machine::start(address, 1)];
    for epoch in 0..6 {
        let mut batches = Vec::new();
        for batch in there.epoch(epoch).blocking() {
            batches.push(batch.unwrap());
            match rng.next_u64() % 16 {
                // None, at times: then the epoch waits for the next.
                0 if !machines.is_empty() => {
                    let place = rng.next_u64() as usize % machines.len();
                    drop(machines.swap_remove(place));
                }
                1 => {
                    let processes = machines
                        .iter()
                        .flat_map(Machine::processes)
                        .collect::<Vec<_>>();
                    if !processes.is_empty() {
                        let pid = processes[rng.next_u64() as usize % processes.len()];
                        kill(pid, "-9");
                    }
                }
                _ => {}
            }
            if machines.is_empty() || rng.next_u64().is_multiple_of(64) {
                machines.push(Machine::start(address, 1 + rng.next_u64() as usize % 2));
            }
            if machines.len() > 3 {
                machines.remove(0).signal("-TERM");
            }
        }
        assert_eq!(batches, all(&here, epoch), "epoch {epoch}");
    }
}

#[test]
fn row_139_a_worker_that_hangs_loses_its_work_to_another() {
    let here = loader(graph(None, part));
    let remote = remote();
    let machines = [(); 2].map(|()| Machine::start(remote.address(), 1));
    let there = loader(graph(Some(remote), part));
    let mut epoch = there.epoch(0).blocking();
    let mut batches: Vec<_> = epoch.by_ref().take(10).map(Result::unwrap).collect();
    until("both connected", || connected(&there) == 2);
    for pid in machines[0].processes() {
        signal_to(pid, "-STOP");
    }
    batches.extend(epoch.map(Result::unwrap));
    assert_eq!(batches, all(&here, 0));
    // Stopped processes that are killed by their agent's end.
    drop(machines);
}

#[test]
fn row_139_a_step_that_hangs_on_one_machine_is_ended_there_and_done_elsewhere() {
    let hangs: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        numbers.map(|n| {
            // Long enough that both machines get some to the end.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(50) {}
            if n >= 3000 && std::env::var_os(HANGS).is_some() {
                loop {
                    std::thread::park();
                }
            }
            n
        })
    };
    let remote = remote();
    let mut bad = Machine::command(remote.address(), 1);
    let bad = Machine(bad.env(HANGS, "yes").spawn().unwrap());
    let _good = Machine::start(remote.address(), 1);
    let there = loader(graph(Some(remote), hangs));
    let mut epoch = there.epoch(0).blocking();
    let mut batches: Vec<_> = epoch.by_ref().take(5).map(Result::unwrap).collect();
    until("both connected", || connected(&there) == 2);
    let before = bad.processes();
    batches.extend(epoch.map(Result::unwrap));
    assert_eq!(batches, all(&loader(graph(None, hangs)), 0));
    until("the process that hangs is replaced", || {
        bad.processes().iter().all(|pid| !before.contains(pid))
    });
}

/// A part whose items take 0.2 ms, in an order that is known.
fn busy(numbers: Graph<u64>) -> Graph<u64> {
    numbers.map(|n| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(200) {}
        n
    })
}

/// Begins an epoch with two machines that no silence ends, and waits until both work.
fn with_two(part: fn(Graph<u64>) -> Graph<u64>) -> (Loader, [Machine; 2], Blocking<Vec<u64>>) {
    let remote = remote().time_limit(Duration::from_secs(3600));
    let machines = [(); 2].map(|()| Machine::start(remote.address(), 1));
    let made = Graph::range(0..4000).on_workers(remote, part);
    let there = loader(made.batch(25));
    let mut epoch = there.epoch(0).blocking();
    assert!(epoch.next().unwrap().unwrap().into_iter().eq(0..25));
    until("both have made items", || {
        epoch
            .by_ref()
            .take(2)
            .for_each(|batch| drop(batch.unwrap()));
        let children = processes(&there).children;
        children.len() == 2 && children.iter().all(|child| child.items > 0)
    });
    drop(epoch);
    let epoch = there.epoch(1).blocking();
    (there, machines, epoch)
}

/// The items of the rest of an epoch, each batch of which comes in time.
fn rest_in_time(epoch: Blocking<Vec<u64>>) -> Vec<u64> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for batch in epoch {
            let _ = send.send(batch.map_err(|error| error.to_string()));
        }
    });
    let mut items = Vec::new();
    loop {
        match receive.recv_timeout(TIMEOUT) {
            Ok(batch) => items.extend(batch.unwrap()),
            Err(RecvTimeoutError::Disconnected) => return items,
            Err(RecvTimeoutError::Timeout) => panic!("not in time, after {} items", items.len()),
        }
    }
}

#[test]
fn row_151_what_a_late_worker_has_is_done_by_another_and_its_own_answers_are_dropped() {
    let (there, machines, mut epoch) = with_two(busy);
    let mut items: Vec<u64> = epoch.by_ref().take(40).flat_map(Result::unwrap).collect();
    let stopped = machines[0].processes();
    stopped.iter().for_each(|&pid| signal_to(pid, "-STOP"));
    items.extend(rest_in_time(epoch));
    assert!(items.into_iter().eq(0..4000));
    let stats = processes(&there);
    assert!(stats.late > 0, "{stats:?}");
    assert_eq!(stats.died, 0);
    // It goes on, and works in later epochs.
    stopped.iter().for_each(|&pid| signal_to(pid, "-CONT"));
    let mut number = 2;
    until("both work", || {
        let again = rest_in_time(there.epoch(number).blocking());
        assert!(again.into_iter().eq(0..4000));
        number += 1;
        let children = processes(&there).children;
        children.len() == 2 && children.iter().all(|child| child.items > 0)
    });
    assert_eq!(processes(&there).died, 0);
}

#[test]
fn row_151_workers_that_stand_still_in_turn_hold_up_an_epoch_for_moments() {
    let (there, machines, mut epoch) = with_two(busy);
    let mut items = Vec::new();
    for turn in 0..20 {
        let stopped = machines[turn % 2].processes();
        stopped.iter().for_each(|&pid| signal_to(pid, "-STOP"));
        items.extend(epoch.by_ref().take(3).flat_map(Result::unwrap));
        stopped.iter().for_each(|&pid| signal_to(pid, "-CONT"));
    }
    items.extend(rest_in_time(epoch));
    assert!(items.into_iter().eq(0..4000));
    assert_eq!(processes(&there).died, 0);
    assert_eq!(there.stats().unwrap().nodes[1].items, 4000, "counted once");
}

/// Items come one by one, so that a piece of work which is late was delivered in part.
#[test]
fn row_151_late_work_of_workers_that_end_is_done_by_others_from_where_it_was() {
    let hangs: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        busy(numbers).map(|n| {
            while n == 1000 && std::env::var_os(HANGS).is_some() {
                std::thread::park();
            }
            n
        })
    };
    let remote = remote().time_limit(Duration::from_secs(3600));
    let address = remote.address();
    let bad = [(); 2].map(|()| {
        let mut command = Machine::command(address, 1);
        Machine(command.env(HANGS, "yes").spawn().unwrap())
    });
    let there = loader(Graph::range(0..2000).on_workers(remote, hangs).batch(10));
    let mut epoch = there.epoch(0).blocking();
    let mut items: Vec<u64> = epoch.by_ref().take(90).flat_map(Result::unwrap).collect();
    let until_late = std::thread::spawn(move || {
        (
            epoch
                .by_ref()
                .take(15)
                .flat_map(Result::unwrap)
                .collect::<Vec<u64>>(),
            epoch,
        )
    });
    until("both hang", || processes(&there).late > 0);
    drop(bad);
    let _good = Machine::start(address, 1);
    let (more, epoch) = until_late.join().unwrap();
    items.extend(more);
    items.extend(rest_in_time(epoch));
    assert!(items.into_iter().eq(0..2000));
}

#[test]
fn the_figures_say_that_the_workers_elsewhere_are_too_few() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 1);
    let there = loader(slow_graph(remote));
    let mut epoch = there.epoch(0).blocking();
    epoch.by_ref().for_each(|batch| drop(batch.unwrap()));
    let said = there.stats().unwrap().bottleneck;
    let expected = "segment A (map) on other machines, mostly `map`: 1 worker there";
    assert!(said.starts_with(expected), "{said}");
}

fn slow_graph(remote: Remote) -> Graph<Vec<u64>> {
    Graph::range(0..4000).on_workers(remote, busy).batch(25)
}

#[test]
fn the_figures_say_how_much_work_waits_and_who_is_slow() {
    let remote = remote();
    let address = remote.address();
    let there = loader(slow_graph(remote));
    // Nobody is there.
    let mut epoch = there.epoch(0).blocking();
    let waiting = std::thread::spawn(move || epoch.next().map(|batch| (batch.unwrap(), epoch)));
    until("work waits", || {
        there.stats().is_some_and(|_| processes(&there).pending > 0)
    });
    let machine = Machine::start(address, 1);
    let (_, mut epoch) = waiting.join().unwrap().unwrap();
    epoch
        .by_ref()
        .take(10)
        .for_each(|batch| drop(batch.unwrap()));
    let pid = machine.processes()[0];
    signal_to(pid, "-STOP");
    until("it is silent", || {
        processes(&there).children[0].silence > Duration::from_secs(1)
    });
    let child = processes(&there).children.remove(0);
    assert!(child.jobs >= 1 && child.bytes > 8 * 250, "{child:?}");
    let said = there.stats().unwrap().to_string();
    assert!(said.contains(" morsels wait; 0: "), "{said}");
    let (_, hand) = said.split_once(" morsels in hand of ").expect(&said);
    assert!(hand.contains("s, silent for "), "{said}");
    // A morsel has an item at least.
    assert!(child.morsel_time >= Duration::from_micros(200), "{child:?}");
    signal_to(pid, "-CONT");
    epoch.for_each(|batch| drop(batch.unwrap()));
    let stats = processes(&there);
    let child = &stats.children[0];
    assert_eq!((stats.pending, child.jobs), (0, 0), "{child:?}");
    assert_eq!(child.silence, Duration::ZERO);
}

fn connected<T: Send + 'static>(loader: &DataLoader<T>) -> usize {
    processes(loader).children.len()
}

fn processes<T: Send + 'static>(loader: &DataLoader<T>) -> ProcessStats {
    let stats = loader.stats().unwrap();
    let mut processes = stats
        .segments
        .into_iter()
        .filter_map(|segment| segment.processes);
    processes.next().unwrap()
}

#[test]
fn row_141_a_machine_that_is_asked_to_end_ends_its_jobs_first() {
    let here = loader(graph(None, part));
    let remote = remote();
    let address = remote.address();
    let first = Machine::start(address, 2);
    let there = loader(graph(Some(remote), part));
    let mut epoch = there.epoch(0).blocking();
    let mut batches: Vec<_> = epoch.by_ref().take(10).map(Result::unwrap).collect();
    let _second = Machine::start(address, 1);
    first.signal("-TERM");
    let printed = first.end();
    assert!(!printed.contains("replaced"), "{printed}");
    batches.extend(epoch.map(Result::unwrap));
    assert_eq!(batches, all(&here, 0));
    assert_eq!(processes(&there).died, 0);
}

/// The trainer of the next test, if it was started as such.
#[test]
fn trainer_that_is_killed() {
    let (Ok(address), Ok(folder)) = (std::env::var(LISTENS), std::env::var(FOLDER)) else {
        return;
    };
    let remote = Remote::listen(address).unwrap().token(TOKEN);
    let there = loader(graph(Some(remote), part));
    let state = Path::new(&folder).join("state");
    let mut epoch = match Checkpoint::load(&state) {
        Err(error) if error.kind() == ErrorKind::NotFound => there.epoch(0),
        state => there.resume(&state.unwrap()).unwrap(),
    }
    .blocking();
    while let Some(batch) = epoch.next() {
        let state_now = epoch.checkpoint().unwrap();
        let file = Path::new(&folder).join(state_now.delivered().to_string());
        std::fs::write(file, format!("{:?}", batch.unwrap())).unwrap();
        state_now.save(&state).unwrap();
    }
}

#[test]
fn row_148_workers_find_a_trainer_that_was_killed_and_started_again() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("killed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // A port that is free now; the workers are there before the trainer.
    let address = remote().address();
    let machine = Machine::start(address, 2);
    let start = || {
        let command = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "trainer_that_is_killed"])
            .env(LISTENS, address.to_string())
            .env(FOLDER, &folder)
            .stdout(Stdio::null())
            .spawn();
        Machine(command.unwrap())
    };
    let batch = |number: usize| std::fs::read_to_string(folder.join(number.to_string()));
    for killed_after in [10, 60] {
        let trainer = start();
        until("it makes batches", || batch(killed_after).is_ok());
        drop(trainer);
    }
    start().ends();
    let here = all(&loader(graph(None, part)), 0);
    for (number, expected) in here.iter().enumerate() {
        assert_eq!(batch(number + 1).unwrap(), format!("{expected:?}"));
    }
    assert!(batch(here.len() + 1).is_err());
    drop(machine);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The part of a rank in a training whose batches have 24 items over all ranks.
fn of_rank(remote: Option<Remote>, rank: usize, world: usize) -> DataLoader<Vec<u64>> {
    let numbers = Graph::range(0..4800).shuffle(100).sharding_filter();
    let made = match remote {
        Some(remote) => numbers.on_workers(remote, part),
        None => part(numbers),
    };
    let builder = builder(made.batch(24 / world)).rank(rank, world);
    builder.uneven(Uneven::Drop).build().unwrap()
}

/// A rank of the next test, if it was started as such.
#[test]
fn rank_that_is_killed() {
    let [address, folder, rank] = [LISTENS, FOLDER, RANK].map(std::env::var);
    let (Ok(address), Ok(folder), Ok(rank)) = (address, folder, rank) else {
        return;
    };
    let remote = Remote::listen(address).unwrap().token(TOKEN);
    let there = of_rank(Some(remote), rank.parse().unwrap(), 2);
    let mut epoch = there.epoch(0).blocking();
    for step in 1.. {
        let batch = epoch.next().expect("it is killed before the end").unwrap();
        let file = Path::new(&folder).join(format!("{rank}-{step}"));
        std::fs::write(&file, format!("{batch:?}")).unwrap();
        let state = epoch.checkpoint().unwrap();
        state.save(file.with_extension("state")).unwrap();
        // The ranks of a training go on together.
        let other =
            file.with_file_name(format!("{}-{step}.state", 1 - rank.parse::<u8>().unwrap()));
        until("the other rank is there", || other.exists());
    }
}

#[test]
fn row_148_a_training_of_two_ranks_that_is_killed_goes_on_as_one_of_three_with_other_workers() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let steps = 20;
    let file = |rank: usize, step: usize| folder.join(format!("{rank}-{step}"));
    let ranks = [0, 1].map(|rank| {
        let address = remote().address();
        let trainer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_that_is_killed"])
            .env(LISTENS, address.to_string())
            .env(FOLDER, &folder)
            .env(RANK, rank.to_string())
            .stdout(Stdio::null())
            .spawn();
        (Machine(trainer.unwrap()), Machine::start(address, 1))
    });
    until("both have made their steps", || {
        (0..2).all(|rank| file(rank, steps).with_extension("state").exists())
    });
    drop(ranks);
    let states = [0, 1].map(|rank| {
        let here = all(&of_rank(None, rank, 2), 0);
        for step in 1..=steps {
            let made = std::fs::read_to_string(file(rank, step)).unwrap();
            assert_eq!(made, format!("{:?}", here[step - 1]));
        }
        Checkpoint::load(file(rank, steps).with_extension("state")).unwrap()
    });
    let merged = Checkpoint::merge(&states).unwrap();
    for rank in 0..3 {
        let remote = remote();
        let _machine = Machine::start(remote.address(), 1);
        let there = of_rank(Some(remote), rank, 3);
        let rest = there.resume(&merged).unwrap().blocking();
        let rest: Vec<_> = rest.map(Result::unwrap).collect();
        assert_eq!(
            rest,
            all(&of_rank(None, rank, 3), 0)[steps..],
            "rank {rank}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Coordinated reads, as tf.data's service calls them: no rank waits for the longer batch of another.
#[test]
fn all_ranks_draw_a_step_from_the_same_lengths() {
    fn length_of(n: u64) -> u64 {
        n * 7919 % 960
    }
    const WORLD: usize = 4;
    const BATCH: usize = 8;
    let widest = |group: usize| {
        let steps = |rank| {
            let remote = remote();
            let _machine = Machine::start(remote.address(), 1);
            let sampler = LengthGrouped::new((0..960).map(length_of), group).stretch(1);
            let drawn = Indexed::range(960).sampled(sampler).shard().fetch();
            let made = drawn.on_workers(remote, |numbers| numbers.map(length_of));
            let builder = builder(made.batch(BATCH)).rank(rank, WORLD);
            all(&builder.uneven(Uneven::Drop).build().unwrap(), 2)
        };
        let ranks: Vec<Vec<Vec<u64>>> = (0..WORLD).map(steps).collect();
        let mut lengths: Vec<u64> = ranks.iter().flatten().flatten().copied().collect();
        lengths.sort_unstable();
        assert!(lengths.into_iter().eq(0..960), "each once");
        let width = |step: usize| {
            let drawn = || ranks.iter().flat_map(|steps| &steps[step]);
            drawn().max().unwrap() - drawn().min().unwrap()
        };
        (0..960 / (WORLD * BATCH)).map(width).max().unwrap()
    };
    assert!(widest(WORLD * BATCH) < 64);
    // Groups of the batches of one rank are dealt to all ranks.
    assert!(widest(BATCH) > 300);
}

#[test]
fn rows_142_to_144_nobody_there_is_said_in_time_and_why_the_last_was_refused() {
    let remote = remote().wait(Duration::from_millis(1500));
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("another-executable");
    std::fs::copy(std::env::current_exe().unwrap(), &other).unwrap();
    std::fs::OpenOptions::new()
        .append(true)
        .open(&other)
        .unwrap()
        .write_all(b"!")
        .unwrap();
    let address = remote.address();
    let there = loader(graph(Some(remote), part));
    let error = there.epoch(0).blocking().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Worker);
    let said = error.to_string();
    assert!(said.contains("DATAPIPES_WORKER=tcp://"), "{said}");
    assert!(!said.contains("not let in"), "{said}");
    let ours = std::env::current_exe().unwrap();
    for (executable, token, why) in [
        (&ours, "another", "another token"),
        (&other, TOKEN, "another executable"),
    ] {
        let machine = Machine::of(executable, address, 1, token);
        let error = there.epoch(0).blocking().next().unwrap().unwrap_err();
        let said = error.to_string();
        assert!(said.contains(why), "{said}");
        assert!(!said.contains(TOKEN), "{said}");
        machine.signal("-TERM");
        let printed = machine.end();
        assert!(
            printed.contains(why) && !printed.contains(TOKEN),
            "{printed}"
        );
    }
    // The loader goes on once a worker is there.
    let _machine = Machine::start(address, 1);
    assert_eq!(all(&there, 0), all(&loader(graph(None, part)), 0));
}

#[test]
fn work_is_done_here_while_nobody_is_there() {
    let remote = remote().or_here(1);
    let address = remote.address();
    let there = loader(graph(Some(remote), part));
    let here = loader(graph(None, part));
    assert_eq!(all(&there, 0), all(&here, 0));
    let _machine = Machine::start(address, 1);
    until("a worker is used", || {
        assert_eq!(all(&there, 1), all(&here, 1));
        processes(&there)
            .children
            .iter()
            .any(|child| child.machine.is_some() && child.items > 0)
    });
}

fn ends_its_process_at(n: u64) -> bool {
    n % 1000 == 77
}

#[test]
fn row_140_an_item_that_ends_every_worker_is_an_error_with_its_name() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 2);
    let made = Graph::range(0..3000).on_workers(remote, |numbers| {
        numbers
            .map(|n| {
                if ends_its_process_at(n) {
                    std::process::abort();
                }
                n
            })
            .named("decode")
    });
    let there = builder(made.batch(10))
        .on_error(OnError::skip(10))
        .build()
        .unwrap();
    let items: Vec<u64> = there.epoch(0).blocking().flat_map(Result::unwrap).collect();
    let expected: Vec<u64> = (0..3000).filter(|&n| !ends_its_process_at(n)).collect();
    assert_eq!(items, expected);
    let said = there.stats().unwrap().to_string();
    assert!(said.contains("3 items given up"), "{said}");
}

#[test]
fn row_145_strangers_at_the_port_disturb_nobody() {
    let here = loader(graph(None, part));
    let remote = remote();
    let address = remote.address();
    let _machine = Machine::start(address, 1);
    let there = loader(graph(Some(remote), part));
    let garbage: [&[u8]; 4] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        b"\x10\0\0\0\0\0\0\0\x10datapipes worker",
    ];
    let mut open = Vec::new();
    let mut batches = Vec::new();
    for (number, batch) in there.epoch(0).blocking().enumerate() {
        batches.push(batch.unwrap());
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(garbage[number % garbage.len()]);
        if number % 3 == 0 {
            open.push(stream);
        }
    }
    assert_eq!(batches, all(&here, 0));
}

/// A relay between workers and trainer: a network with faults.
struct Relay {
    address: SocketAddr,
    streams: Mutex<Vec<TcpStream>>,
    /// False while nobody gets through anew.
    is_open: AtomicBool,
    /// Milliseconds that everything takes in each direction.
    delay: AtomicU64,
    /// True for the directions, to the trainer and to the workers, in which nothing gets through.
    holds: [AtomicBool; 2],
    /// True once everything is lost, also the ends of connections.
    loses: AtomicBool,
}

impl Relay {
    fn start(to: SocketAddr) -> Arc<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Arc::new(Relay {
            address: listener.local_addr().unwrap(),
            streams: Mutex::default(),
            is_open: AtomicBool::new(true),
            delay: AtomicU64::new(0),
            holds: Default::default(),
            loses: AtomicBool::new(false),
        });
        let own = relay.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let is_open = own.is_open.load(Ordering::SeqCst);
                let Some(far) = is_open.then(|| TcpStream::connect(to).ok()).flatten() else {
                    continue;
                };
                // A network holds nothing back until earlier pieces are acknowledged, as a socket would.
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                }
                let both = || (near.try_clone().unwrap(), far.try_clone().unwrap());
                let ((near1, far1), (near2, far2)) = (both(), both());
                for (direction, from, to) in [(0, near1, far1), (1, far2, near2)] {
                    let relay = own.clone();
                    std::thread::spawn(move || relay.pass_on(direction, from, to));
                }
                own.streams.lock().unwrap().extend([near, far]);
            }
        });
        relay
    }

    /// Passes on what comes, each piece after the delay.
    fn pass_on(self: Arc<Relay>, direction: usize, mut from: TcpStream, mut to: TcpStream) {
        let (send, receive) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
        let relay = self.clone();
        std::thread::spawn(move || {
            for (due, bytes) in receive {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                while relay.holds[direction].load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if relay.loses.load(Ordering::SeqCst) {
                    continue;
                }
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            if !relay.loses.load(Ordering::SeqCst) {
                let _ = to.shutdown(Shutdown::Both);
            }
        });
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let delay = Duration::from_millis(self.delay.load(Ordering::SeqCst));
            if send
                .send((Instant::now() + delay, buffer[..len].to_vec()))
                .is_err()
            {
                break;
            }
        }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn row_137_a_network_that_is_cut_costs_no_sample() {
    let here = loader(graph(None, part));
    let remote = remote();
    let relay = Relay::start(remote.address());
    let _machine = Machine::start(relay.address, 2);
    let there = loader(graph(Some(remote), part));
    for epoch in 0..3 {
        let mut batches = Vec::new();
        for (number, batch) in there.epoch(epoch).blocking().enumerate() {
            batches.push(batch.unwrap());
            if number % 20 == 7 {
                // A cut of some time, in which workers try in vain, and one of none.
                relay.is_open.store(number % 40 != 7, Ordering::SeqCst);
                relay.cut();
                relay.is_open.store(true, Ordering::SeqCst);
            }
        }
        assert_eq!(batches, all(&here, epoch));
    }
}

/// One that works on two pieces at a time would do nothing for most of a round trip.
#[test]
fn a_distant_worker_has_as_many_pieces_of_work_as_a_round_trip_takes() {
    let millisecond: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        numbers.map(|n| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(1) {}
            n
        })
    };
    let remote = remote();
    let relay = Relay::start(remote.address());
    relay.delay.store(100, Ordering::SeqCst);
    let _machine = Machine::start(relay.address, 1);
    let there = loader(
        Graph::range(0..1_000_000)
            .on_workers(remote, millisecond)
            .batch(32),
    );
    let mut epoch = there.epoch(0).blocking();
    let mut expected = 0..;
    until("it has many", || {
        let batch = epoch.next().unwrap().unwrap();
        assert!(batch.into_iter().eq(expected.by_ref().take(32)));
        let jobs = processes(&there)
            .children
            .first()
            .map_or(0, |child| child.jobs);
        // 200 ms in pieces of at most 4 ms, the one in work, and the next.
        jobs >= 52
    });
}

/// A value whose steps report no weight.
struct Blob(Bytes);

impl Wire for Blob {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> datapipes::Result<()> {
        self.0.encode(to)
    }

    fn decode(from: &mut Reader<'_>) -> datapipes::Result<Self> {
        Ok(Blob(Bytes::decode(from)?))
    }
}

#[test]
fn what_is_on_the_way_to_a_distant_worker_is_counted_in_bytes_whatever_it_weighs() {
    const MIB: usize = 1 << 20;
    let millisecond: fn(Graph<Blob>) -> Graph<usize> = |blobs| {
        blobs.map(|blob| {
            std::thread::sleep(Duration::from_millis(1));
            blob.0.len()
        })
    };
    let remote = remote();
    let relay = Relay::start(remote.address());
    relay.delay.store(100, Ordering::SeqCst);
    let _machine = Machine::start(relay.address, 1);
    let blob = Bytes::from(vec![7; MIB]);
    let blobs = Graph::range(0..300).map(move |_| Blob(blob.clone()));
    let there = DataLoader::builder(blobs.on_workers(remote, millisecond));
    let there = there.build().unwrap();
    let (mut made, mut most) = (0, 0);
    for len in there.epoch(0).blocking() {
        assert_eq!(len.unwrap(), MIB);
        made += 1;
        let children = processes(&there).children;
        let jobs = children.first().map_or(0, |child| child.jobs);
        most = most.max(jobs);
    }
    assert_eq!(made, 300);
    // A job is a blob at least, and the last one goes beyond the limit.
    assert!((2..=18).contains(&most), "{most} jobs");
}

/// The machines and the network of the next test, and what is wrong with them now.
struct Faulty {
    relay: Arc<Relay>,
    machines: Vec<Machine>,
    /// One whose network has no faults, so that others can lose their work to it.
    _steady: Machine,
    stopped: Vec<i32>,
    rng: datapipes::Rng,
}

impl Faulty {
    fn below(&mut self, n: usize) -> usize {
        (self.rng.next_u64() % n as u64) as usize
    }

    /// Makes one thing go wrong, and returns what.
    fn break_something(&mut self) -> &'static str {
        let processes: Vec<i32> = self.machines.iter().flat_map(Machine::processes).collect();
        let pid = (!processes.is_empty()).then(|| processes[self.below(processes.len())]);
        match (self.below(9), pid) {
            (0, Some(pid)) => {
                kill(pid, "-9");
                "a process is killed"
            }
            (1 | 2, Some(pid)) => {
                kill(pid, "-STOP");
                self.stopped.push(pid);
                "a process stands still"
            }
            (3, _) => {
                self.relay.cut();
                "all connections are cut"
            }
            (4, _) => {
                let delay = self.rng.next_u64() % 20;
                self.relay.delay.store(delay, Ordering::SeqCst);
                "everything takes long"
            }
            (direction @ 5..=6, _) => {
                self.relay.holds[direction - 5].store(true, Ordering::SeqCst);
                "nothing gets through in one direction"
            }
            (7, _) if self.machines.len() > 1 => {
                let place = self.below(self.machines.len());
                let mut machine = self.machines.swap_remove(place);
                self.mend();
                machine.signal("-TERM");
                if self.below(2) == 0 {
                    // Others do the work that it does not end in time.
                    drop(machine);
                } else {
                    until("it has ended its work", || {
                        machine.0.try_wait().unwrap().is_some()
                    });
                }
                "a machine is told to end"
            }
            _ => {
                self.machines.truncate(2);
                let processes = 1 + self.below(2);
                self.machines
                    .push(Machine::start(self.relay.address, processes));
                "a machine comes, and another one is killed"
            }
        }
    }

    fn mend(&mut self) {
        for pid in self.stopped.drain(..) {
            kill(pid, "-CONT");
        }
        self.relay.delay.store(0, Ordering::SeqCst);
        for held in &self.relay.holds {
            held.store(false, Ordering::SeqCst);
        }
    }
}

/// All kinds of faults, one after the other, while epochs go on. After each, the loader goes on within
/// [`TIMEOUT`]: after every fourth while the fault lasts, so that workers that stand still, or that
/// nothing reaches, lose their work to others.
///
/// There are 20 of them, in some two seconds, and 200 in the gate, in 20 s; the long form is `DATAPIPES_FAULTS=10000`.
#[test]
fn rows_137_to_139_and_141_any_faults_in_any_order_cost_no_sample() {
    let least = match std::env::var_os("DATAPIPES_ALL_CASES") {
        Some(_) => 200,
        None => 20,
    };
    let count = std::env::var(FAULTS).map_or(least, |count| count.parse().expect("a number"));
    let remote = remote().silence(SILENCE);
    let mut faulty = Faulty {
        relay: Relay::start(remote.address()),
        machines: Vec::new(),
        _steady: Machine::start(remote.address(), 1),
        stopped: Vec::new(),
        rng: datapipes::Rng::from_key([7; 4]),
    };
    faulty
        .machines
        .push(Machine::start(faulty.relay.address, 2));
    let (there, here) = (loader(graph(Some(remote), part)), loader(graph(None, part)));
    let taken = Arc::new(AtomicU64::new(0));
    let seen = taken.clone();
    let faults = std::thread::spawn(move || {
        // Faults during which nothing was made until somebody lost its work.
        let mut waited = 0;
        for number in 0..count {
            let begun = Instant::now();
            let what = faulty.break_something();
            // Long enough for some to find out, and for others not.
            let longest = if number % 8 == 0 { 400 } else { 60 };
            let pause = Duration::from_millis(faulty.rng.next_u64() % longest);
            let before = seen.load(Ordering::SeqCst);
            until("the pause is over", || begun.elapsed() >= pause);
            let lasts = number % 4 == 3;
            if !lasts {
                faulty.mend();
            }
            let more = if lasts { 20 } else { 2 };
            until(&format!("fault {number}: {what}"), || {
                seen.load(Ordering::SeqCst) >= before + more
            });
            waited += usize::from(lasts && begun.elapsed() >= SILENCE);
            faulty.mend();
        }
        println!("{waited} of {count} faults lasted until work was given to others");
        (faulty, waited)
    });
    let mut late = 0;
    for epoch in 0.. {
        let expected = here.epoch(epoch).blocking().map(Result::unwrap);
        let mut batches = there.epoch(epoch).blocking().map(Result::unwrap);
        for expected in expected {
            assert_eq!(batches.next(), Some(expected), "epoch {epoch}");
            taken.fetch_add(1, Ordering::SeqCst);
        }
        assert_eq!(batches.next(), None, "epoch {epoch}");
        late += processes(&there).late;
        if faults.is_finished() {
            break;
        }
    }
    let (_, waited) = faults.join().unwrap();
    println!("{late} pieces of work were done by a second worker");
    assert!(waited > 0 || late > 0 || count < 100);
}

/// Tensors that are larger than messages, and items that are errors.
fn tensors(numbers: Graph<u64>) -> Graph<Tensor> {
    let made = numbers.try_map(|n| match n % 50 {
        7 => Err("a bad item"),
        _ => Ok(n),
    });
    let filled = made.named("fill").try_map_with_rng(|n, rng| {
        let values = (0..20_000 + n % 7).map(|_| rng.next_u64() as f32).collect();
        Tensor::from_vec::<f32>(values, [20_000 + (n % 7) as usize])
    });
    filled.named("noise")
}

#[test]
fn row_138_tensors_and_errors_in_any_order_survive_kills() {
    let numbers = || Graph::range(0..400).shuffle(50);
    let build = |graph: Graph<Tensor>, order| {
        let builder = DataLoader::builder(graph).seed(7).workers(2).order(order);
        builder
            .prefetch(1)
            .on_error(OnError::skip(100))
            .build()
            .unwrap()
    };
    let bad = |loader: &DataLoader<Tensor>| {
        let skipped = loader.stats().unwrap().skipped_items;
        let mut skipped: Vec<_> = skipped.iter().map(|bad| format!("{bad:?}")).collect();
        skipped.sort();
        skipped
    };
    let bytes = |tensors: Vec<Tensor>| -> Vec<Vec<f32>> {
        let values = tensors
            .iter()
            .map(|tensor| tensor.as_slice::<f32>().unwrap().to_vec());
        values.collect()
    };
    let sorted = |mut all: Vec<Vec<f32>>| {
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all
    };
    let here = build(tensors(numbers()), Order::Strict);
    let expected = bytes(here.epoch(0).blocking().map(Result::unwrap).collect());
    assert_eq!((expected.len(), bad(&here).len()), (392, 8));
    for order in [Order::Strict, Order::Arrival] {
        let remote = remote();
        let machine = Machine::start(remote.address(), 2);
        let there = build(numbers().on_workers(remote, tensors), order);
        let mut made = Vec::new();
        for (number, tensor) in there.epoch(0).blocking().enumerate() {
            made.push(tensor.unwrap());
            if number % 60 == 30 {
                machine.processes().first().map(|&pid| kill(pid, "-9"));
            }
        }
        let made = bytes(made);
        match order {
            Order::Strict => assert!(made == expected),
            _ => assert!(sorted(made) == sorted(expected.clone())),
        }
        assert_eq!(bad(&there), bad(&here));
        assert!(processes(&there).died > 0);
    }
}

#[test]
fn row_146_an_address_for_others_needs_a_token() {
    let open = Remote::listen("0.0.0.0:0").unwrap();
    let said = builder(graph(Some(open.clone()), part))
        .build()
        .unwrap_err()
        .to_string();
    assert!(said.contains("it needs a token"), "{said}");
    assert!(builder(graph(Some(open.token("x")), part)).build().is_ok());
    let said = Remote::listen("192.0.2.1:1").unwrap_err().to_string();
    assert!(said.contains("cannot listen at 192.0.2.1:1"), "{said}");
}

/// The worker that is left has output that has to wait for that of the other one, whose work waits
/// for a worker.
#[test]
fn row_138_the_last_worker_does_what_was_due_before_its_own_work() {
    // An item of the input makes more than there is room for.
    let large: fn(Graph<u64>) -> Graph<Vec<u64>> =
        |numbers| numbers.flat_map(|n| (0..100).map(move |at| vec![100 * n + at; 25_000]));
    for lost in [0, 1] {
        let remote = remote();
        let mut machines = vec![
            Machine::start(remote.address(), 1),
            Machine::start(remote.address(), 1),
        ];
        let graph = Graph::range(0..10).on_workers(remote, large);
        let builder = DataLoader::builder(graph.map(|values| values[0])).workers(2);
        let there = builder.memory(16 << 20).build().unwrap();
        let mut epoch = there.epoch(0).blocking();
        let mut items: Vec<_> = epoch.by_ref().take(20).map(Result::unwrap).collect();
        until("both connected", || connected(&there) == 2);
        let made = || -> Vec<u64> {
            let stats = there.stats().unwrap();
            stats.nodes.iter().map(|node| node.items).collect()
        };
        let mut last = (made(), Instant::now());
        until("nothing is made any more", || {
            if made() != last.0 {
                last = (made(), Instant::now());
            }
            last.1.elapsed() > Duration::from_millis(500)
        });
        drop(machines.remove(lost));
        let (send, receive) = std::sync::mpsc::channel();
        let rest = std::thread::spawn(move || {
            for item in epoch {
                send.send(item.unwrap()).unwrap();
            }
        });
        while items.len() < 1000 {
            items.push(receive.recv_timeout(TIMEOUT).expect("in time"));
        }
        rest.join().unwrap();
        assert_eq!(items, (0..1000).collect::<Vec<u64>>());
    }
}

type Loader = DataLoader<Vec<u64>>;

/// Two loaders of a program with different parts, each with one that has no workers.
fn two_loaders(remote: &Remote) -> [(Loader, Loader); 2] {
    let other: fn(Graph<u64>) -> Graph<u64> = |numbers| numbers.map(|n| n * 3);
    [part, other].map(|part| {
        let there = loader(graph(Some(remote.clone()), part));
        (there, loader(graph(None, part)))
    })
}

#[test]
fn two_loaders_at_once_share_the_workers() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 2);
    let [(first, first_here), (second, second_here)] = two_loaders(&remote);
    let mut epochs = [first.epoch(0).blocking(), second.epoch(0).blocking()];
    let mut batches = [(); 2].map(|()| Vec::new());
    // Nobody takes any of the first's while the second gets its share.
    for (epoch, batches) in epochs.iter_mut().zip(&mut batches) {
        batches.extend(epoch.by_ref().take(10).map(Result::unwrap));
    }
    until("each has one", || {
        connected(&first) == 1 && connected(&second) == 1
    });
    for (epoch, batches) in epochs.into_iter().zip(&mut batches) {
        batches.extend(epoch.map(Result::unwrap));
    }
    assert_eq!(batches, [all(&first_here, 0), all(&second_here, 0)]);
    assert_eq!((processes(&first).died, processes(&second).died), (0, 0));
}

/// Neither runs out of work, however long it takes until a worker has moved, and a worker that gets no
/// core for seconds loses nothing by that.
#[test]
fn row_149_a_validation_in_the_middle_of_an_epoch_gets_workers_and_gives_them_back() {
    let remote = remote().time_limit(TIMEOUT);
    let _machine = Machine::start(remote.address(), 3);
    let numbers = || Graph::range(0..1 << 40).shuffle(100);
    let [training, validation] =
        [(); 2].map(|()| loader(numbers().on_workers(remote.clone(), part).batch(8)));
    let mut epoch = training.epoch(0).blocking();
    let mut batches: Vec<_> = epoch.by_ref().take(5).map(Result::unwrap).collect();
    until("training has all", || connected(&training) == 3);
    let mut halfway = validation.epoch(0).blocking();
    let mut checked = Vec::new();
    // The training takes nothing, so it needs no more than one.
    until("validation has all but one", || {
        checked.extend(halfway.next().map(Result::unwrap));
        connected(&validation) == 2 && connected(&training) == 1
    });
    drop(halfway);
    until("training has all again", || {
        batches.extend(epoch.next().map(Result::unwrap));
        connected(&training) == 3
    });
    let expected = loader(part(numbers()).batch(8)).epoch(0).blocking();
    let most = batches.len().max(checked.len());
    let expected: Vec<_> = expected.take(most).map(Result::unwrap).collect();
    assert!(expected.starts_with(&batches) && expected.starts_with(&checked));
    assert_eq!(processes(&training).died, 0);
}

#[test]
fn row_149_an_epoch_that_is_dropped_gives_its_workers_to_others() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 2);
    let [(first, _), (second, second_here)] = two_loaders(&remote);
    let mut dropped = first.epoch(0).blocking();
    dropped.next().unwrap().unwrap();
    until("the first has all", || connected(&first) == 2);
    drop(dropped);
    let mut epoch = second.epoch(0).blocking();
    let mut batches = vec![epoch.next().unwrap().unwrap()];
    until("the second has all", || connected(&second) == 2);
    batches.extend(epoch.map(Result::unwrap));
    assert_eq!(batches, all(&second_here, 0));
}

#[test]
fn row_149_one_worker_serves_two_loaders_two_epochs_and_two_parts_in_turns() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 1);
    let [(first, first_here), (second, second_here)] = two_loaders(&remote);
    let twice = loader(
        graph(Some(remote.clone()), part)
            .unbatch()
            .on_workers(remote, |numbers| numbers.map(|n| n ^ 1))
            .batch(32),
    );
    let twice_here = loader(graph(None, part).unbatch().map(|n| n ^ 1).batch(32));
    let mut epochs = [
        (&first, 0, &first_here),
        (&first, 1, &first_here),
        (&second, 0, &second_here),
        (&twice, 0, &twice_here),
    ]
    .map(|(there, epoch, here)| (there.epoch(epoch).blocking(), here.epoch(epoch).blocking()));
    loop {
        let mut ended = 0;
        for (there, here) in &mut epochs {
            let is = there.next().map(Result::unwrap);
            ended += usize::from(is.is_none());
            assert_eq!(is, here.next().map(Result::unwrap));
        }
        if ended == epochs.len() {
            return;
        }
    }
}

#[test]
fn rows_138_and_149_workers_are_killed_while_they_are_shared_and_nothing_is_lost_or_twice() {
    let remote = remote();
    let address = remote.address();
    let [(first, first_here), (second, second_here)] = two_loaders(&remote);
    let mut machines = vec![Machine::start(address, 2)];
    let mut rng = datapipes::Rng::from_key([6; 4]);
    for round in 0..3 {
        let mut epochs = [(&first, &first_here), (&second, &second_here)]
            .map(|(there, here)| (there.epoch(round).blocking(), here.epoch(round).blocking()));
        loop {
            let mut ended = 0;
            for (there, here) in &mut epochs {
                let is = there.next().map(Result::unwrap);
                ended += usize::from(is.is_none());
                assert_eq!(is, here.next().map(Result::unwrap), "round {round}");
            }
            if ended == epochs.len() {
                break;
            }
            match rng.next_u64() % 24 {
                0 => {
                    machines.push(Machine::start(address, 2));
                    drop(machines.remove(0));
                }
                1 | 2 => {
                    let processes = machines[0].processes();
                    if !processes.is_empty() {
                        let pid = processes[rng.next_u64() as usize % processes.len()];
                        kill(pid, "-9");
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn row_143_who_shares_workers_has_the_same_token() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 1);
    let first = loader(graph(Some(remote.clone()), part));
    let mut epoch = first.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let second = loader(graph(Some(remote.token("another")), part));
    let error = second.epoch(0).blocking().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(
        error
            .to_string()
            .contains("with another token or certificate"),
        "{error}"
    );
}

#[test]
fn a_program_with_nothing_to_work_for_ends_when_it_was_told_to() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let command = Command::new(std::env::current_exe().unwrap())
        .env("DATAPIPES_WORKER", format!("tcp://{nobody}"))
        .env("DATAPIPES_WORKER_PROCESSES", "2")
        .env("DATAPIPES_WORKER_IDLE", "0")
        .stderr(Stdio::piped())
        .spawn();
    Machine(command.unwrap()).end();
}

/// Returns what an epoch gives, which has to end in time.
fn in_time<T: Send + 'static>(loader: &DataLoader<T>, epoch: u64) -> Vec<datapipes::Result<T>> {
    let epoch = loader.epoch(epoch).blocking();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || epoch.for_each(|batch| send.send(batch).unwrap_or(())));
    let mut batches = Vec::new();
    loop {
        match receive.recv_timeout(TIMEOUT) {
            Ok(batch) => batches.push(batch),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return batches,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the epoch stands still"),
        }
    }
}

/// A part that cannot be made on a machine that has the variable: it panics, or ends its process.
fn part_of_good_machines(numbers: Graph<u64>) -> Graph<u64> {
    match std::env::var(HANGS).as_deref() {
        Ok("panic") => panic!("there is no model on this machine"),
        Ok("abort") => std::process::abort(),
        _ => part(numbers),
    }
}

fn bad_machine(address: SocketAddr, how: &str) -> Machine {
    let mut command = Machine::command(address, 1);
    Machine(command.env(HANGS, how).spawn().unwrap())
}

#[test]
fn row_150_a_machine_that_cannot_make_the_part_disturbs_nobody() {
    let here = all(&loader(graph(None, part)), 0);
    for how in ["panic", "abort"] {
        let remote = remote();
        let address = remote.address();
        let bad = bad_machine(address, how);
        let _good = Machine::start(address, 1);
        let there = loader(graph(Some(remote), part_of_good_machines));
        until("the bad one has come", || {
            assert_eq!(all(&there, 0), here);
            processes(&there).died > 0
        });
        bad.signal("-TERM");
        bad.end();
    }
}

#[test]
fn row_150_if_no_machine_can_make_the_part_the_error_says_why() {
    for (how, why) in [
        ("panic", "there is no model on this machine"),
        ("abort", "SIGABRT"),
    ] {
        let wait = Duration::from_secs(2);
        let remote = remote().wait(wait);
        let bad = bad_machine(remote.address(), how);
        let there = loader(graph(Some(remote), part_of_good_machines));
        let begun = Instant::now();
        let error = in_time(&there, 0).remove(0).unwrap_err();
        assert!(begun.elapsed() < 3 * wait);
        let said = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Worker, "{said}");
        assert!(said.contains(why), "{said}");
        bad.signal("-TERM");
        let printed = bad.end();
        assert!(printed.contains(why), "{printed}");
        if how == "panic" {
            // It was refused, and waits before it tries again.
            assert_eq!(
                printed.matches("cannot make the part").count(),
                1,
                "{printed}"
            );
        }
    }
}

#[test]
fn processes_of_this_machine_do_nothing_beside_workers() {
    let remote = remote().or_here(1);
    let address = remote.address();
    let made = Graph::range(0..100_000).on_workers(remote, |numbers| {
        numbers.map(|n| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(200) {}
            n
        })
    });
    let there = loader(made.batch(25));
    let mut epoch = there.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    let _machine = Machine::start(address, 1);
    let child = |is_here: bool| {
        let mut children = processes(&there).children.into_iter();
        children.find(|child| child.machine.is_none() == is_here)
    };
    until(
        "the worker works, and the process here has ended its jobs",
        || {
            epoch.next().unwrap().unwrap();
            child(false).is_some_and(|worker| worker.items > 0)
                && child(true).is_none_or(|here| here.jobs == 0)
        },
    );
    let (here, there_before) = (
        child(true).map(|here| here.items),
        child(false).unwrap().items,
    );
    epoch
        .by_ref()
        .take(100)
        .for_each(|batch| drop(batch.unwrap()));
    assert_eq!(child(true).map(|here| here.items), here);
    assert!(child(false).unwrap().items > there_before + 1000);
}

#[test]
fn row_139_the_work_of_the_only_worker_is_done_here_if_it_hangs() {
    let remote = remote().or_here(1);
    let address = remote.address();
    let there = loader(graph(Some(remote), part));
    let machine = Machine::start(address, 1);
    let here = all(&loader(graph(None, part)), 0);
    until("a worker is used", || {
        assert_eq!(all(&there, 0), here);
        connected_workers(&there) == 1
    });
    for pid in machine.processes() {
        signal_to(pid, "-STOP");
    }
    let batches = in_time(&there, 0);
    assert_eq!(
        batches.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        here
    );
}

fn connected_workers<T: Send + 'static>(loader: &DataLoader<T>) -> usize {
    let children = processes(loader).children;
    let workers = children.iter().filter(|child| child.machine.is_some());
    workers.count()
}

#[test]
fn row_139_the_only_workers_are_given_up_if_all_hang() {
    let remote = remote().wait(Duration::from_secs(1));
    let address = remote.address();
    let machine = Machine::start(address, 2);
    let there = loader(graph(Some(remote), part));
    let mut epoch = there.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    until("both are connected", || connected(&there) == 2);
    drop(epoch);
    for pid in machine.processes() {
        signal_to(pid, "-STOP");
    }
    let error = in_time(&there, 1).remove(0).unwrap_err();
    let said = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Worker, "{said}");
    assert!(said.contains("no worker is connected"), "{said}");
    // Others go on.
    let _machine = Machine::start(address, 1);
    assert_eq!(all(&there, 1), all(&loader(graph(None, part)), 1));
}

/// A network that loses everything, and tells nobody: no end of a connection, and no error.
#[test]
fn row_137_a_worker_that_is_cut_off_without_a_word_loses_its_work() {
    let here = all(&loader(graph(None, part)), 0);
    let remote = remote().wait(Duration::from_secs(1));
    let address = remote.address();
    let relay = Relay::start(address);
    let _lost = Machine::start(relay.address, 1);
    let there = loader(graph(Some(remote), part));
    let mut epoch = there.epoch(0).blocking();
    let mut batches: Vec<_> = epoch.by_ref().take(5).map(Result::unwrap).collect();
    relay.loses.store(true, Ordering::SeqCst);
    let rest = std::thread::spawn(move || epoch.collect::<Vec<_>>());
    until("it is given up", || connected(&there) == 0);
    let _other = Machine::start(address, 1);
    until("the other one does the rest", || rest.is_finished());
    batches.extend(rest.join().unwrap().into_iter().map(Result::unwrap));
    assert_eq!(batches, here);
}

/// The trainer's machine vanishes: the worker hears nothing more, not even the end of its connection.
#[test]
fn row_137_a_worker_gives_up_a_trainer_that_it_hears_nothing_of() {
    // 15 times that until it is given up.
    let silence = Duration::from_millis(100);
    let remote = remote().silence(silence);
    let relay = Relay::start(remote.address());
    let machine = Machine::start(relay.address, 1);
    let there = loader(graph(Some(remote), part));
    let mut epoch = there.epoch(0).blocking();
    epoch
        .by_ref()
        .take(5)
        .for_each(|batch| drop(batch.unwrap()));
    let before = machine.processes();
    // Without work, as between two epochs, it is not given up.
    drop(epoch);
    std::thread::sleep(20 * silence);
    assert_eq!(machine.processes(), before);
    relay.loses.store(true, Ordering::SeqCst);
    until("its process is another one", || {
        let now = machine.processes();
        !now.is_empty() && now != before
    });
}

/// An item that takes longer than a network that is cut again and again lets it.
#[test]
fn row_137_a_slow_item_is_not_to_blame_for_cuts() {
    let slow: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        numbers.map(|n| {
            if n == 2 {
                std::thread::sleep(Duration::from_millis(200));
            }
            n
        })
    };
    let remote = remote();
    let relay = Relay::start(remote.address());
    let _machine = Machine::start(relay.address, 1);
    let there = loader(Graph::range(0..4).on_workers(remote, slow).batch(1));
    let epoch = there.epoch(0).blocking();
    let all = std::thread::spawn(move || epoch.map(Result::unwrap).collect::<Vec<_>>());
    for _ in 0..5 {
        until("a worker has work", || {
            let stats = there.stats();
            stats.is_some()
                && processes(&there)
                    .children
                    .iter()
                    .any(|child| child.jobs > 0)
        });
        std::thread::sleep(Duration::from_millis(50));
        relay.cut();
        until("it is gone", || connected(&there) == 0);
    }
    assert_eq!(all.join().unwrap(), [[0], [1], [2], [3]]);
}

#[test]
fn row_140_the_error_of_an_item_says_how_its_workers_ended() {
    let remote = remote();
    let _machine = Machine::start(remote.address(), 1);
    let made = Graph::range(0..300).on_workers(remote, |numbers| {
        let ends = |n| {
            if ends_its_process_at(n) {
                std::process::abort()
            } else {
                n
            }
        };
        numbers.map(ends).named("decode")
    });
    let there = loader(made.batch(10));
    let error = in_time(&there, 0)
        .into_iter()
        .find_map(Result::err)
        .unwrap();
    let said = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Crashed, "{said}");
    assert_eq!(error.node(), Some("decode"), "{said}");
    for part in ["0:77", "SIGABRT", "(process "] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn row_140_an_item_that_ends_workers_is_done_here_where_it_may() {
    let ends: fn(Graph<u64>) -> Graph<u64> = |numbers| {
        numbers.map(|n| {
            std::thread::sleep(Duration::from_millis(2));
            // The second one only on other machines, as a library does that is missing there.
            if n == 40 || n == 80 && std::env::var_os(HANGS).is_some() {
                // Long enough for other processes to be started before this one ends.
                std::thread::sleep(Duration::from_millis(150));
                std::process::abort();
            }
            n
        })
    };
    let remote = remote().or_here(1);
    let mut machine = Machine::command(remote.address(), 4);
    let _machine = Machine(machine.env(HANGS, "yes").spawn().unwrap());
    let made = Graph::range(0..120).on_workers(remote, ends);
    let there = builder(made.batch(10))
        .on_error(OnError::skip(10))
        .build()
        .unwrap();
    let mut epoch = 0;
    until("workers do most of it, and are ended by both", || {
        let before = there.stats().map_or(0, |_| processes(&there).died);
        let batches = there.epoch(epoch).blocking().map(Result::unwrap);
        let items: Vec<u64> = batches.flatten().collect();
        assert!(items.into_iter().eq((0..120).filter(|&n| n != 40)));
        epoch += 1;
        // One with its piece of work, and two alone, for each of both; and the process here.
        processes(&there).died >= before + 7
    });
}

/// A process of this machine that has a later item before an earlier one would wait for room for ever,
/// since the consumer waits for the earlier one.
#[test]
fn row_140_items_that_are_done_here_keep_the_order_of_all_work() {
    let large: fn(Graph<u64>) -> Graph<Vec<u64>> = |numbers| {
        numbers.flat_map(|n| {
            if [2, 3, 6].contains(&n) && std::env::var_os(HANGS).is_some() {
                std::process::abort();
            }
            (0..100).map(move |at| vec![100 * n + at; 25_000])
        })
    };
    let remote = remote().or_here(1);
    let mut machine = Machine::command(remote.address(), 3);
    let _machine = Machine(machine.env(HANGS, "yes").spawn().unwrap());
    let graph = Graph::range(0..8).on_workers(remote, large);
    let builder = DataLoader::builder(graph.map(|values| values[0])).workers(2);
    let there = builder.memory(16 << 20).build().unwrap();
    for epoch in 0..3 {
        let items = in_time(&there, epoch).into_iter().map(Result::unwrap);
        assert!(items.eq(0..800), "epoch {epoch}");
    }
}

#[test]
fn a_machine_that_finds_no_trainer_says_why_once() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (address, why) in [
        (format!("tcp://{nobody}"), "Connection refused"),
        ("tcp://127.0.0.1".to_owned(), "tcp://127.0.0.1"),
        (
            "tcp://no-such-host.invalid:1".to_owned(),
            "no-such-host.invalid",
        ),
    ] {
        let mut command = Machine::command(nobody, 2);
        command
            .env("DATAPIPES_WORKER", &address)
            .env("DATAPIPES_WORKER_IDLE", "1");
        let printed = Machine(command.spawn().unwrap()).end();
        let lines = printed
            .lines()
            .filter(|line| line.contains("no trainer at"));
        let lines: Vec<_> = lines.collect();
        assert!(lines.len() == 1 && lines[0].contains(why), "{printed}");
    }
}

#[test]
fn row_145_strangers_who_hold_connections_keep_no_worker_out() {
    let here = all(&loader(graph(None, part)), 0);
    let remote = remote();
    let address = remote.address();
    let there = loader(graph(Some(remote), part));
    let strangers: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let begun = Instant::now();
    let epoch = there.epoch(0).blocking();
    let batches = std::thread::spawn(move || epoch.map(Result::unwrap).collect::<Vec<_>>());
    let _machine = Machine::start(address, 1);
    assert_eq!(batches.join().unwrap(), here);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    drop(strangers);
}

#[test]
fn a_machine_that_cannot_print_works() {
    let remote = remote();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = Machine::command(remote.address(), 1);
    let _machine = Machine(command.stderr(full.unwrap()).spawn().unwrap());
    let there = loader(graph(Some(remote), part));
    assert_eq!(all(&there, 0), all(&loader(graph(None, part)), 0));
}

/// Limits the files of an agent, so that the system refuses all processes for a moment.
#[test]
fn a_machine_that_cannot_start_processes_tries_again() {
    let remote = remote();
    let machine = Machine::start(remote.address(), 2);
    let there = loader(graph(Some(remote), part));
    let here = all(&loader(graph(None, part)), 0);
    assert_eq!(all(&there, 0), here);
    let limit = |files: &str| {
        let agent = machine.0.id().to_string();
        let mut command = Command::new("prlimit");
        command
            .args(["--pid", &agent, &format!("--nofile={files}")])
            .status()
    };
    match limit("3:1024") {
        Ok(status) if status.success() => {}
        _ => return println!("skipped: there is no `prlimit`"),
    }
    for pid in machine.processes() {
        kill(pid, "-9");
    }
    until("all have ended", || machine.processes().is_empty());
    std::thread::sleep(Duration::from_millis(200));
    assert!(limit("1024:1024").unwrap().success());
    until("both are there again", || machine.processes().len() == 2);
    assert_eq!(all(&there, 0), here);
}

#[test]
fn row_146_a_worker_without_a_token_works_for_its_own_machine_only() {
    let own = || {
        // Nothing is sent; it finds the address by which this machine would reach another one.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.77:9").ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback()).then_some(address)
    };
    let Some(own) = own() else {
        return println!("skipped: this machine has no address that others reach");
    };
    let listener = TcpListener::bind((own, 0)).unwrap();
    let mut command = Machine::command(listener.local_addr().unwrap(), 1);
    command
        .env_remove("DATAPIPES_TOKEN")
        .env("DATAPIPES_WORKER_IDLE", "0");
    let machine = Machine(command.spawn().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it says nothing");
    let printed = machine.end();
    assert!(printed.contains("needs a token"), "{printed}");
}

/// A value whose drop panics once, on a thread that looks after workers.
struct Mean(u64);

impl Wire for Mean {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> datapipes::Result<()> {
        self.0.encode(to)
    }

    fn decode(from: &mut Reader<'_>) -> datapipes::Result<Self> {
        Wire::decode(from).map(Mean)
    }
}

static IS_MEAN: AtomicBool = AtomicBool::new(false);

impl Drop for Mean {
    fn drop(&mut self) {
        let thread = std::thread::current();
        let is_ours = thread
            .name()
            .is_some_and(|name| name.starts_with("datapipes-"));
        if is_ours && IS_MEAN.swap(false, Ordering::SeqCst) {
            panic!("a value that cannot be dropped");
        }
    }
}

#[test]
fn a_value_of_cancelled_work_whose_drop_panics_costs_no_later_epoch() {
    let remote = remote();
    let address = remote.address();
    let made = Graph::range(0..1000)
        .map(Mean)
        .on_workers(remote, |values| {
            values.map(|value| {
                // Long enough that a worker has few of the pieces of one item, with which the epoch begins.
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(1) {}
                while value.0 >= 50 && std::env::var_os(HANGS).is_some() {
                    std::thread::park();
                }
                value.0
            })
        });
    let there = loader(made.batch(10));
    let bad = bad_machine(address, "at 50");
    let mut epoch = there.epoch(0).blocking();
    epoch.next().unwrap().unwrap();
    until("the worker hangs, and other work waits", || {
        let processes = processes(&there);
        let silence = processes.children.first().map(|child| child.silence);
        processes.pending > 0 && silence > Some(Duration::from_millis(200))
    });
    IS_MEAN.store(true, Ordering::SeqCst);
    drop(epoch);
    until("a drop has panicked", || !IS_MEAN.load(Ordering::SeqCst));
    drop(bad);
    let _machine = Machine::start(address, 1);
    let items: Vec<u64> = there.epoch(1).blocking().flat_map(Result::unwrap).collect();
    assert!(items.into_iter().eq(0..1000));
}

#[test]
fn two_trainers_share_one_pool_of_machines() {
    let here = all(&loader(graph(None, part)), 0);
    let remotes = [remote(), remote()];
    let addresses = [remotes[0].address(), remotes[1].address()];
    let [first, second] = remotes.map(|remote| loader(graph(Some(remote), part)));
    let mut command = Machine::command(addresses[0], 2);
    let both = addresses
        .map(|address| format!("tcp://{address}"))
        .join(",");
    let _machine = Machine(command.env("DATAPIPES_WORKER", both).spawn().unwrap());
    let mut epochs = [first.epoch(0).blocking(), second.epoch(0).blocking()];
    let mut batches = [(); 2].map(|()| Vec::new());
    for (epoch, batches) in epochs.iter_mut().zip(&mut batches) {
        batches.extend(epoch.by_ref().take(10).map(Result::unwrap));
    }
    assert_eq!((connected(&first), connected(&second)), (1, 1));
    for (epoch, batches) in epochs.into_iter().zip(&mut batches) {
        batches.extend(epoch.map(Result::unwrap));
    }
    assert_eq!(batches, [here.clone(), here.clone()]);
    // One of them ends: the other one gets all.
    drop(first);
    until("it has both", || {
        assert_eq!(all(&second, 0), here);
        connected(&second) == 2
    });
}

#[cfg(feature = "remote-tls")]
mod tls {
    use std::path::PathBuf;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    /// Files of a certificate, of its key, and of the certificate that signed it.
    struct Files {
        chain: PathBuf,
        key: PathBuf,
        root: PathBuf,
    }

    fn write(name: &str, text: &str) -> PathBuf {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn params(host: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, host);
        params
    }

    fn self_signed(name: &str, params: &CertificateParams) -> Files {
        let key = KeyPair::generate().unwrap();
        let chain = write(
            &format!("{name}.pem"),
            &params.self_signed(&key).unwrap().pem(),
        );
        Files {
            key: write(&format!("{name}-key.pem"), &key.serialize_pem()),
            root: chain.clone(),
            chain,
        }
    }

    fn issuer(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn machine(address: SocketAddr, roots: &Path) -> Command {
        let mut command = Machine::command(address, 1);
        command
            .env("DATAPIPES_WORKER", format!("tls://{address}"))
            .env("DATAPIPES_WORKER_CA", roots);
        command
    }

    fn trainer(files: &Files) -> Remote {
        remote().tls(&files.chain, &files.key).unwrap()
    }

    /// Batches of some megabytes go through, too: TLS keeps the ends of what does not fit in a
    /// socket's buffer.
    #[test]
    fn the_sequence_over_tls_is_that_of_one_process() {
        let files = self_signed("own", &params("127.0.0.1"));
        let remote = trainer(&files);
        let machines = [(); 2].map(|()| machine(remote.address(), &files.root));
        let _machines = machines.map(|mut machine| Machine(machine.spawn().unwrap()));
        let there = loader(graph(Some(remote.clone()), part));
        assert!(
            there
                .explain()
                .contains(&format!("tls://{}", remote.address())),
            "{}",
            there.explain()
        );
        for epoch in 0..2 {
            assert_eq!(all(&there, epoch), all(&loader(graph(None, part)), epoch));
        }
        assert_eq!(processes(&there).died, 0);
        drop(there);
        let large: fn(Graph<u64>) -> Graph<Vec<u64>> =
            |numbers| numbers.map(|n| (0..n % 7 * 50_000).map(|at| at ^ n).collect());
        let graph = Graph::range(0..60).on_workers(remote, large);
        let there = DataLoader::builder(graph).workers(2).build().unwrap();
        let here = large(Graph::range(0..60)).collect().unwrap();
        assert_eq!(
            there
                .epoch(0)
                .blocking()
                .map(Result::unwrap)
                .collect::<Vec<_>>(),
            here
        );
    }

    /// A certificate of an issuer, with another issuer in between; and one that signed itself and
    /// says that it may sign others, as those of `openssl req -x509` do.
    #[test]
    fn certificates_of_issuers_and_of_openssl_are_good() {
        let root = issuer("the root");
        let middle = {
            let mut params = params("in between");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap()
        };
        let key = KeyPair::generate().unwrap();
        let own = params("127.0.0.1").signed_by(&key, &middle).unwrap();
        let of_issuers = Files {
            chain: write("chain.pem", &(own.pem() + &middle.pem())),
            key: write("chain-key.pem", &key.serialize_pem()),
            root: write("chain-root.pem", &root.pem()),
        };
        let mut of_openssl = params("127.0.0.1");
        of_openssl.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        for files in [of_issuers, self_signed("openssl", &of_openssl)] {
            let remote = trainer(&files);
            let _machine = Machine(machine(remote.address(), &files.root).spawn().unwrap());
            let there = loader(graph(Some(remote), part));
            assert_eq!(all(&there, 0), all(&loader(graph(None, part)), 0));
        }
    }

    /// Starts a worker that is not let in, and returns what the trainer says of it, and what it says
    /// itself. Then others work on.
    fn refused(remote: &Remote, mut bad: Command, why: &str) -> (String, String) {
        let there = loader(graph(
            Some(remote.clone().wait(Duration::from_millis(100))),
            part,
        ));
        let machine = Machine(bad.spawn().unwrap());
        let mut said = String::new();
        until(why, || {
            let error = there.epoch(0).blocking().next().unwrap().unwrap_err();
            said = error.to_string();
            said.contains("not let in")
        });
        machine.signal("-TERM");
        (said, machine.end())
    }

    #[test]
    fn row_147_who_does_not_speak_tls_or_trusts_another_is_refused_on_both_sides() {
        let good = self_signed("good", &params("127.0.0.1"));
        let same_name = self_signed("same-name", &params("127.0.0.1"));
        let mut other = params("127.0.0.1");
        other.distinguished_name.push(DnType::CommonName, "other");
        let other = self_signed("other", &other);
        let elsewhere = self_signed("elsewhere", &params("elsewhere.example"));
        let mut past = params("127.0.0.1");
        (past.not_before, past.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        let expired = self_signed("expired", &past);
        // The same for one that takes the way around the rule for issuers.
        past.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let expired_issuer = self_signed("expired-issuer", &past);
        let mut issuer_elsewhere = params("elsewhere.example");
        issuer_elsewhere.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer_elsewhere = self_signed("issuer-elsewhere", &issuer_elsewhere);
        let with = |files: &Files, roots: &Path| {
            let remote = trainer(files);
            let machine = machine(remote.address(), roots);
            (remote, machine)
        };
        let plain_worker = {
            let remote = trainer(&good);
            let machine = Machine::command(remote.address(), 1);
            (remote, machine)
        };
        let plain_trainer = {
            let remote = remote();
            let machine = machine(remote.address(), &good.root);
            (remote, machine)
        };
        for (number, ((remote, bad), trainer_says, worker_says)) in [
            (
                with(&good, &other.root),
                "has neither it nor its issuer",
                "DATAPIPES_WORKER_CA has neither it nor its issuer",
            ),
            (
                with(&good, &same_name.root),
                "may have another one of the same name",
                "DATAPIPES_WORKER_CA needs this certificate",
            ),
            (
                with(&elsewhere, &elsewhere.root),
                "it does not name the host",
                "is only valid for DnsName(\"elsewhere.example\"); DATAPIPES_WORKER needs a host",
            ),
            (
                with(&issuer_elsewhere, &issuer_elsewhere.root),
                "it does not name the host",
                "DATAPIPES_WORKER needs a host",
            ),
            (
                with(&expired, &expired.root),
                "it is not valid at this time",
                "; make a new one",
            ),
            (
                with(&expired_issuer, &expired_issuer.root),
                "it is not valid at this time",
                "; make a new one",
            ),
            (
                plain_worker,
                "it does not speak TLS, and this trainer does: start it with DATAPIPES_WORKER=tls://",
                "start it with DATAPIPES_WORKER=tls://",
            ),
            (
                plain_trainer,
                "it speaks TLS, and this trainer does not: start it with DATAPIPES_WORKER=tcp://",
                "does not speak TLS: start this worker with DATAPIPES_WORKER=tcp://",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let (at_trainer, at_worker) = refused(&remote, bad, trainer_says);
            assert!(at_trainer.contains(trainer_says), "{number}: {at_trainer} {at_worker}");
            assert!(at_worker.contains(worker_says), "{number}: {at_worker}");
            for said in [at_trainer, at_worker] {
                assert!(!said.contains(TOKEN) && !said.contains("PRIVATE"), "{said}");
            }
        }
    }

    /// The others at the same port are served while one is refused.
    #[test]
    fn row_147_a_worker_that_trusts_another_disturbs_nobody() {
        let good = self_signed("served", &params("127.0.0.1"));
        let other = self_signed("not-served", &params("127.0.0.1"));
        let remote = trainer(&good);
        let bad = Machine(machine(remote.address(), &other.root).spawn().unwrap());
        let plain = Machine::start(remote.address(), 1);
        let _good = Machine(machine(remote.address(), &good.root).spawn().unwrap());
        let there = loader(graph(Some(remote), part));
        for epoch in 0..2 {
            assert_eq!(all(&there, epoch), all(&loader(graph(None, part)), epoch));
        }
        for refused in [bad, plain] {
            refused.signal("-TERM");
            refused.end();
        }
    }

    #[test]
    fn row_143_a_token_is_needed_over_tls_too() {
        let files = self_signed("token", &params("127.0.0.1"));
        let remote = trainer(&files);
        let mut bad = machine(remote.address(), &files.root);
        bad.env("DATAPIPES_TOKEN", "another");
        let (at_trainer, at_worker) = refused(&remote, bad, "another token");
        assert!(at_trainer.contains("another token"), "{at_trainer}");
        assert!(at_worker.contains("another token"), "{at_worker}");
    }

    /// A machine between worker and trainer that has certificates for both cannot pass on their
    /// proofs.
    #[test]
    fn row_143_proofs_hold_for_one_connection() {
        let files = self_signed("between", &params("127.0.0.1"));
        let remote = trainer(&files);
        let between = relay_of_tls(&files, remote.address());
        let (at_trainer, at_worker) = refused(
            &remote,
            machine(between, &files.root),
            "a worker through a machine in between",
        );
        assert!(at_trainer.contains("another token"), "{at_trainer}");
        assert!(at_worker.contains("another token"), "{at_worker}");
    }

    /// A relay that decrypts and encrypts again.
    fn relay_of_tls(files: &Files, to: SocketAddr) -> SocketAddr {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificate = CertificateDer::from_pem_file(&files.chain).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let server = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                PrivateKeyDer::from_pem_file(&files.key).unwrap(),
            )
            .unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
                let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
                loop {
                    let (near, _) = listener.accept().await.unwrap();
                    let pass_on = async {
                        let far = tokio::net::TcpStream::connect(to).await?;
                        let name = ServerName::from(to.ip());
                        let mut far = connector.connect(name, far).await?;
                        let mut near = acceptor.accept(near).await?;
                        tokio::io::copy_bidirectional(&mut near, &mut far).await
                    };
                    let _ = pass_on.await;
                }
            })
        });
        address
    }

    #[test]
    fn row_147_files_that_are_no_certificates_are_named() {
        let files = self_signed("files", &params("127.0.0.1"));
        let other = self_signed("other-key", &params("127.0.0.1"));
        let nothing = write("nothing.pem", "no certificate");
        let damaged = write("damaged.pem", "-----BEGIN PRIVATE KEY-----\nsecret!\n");
        let gone = files.chain.with_file_name("gone.pem");
        for (chain, key, why) in [
            (&gone, &files.key, "cannot read"),
            (
                &nothing,
                &files.key,
                "nothing.pem has no certificate or key",
            ),
            (
                &files.chain,
                &nothing,
                "nothing.pem has no certificate or key",
            ),
            (&files.chain, &damaged, "damaged.pem"),
            (
                &files.chain,
                &other.key,
                "other-key-key.pem is not that of the first",
            ),
        ] {
            let error = remote().tls(chain, key).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let nobody = remote().address();
        for (roots, why) in [
            (None, "DATAPIPES_WORKER_CA is not set"),
            (Some(&gone), "gone.pem"),
            (Some(&nothing), "nothing.pem has no certificate"),
        ] {
            let mut command = machine(nobody, &files.root);
            match roots {
                Some(roots) => command.env("DATAPIPES_WORKER_CA", roots),
                None => command.env_remove("DATAPIPES_WORKER_CA"),
            };
            let output = command.output().unwrap();
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && printed.contains(why),
                "{printed}"
            );
        }
    }
}
