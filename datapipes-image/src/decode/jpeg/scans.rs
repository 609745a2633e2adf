//! An image in several scans: its coefficients are put together before any becomes a sample.

use datapipes::Result;

use super::block::Block;
use super::coders::{Coder, FirstAc, FirstDc, MoreAc, MoreDc, Whole};
use super::header::{Header, corrupt};
use super::plan::Plan;
use super::scanlines::Strips;
use super::stream::Stream;
use super::tables::{Brought, Tables};

/// Contents of the segment before a scan.
pub(super) struct Scan {
    components: [usize; 4],
    count: usize,
    /// Huffman tables, by the number of the component in the frame.
    pub(super) coded: [(usize, usize); 4],
    /// First and last coefficient.
    band: (usize, usize),
    /// Lowest bit of the coefficients that is known before and after the scan.
    high: u8,
    low: u8,
}

impl Scan {
    pub(super) fn read(body: &[u8], header: &Header) -> Result<Scan> {
        let bad = "a scan is not well described";
        let Some((&count, rest)) = body.split_first() else {
            return corrupt(bad);
        };
        let count = usize::from(count);
        let Some((told, &[first, last, bits])) = rest.split_at_checked(2 * count) else {
            return corrupt(bad);
        };
        if count == 0 || count > header.components().len() {
            return corrupt(bad);
        }
        let (components, coded) = ([0; 4], [(0, 0); 4]);
        let band = (first.into(), last.into());
        let mut scan = Scan {
            components,
            count,
            coded,
            band,
            high: bits >> 4,
            low: bits & 15,
        };
        for (n, &[id, tables]) in told.as_chunks::<2>().0.iter().enumerate() {
            // Component names may repeat: each takes the first component of its name that is still
            // unused.
            let mut named =
                (0..header.components().len()).filter(|&c| header.components()[c].id == id);
            let Some(component) = named.find(|c| !scan.components[..n].contains(c)) else {
                return corrupt(&format!(
                    "a scan is of component {id}, which the frame lacks"
                ));
            };
            scan.components[n] = component;
            scan.coded[component] = (usize::from(tables >> 4), usize::from(tables & 15));
            if tables >> 4 > 3 || tables & 15 > 3 {
                return corrupt(bad);
            }
        }
        let blocks: usize = scan
            .components()
            .iter()
            .map(|&c| header.components()[c].h * header.components()[c].v)
            .sum();
        if count > 1 && blocks > 10 {
            return corrupt(&format!(
                "a scan with units of {blocks} blocks, more than 10"
            ));
        }
        let (from, to) = scan.band;
        let fits = match header.progressive {
            // Other values have no meaning there.
            false => true,
            true if from == 0 => to == 0,
            true => from <= to && to < 64 && count == 1,
        };
        let bits_fit =
            !header.progressive || scan.low <= 13 && (scan.high == 0 || scan.high == scan.low + 1);
        if !fits || !bits_fit {
            return corrupt(&format!(
                "a scan of coefficients {from} to {to}, bits {} to {}",
                scan.high, scan.low
            ));
        }
        Ok(scan)
    }

    pub(super) fn components(&self) -> &[usize] {
        &self.components[..self.count]
    }
}

/// Coefficients of all components, and their known bits.
pub(super) struct Coefficients {
    blocks: Vec<Block>,
    /// Bit sets of the coefficients that are not zero; see [`Coder::block`].
    held: Vec<u64>,
    /// First block of each component.
    starts: [usize; 4],
    /// Lowest known bit of each coefficient; none at first.
    known: [[Option<u8>; 64]; 4],
    /// Place of the last nonzero coefficient of each block of a row.
    lasts: Vec<u8>,
}

impl Default for Coefficients {
    fn default() -> Self {
        Coefficients {
            blocks: vec![],
            held: vec![],
            starts: [0; 4],
            known: [[None; 64]; 4],
            lasts: vec![],
        }
    }
}

impl Coefficients {
    /// Prepares for an image: all coefficients are zero.
    pub(super) fn begin(&mut self, plan: &Plan) {
        let mut len = 0;
        for (start, part) in self.starts.iter_mut().zip(plan.parts()) {
            *start = len;
            len += plan.across * part.h * plan.bottom * part.v;
        }
        self.blocks.clear();
        self.blocks.resize(len, Block::ZERO);
        self.held.clear();
        self.held.resize(len, 0);
        self.known = [[None; 64]; 4];
    }

