//! An image in one sequential scan: a row of units is decoded, becomes samples, and is discarded.

use datapipes::Result;

use super::block::{self, Block};
use super::plan::Plan;
use super::scanlines::Strips;
use super::scans::Scan;
use super::stream::{Bad, Stream};
use super::tables::Tables;

/// One block of a unit.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Number of its component, followed by that component's Huffman tables.
    component: usize,
    dc: usize,
    ac: usize,
    /// Index of the block for the first unit that is needed, and the step from one unit to the
    /// next.
    first: usize,
    step: usize,
    /// True if only its mean is needed.
    mean: bool,
}

/// Needed blocks of a row of units.
#[derive(Default)]
pub(super) struct Row {
    pub(super) blocks: Vec<Block>,
    /// Place of the last nonzero coefficient of each block.
    pub(super) lasts: Vec<u8>,
}

/// Decodes the scan, whose data the stream holds.
pub(super) fn decode(
    bytes: &[u8],
    plan: &Plan,
    scan: &Scan,
    tables: &mut Tables,
    (stream, row, strips): (&mut Stream, &mut Row, &mut Strips),
    pixels: &mut [u8],
) -> Result<()> {
    let (mut places, mut count, mut starts, mut base) = ([Place::default(); 10], 0, [0; 4], 0);
    let units = plan.right - plan.left;
    for (start, part) in starts.iter_mut().zip(plan.parts()) {
        *start = base;
        base += part.h * part.v * units;
    }
    // The scan may have an order of its own.
    for &component in scan.components() {
        let (part, (dc, ac)) = (&plan.parts()[component], scan.coded[component]);
        for n in 0..part.h * part.v {
            let first = starts[component] + n / part.h * part.h * units + n % part.h;
            places[count] = Place {
                component,
                dc,
                ac,
                first,
                step: part.h,
                mean: part.size == 1,
            };
            count += 1;
        }
    }
    let places = &places[..count];
    row.blocks.resize(base, Block::ZERO);
    row.lasts.resize(base, 0);
    let passes = plan.left > 0 || plan.right < plan.across || plan.top > 0;
    for place in places {
        if passes || place.mean {
            tables.ac[place.ac].look_far();
        }
    }

    let mut means = [0; 4];
    // Number of units before the next restart.
    let mut left = if tables.interval == 0 {
        usize::MAX
    } else {
        tables.interval
    };
    for y in 0..plan.bottom {
        let needed = if y >= plan.top {
            plan.left..plan.right
        } else {
            0..0
        };
        // Data after the last unit that is needed is not read.
        let end = if y + 1 == plan.bottom {
            plan.right
        } else {
            plan.across
        };
        let mut x = 0;
        while x < end {
            if left == 0 {
                stream.restart(bytes, y)?;
                means = [0; 4];
                left = tables.interval;
            }
            let stop = end.min(x.saturating_add(left));
            // All of it precedes the needed units.
            if tables.interval > 0 && y * plan.across + x + left <= plan.top * plan.across {
                stream.pass();
            } else {
                let spans = [
                    (x, stop.min(needed.start), false),
                    (x.max(needed.start), stop.min(needed.end), true),
                    (x.max(needed.end), stop, false),
                ];
                for (from, to, keep) in spans {
                    let done = match keep {
                        _ if from >= to => Ok(()),
                        true => read(
                            stream,
                            places,
                            tables,
                            &mut means,
                            from - plan.left..to - plan.left,
                            row,
                        ),
                        false => pass(stream, places, tables, &mut means, to - from),
                    };
                    if let Err(bad) = done {
                        return bad.at(y);
                    }
                }
            }
            left -= stop - x;
            x = stop;
        }
        if y >= plan.top {
            stream.check(y)?;
            let mut at = 0;
            for (component, part) in plan.parts().iter().enumerate() {
                for down in 0..part.v {
                    let range = at..at + part.h * units;
                    strips.transform(
                        plan,
                        component,
                        down,
                        &row.blocks[range.clone()],
                        &row.lasts[range],
                    );
                    at += part.h * units;
                }
            }
            strips.finish(plan, y, pixels);
        }
    }
    Ok(())
}

/// Reads units that are needed; their numbers are counted from the first needed one. It is a
/// function of its own so that the reader stays in registers.
#[inline(never)]
fn read(
    stream: &mut Stream,
    places: &[Place],
    tables: &Tables,
    means: &mut [i32; 4],
    units: std::ops::Range<usize>,
    row: &mut Row,
) -> Result<(), Bad> {
    let mut bits = stream.bits();
    for unit in units {
        for place in places {
            let (dc, ac) = (&tables.dc[place.dc & 3], &tables.ac[place.ac & 3]);
            let (mean, at) = (
                &mut means[place.component & 3],
                place.first + unit * place.step,
            );
            let block = &mut row.blocks[at];
            if place.mean {
                block::pass(&mut bits, (dc, ac), mean)?;
                block.0[0] = *mean as i16;
            } else {
                *block = Block::ZERO;
                row.lasts[at] = block::read(&mut bits, (dc, ac), mean, block)?;
            }
        }
    }
    let at = bits.at();
    stream.keep(at);
    Ok(())
}

/// Skips units.
#[inline(never)]
fn pass(
    stream: &mut Stream,
    places: &[Place],
    tables: &Tables,
    means: &mut [i32; 4],
    units: usize,
) -> Result<(), Bad> {
    let mut bits = stream.bits();
    for _ in 0..units {
        for place in places {
            let tables = (&tables.dc[place.dc & 3], &tables.ac[place.ac & 3]);
            block::pass(&mut bits, tables, &mut means[place.component & 3])?;
        }
    }
    let at = bits.at();
    stream.keep(at);
    Ok(())
}
