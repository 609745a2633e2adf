//! JPEG: a walk over the markers, then `zune-jpeg`.
//!
//! The walk is what makes a cut file an error. The decoder fills what is missing with zero bits, which is how a
//! picture gets a grey lower half, and takes the end of the input for the end of the picture. So the walk looks
//! for the end marker first, and in its place the decoder gets bits that no Huffman code begins with.

use std::cell::RefCell;

use datapipes::{Error, ErrorKind, Result};
use image::metadata::Orientation;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::take;
use crate::Image;

/// What stands before the first scan.
pub(crate) struct Header {
    pub width: u32,
    pub height: u32,
    pub orientation: Option<Orientation>,
    pub components: u8,
    progressive: bool,
    /// All components are in the first scan.
    interleaved: bool,
    restarts: bool,
    /// The largest sampling factors.
    pub sampling: (u8, u8),
    /// It says that it is JFIF, so that three components are YCbCr.
    jfif: bool,
    /// The components are called `R`, `G` and `B`.
    called_rgb: bool,
    /// What an Adobe segment says of the colours: 0 untransformed, 1 YCbCr, 2 YCCK.
    adobe: Option<u8>,
    /// Where the byte behind the Adobe segment's `0xff` is.
    pub adobe_at: usize,
    /// Where the first scan's segment starts.
    pub scan: usize,
}

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const DNL: u8 = 0xdc;
const DRI: u8 = 0xdd;
const APP0: u8 = 0xe0;
const APP1: u8 = 0xe1;
const APP14: u8 = 0xee;
const APP15: u8 = 0xef;

/// More scans than any encoder makes cost time without end.
pub(super) const MAX_SCANS: usize = 100;

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header> {
        let mut header = Header {
            width: 0,
            height: 0,
            orientation: None,
            components: 0,
            progressive: false,
            interleaved: true,
            restarts: false,
            sampling: (1, 1),
            jfif: false,
            called_rgb: false,
            adobe: None,
            adobe_at: 0,
            scan: 0,
        };
        let mut at = 2;
        loop {
            let (marker, body) = segment(bytes, at)?;
            let end = body.end;
            let body = &bytes[body];
            match marker {
                0xc0..=0xc2 => header.frame(body, marker == 0xc2)?,
                0xc3 | 0xc5..=0xc7 | 0xcd..=0xcf => return unsupported("lossless or hierarchical coding"),
                0xc9..=0xcb => return unsupported("arithmetic coding"),
                DNL => return unsupported("a height that is told late"),
                DRI => header.restarts |= body != [0, 0],
                APP0 => header.jfif |= body.starts_with(b"JFIF\0"),
                APP1 if header.orientation.is_none() => {
                    let exif = body.strip_prefix(b"Exif\0\0");
                    header.orientation = exif.and_then(Orientation::from_exif_chunk);
                }
                APP14 if body.len() >= 12 && body.starts_with(b"Adobe") => {
                    header.adobe = Some(body[11]);
                    header.adobe_at = end - body.len() - 3;
                }
                SOS if header.components == 0 => return corrupt("a scan stands before the frame"),
                SOS => {
                    header.interleaved = body.first() == Some(&header.components);
                    header.scan = end - body.len() - 4;
                    return header.check();
                }
                EOI => return corrupt("it ends without a scan"),
                _ => {}
            }
            at = end;
        }
    }

    /// The segment that tells the size.
    fn frame(&mut self, body: &[u8], progressive: bool) -> Result<()> {
        let [precision, h1, h0, w1, w0, components, ref rest @ ..] = *body else {
            return corrupt("its frame header is too short");
        };
        if self.components != 0 {
            return corrupt("it has two frames");
        }
        if precision != 8 {
            return unsupported(&format!("{precision} bits a sample"));
        }
        self.width = u16::from_be_bytes([w1, w0]).into();
        self.height = u16::from_be_bytes([h1, h0]).into();
        self.components = components;
        self.progressive = progressive;
        if self.width == 0 || self.height == 0 {
            return corrupt(&format!("its size is {}x{}", self.width, self.height));
        }
        if !matches!(components, 1 | 3 | 4) {
            return unsupported(&format!("{components} components"));
        }
        self.called_rgb = rest.chunks_exact(3).map(|c| c[0]).eq(*b"RGB");
        let sampling: Vec<(u8, u8)> = rest.chunks_exact(3).map(|c| (c[1] >> 4, c[1] & 15)).collect();
        if sampling.len() != usize::from(components) || sampling.iter().any(|&(h, v)| h == 0 || v == 0) {
            return corrupt("its components are not well described");
        }
        self.sampling = sampling[0];
        // The decoder scales components up by powers of two, to the size of the first.
        let (h, v) = sampling[0];
        let fits = |of: u8, whole: u8| of <= whole && of.is_power_of_two() && whole.is_power_of_two();
        if !sampling.iter().all(|&(ch, cv)| fits(ch, h) && fits(cv, v)) {
            return unsupported(&format!("sampling factors {sampling:?}"));
        }
        Ok(())
    }

    fn check(self) -> Result<Header> {
        if !self.interleaved && !self.progressive && (self.sampling != (1, 1) || self.restarts) {
            // Where rows of blocks end is not where the decoder looks for them.
            return unsupported("a scan for each component, subsampled or with restarts");
        }
        match (self.components, self.adobe) {
            // The decoder believes the names, libjpeg the rest.
            (3, None) if self.called_rgb && self.jfif => unsupported("colours that are told in two ways"),
            (3, Some(1..)) if self.called_rgb => unsupported("colours that are told in two ways"),
            (4, None) => unsupported("four components without an Adobe marker"),
            (4, Some(0 | 2)) | (3, None | Some(0 | 1)) | (1, _) => Ok(self),
            // As libjpeg: an unknown transform is the usual one.
            (3, Some(_)) => Ok(self),
            (_, transform) => {
                unsupported(&format!("Adobe transform {transform:?} of {} components", self.components))
            }
        }
    }

    /// It has several scans, so that all coefficients are kept until the last one.
    pub(super) fn is_kept(&self) -> bool {
        self.progressive || !self.interleaved
    }

    /// About how much memory decoding takes: the pixels, and the coefficients where they are kept.
    pub(super) fn memory(&self) -> u64 {
        let kept = if self.is_kept() { 2 * u64::from(self.components) } else { 0 };
        u64::from(self.width) * u64::from(self.height) * (3 + kept)
    }
}

