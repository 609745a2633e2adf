//! The conformance kit, applied to every built-in pipe, source, join and split. The tests fail if a
//! new one is missing here.

use std::any::type_name;
use std::collections::BTreeSet;
use std::fmt::Debug;

use datapipes::index::{Fetch, FetchBatches, Lookup};
use datapipes::pipes::*;
use datapipes::testing::JoinInputs;
use datapipes::{Error, Join, Pipe, Result, Source, Split, async_trait, testing};

use crate::structure::{self, ident, words};

/// Exports other than pipes, with the reason why the kit does not apply.
const NO_PIPES: &[(&str, &str)] = &[
    ("Batched", "a trait"),
    ("ClassBalanced", "a sampler"),
    ("Digest", "what `Digested` adds up"),
    ("Distributed", "a sampler"),
    ("Drawn", "what a sampler gives"),
    ("Draws", "what a sampler gives"),
    ("GreedyJoin", "a join whose order depends on timing"),
    ("Indexed", "a handle on data by index"),
    ("LengthGrouped", "a sampler"),
    ("Permutation", "what a sampler is made of"),
    ("Random", "a sampler"),
    ("Repeat", "a rerun"),
    ("Replacement", "a sampler"),
    ("Sampler", "a trait"),
    ("SamplerExt", "a trait"),
    ("Schedule", "a setting of `Mix`"),
    ("Sequential", "a sampler"),
    ("Stop", "a setting of `Mix`"),
    ("Subset", "a sampler"),
    ("Weighted", "a sampler"),
    ("WeightedOnce", "a sampler"),
];

#[derive(Default)]
struct Checked(BTreeSet<String>);

impl Checked {
    fn check<In, P>(&mut self, pipe: P, input: Vec<In>)
    where
        In: Clone + Debug + Send + 'static,
        P: Pipe<In>,
        P::Out: PartialEq + Debug,
    {
        self.saw::<P>();
        testing::check_pipe(&pipe, input);
    }

    fn check_join<I: JoinInputs, J: Join<I::Items, Out: PartialEq + Debug>>(
        &mut self,
        join: J,
        inputs: I,
    ) {
        self.saw::<J>();
        testing::check_join(&join, inputs);
    }

    fn check_split<S: Split<u64, Out: PartialEq + Debug>>(&mut self, split: S) {
        self.saw::<S>();
        testing::check_split(&split, (0..8).collect());
    }

    fn check_source<S: Source<Out: PartialEq + Debug>>(&mut self, source: S) {
        self.saw::<S>();
        testing::check_source(&source);
    }

    fn saw<N>(&mut self) {
        let name = type_name::<N>().split('<').next().unwrap_or_default();
        self.0
            .insert(name.rsplit("::").next().unwrap_or_default().to_owned());
    }
}

