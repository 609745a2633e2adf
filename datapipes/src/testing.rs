//! The conformance kit: checks the contract for any pipe, source, join or split, including those of
//! third parties; awkward inputs; leak gauges.
//!
//! The kit needs the feature `testing`, best among the `[dev-dependencies]`: `datapipes = { …,
//! features = ["testing"] }`.
//!
//! ```
//! use datapipes::pipes::{Batch, Map};
//! datapipes::testing::check_pipe(&Map::new(|n: u64| n * 2), (0..20).collect());
//! datapipes::testing::check_pipe(&Batch::new(3), (0..20u64).collect());
//! ```
//! The other kinds of nodes have [`check_source`], [`check_join`] and [`check_split`]; data that is read by
//! index has [`check_map_pipe`].
//!
//! All functions of this module panic with a description if the contract does not hold: they are
//! for tests.

mod cases;
mod errors;
mod feed;
mod join;
mod lineage;
mod map_pipe;
mod node;
mod pipe;
mod rescaled;
mod source;
mod split;
mod stopped;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{self, Poll, Waker};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use tokio::runtime::Runtime;

use crate::codec::{Parcel, WireOf};
use crate::items::{Chunks, Demand};
use crate::{
    Arity, Chunk, Context, DataLoader, Error, ErrorKind, Graph, Hints, Item, Items, Origin, Pipe,
    Reader, Result, Tensor, Wire, Writer,
};

pub use crate::run::block_on;
#[doc(hidden)]
pub use cases::{cases, some_of};
pub use feed::JoinInputs;
#[cfg(test)]
pub(crate) use join::check_but_len;
pub use join::check_join;
pub use map_pipe::check_map_pipe;
pub use pipe::check_pipe;
pub use source::check_source;
pub use split::check_split;

/// Output of a node, in a form that can be compared: values with origins, and errors as text.
pub type Outcome<T> = Vec<std::result::Result<(T, Origin), String>>;

const MARK: &str =
    "made on purpose by the kit that checks nodes, to see whether this one passes it on";

/// Runs a stream to its end on this thread.
pub fn collect<T: Send + 'static>(items: Items<T>) -> Outcome<T> {
    collect_by(items, 64)
}

/// Sets how many processes of each part get work, as a loader that tunes itself does.
pub fn set_active_processes<T: Send + 'static>(loader: &DataLoader<T>, processes: usize) {
    let active = &loader.engine.live.processes;
    active.store(processes, Ordering::Relaxed);
}

/// Runs a graph once, inline, and collects the output, as [`Graph::collect`] does, but on an async
/// runtime that all calls share. Tests that run thousands of graphs would otherwise start threads
/// for each.
///
/// # Errors
/// The first error of an item.
///
/// # Panics
/// Panics if the graph cannot run.
pub fn collect_graph<T: Send + 'static>(graph: Graph<T>) -> Result<Vec<T>> {
    let _entered = runtime().enter();
    let loader = DataLoader::builder(graph).workers(0).build();
    block_on(loader.expect("the graph can run").epoch(0).try_collect())
}

fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder.worker_threads(1).enable_all();
        builder.build().expect("a runtime starts")
    });
    &RUNTIME
}

fn collect_by<T: Send + 'static>(mut items: Items<T>, demand: usize) -> Outcome<T> {
    let mut out = Vec::new();
    while let Some(chunk) = block_on(items.next_chunk(demand)) {
        assert!(!chunk.is_empty(), "an empty chunk");
        out.extend(chunk.into_iter().map(outcome));
    }
    out
}

fn outcome<T>(item: Result<Item<T>>) -> std::result::Result<(T, Origin), String> {
    item.map(Item::into_parts)
        .map_err(|error| error.to_string())
}

fn assert_same<T: PartialEq + Debug>(is: &Outcome<T>, should: &Outcome<T>, what: &str) {
    assert_eq!(is, should, "{what} gives something else");
}

/// Makes numbered items of one source.
pub fn numbered<T: Clone>(values: &[T]) -> Vec<Item<T>> {
    values
        .iter()
        .cloned()
        .enumerate()
        .map(|(i, v)| Item::new(v, Origin::root(0, i as u64)))
        .collect()
}

fn steady<T: Clone + Send + 'static>(items: &[Item<T>]) -> Items<T> {
    Items::from_results(items.iter().cloned().map(Ok).collect::<Vec<_>>())
}

