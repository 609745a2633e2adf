//! A sampler that draws every class equally often.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::index::{Drawn, Draws, Permutation, Sampler};
use crate::{Hints, Rng, Role, mix_bits};

/// Draws every class equally often, whatever the number of its samples.
///
/// Each run of as many draws as there are classes has one draw of every class, in random order.
/// Within a class every sample comes once, in random order, before any comes again. Samples of
/// small classes therefore come more often. Each repeated draw of a sample has an origin of its
/// own. Holds 8 bytes for each sample.
///
/// # Examples
/// ```
/// use datapipes::index::{ClassBalanced, SamplerExt};
/// let labels = ["cat", "cat", "cat", "dog"];
/// let order = ClassBalanced::new(labels, 4).indices(4).collect()?;
/// assert_eq!(order.iter().filter(|&&index| labels[index as usize] == "dog").count(), 2);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClassBalanced {
    classes: Arc<[Vec<u64>]>,
    samples: u64,
    draws: u64,
}

impl ClassBalanced {
    /// Sets the label of each sample, and the number of draws.
    pub fn new<L: Ord>(labels: impl IntoIterator<Item = L>, draws: u64) -> Self {
        let mut classes = BTreeMap::<L, Vec<u64>>::new();
        let mut samples = 0;
        for label in labels {
            classes.entry(label).or_default().push(samples);
            samples += 1;
        }
        ClassBalanced {
            classes: classes.into_values().collect(),
            samples,
            draws,
        }
    }
}

impl Sampler for ClassBalanced {
    fn len(&self, _: u64) -> u64 {
        self.draws
    }
    fn start(&self, _: u64, rng: &mut Rng) -> Draws {
        let classes = self.classes.clone();
        let (turn_key, sample_key) = (rng.next_u64(), rng.next_u64());
        Box::new(move |position| {
            let of = classes.len() as u64;
            let (turn, place) = (position / of, position % of);
            let class = Permutation::new(of, mix_bits(turn_key ^ mix_bits(turn))).get(place);
            let members = &classes[class as usize];
            // Number of completed passes over the class, and the position in the current pass.
            let (pass, at) = (turn / members.len() as u64, turn % members.len() as u64);
            let key = mix_bits(mix_bits(sample_key ^ mix_bits(class)) ^ pass);
            let member = Permutation::new(members.len() as u64, key).get(at);
            Drawn::again(members[member as usize], pass)
        })
    }
    fn problem(&self, len: u64) -> Option<String> {
        if self.samples != len {
            return Some(format!("{} labels for {len} samples", self.samples));
        }
        (len == 0 && self.draws > 0).then(|| "draws from no samples".to_owned())
    }
    fn name(&self) -> String {
        "index_class_balanced".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .never_blocks(true)
            .role(Role::Scatter)
            .settings(format_args!(
                "{} classes, {} draws",
                self.classes.len(),
                self.draws
            ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::samplers::{check_draws, drawn, indices};

    #[test]
    fn classes_come_equally_often_and_their_samples_too() {
        let labels: Vec<u64> = (0..60)
            .map(|n| u64::from(n >= 30) + u64::from(n >= 50) + u64::from(n >= 59))
            .collect();
        let sampler = ClassBalanced::new(labels.iter().copied(), 400);
        let all = drawn(&sampler, 60, 1);
        check_draws(&all);
        for block in all.chunks(4) {
            let mut classes: Vec<u64> = block
                .iter()
                .map(|drawn| labels[drawn.index as usize])
                .collect();
            classes.sort();
            assert_eq!(classes, [0, 1, 2, 3]);
        }
        let mut counts = [0u32; 60];
        all.iter()
            .for_each(|drawn| counts[drawn.index as usize] += 1);
        for (members, due) in [
            (0..30, 100 / 30),
            (30..50, 5),
            (50..59, 100 / 9),
            (59..60, 100),
        ] {
            assert!(
                counts[members]
                    .iter()
                    .all(|&count| count == due || count == due + 1),
                "{counts:?}"
            );
        }
        assert_ne!(indices(&sampler, 60, 1), indices(&sampler, 60, 2));
    }

    #[test]
    fn labels_that_do_not_fit_are_a_problem() {
        assert_eq!(
            ClassBalanced::new([1, 2], 2).problem(3).unwrap(),
            "2 labels for 3 samples"
        );
        assert!(ClassBalanced::new([0u8; 0], 0).problem(0).is_none());
        assert!(ClassBalanced::new([0u8; 0], 1).problem(0).is_some());
    }

    /// A change of this order is a breaking change.
    #[test]
    fn the_order_is_pinned() {
        let sampler = ClassBalanced::new((0..100).map(|n| n % 7 % 3), 6);
        assert_eq!(indices(&sampler, 100, 0), [92, 48, 79, 68, 34, 50]);
    }
}
