use super::*;
use crate::ErrorKind;
use crate::{DataLoader, OnError, Uneven, testing};

fn by(modulus: u64) -> HashJoin<u64, (u64, &'static str), u64> {
    HashJoin::new(move |n: &u64| n % modulus, |entry: &(u64, _)| entry.0)
}

fn names() -> Vec<(u64, &'static str)> {
    vec![(2, "two"), (0, "zero"), (9, "nine"), (1, "one")]
}

#[test]
fn keeps_the_contract() {
    let numbers = || Vec::from_iter(0..12u64);
    for modulus in testing::some_of([1, 3, 4, 20]) {
        testing::check_join(&by(modulus), (numbers(), names()));
        testing::check_join(&by(modulus).strict(), (numbers(), names()));
        testing::check_join(&by(modulus).left(), (numbers(), names()));
    }
    let twice = || [names(), vec![(1, "uno"), (5, "five"), (1, "un")]].concat();
    testing::check_join(&by(4), (numbers(), twice()));
    testing::check_join(&by(4).strict(), (numbers(), twice()));
}

#[test]
fn join_by_key_pairs_what_has_the_same_key_in_the_order_of_its_first_input() {
    let numbers = || Graph::from_vec(vec![4, 2, 7, 1, 2]);
    let joined = numbers().join_by_key(Graph::from_vec(names()), |n| *n, |entry| entry.0);
    let loader = DataLoader::builder(joined).build().unwrap();
    let items: Vec<_> = loader
        .epoch(0)
        .blocking()
        .items()
        .map(Result::unwrap)
        .collect();
    let shown: Vec<_> = items
        .iter()
        .map(|item| (item.0, item.1.1, item.origin().to_string()))
        .collect();
    let expected = [
        (2, "two", "[0:1, 1:0]"),
        (1, "one", "[0:3, 1:3]"),
        (2, "two", "[0:4, 1:0]"),
    ];
    assert_eq!(
        shown,
        expected.map(|(n, name, origin)| (n, name, origin.to_owned()))
    );
    // 4 and 7 of the first input, `zero` and `nine` of the second.
    assert_eq!(loader.stats().unwrap().nodes.last().unwrap().dropped, 4);
}

#[test]
fn a_key_twice_in_the_table_is_an_error_of_all_that_have_it() {
    let table = Graph::from_vec(vec![(1, "a"), (2, "b"), (1, "c"), (1, "d")]);
    let joined = Graph::range(1..3).join_by_key(table, |n| *n, |entry| entry.0);
    let loader = DataLoader::builder(joined)
        .workers(0)
        .on_error(OnError::skip(9))
        .build()
        .unwrap();
    let pairs: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
    assert_eq!(pairs, [(2, (2, "b"))]);
    let skipped: Vec<String> = loader
        .stats()
        .unwrap()
        .skipped_items
        .into_iter()
        .map(|skipped| skipped.error)
        .collect();
    let expected = ["1:0", "1:2", "1:3"]
        .map(|item| format!("join_by_key: {item}: corrupt: input 1 has the key 1 more than once"));
    assert_eq!(skipped, expected);
}

#[test]
fn a_table_is_bounded_in_items_and_in_bytes() {
    let run = |join: HashJoin<u64, u64, u64>, items| {
        let graph = Graph::join((Graph::range(0..3), Graph::range(0..items)), join);
        let loader = DataLoader::builder(graph)
            .on_error(OnError::skip(99))
            .build()
            .unwrap();
        loader
            .epoch(0)
            .blocking()
            .collect::<crate::Result<Vec<_>>>()
    };
    let join = || HashJoin::new(|n: &u64| *n, |n: &u64| *n);
    assert_eq!(run(join().items(5), 5).unwrap().len(), 3);
    let error = run(join().items(5), 6).unwrap_err().to_string();
    assert!(
        error.starts_with("join_by_key: 1:5: wrong configuration: input 1 has more than 5 items, the most that the table holds")
            && error.contains("raise `HashJoin::items`"),
        "{error}"
    );
    assert_eq!(run(join().bytes(50, |_| 10), 5).unwrap().len(), 3);
    let error = run(join().bytes(50, |_| 10), 6).unwrap_err().to_string();
    assert!(
        error.contains("1:5: wrong configuration: input 1 has more than 50 bytes"),
        "{error}"
    );
    let none = Graph::join((Graph::range(0..3), Graph::range(0..3)), join().items(0));
    let problems = DataLoader::builder(none).build().unwrap_err().to_string();
    assert!(
        problems.contains("join_by_key: a table of zero items"),
        "{problems}"
    );
}

