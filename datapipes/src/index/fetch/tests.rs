use super::*;
use crate::index::Indexed;
use crate::{DataLoader, Error, ErrorKind, OnError, async_trait, testing};
use std::sync::Mutex;

/// A lookup that fails for some keys, panics for others, and records what it is asked for.
#[derive(Default)]
struct Awkward {
    asked: Mutex<Vec<Vec<u64>>>,
    /// True if `get_many` panics as a whole.
    together: bool,
}

#[async_trait]
impl Lookup<u64> for Awkward {
    type Out = u64;

    async fn get(&self, key: u64) -> Result<u64> {
        self.asked.lock().unwrap().push(vec![key]);
        tokio::task::yield_now().await;
        match key % 5 {
            2 => Err(Error::not_found("no such key")),
            3 => panic!("three"),
            _ => Ok(key * 10),
        }
    }
    async fn get_many(&self, keys: Vec<u64>) -> Vec<Result<u64>> {
        self.asked.lock().unwrap().push(keys.clone());
        assert!(
            !self.together || !keys.iter().any(|key| key % 5 == 3),
            "over several"
        );
        futures::future::join_all(keys.into_iter().map(|key| contained(self.get(key)))).await
    }
}

#[test]
fn keeps_the_contract() {
    testing::check_pipe(&Fetch::new(Awkward::default()), (0..12u64).collect());
    testing::check_pipe(
        &Fetch::new(Awkward {
            together: true,
            ..Awkward::default()
        }),
        (0..12u64).collect(),
    );
}

#[test]
fn an_error_and_a_panic_cost_one_item_each_and_say_which() {
    for together in [false, true] {
        for demand in [1, 3, 64] {
            let cx = Context::default();
            let input = Items::from_chunk(cx.run((0..6u64).collect(), 0));
            let fetch = Fetch::new(Awkward {
                together,
                ..Awkward::default()
            });
            let mut output = fetch.apply(input, &cx);
            let mut seen = Vec::new();
            while let Some(chunk) = testing::block_on(output.next_chunk(demand)) {
                seen.extend(chunk);
            }
            let shown = seen.iter().map(|item| match item {
                Ok(item) => format!("{}", **item),
                Err(error) => error.to_string(),
            });
            let expected = [
                "0",
                "10",
                "0:2: not found: no such key",
                "0:3: panicked: three",
                "40",
                "50",
            ];
            assert_eq!(Vec::from_iter(shown), expected, "{demand} at once");
        }
    }
}

#[test]
fn keys_at_hand_are_asked_for_together() {
    let cx = Context::default();
    let lookup = Arc::new(Awkward::default());
    let input = Items::from_chunk(cx.run(vec![0u64, 1, 5], 0));
    let mut output = Fetch::shared(lookup.clone()).apply(input, &cx);
    assert_eq!(
        testing::block_on(output.next_chunk(64)).unwrap().values(),
        [0, 10, 50]
    );
    assert_eq!(lookup.asked.lock().unwrap()[0], [0, 1, 5]);
}

#[test]
fn a_lookup_that_forgets_keys_is_found_out() {
    struct Forgetful;
    #[async_trait]
    impl Lookup<u64> for Forgetful {
        type Out = u64;
        async fn get(&self, key: u64) -> Result<u64> {
            Ok(key)
        }
        async fn get_many(&self, keys: Vec<u64>) -> Vec<Result<u64>> {
            keys.into_iter().skip(1).map(Ok).collect()
        }
    }
    let found = testing::block_on(get_all(&Forgetful, vec![1u64, 2]));
    assert!(
        found.len() == 2
            && found
                .iter()
                .all(|f| f.as_ref().unwrap_err().kind() == ErrorKind::Protocol)
    );
}

/// Keeps as many lookups in flight as are asked for, in strict order.
#[test]
fn the_number_in_flight_is_the_one_given() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for fixed in [1, 3, 20] {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (concurrency, peak) = (now.clone(), most.clone());
        let samples = Indexed::from_fn(200, move |index| {
            let (now, most) = (concurrency.clone(), peak.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Yields until other lookups had their turn.
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Error>(index)
            }
        });
        let graph = samples.concurrency(fixed).map(|n| n).fetch();
        let loader = DataLoader::builder(graph)
            .workers(1)
            .on_error(OnError::fail())
            .build()
            .unwrap();
        let seen: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(seen, Vec::from_iter(0..200));
        let most = most.load(Ordering::SeqCst);
        assert!(
            most <= fixed && (most > 1 || fixed == 1),
            "{most} of {fixed}"
        );
    }
}
