//! Tests with both ends in one process.

mod mean;
mod two;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::{Builder, Runtime};

use super::memory::SLOTS;
use super::packet::INLINE;
use super::{ProcessPut, ProcessTake, TypedPut, TypedTake, sockets};
use crate::codec::{PAYLOAD, Parcel, damaged};
use crate::queue::{Limits, Put, Take, Weight, conformance};
use crate::run::block_on;
use crate::{Error, ErrorKind, Reader, Result, Wire, Writer};
use two::{alone, is_alone};

pub(super) const WIDE: Limits = Limits {
    items: usize::MAX,
    bytes: usize::MAX,
};

pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .unwrap()
}

pub(super) fn ends(limits: Limits) -> (ProcessPut, ProcessTake) {
    let (put, take) = sockets().unwrap();
    (
        ProcessPut::new(put, limits).unwrap(),
        ProcessTake::new(take).unwrap(),
    )
}

pub(super) fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

pub(super) fn send(put: &mut ProcessPut, head: &[u8], payloads: &[&[u8]]) -> Result<()> {
    let mut writer = Writer::new();
    writer.raw(head);
    payloads.iter().for_each(|payload| writer.payload(payload));
    let weight = Weight {
        items: 1,
        bytes: writer.len(),
    };
    put.send(writer, weight)
}

pub(super) fn next(take: &mut ProcessTake) -> Option<Parcel> {
    block_on(poll_fn(|cx| take.poll_parcel(cx)))
}

/// Returns the lines of `/proc/self/maps` that are shared memory of queues, as addresses and
/// rights.
pub(super) fn mapped() -> Vec<(usize, usize, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:datapipes"));
    ours.map(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let address = |hex| usize::from_str_radix(hex, 16).unwrap();
        (address(from), address(to), rest[..4].to_owned())
    })
    .collect()
}

#[test]
fn conforms() {
    let runtime = runtime();
    let _inside = runtime.enter();
    conformance::run(|limits| {
        let (put, take) = sockets().unwrap();
        (
            Box::new(TypedPut::new(put, limits).unwrap()),
            Box::new(TypedTake::new(take).unwrap()),
        )
    });
}

#[test]
fn conforms_on_a_runtime_of_one_thread() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let (mut put, mut take) = ends(Limits {
            items: 2,
            bytes: usize::MAX,
        });
        let puts = async {
            for i in 0..1000u32 {
                assert!(poll_fn(|cx| put.poll_ready(cx)).await.is_some());
                send(&mut put, &i.to_le_bytes(), &[]).unwrap();
            }
            drop(put);
        };
        let takes = async {
            for i in 0..1000u32 {
                let parcel = poll_fn(|cx| take.poll_parcel(cx)).await.unwrap();
                assert_eq!(parcel.head[..], i.to_le_bytes());
            }
            assert!(poll_fn(|cx| take.poll_parcel(cx)).await.is_none());
            assert!(take.fault().is_none());
        };
        futures::future::join(puts, takes).await;
    });
}

#[test]
fn a_payload_lies_in_shared_memory_that_can_be_read_only() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    let sent: Vec<u8> = (0..600_000u32).map(|i| (i % 251) as u8).collect();
    send(&mut put, b"head", &[&sent, b"short"]).unwrap();
    let parcel = next(&mut take).unwrap();
    let mut reader = parcel.reader();
    assert_eq!(reader.raw(4).unwrap(), b"head");
    let large = reader.payload().unwrap();
    assert_eq!(reader.payload().unwrap(), &b"short"[..]);
    reader.end().unwrap();

    assert_eq!(large, sent);
    let start = large.as_ptr() as usize;
    assert_eq!(start % rustix::param::page_size(), 0);
    let (from, to, rights) = mapped()
        .into_iter()
        .find(|&(from, to, _)| from <= start && start < to)
        .unwrap();
    assert!(
        start + large.len() <= to && from <= start,
        "all of it is in one mapping"
    );
    assert_eq!(rights, "r--s");

    // The memory is there as long as it is held, even after the queue is gone.
    drop((put, take, parcel));
    let part = large.slice(1000..);
    drop(large);
    assert_eq!(part, &sent[1000..]);
}

#[test]
fn a_slot_is_used_again_when_the_last_clone_is_dropped() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    let mut place = |fill: u8| {
        send(&mut put, &[], &[&vec![fill; 100_000]]).unwrap();
        next(&mut take).unwrap().payloads.remove(0)
    };
    let first = place(1);
    let clone = first.slice(10..20);
    let second = place(2);
    assert_ne!(first.as_ptr(), second.as_ptr());
    let at = first.as_ptr();
    drop(first);
    let third = place(3);
    assert_eq!(
        clone,
        &[1; 10][..],
        "it is not written over while it is held"
    );
    assert_ne!(third.as_ptr(), at);
    drop(clone);
    assert_eq!(place(4).as_ptr(), at);
    assert_eq!((second[0], third[0]), (2, 3));
}

