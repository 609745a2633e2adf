//! Processes that are killed hundreds of times while they save checkpoints, and jobs with children
//! that are killed and resumed.
//!
//! Three hundred kills take some seconds; `DATAPIPES_KILLS=number` sets another number.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use datapipes::{Checkpoint, DataLoader, ErrorKind, Graph, Rng};

use super::crimes::{all_gone, case, children, decode, soon};
use super::parents::{succeeds, this_test};

const KILLS: &str = "DATAPIPES_KILLS";
const FILE: &str = "DATAPIPES_TEST_STATE_FILE";

/// A folder where files are memory, if there is one: the moments between the steps of a save are
/// then as long as others, and no disk is waited for.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(memory)
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn shuffled() -> DataLoader<Vec<u64>> {
    let graph = Graph::range(0..9000)
        .filter(|n| n % 3 != 1)
        .shuffle(20)
        .batch(4);
    DataLoader::builder(graph)
        .seed(7)
        .workers(0)
        .resumable()
        .build()
        .unwrap()
}

#[test]
fn row_121_processes_that_are_killed_while_they_save_leave_whole_states() {
    let folder = folder();
    let mut process = this_test("processes::killed::kills_while_they_save");
    process.env(FILE, folder.path().join("run.state"));
    succeeds(process);
}

/// Runs in a process of its own that has no threads when it copies itself.
#[test]
#[ignore = "started by the test above"]
fn kills_while_they_save() {
    let Some(path) = std::env::var_os(FILE).map(PathBuf::from) else {
        return;
    };
    let kills = std::env::var(KILLS)
        .ok()
        .and_then(|kills| kills.parse().ok())
        .unwrap_or(120);
    let whole: Vec<_> = shuffled().epoch(0).blocking().map(Result::unwrap).collect();
    let mut rng = Rng::from_key([121, 0, 0, 0]);
    let (mut before, mut rounds, mut cut) = (0, 0, 0);
    let beside = path.with_file_name(".run.state.new");
    for kill in 0..kills {
        if before > whole.len() as u64 - 100 {
            std::fs::remove_file(&path).unwrap();
            (before, rounds) = (0, rounds + 1);
        }
        soon("this process has no threads of loaders", || tasks() <= 2);
        // The kill comes after some saves, at some moment of the next ones.
        let said = kill_one(&path, rng.below(4), Duration::from_micros(rng.below(400)));
        cut += u64::from(beside.exists());
        let state = match Checkpoint::load(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && before + said == 0 => continue,
            state => state.unwrap_or_else(|error| panic!("kill {kill}: {error}")),
        };
        // All that it said to be there; and what comes is what comes there.
        let at = state.delivered();
        assert!(
            at >= before + said,
            "kill {kill}: {at}, and {before} and {said} more were saved"
        );
        let next = shuffled()
            .resume(&state)
            .unwrap()
            .blocking()
            .take(3)
            .map(Result::unwrap);
        assert_eq!(
            Vec::from_iter(next),
            Vec::from_iter(whole[at as usize..].iter().take(3).cloned()),
            "kill {kill}"
        );
        before = at;
    }
    println!(
        "row 121: {kills} kills, {cut} of them between the steps of a save; {rounds} epochs, and {before} steps"
    );
    assert!(
        cut > 0,
        "no save was interrupted, so that nothing was tried"
    );
}

fn tasks() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Starts a copy of this process that resumes from a file and saves after each item, until it is
/// killed. Returns the number of saves that it reported.
fn kill_one(path: &Path, wanted: u64, later: Duration) -> u64 {
    let [mut said, mut says] = pipe();
    // SAFETY: there is no other thread that could hold a lock; what the copy does ends with it.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "{}", std::io::Error::last_os_error());
    if process == 0 {
        let saved = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let loader = shuffled();
            let epoch = match Checkpoint::load(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => loader.epoch(0),
                state => loader.resume(&state.unwrap()).unwrap(),
            };
            let mut epoch = epoch.blocking();
            while let Some(batch) = epoch.next() {
                batch.unwrap();
                epoch.checkpoint().unwrap().save(path).unwrap();
                says.write_all(b"#").unwrap();
            }
            // At its end it waits for that.
            loop {
                std::thread::park();
            }
        }));
        // SAFETY: ends the copy, without what the test would do at its end.
        unsafe { libc::_exit(i32::from(saved.is_err())) };
    }
    drop(says);
    let mut count = 0;
    while count < wanted {
        said.read_exact(&mut [0])
            .expect("it goes on until it is killed");
        count += 1;
    }
    let moment = Instant::now() + later;
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
    // SAFETY: ends a child that nobody has waited for, and waits for it.
    let status = unsafe {
        let mut status = 0;
        assert_eq!(libc::kill(process, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(process, &mut status, 0), process);
        status
    };
    assert!(libc::WIFSIGNALED(status), "it ended by itself");
    let mut rest = Vec::new();
    said.read_to_end(&mut rest).unwrap();
    count + rest.len() as u64
}

