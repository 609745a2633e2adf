//! The passes with AVX2: products of 16-bit numbers, exact since the weights are split in two.

use std::arch::x86_64::*;

use super::coefficients::{BATCH, Group, HALF, LANES, PRECISION, SLACK, SPLIT, Table};

/// Scales a batch of RGB rows across.
///
/// # Panics
/// Panics if a row is too short for the table, or a place is too near to the end.
pub(super) fn across_rgb(rows: [&[u8]; BATCH], table: &Table, out: &mut [u8], at: [usize; BATCH]) {
    check(
        rows,
        table.reach() * 3 + 4,
        table.spans().len() * 3,
        out,
        at,
    );
    assert!(is_x86_feature_detected!("avx2"));
    // SAFETY: this machine has AVX2, and `check` has found every place in bounds.
    unsafe { rgb(rows, table, out, at) }
}

/// Scales a batch of gray rows across.
///
/// # Panics
/// Panics as [`across_rgb`] does.
pub(super) fn across_gray(rows: [&[u8]; BATCH], table: &Table, out: &mut [u8], at: [usize; BATCH]) {
    check(rows, table.reach(), table.spans().len(), out, at);
    assert!(is_x86_feature_detected!("avx2"));
    // SAFETY: this machine has AVX2, and `check` has found every place in bounds.
    unsafe { gray(rows, table, out, at) }
}

/// Panics unless the rows may be read and written this far.
fn check(rows: [&[u8]; BATCH], reach: usize, len: usize, out: &[u8], at: [usize; BATCH]) {
    assert!(
        rows.iter().all(|row| row.len() >= reach),
        "rows of {:?} for {reach}",
        rows.map(<[u8]>::len)
    );
    assert!(
        at.iter()
            .all(|&at| at <= out.len() && out.len() - at >= len + SLACK)
    );
}

/// Computes one row from the rows that are weighed.
///
/// # Panics
/// Panics if there are not as many places as weights (except in the last group), a place is too
/// near to the end, or the row is shorter than [`LANES`].
pub(super) fn down(from: &[u8], places: &[usize], groups: &[Group], out: &mut [u8]) {
    assert!(places.len().div_ceil(4) == groups.len() && out.len() >= LANES);
    assert!(
        places
            .iter()
            .all(|&place| place <= from.len() && from.len() - place >= out.len())
    );
    assert!(is_x86_feature_detected!("avx2"));
    // SAFETY: this machine has AVX2, and all places are in bounds by the lines above.
    unsafe { weigh(from, places, groups, out) }
}

/// Scales a batch of RGB rows across.
///
/// # Safety
/// Each row must be as long as the table reaches, and `out` must have room for the result and
/// [`SLACK`] after each of `at`.
#[target_feature(enable = "avx2")]
unsafe fn rgb(rows: [&[u8]; BATCH], table: &Table, out: &mut [u8], at: [usize; BATCH]) {
    // For two rows side by side: the channels of the first two pixels in pairs; then of the next
    // two.
    let first = both(_mm_setr_epi8(
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
    ));
    let second = both(_mm_setr_epi8(
        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
    ));
    // Two pixels of two rows each, from four bytes a pixel to three.
    let close = both(_mm_setr_epi8(
        0, 1, 2, 8, 9, 10, -1, -1, 4, 5, 6, 12, 13, 14, -1, -1,
    ));
    let [a, b, c, d] = rows.map(<[u8]>::as_ptr);
    let sums = |x: usize| {
        let (half, zero) = (_mm256_set1_epi32(HALF), _mm256_setzero_si256());
        let (mut high_ab, mut low_ab, mut high_cd, mut low_cd) = (zero, half, zero, half);
        let mut from = table.spans()[x].start as usize * 3;
        for group in table.groups(x) {
            let weights = Weights::of(group);
            // SAFETY: the caller guarantees 16 bytes from here.
            let (ab, cd) =
                unsafe { (two(a.add(from), b.add(from)), two(c.add(from), d.add(from))) };
            let pairs = _mm256_shuffle_epi8(ab, first);
            high_ab = add_products(high_ab, pairs, weights.high[0]);
            low_ab = add_products(low_ab, pairs, weights.low[0]);
            let pairs = _mm256_shuffle_epi8(cd, first);
            high_cd = add_products(high_cd, pairs, weights.high[0]);
            low_cd = add_products(low_cd, pairs, weights.low[0]);
            let pairs = _mm256_shuffle_epi8(ab, second);
            high_ab = add_products(high_ab, pairs, weights.high[1]);
            low_ab = add_products(low_ab, pairs, weights.low[1]);
            let pairs = _mm256_shuffle_epi8(cd, second);
            high_cd = add_products(high_cd, pairs, weights.high[1]);
            low_cd = add_products(low_cd, pairs, weights.low[1]);
            from += 12;
        }
        // Rows a and c, then b and d.
        _mm256_packs_epi32(levels(high_ab, low_ab), levels(high_cd, low_cd))
    };
    let (len, out) = (table.spans().len(), out.as_mut_ptr());
    for x in (0..len).step_by(2) {
        let pixels = _mm256_packus_epi16(sums(x), sums((x + 1).min(len - 1)));
        let pixels = _mm256_shuffle_epi8(pixels, close);
        let (ac, bd) = (
            _mm256_castsi256_si128(pixels),
            _mm256_extracti128_si256(pixels, 1),
        );
        // SAFETY: the caller guarantees the last of these 8 bytes: at most 5 are after the row.
        unsafe {
            _mm_storel_epi64(out.add(at[0] + x * 3).cast(), ac);
            _mm_storel_epi64(out.add(at[1] + x * 3).cast(), bd);
            _mm_storel_epi64(out.add(at[2] + x * 3).cast(), _mm_unpackhi_epi64(ac, ac));
            _mm_storel_epi64(out.add(at[3] + x * 3).cast(), _mm_unpackhi_epi64(bd, bd));
        }
    }
}

