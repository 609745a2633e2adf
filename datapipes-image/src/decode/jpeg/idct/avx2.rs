//! The whole transform with AVX2: two blocks at once, each in its half of every vector.

use std::arch::x86_64::*;

use super::super::block::Block;
use super::{BITS, PASS, factors::*, flat};

/// Makes samples of the blocks of a row.
#[target_feature(enable = "avx2")]
pub(super) fn whole(
    blocks: &[Block],
    lasts: &[u8],
    quant: &[u16; 64],
    out: &mut [u8],
    stride: usize,
) {
    let quant = rows(quant.map(|factor| factor as i16)).map(|row| _mm256_broadcastsi128_si256(row));
    let mut waiting = None;
    for (n, (block, &last)) in blocks.iter().zip(lasts).enumerate() {
        if last == 0 {
            let sample = flat(block.0[0], quant_of(quant[0]));
            for row in 0..8 {
                out[row * stride + n * 8..][..8].fill(sample);
            }
            continue;
        }
        match waiting.take() {
            None => waiting = Some(n),
            Some(first) => {
                let samples = two(&blocks[first], block, &quant);
                put(samples.map(|pair| pair[0]), &mut out[first * 8..], stride);
                put(samples.map(|pair| pair[1]), &mut out[n * 8..], stride);
            }
        }
    }
    if let Some(n) = waiting {
        let samples = two(&blocks[n], &Block::ZERO, &quant);
        put(samples.map(|pair| pair[0]), &mut out[n * 8..], stride);
    }
}

/// Returns the factor of the mean.
#[target_feature(enable = "avx2")]
fn quant_of(row: __m256i) -> u16 {
    _mm256_extract_epi16::<0>(row) as u16
}

/// Writes eight rows of eight samples, two rows to a number.
#[target_feature(enable = "avx2")]
fn put(rows: [__m128i; 4], out: &mut [u8], stride: usize) {
    let mut start = 0;
    for pair in rows {
        out[start..][..8].copy_from_slice(&_mm_cvtsi128_si64(pair).to_ne_bytes());
        out[start + stride..][..8].copy_from_slice(&_mm_extract_epi64::<1>(pair).to_ne_bytes());
        start += 2 * stride;
    }
}

pub(super) fn rows(values: [i16; 64]) -> [__m128i; 8] {
    // SAFETY: both are 128 bytes, and any bits are values of each.
    unsafe { std::mem::transmute(values) }
}

/// Returns two rows of the first block's samples and two of the second's, four times.
#[target_feature(enable = "avx2")]
fn two(first: &Block, second: &Block, quant: &[__m256i; 8]) -> [[__m128i; 2]; 4] {
    let (a, b) = (rows(first.0), rows(second.0));
    let mut lines = [_mm256_setzero_si256(); 8];
    let mut rest = _mm256_setzero_si256();
    for n in 0..8 {
        let both = halves(a[n], b[n]);
        lines[n] = _mm256_mullo_epi16(both, quant[n]);
        if n > 0 {
            rest = _mm256_or_si256(rest, both);
        }
    }
    let top = _mm256_slli_epi16::<{ PASS as i32 }>(lines[0]);
    let mut lines = pass::<{ (BITS - PASS) as i32 }>(lines);
    if let Some(flat) = without(rest) {
        lines = lines.map(|line| _mm256_blendv_epi8(line, top, flat));
    }
    let lines = turn(pass::<{ (BITS + PASS + 3) as i32 }>(turn(lines)));
    let middle = _mm256_set1_epi8(-128);
    let mut samples = [[_mm_setzero_si128(); 2]; 4];
    for n in 0..4 {
        let pair = _mm256_add_epi8(_mm256_packs_epi16(lines[2 * n], lines[2 * n + 1]), middle);
        samples[n] = [
            _mm256_castsi256_si128(pair),
            _mm256_extracti128_si256::<1>(pair),
        ];
    }
    samples
}

