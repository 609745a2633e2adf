//! The log of a segment that distributes over concatenation.

use std::sync::{Arc, Mutex};

use super::{Cursor, History, InputCursor, Log, OVER, Point, Saving, Trim, Wanted};
use crate::sync::lock;

/// The log of a segment that distributes over concatenation.
pub(crate) struct SegmentLog {
    node: Arc<str>,
    /// Number of nodes in it that are not one-in-one-out.
    not_one_to_one: u64,
    log: Mutex<Entries>,
    above: Arc<dyn History>,
}

struct Entries {
    /// Position where the first morsel begins.
    input: u64,
    output: u64,
    morsels: Log<(u64, u64)>,
    known: Resumed,
}

/// The rest of the input of morsels that are in the log since before the stop.
#[derive(Default)]
struct Resumed {
    /// Items still to be taken.
    untaken: u64,
    /// Items still to be finished.
    unfinished: u64,
}

impl Entries {
    /// Returns a bound on the inputs from which outputs before this position were made; `u64::MAX`
    /// if the log does not tell.
    fn most(&self, output: u64) -> u64 {
        let (mut end_in, mut end_out) = (self.input, self.output);
        for &(inside, outside) in self.morsels.iter() {
            if end_out >= output {
                break;
            }
            (end_in, end_out) = (end_in + inside, end_out + outside);
        }
        if end_out >= output { end_in } else { u64::MAX }
    }
}

/// Maximum number of morsels of a segment in a checkpoint; neighbours are joined.
const MOST_MORSELS: usize = 256;

impl SegmentLog {
    pub(crate) fn new(
        node: Arc<str>,
        not_one_to_one: u64,
        trim: Trim,
        above: Arc<dyn History>,
    ) -> Arc<Self> {
        let log = Entries {
            input: 0,
            output: 0,
            morsels: Log::new(trim),
            known: Resumed::default(),
        };
        Arc::new(SegmentLog {
            node,
            not_one_to_one,
            log: Mutex::new(log),
            above,
        })
    }

    /// Returns the wanted part of the input, and the positions of the resulting outputs, one range
    /// after the other, for this wanted part of the output.
    pub(crate) fn to_repeat(cursor: &Cursor, wanted: &Wanted) -> (Wanted, Vec<(u64, u64)>) {
        let (mut input, mut output) = (
            cursor.inputs.first().map_or(0, |input| input.from),
            cursor.outputs[0],
        );
        let (mut holes, mut runs) = (Vec::new(), Vec::new());
        for &(inside, outside) in &cursor.pieces {
            if wanted.next(output) < output + outside {
                holes.extend(input..input + inside);
                runs.push((output, output + outside));
            }
            (input, output) = (input + inside, output + outside);
        }
        runs.push((output, u64::MAX));
        (Wanted::new(holes, input), runs)
    }

    /// Resumes from a cursor: the first `known` inputs belong to morsels of the cursor.
    pub(crate) fn resume(&self, cursor: &Cursor, known: u64) {
        let mut log = lock(&self.log);
        (log.input, log.output) = (
            cursor.inputs.first().map_or(0, |input| input.from),
            cursor.outputs[0],
        );
        cursor
            .pieces
            .iter()
            .for_each(|&morsel| log.morsels.push(morsel, join));
        log.known = Resumed {
            untaken: known,
            unfinished: known,
        };
    }

    /// Returns how many items a morsel that begins now may take.
    pub(crate) fn limit(&self) -> usize {
        match lock(&self.log).known.untaken {
            0 => usize::MAX,
            known => usize::try_from(known).unwrap_or(usize::MAX),
        }
    }

    /// Records that this many items were taken of the input.
    pub(crate) fn took(&self, items: usize) {
        let left = &mut lock(&self.log).known.untaken;
        *left = left.saturating_sub(items as u64);
    }

    /// Records a finished morsel: numbers of inputs and outputs.
    pub(crate) fn push(&self, inside: u64, outside: u64) {
        let mut log = lock(&self.log);
        match &mut log.known.unfinished {
            0 => log.morsels.push((inside, outside), join),
            left => *left = left.saturating_sub(inside),
        }
    }
}

/// Joins two morsels.
fn join(morsel: &mut (u64, u64), next: (u64, u64)) {
    *morsel = (morsel.0 + next.0, morsel.1 + next.1);
}

impl History for SegmentLog {
    fn save(&self, point: Point, to: &mut Saving) {
        let (cursor, above) = {
            let log = lock(&self.log);
            let (mut input, mut output) = (log.input, log.output);
            let mut morsels = Vec::new();
            let (mut end_in, mut end_out) = (input, output);
            for &(inside, outside) in log.morsels.iter() {
                if morsels.is_empty() && end_out + outside <= point.reach {
                    (input, output) = (end_in + inside, end_out + outside);
                } else if end_out < point.from {
                    morsels.push((inside, outside));
                } else {
                    break;
                }
                (end_in, end_out) = (end_in + inside, end_out + outside);
            }
            while morsels.len() > MOST_MORSELS {
                let joined = |pair: &[(u64, u64)]| {
                    pair.iter()
                        .fold((0, 0), |sum, morsel| (sum.0 + morsel.0, sum.1 + morsel.1))
                };
                morsels = morsels.chunks(2).map(joined).collect();
            }
            // Morsels that begin after the wanted point are left to the resumed epoch.
            let inputs = vec![InputCursor {
                from: input,
                reach: input,
                held: Vec::new(),
            }];
            let cursor = Cursor {
                outputs: vec![output],
                inputs,
                pieces: morsels,
                round: self.not_one_to_one,
                ..Cursor::default()
            };
            let most = log.most(point.most).max(end_in);
            (
                cursor,
                Point {
                    from: end_in,
                    reach: if point.reach == OVER { OVER } else { input },
                    most,
                },
            )
        };
        to.cursor(&self.node, cursor);
        self.above.save(above, to);
    }

    fn forget(&self, before: u64) {
        let above = {
            let mut guard = lock(&self.log);
            let log = &mut *guard;
            let (input, output) = (&mut log.input, &mut log.output);
            log.morsels.trim(|morsels| match morsels.front() {
                Some(&(inside, outside)) if *output + outside <= before => {
                    (*input, *output) = (*input + inside, *output + outside);
                    true
                }
                _ => false,
            });
            if before == OVER { OVER } else { *input }
        };
        self.above.forget(above);
    }
}
