//! Limits and deaths of real processes: this test binary runs again, and a variable names the test.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, kill_process, kill_process_group, test_kill_process};
use rustix::thread::no_new_privs;

use super::*;

#[cfg(feature = "isolation")]
mod restricted;

/// Variable that names the test.
const ROLE: &str = "DATAPIPES_TEST_CHILD";
/// Exit code of a successful child; a run of no test at all ends with 0.
const GOOD: i32 = 42;
/// Greatest time that a test waits for anything.
const TIMEOUT: Duration = Duration::from_secs(20);

fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "run::child::isolate::tests::child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role)
        .stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> (Output, String) {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&[&output.stdout[..], b"\n", &output.stderr].concat()).into_owned();
    (output, text)
}

#[track_caller]
fn sees_what_it_should(command: Command) {
    let (output, text) = output(command);
    assert_eq!(
        output.status.code(),
        Some(GOOD),
        "{}: {text}",
        output.status
    );
}

#[test]
#[ignore = "what the other tests start"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match role.as_str() {
        "limits" => limits(),
        "memory" => memory(),
        "cpus" => cpus(),
        "environment" => environment_is_clean(),
        "feature" => {
            let error = apply(&Processes::new(1).no_network()).unwrap_err();
            assert!(error.message().contains("built without it"), "{error}");
        }
        "orphan" => die_with(Pid::INIT).unwrap(),
        "parent" => parent(),
        "adopting" => adopting(),
        "worker" => worker(),
        "idle" => idle(),
        #[cfg(feature = "isolation")]
        role => restricted::restricted(role),
        #[cfg(not(feature = "isolation"))]
        role => panic!("{role}"),
    }
    std::process::exit(GOOD);
}

/// Does nothing until it is killed; ends by itself if it is not.
fn idle() {
    let (_sender, receiver) = mpsc::channel::<()>();
    let _ = receiver.recv_timeout(4 * TIMEOUT);
}

#[test]
fn limits_are_as_they_were_asked_for() {
    sees_what_it_should(again("limits"));
}

fn limits() {
    let nice = (getpriority_process(None).unwrap() + 3).min(19);
    let first = (0..CpuSet::MAX_CPU)
        .find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu))
        .unwrap();
    apply(&Processes::new(1).nice(nice).cpus([first]).memory(1 << 30)).unwrap();
    let check = move || {
        assert_eq!(getpriority_process(None).unwrap(), nice);
        let cpus = sched_getaffinity(None).unwrap();
        assert!(cpus.count() == 1 && cpus.is_set(first), "{cpus:?}");
        assert!(no_new_privs().unwrap());
    };
    check();
    std::thread::spawn(check).join().unwrap();
    assert_eq!(getrlimit(Resource::Core).maximum, Some(1));
    assert_eq!(getrlimit(Resource::Data).maximum, Some(1 << 30));
    assert_eq!(
        fs::read_to_string("/proc/self/oom_score_adj").unwrap(),
        "1000\n"
    );
}

#[test]
fn cpus_that_are_not_there_are_an_error() {
    sees_what_it_should(again("cpus"));
}

fn cpus() {
    let ours = sched_getaffinity(None).unwrap();
    let (first, none) = (
        (0..1024).find(|cpu| ours.is_set(*cpu)),
        (0..1024).rfind(|cpu| !ours.is_set(*cpu)),
    );
    for cpus in [
        vec![none.unwrap()],
        vec![first.unwrap(), none.unwrap()],
        vec![CpuSet::MAX_CPU],
    ] {
        let error = apply(&Processes::new(1).cpus(cpus)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Worker);
        assert!(
            error
                .message()
                .starts_with("a process cannot be given the set of CPUs: "),
            "{error}"
        );
    }
}

#[test]
fn row_7_an_allocation_beyond_the_limit_ends_the_child_only() {
    let (output, text) = output(again("memory"));
    assert_eq!(output.status.signal(), Some(6), "{}: {text}", output.status);
    assert!(!output.status.core_dumped());
    assert!(text.contains("96 MiB fit"), "{text}");
    assert!(
        text.contains("memory allocation of 268435456 bytes failed"),
        "{text}"
    );
}

