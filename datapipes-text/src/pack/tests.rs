//! Tests of packing: the contract, the semantics, and laws over random documents.

use std::collections::BTreeMap;

use datapipes::pipes::Stop;
use datapipes::testing::check_pipe;
use datapipes::{DataLoader, Graph, OnError, Order, Result};
use proptest::prelude::*;

use super::*;
use crate::{PackGraphExt, TokenBudget, Tokens};
use datapipes::ErrorKind;

/// Documents of these lengths, whose tokens are all different: number × 1000 + place.
fn documents(lengths: &[usize]) -> Vec<Vec<u32>> {
    let document = |(number, &len): (usize, &usize)| {
        (0..len).map(|at| (number * 1000 + at) as u32 + 1).collect()
    };
    lengths.iter().enumerate().map(document).collect()
}

fn ways(length: usize) -> Vec<Pack> {
    let mut ways = vec![
        Pack::concat(length),
        Pack::concat(length).keep_full(),
        Pack::concat(length).drop_last(),
        Pack::concat(length).max_documents(2),
    ];
    for overflow in [
        Overflow::Split,
        Overflow::Truncate,
        Overflow::Drop,
        Overflow::Error,
    ] {
        ways.push(Pack::first_fit(length, 3).overflow(overflow));
        ways.push(Pack::best_fit(length, 3).overflow(overflow));
    }
    ways.push(Pack::best_fit(length, 2).drop_last());
    ways.push(Pack::best_fit(length, 1).max_documents(2));
    if length.is_multiple_of(2) {
        ways.push(Pack::concat(length).align(2));
        ways.push(Pack::first_fit(length, 3).align(2));
    }
    ways
}

#[test]
fn a_cycle_with_max_steps_has_that_length() {
    let documents = || Graph::from_vec(documents(&[3, 5, 2])).cycle();
    let rows = documents().pack(Pack::concat(4)).batch(2);
    let budget = documents()
        .pipe(TokenBudget::new(8, Vec::len))
        .map(|batch| batch.len());
    let steps = |builder: datapipes::loader::Builder<_>| {
        let loader = builder.max_steps(7).build().unwrap();
        (loader.len_hint(), loader.epoch(0).blocking().count())
    };
    assert_eq!(
        steps(DataLoader::builder(rows.map(|rows| rows.len()))),
        (Some(7), 7)
    );
    assert_eq!(steps(DataLoader::builder(budget)), (Some(7), 7));
    let once = Graph::from_vec(vec![vec![1u32; 3]]).pack(Pack::concat(4));
    assert_eq!(DataLoader::builder(once).build().unwrap().len_hint(), None);
}

#[test]
fn keeps_the_contract() {
    let lengths = [3, 0, 7, 8, 1, 2, 20, 5, 5, 0, 9, 4, 4, 1];
    for pack in ways(8) {
        check_pipe(&pack, documents(&lengths));
    }
}

fn packed(lengths: &[usize], pack: Pack) -> Vec<Packed> {
    Graph::from_vec(documents(lengths))
        .pack(pack)
        .collect()
        .unwrap()
}

fn ids(lengths: &[usize], pack: Pack) -> Vec<Vec<u32>> {
    packed(lengths, pack)
        .into_iter()
        .map(|row| row.ids)
        .collect()
}

