//! Samplers by weight, with and without replacement.

use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::index::{Drawn, Draws, Sampler};
use crate::{Hints, Rng, Role};

/// Draws samples by weight, with replacement. At each position the probability of a sample is its
/// weight divided by the sum of all weights, whatever came before. Each draw has an origin of its
/// own.
///
/// Uses the alias method (Walker 1977; the table in linear time by Vose 1991): constant time for a
/// draw. Holds 16 bytes for each weight. For a fixed number of samples that are all different see
/// [`WeightedOnce`].
///
/// # Examples
/// ```
/// use datapipes::index::{SamplerExt, Weighted};
/// let order = Weighted::new([1.0, 0.0, 9.0], 1000).indices(3).collect()?;
/// let twos = order.iter().filter(|&&index| index == 2).count();
/// assert!(twos > 850 && twos < 950 && !order.contains(&1));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Weighted {
    /// Probability of each place's own sample, and the sample that has the rest.
    table: Arc<[(f64, u64)]>,
    draws: u64,
    problem: Option<&'static str>,
}

impl Weighted {
    /// Sets one weight for each sample, and the number of draws.
    pub fn new(weights: impl IntoIterator<Item = f64>, draws: u64) -> Self {
        let weights = Vec::from_iter(weights);
        let problem = wrong(&weights);
        let table = if problem.is_some() {
            weights.iter().map(|_| (1.0, 0)).collect()
        } else {
            alias(&weights)
        };
        Weighted {
            table,
            draws,
            problem,
        }
    }
}

fn wrong(weights: &[f64]) -> Option<&'static str> {
    if !weights
        .iter()
        .all(|&weight| weight >= 0.0 && weight.is_finite())
    {
        Some("a weight that is negative or not a number")
    } else if !weights.iter().any(|&weight| weight > 0.0) {
        Some("no weight above zero")
    } else if !weights.iter().sum::<f64>().is_finite() {
        Some("weights whose sum is not finite")
    } else {
        None
    }
}

/// Builds Vose's table. Uses sums, products and comparisons only, so that the table is the same on
/// every machine.
fn alias(weights: &[f64]) -> Arc<[(f64, u64)]> {
    let sum: f64 = weights.iter().sum();
    let mut scaled: Vec<f64> = weights
        .iter()
        .map(|weight| weight / sum * weights.len() as f64)
        .collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..weights.len()).partition(|&place| scaled[place] < 1.0);
    let mut table: Vec<(f64, u64)> = (0..weights.len() as u64)
        .map(|place| (1.0, place))
        .collect();
    while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
        table[less] = (scaled[less], more as u64);
        scaled[more] -= 1.0 - scaled[less];
        if scaled[more] < 1.0 {
            large.pop();
            small.push(more);
        }
    }
    // Places left over by rounding keep their own sample, unless its weight is zero.
    let heaviest = (0..weights.len()).fold(0, |a, b| if weights[b] > weights[a] { b } else { a });
    for place in (0..weights.len()).filter(|&place| weights[place] == 0.0) {
        if table[place].0 > 0.0 {
            table[place] = (0.0, heaviest as u64);
        }
    }
    table.into()
}

impl Sampler for Weighted {
    fn len(&self, _: u64) -> u64 {
        self.draws
    }
    fn start(&self, _: u64, rng: &mut Rng) -> Draws {
        let (table, key) = (self.table.clone(), rng.next_u64());
        Box::new(move |position| {
            let mut rng = Rng::from_key([key, position, 0, 0]);
            let place = rng.below(table.len() as u64);
            let (own, other) = table[place as usize];
            Drawn::again(if rng.f64() < own { place } else { other }, position)
        })
    }
    fn problem(&self, len: u64) -> Option<String> {
        let weights = self.table.len() as u64;
        (weights != len).then(|| format!("{weights} weights for {len} samples"))
    }
    fn name(&self) -> String {
        "index_weighted".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .never_blocks(true)
            .role(Role::Scatter)
            .settings(self.draws)
            .problem(self.problem)
    }
}

/// Draws samples by weight, without replacement. Each sample comes at most once, and the
/// probability of the next sample is its weight divided by the sum of the weights that are left.
///
/// Each sample gets an exponential clock that runs at the rate of its weight, and the samples whose
/// clocks ring first are taken, in that order (Efraimidis and Spirakis 2006). Every pass therefore
/// looks at all weights before its first index, which takes some tens of nanoseconds for each, and
/// up to half a microsecond if a large part is drawn. It holds 8 bytes for each index drawn. The
/// logarithm is computed by this crate, so that the order is the same on every machine.
///
/// # Examples
/// ```
/// use datapipes::index::{SamplerExt, WeightedOnce};
/// let mut drawn = WeightedOnce::new([5.0, 1.0, 0.0, 1.0], 3).indices(4).collect()?;
/// drawn.sort();
/// assert_eq!(drawn, [0, 1, 3]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightedOnce {
    weights: Arc<[f64]>,
    draws: u64,
    problem: Option<&'static str>,
}

impl WeightedOnce {
    /// Sets one weight for each sample, and the number of draws.
    pub fn new(weights: impl IntoIterator<Item = f64>, draws: u64) -> Self {
        let weights: Arc<[f64]> = weights.into_iter().collect();
        let possible = weights.iter().filter(|&&weight| weight > 0.0).count() as u64;
        let problem =
            wrong(&weights).or((possible < draws).then_some("fewer weights above zero than draws"));
        WeightedOnce {
            weights,
            draws,
            problem,
        }
    }
}

