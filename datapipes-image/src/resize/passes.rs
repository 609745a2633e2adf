//! The two passes over the pixels, and the choice of their version: all versions compute the same
//! bytes.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::coefficients::{BATCH, Group, HALF, LANES, PRECISION, Span, TAPS, Table, tap};

/// Instructions that the passes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Kernel {
    /// Returns the fastest kernel that this machine supports.
    pub(super) fn best() -> Kernel {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Kernel::Avx2;
        }
        Kernel::Portable
    }

    /// Returns the bytes that must follow a row's first pixel in memory, for the pass across to
    /// read.
    pub(super) fn reach(self, table: &Table, channels: usize) -> usize {
        // A load is of 16 bytes, of which a group of taps uses 12 or 4.
        table.reach() * channels + if channels == 3 { 4 } else { 0 }
    }

    /// Scales rows across, each to its place in `out`.
    pub(super) fn across(
        self,
        rows: [&[u8]; BATCH],
        channels: usize,
        table: &Table,
        out: &mut [u8],
        at: [usize; BATCH],
    ) {
        match (self, channels) {
            #[cfg(target_arch = "x86_64")]
            (Kernel::Avx2, 3) => avx2::across_rgb(rows, table, out, at),
            #[cfg(target_arch = "x86_64")]
            (Kernel::Avx2, _) => avx2::across_gray(rows, table, out, at),
            (Kernel::Portable, 3) => across::<3>(rows, table, out, at),
            (Kernel::Portable, _) => across::<1>(rows, table, out, at),
        }
    }

    /// Computes one row, from the rows that begin at these places.
    pub(super) fn down(self, from: &[u8], places: &[usize], groups: &[Group], out: &mut [u8]) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 if out.len() >= LANES => avx2::down(from, places, groups, out),
            _ => down(from, places, groups, out),
        }
    }
}

/// Scales a batch of rows across.
fn across<const CHANNELS: usize>(
    rows: [&[u8]; BATCH],
    table: &Table,
    out: &mut [u8],
    at: [usize; BATCH],
) {
    for (row, at) in rows.into_iter().zip(at) {
        let to = out[at..][..table.spans().len() * CHANNELS]
            .as_chunks_mut::<CHANNELS>()
            .0;
        for ((x, to), &Span { start, count }) in to.iter_mut().enumerate().zip(table.spans()) {
            let pixels =
                row.as_chunks::<CHANNELS>().0[start as usize..][..count as usize].chunks(TAPS);
            let mut sums = [HALF; CHANNELS];
            for (pixels, group) in pixels.zip(table.groups(x)) {
                for (t, pixel) in pixels.iter().enumerate() {
                    for (sum, &value) in sums.iter_mut().zip(pixel) {
                        *sum = sum.wrapping_add(i32::from(value) * tap(group, t));
                    }
                }
            }
            *to = sums.map(level);
        }
    }
}

/// Computes one row, from the rows that are weighed.
fn down(from: &[u8], places: &[usize], groups: &[Group], out: &mut [u8]) {
    for (n, out) in out.chunks_mut(LANES).enumerate() {
        let mut sums = [HALF; LANES];
        for (places, group) in places.chunks(TAPS).zip(groups) {
            for (t, place) in places.iter().enumerate() {
                let weight = tap(group, t);
                let values = &from[place + n * LANES..][..out.len()];
                for (sum, &value) in sums.iter_mut().zip(values) {
                    *sum = sum.wrapping_add(i32::from(value) * weight);
                }
            }
        }
        out.iter_mut()
            .zip(sums)
            .for_each(|(out, sum)| *out = level(sum));
    }
}

/// Converts a sum that includes [`HALF`] to a level.
fn level(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}