    /// Adds the data of a scan, which the stream holds.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        (header, plan): (&Header, &Plan),
        scan: &Scan,
        (tables, brought): (&Tables, &Brought),
        stream: &mut Stream,
    ) -> Result<()> {
        let (first, last) = if header.progressive {
            scan.band
        } else {
            (0, 63)
        };
        let (high, low) = if header.progressive {
            (scan.high, scan.low)
        } else {
            (0, 0)
        };
        for &component in scan.components() {
            let known = &mut self.known[component];
            if first > 0 && known[0].is_none() {
                return corrupt("a scan of AC coefficients comes before that of DC coefficients");
            }
            for known in &mut known[first..=last] {
                let follows = known.map_or(high == 0, |known| high == known && high > 0);
                if !follows {
                    return corrupt(&format!(
                        "a scan of coefficients {first} to {last} has bits that were told"
                    ));
                }
                *known = Some(low);
            }
            if first == 0 && high == 0 {
                brought.check_dc(scan.coded[component].0, tables)?;
            }
            if last > 0 {
                brought.check_ac(scan.coded[component].1, tables)?;
            }
        }
        let component = scan.components()[0];
        if first > 0 && plan.parts()[component].size == 1 {
            // Only means are needed.
            return Ok(());
        }
        let (coded, means) = (scan.coded, [0; 4]);
        let (band, low, empty) = ((first, last), u32::from(low), 0);
        let table = &tables.ac[coded[component].1];
        let interval = tables.interval;
        let mut run = Run {
            bytes,
            plan,
            scan,
            interval,
            stream,
            coefficients: self,
        };
        match (first, high) {
            _ if !header.progressive => run.all(Whole {
                tables,
                coded,
                means,
            }),
            (0, 0) => run.all(FirstDc {
                tables,
                coded,
                means,
                low,
            }),
            (0, _) => run.all(MoreDc { low }),
            (_, 0) => run.all(FirstAc {
                table,
                band,
                low,
                empty,
            }),
            _ => run.all(MoreAc {
                table,
                band,
                low,
                empty,
            }),
        }
    }

    /// Makes pixels, once all scans were read.
    pub(super) fn finish(
        &mut self,
        plan: &Plan,
        strips: &mut Strips,
        pixels: &mut [u8],
    ) -> Result<()> {
        for (component, _) in plan.parts().iter().enumerate() {
            if let Some(n) = self.known[component]
                .iter()
                .position(|known| *known != Some(0))
            {
                return corrupt(&format!(
                    "coefficient {n} of component {component} is not told to its last bit"
                ));
            }
        }
        for y in plan.top..plan.bottom {
            for (component, part) in plan.parts().iter().enumerate() {
                for down in 0..part.v {
                    let start = self.starts[component] + (y * part.v + down) * plan.across * part.h;
                    let range = start + plan.left * part.h..start + plan.right * part.h;
                    let (blocks, held) = (&self.blocks[range.clone()], &self.held[range]);
                    self.lasts.clear();
                    self.lasts
                        .extend(held.iter().map(|&held| u8::from(held != 0) * 63));
                    strips.transform(plan, component, down, blocks, &self.lasts);
                }
            }
            strips.finish(plan, y, pixels);
        }
        Ok(())
    }

    /// Returns the number of bytes that are kept.
    pub(super) fn capacity(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    /// Frees the memory.
    pub(super) fn release(&mut self) {
        (self.blocks, self.held) = (Vec::new(), Vec::new());
    }
}

/// One scan that is being read.
struct Run<'a> {
    bytes: &'a [u8],
    plan: &'a Plan,
    scan: &'a Scan,
    interval: usize,
    stream: &'a mut Stream,
    coefficients: &'a mut Coefficients,
}

impl Run<'_> {
    /// Reads all blocks down to the last that is needed.
    fn all(&mut self, mut coder: impl Coder) -> Result<()> {
        let parts = self.plan.parts();
        let single = parts[self.scan.components[0]];
        // A scan of one component has units of one block, and none beyond the image's edge.
        let (across, down) = match self.scan.count {
            1 => (single.across, single.down.min(self.plan.bottom * single.v)),
            _ => (self.plan.across, self.plan.bottom),
        };
        let mut left = if self.interval == 0 {
            usize::MAX
        } else {
            self.interval
        };
        for y in 0..down {
            let mut x = 0;
            while x < across {
                if left == 0 {
                    self.stream.restart(self.bytes, y)?;
                    coder.restart();
                    left = self.interval;
                }
                let stop = across.min(x.saturating_add(left));
                let mut bits = self.stream.bits();
                for x in x..stop {
                    for &component in self.scan.components() {
                        let (part, start) =
                            (&parts[component], self.coefficients.starts[component]);
                        let (h, v) = if self.scan.count == 1 {
                            (1, 1)
                        } else {
                            (part.h, part.v)
                        };
                        for j in 0..v {
                            for i in 0..h {
                                let at =
                                    start + (y * v + j) * self.plan.across * part.h + x * h + i;
                                let block = &mut self.coefficients.blocks[at];
                                let held = &mut self.coefficients.held[at];
                                if let Err(bad) = coder.block(&mut bits, component, block, held) {
                                    return bad.at(y);
                                }
                            }
                        }
                    }
                }
                let at = bits.at();
                self.stream.keep(at);
                left -= stop - x;
                x = stop;
            }
            self.stream.check(y)?;
        }
        Ok(())
    }
}
