//! What parent and child say to each other.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::context::Counters;
use crate::graph::Recipe;
use crate::wire::{Parcel, damaged};
use crate::{Error, Processes, Rank, Reader, Result, Uneven, Wire, Writer};

/// The first that a child hears.
pub(crate) struct Hello {
    pub recipes: Vec<Recipe>,
    /// For each node of the part: its name in the whole graph.
    pub names: Vec<String>,
    /// For each node: its number for origins.
    pub sources: Vec<u16>,
    /// What the part is like in the parent; the child has to come to the same.
    pub likeness: String,
    pub processes: Processes,
    /// The most detailed level that the parent's log wants, from 0 (nothing) to 5.
    pub level: u8,
    /// Pieces of work that the child may have open at once.
    pub overlap: usize,
}

impl Wire for Hello {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.recipes.encode(to)?;
        self.names.encode(to)?;
        self.sources.encode(to)?;
        self.likeness.encode(to)?;
        self.processes.encode(to)?;
        self.level.encode(to)?;
        self.overlap.encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Hello {
            recipes: Wire::decode(from)?,
            names: Wire::decode(from)?,
            sources: Wire::decode(from)?,
            likeness: Wire::decode(from)?,
            processes: Wire::decode(from)?,
            level: Wire::decode(from)?,
            overlap: Wire::decode(from)?,
        })
    }
}

/// What a child has to know of the run that a piece of work belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunFacts {
    pub seed: u64,
    pub epoch: u64,
    pub rank: Rank,
    pub uneven: Option<Uneven>,
    pub round: u64,
}