#[test]
fn every_pipe_keeps_the_contract() {
    let numbers = || Vec::from_iter(0..testing::cases(10).max(6) as u64);
    let batches = || {
        vec![
            vec![1u64, 2],
            vec![],
            vec![3],
            vec![4, 5, 6],
            vec![7, 8],
            vec![9],
            vec![1],
            vec![2, 3],
        ]
    };
    let odd = |n: u64| if n % 5 == 3 { Err("three") } else { Ok(n) };
    let mut checked = Checked::default();
    checked.check(Map::new(|n: u64| n + 1), numbers());
    checked.check(TryMap::new(odd), numbers());
    checked.check(
        MapWithRng::new(|n: u64, rng: &mut datapipes::Rng| Ok::<_, Error>(n + rng.below(100))),
        numbers(),
    );
    checked.check(
        MapAsync::new(|n: u64| async move {
            tokio::task::yield_now().await;
            Ok::<_, Error>(n + 1)
        }),
        numbers(),
    );
    checked.check(
        MapInit::new(
            || Ok::<_, Error>(Vec::new()),
            move |seen: &mut Vec<u64>, n: u64| {
                seen.push(n);
                odd(n)
            },
        ),
        numbers(),
    );
    checked.check(
        MapInitWithRng::new(
            || Ok::<_, Error>(0),
            |last: &mut u64, n: u64, rng: &mut datapipes::Rng| {
                *last = n;
                Ok::<_, Error>(n + rng.below(100))
            },
        ),
        numbers(),
    );
    checked.check(Filter::new(|n: &u64| n % 3 != 1), numbers());
    checked.check(FlatMap::new(|n: u64| 0..n % 4), numbers());
    // The scan reads items in order. It never ends, since items after its end would be lost.
    checked.check(
        Scan::new(0, |sum: &mut u64, n: u64| {
            *sum += n;
            Some(*sum)
        }),
        numbers(),
    );
    let sums = Scan::new(0, |sum: &mut u64, n: u64| {
        *sum += n;
        Some(*sum)
    });
    checked.check(sums.resumable(), numbers());
    checked.check(
        Digested::new(Digest::new(), |n: &u64| n.to_le_bytes()),
        numbers(),
    );
    checked.check(Inspect::new(|_: &u64| {}), numbers());
    checked.check(Enumerate::new(), numbers());
    checked.check(Take::new(100), numbers());
    for items in [0, 5, 100] {
        checked.check(Skip::new(items), numbers());
    }
    for size in [1, 5, 100] {
        checked.check(Batch::new(size), numbers());
        checked.check(Batch::new(size).drop_last(), numbers());
        checked.check(
            BucketBatch::new(|n: &u64| *n as usize, [4], [size, 3]),
            numbers(),
        );
        checked.check(
            BucketBatch::new(|n: &u64| *n as usize, [4], [size, 3]).drop_last(),
            numbers(),
        );
        checked.check(Shuffle::new(size), numbers());
        checked.check(Shuffle::new(size).within_rank(), numbers());
        checked.check(SortWindow::new(size, |n: &u64| n % 4), numbers());
        checked.check(Sample::new(size), numbers());
        checked.check(Prefetch::new(size), numbers());
    }
    checked.check(SampleWith::new(0.5), numbers());
    checked.check(Unbatch::new(), batches());
    checked.check(
        Pad::new(0u64),
        (0..8)
            .map(|n| vec![vec![n; n as usize % 3], vec![n]])
            .collect(),
    );
    checked.check(
        Pad::new((0, ())),
        (0..8)
            .map(|n| vec![(vec![n; n as usize % 3], n), (vec![n], 1)])
            .collect(),
    );
    checked.check(
        CollateWith::new(|batch: Vec<u64>| Ok::<_, Error>(batch.len())),
        batches(),
    );
    checked.check(Collate::new(), batches());
    // The input is larger than the cache: a cache that holds everything gives its items without its
    // input.
    checked.check(Cache::new(3), numbers());
    checked.check(ShardingFilter::new(), numbers());
    checked.check(ShardingFilterPadded::new(), numbers());
    checked.check(Retry::new(TryMap::new(odd), 2), numbers());
    checked.check(Retry::new(FlatMap::new(|n: u64| 0..n % 4), 2), numbers());

    checked.check(Fetch::new(Squares), numbers());
    checked.check(FetchBatches::new(Squares), batches());

    let inputs = || vec![Vec::from_iter(0..4u64), vec![10, 11], vec![]];
    checked.check_join(Concat::new(3), inputs());
    let by_key = || HashJoin::new(|n: &u64| n % 5, |n: &u64| n % 7);
    checked.check_join(by_key(), (numbers(), numbers()));
    checked.check_join(by_key().left(), (numbers(), vec![3, 1, 9]));
    let sorted = || MergeJoin::new(|n: &u64| n / 3, |n: &u64| n / 2);
    checked.check_join(sorted(), (numbers(), vec![1, 3, 6, 9, 4]));
    checked.check_join(sorted().left(), (numbers(), vec![1, 3, 6, 9, 4]));
    checked.check_join(Interleave::new(3, 2, 2), inputs());
    checked.check_join(Mix::new([2.0, 1.0, 1.0]), inputs());
    checked.check_join(
        MixBySize::new([2.0, 1.0, 1.0], |n: &u64| *n as usize),
        inputs(),
    );
    checked.check_join(Mux::new(3), inputs());
    checked.check_join(Zip::new(), (vec![1u8, 2, 3], vec!["a", "b"]));
    checked.check_split(Fork::new(2));
    checked.check_split(Demux::new(2, |n: &u64| (n % 3) as usize % 2));
    checked.check_source(FromIterator::new(|| 0..9));
    checked.check_source(FromStream::new(|| {
        Ok(futures::stream::iter((0..9).map(Ok)))
    }));

    let exported = exported();
    assert!(
        exported.len() > 30,
        "the list of exports was not read: {exported:?}"
    );
    let known: BTreeSet<String> = NO_PIPES
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    for name in &exported {
        assert!(
            checked.0.contains(name) != is_no_pipe(name),
            "`{name}` should be checked here, or stand in `NO_PIPES` with a reason"
        );
    }
    let gone: Vec<_> = known
        .union(&checked.0)
        .filter(|name| !exported.contains(*name))
        .collect();
    assert!(gone.is_empty(), "no longer exported: {gone:?}");
}

