//! Messages between parent and child.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::batch_buffer::RowFormat;
use crate::codec::Parcel;
use crate::context::Counters;
use crate::graph::Recipe;
use crate::run::morsel::Needed;
use crate::{Error, Processes, Rank, Reader, Result, Uneven};

wire_struct! {
    /// First message to a child.
    pub(crate) struct Hello {
        pub recipes: Vec<Recipe>,
        /// Names of the part's nodes in the whole graph.
        pub names: Vec<String>,
        /// Numbers of the part's nodes for origins.
        pub sources: Vec<u16>,
        /// Description of the part in the parent; the child must arrive at the same description.
        pub signature: String,
        pub processes: Processes,
        /// Most detailed level of the parent's log, from 0 (nothing) to 5.
        pub level: u8,
        /// Number of jobs that the child may have in progress at once, at least 1: more than one if the
        /// part waits for something.
        pub overlap: usize,
        /// Number of the node that fills rows of batches, if one does.
        pub fills: Option<usize>,
        /// Bytes that are kept for what it has made and nobody has taken over.
        pub room: usize,
        /// Time after which a worker of another machine gives up a parent of which it hears nothing.
        pub heartbeat_timeout: Option<Duration>,
    }
}

wire_struct! {
    /// Hints about the run that a job belongs to.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) struct RunFacts {
        pub seed: u64,
        pub epoch: u64,
        /// True if the part works for a cache.
        pub for_cache: bool,
        pub rank: Rank,
        pub uneven: Option<Uneven>,
        pub max_inflated: Option<u64>,
        pub largest_item: Option<u64>,
        pub round: u64,
    }
}

/// Order from parent to child. The chunk of a job follows the order.
#[derive(Debug, PartialEq)]
pub(super) enum Order {
    Hello,
    Job(JobFacts, Option<Grants>),
    /// Cancels all jobs up to this number.
    Cancel(u64),
    /// Allows a job to make an item, as it asked.
    Allow(u64),
    /// Tells a worker of another machine that the parent is there, and when that was said, in microseconds.
    Alive(u64),
}

/// Rows of batches that a child may fill, for each item of a job. Items whose row is in use already
/// have none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grants {
    pub wanted: RowFormat,
    /// Number of the lent memory and the offset of the row, in bytes.
    pub rows: Vec<Option<(u64, usize)>>,
}

wire_struct! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(super) struct JobFacts {
        pub number: u64,
        pub run: RunFacts,
        /// True if the job is a single item that may end the process: its output is sent at once, so
        /// that the parent knows how far it got.
        pub alone: bool,
        /// Bytes of the heaviest recent item that came out of any child; 0 before the first.
        pub heaviest: usize,
        /// Number of items that the reader has taken so far.
        pub taken: usize,
        /// Items of the job of which the reader needs all.
        pub needed: Needed,
    }
}

wire_enum!(Order { 0 Hello, 1 Job(facts, grants), 2 Cancel(number), 3 Allow(number), 4 Alive(at) });
wire_struct!(Grants { wanted, rows });
/// Report from child to parent. The chunk of an output follows the report.
#[derive(Debug)]
pub(super) enum Report {
    Ready,
    /// The child cannot do the work at all.
    Refused(Error),
    /// Output of a job, with the counts since the last output, and the end of the job if it is the
    /// last.
    Output(u64, Counted, Option<Done>),
    Done(Done),
    Log(LogLine),
    /// Asks for bytes for the next item of a job. Until they are allowed, the job is not continued.
    Ask(u64, usize),
    /// The child wishes to end after the jobs that it has.
    Leaving,
    /// Answers [`Order::Alive`] by what it said.
    Alive(u64),
}

wire_struct! {
    /// End of a job.
    #[derive(Debug, Default, PartialEq)]
    pub(super) struct Done {
        pub number: u64,
        /// Nanoseconds of the job's polls.
        pub busy: u64,
        /// Nanoseconds that the job took, with its waits if it is I/O.
        pub spent: u64,
        /// Counts since the last output.
        pub counted: Counted,
        /// Row that the part asked for last.
        pub wanted: Option<RowFormat>,
        /// True if the part waits for something, so that more jobs can be in progress.
        pub waits: bool,
    }
}

wire_struct! {
    /// Line for the log.
    #[derive(Debug, PartialEq)]
    pub(super) struct LogLine {
        /// Level, from 1 (error) to 5 (trace).
        pub level: u8,
        pub target: String,
        pub text: String,
    }
}

wire_enum!(Report {
    0 Ready,
    1 Refused(error),
    2 Output(number, counted, done),
    3 Done(done),
    4 Log(line),
    5 Ask(number, bytes),
    6 Leaving,
    7 Alive(at),
});
/// Takes any message as a report and as an order.
#[cfg(all(feature = "testing", feature = "remote"))]
pub(super) fn hear(parcel: &Parcel) {
    use crate::Wire;

    if let Ok(Report::Output(_, counts, done)) = Report::decode(&mut parcel.reader()) {
        let counters = Counters::default();
        counts.iter().for_each(|counts| count(&counters, counts));
        let mut all = Counted::new();
        add_up(&mut all, counts);
        add_up(&mut all, done.unwrap_or_default().counted);
        all.iter().for_each(|counts| uncount(&counters, counts));
    }
    let mut from = parcel.reader();
    if let Ok(Order::Hello) = Order::decode(&mut from) {
        let _ = Hello::decode(&mut from);
    }
}

/// Number of counts of a node.
const COUNTS: usize = 6;

/// Counts of each node's counters: [`COUNTS`] numbers, then the times of its items.
pub(super) type Counted = Vec<Vec<u64>>;