/// Returns a mask of the halves that are zero, if any is: a block with only a first line has that
/// line in all of its rows, which matters if numbers overflow.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn without(rest: __m256i) -> Option<__m256i> {
    let zeros = _mm256_movemask_epi8(_mm256_cmpeq_epi64(rest, _mm256_setzero_si256())) as u32;
    let (low, high) = (zeros & 0xffff == 0xffff, zeros >> 16 == 0xffff);
    let mask = |whole: bool| if whole { -1 } else { 0 };
    (low || high).then(|| _mm256_setr_epi64x(mask(low), mask(low), mask(high), mask(high)))
}

/// Transposes rows to columns, in each half.
#[target_feature(enable = "avx2")]
#[inline]
fn turn(l: [__m256i; 8]) -> [__m256i; 8] {
    let a = [
        _mm256_unpacklo_epi16(l[0], l[1]),
        _mm256_unpackhi_epi16(l[0], l[1]),
        _mm256_unpacklo_epi16(l[2], l[3]),
        _mm256_unpackhi_epi16(l[2], l[3]),
        _mm256_unpacklo_epi16(l[4], l[5]),
        _mm256_unpackhi_epi16(l[4], l[5]),
        _mm256_unpacklo_epi16(l[6], l[7]),
        _mm256_unpackhi_epi16(l[6], l[7]),
    ];
    let b = [
        _mm256_unpacklo_epi32(a[0], a[2]),
        _mm256_unpackhi_epi32(a[0], a[2]),
        _mm256_unpacklo_epi32(a[1], a[3]),
        _mm256_unpackhi_epi32(a[1], a[3]),
        _mm256_unpacklo_epi32(a[4], a[6]),
        _mm256_unpackhi_epi32(a[4], a[6]),
        _mm256_unpacklo_epi32(a[5], a[7]),
        _mm256_unpackhi_epi32(a[5], a[7]),
    ];
    [
        _mm256_unpacklo_epi64(b[0], b[4]),
        _mm256_unpackhi_epi64(b[0], b[4]),
        _mm256_unpacklo_epi64(b[1], b[5]),
        _mm256_unpackhi_epi64(b[1], b[5]),
        _mm256_unpacklo_epi64(b[2], b[6]),
        _mm256_unpackhi_epi64(b[2], b[6]),
        _mm256_unpacklo_epi64(b[3], b[7]),
        _mm256_unpackhi_epi64(b[3], b[7]),
    ]
}

/// Transforms each column, in one dimension.
#[target_feature(enable = "avx2")]
#[inline]
fn pass<const SHIFT: i32>(l: [__m256i; 8]) -> [__m256i; 8] {
    let sum = _mm256_add_epi16(l[0], l[4]);
    let difference = _mm256_sub_epi16(l[0], l[4]);
    let z3 = _mm256_add_epi16(l[7], l[3]);
    let z4 = _mm256_add_epi16(l[5], l[1]);
    // The lower and the upper half of the columns, as wide numbers.
    let zero = _mm256_setzero_si256();
    let low = half::<SHIFT>(
        _mm256_unpacklo_epi16(zero, sum),
        _mm256_unpacklo_epi16(zero, difference),
        _mm256_unpacklo_epi16(l[2], l[6]),
        _mm256_unpacklo_epi16(z3, z4),
        _mm256_unpacklo_epi16(l[7], l[1]),
        _mm256_unpacklo_epi16(l[5], l[3]),
    );
    let high = half::<SHIFT>(
        _mm256_unpackhi_epi16(zero, sum),
        _mm256_unpackhi_epi16(zero, difference),
        _mm256_unpackhi_epi16(l[2], l[6]),
        _mm256_unpackhi_epi16(z3, z4),
        _mm256_unpackhi_epi16(l[7], l[1]),
        _mm256_unpackhi_epi16(l[5], l[3]),
    );
    let mut out = [zero; 8];
    for n in 0..8 {
        out[n] = _mm256_packs_epi32(low[n], high[n]);
    }
    out
}

