//! Random numbers of an item: a fixed cipher, and our own draws over it.
//!
//! Golden vectors pin everything here. A change of any value changes the order of iteration, which
//! is a breaking change of the library.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng as _, SeedableRng};

/// Applies the finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits.
#[inline]
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the 64-bit FNV-1a hash of a node name.
pub(crate) fn hash_name(name: &str) -> u64 {
    hash_bytes(name.as_bytes())
}

/// Returns the 64-bit FNV-1a hash of `bytes`.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A random stream: ChaCha with 8 rounds (Bernstein 2008), keyed by its purpose.
///
/// [`Context::rng`](crate::Context::rng) makes a stream for an item, so that the item gets the same
/// random numbers with one worker or 64. The draws are this library's own code with pinned results.
#[derive(Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Creates the stream of a key.
    pub fn from_key(key: [u64; 4]) -> Self {
        let mut seed = [0; 32];
        for (bytes, word) in seed.chunks_exact_mut(8).zip(key) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Rng(ChaCha8Rng::from_seed(seed))
    }

    /// Returns the position in the stream, in 32-bit words from its beginning; rejected words
    /// count. With the key, which [`Context::node_rng`](crate::Context::node_rng) has again after a
    /// resume, it is all that a snapshot needs.
    ///
    /// ```
    /// let mut rng = datapipes::Rng::from_key([1, 2, 3, 4]);
    /// let (position, draws) = (rng.position(), [rng.f64(), rng.f64()]);
    /// rng.seek(position);
    /// assert_eq!([rng.f64(), rng.f64()], draws);
    /// ```
    pub fn position(&self) -> u64 {
        self.0.get_word_pos() as u64
    }

    /// Moves to a [position](Rng::position), forward or back, in constant time.
    pub fn seek(&mut self, position: u64) {
        self.0.set_word_pos(position.into());
    }

    /// Draws uniformly from all 32-bit values.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Draws uniformly from all 64-bit values.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws uniformly from `0..n`, without bias (Lemire 2019, with rejection). Draws 32 bits if
    /// they suffice. A word `w` then gives the upper half of the 64 bits of `w * n`. If the lower
    /// half is less than `2³² mod n`, the word is rejected and the next one drawn.
    ///
    /// # Panics
    /// If `n` is zero.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "cannot draw below zero");
        match u32::try_from(n) {
            Ok(n) => u64::from(self.below_u32(n)),
            Err(_) => self.below_u64(n),
        }
    }

    /// Draws as [`below`](Rng::below) does, for an `n` that fits 32 bits and is not zero.
    #[inline]
    fn below_u32(&mut self, n: u32) -> u32 {
        let product = u64::from(self.next_u32()) * u64::from(n);
        if (product as u32) < n {
            self.below_u32_rare(n, product)
        } else {
            (product >> 32) as u32
        }
    }

    #[cold]
    fn below_u32_rare(&mut self, n: u32, mut product: u64) -> u32 {
        let threshold = n.wrapping_neg() % n;
        while (product as u32) < threshold {
            product = u64::from(self.next_u32()) * u64::from(n);
        }
        (product >> 32) as u32
    }

    #[cold]
    fn below_u64(&mut self, n: u64) -> u64 {
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if (product as u64) >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Draws uniformly from the multiples of 2⁻²⁴ in `[0, 1)`.
    #[inline]
    pub fn f32(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// Draws uniformly from the multiples of 2⁻⁵³ in `[0, 1)`.
    #[inline]
    pub fn f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Draws uniformly from `[low, high)`.
    #[inline]
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.f64()
    }

    /// Returns true with probability `p`.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        self.f64() < p
    }

    /// Permutes a slice uniformly (Fisher and Yates, from the end).
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for last in (1..slice.len()).rev() {
            slice.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_vectors() {
        let mut rng = Rng::from_key([1, 2, 3, 4]);
        let words: Vec<u32> = (0..4).map(|_| rng.next_u32()).collect();
        assert_eq!(words, GOLDEN_WORDS, "{words:?}");
        let draws: Vec<u64> = (0..8).map(|_| rng.below(1000)).collect();
        assert_eq!(draws, GOLDEN_DRAWS, "{draws:?}");
        let mut order: Vec<u8> = (0..10).collect();
        rng.shuffle(&mut order);
        assert_eq!(order, GOLDEN_ORDER, "{order:?}");
        assert_eq!(mix(1), 0x5692_161d_100b_05e5, "{:#x}", mix(1));
        assert_eq!(
            hash_name("shuffle"),
            0x477c_62bf_680b_f6ae,
            "{:#x}",
            hash_name("shuffle")
        );
    }

    const GOLDEN_WORDS: [u32; 4] = [2921608188, 284948456, 2826778254, 1482866815];
    const GOLDEN_DRAWS: [u64; 8] = [902, 251, 983, 272, 514, 237, 665, 192];
    const GOLDEN_ORDER: [u8; 10] = [0, 9, 7, 1, 8, 3, 5, 6, 4, 2];

    #[test]
    fn draws_are_uniform() {
        let mut rng = Rng::from_key([0; 4]);
        for n in [1u64, 2, 3, 7, 10] {
            let mut counts = vec![0u32; n as usize];
            for _ in 0..n * 10_000 {
                counts[rng.below(n) as usize] += 1;
            }
            assert!(
                counts.iter().all(|c| c.abs_diff(10_000) < 500),
                "{n}: {counts:?}"
            );
        }
        assert!(rng.below(1 << 40) < 1 << 40);
        let mean = (0..10_000).map(|_| rng.f64()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02);
    }
}
