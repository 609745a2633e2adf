//! Tests of ends whose other end misbehaves.

use std::cell::Cell;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::task::Poll;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::two::{alone, descriptors, is_alone};
use super::{WIDE, ends, mapped, next, noop, runtime, send as send_message};
use crate::ErrorKind;
use crate::codec::PAYLOAD;
use crate::queue::process::memfd::Memfd;
use crate::queue::process::memory::PAGE;
use crate::queue::process::packet::{FDS, LONGEST, ONCE, Packet, SlotPart};
use crate::queue::process::{ProcessPut, ProcessTake, greeted, socket, sockets};
use crate::queue::{Limits, Weight};

/// Sends the given bytes; the socket's buffer may be full.
fn say(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let _ = sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    );
}

#[derive(Clone, Copy, Debug)]
enum Fd {
    Good,
    Pipe,
    File,
    Unsealed,
    Holes,
    Socket,
}

impl Fd {
    fn make(self) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        match self {
            Fd::Good => Memfd::new(PAYLOAD).unwrap().into_fd(),
            Fd::Pipe => rustix::pipe::pipe().unwrap().0,
            Fd::File => std::fs::File::open("/proc/self/exe").unwrap().into(),
            Fd::Socket => socket::pair().unwrap().0,
            Fd::Unsealed | Fd::Holes => {
                let fd = memfd_create("datapipes-mean", flags).unwrap();
                ftruncate(&fd, PAYLOAD as u64).unwrap();
                if let Fd::Holes = self {
                    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
                        .unwrap();
                }
                fd
            }
        }
    }
}

/// Makes a packet that is nearly valid in most cases.
fn packet() -> impl Strategy<Value = (Vec<u8>, Vec<Fd>)> {
    let slot = prop_oneof![9 => 0usize..2, 1 => 2usize..4, 1 => Just(ONCE), 1 => Just(ONCE - 1)];
    let len = prop_oneof![9 => Just(PAYLOAD), 1 => 0..3 * PAYLOAD, 1 => Just(usize::MAX)];
    let part = (slot.clone(), len).prop_map(|(slot, len)| SlotPart { slot, len });
    let parts = prop::collection::vec(part, 0..3);
    let count = prop_oneof![Just(0), 0..9usize, Just(usize::MAX)];
    let said = prop_oneof![
        3 => parts.clone().prop_map(|parts| Packet::slots(&parts)),
        1 => parts.clone().prop_map(|parts| Packet::parts(&parts)),
        9 => (count.clone(), count, prop::bool::weighted(0.2), parts).prop_map(|(items, bytes, far, parts)| {
            let mut packet = Packet::data(Weight { items, bytes }, far, &parts);
            packet.extend_from_slice(if far { b"" } else { b"head" });
            packet
        }),
        1 => slot.prop_map(Packet::retire),
        1 => Just(Packet::abort().to_vec()),
        1 => Just(Packet::failed("on purpose")),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1u8..10, prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(kind, mut bytes)| {
            bytes.insert(0, kind);
            bytes
        }),
    ];
    let fd = prop_oneof![
        12 => Just(Fd::Good),
        1 => Just(Fd::Pipe),
        1 => Just(Fd::File),
        1 => Just(Fd::Unsealed),
        1 => Just(Fd::Holes),
        1 => Just(Fd::Socket),
    ];
    // In most cases as many as are announced.
    (
        said,
        prop::collection::vec(fd, 40),
        prop_oneof![9 => Just(None), 1 => (0..40usize).prop_map(Some)],
    )
        .prop_map(|(said, mut fds, other)| {
            let right = match Packet::decode(&said) {
                Ok(Packet::Slots(slots)) => slots.len(),
                _ => 0,
            };
            fds.truncate(other.unwrap_or(right));
            (said, fds)
        })
}

#[test]
fn row_10_garbage_from_a_process_is_a_fault_and_leaves_nothing_behind() {
    alone("mean::garbage");
}

