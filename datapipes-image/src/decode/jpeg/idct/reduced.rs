//! The transforms of reduced size with AVX2: two blocks at once, each in its half of every vector.

use std::arch::x86_64::*;

use super::super::block::Block;
use super::avx2::{factors, halves, rows, without};
use super::{BITS, PASS, fix};

/// Makes blocks of 4 by 4.
#[target_feature(enable = "avx2")]
pub(super) fn quarter(blocks: &[Block], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    let quant = rows(quant.map(|factor| factor as i16)).map(|row| _mm256_broadcastsi128_si256(row));
    for (n, pair) in blocks.chunks(2).enumerate() {
        let samples = four_by_four(&pair[0], &pair[pair.len() - 1], &quant);
        for (y, rows) in samples.as_chunks::<4>().0.iter().enumerate() {
            let (block, y) = (n * 2 + y / 4, y % 4);
            if block < blocks.len() {
                out[y * stride + block * 4..][..4].copy_from_slice(rows);
            }
        }
    }
}

/// Makes blocks of 2 by 2.
#[target_feature(enable = "avx2")]
pub(super) fn sixteenth(blocks: &[Block], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    let quant = rows(quant.map(|factor| factor as i16)).map(|row| _mm256_broadcastsi128_si256(row));
    for (n, pair) in blocks.chunks(2).enumerate() {
        let samples = two_by_two(&pair[0], &pair[pair.len() - 1], &quant);
        for (half, &[a, b, c, d]) in samples.iter().enumerate().take(pair.len()) {
            let start = (n * 2 + half) * 2;
            out[start..][..2].copy_from_slice(&[a, b]);
            out[stride + start..][..2].copy_from_slice(&[c, d]);
        }
    }
}

/// Returns the lines of both blocks, times their factors, and the nonzero bits of all lines except
/// 0 and 4.
#[target_feature(enable = "avx2")]
#[inline]
fn lines(first: &Block, second: &Block, quant: &[__m256i; 8]) -> ([__m256i; 8], __m256i) {
    let (a, b) = (rows(first.0), rows(second.0));
    let (mut lines, mut rest) = (*quant, _mm256_setzero_si256());
    for n in 0..8 {
        let both = halves(a[n], b[n]);
        lines[n] = _mm256_mullo_epi16(both, quant[n]);
        if n % 4 != 0 {
            rest = _mm256_or_si256(rest, both);
        }
    }
    (lines, rest)
}

/// Returns four rows of four samples of each block.
#[target_feature(enable = "avx2")]
#[inline]
fn four_by_four(first: &Block, second: &Block, quant: &[__m256i; 8]) -> [u8; 32] {
    let zero = _mm256_setzero_si256();
    let (l, rest) = lines(first, second, quant);
    let low = four::<{ (BITS - PASS + 1) as i32 }>(
        _mm256_unpacklo_epi16(zero, l[0]),
        _mm256_unpacklo_epi16(l[2], l[6]),
        _mm256_unpacklo_epi16(l[7], l[5]),
        _mm256_unpacklo_epi16(l[3], l[1]),
    );
    let high = four::<{ (BITS - PASS + 1) as i32 }>(
        _mm256_unpackhi_epi16(zero, l[0]),
        _mm256_unpackhi_epi16(l[2], l[6]),
        _mm256_unpackhi_epi16(l[7], l[5]),
        _mm256_unpackhi_epi16(l[3], l[1]),
    );
    let mut rows = [zero; 4];
    for n in 0..4 {
        rows[n] = _mm256_packs_epi32(low[n], high[n]);
    }
    if let Some(flat) = without(rest) {
        let top = _mm256_slli_epi16::<{ PASS as i32 }>(l[0]);
        rows = rows.map(|row| _mm256_blendv_epi8(row, top, flat));
    }
    // Two columns of four to each half.
    let (a, b) = (
        _mm256_unpacklo_epi16(rows[0], rows[1]),
        _mm256_unpacklo_epi16(rows[2], rows[3]),
    );
    let (c, d) = (
        _mm256_unpackhi_epi16(rows[0], rows[1]),
        _mm256_unpackhi_epi16(rows[2], rows[3]),
    );
    let (c01, c23) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (c45, c67) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    let columns = four::<{ (BITS + PASS + 4) as i32 }>(
        _mm256_unpacklo_epi16(zero, c01),
        _mm256_unpacklo_epi16(c23, c67),
        _mm256_unpackhi_epi16(c67, c45),
        _mm256_unpackhi_epi16(c23, c01),
    );
    let narrow = _mm256_packs_epi16(
        _mm256_packs_epi32(columns[0], columns[1]),
        _mm256_packs_epi32(columns[2], columns[3]),
    );
    let turn = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
    ));
    let samples = _mm256_add_epi8(_mm256_shuffle_epi8(narrow, turn), _mm256_set1_epi8(-128));
    // SAFETY: both are 32 bytes, and any bits are values of each.
    unsafe { std::mem::transmute(samples) }
}