/// Takes the values of counters and sets them to zero.
pub(super) fn counted(counters: &Counters) -> Vec<u64> {
    let counts = each(counters).map(|counter| counter.swap(0, Ordering::Relaxed));
    [&counts[..], &counters.item_time.take()].concat()
}

/// Adds values to counters.
pub(super) fn count(counters: &Counters, counted: &[u64]) {
    let each = each(counters);
    if let Some(times) = counted.get(each.len()..) {
        counters.item_time.add_taken(times);
    }
    for (counter, more) in each.into_iter().zip(counted) {
        counter.fetch_add(*more, Ordering::Relaxed);
    }
}

/// Subtracts values that were added to counters before. What an item took has been spent.
pub(super) fn uncount(counters: &Counters, counted: &[u64]) {
    for (counter, less) in each(counters).into_iter().zip(counted) {
        counter.fetch_sub(*less, Ordering::Relaxed);
    }
}

/// Adds counts to those before, without the times of items, which are never subtracted.
pub(super) fn add_up(all: &mut Counted, more: Counted) {
    all.resize(all.len().max(more.len()), vec![0; COUNTS]);
    for (all, more) in all.iter_mut().zip(more) {
        for (all, more) in all.iter_mut().zip(more) {
            *all = all.wrapping_add(more);
        }
    }
}

fn each(counters: &Counters) -> [&AtomicU64; COUNTS] {
    let Counters {
        items,
        chunks,
        errors,
        dropped,
        retried,
        busy_ns,
        item_time: _,
        weight: _,
        sample_bytes: _,
        sample_items: _,
    } = counters;
    [items, chunks, errors, dropped, retried, busy_ns]
}

/// Decodes a parcel, which must have no bytes left over.
pub(super) fn whole<T>(
    parcel: &Parcel,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T>,
) -> Result<T> {
    let mut reader = parcel.reader();
    let value = read(&mut reader)?;
    reader.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Wire, Writer};

    #[test]
    fn orders_arrive() {
        let run = RunFacts {
            seed: u64::MAX,
            epoch: 3,
            for_cache: true,
            rank: Rank { index: 1, world: 4 },
            uneven: Some(Uneven::Pad),
            max_inflated: Some(1 << 30),
            largest_item: Some(1 << 20),
            round: 9,
        };
        let facts = JobFacts {
            number: 7,
            run,
            alone: true,
            heaviest: 1 << 33,
            taken: 1 << 34,
            needed: Needed { first: 3, then: 64 },
        };
        let grants = Grants {
            wanted: (DType::F32, 300),
            rows: vec![Some((1, 0)), None, Some((2, 1200))],
        };
        for order in [
            Order::Hello,
            Order::Cancel(1 << 40),
            Order::Allow(1 << 41),
            Order::Alive(1 << 42),
            Order::Job(facts, None),
            Order::Job(facts, Some(grants)),
        ] {
            let mut writer = Writer::new();
            order.encode(&mut writer).unwrap();
            assert_eq!(whole(&Parcel::of(writer), Order::decode).unwrap(), order);
        }
    }

    #[test]
    fn reports_arrive() {
        let done = || Done {
            number: 5,
            busy: 900,
            spent: 1000,
            counted: vec![vec![1, 2, 3, 4, 5]],
            wanted: Some((DType::U8, 7)),
            waits: true,
        };
        let reports = [
            Report::Ready,
            Report::Refused(Error::user("no")),
            Report::Output(5, vec![vec![7; 5]; 2], None),
            Report::Output(5, vec![vec![7; 5]; 2], Some(done())),
            Report::Done(done()),
            Report::Log(LogLine {
                level: 2,
                target: "a::b".into(),
                text: "hm".into(),
            }),
            Report::Ask(6, 1 << 34),
            Report::Leaving,
            Report::Alive(1 << 42),
        ];
        for report in reports {
            let mut writer = Writer::new();
            report.encode(&mut writer).unwrap();
            let parcel = Parcel::of(writer);
            assert_eq!(
                format!("{:?}", whole(&parcel, Report::decode).unwrap()),
                format!("{report:?}")
            );
        }
    }

    #[test]
    fn counters_add_up() {
        let (here, there) = (Counters::default(), Counters::default());
        there.items.store(3, Ordering::Relaxed);
        there.busy_ns.store(70, Ordering::Relaxed);
        there.item_time.record(70, 1);
        let more = counted(&there);
        count(&here, &more);
        count(&here, &more);
        assert_eq!(counted(&there), [0; COUNTS]);
        uncount(&here, &[1, 0, 0, 0, 0, 20]);
        assert_eq!(here.item_time.histogram().count(), 2);
        assert_eq!(counted(&here)[..COUNTS], [5, 0, 0, 0, 0, 120]);
    }

    /// The counts of a job of several nodes, in several reports, are taken back as a whole.
    #[test]
    fn counts_of_each_node_are_taken_back() {
        let here = [Counters::default(), Counters::default()];
        let there = [Counters::default(), Counters::default()];
        let mut all = Counted::new();
        for round in 0..3 {
            for (node, counters) in there.iter().enumerate() {
                counters.items.store(7 + node as u64, Ordering::Relaxed);
                counters.busy_ns.store(100, Ordering::Relaxed);
                // As many different times as make reports of different lengths.
                for time in 0..(2 * node + round) as u32 {
                    counters.item_time.record(1 << time, 1);
                }
            }
            let more: Counted = there.iter().map(counted).collect();
            for (counters, more) in here.iter().zip(&more) {
                count(counters, more);
            }
            add_up(&mut all, more);
        }
        assert_eq!(here[1].items.load(Ordering::Relaxed), 24);
        assert_eq!(all.len(), 2);
        for (counters, all) in here.iter().zip(&all) {
            uncount(counters, all);
            assert_eq!(counted(counters)[..COUNTS], [0; COUNTS]);
        }
    }
}
