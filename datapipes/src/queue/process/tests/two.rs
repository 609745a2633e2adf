//! Tests with the ends in two processes, and tests that count resources in a process of their own.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, Rlimit, Signal, kill_process, setrlimit};

use super::{WIDE, ends, mapped, next, noop, runtime, send};
use crate::ErrorKind;
use crate::codec::PAYLOAD;
use crate::queue::Limits;
use crate::queue::process::{ProcessPut, ProcessTake, sockets};
use crate::run::block_on;

/// Variable that is set where such a test is meant to run: a process of its own.
const ALONE: &str = "DATAPIPES_TEST_ALONE";
const MESSAGES: u32 = 500;

/// Starts this executable again, for one of the tests here that are ignored otherwise.
fn start(test: &str, input: Stdio) -> Child {
    let beside = module_path!()
        .strip_prefix("datapipes::")
        .unwrap()
        .strip_suffix("two")
        .unwrap();
    let name = format!("{beside}{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--ignored", "--test-threads=1", "--quiet"]);
    command
        .env(ALONE, test)
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the child, which must have run and passed.
fn passed(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

pub(super) fn alone(test: &str) {
    passed(start(test, Stdio::null()));
}

pub(super) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

fn inherited() -> OwnedFd {
    rustix::stdio::stdin().try_clone_to_owned().unwrap()
}

pub(super) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn payload(i: u32) -> Vec<u8> {
    let mut bytes = vec![i as u8; PAYLOAD + 1000 * (i as usize % 50)];
    bytes[..4].copy_from_slice(&i.to_le_bytes());
    bytes
}

fn put_all(mut put: ProcessPut, messages: u32) {
    for i in 0..messages {
        let Some(room) = block_on(poll_fn(|cx| put.poll_ready(cx))) else {
            return;
        };
        assert!(room <= 8);
        let bytes = payload(i);
        let payloads = vec![&*bytes; i as usize % 4];
        send(&mut put, &i.to_le_bytes(), &payloads).unwrap();
    }
    block_on(poll_fn(|cx| put.poll_flush(cx))).unwrap();
}

/// Takes the messages of `put_all`, and returns their number; some are kept for a while.
fn take_all(take: &mut ProcessTake) -> u32 {
    let mut kept = std::collections::VecDeque::new();
    let mut count = 0u32;
    while let Some(parcel) = next(take) {
        assert_eq!(parcel.head[..4], count.to_le_bytes());
        assert_eq!(parcel.payloads.len(), count as usize % 4);
        assert!(
            parcel.payloads.iter().all(|bytes| *bytes == payload(count)),
            "{count}"
        );
        kept.push_back((count, parcel));
        if kept.len() > 20 {
            let (count, parcel) = kept.pop_front().unwrap();
            assert!(
                parcel.payloads.iter().all(|bytes| *bytes == payload(count)),
                "{count}, kept"
            );
        }
        count += 1;
    }
    count
}

const EIGHT: Limits = Limits {
    items: 8,
    bytes: 1 << 20,
};

#[test]
#[ignore = "started by the tests of two processes"]
fn puts() {
    if is_alone() {
        let runtime = runtime();
        let _inside = runtime.enter();
        put_all(ProcessPut::new(inherited(), EIGHT).unwrap(), MESSAGES);
    }
}

#[test]
#[ignore = "started by the tests of two processes"]
fn puts_without_end() {
    if is_alone() {
        let runtime = runtime();
        let _inside = runtime.enter();
        put_all(ProcessPut::new(inherited(), EIGHT).unwrap(), u32::MAX);
    }
}

#[test]
#[ignore = "started by the tests of two processes"]
fn takes() {
    if is_alone() {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut take = ProcessTake::new(inherited()).unwrap();
        assert_eq!(take_all(&mut take), MESSAGES);
        assert!(take.fault().is_none());
    }
}

#[test]
fn a_child_puts() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (put, take) = sockets().unwrap();
    let child = start("two::puts", put.into());
    let mut take = ProcessTake::new(take).unwrap();
    assert_eq!(take_all(&mut take), MESSAGES);
    assert!(take.fault().is_none(), "{:?}", take.fault());
    passed(child);
}

#[test]
fn a_child_takes() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (put, take) = sockets().unwrap();
    let child = start("two::takes", take.into());
    put_all(ProcessPut::new(put, EIGHT).unwrap(), MESSAGES);
    passed(child);
}

