//! Pixels in rows, of images or of masks: moves that do not depend on the type of pixel.

use crate::Rect;

/// Pixels in rows from the top. Callers have checked that parts and paddings fit.
#[derive(Clone, Copy)]
pub(crate) struct Raster<'a, P> {
    pub(super) width: usize,
    pub(super) pixels: &'a [P],
}

impl<'a, P: Copy> Raster<'a, P> {
    /// Makes a raster of these pixels, in rows of this width.
    pub(crate) fn new(width: u32, pixels: &'a [P]) -> Self {
        Raster {
            width: width as usize,
            pixels,
        }
    }

    pub(super) fn height(&self) -> usize {
        self.pixels.len() / self.width
    }

    pub(super) fn row(&self, y: usize) -> &'a [P] {
        &self.pixels[y * self.width..][..self.width]
    }

    pub(crate) fn crop(&self, part: Rect) -> Vec<P> {
        let (x, y, width) = (part.x as usize, part.y as usize, part.width as usize);
        let mut out = Vec::with_capacity(width * part.height as usize);
        for y in y..y + part.height as usize {
            out.extend_from_slice(&self.row(y)[x..x + width]);
        }
        out
    }

    /// Scales by taking the pixel under the middle of each result pixel. The computation is exact:
    /// no float decides which pixel is taken.
    pub(crate) fn resize(&self, width: u32, height: u32) -> Vec<P> {
        let nearest =
            |i: u64, from: usize, to: u64| ((2 * i + 1) * from as u64 / (2 * to)) as usize;
        let (width, height) = (u64::from(width), u64::from(height));
        let columns: Vec<usize> = (0..width).map(|x| nearest(x, self.width, width)).collect();
        let mut out = Vec::with_capacity((width * height) as usize);
        for y in 0..height {
            let row = self.row(nearest(y, self.height(), height));
            out.extend(columns.iter().map(|&x| row[x]));
        }
        out
    }

    /// Returns the pixel in a column and row, if it is inside.
    pub(crate) fn get(&self, x: i64, y: i64) -> Option<P> {
        let is_inside = (x as u64) < self.width as u64 && (y as u64) < self.height() as u64;
        is_inside.then(|| self.pixels[y as usize * self.width + x as usize])
    }

    /// Returns the four pixels from here to the right and below, if all are inside: the upper row,
    /// then the lower row.
    pub(crate) fn square(&self, x: i64, y: i64) -> Option<[P; 4]> {
        let is_inside = (x as u64) < self.width as u64 - 1 && (y as u64) < self.height() as u64 - 1;
        is_inside.then(|| {
            let start = y as usize * self.width + x as usize;
            let (above, below) = (
                &self.pixels[start..start + 2],
                &self.pixels[start + self.width..][..2],
            );
            [above[0], above[1], below[0], below[1]]
        })
    }
}

/// Mirrors left and right.
pub(crate) fn hflip<P>(width: u32, pixels: &mut [P]) {
    pixels
        .chunks_exact_mut(width as usize)
        .for_each(<[P]>::reverse);
}

/// Mirrors top and bottom.
pub(crate) fn vflip<P>(width: u32, pixels: &mut [P]) {
    let width = width as usize;
    let height = pixels.len() / width;
    let (above, below) = pixels.split_at_mut(height / 2 * width);
    let below = below.rchunks_exact_mut(width);
    above
        .chunks_exact_mut(width)
        .zip(below)
        .for_each(|(above, below)| above.swap_with_slice(below));
}