/// Scales a batch of gray rows across.
///
/// # Safety
/// As [`rgb`].
#[target_feature(enable = "avx2")]
unsafe fn gray(rows: [&[u8]; BATCH], table: &Table, out: &mut [u8], at: [usize; BATCH]) {
    let [a, b, c, d] = rows.map(<[u8]>::as_ptr);
    let (zero, half) = (_mm256_setzero_si256(), _mm256_set1_epi32(HALF / 2));
    let sums = |x: usize| {
        // Sums of rows a and c, then b and d. Each sum is made of two.
        let (mut high, mut low) = (zero, half);
        let mut from = table.spans()[x].start as usize;
        let (pairs, last) = table.groups(x).as_chunks::<2>();
        if !pairs.is_empty() {
            let (mut high_ab, mut low_ab, mut high_cd, mut low_cd) = (zero, zero, zero, zero);
            for pair in pairs {
                // SAFETY: two groups are 32 bytes.
                let groups = unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) };
                let of_high = _mm256_permute4x64_epi64(groups, 0b10_00_10_00);
                let of_low = _mm256_permute4x64_epi64(groups, 0b11_01_11_01);
                // SAFETY: the caller guarantees the 8 bytes that two groups weigh.
                let eight = |row: *const u8| unsafe { _mm_loadl_epi64(row.add(from).cast()) };
                let ab = _mm256_cvtepu8_epi16(_mm_unpacklo_epi64(eight(a), eight(b)));
                let cd = _mm256_cvtepu8_epi16(_mm_unpacklo_epi64(eight(c), eight(d)));
                high_ab = add_products(high_ab, ab, of_high);
                low_ab = add_products(low_ab, ab, of_low);
                high_cd = add_products(high_cd, cd, of_high);
                low_cd = add_products(low_cd, cd, of_low);
                from += 8;
            }
            high = _mm256_hadd_epi32(high_ab, high_cd);
            low = _mm256_add_epi32(low, _mm256_hadd_epi32(low_ab, low_cd));
        }
        if let [group] = last {
            // SAFETY: the caller guarantees the 4 bytes that a group weighs.
            let four = |row: *const u8| unsafe { row.add(from).cast::<i32>().read_unaligned() };
            let taps = _mm256_cvtepu8_epi16(_mm_setr_epi32(four(a), four(c), four(b), four(d)));
            // SAFETY: a group is 16 bytes.
            let group = both(unsafe { _mm_loadu_si128(group.as_ptr().cast()) });
            high = add_products(high, taps, _mm256_unpacklo_epi64(group, group));
            low = add_products(low, taps, _mm256_unpackhi_epi64(group, group));
        }
        _mm256_add_epi32(_mm256_slli_epi32(high, SPLIT as i32), low)
    };
    // From two pixels of rows a and c, twice, to four of each; likewise for b and d.
    let sort = both(_mm_setr_epi8(
        0, 2, 4, 6, 1, 3, 5, 7, -1, -1, -1, -1, -1, -1, -1, -1,
    ));
    let (len, out) = (table.spans().len(), out.as_mut_ptr());
    for x in (0..len).step_by(4) {
        let sums = |x: usize| sums(x.min(len - 1));
        let first = _mm256_srai_epi32(_mm256_hadd_epi32(sums(x), sums(x + 1)), PRECISION as i32);
        let second = _mm256_srai_epi32(
            _mm256_hadd_epi32(sums(x + 2), sums(x + 3)),
            PRECISION as i32,
        );
        let words = _mm256_packs_epi32(first, second);
        let pixels = _mm256_shuffle_epi8(_mm256_packus_epi16(words, words), sort);
        let (ac, bd) = (
            _mm256_castsi256_si128(pixels),
            _mm256_extracti128_si256(pixels, 1),
        );
        let values = [
            _mm_cvtsi128_si32(ac),
            _mm_cvtsi128_si32(bd),
            _mm_extract_epi32(ac, 1),
            _mm_extract_epi32(bd, 1),
        ];
        for (at, value) in at.into_iter().zip(values) {
            // SAFETY: the caller guarantees the last of these 4 bytes: at most 3 are after the row.
            unsafe { out.add(at + x).cast::<i32>().write_unaligned(value) };
        }
    }
}

