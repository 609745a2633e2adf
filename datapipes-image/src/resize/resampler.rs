//! Scaling of one image after another in the same memory.

use datapipes::{Error, Result};

use super::coefficients::{Axis, BATCH, SLACK, Span, Table};
use super::passes::Kernel;
use super::view::{Part, View};
use crate::ResizeFilter;
use crate::image::check_size;

/// Maximum memory for one image.
const MOST: u64 = 512 << 20;

/// Size of a buffer above which it is freed after an image.
const KEPT: usize = 16 << 20;

/// Scales images, with memory that grows to the need of the largest and is used again for the next.
///
/// - The result is that of Pillow's `Image.resize(size, filter, box)`, bit by bit: a pass across
///   and a pass down, with weights of 22 fraction bits, rounded to 8 bits after each pass.
/// - A row of the result is made as soon as the rows that it needs are there; these are kept in a
///   ring.
#[derive(Debug)]
pub(crate) struct Resampler {
    kernel: Kernel,
    across: Table,
    down: Table,
    /// Rows that are scaled across.
    ring: Vec<u8>,
    /// Offsets of the rows that a row of the result needs.
    places: Vec<usize>,
    /// A row of the result.
    row: Vec<u8>,
    /// Rows that are to be scaled across, with padding after them.
    tails: [Vec<u8>; BATCH],
    /// Nearest source column of each column of the result.
    nearest: Vec<u32>,
}

impl Default for Resampler {
    fn default() -> Self {
        Resampler::new(Kernel::best())
    }
}

impl Resampler {
    pub(super) fn new(kernel: Kernel) -> Self {
        Resampler {
            kernel,
            across: Table::default(),
            down: Table::default(),
            ring: Vec::new(),
            places: Vec::new(),
            row: Vec::new(),
            tails: Default::default(),
            nearest: Vec::new(),
        }
    }

    /// Scales a part of an image to `width` and `height`, into `out`, which has exactly the size of
    /// these pixels.
    ///
    /// # Errors
    /// As [`resize_rows`](Resampler::resize_rows); [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if `out` has another
    /// length.
    pub(crate) fn resize(
        &mut self,
        source: View<'_>,
        part: Part,
        width: u32,
        height: u32,
        filter: ResizeFilter,
        out: &mut [u8],
    ) -> Result<()> {
        check_size(width, height)?;
        let row = width as usize * source.channels();
        if out.len() != row * height as usize {
            return Err(Error::shape(format!(
                "{} bytes for an image of {width}x{height}x{}",
                out.len(),
                source.channels()
            )));
        }
        self.resize_rows(source, part, width, height, filter, |y, pixels| {
            out[y as usize * row..][..row].copy_from_slice(pixels);
        })
    }

    /// Scales a part of an image to `width` and `height`, and passes each row to `each` when it is
    /// done, from the top.
    ///
    /// # Errors
    /// - [`ErrorKind::Config`](datapipes::ErrorKind::Config) if `width` or `height` is zero or the result would be huge.
    /// - [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the part is empty or not inside the image.
    /// - [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if weights and intermediate rows would take more than 512 MiB.
    pub(crate) fn resize_rows(
        &mut self,
        source: View<'_>,
        part: Part,
        width: u32,
        height: u32,
        filter: ResizeFilter,
        each: impl FnMut(u32, &[u8]),
    ) -> Result<()> {
        check_size(width, height)?;
        let [across, down] = part.edges(&source)?;
        let across = Axis {
            source: source.width(),
            part: across,
            target: width,
            filter,
        };
        let down = Axis {
            source: source.height(),
            part: down,
            target: height,
            filter,
        };
        if across.is_copy() && down.is_copy() {
            copy(source, across, down, each);
        } else if filter == ResizeFilter::Nearest {
            self.pick(source, across, down, each)?;
        } else if across.is_copy() || goes_down_first(across, down) {
            self.down_first(source, across, down, each)?;
        } else {
            self.across_first(source, across, down, each)?;
        }
        self.release();
        Ok(())
    }