/// A gauge that counts the polls of a stream, and sees when it is dropped.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<(AtomicUsize, AtomicBool)>);

impl Gauge {
    /// Watches a stream.
    pub fn watch<T: Send + 'static>(&self, items: Items<T>) -> impl Chunks<T> + 'static {
        Watched {
            items,
            gauge: self.clone(),
        }
    }

    /// Returns how often it was polled.
    pub fn polls(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    /// Returns true if it was dropped.
    pub fn dropped(&self) -> bool {
        self.0.1.load(Ordering::SeqCst)
    }
}

struct Watched<T> {
    items: Items<T>,
    gauge: Gauge,
}

impl<T: Send + 'static> Chunks<T> for Watched<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        self.gauge.0.0.fetch_add(1, Ordering::SeqCst);
        self.items.poll_chunk(cx, demand)
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.gauge.0.1.store(true, Ordering::SeqCst);
    }
}

/// A stream that is pending before each chunk, wakes at once, and gives chunks of changing size.
struct Pausing<T> {
    items: Items<T>,
    seed: u64,
    ready: bool,
}

impl<T: Send + 'static> Chunks<T> for Pausing<T> {
    fn poll_chunk(&mut self, cx: &mut task::Context<'_>, demand: Demand) -> Poll<Option<Chunk<T>>> {
        self.ready = !self.ready;
        if self.ready {
            self.seed = crate::mix_bits(self.seed.wrapping_add(1));
            if !self.seed.is_multiple_of(3) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.ready = false;
        }
        self.items
            .poll_chunk(cx, demand.at_most(1 + (self.seed % 5) as usize))
    }
}

/// Makes a stream that is pending before each chunk and wakes at once, in a pattern that `seed`
/// sets; the items are those of `items`, in chunks of changing size.
pub fn pausing<T: Send + 'static>(items: Items<T>, seed: u64) -> Items<T> {
    Items::from_chunks(Pausing {
        items,
        seed,
        ready: false,
    })
}

/// One entry of a [`Ledger`]: a number, and a payload that goes with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgerEntry {
    /// Number of the entry, from 0.
    pub number: u64,
    payload: [u64; 4],
}

impl LedgerEntry {
    fn new(number: u64) -> Self {
        LedgerEntry {
            number,
            payload: [1, 2, 3, 4].map(|word| crate::mix_bits(number ^ (word << 60))),
        }
    }
}

/// An oracle for "nothing lost, nothing doubled": a source of numbered entries, and a check of
/// those that arrived.
///
/// ```
/// use datapipes::{DataLoader, testing::Ledger};
/// let ledger = Ledger::new(100);
/// let loader = DataLoader::builder(ledger.source().shuffle(10)).build()?;
/// let arrived: Vec<_> = loader.epoch(0).blocking().collect::<Result<_, _>>()?;
/// ledger.check_complete(&arrived);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    entries: u64,
}

impl Ledger {
    /// Makes a ledger of this many entries.
    pub fn new(entries: u64) -> Self {
        Ledger { entries }
    }

    /// Returns the entries, in order.
    pub fn source(&self) -> Graph<LedgerEntry> {
        Graph::range(0..self.entries)
            .map(LedgerEntry::new)
            .named("ledger")
    }

    /// Checks that each entry arrived once, in any order.
    ///
    /// # Panics
    /// Panics if an entry is missing, doubled or damaged; the message names some.
    pub fn check_complete(&self, arrived: &[LedgerEntry]) {
        self.check(arrived, |_| false);
    }

    /// Checks that each entry arrived once, in any order, except for those for which `absent`
    /// returns true, which were left out or failed.
    ///
    /// # Panics
    /// Panics if an entry is missing, doubled, damaged, or there although it should be absent.
    pub fn check(&self, arrived: &[LedgerEntry], absent: impl Fn(u64) -> bool) {
        let mut counts = vec![0u32; self.entries as usize];
        for entry in arrived {
            assert_eq!(
                *entry,
                LedgerEntry::new(entry.number),
                "entry {} is damaged",
                entry.number
            );
            counts[entry.number as usize] += 1;
        }
        let wrong: Vec<(u64, u32)> = (0u64..)
            .zip(counts)
            .filter(|&(n, c)| c != u32::from(!absent(n)))
            .take(10)
            .collect();
        assert!(
            wrong.is_empty(),
            "entries that did not arrive as often as they should, and how often: {wrong:?}"
        );
    }