/// Squares, but of five.
struct Squares;

#[async_trait]
impl Lookup<u64> for Squares {
    type Out = u64;

    async fn get(&self, key: u64) -> Result<u64> {
        tokio::task::yield_now().await;
        if key == 5 {
            Err(Error::not_found("five"))
        } else {
            Ok(key * key)
        }
    }
}

/// Returns true for an export that is no pipe, or none that the kit applies to.
pub fn is_no_pipe(name: &str) -> bool {
    NO_PIPES.iter().any(|(other, _)| *other == name)
}

/// The nodes that files implement: the type of each, and the name that its `name` method returns, or
/// that the type gives it.
pub fn nodes<'a>(
    files: impl IntoIterator<Item = &'a structure::Source>,
) -> BTreeSet<(String, String)> {
    const KINDS: [&str; 6] = ["Pipe<", "Join<", "Split<", "Source", "Rerun<", "Sampler"];
    let mut nodes = BTreeSet::new();
    for file in files {
        let begins_line = |at: &usize| file.code[..*at].trim_end_matches(' ').ends_with('\n');
        let mut begins = Vec::from_iter(words(&file.code, "impl").filter(begins_line));
        begins.push(file.code.len());
        for block in begins.windows(2) {
            let of = &file.code[block[0]..block[1]];
            let Some((head, body)) = of.split_once('{') else {
                continue;
            };
            let Some((kind, of)) = head.split_once(" for ") else {
                continue;
            };
            // The template of a macro.
            if head.contains('$') {
                continue;
            }
            let is_node = |known| kind.contains(&format!(" {known}"));
            // Methods of a node's trait make no node.
            if !KINDS.iter().any(is_node) || kind.ends_with("Ext") {
                continue;
            }
            let of = ident(of);
            let named = body.split_once("fn name(&self)").map_or("", |(_, named)| {
                let text = &file.text[block[1] - named.len()..];
                text.split('}').next().unwrap_or_default()
            });
            let mut names: Vec<String> = named
                .split('"')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect();
            if names.is_empty() {
                names.push(snake_case(of));
            }
            nodes.extend(names.into_iter().map(|name| (of.to_owned(), name)));
        }
        // A macro writes both joins of a type, with the names of their nodes.
        for call in file.text.split("\njoins_by_key!(").skip(1) {
            let call = call.split(')').next().unwrap_or_default();
            let types = [ident(call), "LeftJoin"].into_iter();
            let names = call.split('"').skip(1).step_by(2);
            nodes.extend(
                types
                    .zip(names)
                    .map(|(of, name)| (of.to_owned(), name.to_owned())),
            );
        }
    }
    nodes
}

/// The name that a type gives its node: `MapAsync` → `map_async`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// Names after `pub use` in the modules of pipes and of data by index.
pub fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for module in ["pipes", "index"] {
        let path = format!(
            "{}/datapipes/src/{module}/mod.rs",
            env!("CARGO_MANIFEST_DIR")
        );
        let source = std::fs::read_to_string(path).expect("the module");
        for item in source.split("pub use ").skip(1) {
            let (path, _) = item.split_once(';').expect("`pub use …;`");
            let (_, list) = path.split_once("::").expect("`file::Name`");
            let list = list.trim_matches(['{', '}']).split(',').map(str::trim);
            names.extend(list.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    names
}
