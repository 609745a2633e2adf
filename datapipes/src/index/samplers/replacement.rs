//! A sampler with replacement.

use crate::index::{Drawn, Draws, Sampler};
use crate::{Hints, Rng, Role};

/// Draws samples uniformly, with replacement. Each draw has an origin of its own, and therefore its
/// own augmentation.
///
/// # Examples
/// ```
/// use datapipes::index::{Replacement, SamplerExt};
/// let order = Replacement::new(1000).indices(3).collect()?;
/// assert_eq!(order.len(), 1000);
/// assert!(order.iter().all(|&index| index < 3));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    draws: u64,
}

impl Replacement {
    /// Sets the number of draws.
    pub fn new(draws: u64) -> Self {
        Replacement { draws }
    }
}

impl Sampler for Replacement {
    fn len(&self, _: u64) -> u64 {
        self.draws
    }
    fn start(&self, len: u64, rng: &mut Rng) -> Draws {
        let key = rng.next_u64();
        Box::new(move |position| {
            Drawn::again(Rng::from_key([key, position, 0, 0]).below(len), position)
        })
    }
    fn problem(&self, len: u64) -> Option<String> {
        (len == 0 && self.draws > 0).then(|| "draws from no samples".to_owned())
    }
    fn name(&self) -> String {
        "index_replacement".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .never_blocks(true)
            .role(Role::Scatter)
            .settings(self.draws)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::samplers::{check_draws, drawn, indices};

    #[test]
    fn draws_are_uniform() {
        let mut counts = [0u32; 10];
        for index in indices(&Replacement::new(10_000), 10, 3) {
            counts[index as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| count.abs_diff(1000) < 150),
            "{counts:?}"
        );
        check_draws(&drawn(&Replacement::new(1000), 10, 3));
    }

    /// A change of this order is a breaking change.
    #[test]
    fn the_order_is_pinned() {
        assert_eq!(
            indices(&Replacement::new(6), 1000, 0),
            [165, 165, 201, 806, 619, 395]
        );
    }
}
