//! YCbCr to RGB with AVX2, 16 pixels at once.

use std::arch::x86_64::*;

/// Makes pixels of at least 16 samples of each component.
#[target_feature(enable = "avx2")]
pub(super) fn ycc([ys, cbs, crs]: [&[u8]; 3], out: &mut [u8]) {
    let len = out.len() / 3;
    let mut at = 0;
    loop {
        let rgb = sixteen(load(&ys[at..]), load(&cbs[at..]), load(&crs[at..]));
        for (out, part) in out[at * 3..].as_chunks_mut::<16>().0.iter_mut().zip(rgb) {
            // SAFETY: both are 16 bytes, and any bits are values of each.
            *out = unsafe { std::mem::transmute::<__m128i, [u8; 16]>(part) };
        }
        if at + 16 >= len {
            return;
        }
        // The last ones may be made twice.
        at = (at + 16).min(len - 16);
    }
}

fn load(samples: &[u8]) -> __m128i {
    let samples: [u8; 16] = *samples
        .first_chunk()
        .expect("the caller goes on only where there are 16");
    // SAFETY: both are 16 bytes, and any bits are values of each.
    unsafe { std::mem::transmute(samples) }
}

/// Converts sixteen samples. The factors have 16 fraction bits, without the part that is added as a
/// whole.
#[target_feature(enable = "avx2")]
#[inline]
fn sixteen(y: __m128i, cb: __m128i, cr: __m128i) -> [__m128i; 3] {
    let middle = _mm256_set1_epi16(128);
    let y = _mm256_cvtepu8_epi16(y);
    let cb = _mm256_sub_epi16(_mm256_cvtepu8_epi16(cb), middle);
    let cr = _mm256_sub_epi16(_mm256_cvtepu8_epi16(cr), middle);
    // A product with 16 fraction bits, rounded: half of its double plus one.
    let one = _mm256_set1_epi16(1);
    let times = |twice: __m256i, factor: i16| {
        let product = _mm256_mulhi_epi16(twice, _mm256_set1_epi16(factor));
        _mm256_srai_epi16::<1>(_mm256_add_epi16(product, one))
    };
    let (cb2, cr2) = (_mm256_add_epi16(cb, cb), _mm256_add_epi16(cr, cr));
    let r = _mm256_add_epi16(_mm256_add_epi16(y, cr), times(cr2, 26_345));
    let b = _mm256_add_epi16(_mm256_add_epi16(y, cb2), times(cb2, -14_942));
    let factors = _mm256_set1_epi32(18_734 << 16 | -22_554 & 0xffff);
    let half = _mm256_set1_epi32(1 << 15);
    let sum = |pairs: __m256i| {
        _mm256_srai_epi32::<16>(_mm256_add_epi32(_mm256_madd_epi16(pairs, factors), half))
    };
    let green = _mm256_packs_epi32(
        sum(_mm256_unpacklo_epi16(cb, cr)),
        sum(_mm256_unpackhi_epi16(cb, cr)),
    );
    let g = _mm256_add_epi16(_mm256_sub_epi16(y, cr), green);
    let bytes = |channel: __m256i| {
        _mm_packus_epi16(
            _mm256_castsi256_si128(channel),
            _mm256_extracti128_si256::<1>(channel),
        )
    };
    interleave(bytes(r), bytes(g), bytes(b))
}

/// Interleaves three channels of 16 samples to 16 pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn interleave(r: __m128i, g: __m128i, b: __m128i) -> [__m128i; 3] {
    let pick = |channel: __m128i, places: [i8; 16]| {
        // SAFETY: both are 16 bytes, and any bits are values of each.
        _mm_shuffle_epi8(channel, unsafe {
            std::mem::transmute::<[i8; 16], __m128i>(places)
        })
    };
    let part = |[of_r, of_g, of_b]: [[i8; 16]; 3]| {
        _mm_or_si128(_mm_or_si128(pick(r, of_r), pick(g, of_g)), pick(b, of_b))
    };
    [part(PLACES[0]), part(PLACES[1]), part(PLACES[2])]
}

/// Index of the sample for each byte, for each third of 16 pixels and each channel, or -1 if the
/// byte is another channel's.
const PLACES: [[[i8; 16]; 3]; 3] = {
    let mut places = [[[-1; 16]; 3]; 3];
    let mut byte = 0;
    while byte < 48 {
        places[byte / 16][byte % 3][byte % 16] = (byte / 3) as i8;
        byte += 1;
    }
    places
};

#[cfg(test)]
mod tests {
    #[test]
    fn all_colours_are_those_of_the_portable_way() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        // All chroma values, and lengths that are not a multiple of 16.
        for (y, len) in [
            (0u8, 256),
            (1, 255),
            (77, 16),
            (128, 17),
            (254, 31),
            (255, 256),
        ] {
            for cr in 0..=255u8 {
                let ys: Vec<u8> = (0..len).map(|n| y.wrapping_add(n as u8 / 7)).collect();
                let cbs: Vec<u8> = (0..len).map(|n| n as u8).collect();
                let crs = vec![cr; len];
                let (mut one, mut other) = (vec![0; len * 3], vec![0; len * 3]);
                super::super::ycc_portable([&ys, &cbs, &crs], &mut one);
                // SAFETY: this machine has AVX2.
                unsafe { super::ycc([&ys, &cbs, &crs], &mut other) };
                assert_eq!(one, other, "{y} {cr}");
            }
        }
    }
}
