//! Upsampling, in libjpeg's ways: by repetition, or weighted by distance ("fancy").
//!
//! At the ends of a row the last sample counts twice. If a row is only a part of a longer one, its
//! caller adds one sample more than it needs at each end.

use super::idct::with_avx2;

/// Repeats each sample.
pub(super) fn repeat(row: &[u8], times: usize, out: &mut [u8]) {
    for (out, &sample) in out.chunks_exact_mut(times).zip(row) {
        out.fill(sample);
    }
}

with_avx2! {
    /// Makes two samples of one: three parts of the nearer, one of the other neighbour.
    pub(super) fn across(row: &[u8], out: &mut [u8]) {
        across_into(row, out)
    }
}

with_avx2! {
    /// Makes a row between two: three parts of the nearer, one of the other.
    pub(super) fn down(near: &[u8], far: &[u8], upper: bool, out: &mut [u8]) {
        down_into(near, far, upper, out)
    }
}

with_avx2! {
    /// Makes two samples of one in a row between two. `sums` holds the row before it is widened.
    pub(super) fn both(near: &[u8], far: &[u8], sums: &mut [u16], out: &mut [u8]) {
        both_into(near, far, sums, out)
    }
}

#[inline(always)]
fn across_into(row: &[u8], out: &mut [u8]) {
    let len = row.len();
    let out = &mut out.as_chunks_mut::<2>().0[..len];
    let wide = |sample: u8| u16::from(sample);
    for ((out, near), sides) in out[1..].iter_mut().zip(&row[1..]).zip(row.windows(3)) {
        let near = wide(*near) * 3;
        *out = [
            ((near + wide(sides[0]) + 1) >> 2) as u8,
            ((near + wide(sides[2]) + 2) >> 2) as u8,
        ];
    }
    let (first, last) = (row[0], row[len - 1]);
    out[len - 1] = [
        ((wide(last) * 3 + wide(row[len.saturating_sub(2)]) + 1) >> 2) as u8,
        last,
    ];
    out[0] = [
        first,
        ((wide(first) * 3 + wide(row[1.min(len - 1)]) + 2) >> 2) as u8,
    ];
}

#[inline(always)]
fn down_into(near: &[u8], far: &[u8], upper: bool, out: &mut [u8]) {
    let bias = if upper { 1 } else { 2 };
    for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
        *out = ((u16::from(near) * 3 + u16::from(far) + bias) >> 2) as u8;
    }
}

#[inline(always)]
fn both_into(near: &[u8], far: &[u8], sums: &mut [u16], out: &mut [u8]) {
    let len = near.len();
    let sums = &mut sums[..len];
    for ((sum, &near), &far) in sums.iter_mut().zip(near).zip(far) {
        *sum = u16::from(near) * 3 + u16::from(far);
    }
    let out = &mut out.as_chunks_mut::<2>().0[..len];
    for (out, sums) in out[1..].iter_mut().zip(sums.windows(3)) {
        let near = sums[1] * 3;
        *out = [
            ((near + sums[0] + 8) >> 4) as u8,
            ((near + sums[2] + 7) >> 4) as u8,
        ];
    }
    let (first, last) = (sums[0], sums[len - 1]);
    out[len - 1] = [
        ((last * 3 + sums[len.saturating_sub(2)] + 8) >> 4) as u8,
        ((last * 4 + 7) >> 4) as u8,
    ];
    let right = sums[1.min(len - 1)];
    out[0] = [
        ((first * 4 + 8) >> 4) as u8,
        ((first * 3 + right + 7) >> 4) as u8,
    ];
}
