//! Contents of the markers, before anything is decoded.
//!
//! The walk over the markers looks for the end marker, which makes a truncated file an error.

use datapipes::{Error, Result};
use image::metadata::Orientation;

use crate::decode::take;

/// Data before the first scan.
#[derive(Default)]
pub(crate) struct Header {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) orientation: Option<Orientation>,
    pub(super) progressive: bool,
    pub(super) color: Color,
    components: [Component; 4],
    count: usize,
    /// True if all components are in the first scan.
    interleaved: bool,
    /// True if the file declares JFIF, so that three components are YCbCr.
    jfif: bool,
    /// Colours in an Adobe segment: 0 untransformed, 1 YCbCr, 2 YCCK.
    adobe: Option<u8>,
    /// Offset of the first scan's segment.
    pub(crate) scan: usize,
}

/// A component in the frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Component {
    pub(super) id: u8,
    /// Horizontal sampling factor; the vertical one follows.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Number of its quantisation table.
    pub(super) quant: usize,
}

/// Meaning of the components.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Color {
    #[default]
    Gray,
    Rgb,
    YCbCr,
    /// Inverted, as Adobe writes it.
    Cmyk,
    /// Inverted CMYK, with the first three as YCbCr.
    Ycck,
}

const SOI: u8 = 0xd8;
pub(super) const EOI: u8 = 0xd9;
pub(super) const SOS: u8 = 0xda;
pub(super) const DHT: u8 = 0xc4;
pub(super) const DQT: u8 = 0xdb;
const DNL: u8 = 0xdc;
pub(super) const DRI: u8 = 0xdd;
const APP0: u8 = 0xe0;
const APP1: u8 = 0xe1;
const APP14: u8 = 0xee;

/// Maximum number of scans, more than any encoder makes: each scan costs time.
const MAX_SCANS: usize = 100;

impl Header {
    pub(crate) fn read(bytes: &[u8]) -> Result<Header> {
        let mut header = Header {
            interleaved: true,
            ..Header::default()
        };
        let mut at = 2;
        loop {
            let (marker, body) = segment(bytes, at)?;
            let end = body.end;
            let body = &bytes[body];
            match marker {
                0xc0..=0xc2 => header.frame(body, marker == 0xc2)?,
                0xc3 | 0xc5..=0xc7 | 0xcd..=0xcf => {
                    return unsupported("lossless or hierarchical coding");
                }
                0xc9..=0xcb => return unsupported("arithmetic coding"),
                DNL => return unsupported("a height that is told late"),
                APP0 => header.jfif |= body.len() >= 14 && body.starts_with(b"JFIF\0"),
                APP1 if header.orientation.is_none() => {
                    let exif = body.strip_prefix(b"Exif\0\0");
                    header.orientation = exif.and_then(Orientation::from_exif_chunk);
                }
                APP14 if body.len() >= 12 && body.starts_with(b"Adobe") => {
                    header.adobe = Some(body[11]);
                }
                SOS if header.count == 0 => return corrupt("a scan stands before the frame"),
                SOS => {
                    header.interleaved = body
                        .first()
                        .is_some_and(|&count| usize::from(count) == header.count);
                    header.scan = end - body.len() - 4;
                    header.color = header.told_color()?;
                    return Ok(header);
                }
                EOI => return corrupt("it ends without a scan"),
                _ => {}
            }
            at = end;
        }
    }

