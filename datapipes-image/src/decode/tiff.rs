//! TIFF: a walk over the directories, then the `image` crate for the first image.
//!
//! The walk finds the data of the image, and checks that all of it is in the file, before anything
//! is allocated. Palettes are applied here, since the decoder does not support them: for the
//! decoder, the indexes are gray values.

use std::borrow::Cow;
use std::io::Cursor;

use datapipes::Result;
use image::codecs::tiff::TiffDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, Limits};

use super::ImageFormat::Tiff;
use super::directory::{Directory, File, tag};
use crate::Image;

/// Contents of the first directory.
pub(super) struct Header<'a> {
    pub width: u32,
    pub height: u32,
    pub orientation: Option<Orientation>,
    file: File<'a>,
    directory: Directory,
}

/// Storage of the first image.
struct Layout {
    bits: u64,
    samples: u64,
    colors: Colors,
    alpha: Alpha,
}

#[derive(Clone, Copy, PartialEq)]
enum Colors {
    Gray,
    Rgb,
    Palette,
    Cmyk,
}

#[derive(Clone, Copy, PartialEq)]
enum Alpha {
    None,
    /// An unspecified channel, or alpha that is not multiplied into the colours.
    Dropped,
    /// Alpha that is multiplied into the colours.
    Multiplied,
}