#[target_feature(enable = "avx2")]
#[inline]
fn half<const SHIFT: i32>(
    sum: __m256i,
    difference: __m256i,
    even: __m256i,
    z: __m256i,
    outer: __m256i,
    inner: __m256i,
) -> [__m256i; 8] {
    let (sum, difference) = (
        _mm256_srai_epi32::<{ 16 - BITS as i32 }>(sum),
        _mm256_srai_epi32::<{ 16 - BITS as i32 }>(difference),
    );
    let even2 = _mm256_madd_epi16(even, factors(F_0_541, F_0_541 - F_1_847));
    let even3 = _mm256_madd_epi16(even, factors(F_0_541 + F_0_765, F_0_541));
    let round = _mm256_set1_epi32(1 << (SHIFT - 1));
    let (sum, difference) = (
        _mm256_add_epi32(sum, round),
        _mm256_add_epi32(difference, round),
    );
    let evens = [
        _mm256_add_epi32(sum, even3),
        _mm256_add_epi32(difference, even2),
        _mm256_sub_epi32(difference, even2),
        _mm256_sub_epi32(sum, even3),
    ];
    let z3 = _mm256_madd_epi16(z, factors(F_1_175 - F_1_961, F_1_175));
    let z4 = _mm256_madd_epi16(z, factors(F_1_175, F_1_175 - F_0_390));
    let odds = [
        _mm256_add_epi32(
            _mm256_madd_epi16(outer, factors(-F_0_899, F_1_501 - F_0_899)),
            z4,
        ),
        _mm256_add_epi32(
            _mm256_madd_epi16(inner, factors(-F_2_562, F_3_072 - F_2_562)),
            z3,
        ),
        _mm256_add_epi32(
            _mm256_madd_epi16(inner, factors(F_2_053 - F_2_562, -F_2_562)),
            z4,
        ),
        _mm256_add_epi32(
            _mm256_madd_epi16(outer, factors(F_0_298 - F_0_899, -F_0_899)),
            z3,
        ),
    ];
    let mut out = [sum; 8];
    for n in 0..4 {
        out[n] = _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(evens[n], odds[n]));
        out[7 - n] = _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(evens[n], odds[n]));
    }
    out
}

/// Combines two vectors.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn halves(low: __m128i, high: __m128i) -> __m256i {
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
}

/// Makes a pair of factors, for pairs of numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn factors(first: i32, second: i32) -> __m256i {
    _mm256_set1_epi32(second << 16 | first & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::super::reduced;
    use super::*;

    #[test]
    fn all_ways_give_the_same_samples() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..300 {
            let mut blocks = vec![Block::ZERO; 1 + next(7) as usize];
            let mut lasts = vec![0; blocks.len()];
            // From usual coefficients to values that overflow.
            let range = [20, 300, 3000, 65536][round % 4];
            for (block, last) in blocks.iter_mut().zip(&mut lasts) {
                block.0[0] = next(range) as i16;
                for _ in 0..next(20) {
                    let place = if round % 3 == 0 { next(8) } else { next(64) };
                    block.0[place as usize] = (next(range) as i32 - range as i32 / 2) as i16;
                    *last = 63;
                }
            }
            let quant = std::array::from_fn(|_| 1 + next([255, 65535][round % 2]) as u16);
            let stride = blocks.len() * 8 + 5;
            let (mut one, mut other) = (vec![0; 8 * stride], vec![0; 8 * stride]);
            super::super::whole_portable(&blocks, &lasts, &quant, &mut one, stride);
            // SAFETY: this machine has AVX2.
            unsafe { whole(&blocks, &lasts, &quant, &mut other, stride) };
            assert!(one == other, "{round}");
            super::super::quarter_portable(&blocks, &quant, &mut one, stride);
            // SAFETY: as before.
            unsafe { reduced::quarter(&blocks, &quant, &mut other, stride) };
            assert!(one == other, "{round}, 4x4");
            super::super::sixteenth_portable(&blocks, &quant, &mut one, stride);
            // SAFETY: as before.
            unsafe { reduced::sixteenth(&blocks, &quant, &mut other, stride) };
            assert!(one == other, "{round}, 2x2");
        }
    }
}