#[test]
fn a_thousand_payloads_in_a_message_and_more_kept_than_there_are_slots() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(Limits {
        items: 1,
        bytes: 1 << 20,
    });
    let mut bytes = vec![0; PAYLOAD];
    let mut kept = Vec::new();
    for round in 0..3u32 {
        // One message always fits.
        assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(Some(1)));
        bytes[..4].copy_from_slice(&round.to_le_bytes());
        send(&mut put, b"many", &vec![&*bytes; 1000]).unwrap();
        let parcel = next(&mut take).unwrap();
        assert_eq!(parcel.payloads.len(), 1000);
        kept.extend(parcel.payloads);
    }
    assert!(kept.len() > SLOTS);
    for (place, payload) in kept.iter().enumerate() {
        assert_eq!(payload[..4], (place as u32 / 1000).to_le_bytes());
    }
    // After their return, the numbered slots are used again; those that are used once are gone.
    kept.clear();
    send(&mut put, &[], &vec![&*bytes; 1000]).unwrap();
    assert_eq!(next(&mut take).unwrap().payloads.len(), 1000);
    drop(put);
    assert!(next(&mut take).is_none());
    assert!(take.fault().is_none());
}

#[test]
fn what_the_socket_does_not_take_waits_and_a_long_head_travels_in_a_slot() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    let head = |i: usize| vec![i as u8; if i % 10 == 9 { 3 * INLINE } else { INLINE - i }];
    for i in 0..40 {
        send(&mut put, &head(i), &[]).unwrap();
    }
    assert!(put.poll_ready(&mut noop()).is_pending());
    assert!(put.poll_flush(&mut noop()).is_pending());
    assert_eq!(take.held().items, 40);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(poll_fn(|cx| put.poll_flush(cx))).unwrap();
            drop(put);
        });
        for i in 0..40 {
            assert!(next(&mut take).unwrap().head == head(i), "{i}");
        }
        assert!(next(&mut take).is_none());
    });
    assert!(take.fault().is_none());
}

#[test]
fn a_put_end_that_is_dropped_before_all_is_flushed_is_a_fault() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    (0..40).for_each(|_| send(&mut put, &[1; INLINE], &[]).unwrap());
    drop(put);
    let taken = std::iter::from_fn(|| next(&mut take)).count();
    assert!((1..40).contains(&taken), "{taken}");
    assert_eq!(take.fault().unwrap().kind(), ErrorKind::Truncated);
}

#[test]
fn what_the_put_end_has_not_read_costs_nothing_that_it_put() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(Limits {
        items: 1,
        bytes: usize::MAX,
    });
    send(&mut put, b"0", &[]).unwrap();
    assert!(put.poll_ready(&mut noop()).is_pending());
    // This reports that there is room. The other end does not read it, which the system turns into
    // an error on this side.
    // error on this side.
    assert_eq!(next(&mut take).unwrap().head[..], b"0"[..]);
    send(&mut put, b"1", &[&[1; PAYLOAD]]).unwrap();
    drop(put);
    assert_eq!(next(&mut take).unwrap().payloads, [&[1; PAYLOAD][..]]);
    assert!(next(&mut take).is_none());
    assert!(take.fault().is_none(), "{:?}", take.fault());
}