/// The example in the documentation of Grain's `ConcatThenSplit`.
#[test]
fn concatenates_as_grain_does() {
    let lengths = [3, 6, 2, 5, 6, 4];
    let numbers = |pack: Pack| -> Vec<Vec<u32>> {
        let number = |id: u32| if id == 0 { 0 } else { (id - 1) / 1000 + 1 };
        ids(&lengths, pack)
            .iter()
            .map(|row| row.iter().map(|&id| number(id)).collect())
            .collect()
    };
    let kept = [
        [2; 6],
        [1, 1, 1, 3, 3, 4],
        [5; 6],
        [4, 4, 4, 4, 6, 6],
        [6, 6, 0, 0, 0, 0],
    ];
    assert_eq!(numbers(Pack::concat(6).keep_full()), kept);
    let cut = [
        [1, 1, 1, 2, 2, 2],
        [2, 2, 2, 3, 3, 4],
        [4, 4, 4, 4, 5, 5],
        [5, 5, 5, 5, 6, 6],
        [6, 6, 0, 0, 0, 0],
    ];
    assert_eq!(numbers(Pack::concat(6)), cut);

    let rows = packed(&[1, 2, 3, 4], Pack::concat(6).replace_first(9));
    assert_eq!(rows[0].ids, [9, 9, 1002, 9, 2002, 2003]);
    assert_eq!(rows[0].document, [1, 2, 2, 3, 3, 3]);
    assert_eq!(rows[0].positions, [0, 0, 1, 0, 1, 2]);
    // Labels are the document's own tokens.
    let rows = packed(&[8], Pack::concat(6).replace_first(9));
    assert_eq!(
        (rows[0].labels[5], rows[1].ids[0], rows[1].labels[0]),
        (7, 9, 8)
    );
}

#[test]
fn a_row_is_chosen_by_its_room() {
    // Open: [6], [4]; first fit puts 2 into the first that has room, best fit into the fullest.
    assert_eq!(
        ids(&[4, 6, 2, 2, 4], Pack::first_fit(8, 2)),
        [
            [1, 2, 3, 4, 2001, 2002, 3001, 3002],
            [1001, 1002, 1003, 1004, 1005, 1006, 0, 0],
            [4001, 4002, 4003, 4004, 0, 0, 0, 0]
        ]
    );
    assert_eq!(
        ids(&[4, 6, 2, 4], Pack::best_fit(8, 2)),
        [
            [1001, 1002, 1003, 1004, 1005, 1006, 2001, 2002],
            [1, 2, 3, 4, 3001, 3002, 3003, 3004]
        ]
    );
    // If none has room, the fullest goes.
    assert_eq!(
        ids(&[4, 6, 5, 4], Pack::first_fit(8, 2))[0][..7],
        [1001, 1002, 1003, 1004, 1005, 1006, 0]
    );
}

#[test]
fn a_long_document_is_cut_shortened_left_out_or_an_error() {
    let lengths = [2, 11, 1];
    let pack = |overflow| Pack::first_fit(4, 2).overflow(overflow);
    let starts = |overflow| -> Vec<Vec<u32>> { ids(&lengths, pack(overflow)) };
    let (long, next) = (vec![1001, 1002, 1003, 1004], vec![1005, 1006, 1007, 1008]);
    let rest = [vec![1, 2, 2001, 0], vec![1009, 1010, 1011, 0]];
    assert_eq!(
        starts(Overflow::Split),
        [vec![long.clone(), next], rest.to_vec()].concat()
    );
    assert_eq!(starts(Overflow::Truncate), [long, vec![1, 2, 2001, 0]]);
    let cut = &packed(&lengths, pack(Overflow::Truncate))[0];
    assert_eq!(cut.labels, [1002, 1003, 1004, 1005]);
    let loader =
        DataLoader::builder(Graph::from_vec(documents(&lengths)).pack(pack(Overflow::Drop)));
    let loader = loader.build().unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 1);
    assert_eq!(loader.stats().unwrap().nodes[1].dropped, 1);
    let graph = Graph::from_vec(documents(&lengths)).pack(pack(Overflow::Error));
    let error = graph.collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let said = "pack: 0:1: limit reached: a document of 11 tokens, for rows of 4; `Pack::overflow` can cut it or leave \
                it out";
    assert_eq!(error.to_string(), said);
}