/// Computes one row from the rows that are weighed.
///
/// # Safety
/// `from` after each place must be as long as `out`, which is at least [`LANES`]; each group except
/// the last must have 4 places, and the last one or more.
#[target_feature(enable = "avx2")]
unsafe fn weigh(from: &[u8], places: &[usize], groups: &[Group], out: &mut [u8]) {
    let (half, zero) = (_mm256_set1_epi32(HALF), _mm256_setzero_si256());
    for n in (0..out.len()).step_by(LANES) {
        // The last overlaps the one before.
        let n = n.min(out.len() - LANES);
        let (mut high, mut low) = ([zero; 4], [half; 4]);
        for (group, places) in groups.iter().zip(places.chunks(4)) {
            let weights = Weights::of(group);
            for (pair, places) in places.chunks(2).enumerate() {
                // SAFETY: the caller guarantees these places, and `n` is at most the length of
                // `out` minus 32.
                let load = |place: usize| unsafe {
                    _mm256_loadu_si256(from.as_ptr().add(place + n).cast())
                };
                // The second of an odd last pair has no weight.
                let (a, b) = (load(places[0]), load(places[places.len() - 1]));
                let (left, right) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                let pairs = [
                    _mm256_unpacklo_epi8(left, zero),
                    _mm256_unpackhi_epi8(left, zero),
                    _mm256_unpacklo_epi8(right, zero),
                    _mm256_unpackhi_epi8(right, zero),
                ];
                for ((high, low), pairs) in high.iter_mut().zip(&mut low).zip(pairs) {
                    *high = add_products(*high, pairs, weights.high[pair]);
                    *low = add_products(*low, pairs, weights.low[pair]);
                }
            }
        }
        let words = [
            _mm256_packs_epi32(levels(high[0], low[0]), levels(high[1], low[1])),
            _mm256_packs_epi32(levels(high[2], low[2]), levels(high[3], low[3])),
        ];
        let bytes = _mm256_packus_epi16(words[0], words[1]);
        // SAFETY: `n` is at most the length of `out` minus 32.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(n).cast(), bytes) };
    }
}

/// Weights of a group in pairs, each pair in every lane.
struct Weights {
    high: [__m256i; 2],
    low: [__m256i; 2],
}

impl Weights {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn of(group: &Group) -> Weights {
        // SAFETY: there are four pairs of 4 bytes.
        let pair = |n: usize| unsafe {
            _mm256_set1_epi32(group.as_ptr().cast::<i32>().add(n).read_unaligned())
        };
        Weights {
            high: [pair(0), pair(1)],
            low: [pair(2), pair(3)],
        }
    }
}

/// Adds the products of two neighbours to the sum.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(sum: __m256i, values: __m256i, weights: __m256i) -> __m256i {
    _mm256_add_epi32(sum, _mm256_madd_epi16(values, weights))
}

/// Combines both halves of the sums, as levels that may still be below 0 or above 255.
#[inline]
#[target_feature(enable = "avx2")]
fn levels(high: __m256i, low: __m256i) -> __m256i {
    let sum = _mm256_add_epi32(_mm256_slli_epi32(high, SPLIT as i32), low);
    _mm256_srai_epi32(sum, PRECISION as i32)
}

/// Copies a vector to both halves.
#[inline]
#[target_feature(enable = "avx2")]
fn both(half: __m128i) -> __m256i {
    _mm256_broadcastsi128_si256(half)
}

/// Loads 16 bytes of each of two rows.
///
/// # Safety
/// Both rows must have 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two(a: *const u8, b: *const u8) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128(a.cast())),
            _mm_loadu_si128(b.cast()),
            1,
        )
    }
}
