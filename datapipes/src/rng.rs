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
pub struct Rng {
    key: [u64; 4],
    /// The first block of the stream, once a word of it was drawn.
    first: [u32; BLOCK],
    /// Number of the next word in the first block; [`BLOCK`] after it, [`UNMADE`] before it is made.
    next: usize,
    /// The stream after the first block, once a word of it was drawn.
    rest: Option<ChaCha8Rng>,
}

/// Number of words in a block of the cipher.
const BLOCK: usize = 16;
/// Position of the next word while the first block is not made.
const UNMADE: usize = BLOCK + 1;

impl Rng {
    /// Creates the stream of a key.
    #[inline]
    pub fn from_key(key: [u64; 4]) -> Self {
        // Most items draw a few numbers or none, and a `ChaCha8Rng` makes four blocks at once.
        Rng {
            key,
            first: [0; BLOCK],
            next: UNMADE,
            rest: None,
        }
    }

    /// Draws the first word of the stream, or the first after its first block.
    #[cold]
    #[inline(never)]
    fn begin(&mut self) -> u32 {
        if self.next == UNMADE {
            (self.first, self.next) = (first_block(self.key), 1);
            return self.first[0];
        }
        self.rest.insert(cipher(self.key, BLOCK as u64)).next_u32()
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
        match (&self.rest, self.next) {
            (Some(rest), BLOCK) => rest.get_word_pos() as u64,
            (_, UNMADE) => 0,
            (_, next) => next as u64,
        }
    }

    /// Moves to a [position](Rng::position), forward or back, in constant time.
    pub fn seek(&mut self, position: u64) {
        self.rest = None;
        if position < BLOCK as u64 {
            (self.first, self.next) = (first_block(self.key), position as usize);
        } else {
            (self.rest, self.next) = (Some(cipher(self.key, position)), BLOCK);
        }
    }

    /// Draws uniformly from all 32-bit values.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if let Some(&word) = self.first.get(self.next) {
            self.next += 1;
            return word;
        }
        match &mut self.rest {
            Some(rest) => rest.next_u32(),
            None => self.begin(),
        }
    }

    /// Draws uniformly from all 64-bit values.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        match &mut self.rest {
            Some(rest) if self.next == BLOCK => rest.next_u64(),
            _ => u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32,
        }
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

/// Returns the cipher at a position of the stream of a key.
fn cipher(key: [u64; 4], position: u64) -> ChaCha8Rng {
    let mut seed = [0; 32];
    for (bytes, word) in seed.chunks_exact_mut(8).zip(key) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut cipher = ChaCha8Rng::from_seed(seed);
    cipher.set_word_pos(position.into());
    cipher
}

/// A row of the cipher's state.
type Row = [u32; 4];

/// Returns the first block of the stream of a key.
fn first_block(key: [u64; 4]) -> [u32; BLOCK] {
    let halves = |low: u64, high: u64| {
        [
            low as u32,
            (low >> 32) as u32,
            high as u32,
            (high >> 32) as u32,
        ]
    };
    let begin = [
        [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574],
        halves(key[0], key[1]),
        halves(key[2], key[3]),
        // The number of the block, and the nonce.
        [0; 4],
    ];
    let mut rows = begin;
    for _ in 0..4 {
        rows = quarter_rounds(rows);
        let [a, b, c, d] = rows;
        // Diagonals become columns, and columns again after the round.
        let [a, b, c, d] = quarter_rounds([a, turned::<1>(b), turned::<2>(c), turned::<3>(d)]);
        rows = [a, turned::<3>(b), turned::<2>(c), turned::<1>(d)];
    }
    let mut block = [0; BLOCK];
    for (words, (row, begin)) in block.chunks_exact_mut(4).zip(rows.into_iter().zip(begin)) {
        words.copy_from_slice(&added(row, begin));
    }
    block
}

/// Applies the quarter round to all four columns.
#[inline(always)]
fn quarter_rounds([mut a, mut b, mut c, mut d]: [Row; 4]) -> [Row; 4] {
    a = added(a, b);
    d = mixed::<16>(d, a);
    c = added(c, d);
    b = mixed::<12>(b, c);
    a = added(a, b);
    d = mixed::<8>(d, a);
    c = added(c, d);
    b = mixed::<7>(b, c);
    [a, b, c, d]
}

#[inline(always)]
fn added(a: Row, b: Row) -> Row {
    [0, 1, 2, 3].map(|i| a[i].wrapping_add(b[i]))
}

#[inline(always)]
fn mixed<const BITS: u32>(a: Row, b: Row) -> Row {
    [0, 1, 2, 3].map(|i| (a[i] ^ b[i]).rotate_left(BITS))
}

/// Returns the row, begun at another place.
#[inline(always)]
fn turned<const PLACES: usize>(row: Row) -> Row {
    [0, 1, 2, 3].map(|i| row[(i + PLACES) % 4])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy};
    use proptest::{collection, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Draw {
        U32,
        U64,
        Seek(u64),
    }

    fn draw() -> impl Strategy<Value = Draw> {
        prop_oneof![
            4 => Just(Draw::U32),
            4 => Just(Draw::U64),
            1 => (0..40u64).prop_map(Draw::Seek),
            1 => (0..1u64 << 40).prop_map(Draw::Seek),
        ]
    }

    proptest! {
        #[test]
        fn draws_are_those_of_the_cipher(
            key: [u64; 4],
            draws in collection::vec(draw(), 0..60),
        ) {
            let (mut rng, mut cipher) = (Rng::from_key(key), cipher(key, 0));
            for draw in draws {
                match draw {
                    Draw::U32 => prop_assert_eq!(rng.next_u32(), cipher.next_u32()),
                    Draw::U64 => prop_assert_eq!(rng.next_u64(), cipher.next_u64()),
                    Draw::Seek(position) => {
                        rng.seek(position);
                        cipher.set_word_pos(position.into());
                    }
                }
                prop_assert_eq!(u128::from(rng.position()), cipher.get_word_pos());
            }
        }
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
