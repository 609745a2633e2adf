//! Tests of Megatron's order of samples: that of the original, and stores that lie.

use bytes::Bytes;
use datapipes::{DataLoader, Uneven};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::{TokenWidth, TokenWriter};

/// Returns the orders of the original and of NumPy; `make.py` beside them wrote the file.
fn golden() -> Value {
    serde_json::from_slice(include_bytes!("../../../tests/data/gpt.json")).unwrap()
}

fn numbers(list: &Value) -> Vec<u64> {
    let list = list.as_array().unwrap().iter();
    list.map(|number| number.as_u64().unwrap()).collect()
}

/// Documents of ids that count up, in both kinds of stores.
fn stores(lengths: &[u64], dir: &std::path::Path) -> [TokenStore; 2] {
    let (megatron, ds) = (dir.join("m"), dir.join("d.ds"));
    let mut writers = [
        TokenWriter::megatron(&megatron, TokenWidth::U16).unwrap(),
        TokenWriter::datatrove(&ds, TokenWidth::U16, "t").unwrap(),
    ];
    let mut next = 0;
    for &length in lengths {
        let ids: Vec<u32> = (next..next + length as u32).collect();
        writers
            .iter_mut()
            .for_each(|writer| writer.push(&ids).unwrap());
        next += length as u32;
    }
    writers
        .into_iter()
        .for_each(|writer| writer.finish().unwrap());
    [
        TokenStore::megatron(&megatron).unwrap(),
        TokenStore::datatrove(&ds).unwrap(),
    ]
}

fn ids(samples: Indexed<GptSample>) -> Vec<Vec<u64>> {
    let ids = samples
        .fetch()
        .try_map(|sample| sample.ids())
        .collect()
        .unwrap();
    ids.into_iter()
        .map(|ids| ids.into_iter().map(u64::from).collect())
        .collect()
}

#[test]
fn samples_are_those_of_the_original() {
    for case in golden()["orders"].as_array().unwrap() {
        let (lengths, sequences) = (numbers(&case["lengths"]), numbers(&case["sequences"]));
        let mut order = GptOrder::new(case["length"].as_u64().unwrap() as usize)
            .seed(case["seed"].as_u64().unwrap() as u32)
            .sequences(sequences[0]..sequences[1]);
        if let Some(samples) = case["samples"].as_u64() {
            order = order.samples(samples);
        }
        let expected: Vec<Vec<u64>> = case["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(numbers)
            .collect();
        let dir = tempfile::tempdir().unwrap();
        for store in stores(&lengths, dir.path()) {
            assert_eq!(ids(store.gpt(&order).unwrap()), expected, "{order:?}");
        }
    }
}

#[test]
fn shuffles_are_those_of_numpy() {
    let golden = golden();
    for case in golden["shuffles"].as_array().unwrap() {
        let expected = numbers(&case["numbers"]);
        let mut shuffled: Vec<u32> = (0..expected.len() as u32).collect();
        RandomState::new(case["seed"].as_u64().unwrap() as u32).shuffle(&mut shuffled);
        assert!(shuffled.into_iter().map(u64::from).eq(expected));
    }
    let large = &golden["large"];
    let mut shuffled: Vec<u32> = (0..large["count"].as_u64().unwrap() as u32).collect();
    RandomState::new(large["seed"].as_u64().unwrap() as u32).shuffle(&mut shuffled);
    let sum: u64 = (0..)
        .zip(shuffled)
        .map(|(place, number)| place * u64::from(number))
        .sum();
    assert_eq!(sum, large["sum"].as_u64().unwrap());
}

proptest! {
    /// Each sample begins with the token that the one before it ends with, in the order of the
    /// tokens; so all tokens of the epochs but those that are left over come once.
    #[test]
    fn samples_share_a_token_with_the_next(lengths in prop::collection::vec(0u64..9, 1..12), length in 1usize..7, samples in 0u64..40, seed: u32) {
        prop_assume!(lengths.iter().sum::<u64>() > 0);
        let ends = lengths.iter().scan(0, |end, length| { *end += length; Some(*end) });
        let ends: Vec<u8> = ends.flat_map(u64::to_le_bytes).collect();
        let tokens: Vec<u8> = (0..lengths.iter().sum::<u64>() as u8).collect();
        let ends = Some(("ends".to_owned(), ends.into()));
        let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U8, ends).unwrap();
        let order = Order::new(&store, &GptOrder::new(length).seed(seed).samples(samples)).unwrap();
        let mut seen = order.shuffled.clone();
        seen.sort_unstable();
        prop_assert!(seen.into_iter().eq(0..order.starts.len() as u32));
        prop_assert!(order.starts.len() as u64 >= samples);
        let stream: Vec<u32> = order.sequences.iter().flat_map(|&number| store.document(number.into()).unwrap()).collect();
        for (number, &start) in order.starts.iter().enumerate() {
            prop_assert_eq!(order.tokens(start).unwrap().ids, &stream[number * length..=(number + 1) * length]);
        }
    }
}