#[test]
fn a_runtime_that_ends_before_the_queue_is_a_fault_at_both_ends() {
    let runtime = runtime();
    let (mut put, mut take) = runtime.block_on(async {
        ends(Limits {
            items: 1,
            bytes: usize::MAX,
        })
    });
    send(&mut put, b"0", &[]).unwrap();
    assert!(put.poll_ready(&mut noop()).is_pending());
    drop(runtime);
    assert_eq!(put.poll_ready(&mut noop()), Poll::Ready(None));
    assert_eq!(put.fault().unwrap().kind(), ErrorKind::Io);
    assert_eq!(next(&mut take).unwrap().head[..], b"0"[..]);
    assert!(next(&mut take).is_none());
    assert!(take.fault().is_some());
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn half_a_queue_of_room_wakes_and_less_does_not() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for limits in [
        Limits {
            items: 8,
            bytes: usize::MAX,
        },
        Limits {
            items: usize::MAX,
            bytes: 8,
        },
    ] {
        let (mut put, mut take) = ends(limits);
        let one = Weight { items: 1, bytes: 1 };
        (0..8).for_each(|_| put.send(Writer::new(), one).unwrap());
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        assert!(
            put.poll_ready(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let before = put.own.wake_at.items.load(Ordering::Relaxed);
        let needed = if limits.items == 8 { before } else { 1 };
        for taken in 1..=needed {
            assert_eq!(take.woken, 0, "{taken}");
            assert!(next(&mut take).is_some());
        }
        assert_eq!(
            (take.woken, put.own.waits.0.load(Ordering::Relaxed)),
            (1, 1)
        );
        while count.0.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(
            put.poll_ready(&mut noop()).map(|room| room.is_some()),
            Poll::Ready(true)
        );
    }
}

#[test]
fn who_waits_is_polled_no_more_than_it_is_woken() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(Limits {
        items: 16,
        bytes: usize::MAX,
    });
    let polls = std::thread::scope(|scope| {
        let puts = scope.spawn(move || {
            let mut polls = 0;
            for _ in 0..4000 {
                let ready = poll_fn(|cx| {
                    polls += 1;
                    put.poll_ready(cx)
                });
                assert!(block_on(ready).is_some());
                send(&mut put, &[], &[]).unwrap();
            }
            polls
        });
        assert_eq!(std::iter::from_fn(|| next(&mut take)).count(), 4000);
        puts.join().unwrap()
    });
    // One poll if there is room; two if it has to wait, for half of the queue or more.
    assert!(polls <= 4000 + 2 * 4000 / 8, "{polls}");
}

/// Returns the shared mappings that can be written to.
fn writable() -> Vec<(usize, usize)> {
    let rights =
        |(from, to, rights): (usize, usize, String)| (rights == "rw-s").then_some((from, to));
    mapped().into_iter().filter_map(rights).collect()
}

#[test]
fn what_was_put_can_be_written_to_by_nobody() {
    alone("what_was_put_is_read_only");
}

#[test]
#[ignore = "started by the test above"]
fn what_was_put_is_read_only() {
    if !is_alone() {
        return;
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(WIDE);
    let pages = writable();
    assert_eq!(pages.len(), 2, "each end its own");
    let mut kept = Vec::new();
    for round in 0..40u8 {
        // New slots and returned ones; in the end more than there are numbers.
        let bytes = vec![round; PAYLOAD + 9 * usize::from(round)];
        send(&mut put, &[], &vec![&*bytes; 40]).unwrap();
        let payloads = next(&mut take).unwrap().payloads;
        kept.extend(
            payloads
                .into_iter()
                .take(30)
                .map(|payload| (round, payload)),
        );
        assert_eq!(writable(), pages);
        // The data that an end may write does not mark memory as free.
        put.own.put.messages.store(u64::MAX, Ordering::Relaxed);
        put.own.wake_at.messages.store(u64::MAX, Ordering::Relaxed);
        put.own.waits.0.store(0xa5, Ordering::Relaxed);
    }
    assert!(kept.len() > SLOTS);
    assert!(
        kept.iter()
            .all(|(round, payload)| payload.iter().all(|byte| byte == round))
    );
}

#[test]
fn who_waits_is_woken_whatever_its_page_says() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (mut put, mut take) = ends(Limits {
        items: 2,
        bytes: usize::MAX,
    });
    (0..2).for_each(|_| send(&mut put, &[], &[]).unwrap());
    assert!(put.poll_ready(&mut noop()).is_pending());
    put.own.wake_at.messages.store(u64::MAX, Ordering::Relaxed);
    put.own.wake_at.items.store(u64::MAX, Ordering::Relaxed);
    assert!(next(&mut take).is_some() && next(&mut take).is_some());
    assert!(take.poll_parcel(&mut noop()).is_pending());
    assert_eq!(take.woken, 1);
}

/// A value that cannot be encoded, or not decoded.
#[derive(Debug)]
struct Broken(bool);

impl Wire for Broken {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[1]);
        if self.0 {
            Err(Error::unsupported("a door"))
        } else {
            Ok(())
        }
    }
    fn decode(_: &mut Reader<'_>) -> Result<Self> {
        Err(damaged("a hinge"))
    }
}

#[test]
fn a_value_that_cannot_be_written_or_read_ends_the_queue_with_a_fault() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for (value, says) in [(Broken(true), "a door"), (Broken(false), "a hinge")] {
        let (put, take) = sockets().unwrap();
        let (mut put, mut take) = (
            TypedPut::new(put, WIDE).unwrap(),
            TypedTake::<Broken>::new(take).unwrap(),
        );
        put.put(value, Weight { items: 1, bytes: 1 });
        assert!(block_on(poll_fn(|cx| take.poll_take(cx))).is_none());
        let fault = take.fault().unwrap();
        assert!(
            fault.kind() == ErrorKind::Protocol && fault.to_string().contains(says),
            "{fault}"
        );
        assert_eq!(block_on(poll_fn(|cx| put.poll_ready(cx))), None);
    }
}
