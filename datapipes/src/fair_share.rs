//! Exact shares of turns by weights, as mixes of streams and of data by index give them.
//!
//! The arithmetic is Grain's, with products of 128 bits: of the turns `0..k` that the inputs from
//! `i` on share, those behind `i` get `k * (rest - share) / rest`. So each input has its share of
//! any number of turns, to less than one turn.

/// The largest weight, in terms of the least.
const MOST: f64 = 1e9;
/// The least weight as an integer, where the weights are none.
const SCALE: f64 = 1e6;

fn least(weights: &[f64]) -> f64 {
    weights
        .iter()
        .copied()
        .filter(|&weight| weight > 0.0)
        .fold(f64::INFINITY, f64::min)
}

/// What is wrong with some weights, of which some may be `zeros`.
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

/// Whole weights are taken as they are, others to a millionth of the least.
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

/// Whose turn number `turn` is, and the how manieth of its turns that is; `None` if no input has a
/// share.
pub(crate) fn whose(shares: &[u64], turn: u64) -> Option<(usize, u64)> {
    // It is that of the first input whose number of turns grows with it.
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

/// How many of the turns `0..turns` are those of each input.
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