#[test]
fn labels_are_a_documents_own_if_it_has_some() {
    let chat = |ids: Vec<u32>, labels: Vec<i64>| Tokens {
        labels: Some(labels),
        ..Tokens::from(ids)
    };
    let both = Graph::from_vec(vec![
        chat(vec![1, 2, 3], vec![-100, -100, 3]),
        chat(vec![4, 5], vec![4, 5]),
    ]);
    let row = both
        .clone()
        .pack(Pack::concat(6).pad(9))
        .collect()
        .unwrap()
        .remove(0);
    assert_eq!(row.ids, [1, 2, 3, 4, 5, 9]);
    assert_eq!(row.labels, [-100, 3, -100, 5, -100, -100]);
    let pack = Pack::concat(6).labels(Labels::Same).ignore(-1);
    let row = both.pack(pack).collect().unwrap().remove(0);
    assert_eq!(row.labels, [-100, -100, 3, 4, 5, -1]);
    let odd = Graph::from_vec(vec![chat(vec![1, 2], vec![1])]).pack(Pack::concat(6));
    let error = odd.collect().unwrap_err().to_string();
    assert_eq!(
        error,
        "pack: 0:0: shape mismatch: a document of 2 ids and 1 labels"
    );
}

#[test]
fn pieces_begin_at_multiples_of_the_alignment() {
    let rows = packed(&[3, 1, 6], Pack::concat(8).align(4));
    assert_eq!(rows[0].ids, [1, 2, 3, 0, 1001, 0, 0, 0]);
    assert_eq!(rows[0].cu_seqlens, [0, 3, 4, 5, 8]);
    assert_eq!(rows[0].document, [1, 1, 1, 0, 2, 0, 0, 0]);
    assert_eq!(rows[1].cu_seqlens, [0, 6, 8]);
    assert_eq!(
        packed(&[2, 2], Pack::concat(8).max_documents(1))[0].cu_seqlens,
        [0, 2, 8]
    );
}

#[test]
fn packed_rows_that_are_mixed_by_weight_have_these_shares_of_tokens() {
    let input = |id: u32, len: usize| {
        let documents = Graph::from_vec(vec![vec![id; len]; 7 * 2048 / len]);
        documents.pack(Pack::concat(64).drop_last())
    };
    // The documents of one are sixteen times as long as those of the other.
    let mixed = Graph::mix_until(
        Stop::FirstExhausted,
        [(input(1, 512), 0.7), (input(2, 32), 0.3)],
    );
    let rows = mixed.collect().unwrap();
    let (mut tokens, mut all) = (0, 0);
    for row in rows {
        tokens += row.ids.iter().filter(|&&id| id == 1).count();
        all += row.ids.len();
        let due = 0.7 * all as f64;
        assert!(
            (tokens as f64 - due).abs() < 2.0 * 64.0,
            "{tokens} of {all}"
        );
    }
    assert!(all > 10_000);

    // Documents are mixed with the same shares by their sizes.
    let documents = |id: u32, len: usize| Graph::from_vec(vec![vec![id; len]; 4096 / len]);
    let inputs = [(documents(1, 512), 0.7), (documents(2, 32), 0.3)];
    let mixed = Graph::mix_by_size(Stop::FirstExhausted, inputs, Vec::len)
        .collect()
        .unwrap();
    let of = |id| {
        mixed
            .iter()
            .filter(|ids| ids[0] == id)
            .map(Vec::len)
            .sum::<usize>() as f64
    };
    assert!(
        (of(1) / (of(1) + of(2)) - 0.7).abs() < 0.1,
        "{} and {}",
        of(1),
        of(2)
    );
}

#[test]
fn row_30_no_documents_give_no_rows() {
    assert_eq!(packed(&[], Pack::concat(8)), []);
    assert_eq!(packed(&[0, 0], Pack::best_fit(8, 2)), []);
}