    /// Takes the nearest pixels.
    fn pick(
        &mut self,
        source: View<'_>,
        across: Axis,
        down: Axis,
        mut each: impl FnMut(u32, &[u8]),
    ) -> Result<()> {
        let channels = source.channels();
        check_memory(
            u64::from(across.target) * (channels + size_of::<u32>()) as u64,
            across,
            down,
        )?;
        self.nearest.clear();
        self.nearest.extend(nearest(across));
        let row = across.target as usize * channels;
        grow(&mut self.row, row);
        let mut last = None;
        for (y, from) in nearest(down).enumerate() {
            if last != Some(from) {
                pick_row(
                    source.row(from as usize),
                    &self.nearest,
                    channels,
                    &mut self.row[..row],
                );
                last = Some(from);
            }
            each(y as u32, &self.row[..row]);
        }
        Ok(())
    }

    /// Computes a weighted sum for each pixel, first across, then down.
    fn across_first(
        &mut self,
        source: View<'_>,
        across: Axis,
        down: Axis,
        mut each: impl FnMut(u32, &[u8]),
    ) -> Result<()> {
        let channels = source.channels();
        let row = across.target as usize * channels;
        let (stride, slots) = (row + SLACK, down.most_taps() + BATCH);
        let bytes = stride as u64 * slots as u64 + across.table_bytes() + down.table_bytes();
        check_memory(bytes, across, down)?;
        self.across.prepare(across);
        self.down.prepare(down);
        grow(&mut self.ring, stride * slots);
        grow(&mut self.row, row);
        let spans = self.down.spans();
        let end = spans.iter().map(Span::end).max().unwrap_or(0);
        let reach = self.kernel.reach(&self.across, channels);
        let mut next = spans.first().map_or(0, |span| span.start as usize);
        let begin = |y: usize| y % slots * stride;
        for (y, span) in spans.iter().enumerate() {
            while next < span.end() {
                // At the end, the last row again.
                let rows: [usize; BATCH] = std::array::from_fn(|n| (next + n).min(end - 1));
                let mut from = rows.map(|y| source.rest(y));
                for (from, tail) in from.iter_mut().zip(&mut self.tails) {
                    if from.len() < reach {
                        tail.clear();
                        tail.extend_from_slice(from);
                        tail.resize(reach, 0);
                        *from = tail;
                    }
                }
                self.kernel.across(
                    from,
                    channels,
                    &self.across,
                    &mut self.ring,
                    rows.map(begin),
                );
                next = (next + BATCH).min(end);
            }
            if down.is_copy() {
                each(
                    y as u32,
                    &self.ring[begin(down.part.0 as usize + y)..][..row],
                );
                continue;
            }
            self.places.clear();
            self.places
                .extend((span.start as usize..span.end()).map(begin));
            self.kernel.down(
                &self.ring,
                &self.places,
                self.down.groups(y),
                &mut self.row[..row],
            );
            each(y as u32, &self.row[..row]);
        }
        Ok(())
    }

    /// Computes a weighted sum for each pixel, first down, then across.
    fn down_first(
        &mut self,
        source: View<'_>,
        across: Axis,
        down: Axis,
        mut each: impl FnMut(u32, &[u8]),
    ) -> Result<()> {
        let channels = source.channels();
        let (row, line) = (
            across.target as usize * channels,
            source.width() as usize * channels,
        );
        let bytes = (row + line) as u64 * BATCH as u64 + across.table_bytes() + down.table_bytes();
        check_memory(bytes, across, down)?;
        self.down.prepare(down);
        let columns = if across.is_copy() {
            let start = across.part.0 as usize;
            start..start + across.target as usize
        } else {
            self.across.prepare(across);
            grow(&mut self.ring, (row + SLACK) * BATCH);
            let spans = self.across.spans();
            let end = spans.iter().map(Span::end).max().unwrap_or(0);
            spans.first().map_or(0, |span| span.start as usize)..end
        };
        let bytes = columns.start * channels..columns.end * channels;
        let reach = if across.is_copy() {
            0
        } else {
            self.kernel.reach(&self.across, channels)
        };
        self.tails
            .iter_mut()
            .for_each(|tail| grow(tail, line.max(reach)));
        for first in (0..down.target as usize).step_by(BATCH) {
            let count = BATCH.min(down.target as usize - first);
            for (y, tail) in (first..).zip(&mut self.tails[..count]) {
                let span = self.down.spans()[y];
                self.places.clear();
                let rows = span.start as usize..span.end();
                self.places
                    .extend(rows.map(|y| source.place(y) + bytes.start));
                let (from, groups) = (source.rest(0), self.down.groups(y));
                self.kernel
                    .down(from, &self.places, groups, &mut tail[bytes.clone()]);
                if across.is_copy() {
                    each(y as u32, &tail[bytes.clone()]);
                }
            }
            if !across.is_copy() {
                let at = std::array::from_fn(|n| n * (row + SLACK));
                let from = self.tails.each_ref().map(|tail| &tail[..]);
                self.kernel
                    .across(from, channels, &self.across, &mut self.ring, at);
                for (y, at) in (first..).zip(&at[..count]) {
                    each(y as u32, &self.ring[*at..][..row]);
                }
            }
        }
        Ok(())
    }

