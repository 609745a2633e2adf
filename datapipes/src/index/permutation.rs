//! A keyed permutation of `0..len`, computed index by index.

use crate::Rng;
use crate::rng::mix;

/// A permutation of `0..len` chosen by a key, of which any place can be computed by itself: nothing
/// is materialised, and it starts at once for any length.
///
/// A Feistel network permutes the least power of two that holds all indices, and is applied again
/// until it gives one below `len` (*cycle walking*; Black and Rogaway 2002, "Ciphers with Arbitrary
/// Finite Domains", method 2). That is a true bijection for every length. The power of two is less
/// than twice the length, so fewer than two steps are taken on average. The halves differ by a bit
/// where the number of bits is odd, and take turns. Up to 16 indices are shuffled in one word
/// instead (Fisher and Yates), where every order is exactly as likely as every other.
///
/// There are 8 rounds. Four make a pseudorandom permutation of independent random functions (Luby
/// and Rackoff 1988), but of `n` indices only for somebody who sees about `n^(1/4)` of them, and a
/// shuffle shows all; six hold for nearly `n^(1/2)` (Patarin 2004). Ours are hash functions, not
/// random ones, so there are two more; and 16 rounds up to 4096 indices, where halves of a few bits
/// mix slowly and nobody waits for it. The function is fixed: a change of any value is a change of
/// iteration order. It is not meant to keep secrets.
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

/// Lengths up to this are one word.
const TABLE: u64 = 16;
/// Lengths up to this take more rounds.
const SLOW: u64 = 4096;
/// The step of splitmix64, by which the keys of the rounds lie apart.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Permutation {
    /// The permutation of `0..len` that a key chooses.
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

    /// How many indices there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What stands at a place.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub fn get(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} of {}", self.len);
        match &self.how {
            How::Table(table) => table >> (4 * place) & 15,
            How::Network(network) => walk(place, self.len, |at| network.forward(at)),
            How::Slow(network) => walk(place, self.len, |at| network.forward(at)),
        }
    }

    /// At which place an index stands.
    ///
    /// # Panics
    /// If there is no such index.
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

    /// All of it, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + Send + 'static {
        let this = *self;
        (0..this.len).map(move |place| this.get(place))
    }
}

/// Steps until it is below `len` again. The cycle leads back to where it began at the latest.
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
    /// Bits of the lower half; the upper has as many or one less.
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

