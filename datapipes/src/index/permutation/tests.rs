use super::*;

/// Lengths around powers of two, where an implementation may lose an index.
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
        let inside =
            (0..400u64).map(|n| ((u128::from(mix_bits(n)) * u128::from(len)) >> 64) as u64);
        for place in ends.chain(inside) {
            let index = order.get(place);
            assert!(index < len);
            assert_eq!(order.inverse(index), place, "of {len}");
            assert_eq!(order.get(order.inverse(place)), place, "of {len}");
        }
    }
}

/// A change of these values is a breaking change. Those of more than 16 indices were also computed
/// by another program.
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

/// Sum of the squared deviations from the expected value, divided by it. It is near its number of
/// degrees of freedom.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = counts.iter().map(|&c| f64::from(c)).sum::<f64>() / counts.len() as f64;
    counts
        .iter()
        .map(|&c| (f64::from(c) - expected).powi(2) / expected)
        .sum()
}

/// Degrees of freedom, plus four standard deviations: one false alarm in some ten thousand. The
/// keys are fixed.
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

/// Lengths just above one word, and at the changes of the number of rounds.
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

/// Neighbours are neighbours again no more often than by chance, and the differences between them
/// are uniform.
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
                // Around a circle, all differences except zero are equally likely.
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

/// Changing one bit of the key changes almost all places.
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