/// What a parent asks for. Behind a job stands its chunk.
#[derive(Debug, PartialEq)]
pub(super) enum Order {
    Hello,
    Job(JobFacts),
    /// Nobody wants what jobs up to this number give.
    Cancel(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct JobFacts {
    pub number: u64,
    pub run: RunFacts,
    /// It is one item that may end the process: what comes out is to be told at once, so that it is known how far it got.
    pub alone: bool,
}

impl Order {
    pub(super) fn write(&self, to: &mut Writer<'_>) {
        match self {
            Order::Hello => to.raw(&[0]),
            Order::Job(JobFacts { number, run, alone }) => {
                to.raw(&[1]);
                let uneven = match run.uneven {
                    None => 0,
                    Some(Uneven::Drop) => 1,
                    Some(Uneven::Pad) => 2,
                    Some(Uneven::Allow) => 3,
                    Some(Uneven::Error) => 4,
                };
                let Rank { index, world } = run.rank;
                let (index, world) = (index as u64, world as u64);
                for n in [*number, run.seed, run.epoch, index, world, uneven, run.round, u64::from(*alone)] {
                    to.number(n);
                }
            }
            Order::Cancel(number) => {
                to.raw(&[2]);
                to.number(*number);
            }
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self> {
        Ok(match u8::decode(from)? {
            0 => Order::Hello,
            1 => {
                let mut n = [0; 8];
                for n in &mut n {
                    *n = from.number()?;
                }
                let [number, seed, epoch, index, world, uneven, round, alone] = n;
                let uneven = match uneven {
                    0 => None,
                    1 => Some(Uneven::Drop),
                    2 => Some(Uneven::Pad),
                    3 => Some(Uneven::Allow),
                    4 => Some(Uneven::Error),
                    other => return Err(damaged(format_args!("{other} is no rule for uneven ranks"))),
                };
                let rank = Rank { index: index as usize, world: world as usize };
                let run = RunFacts { seed, epoch, rank, uneven, round };
                Order::Job(JobFacts { number, run, alone: alone != 0 })
            }
            2 => Order::Cancel(from.number()?),
            other => return Err(damaged(format_args!("{other} is no order"))),
        })
    }
}

/// What a child answers. Behind an output stands its chunk.
#[derive(Debug)]
pub(super) enum Report {
    Ready,
    /// It cannot do the work at all.
    Refused(Error),
    Output(u64),
    Done(Done),
    Log(Log),
}

/// A job is done.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Done {
    pub number: u64,
    /// Nanoseconds that it took.
    pub spent: u64,
    /// For each node what its counters counted.
    pub counted: Vec<Vec<u64>>,
}

/// Something for the log.
#[derive(Debug, PartialEq)]
pub(super) struct Log {
    /// From 1 (error) to 5 (trace).
    pub level: u8,
    pub target: String,
    pub text: String,
}

impl Report {
    pub(super) fn write<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        match self {
            Report::Ready => to.raw(&[0]),
            Report::Refused(error) => {
                to.raw(&[1]);
                error.encode(to)?;
            }
            Report::Output(number) => {
                to.raw(&[2]);
                to.number(*number);
            }
            Report::Done(Done { number, spent, counted }) => {
                to.raw(&[3]);
                to.number(*number);
                to.number(*spent);
                counted.encode(to)?;
            }
            Report::Log(Log { level, target, text }) => {
                to.raw(&[4, *level]);
                target.encode(to)?;
                text.encode(to)?;
            }
        }
        Ok(())
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self> {
        Ok(match u8::decode(from)? {
            0 => Report::Ready,
            1 => Report::Refused(Error::decode(from)?),
            2 => Report::Output(from.number()?),
            3 => Report::Done(Done {
                number: from.number()?,
                spent: from.number()?,
                counted: Wire::decode(from)?,
            }),
            4 => Report::Log(Log {
                level: Wire::decode(from)?,
                target: Wire::decode(from)?,
                text: Wire::decode(from)?,
            }),
            other => return Err(damaged(format_args!("{other} is no report"))),
        })
    }
}

/// Counters as numbers, and numbers added to counters.
pub(super) fn counted(counters: &Counters) -> Vec<u64> {
    each(counters).map(|counter| counter.load(Ordering::Relaxed)).to_vec()
}

pub(super) fn count(counters: &Counters, counted: &[u64]) {
    for (counter, more) in each(counters).into_iter().zip(counted) {
        counter.fetch_add(*more, Ordering::Relaxed);
    }
}

fn each(counters: &Counters) -> [&AtomicU64; 5] {
    let Counters { items, chunks, errors, dropped, busy_ns } = counters;
    [items, chunks, errors, dropped, busy_ns]
}

/// Reads the whole of a parcel.
pub(super) fn whole<T>(parcel: &Parcel, read: impl FnOnce(&mut Reader<'_>) -> Result<T>) -> Result<T> {
    let mut reader = parcel.reader();
    let value = read(&mut reader)?;
    reader.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive() {
        let run = RunFacts {
            seed: u64::MAX,
            epoch: 3,
            rank: Rank { index: 1, world: 4 },
            uneven: Some(Uneven::Pad),
            round: 9,
        };
        for order in
            [Order::Hello, Order::Cancel(1 << 40), Order::Job(JobFacts { number: 7, run, alone: true })]
        {
            let mut writer = Writer::new();
            order.write(&mut writer);
            assert_eq!(whole(&Parcel::of(writer), Order::read).unwrap(), order);
        }
    }

    #[test]
    fn reports_arrive() {
        let reports = [
            Report::Ready,
            Report::Refused(Error::user("no")),
            Report::Output(5),
            Report::Done(Done { number: 5, spent: 1000, counted: vec![vec![1, 2, 3, 4, 5]] }),
            Report::Log(Log { level: 2, target: "a::b".into(), text: "hm".into() }),
        ];
        for report in reports {
            let mut writer = Writer::new();
            report.write(&mut writer).unwrap();
            let parcel = Parcel::of(writer);
            assert_eq!(format!("{:?}", whole(&parcel, Report::read).unwrap()), format!("{report:?}"));
        }
    }

    #[test]
    fn counters_add_up() {
        let (here, there) = (Counters::default(), Counters::default());
        there.items.store(3, Ordering::Relaxed);
        there.busy_ns.store(70, Ordering::Relaxed);
        count(&here, &counted(&there));
        count(&here, &counted(&there));
        assert_eq!(counted(&here), [6, 0, 0, 0, 140]);
    }
}