#[test]
fn row_10_a_child_that_is_killed_while_it_sends_leaves_whole_messages_only() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for round in 0..5u32 {
        let (put, take) = sockets().unwrap();
        let mut child = start("two::puts_without_end", put.into());
        let mut take = ProcessTake::new(take).unwrap();
        let first = next(&mut take).unwrap();
        assert_eq!(first.head[..4], [0; 4]);
        let mut last = first;
        for i in 1..50 + round {
            last = next(&mut take).unwrap();
            assert_eq!(last.head[..4], i.to_le_bytes());
        }
        kill_process(rustix::process::Pid::from_child(&child), Signal::KILL).unwrap();
        let mut count = 50 + round;
        while let Some(parcel) = next(&mut take) {
            assert_eq!(parcel.head[..4], count.to_le_bytes());
            assert!(parcel.payloads.iter().all(|bytes| *bytes == payload(count)));
            count += 1;
        }
        assert_eq!(take.fault().unwrap().kind(), ErrorKind::Truncated);
        assert!(
            last.payloads
                .iter()
                .all(|bytes| *bytes == payload(49 + round)),
            "memory outlives the child"
        );
        assert!(!child.wait().unwrap().success());
    }
}

#[test]
fn a_child_that_is_killed_while_it_takes_ends_the_put_end() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (put, take) = sockets().unwrap();
    let mut child = start("two::takes", take.into());
    let mut put = ProcessPut::new(put, EIGHT).unwrap();
    send(&mut put, &0u32.to_le_bytes(), &[]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let bytes = payload(0);
    // Fills the queue until nobody listens.
    while block_on(poll_fn(|cx| put.poll_ready(cx))).is_some() {
        send(&mut put, &[], &[&bytes]).unwrap();
    }
}

#[test]
fn nothing_is_left_over() {
    alone("two::nothing_is_left");
}

#[test]
#[ignore = "started by the test above"]
fn nothing_is_left() {
    if !is_alone() {
        return;
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    drop(ends(WIDE));
    let before = (descriptors(), mapped().len());
    for dropped_first in [false, true] {
        let (mut put, mut take) = ends(WIDE);
        let bytes = vec![1; 3 * PAYLOAD];
        let idle = descriptors();
        for _ in 0..20 {
            send(&mut put, &[], &[&bytes, &bytes]).unwrap();
            assert_eq!(next(&mut take).unwrap().payloads.len(), 2);
        }
        // Two slots, in both ends; and two control pages in each. No descriptor is kept.
        assert_eq!((descriptors(), mapped().len()), (idle, before.1 + 8));
        // Some stay in the queue.
        send(&mut put, &[], &vec![&*bytes; 1100]).unwrap();
        send(&mut put, &[], &[&bytes]).unwrap();
        let kept = next(&mut take).unwrap();
        if dropped_first {
            drop(put);
            drop(take);
        } else {
            drop(take);
            drop(put);
        }
        assert_eq!(descriptors(), before.0);
        // The kept payloads need the control page, for their return.
        assert_eq!(mapped().len(), before.1 + 1100 + 1);
        drop(kept);
        assert_eq!((descriptors(), mapped().len()), before);
    }
}

#[test]
fn row_17_no_shared_memory_is_an_error_and_costs_one_message() {
    alone("two::no_shared_memory");
    alone("two::no_descriptors");
}

#[test]
#[ignore = "started by the test above"]
fn no_shared_memory() {
    if !is_alone() {
        return;
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    setrlimit(
        Resource::Fsize,
        Rlimit {
            current: Some(1 << 20),
            maximum: None,
        },
    )
    .unwrap();
    let (fits, large) = (vec![1; 100_000], vec![2; 2 << 20]);
    let error = send(&mut put, b"lost", &[&fits, &large]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(
        error.to_string().contains("2097152 bytes of shared memory"),
        "{error}"
    );
    assert!(send(&mut put, b"lost", &vec![&*large; 2000]).is_err());
    send(&mut put, b"next", &[&fits]).unwrap();
    let parcel = next(&mut take).unwrap();
    assert!(parcel.head.starts_with(b"next"));
    assert_eq!(parcel.payloads, [fits]);
    assert_eq!(take.held().items, 0);
    // Both slots of the three messages: the lost one returned its slot.
    assert_eq!(mapped().len(), 2 + 4);
}

#[test]
#[ignore = "started by the test above"]
fn no_descriptors() {
    if !is_alone() {
        return;
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    let all = rustix::process::getrlimit(Resource::Nofile);
    let bytes = vec![1; PAYLOAD];
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(0),
            ..all
        },
    )
    .unwrap();
    let error = send(&mut put, b"lost", &[&bytes]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    setrlimit(Resource::Nofile, all).unwrap();
    send(&mut put, b"next", &[&bytes]).unwrap();
    assert_eq!(next(&mut take).unwrap().payloads, [&*bytes]);
    // If the descriptors that were sent find no place here, the queue ends.
    send(&mut put, b"", &[&bytes, &bytes, &bytes]).unwrap();
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(0),
            ..all
        },
    )
    .unwrap();
    assert!(next(&mut take).is_none());
    assert_eq!(take.fault().unwrap().kind(), ErrorKind::Limit);
    assert!(put.poll_ready(&mut noop()).is_ready());
    setrlimit(Resource::Nofile, all).unwrap();
}