#[test]
#[ignore = "started by the test above"]
fn garbage() {
    if !is_alone() {
        return;
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    drop(ends(WIDE));
    let before = (descriptors(), mapped().len());
    let (faults, payloads) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config {
        cases: 1500,
        failure_persistence: None,
        ..Config::default()
    });
    let packets = prop::collection::vec(packet(), 1..8);
    let tested = runner.run(&packets, |packets| {
        let (put, take) = sockets().unwrap();
        let mut take = ProcessTake::new(take).unwrap();
        let mut kept = Vec::new();
        let begin = Packet::slots(&[0, 1].map(|slot| SlotPart { slot, len: PAYLOAD }));
        for (bytes, fds) in [(begin, vec![Fd::Good; 2])].into_iter().chain(packets) {
            let fds: Vec<OwnedFd> = fds.into_iter().map(Fd::make).collect();
            say(&put, &bytes, &fds);
            while let Poll::Ready(Some(parcel)) = take.poll_parcel(&mut noop()) {
                // Everything that was received can be read.
                assert!(
                    parcel
                        .payloads
                        .iter()
                        .all(|bytes| bytes.iter().all(|&byte| byte == 0))
                );
                payloads.set(payloads.get() + parcel.payloads.len());
                kept.push(parcel);
            }
            kept.truncate(2);
        }
        drop(put);
        prop_assert!(next(&mut take).is_none());
        // The random packets may include the one that ends the stream.
        if let Some(fault) = take.fault() {
            prop_assert!(
                matches!(fault.kind(), ErrorKind::Protocol | ErrorKind::Truncated),
                "{fault}"
            );
            faults.set(faults.get() + usize::from(!fault.to_string().contains("without a word")));
        }
        drop((take, kept));
        prop_assert_eq!((descriptors(), mapped().len()), before);
        Ok(())
    });
    tested.unwrap();
    // The cases reach what they are meant for.
    let (faults, payloads) = (faults.get(), payloads.get());
    assert!(
        faults > 100 && payloads > 100,
        "{faults} faults, {payloads} payloads"
    );
}

#[test]
fn row_10_each_wrong_packet_is_named() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let part = |slot, len| SlotPart { slot, len };
    let data = |parts: &[SlotPart]| Packet::data(Weight::default(), false, parts);
    let slots = |parts: &[SlotPart]| Packet::slots(parts);
    type Said = Vec<(Vec<u8>, Vec<Fd>)>;
    let cases: Vec<(Said, &str)> = vec![
        (vec![(vec![77], vec![])], "77 is no kind of packet"),
        (vec![(vec![8, 0], vec![])], "1 bytes and 0 slices too many"),
        (vec![(vec![8], vec![])], ""),
        (vec![(vec![7], vec![])], "makes no sense here"),
        (
            vec![(vec![0; LONGEST + 1], vec![])],
            "a packet of more than 32768 bytes",
        ),
        (
            vec![(vec![8], vec![Fd::Pipe])],
            "1 descriptors instead of 0",
        ),
        (
            vec![(vec![8], vec![Fd::Pipe; FDS + 8])],
            "more than 32 descriptors",
        ),
        (
            vec![(slots(&[part(0, PAYLOAD)]), vec![])],
            "0 descriptors instead of 1",
        ),
        (
            vec![(slots(&[part(0, PAYLOAD)]), vec![Fd::Pipe])],
            "not of shared memory",
        ),
        (
            vec![(slots(&[part(0, PAYLOAD)]), vec![Fd::File])],
            "not of shared memory",
        ),
        (
            vec![(slots(&[part(0, PAYLOAD)]), vec![Fd::Unsealed])],
            "size may change",
        ),
        (
            vec![(slots(&[part(0, PAYLOAD)]), vec![Fd::Holes])],
            "65536 bytes, 0 of them allocated",
        ),
        (
            vec![(slots(&[part(0, 2 * PAYLOAD)]), vec![Fd::Good])],
            "instead of 131072",
        ),
        (
            vec![(slots(&[part(ONCE + 1, PAYLOAD)]), vec![Fd::Good])],
            "slot 1025 of 1024",
        ),
        (
            vec![(slots(&[part(0, PAYLOAD); 2]), vec![Fd::Good; 2])],
            "slot 0 twice",
        ),
        (vec![(data(&[part(3, 10)]), vec![])], "slot 3 is not there"),
        (
            vec![(data(&[part(ONCE, 10)]), vec![])],
            "a payload that did not come",
        ),
        (
            vec![
                (slots(&[part(0, PAYLOAD)]), vec![Fd::Good]),
                (data(&[part(0, PAYLOAD + 1)]), vec![]),
            ],
            "65537 bytes in a slot of 65536",
        ),
        (
            vec![
                (slots(&[part(0, PAYLOAD)]), vec![Fd::Good]),
                (data(&[part(0, 1), part(0, 1)]), vec![]),
            ],
            "slot 0 is in use",
        ),
        (
            vec![
                (slots(&[part(ONCE, PAYLOAD)]), vec![Fd::Good]),
                (data(&[]), vec![]),
            ],
            "1 payloads of no message",
        ),
        (
            vec![(slots(&[part(ONCE, PAYLOAD)]), vec![Fd::Good])],
            "in the middle of a message",
        ),
        (
            vec![(Packet::data(Weight::default(), true, &[]), vec![])],
            "two heads, or none",
        ),
        (vec![(Packet::retire(0), vec![])], "slot 0 is not there"),
        (
            vec![(Packet::failed("no more disks"), vec![])],
            "no more disks",
        ),
        (vec![(vec![], vec![])], "ended without a word"),
    ];
    for (packets, says) in cases {
        let (put, take) = sockets().unwrap();
        let mut take = ProcessTake::new(take).unwrap();
        for (bytes, fds) in &packets {
            say(
                &put,
                bytes,
                &fds.iter().map(|fd| fd.make()).collect::<Vec<_>>(),
            );
        }
        drop(put);
        assert!(next(&mut take).is_none(), "{says}");
        match take.fault() {
            Some(fault) => assert!(
                !says.is_empty() && fault.to_string().contains(says),
                "{fault}: {says}"
            ),
            None => assert_eq!(says, ""),
        }
    }
}