#[test]
fn a_row_has_the_next_tokens_as_labels_over_the_ends_of_documents() {
    let dir = tempfile::tempdir().unwrap();
    let [store, _] = stores(&[2, 3, 4], dir.path());
    let samples = store.gpt(&GptOrder::new(4)).unwrap();
    for sample in samples.fetch().collect().unwrap() {
        let (ids, row) = (sample.ids().unwrap(), sample.row().unwrap());
        assert_eq!(row.ids, ids[..4]);
        assert!(
            row.labels
                .iter()
                .zip(&ids[1..])
                .all(|(&label, &id)| label == i64::from(id))
        );
        assert_eq!(
            (row.positions, row.cu_seqlens),
            (vec![0, 1, 2, 3], vec![0, 4])
        );
    }
}

#[test]
fn row_118_other_ranks_go_on_with_the_same_samples() {
    let dir = tempfile::tempdir().unwrap();
    let [store, _] = stores(&[7; 30], dir.path());
    let order = GptOrder::new(8).samples(40);
    let loader = |rank, world| {
        let samples = store.gpt(&order).unwrap().shard().fetch();
        let rows = samples.try_map(|sample| sample.ids()).batch(4 / world);
        let loader = DataLoader::builder(rows).uneven(Uneven::Drop).resumable();
        loader.rank(rank, world).build().unwrap()
    };
    let whole: Vec<_> = loader(0, 1)
        .epoch(0)
        .blocking()
        .map(Result::unwrap)
        .collect();
    assert_eq!(whole.len(), 13);
    let mut epoch = loader(0, 1).epoch(0).blocking();
    epoch.by_ref().take(3).for_each(drop);
    let checkpoint = epoch.checkpoint().unwrap();
    let ranks = [0, 1].map(|rank| loader(rank, 2).resume(&checkpoint).unwrap().blocking());
    let [first, second] = ranks.map(|rest| rest.map(Result::unwrap).collect::<Vec<_>>());
    for (step, expected) in whole[3..].iter().enumerate() {
        let dealt = [
            &first[step][0],
            &second[step][0],
            &first[step][1],
            &second[step][1],
        ];
        assert!(dealt.into_iter().eq(expected), "step {step}");
    }
}

#[test]
fn what_cannot_be_ordered_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let [store, _] = stores(&[3, 4], dir.path());
    let error = |store: &TokenStore, order: GptOrder| match store.gpt(&order) {
        Ok(_) => panic!("it is refused"),
        Err(error) => (error.kind(), error.to_string()),
    };
    let order = || GptOrder::new(2);
    for (order, kind) in [
        (GptOrder::new(0), ErrorKind::Config),
        (GptOrder::new(usize::MAX), ErrorKind::Config),
        (order().sequences(0..3), ErrorKind::Config),
        #[expect(clippy::reversed_empty_ranges, reason = "users write them")]
        (order().sequences(2..1), ErrorKind::Config),
        (order().sequences(1..1), ErrorKind::Config),
        (order().samples(u64::MAX), ErrorKind::Limit),
        (order().samples(1 << 40), ErrorKind::Limit),
    ] {
        let (found, said) = error(&store, order);
        assert_eq!(found, kind, "{said}");
        assert!(said.contains("m.bin"), "{said}");
    }
    // An index whose second sequence has more tokens than there are.
    let (bin, mut idx) = ([1u8; 14], std::fs::read(dir.path().join("m.idx")).unwrap());
    let whole = idx.clone();
    idx[34] = 100;
    let open = |idx: Vec<u8>| {
        TokenStore::from_megatron("a.bin", Bytes::copy_from_slice(&bin), "a.idx", idx.into())
    };
    let (kind, said) = error(&open(idx).unwrap(), order());
    assert_eq!(kind, ErrorKind::Truncated);
    assert!(said.contains("a.bin") && said.contains("a.idx"), "{said}");
    // An id that is not in the vocabulary is found where it is read.
    let store = open(whole).unwrap().vocab(257);
    let samples = store
        .gpt(&order())
        .unwrap()
        .fetch()
        .try_map(|sample| sample.ids());
    let error = samples.collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("a.bin: byte "), "{error}");
}