/// Transforms one dimension, of numbers in pairs: the mean as the upper half, 2 and 6, 7 and 5, 3
/// and 1.
#[target_feature(enable = "avx2")]
#[inline]
fn four<const SHIFT: i32>(z0: __m256i, z26: __m256i, z75: __m256i, z31: __m256i) -> [__m256i; 4] {
    let mean = _mm256_srai_epi32::<{ 15 - BITS as i32 }>(z0);
    let mean = _mm256_add_epi32(mean, _mm256_set1_epi32(1 << (SHIFT - 1)));
    let even = _mm256_madd_epi16(z26, factors(fix(1.847759065), -fix(0.765366865)));
    let inner = _mm256_add_epi32(
        _mm256_madd_epi16(z75, factors(-fix(0.211164243), fix(1.451774981))),
        _mm256_madd_epi16(z31, factors(-fix(2.172734803), fix(1.061594337))),
    );
    let outer = _mm256_add_epi32(
        _mm256_madd_epi16(z75, factors(-fix(0.509795579), -fix(0.601344887))),
        _mm256_madd_epi16(z31, factors(fix(0.899976223), fix(2.562915447))),
    );
    let (sum, difference) = (_mm256_add_epi32(mean, even), _mm256_sub_epi32(mean, even));
    [
        _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(sum, outer)),
        _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(difference, inner)),
        _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(difference, inner)),
        _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(sum, outer)),
    ]
}

/// Returns two rows of two samples of each block.
#[target_feature(enable = "avx2")]
#[inline]
fn two_by_two(first: &Block, second: &Block, quant: &[__m256i; 8]) -> [[u8; 4]; 2] {
    const SHIFT: i32 = (BITS - PASS + 2) as i32;
    const LAST: i32 = (BITS + PASS + 5) as i32;
    let zero = _mm256_setzero_si256();
    let (l, _) = lines(first, second, quant);
    let (f75, f31) = (
        factors(-fix(0.720959822), fix(0.850430095)),
        factors(-fix(1.272758580), fix(3.624509785)),
    );
    let round = _mm256_set1_epi32(1 << (SHIFT - 1));
    let half = |z0: __m256i, z75: __m256i, z31: __m256i| {
        let mean = _mm256_add_epi32(_mm256_srai_epi32::<{ 14 - BITS as i32 }>(z0), round);
        let odd = _mm256_add_epi32(_mm256_madd_epi16(z75, f75), _mm256_madd_epi16(z31, f31));
        let (sum, difference) = (_mm256_add_epi32(mean, odd), _mm256_sub_epi32(mean, odd));
        [
            _mm256_srai_epi32::<SHIFT>(sum),
            _mm256_srai_epi32::<SHIFT>(difference),
        ]
    };
    let low = half(
        _mm256_unpacklo_epi16(zero, l[0]),
        _mm256_unpacklo_epi16(l[7], l[5]),
        _mm256_unpacklo_epi16(l[3], l[1]),
    );
    let high = half(
        _mm256_unpackhi_epi16(zero, l[0]),
        _mm256_unpackhi_epi16(l[7], l[5]),
        _mm256_unpackhi_epi16(l[3], l[1]),
    );
    let (upper, lower) = (
        _mm256_packs_epi32(low[0], high[0]),
        _mm256_packs_epi32(low[1], high[1]),
    );
    // Within a row: the odd columns times their factors, all added.
    let odd = |a: f64| fix(a) as i16;
    let weights = _mm256_broadcastsi128_si256(_mm_setr_epi16(
        0,
        odd(3.624509785),
        0,
        -odd(1.272758580),
        0,
        odd(0.850430095),
        0,
        -odd(0.720959822),
    ));
    let odds = _mm256_hadd_epi32(
        _mm256_madd_epi16(upper, weights),
        _mm256_madd_epi16(lower, weights),
    );
    let odds = _mm256_hadd_epi32(odds, odds);
    let means = _mm256_slli_epi32::<{ BITS as i32 + 2 }>(_mm256_unpacklo_epi32(low[0], low[1]));
    let means = _mm256_add_epi32(means, _mm256_set1_epi32(1 << (LAST - 1)));
    let sums = _mm256_srai_epi32::<LAST>(_mm256_add_epi32(means, odds));
    let differences = _mm256_srai_epi32::<LAST>(_mm256_sub_epi32(means, odds));
    let narrow = _mm256_packs_epi32(_mm256_unpacklo_epi32(sums, differences), zero);
    let samples = _mm256_add_epi8(_mm256_packs_epi16(narrow, zero), _mm256_set1_epi8(-128));
    [
        _mm256_extract_epi32::<0>(samples),
        _mm256_extract_epi32::<4>(samples),
    ]
    .map(i32::to_ne_bytes)
}
