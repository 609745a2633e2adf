use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{DataLoader, ErrorKind, OnError, testing};

/// Counts the live scratches, the most alive at once, and those made.
#[derive(Clone, Default)]
struct Census(Arc<[AtomicUsize; 3]>);

struct Scratch(Census, u64);

impl Census {
    fn scratch(&self) -> Scratch {
        let [live, most, made] = &*self.0;
        most.fetch_max(live.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        made.fetch_add(1, Ordering::SeqCst);
        Scratch(self.clone(), 0)
    }
    /// Returns the numbers of scratches alive now, alive at once at most, and made.
    fn counts(&self) -> [usize; 3] {
        [0, 1, 2].map(|at| self.0[at].load(Ordering::SeqCst))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.0.0[0].fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn keeps_the_contract() {
    let sum = |sum: &mut u64, n: u64| {
        *sum = n;
        if n == 7 { Err("seven") } else { Ok(*sum + 1) }
    };
    testing::check_pipe(&MapInit::new(|| Ok::<_, Error>(0), sum), (0..20).collect());
    let noisy = |_: &mut (), n: u64, rng: &mut Rng| Ok::<_, Error>(n + rng.below(9));
    testing::check_pipe(
        &MapInitWithRng::new(|| Ok::<_, Error>(()), noisy),
        (0..20).collect(),
    );
}

#[test]
fn scratches_are_as_many_as_workers_and_go_with_the_epoch() {
    for workers in [0, 1, 3] {
        let census = Census::default();
        let maker = census.clone();
        let graph = Graph::range(0..3000).map_init(
            move || maker.scratch(),
            |scratch, n| {
                scratch.1 = (0..2000).fold(n, |n, i| std::hint::black_box(n ^ i ^ i));
                scratch.1
            },
        );
        let loader = DataLoader::builder(graph.clone())
            .workers(workers)
            .build()
            .unwrap();
        for epoch in 0..2 {
            let items: Vec<u64> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
            assert_eq!(items, Vec::from_iter(0..3000));
        }
        let mut dropped = loader.epoch(2).blocking();
        dropped.next();
        drop(dropped);
        drop(loader);
        let [live, most, made] = census.counts();
        // The graph is still there, and holds no scratch.
        assert_eq!(live, 0, "{workers} workers");
        assert!(
            (1..=workers + 1).contains(&most),
            "{most} at once with {workers} workers"
        );
        assert!(made <= 3 * (workers + 1), "{made} with {workers} workers");
        drop(graph);
    }
}

#[test]
fn a_panic_discards_the_scratch_and_costs_one_item() {
    let census = Census::default();
    let maker = census.clone();
    let pipe = MapInit::new(
        move || Ok::<_, Error>(maker.scratch()),
        |scratch: &mut Scratch, n: u64| {
            scratch.1 += 1;
            if n == 3 {
                panic!("three")
            } else {
                Ok::<_, Error>(scratch.1)
            }
        },
    );
    let items: Vec<_> = testing::numbered(&[1, 2, 3, 4])
        .into_iter()
        .map(Ok)
        .collect();
    let out = testing::collect(pipe.apply(Items::from_results(items), &Context::default()));
    let shown: Vec<String> = out
        .into_iter()
        .map(|r| r.map_or_else(|e| e, |(v, _)| v.to_string()))
        .collect();
    assert_eq!(shown, ["1", "2", "pipe: 0:2: panicked: three", "1"]);
    assert_eq!(census.counts(), [0, 1, 2]);
}

#[test]
fn a_scratch_that_cannot_be_made_is_an_error_with_node_and_item() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    let init = move || match count.fetch_add(1, Ordering::SeqCst) {
        0 => Err("no device"),
        _ => Ok(()),
    };
    let graph = Graph::range(0..3)
        .try_map_init(init, |(), n| Ok::<_, Error>(n))
        .named("decode");
    let loader = DataLoader::builder(graph)
        .workers(0)
        .on_error(OnError::skip(9))
        .build()
        .unwrap();
    let items: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
    assert_eq!((items, tries.load(Ordering::SeqCst)), (vec![1, 2], 2));
    assert_eq!(
        loader.stats().unwrap().skipped_items[0].error,
        "decode: 0:0: no device"
    );

    let panics = Graph::range(0..3).map_init(|| -> u64 { panic!("no memory") }, |_, n| n);
    let error = panics.collect().unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Panic, "map_init: 0:0: panicked: no memory")
    );
}

#[test]
fn random_numbers_are_those_of_the_item() {
    let drawn = |workers| -> Vec<u64> {
        let graph = Graph::range(0..500).map_init_with_rng(
            || 0,
            |sum, n, rng| {
                *sum += n;
                rng.below(1 << 40)
            },
        );
        let loader = DataLoader::builder(graph)
            .seed(3)
            .workers(workers)
            .build()
            .unwrap();
        loader.epoch(1).blocking().map(Result::unwrap).collect()
    };
    assert_eq!(drawn(0), drawn(3));
}