/// The table of the methods is bounded in bytes, too, by the weights of the other graph.
#[test]
fn a_table_has_a_bound_in_bytes_unless_told() {
    let table = |len| Graph::range(0..len).weighed(|_| 256 << 20);
    let inner = |len| Graph::range(0..9).join_by_key(table(len), |n| *n, |n| *n);
    let left = |len| Graph::range(0..9).left_join_by_key(table(len), |n| *n, |n| *n);
    assert_eq!(inner(4).collect().unwrap().len(), 4);
    assert_eq!(left(4).collect().unwrap().len(), 9);
    for error in [
        inner(5).collect().unwrap_err(),
        left(5).collect().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config);
        let error = error.to_string();
        assert!(
            error.contains("input 1 has more than 1073741824 bytes")
                && error.contains("raise `HashJoin::bytes`"),
            "{error}"
        );
    }
    let explained = |graph| DataLoader::builder(graph).build().unwrap().explain();
    let plan = explained(inner(1)).to_string();
    assert!(plan.contains("and about 1024 MiB besides"), "{plan}");
    // The default bound is not part of the settings that checkpoints hold.
    assert!(
        plan.contains("join_by_key(table of 1048576 items)"),
        "{plan}"
    );
}

#[test]
fn ranks_read_a_table_whole_and_share_the_rest() {
    let table = || Graph::from_vec(names());
    let rank = |graph: Graph<(u64, (u64, &'static str))>, index| {
        DataLoader::builder(graph)
            .rank(index, 2)
            .uneven(Uneven::Allow)
            .build()
    };
    let shared = || Graph::range(0..10).sharding_filter();
    let mut all = Vec::new();
    for index in 0..2 {
        let graph = shared().join_by_key(table(), |n| n % 4, |entry| entry.0);
        all.extend(
            rank(graph, index)
                .unwrap()
                .epoch(0)
                .blocking()
                .map(|pair| pair.unwrap().0),
        );
    }
    all.sort();
    assert_eq!(all, [0, 1, 2, 4, 5, 6, 8, 9]);

    let below = Graph::range(0..10)
        .join_by_key(table(), |n| n % 4, |entry| entry.0)
        .sharding_filter();
    assert!(rank(below, 0).is_ok());
    let unshared = Graph::range(0..10).join_by_key(table(), |n| *n, |entry| entry.0);
    let problems = rank(unshared, 0).unwrap_err().to_string();
    assert!(
        problems.contains("range: no `sharding_filter`") && !problems.contains("from_vec"),
        "{problems}"
    );
    let wrong = shared().join_by_key(table().sharding_filter(), |n| *n, |entry| entry.0);
    let problems = rank(wrong, 0).unwrap_err().to_string();
    assert!(
        problems.contains("join_by_key: its input 1 is sharded"),
        "{problems}"
    );
}

#[test]
fn a_stopped_join_makes_its_table_again() {
    let graph = || {
        let table = Graph::range(0..50)
            .shuffle(20)
            .map_async(|n| async move { crate::Ok(n * 2) });
        let table = table.try_map(|n| if n == 8 { Err("eight") } else { Ok(n) });
        Graph::range(0..200)
            .shuffle(30)
            .join_by_key(table, |n| n % 120, |n| *n)
            .map(|(a, b)| (a, b))
            .shuffle(5)
    };
    for workers in [0, 2] {
        let build = || {
            let builder = DataLoader::builder(graph())
                .workers(workers)
                .on_error(OnError::skip(99));
            builder.resumable().build().unwrap()
        };
        let whole: Vec<_> = build().epoch(3).blocking().map(Result::unwrap).collect();
        assert_eq!(whole.len(), 2 * 49 - 10);
        for stop in [0, 1, 40, 87, 88] {
            let loader = build();
            let mut epoch = loader.epoch(3).blocking();
            let mut seen: Vec<_> = epoch.by_ref().take(stop).map(Result::unwrap).collect();
            let state = epoch.checkpoint().unwrap();
            drop(epoch);
            seen.extend(
                build()
                    .resume(&state)
                    .unwrap()
                    .blocking()
                    .map(Result::unwrap),
            );
            assert_eq!(seen, whole, "stopped after {stop} with {workers} workers");
        }
    }
}

#[test]
fn keys_of_two_forms_are_an_error_and_no_empty_data_set() {
    let files = || Graph::from_vec(vec!["clips/b.wav", "clips/a.wav"]);
    let rows = |names: &[&'static str]| Graph::from_vec(names.to_vec());
    let join = |rows| files().join_by_key(rows, |file| *file, |row| *row);
    let error = join(rows(&["b.wav", "a.wav"])).collect().unwrap_err();
    assert_eq!(
        error.to_string(),
        "join_by_key: not found: no item has a partner: a key of input 0 is \"clips/b.wav\", and one of input 1 is \"b.wav\""
    );
    assert_eq!(
        join(rows(&["a.wav", "clips/a.wav"]))
            .collect()
            .unwrap()
            .len(),
        1
    );
    assert!(join(rows(&[])).collect().unwrap().is_empty());
    let left = files().left_join_by_key(rows(&["b.wav"]), |file| *file, |row| *row);
    assert_eq!(left.collect().unwrap().len(), 2);
}