impl Sampler for WeightedOnce {
    fn len(&self, _: u64) -> u64 {
        self.draws
    }
    fn start(&self, _: u64, rng: &mut Rng) -> Draws {
        // The last clock to ring is on top. Positive floats are ordered as their bits are.
        let mut first = BinaryHeap::with_capacity(self.draws as usize + 1);
        for (index, &weight) in (0u64..).zip(self.weights.iter()) {
            let rings = -ln(1.0 - rng.f64()) / weight;
            if weight > 0.0 {
                first.push((rings.to_bits(), index));
                if first.len() as u64 > self.draws {
                    first.pop();
                }
            }
        }
        let order: Vec<u64> = first
            .into_sorted_vec()
            .into_iter()
            .map(|(_, index)| index)
            .collect();
        Box::new(move |position| Drawn::once(order[position as usize]))
    }
    fn problem(&self, len: u64) -> Option<String> {
        let weights = self.weights.len() as u64;
        (weights != len).then(|| format!("{weights} weights for {len} samples"))
    }
    fn name(&self) -> String {
        "index_weighted_once".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .never_blocks(true)
            .role(Role::Scatter)
            .settings(self.draws)
            .problem(self.problem)
    }
}

/// Returns the natural logarithm of a normal positive number, by sums, products and quotients
/// alone.
fn ln(x: f64) -> f64 {
    const SQRT_2: f64 = std::f64::consts::SQRT_2;
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        (mantissa, exponent) = (mantissa / 2.0, exponent + 1);
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), and the quotient is below 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut sum) = (s * s, s, s);
    for odd in (3..=25).step_by(2) {
        power *= square;
        sum += power / f64::from(odd);
    }
    2.0 * sum + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::samplers::{check_draws, drawn, indices};

    #[test]
    fn chances_are_those_of_the_weights() {
        for weights in [
            vec![1.0],
            vec![1.0, 2.0, 3.0, 4.0],
            vec![0.0, 1e-9, 5.0, 0.0, 2.5],
            vec![0.1; 7],
        ] {
            let sampler = Weighted::new(weights.clone(), 20_000);
            let mut counts = vec![0u32; weights.len()];
            for index in indices(&sampler, weights.len() as u64, 9) {
                counts[index as usize] += 1;
            }
            let sum: f64 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(&weights) {
                let due = 20_000.0 * weight / sum;
                assert!(
                    (f64::from(*count) - due).abs() <= 5.0 * due.sqrt(),
                    "{weights:?}: {counts:?}"
                );
            }
        }
        check_draws(&drawn(&Weighted::new([1.0, 1.0], 1000), 2, 0));
    }

    /// The probabilities of the table are the weights, up to rounding.
    #[test]
    fn the_table_is_exact() {
        let weights: Vec<f64> = (0..1000u32).map(|n| f64::from(n * n % 97)).collect();
        let table = alias(&weights);
        let mut chances = vec![0.0; weights.len()];
        for (place, (own, other)) in table.iter().enumerate() {
            chances[place] += own;
            chances[*other as usize] += 1.0 - own;
        }
        let sum: f64 = weights.iter().sum();
        for (chance, weight) in chances.iter().zip(&weights) {
            assert!(
                (chance / 1000.0 - weight / sum).abs() < 1e-12,
                "{chance} for {weight}"
            );
            assert!(*weight > 0.0 || *chance == 0.0);
        }
    }

    #[test]
    fn without_replacement_the_heavy_come_first() {
        let sampler = WeightedOnce::new([8.0, 1.0, 1.0], 3);
        let mut first = [0u32; 3];
        let mut second_behind_heavy = [0u32; 3];
        for key in 0..4000 {
            let order = indices(&sampler, 3, key);
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, [0, 1, 2]);
            first[order[0] as usize] += 1;
            if order[0] == 0 {
                second_behind_heavy[order[1] as usize] += 1;
            }
        }
        assert!(
            first[0].abs_diff(3200) < 130 && first[1].abs_diff(400) < 100,
            "{first:?}"
        );
        assert!(
            second_behind_heavy[1].abs_diff(second_behind_heavy[2]) < 250,
            "{second_behind_heavy:?}"
        );
    }

    #[test]
    fn the_logarithm_is_one() {
        for n in 1..2000 {
            let x = f64::from(n) / 2000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-15 * (1.0 + x.ln().abs()), "{x}");
        }
        assert!((ln(2f64.powi(-53)) - (-53.0 * std::f64::consts::LN_2)).abs() < 1e-13);
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn wrong_weights_are_problems() {
        let problem =
            |weights: Vec<f64>, draws| WeightedOnce::new(weights, draws).hints().problems.len();
        assert_eq!(problem(vec![1.0, 1.0], 2), 0);
        assert_eq!(problem(vec![1.0, 0.0], 2), 1);
        for weights in [
            vec![],
            vec![0.0],
            vec![-1.0, 2.0],
            vec![f64::NAN],
            vec![f64::INFINITY],
            vec![f64::MAX; 2],
        ] {
            assert_eq!(
                Weighted::new(weights.clone(), 5).hints().problems.len(),
                1,
                "{weights:?}"
            );
        }
        assert_eq!(
            Weighted::new([1.0], 5).problem(2).unwrap(),
            "1 weights for 2 samples"
        );
    }

    /// A change of these orders is a breaking change.
    #[test]
    fn orders_are_pinned() {
        let weights = || (1..=100).map(f64::from);
        assert_eq!(
            indices(&Weighted::new(weights(), 6), 100, 0),
            [16, 87, 90, 79, 61, 39]
        );
        assert_eq!(
            indices(&WeightedOnce::new(weights(), 6), 100, 0),
            [73, 31, 99, 96, 60, 76]
        );
    }
}
