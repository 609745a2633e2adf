//! The built-in samplers, one file each.

mod class_balanced;
mod distributed;
mod length_grouped;
mod random;
mod replacement;
mod sequential;
mod subset;
mod weighted;

pub use class_balanced::ClassBalanced;
pub use distributed::Distributed;
pub use length_grouped::LengthGrouped;
pub use random::Random;
pub use replacement::Replacement;
pub use sequential::Sequential;
pub use subset::Subset;
pub use weighted::{Weighted, WeightedOnce};

#[cfg(test)]
pub(super) fn drawn(sampler: &dyn super::Sampler, len: u64, key: u64) -> Vec<super::Drawn> {
    let draws = sampler.start(len, &mut crate::Rng::from_key([key, 0, 0, 0]));
    (0..sampler.len(len)).map(draws).collect()
}

#[cfg(test)]
pub(super) fn indices(sampler: &dyn super::Sampler, len: u64, key: u64) -> Vec<u64> {
    drawn(sampler, len, key)
        .iter()
        .map(|drawn| drawn.index)
        .collect()
}

/// Checks that no two draws of one index have the same number.
#[cfg(test)]
pub(super) fn check_draws(drawn: &[super::Drawn]) {
    let distinct: std::collections::BTreeSet<_> = drawn.iter().map(|d| (d.index, d.draw)).collect();
    assert_eq!(
        distinct.len(),
        drawn.len(),
        "two draws of an index have one number"
    );
}
