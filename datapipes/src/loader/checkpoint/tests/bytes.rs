//! Bytes that are no checkpoint, or a damaged one, are refused.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::checkpoint::InputCursor;
use crate::stable_hash;
use crate::{DataLoader, ErrorKind, Graph, Uneven, Writer};

fn some_state() -> Checkpoint {
    let graph = Graph::range(0..60)
        .filter(|n| n % 7 != 0)
        .shuffle(9)
        .flat_map(|n| vec![n; 3])
        .batch(4);
    let loader = DataLoader::builder(graph)
        .seed(3)
        .workers(0)
        .resumable()
        .build()
        .unwrap();
    let mut epoch = loader.epoch(2).blocking();
    assert_eq!(epoch.by_ref().take(11).count(), 11);
    epoch.checkpoint().unwrap()
}

/// Generates any checkpoint that could have been written.
fn states() -> impl Strategy<Value = Checkpoint> {
    let far = 0..1u64 << 40;
    let input = (far.clone(), vec(far.clone(), 0..6)).prop_map(|(some, mut held)| {
        held.sort_unstable();
        held.dedup();
        let from = held.last().map_or(0, |last| last + 1) + some;
        InputCursor {
            from,
            reach: held.first().copied().unwrap_or(from),
            held,
        }
    });
    let cursor = (
        vec(far.clone(), 1..4),
        vec(input, 0..3),
        vec(any::<u8>(), 0..20),
        vec((0..99u64, 0..99u64), 0..9),
    );
    let cursor = (cursor, far).prop_map(|((outputs, inputs, state, pieces), round)| Cursor {
        outputs,
        inputs,
        state,
        pieces,
        unordered: round % 2 == 1,
        round,
    });
    let node = (".{0,9}", "[a-z]{1,9}", ".{0,9}", prop::option::of(cursor));
    let head = (
        any::<u64>(),
        any::<u64>(),
        any::<bool>(),
        0..1u64 << 50,
        0..99u64,
        1..1000u64,
    );
    (head, vec(node, 0..6)).prop_map(
        |((seed, epoch, finished, delivered, skipped, world), nodes)| {
            let nodes =
                nodes
                    .into_iter()
                    .enumerate()
                    .map(|(at, (name, kind, settings, cursor))| {
                        let inputs = (0..at as u64).step_by(2).collect();
                        SavedNode {
                            name,
                            kind,
                            settings,
                            inputs,
                            cursor,
                        }
                    });
            let nodes = nodes.collect();
            let uneven = Uneven::from_number(skipped % 5).unwrap();
            let of = |rank, nodes| Saved {
                seed,
                epoch,
                finished,
                delivered,
                skipped,
                copies: Arc::new(Copies {
                    uncounted: skipped / 3,
                    counted: (0..skipped % 3).collect(),
                }),
                world,
                rank,
                uneven,
                nodes,
            };
            let (rank, nodes): (u64, Vec<_>) = (skipped % world, nodes);
            let others = (0..rank.min(skipped % 3)).map(|rank| of(rank, nodes.clone()));
            Checkpoint::of(others.chain([of(rank, nodes.clone())]).collect())
        },
    )
}

/// Appends the right checksum to bytes.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = stable_hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn kind(bytes: &[u8]) -> ErrorKind {
    Checkpoint::from_bytes(bytes)
        .expect_err("it is no state")
        .kind()
}