fn memory() {
    apply(&Processes::new(1).memory(256 << 20)).unwrap();
    let fits = std::hint::black_box(vec![1u8; 96 << 20]);
    println!("{} MiB fit", fits.len() >> 20);
    let larger = std::hint::black_box(vec![1u8; 256 << 20]);
    println!("{} MiB fit", larger.len() >> 20);
}

#[test]
fn the_environment_is_what_was_kept() {
    let processes = Processes::new(1).only_env(["DATAPIPES_TEST_KEPT", "DATAPIPES_TEST_NOT_SET"]);
    let mut command = again("environment");
    // The variable comes from the parent; setting it in this process would disturb other tests.
    command.env("DATAPIPES_TEST_SECRET", "1");
    environment(&processes, &mut command);
    let set: Vec<_> = command
        .get_envs()
        .map(|(name, _)| name.to_os_string())
        .collect();
    assert!(set.iter().all(|name| name == "LD_LIBRARY_PATH"), "{set:?}");
    command.env(ROLE, "environment");
    sees_what_it_should(command);

    let mut command = again("environment");
    environment(&Processes::new(1), &mut command);
    let (output, text) = output(command);
    assert_eq!(
        output.status.code(),
        Some(101),
        "PATH is there where nothing was said: {text}"
    );
}

fn environment_is_clean() {
    let names: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    assert!(
        names
            .iter()
            .all(|name| name == ROLE || name == "LD_LIBRARY_PATH"),
        "{names:?}"
    );
}

#[test]
fn a_variable_that_is_kept_has_its_value() {
    let mut command = Command::new("/none");
    environment(&Processes::new(1).only_env(["PATH"]), &mut command);
    let path = command
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, value)| value);
    assert_eq!(path, std::env::var_os("PATH").as_deref());
}

#[cfg(not(feature = "isolation"))]
#[test]
fn without_the_feature_nothing_is_left_unlimited_in_silence() {
    sees_what_it_should(again("feature"));
}

#[test]
fn row_13_a_child_whose_parent_is_gone_ends_before_it_begins() {
    let mut command = again("orphan");
    let (output, text) = output({
        command.env("RUST_BACKTRACE", "0");
        command
    });
    assert_eq!(output.status.code(), Some(1), "{text}");
}

/// A parent, its child and its grandchild; the arguments give the child's condition when the parent
/// is killed.
struct Family {
    /// The parent, or the process that started it and adopts its orphans.
    started: Child,
    parent: Pid,
    worker: (Pid, OwnedFd),
    grandchild: (Pid, OwnedFd),
    /// Another process that holds the other end of the lifeline.
    holder: Option<Pid>,
}

impl Family {
    fn of(worker: &str) -> Option<Family> {
        let role = if worker == "stopped, adopted" {
            "adopting"
        } else {
            "parent"
        };
        let mut started = again(role)
            .env("WORKER", worker)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pids = Vec::new();
        for line in BufReader::new(started.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some((_, found)) = line.split_once("pids ") {
                pids.extend(
                    found
                        .split(' ')
                        .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()),
                );
                break;
            }
        }
        let &[parent, worker, grandchild, ref holder @ ..] = pids.as_slice() else {
            panic!("{pids:?}")
        };
        let watched = |pid: Pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        let (Some(worker), Some(grandchild)) = (watched(worker), watched(grandchild)) else {
            println!("skipped: no descriptors of processes here");
            let _ = (
                kill_process_group(worker, Signal::KILL),
                started.kill(),
                started.wait(),
            );
            return None;
        };
        Some(Family {
            started,
            parent,
            worker,
            grandchild,
            holder: holder.first().copied(),
        })
    }

    /// Kills the parent and checks that the others end.
    fn dies_with_its_parent(mut self) {
        assert!(
            !ended(&self.worker.1, Duration::ZERO) && !ended(&self.grandchild.1, Duration::ZERO)
        );
        let begun = Instant::now();
        kill_process(self.parent, Signal::KILL).unwrap();
        let (worker, grandchild) = (
            ended(&self.worker.1, TIMEOUT),
            ended(&self.grandchild.1, TIMEOUT),
        );
        println!("gone after {:?}", begun.elapsed());
        if let Some(holder) = self.holder {
            test_kill_process(holder).expect("it held the lifeline until now");
            kill_process(holder, Signal::KILL).unwrap();
        }
        let _ = kill_process_group(self.worker.0, Signal::KILL);
        let _ = (self.started.kill(), self.started.wait());
        assert!(worker, "the child lives on");
        assert!(grandchild, "the grandchild lives on");
    }
}