    /// Returns the number of bytes that are held.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let bytes: usize = self
            .tails
            .iter()
            .chain([&self.ring, &self.row])
            .map(Vec::capacity)
            .sum();
        let numbers = self.places.capacity() * size_of::<usize>()
            + self.nearest.capacity() * size_of::<u32>();
        bytes + numbers + self.across.memory() + self.down.memory()
    }

    /// Frees large buffers.
    fn release(&mut self) {
        self.across.release(KEPT);
        self.down.release(KEPT);
        for bytes in [&mut self.ring, &mut self.row]
            .into_iter()
            .chain(&mut self.tails)
        {
            if bytes.capacity() > KEPT {
                *bytes = Vec::new();
            }
        }
        if self.places.capacity() * size_of::<usize>() > KEPT {
            self.places = Vec::new();
        }
        if self.nearest.capacity() * size_of::<u32>() > KEPT {
            self.nearest = Vec::new();
        }
    }
}

/// Copies a part.
fn copy(source: View<'_>, across: Axis, down: Axis, mut each: impl FnMut(u32, &[u8])) {
    let pixel = source.channels();
    let (start, len) = (
        across.part.0 as usize * pixel,
        across.target as usize * pixel,
    );
    for y in 0..down.target {
        each(
            y,
            &source.row(down.part.0 as usize + y as usize)[start..][..len],
        );
    }
}

/// Returns the nearest source pixel of each pixel of the result: the one that contains its centre.
fn nearest(axis: Axis) -> impl Iterator<Item = u32> {
    // Pillow adds up, too.
    let step = axis.scale();
    let first = f64::from(axis.part.0) + step * 0.5;
    let places = (0..axis.target).scan(first, move |next, _| {
        Some(std::mem::replace(next, *next + step))
    });
    places.map(move |place| (place as u32).min(axis.source - 1))
}

/// Copies these pixels of a row.
fn pick_row(from: &[u8], columns: &[u32], channels: usize, to: &mut [u8]) {
    if channels == 1 {
        to.iter_mut()
            .zip(columns)
            .for_each(|(to, &x)| *to = from[x as usize]);
    } else {
        let (from, to) = (from.as_chunks::<3>().0, to.as_chunks_mut::<3>().0);
        to.iter_mut()
            .zip(columns)
            .for_each(|(to, &x)| *to = from[x as usize]);
    }
}

/// Returns true if Pillow takes the pass down first: since version 13, if many more rows than
/// columns are removed.
fn goes_down_first(across: Axis, down: Axis) -> bool {
    let less = |axis: Axis| i64::from(axis.source) - i64::from(axis.target);
    less(down) > 0 && less(down) > 2 * less(across)
}

/// Extends the buffer to this length, if it is shorter.
fn grow(bytes: &mut Vec<u8>, len: usize) {
    if bytes.len() < len {
        bytes.resize(len, 0);
    }
}

/// Fails if this much memory is too much.
fn check_memory(bytes: u64, across: Axis, down: Axis) -> Result<()> {
    if bytes <= MOST {
        return Ok(());
    }
    Err(Error::limit(format!(
        "from {}x{} to {}x{} needs {bytes} bytes of memory in between, more than {MOST}",
        across.source, down.source, across.target, down.target
    )))
}
