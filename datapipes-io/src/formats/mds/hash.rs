//! xxHash64, an optional hash of files written by the MDS writer.
//!
//! Source: `xxhash_spec.md` of the xxHash project. Of the writer's hashes this one has negligible
//! cost.

const P1: u64 = 0x9e37_79b1_85eb_ca87;
const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const P3: u64 = 0x1656_67b1_9e37_79f9;
const P4: u64 = 0x85eb_ca77_c2b2_ae63;
const P5: u64 = 0x27d4_eb2f_1656_67c5;

fn round(sum: u64, word: u64) -> u64 {
    sum.wrapping_add(word.wrapping_mul(P2))
        .rotate_left(31)
        .wrapping_mul(P1)
}

/// Returns the hash of some bytes, with seed 0.
pub(super) fn xxh64(data: &[u8]) -> u64 {
    let (stripes, rest) = data.as_chunks::<32>();
    let mut hash = if stripes.is_empty() {
        P5
    } else {
        let mut lanes = [P1.wrapping_add(P2), P2, 0, P1.wrapping_neg()];
        for stripe in stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<8>().0) {
                *lane = round(*lane, u64::from_le_bytes(*word));
            }
        }
        let [a, b, c, d] = lanes;
        let sum = [
            a.rotate_left(1),
            b.rotate_left(7),
            c.rotate_left(12),
            d.rotate_left(18),
        ];
        let sum = sum.into_iter().fold(0, u64::wrapping_add);
        lanes.iter().fold(sum, |sum, lane| {
            (sum ^ round(0, *lane)).wrapping_mul(P1).wrapping_add(P4)
        })
    };
    hash = hash.wrapping_add(data.len() as u64);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        hash ^= u64::from(u32::from_le_bytes(*word)).wrapping_mul(P1);
        hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(P5);
        hash = hash.rotate_left(11).wrapping_mul(P1);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P2);
    hash = (hash ^ hash >> 29).wrapping_mul(P3);
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of the Python package xxhash 4.1.0.
    #[test]
    fn hashes_are_those_of_the_reference() {
        let data: Vec<u8> = (0..=255).collect();
        for (len, hash) in VALUES {
            assert_eq!(xxh64(&data[..len]), hash, "{len} bytes");
        }
    }

    const VALUES: [(usize, u64); 9] = [
        (0, 0xef46_db37_51d8_e999),
        (1, 0xe934_a84a_db05_2768),
        (3, 0xe5c7_bb45_33bc_65dd),
        (4, 0xffce_d860_4453_cc1e),
        (11, 0x652a_564a_9536_5aca),
        (31, 0xc346_d2b5_9b4d_8ee1),
        (32, 0xcbf5_9c51_16ff_32b4),
        (47, 0x0d98_83a0_3e7b_fbb8),
        (256, 0x1fac_be84_06cd_904b),
    ];
}