    /// Checks that the entries arrived from the first on, in order, without a gap: the output of a
    /// strict order before an error.
    ///
    /// # Panics
    /// Panics if they did not.
    pub fn check_prefix(&self, arrived: &[LedgerEntry]) {
        for (place, entry) in arrived.iter().enumerate() {
            assert_eq!(*entry, LedgerEntry::new(place as u64), "at place {place}");
        }
    }
}

/// Makes the n-th of some calls fail; see [`each_failure`].
#[derive(Clone, Debug)]
pub struct Fail(Arc<FailState>);

#[derive(Debug)]
struct FailState {
    nth: usize,
    calls: AtomicUsize,
    from_then_on: bool,
}

impl Fail {
    /// Makes one call, which returns an error if it is the call that fails.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for the n-th call, or, if so chosen, for it and all after it.
    pub fn call(&self) -> Result<()> {
        let call = self.0.calls.fetch_add(1, Ordering::SeqCst);
        if call == self.0.nth || (self.0.from_then_on && call > self.0.nth) {
            return Err(Error::new(
                ErrorKind::Io,
                format!("call {call} was made to fail"),
            ));
        }
        Ok(())
    }

    /// Returns true if a call has failed.
    pub fn happened(&self) -> bool {
        self.0.calls.load(Ordering::SeqCst) > self.0.nth
    }
}

/// Runs a function again and again. In the first run its first [`Fail::call`] fails, in the next
/// the second, and so on until a run meets no failure. Then all is repeated, with every later call
/// of a run failing as well. SQLite tests in this way.
///
/// # Panics
/// Panics if no end comes in sight.
pub fn each_failure(mut run: impl FnMut(&Fail)) {
    for from_then_on in [false, true] {
        let mut nth = 0;
        loop {
            let fail = Fail(Arc::new(FailState {
                nth,
                calls: AtomicUsize::new(0),
                from_then_on,
            }));
            run(&fail);
            if !fail.happened() {
                break;
            }
            nth += 1;
            assert!(nth < 100_000, "a run makes more and more calls");
        }
    }
}

/// Threads, descriptors and children of this process. Reads `/proc`, so the numbers are meaningful
/// on Linux only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Number of threads whose name begins with `datapipes`.
    pub threads: usize,
    /// Number of open descriptors.
    pub descriptors: usize,
}

impl Resources {
    /// Returns the resources in use now.
    pub fn now() -> Self {
        let named = |path: std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm")).unwrap_or_default()
        };
        let tasks = std::fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        let threads = tasks
            .filter(|task| named(task.path()).starts_with("datapipes"))
            .count();
        // The listing itself uses a descriptor.
        let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count() - 1);
        Resources {
            threads,
            descriptors,
        }
    }

    /// Waits until no more resources are in use than at the time of `self`.
    ///
    /// # Panics
    /// Panics if that takes more than two seconds.
    pub fn assert_back(&self) {
        let begun = std::time::Instant::now();
        loop {
            let now = Resources::now();
            if now.threads <= self.threads && now.descriptors <= self.descriptors {
                return;
            }
            assert!(
                begun.elapsed().as_secs() < 2,
                "left over: {now:?}, before: {self:?}"
            );
            std::thread::yield_now();
        }
    }
}

/// Polls once, without a task to wake.
pub fn poll_once<T: Send + 'static>(items: &mut Items<T>) -> Poll<Option<Result<Item<T>>>> {
    Pin::new(items).poll_next(&mut task::Context::from_waker(Waker::noop()))
}

/// Makes batches of `[size, 2]`, `f32`, whose rows were filled in the memory of the batch
/// ([`Context::row`]): for tests of code that takes batches over. Row `n` of all is `[n, n + 1]`.
pub fn pooled_batches(items: u64, size: usize) -> Graph<Tensor> {
    struct Fill;

    impl Pipe<u64> for Fill {
        type Out = Tensor;

        fn apply(&self, input: Items<u64>, cx: &Context) -> Items<Tensor> {
            let rows = cx.clone();
            input.each(cx, move |item| {
                Some(item.try_map(|n| {
                    let mut row = rows.row::<f32>([2])?;
                    row.as_mut_slice()?
                        .copy_from_slice(&[n as f32, (n + 1) as f32]);
                    Ok(row)
                }))
            })
        }
        fn hints(&self) -> Hints {
            Hints::shardable().arity(Arity::One).rows(true)
        }
    }

    Graph::range(0..items).pipe(Fill).batch(size).collate()
}