    /// Reads the segment with the size.
    fn frame(&mut self, body: &[u8], progressive: bool) -> Result<()> {
        let [precision, h1, h0, w1, w0, count, ref rest @ ..] = *body else {
            return corrupt("its frame header is too short");
        };
        if self.count != 0 {
            return corrupt("it has two frames");
        }
        if precision != 8 {
            return unsupported(&format!("{precision} bits a sample"));
        }
        self.width = u16::from_be_bytes([w1, w0]).into();
        self.height = u16::from_be_bytes([h1, h0]).into();
        self.progressive = progressive;
        if self.width == 0 || self.height == 0 {
            return corrupt(&format!("its size is {}x{}", self.width, self.height));
        }
        if !matches!(count, 1 | 3 | 4) {
            return unsupported(&format!("{count} components"));
        }
        self.count = count.into();
        let (told, rest) = rest.as_chunks::<3>();
        if told.len() != self.count || !rest.is_empty() {
            return corrupt("its components are not well described");
        }
        for (component, &[id, sampling, quant]) in self.components.iter_mut().zip(told) {
            let (h, v) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) || quant > 3 {
                return corrupt("its components are not well described");
            }
            *component = Component {
                id,
                h,
                v,
                quant: quant.into(),
            };
        }
        if count == 1 {
            // The sampling factors of a single component have no effect.
            (self.components[0].h, self.components[0].v) = (1, 1);
        }
        let (h, v) = self.sampling();
        if self
            .components()
            .iter()
            .any(|c| h % c.h != 0 || v % c.v != 0)
        {
            let factors: Vec<_> = self.components().iter().map(|c| (c.h, c.v)).collect();
            return unsupported(&format!(
                "sampling factors {factors:?}, which do not divide the greatest"
            ));
        }
        Ok(())
    }

    /// Returns the meaning of the components, by libjpeg's rules.
    fn told_color(&self) -> Result<Color> {
        match (self.count, self.adobe) {
            (1, _) => Ok(Color::Gray),
            (3, _) if self.jfif => Ok(Color::YCbCr),
            (3, Some(0)) => Ok(Color::Rgb),
            // An unknown transform is treated as the usual one.
            (3, Some(_)) => Ok(Color::YCbCr),
            (3, None) if self.components().iter().map(|c| c.id).eq(*b"RGB") => Ok(Color::Rgb),
            (3, None) => Ok(Color::YCbCr),
            (4, Some(0)) => Ok(Color::Cmyk),
            (4, Some(2)) => Ok(Color::Ycck),
            (4, None) => unsupported("four components without an Adobe marker"),
            (count, transform) => unsupported(&format!(
                "Adobe transform {transform:?} of {count} components"
            )),
        }
    }

    pub(crate) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// Returns the largest sampling factors.
    pub(crate) fn sampling(&self) -> (usize, usize) {
        let largest =
            |of: fn(&Component) -> usize| self.components().iter().map(of).max().unwrap_or(1);
        (largest(|c| c.h), largest(|c| c.v))
    }

    /// Returns true if all coefficients are decoded before any becomes a pixel.
    pub(crate) fn many_scans(&self) -> bool {
        self.progressive || !self.interleaved
    }

    /// Returns about how much memory decoding takes: the pixels, and the coefficients if they are
    /// kept.
    pub(crate) fn memory(&self) -> u64 {
        let kept = if self.many_scans() {
            2 * self.count as u64
        } else {
            0
        };
        u64::from(self.width) * u64::from(self.height) * (3 + kept)
    }
}

/// Returns the offset of the first image's end marker.
pub(crate) fn end_of_image(bytes: &[u8], header: &Header) -> Result<usize> {
    let (mut at, mut scans) = (header.scan, 0);
    loop {
        let (marker, body) = segment(bytes, at)?;
        match marker {
            EOI => return Ok(body.start - 2),
            SOI => return corrupt("another image begins within it"),
            SOS => {
                scans += 1;
                if scans > MAX_SCANS {
                    let message = format!("a JPEG with more than {MAX_SCANS} scans");
                    return Err(Error::limit(message));
                }
                at = entropy_end(bytes, body.end);
            }
            _ => at = body.end,
        }
    }
}

/// Returns the end of the compressed data that starts here: the next marker that is not a restart.
pub(super) fn entropy_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        // In blocks, which compiles to vector instructions.
        let rest = &bytes[at..];
        let has_ff = |block: &[u8]| {
            block
                .iter()
                .fold(false, |found, &byte| found | (byte == 0xff))
        };
        let blocks = rest
            .chunks_exact(32)
            .take_while(|block| !has_ff(block))
            .count();
        let Some(ff) = rest[blocks * 32..].iter().position(|&byte| byte == 0xff) else {
            return bytes.len();
        };
        at += blocks * 32 + ff;
        match bytes.get(at + 1) {
            Some(0x00 | 0xd0..=0xd7) => at += 2,
            Some(0xff) => at += 1,
            _ => return at,
        }
    }
}

/// Returns the marker at or after `at`, and the range of its body. Bytes before it are skipped.
pub(super) fn segment(bytes: &[u8], at: usize) -> Result<(u8, std::ops::Range<usize>)> {
    let mut at = at;
    loop {
        let pair = take(bytes, at, 2, "JPEG")?;
        match pair[1] {
            _ if pair[0] != 0xff => at += 1,
            0xff | 0x00 => at += 1,
            // These have no body.
            marker @ (0x01 | 0xd0..=0xd9) => return Ok((marker, at + 2..at + 2)),
            marker => {
                let len = take(bytes, at + 2, 2, "JPEG")?;
                let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
                if len < 2 {
                    return corrupt(&format!(
                        "marker {marker:02x} at byte {at} has a length of {len}"
                    ));
                }
                take(bytes, at + 2, len, "JPEG")?;
                return Ok((marker, at + 4..at + 2 + len));
            }
        }
    }
}

pub(super) fn corrupt<T>(what: &str) -> Result<T> {
    Err(Error::corrupt(format!("a JPEG: {what}")))
}

pub(super) fn unsupported<T>(what: &str) -> Result<T> {
    Err(Error::unsupported(format!("a JPEG with {what}")))
}