#[test]
fn row_10_a_control_page_full_of_garbage_costs_nothing_else() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let bytes = vec![1; PAYLOAD];
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let number = || prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    let writes = prop::collection::vec(
        (number(), number(), number(), any::<u32>(), 0..64usize),
        1..10,
    );
    let limits = Limits {
        items: 3,
        bytes: 3 * PAYLOAD,
    };
    let tested = runner.run(&writes, |writes| {
        let (mut put, mut take) = ends(limits);
        let page = take.own.clone();
        for (messages, items, total, word, slot) in writes {
            for counters in [&put.own.put, &put.own.wake_at, &page.taken] {
                counters.messages.store(messages, Ordering::Relaxed);
                counters.items.store(items, Ordering::Relaxed);
                counters.bytes.store(total, Ordering::Relaxed);
            }
            put.own.waits.0.store(word, Ordering::Relaxed);
            page.given_back[slot].store(word, Ordering::Relaxed);
            if let Poll::Ready(Some(room)) = put.poll_ready(&mut noop()) {
                prop_assert!((1..=3).contains(&room));
            }
            send_message(&mut put, b"head", &[&bytes]).unwrap();
            let _ = take.held();
            match take.poll_parcel(&mut noop()) {
                Poll::Ready(Some(parcel)) => prop_assert_eq!(parcel.payloads, [&*bytes]),
                Poll::Ready(None) => prop_assert!(take.fault().is_some()),
                Poll::Pending => (),
            }
        }
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn a_put_end_hears_anything_and_ends_with_its_peer() {
    let runtime = runtime();
    let _inside = runtime.enter();
    for said in [&[7; 1][..], &[], &[0; 100], &[1; 8]] {
        let (put, take) = sockets().unwrap();
        let mut put = ProcessPut::new(put, Limits { items: 1, bytes: 1 }).unwrap();
        send_message(&mut put, b"fills it", &[]).unwrap();
        for _ in 0..100 {
            say(&take, said, &[]);
        }
        say(&take, said, &[Fd::Pipe.make()]);
        let _ = put.poll_ready(&mut noop());
        drop(take);
        assert_eq!(
            crate::run::block_on(std::future::poll_fn(|cx| put.poll_ready(cx))),
            None
        );
        send_message(&mut put, b"nobody takes it", &[]).unwrap();
    }
}

#[test]
fn a_socket_that_is_no_end_of_a_queue_is_refused() {
    let runtime = runtime();
    let _inside = runtime.enter();
    let (silent, _other) = socket::pair().unwrap();
    assert!(ProcessTake::new(silent).is_err());
    assert!(ProcessPut::new(rustix::pipe::pipe().unwrap().0, WIDE).is_err());
    for (said, fds) in [
        (&Packet::hello()[..], vec![]),
        (&Packet::hello()[..], vec![Fd::Good]),
        (&Packet::hello()[..], vec![Fd::Good; 3]),
        (&Packet::hello()[..], vec![Fd::Good, Fd::Holes]),
        (&Packet::hello()[..], vec![Fd::Pipe, Fd::Good]),
        (&Packet::end()[..], vec![Fd::Good; 2]),
        (&[99][..], vec![]),
    ] {
        let (ours, other) = socket::pair().unwrap();
        say(
            &other,
            said,
            &fds.iter().map(|fd| fd.make()).collect::<Vec<_>>(),
        );
        assert!(greeted(&ours).is_err(), "{said:?} {fds:?}");
    }
    assert_eq!(PAYLOAD, PAGE, "what was sent would have been pages");
}