/// Sends a value to another process in the encoded form and returns the value read from it: for
/// tests of your own [`Wire`] types. Checks that nothing is left over, and that the value takes at
/// least one byte.
///
/// # Errors
/// Errors of the value's encoding or decoding.
///
/// # Panics
/// Panics if the contract of [`Wire`] does not hold.
pub fn sent<T: Wire>(value: &T) -> Result<T> {
    let mut writer = Writer::new();
    value.encode(&mut writer)?;
    let parcel = Parcel::of(writer);
    assert!(
        !parcel.head.is_empty(),
        "a value of {} that takes no bytes",
        std::any::type_name::<T>()
    );
    let mut reader = parcel.reader();
    let value = T::decode(&mut reader)?;
    if let Err(left) = reader.end() {
        panic!(
            "`decode` of {} reads less than `encode` wrote: {left}",
            std::any::type_name::<T>()
        );
    }
    Ok(value)
}

/// Checks that a value is the same after encoding and decoding, and that damage is found. Each cut
/// of its bytes is an error of [`ErrorKind::Protocol`], and each flipped bit gives such an error or
/// another value. For a long value the first 1000 bytes are cut and flipped.
///
/// # Panics
/// Panics if that does not hold.
pub fn check_wire<T: Wire + Debug>(value: &T) {
    let back = sent(value).expect("it can travel");
    assert_eq!(format!("{back:?}"), format!("{value:?}"));
    let whole = wire_bytes(value).expect("it can travel");
    assert_eq!(wire_bytes(&back).expect("it can travel again"), whole);
    let damaged = |bytes: &[u8]| wire_from::<T>(bytes, &[]).err().map(|error| error.kind());
    for at in 0..whole.len().min(1000) {
        assert_eq!(
            damaged(&whole[..at]),
            Some(ErrorKind::Protocol),
            "{value:?}: cut at {at}"
        );
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let kind = damaged(&bytes);
            assert!(
                kind.is_none_or(|kind| kind == ErrorKind::Protocol),
                "{value:?}: {kind:?} at {at}"
            );
        }
    }
}

/// Encodes a value: its bytes, large slices last. For tests that damage them.
///
/// # Errors
/// Errors of the value's encoding.
pub fn wire_bytes<T: Wire>(value: &T) -> Result<Vec<u8>> {
    let mut writer = Writer::new();
    value.encode(&mut writer)?;
    let (head, payloads) = writer.into_parts();
    Ok([&[&head[..]], &payloads[..]].concat().concat())
}

/// Reads a value from any bytes, with slices of 64 KiB and more beside them; bytes after the value
/// are ignored.
///
/// # Errors
/// Errors of the value's decoding.
pub fn wire_from<T: Wire>(bytes: &[u8], large: &[Bytes]) -> Result<T> {
    T::decode(&mut Reader::new(bytes, large))
}

/// Takes any bytes as those that come from another machine: the start of a connection, on both sides, and
/// the messages after it.
#[doc(hidden)]
#[cfg(all(feature = "remote", target_os = "linux"))]
pub fn hear_machine(bytes: &[u8]) {
    crate::run::child::hear(bytes);
}

/// Reads items from any bytes, as they are sent between processes, and returns them with their
/// bytes when encoded again.
///
/// # Errors
/// Errors of the message, not of its items.
pub fn wire_chunk<T: Wire>(bytes: &[u8], large: &[Bytes]) -> Result<(Chunk<T>, Vec<u8>)> {
    let wire = WireOf::<T>::new();
    let any = wire.decode(&mut Reader::new(bytes, large))?;
    let len = any.downcast_ref::<Chunk<T>>().map_or(0, Chunk::len);
    let mut writer = Writer::new();
    wire.encode(&*any, 0..len, &mut writer);
    let (head, payloads) = writer.into_parts();
    let again = [&[&head[..]], &payloads[..]].concat().concat();
    let chunk = any.downcast::<Chunk<T>>().expect("it was read as such");
    Ok((*chunk, again))
}