fn pipe() -> [std::fs::File; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are nobody else's.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        ends.map(|end| OwnedFd::from_raw_fd(end).into())
    }
}

fn decoded() -> DataLoader<Vec<u64>> {
    let numbers = Graph::range(0..2000).shuffle(30);
    let graph = numbers
        .in_processes_with(2, case("", &[], 50), decode)
        .shuffle(10)
        .batch(8);
    DataLoader::builder(graph)
        .seed(14)
        .resumable()
        .build()
        .unwrap()
}

/// Resumes from a file at the place where a job was killed, and saves after each batch. Reports the
/// batches, and the children that work for it.
#[test]
#[ignore = "started by the tests below"]
fn a_job() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: what a terminal's program does with them; who started the tests may have them
        // ignored.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let loader = decoded();
    let epoch = match Checkpoint::load(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => loader.epoch(0),
        state => loader.resume(&state.unwrap()).unwrap(),
    };
    let mut epoch = epoch.blocking();
    let mut asked = std::io::stdin().lock();
    while let Some(batch) = epoch.next() {
        // No further ahead than its parent wants it.
        asked.read_exact(&mut [0]).unwrap();
        let batch = batch.unwrap();
        let state = epoch.checkpoint().unwrap();
        state.save(&path).unwrap();
        let who: Vec<String> = children(&loader).iter().map(u32::to_string).collect();
        println!(
            "step: {} {batch:?} by {}",
            state.delivered() - 1,
            who.join(" ")
        );
    }
    println!("step: end");
}

/// Rows 13 and 14: jobs are ended in turn while their children work. Each job resumes from the file
/// of the last one.
fn jobs_go_on(signal: i32, seed: u64) {
    let folder = folder();
    let path = folder.path().join("run.state");
    let whole: Vec<_> = decoded().epoch(0).blocking().map(Result::unwrap).collect();
    let mut rng = Rng::from_key([seed, 0, 0, 0]);
    let (mut jobs, mut known) = (0, 0);
    let mut seen = vec![false; whole.len()];
    loop {
        jobs += 1;
        let mut job = this_test("processes::killed::a_job");
        let mut job = job
            .env(FILE, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let most = 20 + rng.below(40) as usize;
        // Some more than are waited for, so that it is ended at any moment of those.
        let mut asks = job.stdin.take().unwrap();
        asks.write_all(&vec![0; most + rng.below(6) as usize])
            .unwrap();
        let lines = BufReader::new(job.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let mut steps = lines.filter_map(|line| Some(line.split_once("step: ")?.1.to_owned()));
        let mut who = Vec::new();
        let mut ended = false;
        for _ in 0..most {
            let step = steps.next().expect("it goes on until it is ended");
            ended = step == "end";
            if ended {
                break;
            }
            let (step, by) = step.split_once(" by ").unwrap();
            let (at, batch) = step.split_once(' ').unwrap();
            let at: usize = at.parse().unwrap();
            assert_eq!(batch, format!("{:?}", whole[at]), "job {jobs}, step {at}");
            assert!(!seen[at], "job {jobs}, step {at} came before");
            seen[at] = true;
            who = by.split(' ').map(|pid| pid.parse().unwrap()).collect();
        }
        if ended {
            assert!(job.wait().unwrap().success());
            break;
        }
        // SAFETY: a signal to a child that nobody has waited for.
        unsafe { libc::kill(job.id() as i32, signal) };
        drop(steps);
        assert!(!job.wait().unwrap().success());
        all_gone(&who);
        let left = Checkpoint::load(&path).unwrap().delivered();
        assert!(left as usize >= seen.iter().filter(|seen| **seen).count());
        // What it had saved and did not come to say is not for the next one to say.
        seen[..left as usize].fill(true);
        known += who.len();
    }
    assert!(seen.iter().all(|&seen| seen), "each step comes once");
    assert!(jobs >= 4 && known >= 6, "{jobs} jobs, {known} children");
}

#[test]
fn row_14_a_job_that_is_killed_is_gone_on_with_from_its_file_with_processes() {
    jobs_go_on(libc::SIGKILL, 14);
}

#[test]
fn row_14_a_job_that_is_interrupted_is_gone_on_with_from_its_file_with_processes() {
    jobs_go_on(libc::SIGINT, 140);
    jobs_go_on(libc::SIGTERM, 141);
}
