//! Number of cases that the long tests of this repository try.

use std::hash::{BuildHasher, RandomState};

/// One in so many cases is tried where not all are asked for.
const ONE_IN: usize = 5;

/// Returns the number of cases that a test tries: all if `DATAPIPES_ALL_CASES` is set, as the gate
/// does, otherwise a fifth.
#[doc(hidden)]
pub fn cases(all: usize) -> usize {
    if all_cases() {
        all
    } else {
        all.div_ceil(ONE_IN)
    }
}

/// Returns the cases that a test tries: all if `DATAPIPES_ALL_CASES` is set, as the gate does,
/// otherwise every fifth, beginning at a random one.
#[doc(hidden)]
pub fn some_of<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let all = Vec::from_iter(all);
    let (begin, step) = if all_cases() || all.is_empty() {
        (0, 1)
    } else {
        let random = RandomState::new().hash_one(0) as usize;
        (random % all.len().min(ONE_IN), ONE_IN)
    };
    all.into_iter().skip(begin).step_by(step)
}

fn all_cases() -> bool {
    std::env::var_os("DATAPIPES_ALL_CASES").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cases_are_tried_if_told_and_a_fifth_otherwise() {
        let counts = [0, 1, 4, 5, 6, 23].map(|all| (cases(all), some_of(0..all).count()));
        let expected = if all_cases() {
            [0, 1, 4, 5, 6, 23].map(|all| (all..=all, all))
        } else {
            [
                (0..=0, 0),
                (1..=1, 1),
                (1..=1, 1),
                (1..=1, 1),
                (1..=2, 2),
                (4..=5, 5),
            ]
        };
        for ((cases, some), (range, number)) in counts.into_iter().zip(expected) {
            assert!(cases == number && range.contains(&some), "{cases}, {some}");
        }
    }
}
