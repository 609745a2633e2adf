//! Exact shares of turns by weight, for mixes of streams and of data by index.
//!
//! The arithmetic is Grain's, with products of 128 bits: of the turns `0..k` that input `i` and all
//! later inputs share, the inputs after `i` get `k * (rest - share) / rest`. Each input therefore
//! gets its share of any number of turns, with an error of less than one turn.

/// Maximum ratio of two weights.
const MOST: f64 = 1e9;
/// Integer share of the least weight, if the weights are not integers.
const SCALE: f64 = 1e6;

fn least(weights: &[f64]) -> f64 {
    weights
        .iter()
        .copied()
        .filter(|&weight| weight > 0.0)
        .fold(f64::INFINITY, f64::min)
}

/// Returns the problem with `weights`, if there is one. `zeros` permits weights of zero.
pub(crate) fn problem(weights: &[f64], zeros: bool) -> Option<&'static str> {
    let is_weight = |&weight: &f64| weight.is_finite() && (weight > 0.0 || zeros && weight == 0.0);
    if weights.is_empty() {
        Some("no inputs")
    } else if !weights.iter().all(is_weight) {
        Some("a weight that is not a positive number")
    } else if weights.iter().all(|&weight| weight == 0.0) {
        Some("weights that are all zero")
    } else if weights.iter().any(|weight| weight / least(weights) > MOST) {
        Some("weights more than a billion times apart")
    } else {
        None
    }
}

/// Converts weights to integer shares. Integer weights are taken as they are; others are rounded to
/// a millionth of the least weight.
pub(crate) fn shares(weights: &[f64]) -> Vec<u64> {
    let least = least(weights);
    let whole = weights
        .iter()
        .all(|&weight| weight.fract() == 0.0 && weight <= MOST * SCALE);
    let share = |&weight: &f64| {
        if whole {
            weight as u64
        } else {
            (weight / least * SCALE).round() as u64
        }
    };
    weights.iter().map(share).collect()
}

/// Returns the input that has turn number `turn`, and the number of its earlier turns; `None` if no
/// input has a share.
pub(crate) fn whose(shares: &[u64], turn: u64) -> Option<(usize, u64)> {
    // The turn belongs to the first input whose number of turns grows with it.
    let (mut from, mut to) = (u128::from(turn), u128::from(turn) + 1);
    let mut rest: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    for (input, &share) in shares.iter().enumerate().filter(|&(_, &share)| share > 0) {
        let others = rest - u128::from(share);
        let (from_others, to_others) = (from * others / rest, to * others / rest);
        if from - from_others != to - to_others {
            return Some((input, (from - from_others) as u64));
        }
        (from, to, rest) = (from_others, to_others, others);
    }
    None
}

/// Returns the number of turns of each input among the turns `0..turns`.
pub(crate) fn turns_of_each(shares: &[u64], turns: u64) -> impl Iterator<Item = u64> {
    let mut turns = u128::from(turns);
    let mut rest: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    shares.iter().map(move |&share| {
        if share == 0 {
            return 0;
        }
        let others = rest - u128::from(share);
        let of_others = turns * others / rest;
        let own = turns - of_others;
        (turns, rest) = (of_others, others);
        own as u64
    })
}
