//! Source pixels and weights of each pixel of the result: those of Pillow's `Image.resize`.

use std::f64::consts::PI;

use crate::ResizeFilter;

/// Number of fraction bits of a weight.
pub(super) const PRECISION: u32 = 32 - 8 - 2;

/// Number of low bits in a weight. A weight is `high << SPLIT | low`: two halves that fit the
/// multiplication of 16-bit numbers.
pub(super) const SPLIT: u32 = 12;

/// Four weights: their high halves, then their low halves.
pub(super) type Group = [i16; 8];

/// Number of taps in a [`Group`].
pub(super) const TAPS: usize = 4;

/// Number of rows that the pass across takes at once.
pub(super) const BATCH: usize = 4;

/// Number of bytes of a row that the pass down takes at once.
pub(super) const LANES: usize = 32;

/// Number of bytes that the pass across may write after a row's end.
pub(super) const SLACK: usize = 8;

/// Half a level.
pub(super) const HALF: i32 = 1 << (PRECISION - 1);

/// Weights along one axis.
#[derive(Debug, Default)]
pub(super) struct Table {
    key: Option<Axis>,
    spans: Vec<Span>,
    groups: Vec<Group>,
    /// Weights of one pixel before they are rounded.
    exact: Vec<f64>,
    /// Number of groups of a pixel.
    stride: usize,
    reach: usize,
}

/// Parameters that a table depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Edge of the whole source.
    pub(super) source: u32,
    /// Part of the source that is scaled.
    pub(super) part: (f32, f32),
    /// Edge of the result.
    pub(super) target: u32,
    pub(super) filter: ResizeFilter,
}

/// Source pixels that make up a pixel of the result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) count: u32,
}

impl Span {
    pub(super) fn end(&self) -> usize {
        self.start as usize + self.count as usize
    }
}

impl Axis {
    /// Returns the number of source pixels for a pixel of the result.
    pub(super) fn scale(&self) -> f64 {
        // Pillow's edges are of single precision, and so is their difference.
        f64::from(self.part.1 - self.part.0) / f64::from(self.target)
    }

    /// Returns the reach of the filter to each side, in pixels of the source.
    fn support(&self) -> f64 {
        reach(self.filter) * self.scale().max(1.0)
    }

    /// Returns the greatest number of taps of a pixel.
    pub(super) fn most_taps(&self) -> usize {
        (self.support().ceil() as usize * 2 + 1).min(self.source as usize)
    }

    /// Returns the memory of its table.
    pub(super) fn table_bytes(&self) -> u64 {
        let pixel = size_of::<Span>() + self.most_taps().div_ceil(TAPS) * size_of::<Group>();
        u64::from(self.target) * pixel as u64 + 8 * self.most_taps() as u64
    }

    /// Returns true if pixels are copied. The weights would have the same result.
    pub(super) fn is_copy(&self) -> bool {
        self.part.1 - self.part.0 == self.target as f32
            && self.part.0.fract() == 0.0
            && self.part.0 as u64 + u64::from(self.target) <= u64::from(self.source)
    }
}

impl Table {
    /// Computes the weights, unless they are there already.
    pub(super) fn prepare(&mut self, axis: Axis) {
        if self.key == Some(axis) {
            return;
        }
        self.key = None;
        self.stride = axis.most_taps().div_ceil(TAPS);
        self.spans.clear();
        self.groups.clear();
        self.groups
            .resize(axis.target as usize * self.stride, [0; 8]);
        let (scale, support) = (axis.scale(), axis.support());
        let narrow = 1.0 / scale.max(1.0);
        for (x, groups) in self.groups.chunks_exact_mut(self.stride).enumerate() {
            let center = f64::from(axis.part.0) + (x as f64 + 0.5) * scale;
            let start = ((center - support + 0.5) as u32).min(axis.source - 1);
            let end = ((center + support + 0.5) as u32).clamp(start + 1, axis.source);
            let end = end.min(start + (self.stride * TAPS) as u32);
            self.exact.clear();
            self.exact.extend(
                (start..end).map(|x| weight(axis.filter, (f64::from(x) - center + 0.5) * narrow)),
            );
            let sum: f64 = self.exact.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            for (tap, exact) in self.exact.iter().enumerate() {
                let fixed = exact / sum * f64::from(1 << PRECISION);
                let fixed = if fixed < 0.0 {
                    fixed - 0.5
                } else {
                    fixed + 0.5
                } as i32;
                let group = &mut groups[tap / TAPS];
                group[tap % TAPS] = (fixed >> SPLIT) as i16;
                group[TAPS + tap % TAPS] = (fixed & ((1 << SPLIT) - 1)) as i16;
            }
            self.spans.push(Span {
                start,
                count: end - start,
            });
        }
        let end = |span: &Span| span.start as usize + (span.count as usize).next_multiple_of(TAPS);
        self.reach = self.spans.iter().map(end).max().unwrap_or(0);
        self.key = Some(axis);
    }

    /// Returns the taps of each pixel of the result. From pixel to pixel they start further right
    /// or at the same place.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the weights of a pixel; those after its last tap are zero.
    pub(super) fn groups(&self, x: usize) -> &[Group] {
        let len = (self.spans[x].count as usize).div_ceil(TAPS);
        &self.groups[x * self.stride..][..len]
    }

    /// Returns the end of the last group that is read, in pixels of the source: it may be after the
    /// source's end.
    pub(super) fn reach(&self) -> usize {
        self.reach
    }

    /// Returns the number of bytes that are held.
    pub(super) fn memory(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
            + self.spans.capacity() * size_of::<Span>()
            + self.exact.capacity() * size_of::<f64>()
    }

    /// Frees the memory if it is more than `most`.
    pub(super) fn release(&mut self, most: usize) {
        if self.memory() > most {
            *self = Table::default();
        }
    }
}

/// Returns one weight of a group.
#[inline(always)]
pub(super) fn tap(group: &Group, tap: usize) -> i32 {
    (i32::from(group[tap]) << SPLIT) + i32::from(group[TAPS + tap])
}

/// Returns the reach of a filter to each side when it enlarges.
fn reach(filter: ResizeFilter) -> f64 {
    match filter {
        ResizeFilter::Nearest => 0.0,
        ResizeFilter::Box => 0.5,
        ResizeFilter::Bilinear | ResizeFilter::Hamming => 1.0,
        ResizeFilter::CatmullRom => 2.0,
        ResizeFilter::Lanczos3 => 3.0,
    }
}

/// Returns the weight of a pixel at this distance from the centre. Computed in the order in which
/// Pillow does.
fn weight(filter: ResizeFilter, x: f64) -> f64 {
    let sinc = |x: f64| {
        if x == 0.0 {
            1.0
        } else {
            (x * PI).sin() / (x * PI)
        }
    };
    let distance = x.abs();
    match filter {
        ResizeFilter::Nearest => 1.0,
        ResizeFilter::Box => f64::from(x > -0.5 && x <= 0.5),
        ResizeFilter::Bilinear if distance < 1.0 => 1.0 - distance,
        ResizeFilter::Hamming if distance == 0.0 => 1.0,
        ResizeFilter::Hamming if distance < 1.0 => {
            // Its constants are of single precision there.
            let x = distance * PI;
            x.sin() / x * (f64::from(0.54f32) + f64::from(0.46f32) * x.cos())
        }
        ResizeFilter::CatmullRom if distance < 1.0 => {
            (1.5 * distance - 2.5) * distance * distance + 1.0
        }
        ResizeFilter::CatmullRom if distance < 2.0 => {
            (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5
        }
        ResizeFilter::Lanczos3 if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
        _ => 0.0,
    }
}