impl Header<'_> {
    pub(super) fn read(bytes: &[u8]) -> Result<Header<'_>> {
        let file = File::read(bytes)?;
        let directory = file.directory(file.first)?;
        let edge = |tag| file.number(&directory, tag).map(|edge| edge.unwrap_or(0));
        let (width, height) = (edge(tag::WIDTH)?, edge(tag::HEIGHT)?);
        let (Ok(w), Ok(h)) = (u32::try_from(width), u32::try_from(height)) else {
            return Tiff.corrupt(&format!("its size is {width}x{height}"));
        };
        if w == 0 || h == 0 {
            return Tiff.corrupt(&format!("its size is {width}x{height}"));
        }
        let orientation = file.number(&directory, tag::ORIENTATION).ok().flatten();
        let orientation = orientation
            .and_then(|n| u8::try_from(n).ok())
            .and_then(Orientation::from_exif);
        Ok(Header {
            width: w,
            height: h,
            orientation,
            file,
            directory,
        })
    }

    /// Returns about how much memory decoding takes: the stored data, twice, a row of tiles, and
    /// RGB.
    pub(super) fn memory(&self) -> u64 {
        let number = |tag| self.file.number(&self.directory, tag).ok().flatten();
        let sample = number(tag::BITS).unwrap_or(1).div_ceil(8);
        let pixel = number(tag::SAMPLES).unwrap_or(1).saturating_mul(sample);
        let pixels = u64::from(self.width) * u64::from(self.height);
        let row = number(tag::TILE_WIDTH).unwrap_or(0).saturating_mul(pixel);
        pixels
            .saturating_mul(pixel.saturating_mul(2).saturating_add(3))
            .saturating_add(row)
    }

    /// Returns the value of an entry of one number, or the default.
    fn number(&self, tag: u16, default: u64) -> Result<u64> {
        let number = self.file.number(&self.directory, tag)?;
        Ok(number.unwrap_or(default))
    }

    fn layout(&self) -> Result<Layout> {
        match self.number(tag::COMPRESSION, 1)? {
            1 | 5 | 8 | 32946 | 32773 => {}
            2..=4 => return Tiff.unsupported("fax compression"),
            6 | 7 => return Tiff.unsupported("a JPEG in it"),
            other => return Tiff.unsupported(&format!("compression {other}")),
        }
        self.check_entries()?;
        self.check_sample_format()?;
        let samples = self.number(tag::SAMPLES, 1)?;
        let bits = self.bits()?;
        let (colors, alpha) = self.colors(samples)?;
        let read = match colors {
            Colors::Gray => alpha == Alpha::None && matches!(bits, 1 | 8 | 16),
            Colors::Rgb => matches!(bits, 8 | 16),
            Colors::Palette | Colors::Cmyk => bits == 8 && alpha == Alpha::None,
        };
        if !read || alpha == Alpha::Multiplied && (bits, colors) != (8, Colors::Rgb) {
            return Tiff.unsupported(&format!("{samples} samples a pixel, of {bits} bits"));
        }
        let planes = self.number(tag::PLANAR, 1)? != 1 && samples != 1;
        if planes && (colors != Colors::Rgb || alpha != Alpha::None) {
            return Tiff.unsupported(&format!("planes of {samples} samples"));
        }
        if planes && self.directory.count(tag::TILE_WIDTH) > 0 {
            // The decoder takes the tiles of the second plane for more of the first, and panics.
            return Tiff.unsupported("planes of tiles");
        }
        match self.number(tag::PREDICTOR, 1)? {
            1 => {}
            2 if bits >= 8 => {}
            other => return Tiff.unsupported(&format!("predictor {other} of {bits} bits")),
        }
        if self.number(tag::FILL_ORDER, 1)? != 1 {
            return Tiff.unsupported("bits in reverse order");
        }
        Ok(Layout {
            bits,
            samples,
            colors,
            alpha,
        })
    }

    /// Checks that no entry comes twice, or has far too many values.
    fn check_entries(&self) -> Result<()> {
        if let Some(tag) = self.directory.twice() {
            return Tiff.corrupt(&format!("it has entry {tag} twice"));
        }
        for tag in [
            tag::SAMPLE_FORMAT,
            tag::BITS,
            tag::EXTRA_SAMPLES,
            tag::COLOR_MAP,
        ] {
            let count = self.directory.count(tag);
            if count > 1 << 16 {
                return Tiff.corrupt(&format!("entry {tag} has {count} values"));
            }
        }
        Ok(())
    }

    /// Checks that samples are unsigned.
    fn check_sample_format(&self) -> Result<()> {
        let formats = self.file.numbers(&self.directory, tag::SAMPLE_FORMAT)?;
        let what = match formats.iter().find(|&&format| format != 1) {
            None => return Ok(()),
            Some(2) => "signed samples".to_owned(),
            Some(3) => "samples of floating point".to_owned(),
            Some(other) => format!("sample format {other}"),
        };
        Tiff.unsupported(&what)
    }

    /// Returns the bits of each sample.
    fn bits(&self) -> Result<u64> {
        let all = self.file.numbers(&self.directory, tag::BITS)?;
        let bits = all.first().copied().unwrap_or(1);
        match all.iter().all(|&other| other == bits) {
            true => Ok(bits),
            false => Tiff.unsupported(&format!("samples of {all:?} bits")),
        }
    }

    /// Returns the meaning of the samples of a pixel.
    fn colors(&self, samples: u64) -> Result<(Colors, Alpha)> {
        let (colors, of_colors) = match self.file.number(&self.directory, tag::PHOTOMETRIC)? {
            Some(0 | 1) => (Colors::Gray, 1),
            Some(2) => (Colors::Rgb, 3),
            Some(3) => (Colors::Palette, 1),
            Some(5) => (Colors::Cmyk, 4),
            Some(6) => return Tiff.unsupported("YCbCr"),
            Some(other) => return Tiff.unsupported(&format!("photometric interpretation {other}")),
            None => return Tiff.corrupt("it does not say what its colours are"),
        };
        let extra = self.file.numbers(&self.directory, tag::EXTRA_SAMPLES)?;
        let alpha = match (samples.checked_sub(of_colors), extra.as_slice()) {
            (Some(0), []) => Alpha::None,
            (Some(1), [1]) => Alpha::Multiplied,
            (Some(1), [] | [0 | 2]) => Alpha::Dropped,
            _ => {
                return Tiff
                    .unsupported(&format!("{samples} samples, {} of them extra", extra.len()));
            }
        };
        Ok((colors, alpha))
    }

    /// Checks the number of the strips or tiles, and their lengths if known.
    fn check_chunks(&self, layout: &Layout) -> Result<()> {
        let number = |tag| self.file.number(&self.directory, tag);
        let (width, height) = (u64::from(self.width), u64::from(self.height));
        let planes = if number(tag::PLANAR)? == Some(2) {
            layout.samples
        } else {
            1
        };
        let tile = (number(tag::TILE_WIDTH)?, number(tag::TILE_HEIGHT)?);
        let ((w, h), offsets, lengths) = match tile {
            (Some(w), Some(h)) => ((w, h), tag::TILE_OFFSETS, tag::TILE_COUNTS),
            _ => {
                let rows = number(tag::ROWS_PER_STRIP)?.unwrap_or(height);
                ((width, rows), tag::STRIP_OFFSETS, tag::STRIP_COUNTS)
            }
        };
        // The number of rows may be the greatest possible number.
        if w == 0 || h == 0 || w > u32::MAX.into() || h > u32::MAX.into() {
            return Tiff.corrupt(&format!("its strips or tiles are {w}x{h}"));
        }
        let (across, down) = (width.div_ceil(w), height.div_ceil(h));
        let wanted = across.saturating_mul(down).saturating_mul(planes);
        for (tag, what) in [(offsets, "offsets"), (lengths, "lengths")] {
            let found = self.directory.count(tag);
            if found != wanted {
                return Tiff.corrupt(&format!(
                    "it has {found} {what} of {wanted} strips or tiles"
                ));
            }
        }
        if number(tag::COMPRESSION)?.unwrap_or(1) == 1 {
            // The decoder would read on into the next strip.
            let row = (w * layout.bits * (layout.samples / planes)).div_ceil(8);
            for (i, len) in self
                .file
                .numbers(&self.directory, lengths)?
                .into_iter()
                .enumerate()
            {
                let first = i as u64 % (across * down) / across * h;
                let rows = if tile.0.is_some() {
                    h
                } else {
                    h.min(height - first)
                };
                let wanted = row.saturating_mul(rows);
                if len < wanted {
                    return Tiff
                        .corrupt(&format!("strip or tile {i} has {len} bytes, not {wanted}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the file in a form that the decoder supports.
    fn plain(&self, layout: &Layout) -> Result<Cow<'_, [u8]>> {
        let mut bytes = Cow::Borrowed(self.file.bytes);
        if layout.colors == Colors::Palette {
            // Black is zero.
            self.file
                .put(&self.directory, tag::PHOTOMETRIC, 1, bytes.to_mut())?;
        }
        if layout.alpha != Alpha::None {
            // Marks the channel as plain alpha. With an unspecified channel, the decoder's
            // predictor fails.
            self.file
                .put(&self.directory, tag::EXTRA_SAMPLES, 2, bytes.to_mut())?;
        }
        Ok(bytes)
    }
}

pub(super) fn decode(header: &Header<'_>, max_bytes: u64) -> Result<Image> {
    let layout = header.layout()?;
    header.check_chunks(&layout)?;
    header.file.check(header.file.first)?;
    let palette = match layout.colors {
        Colors::Palette => Some(palette(header)?),
        _ => None,
    };
    let bytes = header.plain(&layout)?;
    let mut decoder =
        TiffDecoder::new(Cursor::new(&bytes[..])).map_err(|error| Tiff.failed(error))?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(max_bytes);
    decoder
        .set_limits(limits)
        .map_err(|error| Tiff.failed(error))?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(|error| Tiff.failed(error))?;
    if let (Alpha::Multiplied, DynamicImage::ImageRgba8(image)) = (layout.alpha, &mut image) {
        for pixel in image.as_mut().as_chunks_mut::<4>().0 {
            let [r, g, b, a] = pixel.map(u32::from);
            let whole = |c: u32| (255 * c).checked_div(a).unwrap_or(0).min(255) as u8;
            *pixel = [whole(r), whole(g), whole(b), a as u8];
        }
    }
    let mut image = Image::new(header.width, header.height, 3, image.into_rgb8().into_raw())?;
    if let Some(palette) = palette {
        for pixel in image.data_mut().as_chunks_mut::<3>().0 {
            *pixel = palette[usize::from(pixel[0])];
        }
    }
    Ok(image)
}

/// Returns the palette's colours: the upper 8 of 16 bits, as Pillow takes them.
fn palette(header: &Header<'_>) -> Result<Vec<[u8; 3]>> {
    let values = header.file.numbers(&header.directory, tag::COLOR_MAP)?;
    if values.len() != 768 {
        return Tiff.corrupt(&format!(
            "a palette of {} values for 256 colours",
            values.len()
        ));
    }
    Ok((0..256)
        .map(|i| [0, 256, 512].map(|channel| (values[channel + i] >> 8) as u8))
        .collect())
}