#[cfg_attr(feature = "turbo", allow(dead_code, reason = "libjpeg-turbo decodes in its place"))]
pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<Image> {
    thread_local!(static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });

    let end = end_of_image(bytes, header)?;
    // Three components that are RGB already are asked for as they are; the decoder would take the Adobe segment
    // that says so for one of four components.
    let as_they_are = header.components == 3 && header.adobe == Some(0) && !header.called_rgb;
    let output = if as_they_are { ColorSpace::YCbCr } else { ColorSpace::RGB };
    let options = DecoderOptions::new_fast()
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(output);
    let mut image = Image::black(header.width, header.height, 3);
    INPUT.with_borrow_mut(|input| {
        input.clear();
        input.extend_from_slice(&bytes[..end]);
        if header.components == 3 && header.adobe.is_some_and(|transform| transform != 1) {
            input[header.adobe_at] = APP15;
        }
        // Eight bytes are what the decoder reads ahead. Ones are not the beginning of any code.
        input.extend_from_slice(&[0xff, 0x00].repeat(16));
        if header.progressive {
            input.extend_from_slice(&[0xff, EOI]);
        }
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(input.as_slice()), options);
        let decoded = decoder.decode_into(image.data_mut());
        if input.capacity() > 16 << 20 {
            *input = Vec::new();
        }
        decoded.map_err(failed)
    })?;
    Ok(image)
}

/// Where the end marker is that belongs to the first picture.
pub(super) fn end_of_image(bytes: &[u8], header: &Header) -> Result<usize> {
    let (mut at, mut scans) = (header.scan, 0);
    let separate = !header.interleaved && !header.progressive;
    loop {
        let (marker, body) = segment(bytes, at)?;
        match marker {
            EOI => return Ok(body.start - 2),
            SOI => return corrupt("another image begins within it"),
            DRI if separate => return unsupported("restarts from a later scan on"),
            SOS => {
                scans += 1;
                if separate && bytes.get(body.start) != Some(&1) {
                    return unsupported("scans of one component and of several");
                }
                if scans > MAX_SCANS {
                    let message = format!("a JPEG with more than {MAX_SCANS} scans");
                    return Err(Error::new(ErrorKind::Limit, message));
                }
                at = entropy_end(bytes, body.end);
            }
            _ => at = body.end,
        }
    }
}

/// Where the compressed data that starts here ends: at the next marker that is not a restart.
fn entropy_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        // In blocks, which compiles to vector instructions.
        let rest = &bytes[at..];
        let has_ff = |block: &[u8]| block.iter().fold(false, |found, &byte| found | (byte == 0xff));
        let blocks = rest.chunks_exact(32).take_while(|block| !has_ff(block)).count();
        let Some(ff) = rest[blocks * 32..].iter().position(|&byte| byte == 0xff) else { return bytes.len() };
        at += blocks * 32 + ff;
        match bytes.get(at + 1) {
            Some(0x00 | 0xd0..=0xd7) => at += 2,
            Some(0xff) => at += 1,
            _ => return at,
        }
    }
}

/// The marker at or after `at`, and where its body is. Bytes before it are passed over; the decoder judges them.
fn segment(bytes: &[u8], at: usize) -> Result<(u8, std::ops::Range<usize>)> {
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
                    return corrupt(&format!("marker {marker:02x} at byte {at} has a length of {len}"));
                }
                take(bytes, at + 2, len, "JPEG")?;
                return Ok((marker, at + 4..at + 2 + len));
            }
        }
    }
}

fn failed(error: DecodeErrors) -> Error {
    let kind = match &error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => ErrorKind::Truncated,
        DecodeErrors::Unsupported(_) => ErrorKind::Unsupported,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, format!("a JPEG: {error}"))
}

fn corrupt<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Corrupt, format!("a JPEG: {what}")))
}

fn unsupported<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, format!("a JPEG with {what}")))
}