fn dies_with_its_parent(worker: &str) {
    if let Some(family) = Family::of(worker) {
        family.dies_with_its_parent();
    }
}

fn ended(pidfd: &OwnedFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout.try_into().unwrap())).unwrap() == 1
}

/// Adopts the orphans of its child, as a service manager of the same session would.
fn adopting() {
    rustix::process::set_child_subreaper(Some(getpid())).unwrap();
    let mut parent = again("parent").spawn().unwrap();
    parent.wait().unwrap();
    idle();
}

#[expect(clippy::zombie_processes, reason = "it is killed meanwhile")]
fn parent() {
    let mut command = again("worker");
    command
        .env("PARENT", std::process::id().to_string())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut worker = command.spawn().unwrap();
    let mut holder = String::new();
    if std::env::var("WORKER").unwrap() == "lifeline held" {
        let end = OwnedFd::from(worker.stdin.take().unwrap());
        let process = again("idle")
            .process_group(0)
            .stdin(end.try_clone().unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        holder = format!(" {}", process.id());
        std::mem::forget((end, process));
    }
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
    let line = lines
        .find_map(|line| Some(line.unwrap().split_once("family ")?.1.to_owned()))
        .unwrap();
    if std::env::var("WORKER").unwrap().starts_with("stopped") {
        let stat = format!("/proc/{}/stat", worker.id());
        let begun = Instant::now();
        while !fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(begun.elapsed() < TIMEOUT, "not stopped");
            std::thread::yield_now();
        }
    }
    println!("\npids {} {line}{holder}", std::process::id());
    if std::env::var("WORKER").unwrap() == "let go" {
        drop(worker.stdin.take());
    }
    idle();
}

#[expect(clippy::zombie_processes, reason = "it is killed meanwhile")]
fn worker() {
    let parent = std::env::var("PARENT").unwrap().parse().unwrap();
    die_with(Pid::from_raw(parent).unwrap()).unwrap();
    let mode = std::env::var("WORKER").unwrap();
    let processes = match cfg!(feature = "isolation") && mode == "restricted" {
        true => Processes::new(1).no_network(),
        false => Processes::new(1),
    };
    apply(&processes).unwrap();
    watch(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
    let grandchild = again("idle").stdout(Stdio::null()).spawn().unwrap();
    println!("\nfamily {} {}", std::process::id(), grandchild.id());
    match mode.as_str() {
        "stopped" | "stopped, adopted" => kill_process(getpid(), Signal::STOP).unwrap(),
        _ => {
            // Behaves like native code that never returns.
            let begun = Instant::now();
            while std::hint::black_box(begun.elapsed()) < 4 * TIMEOUT {}
        }
    }
    idle();
}

#[test]
fn row_13_a_child_that_computes_ends_with_its_parent_and_row_12_so_do_grandchildren() {
    dies_with_its_parent("computing");
}

#[test]
fn row_13_a_child_that_is_stopped_ends_with_its_parent_and_so_do_grandchildren() {
    dies_with_its_parent("stopped");
}

/// Outside this test, the kernel wakes a stopped process in a group that has no parent left in its
/// session.
#[test]
fn row_13_a_child_that_is_stopped_and_adopted_ends_with_its_parent() {
    dies_with_its_parent("stopped, adopted");
}

#[test]
fn row_13_a_child_whose_lifeline_another_holds_ends_with_its_parent() {
    dies_with_its_parent("lifeline held");
}

#[cfg(feature = "isolation")]
#[test]
fn row_13_a_restricted_child_ends_with_its_parent() {
    dies_with_its_parent("restricted");
}

#[test]
fn row_12_a_child_that_is_let_go_ends_with_its_grandchildren() {
    let Some(mut family) = Family::of("let go") else {
        return;
    };
    let gone = ended(&family.worker.1, TIMEOUT) && ended(&family.grandchild.1, TIMEOUT);
    family.started.kill().unwrap();
    family.started.wait().unwrap();
    assert!(gone);
}