proptest! {
    #[test]
    fn what_was_written_is_read(state in states()) {
        let bytes = state.to_bytes();
        let again = Checkpoint::from_bytes(&bytes).unwrap();
        prop_assert!(again == state);
        prop_assert_eq!(again.to_bytes(), bytes);
    }

    #[test]
    fn row_120_a_state_that_is_damaged_is_refused(state in states(), flip in any::<(u16, u8)>(), cut in any::<u16>()) {
        let bytes = state.to_bytes();
        let mut flipped = bytes.clone();
        let at = usize::from(flip.0) % bytes.len();
        flipped[at] ^= flip.1.max(1);
        prop_assert!(matches!(kind(&flipped), ErrorKind::Corrupt | ErrorKind::Unsupported));
        prop_assert_eq!(kind(&bytes[..usize::from(cut) % bytes.len()]), ErrorKind::Corrupt);
    }

    /// Anything may precede a right checksum; bytes that are read as a checkpoint are the bytes of
    /// that checkpoint.
    #[test]
    fn row_120_random_bytes_are_no_state(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(kind(&bytes), ErrorKind::Corrupt);
        let framed = sealed([b"DPst\x01", &bytes[..]].concat());
        match Checkpoint::from_bytes(&framed) {
            Ok(state) => prop_assert!(Checkpoint::from_bytes(&state.to_bytes()).unwrap() == state),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }

    /// Does the same close to a checkpoint: one byte of it is changed, and the checksum right.
    #[test]
    fn row_120_a_state_that_was_forged_is_one_or_is_refused(state in states(), at in any::<u16>(), byte in any::<u8>()) {
        let mut bytes = state.to_bytes();
        bytes.truncate(bytes.len() - 8);
        let at = 5 + usize::from(at) % (bytes.len() - 5);
        bytes[at] = byte;
        match Checkpoint::from_bytes(&sealed(bytes)) {
            Ok(state) => prop_assert!(Checkpoint::from_bytes(&state.to_bytes()).unwrap() == state),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
}

#[test]
fn row_120_every_flip_and_every_cut_is_refused() {
    let bytes = some_state().to_bytes();
    assert!(Checkpoint::from_bytes(&bytes).is_ok());
    for at in 0..bytes.len() {
        assert_eq!(kind(&bytes[..at]), ErrorKind::Corrupt, "cut at {at}");
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let kind = kind(&flipped);
            // Another version is reported as that; a version byte that continues takes the next
            // byte into its number.
            let version = at == 4 && kind == ErrorKind::Unsupported;
            assert!(
                version || kind == ErrorKind::Corrupt,
                "byte {at}, bit {bit}: {kind:?}"
            );
        }
    }
    let longer = [&bytes[..], b"\0"].concat();
    assert_eq!(kind(&longer), ErrorKind::Corrupt);
    let mut inside = bytes[..bytes.len() - 8].to_vec();
    inside.push(0);
    assert_eq!(kind(&sealed(inside)), ErrorKind::Corrupt);
}

#[test]
fn row_120_a_later_version_is_named() {
    let mut bytes = some_state().to_bytes();
    bytes.truncate(bytes.len() - 8);
    bytes[4] = 3;
    let error = Checkpoint::from_bytes(&sealed(bytes.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "unsupported: a checkpoint of version 3; this library reads versions 1 to 2"
    );
    bytes[4] = 0;
    assert_eq!(kind(&sealed(bytes)), ErrorKind::Unsupported);
}

#[test]
fn row_120_counts_that_are_too_large_are_refused_before_anything_is_allocated() {
    let head = |numbers: &[u64]| {
        let mut writer = Writer::new();
        writer.raw(b"DPst");
        writer.number(1);
        // One rank, and its fields besides the nodes.
        [1, 0, 0, 0, 0, 0, 1, 0, 0]
            .iter()
            .chain(numbers)
            .for_each(|&number| writer.number(number));
        writer.into_parts().0
    };
    for huge in [1 << 33, 1 << 60, u64::MAX] {
        // Numbers of nodes, of letters of a name, inputs, outputs, places held, bytes of state, pieces.
        let before: [&[u64]; 7] = [
            &[],
            &[1],
            &[1, 0, 0, 0],
            &[1, 0, 0, 0, 0, 1],
            &[1, 0, 0, 0, 0, 1, 1, 0, 1, 9, 0],
            &[1, 0, 0, 0, 0, 1, 1, 0, 0],
            &[1, 0, 0, 0, 0, 1, 1, 0, 0, 0],
        ];
        for before in before {
            let mut bytes = head(&[before, &[huge]].concat());
            bytes.extend([0; 30]);
            let error = Checkpoint::from_bytes(&sealed(bytes)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{before:?}");
            assert!(
                error.to_string().contains(&format!("{huge} values in")),
                "{before:?}: {error}"
            );
        }
    }
}

#[test]
fn row_120_numbers_that_contradict_each_other_are_refused() {
    let node = |inputs, cursor| SavedNode {
        inputs,
        cursor: Some(cursor),
        ..SavedNode::default()
    };
    let refused = |saved: Saved| {
        let state = Checkpoint::of(vec![Saved { world: 2, ..saved }]);
        assert_eq!(kind(&state.to_bytes()), ErrorKind::Corrupt);
    };
    let cursor = |input: InputCursor| Cursor {
        outputs: vec![1],
        inputs: vec![input],
        ..Cursor::default()
    };
    let one = |cursor: Cursor| Saved {
        nodes: vec![node(vec![], cursor)],
        ..Saved::default()
    };
    refused(Saved {
        delivered: u64::MAX,
        skipped: 1,
        ..Saved::default()
    });
    refused(Saved {
        nodes: vec![node(vec![0], cursor(InputCursor::default()))],
        ..Saved::default()
    });
    refused(one(Cursor::default()));
    refused(one(Cursor {
        outputs: vec![1 << 62],
        ..Cursor::default()
    }));
    refused(one(cursor(InputCursor {
        from: 4,
        reach: 2,
        held: vec![2, 2],
    })));
    refused(one(cursor(InputCursor {
        from: 4,
        reach: 2,
        held: vec![2, 4],
    })));
    refused(one(Cursor {
        outputs: vec![1],
        pieces: vec![(u64::MAX, 0), (1, 0)],
        ..Cursor::default()
    }));
    refused(one(Cursor {
        outputs: vec![1],
        pieces: vec![(0, u64::MAX), (0, 1)],
        ..Cursor::default()
    }));
    refused(Saved {
        rank: 2,
        ..Saved::default()
    });

    let ranks = |[a, b]: [Saved; 2]| {
        Checkpoint::from_bytes(&Checkpoint(Arc::new([a, b])).to_bytes()).is_ok()
    };
    let of = |rank, world| Saved {
        rank,
        world,
        ..Saved::default()
    };
    assert!(ranks([of(0, 2), of(1, 2)]));
    for [a, b] in [[1, 0], [1, 1]] {
        assert!(!ranks([of(a, 2), of(b, 2)]), "ranks {a} and {b}");
    }
    assert!(
        !ranks([of(0, 2), of(1, 3)])
            && !ranks([
                of(0, 2),
                Saved {
                    epoch: 1,
                    ..of(1, 2)
                }
            ])
    );
    assert!(!ranks([
        of(0, 2),
        Saved {
            uneven: Some(Uneven::Pad),
            ..of(1, 2)
        }
    ]));
    assert!(Checkpoint::from_bytes(&Checkpoint(Arc::new([])).to_bytes()).is_err());
}

/// Serde's form in a binary format is the bytes, and has to be whole.
#[cfg(feature = "serde")]
#[test]
fn a_state_goes_through_binary_formats_of_serde() {
    let state = some_state();
    let packed = rmp_serde::to_vec(&state).unwrap();
    assert!(packed.len() <= state.to_bytes().len() + 3);
    assert!(rmp_serde::from_slice::<Checkpoint>(&packed).unwrap() == state);
    let numbers = rmp_serde::to_vec(&state.to_bytes()).unwrap();
    assert!(rmp_serde::from_slice::<Checkpoint>(&numbers).unwrap() == state);
    for at in 3..packed.len() {
        let mut flipped = packed.clone();
        flipped[at] ^= 1;
        assert!(rmp_serde::from_slice::<Checkpoint>(&flipped).is_err());
    }
    // In the form with names as well.
    let mut named = Vec::new();
    let mut writer = rmp_serde::Serializer::new(&mut named)
        .with_human_readable()
        .with_struct_map();
    serde::Serialize::serialize(&state, &mut writer).unwrap();
    let read = |named: &[u8]| -> Checkpoint {
        let mut reader = rmp_serde::Deserializer::from_read_ref(named).with_human_readable();
        serde::Deserialize::deserialize(&mut reader).unwrap()
    };
    assert!(read(&named) == state);
    // And by the name that a node's state had before.
    let (now, before) = (b"\xa5state", b"\xa4kept");
    let place = named.windows(now.len()).position(|part| part == now);
    let place = place.expect("a node has a state");
    named.splice(place..place + now.len(), *before);
    assert!(read(&named) == state);
}