impl<const ROUNDS: usize> Network<ROUNDS> {
    /// Over the least power of two that holds `len` indices, which are three or more.
    fn new(len: u64, key: u64) -> Self {
        // Of the last index: where the length is a power of two this is one bit less than the
        // length has.
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mut keys = [0; ROUNDS];
        let mut state = key;
        for round in &mut keys {
            state = state.wrapping_add(GAMMA);
            *round = mix(state);
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

/// The function of a round: the upper bits of a hash of two multiplications.
#[inline]
fn scramble(half: u64, key: u64, bits: u32) -> u64 {
    let x = (half ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x >> (u64::BITS - bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around powers of two, where others lose an index.
    fn lengths() -> impl Iterator<Item = u64> {
        let around = |k: u32| [(1u64 << k) - 1, 1 << k, (1 << k) + 1, (1 << k) + 2];
        (0..=63)
            .flat_map(around)
            .chain([u64::MAX - 1, u64::MAX])
            .filter(|&len| len > 0)
    }

    #[test]
    fn every_length_is_a_bijection() {
        for len in (1..=300).chain(lengths().filter(|&len| len < 1 << 18)) {
            for key in [0, 1, u64::MAX] {
                let order = Permutation::new(len, key);
                let mut seen = vec![false; len as usize];
                for (place, index) in order.iter().enumerate() {
                    assert!(
                        !std::mem::replace(&mut seen[index as usize], true),
                        "{index} twice of {len}"
                    );
                    assert!(
                        place >= 1000 || order.inverse(index) == place as u64,
                        "{place} of {len}"
                    );
                }
                assert!(seen.iter().all(|&seen| seen), "one is missing of {len}");
            }
        }
    }

    #[test]
    fn large_lengths_are_bijections_where_looked_at() {
        for len in lengths().filter(|&len| len >= 1 << 17) {
            let order = Permutation::new(len, len ^ 5);
            let ends = (0..50).chain((0..50).map(|n| len - 1 - n));
            let inside = (0..400u64).map(|n| ((u128::from(mix(n)) * u128::from(len)) >> 64) as u64);
            for place in ends.chain(inside) {
                let index = order.get(place);
                assert!(index < len);
                assert_eq!(order.inverse(index), place, "of {len}");
                assert_eq!(order.get(order.inverse(place)), place, "of {len}");
            }
        }
    }

    /// A change of these is a breaking change. Those of more than 16 were computed by another
    /// program, too.
    #[test]
    fn values_are_pinned() {
        let ten: Vec<u64> = Permutation::new(10, 0).iter().collect();
        assert_eq!(ten, [2, 4, 9, 3, 5, 0, 6, 7, 8, 1]);
        let slow: Vec<u64> = Permutation::new(1000, 7).iter().take(6).collect();
        assert_eq!(slow, [29, 707, 118, 564, 395, 751]);
        let other: Vec<u64> = Permutation::new(65_537, 42).iter().take(6).collect();
        assert_eq!(other, [46573, 20366, 52742, 23274, 55706, 11179]);
        let large: Vec<u64> = Permutation::new((1 << 40) + 1, u64::MAX)
            .iter()
            .take(4)
            .collect();
        assert_eq!(
            large,
            [991612296949, 247816569600, 237377742238, 83113040320]
        );
        let most: Vec<u64> = Permutation::new(u64::MAX, 1).iter().take(3).collect();
        assert_eq!(
            most,
            [
                5075535973513911787,
                10706101818545046723,
                18019096278199013139
            ]
        );
    }

    #[test]
    fn other_keys_give_other_orders() {
        let orders: std::collections::BTreeSet<Vec<u64>> = (0..1000)
            .map(|key| Permutation::new(50, key).iter().collect())
            .collect();
        assert_eq!(orders.len(), 1000);
    }

    /// The sum of squared deviations from what is expected, over that: near its number of degrees
    /// of freedom.
    fn chi_square(counts: &[u32]) -> f64 {
        let expected = counts.iter().map(|&c| f64::from(c)).sum::<f64>() / counts.len() as f64;
        counts
            .iter()
            .map(|&c| (f64::from(c) - expected).powi(2) / expected)
            .sum()
    }

    /// Degrees of freedom, plus four standard deviations: one false alarm in some ten thousand, and
    /// the keys are fixed.
    fn bound(freedom: usize) -> f64 {
        freedom as f64 + 4.0 * (2.0 * freedom as f64).sqrt()
    }

    #[test]
    fn every_index_is_equally_likely_in_every_place() {
        for len in [2u64, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 100] {
            let keys = 50 * len;
            let mut counts = vec![0u32; (len * len) as usize];
            for key in 0..keys {
                for (place, index) in Permutation::new(len, key).iter().enumerate() {
                    counts[place * len as usize + index as usize] += 1;
                }
            }
            let chi = chi_square(&counts);
            let freedom = ((len - 1) * (len - 1)) as usize;
            assert!(chi < bound(freedom), "{len}: {chi} of {freedom}");
        }
    }

    #[test]
    fn every_permutation_of_a_few_is_equally_likely() {
        for (len, all) in [(3u64, 6), (4, 24), (5, 120), (6, 720)] {
            let mut counts = std::collections::BTreeMap::<Vec<u64>, u32>::new();
            for key in 0..100 * all {
                *counts
                    .entry(Permutation::new(len, key).iter().collect())
                    .or_default() += 1;
            }
            assert_eq!(counts.len() as u64, all, "of {len}");
            let chi = chi_square(&counts.into_values().collect::<Vec<_>>());
            assert!(chi < bound(all as usize - 1), "{len}: {chi} of {}", all - 1);
        }
    }

    /// Of a few more than fit into a word, and at the steps of the number of rounds.
    #[test]
    fn every_pair_is_equally_likely_in_two_places() {
        for len in [17u64, 24, 32, 33] {
            for (a, b) in [(0, 1), (0, len / 2), (len - 2, len - 1)] {
                let mut counts = vec![0u32; (len * len) as usize];
                for key in 0..8 * len * (len - 1) {
                    let order = Permutation::new(len, key);
                    counts[(order.get(a) * len + order.get(b)) as usize] += 1;
                }
                let off_diagonal = |place: usize| place / len as usize != place % len as usize;
                let counts: Vec<u32> = (0..counts.len())
                    .filter(|&at| off_diagonal(at))
                    .map(|at| counts[at])
                    .collect();
                let chi = chi_square(&counts);
                assert!(
                    chi < bound(counts.len() - 1),
                    "{len}: {chi} of {}",
                    counts.len() - 1
                );
            }
        }
    }

    #[test]
    fn the_first_is_uniform_over_keys_of_a_large_length() {
        for len in [1u64 << 20, (1 << 20) + 1, 1_000_003, (1 << 40) + 12345] {
            let mut counts = vec![0u32; 256];
            for key in 0..256 * 100 {
                let first = Permutation::new(len, key).get(key % 3);
                counts[(u128::from(first) * 256 / u128::from(len)) as usize] += 1;
            }
            let chi = chi_square(&counts);
            assert!(chi < bound(255), "{len}: {chi}");
        }
    }

    /// Neighbours are no more often neighbours again than by chance, and the differences between
    /// them are uniform.
    #[test]
    fn neighbours_do_not_stay_together() {
        for len in [1000u64, 1024, 4097, 65_537] {
            let (mut adjacent, mut rising, mut pairs) = (0u32, 0u32, 0u32);
            let mut differences = vec![0u32; 50];
            for key in 0..(1 << 18) / len {
                let order = Permutation::new(len, key);
                let all: Vec<u64> = order.iter().collect();
                for pair in all.windows(2) {
                    pairs += 1;
                    adjacent += u32::from(pair[0].abs_diff(pair[1]) == 1);
                    rising += u32::from(pair[0] < pair[1]);
                    // Around a circle, differences other than none are equally likely.
                    let apart = (pair[1] + len - pair[0]) % len - 1;
                    if apart < (len - 1) / 50 * 50 {
                        differences[(apart / ((len - 1) / 50)) as usize] += 1;
                    }
                }
            }
            let expected = 2.0 * f64::from(pairs) / len as f64;
            assert!(
                f64::from(adjacent) < expected + 5.0 * expected.sqrt() + 5.0,
                "{len}: {adjacent}, not {expected}"
            );
            let half = f64::from(pairs) / 2.0;
            assert!(
                (f64::from(rising) - half).abs() < 5.0 * (half / 2.0).sqrt(),
                "{len}: {rising} of {pairs}"
            );
            let chi = chi_square(&differences);
            assert!(chi < bound(49), "{len}: {chi}");
        }
    }

    /// Changing one bit of the key changes about all places.
    #[test]
    fn every_bit_of_the_key_counts() {
        let len = 1000u64;
        let base = Permutation::new(len, 12345);
        for bit in 0..64 {
            let other = Permutation::new(len, 12345 ^ (1 << bit));
            let same = (0..len)
                .filter(|&place| base.get(place) == other.get(place))
                .count();
            assert!(same < 10, "bit {bit}: {same} places stay");
        }
    }
}
