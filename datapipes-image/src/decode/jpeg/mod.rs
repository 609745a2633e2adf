//! JPEG: a decoder for parts of images, scaled or not.
//!
//! From the outside in: [`header`] walks over the markers and refuses unsupported files, [`plan`]
//! computes the data needed for a part. [`sequential`] and [`scans`] read the compressed data
//! ([`stream`], [`bits`], [`huffman`], [`block`], [`coders`]) into coefficients; [`idct`] converts
//! them to samples, [`rows`] to pixels ([`upsample`], [`color`]).
//!
//! All arithmetic is libjpeg-turbo's, to the bit. Truncated or damaged data is an error as far as
//! it is read, which is down to the last row of blocks that the part needs.

mod bits;
mod block;
mod coders;
mod color;
mod header;
mod huffman;
mod idct;
mod plan;
mod scanlines;
mod scans;
mod sequential;
mod stream;
mod tables;
mod upsample;

use std::cell::RefCell;

use datapipes::Result;

use self::header::{DHT, DQT, DRI, EOI, SOS, corrupt, segment};
pub(crate) use self::header::{Header, end_of_image};
use self::plan::Plan;
use self::scanlines::Strips;
use self::scans::{Coefficients, Scan};
use self::sequential::Row;
use self::stream::Stream;
use self::tables::{Brought, Tables};
use super::pixels::Pixels;
use crate::Rect;

/// Buffers kept between images: in the steady state no image allocates.
struct Scratch {
    tables: Tables,
    stream: Stream,
    row: Row,
    strips: Strips,
    coefficients: Coefficients,
}

/// Maximum number of bytes that are kept.
const KEPT: usize = 16 << 20;

/// Decodes a part of an image that is scaled by 1/1, 1/2, 1/4 or 1/8, whose edges are rounded up.
/// The pixels are those of the same part of the whole image at that scale. Data below the part is
/// not read, except for the end marker.
pub(crate) fn decode_part(
    bytes: &[u8],
    header: &Header,
    scale: u32,
    part: Rect,
    pixels: &mut Pixels,
) -> Result<()> {
    let plan = Plan::new(header, scale, part)?;
    let pixels = pixels.set_size(part.width, part.height);
    thread_local!(static SCRATCH: RefCell<Option<Box<Scratch>>> = const { RefCell::new(None) });
    end_of_image(bytes, header)?;
    SCRATCH.with_borrow_mut(|scratch| {
        let scratch = scratch.get_or_insert_with(|| {
            Box::new(Scratch {
                tables: Tables::EMPTY,
                stream: Stream::default(),
                row: Row::default(),
                strips: Strips::default(),
                coefficients: Coefficients::default(),
            })
        });
        let decoded = scratch.decode(bytes, header, &plan, pixels);
        if scratch.stream.capacity() > KEPT {
            scratch.stream = Stream::default();
        }
        if scratch.coefficients.capacity() > KEPT {
            scratch.coefficients.release();
        }
        decoded
    })
}

impl Scratch {
    fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        plan: &Plan,
        pixels: &mut [u8],
    ) -> Result<()> {
        let Scratch {
            tables,
            stream,
            row,
            strips,
            coefficients,
        } = self;
        tables.begin();
        let mut brought = Brought::default();
        // A component's table is that of its first scan.
        let (mut quant, mut latched) = ([[0; 64]; 4], [false; 4]);
        if header.many_scans() {
            coefficients.begin(plan);
        }
        let mut at = 2;
        loop {
            let (marker, body) = segment(bytes, at)?;
            at = body.end;
            let body = &bytes[body];
            match marker {
                DQT => tables.read_quant(body)?,
                DHT => brought.read(body, tables)?,
                DRI => tables.read_interval(body)?,
                SOS => {
                    let scan = Scan::read(body, header)?;
                    for &component in scan.components() {
                        if !latched[component] {
                            quant[component] = tables.quant(plan.parts()[component].quant)?;
                            latched[component] = true;
                        }
                    }
                    stream.begin(bytes, at);
                    if !header.many_scans() {
                        for &(dc, ac) in &scan.coded[..plan.parts().len()] {
                            brought.check_dc(dc, tables)?;
                            brought.check_ac(ac, tables)?;
                        }
                        strips.begin(plan, &quant);
                        return sequential::decode(
                            bytes,
                            plan,
                            &scan,
                            tables,
                            (stream, row, strips),
                            pixels,
                        );
                    }
                    coefficients.read(bytes, (header, plan), &scan, (tables, &brought), stream)?;
                    at = header::entropy_end(bytes, at);
                }
                EOI if header.many_scans() => {
                    strips.begin(plan, &quant);
                    return coefficients.finish(plan, strips, pixels);
                }
                EOI => return corrupt("it ends without a scan"),
                _ => {}
            }
        }
    }
}
