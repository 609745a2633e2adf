//! A keyed permutation of `0..len`, computed index by index.

use crate::{Rng, mix_bits};

/// A permutation of `0..len` chosen by a key. Each position is computed by itself: nothing is
/// materialised, and any length starts at once.
///
/// A Feistel network permutes the least power of two that holds all indices. It is applied again
/// until it gives an index below `len` (*cycle walking*; Black and Rogaway 2002, "Ciphers with
/// Arbitrary Finite Domains", method 2). The result is a true bijection for every length. The power
/// of two is less than twice the length, so fewer than two steps are taken on average. If the
/// number of bits is odd, the halves differ by a bit and take turns. Up to 16 indices are shuffled
/// in one word instead (Fisher and Yates), where every order is exactly as likely as every other.
///
/// There are 8 rounds. Four rounds of independent random functions make a pseudorandom permutation
/// (Luby and Rackoff 1988), but of `n` indices only for an observer who sees about `n^(1/4)` of
/// them, and a shuffle shows all. Six rounds hold for nearly `n^(1/2)` (Patarin 2004). The
/// functions here are hash functions, not random functions, so there are two more rounds. Up to
/// 4096 indices there are 16 rounds: halves of a few bits mix slowly, and the time does not matter
/// there. The function is fixed: a change of any value is a change of iteration order. The
/// permutation is not meant to keep secrets.
///
/// # Examples
/// ```
/// use datapipes::index::Permutation;
///
/// let order = Permutation::new(1 << 40, 42);
/// let first = order.get(0);
/// assert_eq!(order.inverse(first), 0);
///
/// let mut few: Vec<u64> = Permutation::new(5, 7).iter().collect();
/// few.sort();
/// assert_eq!(few, [0, 1, 2, 3, 4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Sixteen indices of four bits, the first one lowest.
    Table(u64),
    Network(Network<8>),
    Slow(Network<16>),
}

/// Maximum length that is kept in one word.
const TABLE: u64 = 16;
/// Maximum length that takes more rounds.
const SLOW: u64 = 4096;
/// Step of splitmix64, which keeps the keys of the rounds apart.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Permutation {
    /// Chooses the permutation of `0..len` by a key.
    pub fn new(len: u64, key: u64) -> Self {
        let how = if len <= TABLE {
            How::Table(table(len, key))
        } else if len <= SLOW {
            How::Slow(Network::new(len, key))
        } else {
            How::Network(Network::new(len, key))
        };
        Permutation { len, how }
    }

    /// Returns the number of indices.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if there are no indices.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index at a place.
    ///
    /// # Panics
    /// Panics if there is no such place.
    #[inline]
    pub fn get(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} of {}", self.len);
        match &self.how {
            How::Table(table) => table >> (4 * place) & 15,
            How::Network(network) => walk(place, self.len, |at| network.forward(at)),
            How::Slow(network) => walk(place, self.len, |at| network.forward(at)),
        }
    }

    /// Returns the place of an index.
    ///
    /// # Panics
    /// Panics if there is no such index.
    #[inline]
    pub fn inverse(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} of {}", self.len);
        match &self.how {
            How::Table(table) => {
                let place = (0..self.len).find(|place| table >> (4 * place) & 15 == index);
                place.expect("each index stands somewhere")
            }
            How::Network(network) => walk(index, self.len, |at| network.backward(at)),
            How::Slow(network) => walk(index, self.len, |at| network.backward(at)),
        }
    }

    /// Iterates over all indices, in the order of the permutation.
    pub fn iter(&self) -> impl Iterator<Item = u64> + Send + 'static {
        let this = *self;
        (0..this.len).map(move |place| this.get(place))
    }
}

/// Steps until the value is below `len` again. The cycle ends at its beginning at the latest.
#[inline]
fn walk(mut at: u64, len: u64, step: impl Fn(u64) -> u64) -> u64 {
    loop {
        at = step(at);
        if at < len {
            return at;
        }
    }
}

fn table(len: u64, key: u64) -> u64 {
    let mut order: Vec<u64> = (0..len).collect();
    Rng::from_key([key, len, 0, 0]).shuffle(&mut order);
    order
        .iter()
        .rev()
        .fold(0, |table, index| table << 4 | index)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network<const ROUNDS: usize> {
    /// Number of bits of the lower half; the upper half has as many or one less.
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

impl<const ROUNDS: usize> Network<ROUNDS> {
    /// Permutes the least power of two that holds `len` indices, which are three or more.
    fn new(len: u64, key: u64) -> Self {
        // Bits of the last index: if the length is a power of two this is one bit less than the
        // length has.
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mut keys = [0; ROUNDS];
        let mut state = key;
        for round in &mut keys {
            state = state.wrapping_add(GAMMA);
            *round = mix_bits(state);
        }
        Network {
            low_bits: bits.div_ceil(2),
            high_bits: bits / 2,
            keys,
        }
    }

    #[inline]
    fn forward(&self, at: u64) -> u64 {
        let (mut high, mut low) = self.halves(at);
        for keys in self.keys.chunks_exact(2) {
            high ^= scramble(low, keys[0], self.high_bits);
            low ^= scramble(high, keys[1], self.low_bits);
        }
        (high << self.low_bits) | low
    }

    #[inline]
    fn backward(&self, at: u64) -> u64 {
        let (mut high, mut low) = self.halves(at);
        for keys in self.keys.rchunks_exact(2) {
            low ^= scramble(high, keys[1], self.low_bits);
            high ^= scramble(low, keys[0], self.high_bits);
        }
        (high << self.low_bits) | low
    }

    #[inline]
    fn halves(&self, at: u64) -> (u64, u64) {
        (at >> self.low_bits, at & ((1 << self.low_bits) - 1))
    }
}

/// Mixes a half in one round: the upper bits of a hash of two multiplications.
#[inline]
fn scramble(half: u64, key: u64, bits: u32) -> u64 {
    let x = (half ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x >> (u64::BITS - bits)
}

#[cfg(test)]
mod tests;
