//! Random numbers of an item: a fixed cipher, and our own draws over it.
//!
//! Golden vectors pin everything here. A change of any value changes the order of iteration, which
//! is a breaking change of the library.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng as _, SeedableRng};

/// Mixes the bits of a number: each bit of the result depends on all of them. Different numbers
/// have different results, which are the same on every machine and in every version.
///
/// Use it for the keys of orders that are functions of a position, such as those of a
/// [`Sampler`](crate::index::Sampler): `mix_bits(key ^ mix_bits(round))` is a key for each round.
/// It is the finaliser of splitmix64 (Steele, Lea, Flood 2014), and no random stream; for that,
/// see [`Rng`].
///
/// ```
/// # use datapipes::{index::Permutation, mix_bits};
/// let order = |round| Permutation::new(100, mix_bits(7 ^ mix_bits(round)));
/// assert_ne!(order(0).get(0), order(1).get(0));
/// ```
#[inline]
pub fn mix_bits(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the 64-bit FNV-1a hash of bytes, the same on every machine and in every version, unlike
/// the hashes of `std`. Use it to assign samples by their names, to parts or to ranks. It is no
/// protection against names that were chosen to collide.
///
/// ```
/// # use datapipes::{mix_bits, stable_hash};
/// // Hashes of similar names are similar, so their bits are mixed.
/// let part = |name: &str| mix_bits(stable_hash(name.as_bytes())) % 10;
/// assert_eq!([part("cat/1.jpg"), part("cat/2.jpg")], [0, 8]);
/// ```
pub fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Number of words in a block.
const BLOCK: usize = 16;

/// A random stream: ChaCha with 8 rounds (Bernstein 2008), keyed by its purpose.
///
/// [`Context::rng`](crate::Context::rng) makes a stream for an item, so that the item gets the same
/// random numbers with one worker or 64. The draws are this library's own code with pinned results.
#[derive(Debug)]
pub struct Rng {
    key: [u64; 4],
    /// Words of the first block, once one was drawn.
    first: [u32; BLOCK],
    /// Number of words drawn of the first block.
    drawn: usize,
    /// Stream after the first block, or from a position that was sought. It makes several blocks at
    /// once, more than most items need.
    rest: Option<ChaCha8Rng>,
}

impl Rng {
    /// Creates the stream of a key.
    #[inline]
    pub fn from_key(key: [u64; 4]) -> Self {
        Rng {
            key,
            first: [0; BLOCK],
            drawn: 0,
            rest: None,
        }
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
        match &self.rest {
            Some(rest) => rest.get_word_pos() as u64,
            None => self.drawn as u64,
        }
    }

    /// Moves to a [position](Rng::position), forward or back, in constant time.
    pub fn seek(&mut self, position: u64) {
        let mut seed = [0; 32];
        for (bytes, word) in seed.chunks_exact_mut(8).zip(self.key) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let rest = self.rest.insert(ChaCha8Rng::from_seed(seed));
        rest.set_word_pos(position.into());
    }

    /// Draws a word of the first block, or the word after it.
    fn next_early(&mut self) -> u32 {
        match self.drawn {
            0 => self.first = first_block(self.key),
            BLOCK => {
                self.seek(BLOCK as u64);
                return self.next_u32();
            }
            _ => {}
        }
        self.drawn += 1;
        self.first[self.drawn - 1]
    }

    /// Draws uniformly from all 32-bit values.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        match &mut self.rest {
            Some(rest) => rest.next_u32(),
            None => self.next_early(),
        }
    }

    /// Draws uniformly from all 64-bit values.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let low = self.next_u32();
        u64::from(low) | u64::from(self.next_u32()) << 32
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

/// Returns the first block of the stream of a key. One block takes less than half of the time of four
/// blocks in wide registers, whose instructions wait for each other, though it is more instructions.
fn first_block(key: [u64; 4]) -> [u32; BLOCK] {
    let [b, c] = [[key[0], key[1]], [key[2], key[3]]].map(|[low, high]| {
        [
            low as u32,
            (low >> 32) as u32,
            high as u32,
            (high >> 32) as u32,
        ]
    });
    // The last row has the number of the block.
    let start = [
        [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574],
        b,
        c,
        [0; 4],
    ];
    let mut rows = start;
    for _ in 0..4 {
        // One round works on the columns, the next on the diagonals.
        rows = turned(round(rows), 1);
        rows = turned(round(rows), 3);
    }
    std::array::from_fn(|at| rows[at / 4][at % 4].wrapping_add(start[at / 4][at % 4]))
}

/// Applies a quarter round to each column.
#[inline]
fn round([mut a, mut b, mut c, mut d]: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    // Row by row, so that the processor works on four columns at once.
    let step = |sum: &mut [u32; 4], by: [u32; 4], mixed: &mut [u32; 4], bits: u32| {
        for at in 0..4 {
            sum[at] = sum[at].wrapping_add(by[at]);
            mixed[at] = (mixed[at] ^ sum[at]).rotate_left(bits);
        }
    };
    step(&mut a, b, &mut d, 16);
    step(&mut c, d, &mut b, 12);
    step(&mut a, b, &mut d, 8);
    step(&mut c, d, &mut b, 7);
    [a, b, c, d]
}

/// Turns the second row by so many places, the third by two and the last by the rest.
#[inline]
fn turned([a, b, c, d]: [[u32; 4]; 4], places: usize) -> [[u32; 4]; 4] {
    let turn = |row: [u32; 4], places| std::array::from_fn(|at| row[(at + places) % 4]);
    [a, turn(b, places), turn(c, 2), turn(d, 4 - places)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_joins_what_follows() {
        let key = [1, u64::MAX, 3 << 40, 4];
        let mut whole = Rng::from_key(key);
        // All by the other implementation.
        whole.seek(0);
        let words: Vec<u32> = (0..50).map(|_| whole.next_u32()).collect();
        let mut rng = Rng::from_key(key);
        for (at, &word) in words.iter().enumerate() {
            assert_eq!((rng.position(), rng.next_u32()), (at as u64, word));
        }
        for start in [0, 1, 15, 16, 17] {
            let mut rng = Rng::from_key(key);
            rng.next_u32();
            rng.seek(start);
            assert_eq!(rng.next_u32(), words[start as usize]);
        }
        // A draw of two words, one of which is in the first block.
        let mut rng = Rng::from_key(key);
        for _ in 1..BLOCK {
            rng.next_u32();
        }
        assert_eq!(
            rng.next_u64(),
            u64::from(words[15]) | u64::from(words[16]) << 32
        );
    }

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
        assert_eq!(mix_bits(1), 0x5692_161d_100b_05e5, "{:#x}", mix_bits(1));
        assert_eq!(
            stable_hash(b"shuffle"),
            0x477c_62bf_680b_f6ae,
            "{:#x}",
            stable_hash(b"shuffle")
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
