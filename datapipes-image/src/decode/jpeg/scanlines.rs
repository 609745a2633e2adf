//! Conversion of samples to pixels: a strip of rows for each component, as high as a unit, and one
//! row from the strip above.

use super::block::Block;
use super::color;
use super::idct;
use super::plan::{Method, Part, Plan};
use super::upsample;

/// Samples of one row of units.
#[derive(Default)]
pub(super) struct Strips {
    strips: [Strip; 4],
    /// Next row of pixels.
    next: usize,
}

struct Strip {
    /// Rows: the last row of the strip above, then the rows of this one.
    samples: Vec<u8>,
    stride: usize,
    /// Number of its first row in the component.
    top: usize,
    quant: [u16; 64],
    /// A row with a sample for each pixel.
    wide: Vec<u8>,
    /// Two rows, weighted.
    sums: Vec<u16>,
}

impl Default for Strip {
    fn default() -> Self {
        Strip {
            samples: vec![],
            stride: 0,
            top: 0,
            quant: [0; 64],
            wide: vec![],
            sums: vec![],
        }
    }
}

impl Strips {
    /// Prepares for an image. `quant` are the quantisation tables of its components.
    pub(super) fn begin(&mut self, plan: &Plan, quant: &[[u16; 64]; 4]) {
        self.next = plan.y.start;
        for ((strip, part), quant) in self.strips.iter_mut().zip(plan.parts()).zip(quant) {
            // Whole blocks are written; some are written or read in vectors.
            strip.stride = (plan.right - plan.left) * part.h * part.size + 32;
            strip
                .samples
                .resize((1 + part.v * part.size) * strip.stride, 0);
            strip.wide.resize(strip.stride * part.wide, 0);
            strip.sums.resize(strip.stride, 0);
            strip.quant = *quant;
        }
    }

    /// Makes samples of a row of a component's blocks, the `down`-th of its units.
    pub(super) fn transform(
        &mut self,
        plan: &Plan,
        component: usize,
        down: usize,
        blocks: &[Block],
        lasts: &[u8],
    ) {
        let (part, strip) = (&plan.parts()[component], &mut self.strips[component]);
        let start = (1 + down * part.size) * strip.stride;
        idct::row(
            part.size,
            blocks,
            lasts,
            &strip.quant,
            &mut strip.samples[start..],
            strip.stride,
        );
    }

    /// Makes all pixels that are possible with the samples of a row of units.
    pub(super) fn finish(&mut self, plan: &Plan, unit: usize, pixels: &mut [u8]) {
        for (strip, part) in self.strips.iter_mut().zip(plan.parts()) {
            strip.top = unit * part.v * part.size;
        }
        let mut end = (unit + 1) * plan.unit_height;
        if unit + 1 == plan.down {
            end = plan.height;
        } else if plan.looks_down {
            end -= 1;
        }
        let stride = plan.x.len() * 3;
        while self.next < end.min(plan.y.end) {
            let start = (self.next - plan.y.start) * stride;
            self.pixels(plan, self.next, &mut pixels[start..start + stride]);
            self.next += 1;
        }
        for (strip, part) in self.strips.iter_mut().zip(plan.parts()) {
            let last = part.v * part.size * strip.stride;
            strip.samples.copy_within(last..last + strip.stride, 0);
        }
    }

    /// Makes one row of pixels.
    fn pixels(&mut self, plan: &Plan, y: usize, out: &mut [u8]) {
        for (strip, part) in self.strips.iter_mut().zip(plan.parts()) {
            strip.widen(part, y);
        }
        let (from, to) = (plan.x.start - plan.from, plan.x.end - plan.from);
        let [a, b, c, d] = &self.strips;
        let mut strips = [a, b, c, d]
            .into_iter()
            .zip(plan.parts())
            .map(|(strip, part)| &strip.row(part, y)[from..to]);
        let mut next = || strips.next().unwrap_or_default();
        color::convert(plan.color, [next(), next(), next(), next()], out);
    }
}

impl Strip {
    /// Returns a row of samples, by its number in the component.
    fn samples(&self, part: &Part, row: usize) -> &[u8] {
        let start = (row + 1 - self.top) * self.stride;
        &self.samples[start..start + part.to - part.from]
    }

    /// Upsamples the samples for a row of pixels, unless there are enough.
    fn widen(&mut self, part: &Part, y: usize) {
        let (near, far) = part.rows(y);
        let mut wide = std::mem::take(&mut self.wide);
        match part.method {
            Method::Full => {}
            Method::Repeat => {
                if part.wide > 1 {
                    upsample::repeat(self.samples(part, near), part.wide, &mut wide);
                }
            }
            Method::Across => upsample::across(self.samples(part, near), &mut wide),
            Method::Down => upsample::down(
                self.samples(part, near),
                self.samples(part, far),
                y.is_multiple_of(2),
                &mut wide,
            ),
            Method::Both => {
                let mut sums = std::mem::take(&mut self.sums);
                upsample::both(
                    self.samples(part, near),
                    self.samples(part, far),
                    &mut sums,
                    &mut wide,
                );
                self.sums = sums;
            }
        }
        self.wide = wide;
    }

    /// Returns the samples for a row of pixels, after `widen`.
    fn row(&self, part: &Part, y: usize) -> &[u8] {
        match part.method {
            Method::Full => self.samples(part, y),
            Method::Repeat if part.wide == 1 => self.samples(part, y / part.high),
            _ => &self.wide[..(part.to - part.from) * part.wide],
        }
    }
}