#[test]
fn wrong_settings_do_not_start() {
    for (pack, said) in [
        (Pack::concat(0), "rows of no tokens"),
        (Pack::first_fit(8, 0), "no room for a single document"),
        (
            Pack::concat(8).max_documents(0),
            "no room for a single document",
        ),
        (Pack::concat(9).align(2), "no multiple of the alignment"),
        (Pack::concat(9).align(0), "no multiple of the alignment"),
    ] {
        let error = Graph::from_vec(documents(&[1]))
            .pack(pack)
            .collect()
            .unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn another_setting_is_refused_on_resume() {
    let graph = |pack| Graph::from_vec(documents(&[3, 9, 4])).pack(pack);
    let loader = |pack| {
        DataLoader::builder(graph(pack))
            .resumable()
            .build()
            .unwrap()
    };
    let mut epoch = loader(Pack::concat(4)).epoch(0).blocking();
    epoch.next();
    let checkpoint = epoch.checkpoint().unwrap();
    let error = loader(Pack::concat(4).pad(1))
        .resume(&checkpoint)
        .expect_err("another padding");
    assert!(error.to_string().contains("pack"), "{error}");
}

#[test]
fn a_document_that_became_longer_goes_on_in_other_rows() {
    for (fit, rest) in [
        (Fit::Concat(false), 2..9),
        (Fit::Best(2), 8..9),
        (Fit::Best(2), 9..9),
    ] {
        let mut packing = Packing::new(RowLayout::new(4), fit, 0, true);
        let mut document = Incoming {
            document: (1..10u32).collect::<Vec<_>>(),
            origin: datapipes::Origin::root(0, 0),
            key: 0,
            rest: rest.clone(),
            place: None,
            bin: Some(5),
        };
        let mut rows = Vec::from_iter(std::iter::from_fn(|| packing.advance(&mut document)));
        rows.extend(packing.finish());
        let rows: Vec<Packed> = rows.into_iter().map(|(_, row)| row.into_inner()).collect();
        let ids: Vec<u32> = by_document(&rows).into_values().flatten().collect();
        assert_eq!(ids, Vec::from_iter(rest.start as u32 + 1..10));
    }
}

#[test]
fn a_document_that_has_changed_is_packed_as_it_is_now() {
    for pack in [Pack::concat(4), Pack::best_fit(4, 2)] {
        let loader = |lengths: &[usize]| {
            let graph = Graph::from_vec(documents(lengths)).pack(pack.clone());
            DataLoader::builder(graph).resumable().build().unwrap()
        };
        let mut epoch = loader(&[3, 6, 3, 1]).epoch(0).blocking();
        epoch.next();
        let checkpoint = epoch.checkpoint().unwrap();
        for changed in [[3, 1, 3, 1], [3, 30, 9, 1], [3, 6, 0, 1]] {
            let rest = loader(&changed).resume(&checkpoint).unwrap().blocking();
            match rest.collect::<Result<Vec<Packed>>>() {
                // The last document had not been taken, so nothing of it is lost.
                Ok(rest) => assert_eq!(by_document(&rest)[&3].len(), 1, "{pack:?} {changed:?}"),
                // The loader finds that fewer rows come than had come.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Config, "{error}"),
            }
        }
    }
}

/// Returns the tokens of each document in the rows, in their order there.
fn by_document(rows: &[Packed]) -> BTreeMap<u32, Vec<u32>> {
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for row in rows {
        for (&id, _) in row
            .ids
            .iter()
            .zip(&row.document)
            .filter(|&(_, &document)| document > 0)
        {
            found.entry((id - 1) / 1000).or_default().push(id);
        }
    }
    found
}

/// Checks what holds for the fields of every row.
fn check_row(row: &Packed, length: usize, align: usize) {
    let lengths = [
        row.ids.len(),
        row.labels.len(),
        row.positions.len(),
        row.document.len(),
    ];
    assert_eq!(lengths, [length; 4]);
    assert!(row.cu_seqlens.is_sorted_by(|a, b| a < b));
    assert_eq!(
        (row.cu_seqlens[0], row.cu_seqlens.last()),
        (0, Some(&(length as u32)))
    );
    let mut pieces = 0;
    for pair in row.cu_seqlens.windows(2) {
        let segment = pair[0] as usize..pair[1] as usize;
        let number = row.document[segment.start];
        assert!(
            row.document[segment.clone()]
                .iter()
                .all(|&other| other == number)
        );
        if number == 0 {
            assert!(row.ids[segment.clone()].iter().all(|&id| id == 0));
            assert!(row.positions[segment.clone()].iter().all(|&at| at == 0));
            assert!(row.labels[segment].iter().all(|&label| label == -100));
            continue;
        }
        pieces += 1;
        assert_eq!(number, pieces);
        assert!(segment.start.is_multiple_of(align));
        assert!(
            row.positions[segment.clone()]
                .iter()
                .copied()
                .eq(0..segment.len() as u32)
        );
        for at in segment.start..segment.end - 1 {
            assert_eq!(row.labels[at], i64::from(row.ids[at + 1]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn every_token_comes_once_and_a_stopped_epoch_goes_on(
        lengths in prop::collection::vec(0usize..30, 0..40),
        length in 1usize..12,
        stops in prop::collection::vec(0usize..60, 3),
    ) {
        let all = documents(&lengths);
        for pack in ways(length) {
            let (overflow, concat) = (pack.overflow, matches!(pack.fit, Fit::Concat(_)));
            let graph = Graph::from_vec(all.clone()).pack(pack.clone());
            let loader = DataLoader::builder(graph).on_error(OnError::skip(1000)).resumable().build().unwrap();
            let rows: Vec<Packed> = loader.epoch(0).blocking().collect::<Result<_>>().unwrap();
            for row in &rows {
                check_row(row, length, pack.layout.align);
            }
            if !pack.drop_last {
                let expected = (0..).zip(&all).filter_map(|(number, document)| {
                    let fits = concat || document.len() <= length || overflow == Overflow::Split;
                    match overflow {
                        _ if document.is_empty() => None,
                        _ if fits => Some((number, document.clone())),
                        Overflow::Truncate => Some((number, document[..length].to_vec())),
                        _ => None,
                    }
                });
                prop_assert_eq!(by_document(&rows), expected.collect::<BTreeMap<_, _>>());
            }
            for stop in &stops {
                let stop = stop % (rows.len() + 1);
                let mut epoch = loader.epoch(0).blocking();
                let first: Vec<Packed> = epoch.by_ref().take(stop).collect::<Result<_>>().unwrap();
                let checkpoint = epoch.checkpoint().unwrap();
                drop(epoch);
                let rest = loader.resume(&checkpoint).unwrap().blocking();
                let rest: Vec<Packed> = rest.collect::<Result<_>>().unwrap();
                prop_assert_eq!(&[first, rest].concat(), &rows);
            }
        }
    }

    #[test]
    fn in_any_order_every_document_comes_once(
        lengths in prop::collection::vec(0usize..12, 1..60),
        stop in 0usize..30,
    ) {
        let all = documents(&lengths);
        for (pack, order) in [
            (Pack::best_fit(12, 4).overflow(Overflow::Truncate), Order::Arrival),
            (Pack::first_fit(12, 4).overflow(Overflow::Error), Order::Bounded(4)),
            (Pack::concat(12), Order::Arrival),
        ] {
            let graph = Graph::from_vec(all.clone()).map(|document| document).pack(pack);
            let loader = DataLoader::builder(graph).order(order).workers(2).resumable().build().unwrap();
            let mut epoch = loader.epoch(0).blocking();
            let mut rows: Vec<Packed> = epoch.by_ref().take(stop).collect::<Result<_>>().unwrap();
            let checkpoint = epoch.checkpoint().unwrap();
            drop(epoch);
            for row in loader.resume(&checkpoint).unwrap().blocking() {
                rows.push(row.unwrap());
            }
            let expected = (0..).zip(all.clone()).filter(|(_, document)| !document.is_empty());
            prop_assert_eq!(by_document(&rows), expected.collect::<BTreeMap<_, _>>());
        }
    }
}
