//! A sampler that puts samples of similar length next to each other.

use std::sync::Arc;

use crate::index::{Drawn, Draws, Permutation, Sampler};
use crate::{Hints, Rng, Role, mix_bits};

/// Draws every sample once, in groups of similar length, so that batches need little padding. The
/// groups come in random order.
///
/// Samples are sorted by length once. For each pass the sorted row is cut, at a random place, into
/// stretches of 50 groups. The samples of a stretch are shuffled and dealt into its groups; then
/// all groups are shuffled. The samples of a group therefore differ from pass to pass, and their
/// lengths are no further apart than those of a stretch. If the samples do not divide evenly, the
/// one short group comes last, and its samples may have any length. Hugging Face's sampler of this
/// name differs: it shuffles first and sorts stretches of 50 batches, so that each stretch begins
/// with its longest samples and ends with its shortest. Holds 8 bytes for each sample; each
/// position is computed by itself.
///
/// Follow the sampler with [`batch`](crate::Indexed::batch) of the same size; whole batches can
/// then be sharded and shuffled. If samples are sharded first and batched after that, use groups as
/// large as the batches of all ranks together.
///
/// # Examples
/// ```
/// use datapipes::index::{LengthGrouped, SamplerExt};
/// let lengths: Vec<u64> = (0..1000).map(|n| n * 7919 % 1000).collect();
/// let batches = LengthGrouped::new(lengths.clone(), 4).stretch(2).indices(1000).batch(4).collect()?;
/// for batch in batches {
///     let lengths = batch.iter().map(|&index| lengths[index as usize]);
///     assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() < 8);
/// }
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LengthGrouped {
    /// Indices sorted by length.
    sorted: Arc<[u64]>,
    group: usize,
    stretch: u64,
}

impl LengthGrouped {
    /// Groups samples by their lengths, `group` samples to a group.
    pub fn new(lengths: impl IntoIterator<Item = u64>, group: usize) -> Self {
        let mut sorted: Vec<(u64, u64)> = lengths.into_iter().zip(0..).collect();
        sorted.sort_unstable();
        LengthGrouped {
            sorted: sorted.into_iter().map(|(_, index)| index).collect(),
            group,
            stretch: 50,
        }
    }

    /// Sets the number of groups of neighbouring length among which samples are dealt; 50 by
    /// default. Fewer groups mean less padding, more groups mean groups that differ more from pass
    /// to pass.
    pub fn stretch(mut self, groups: u64) -> Self {
        self.stretch = groups;
        self
    }
}

impl Sampler for LengthGrouped {
    fn len(&self, len: u64) -> u64 {
        len
    }
    fn start(&self, len: u64, rng: &mut Rng) -> Draws {
        let group = self.group as u64;
        let (full, rest) = (len / group, len % group);
        let stretch = self.stretch.clamp(1, full.max(1));
        let groups = Permutation::new(full, rng.next_u64());
        let key = rng.next_u64();
        // End of the first stretch, and the place in the row of the one short group.
        let (first, short) = (group * rng.below(stretch), group * rng.below(full + 1));
        let (stretch, all) = (group * stretch, group * full);
        let sorted = self.sorted.clone();
        Box::new(move |position| {
            let (number, place) = (position / group, position % group);
            if number == full {
                return Drawn::once(sorted[(short + place) as usize]);
            }
            let at = groups.get(number) * group + place;
            let number = (at + stretch - first) / stretch;
            let begin = (number * stretch + first).saturating_sub(stretch);
            let end = (number * stretch + first).min(all);
            let dealt = begin
                + Permutation::new(end - begin, mix_bits(key ^ mix_bits(number))).get(at - begin);
            Drawn::once(sorted[(if dealt < short { dealt } else { dealt + rest }) as usize])
        })
    }
    fn problem(&self, len: u64) -> Option<String> {
        let lengths = self.sorted.len() as u64;
        (lengths != len).then(|| format!("{lengths} lengths for {len} samples"))
    }
    fn name(&self) -> String {
        "index_length_grouped".to_owned()
    }
    fn hints(&self) -> Hints {
        let problem = match (self.group, self.stretch) {
            (0, _) => Some("groups of zero samples"),
            (_, 0) => Some("stretches of zero groups"),
            _ => None,
        };
        Hints::any_order()
            .never_blocks(true)
            .role(Role::Shuffle)
            .settings(format_args!("groups of {}", self.group))
            .problem(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::samplers::indices;

    #[test]
    fn every_sample_comes_once_for_any_sizes() {
        for len in 0..60u64 {
            for (group, stretch) in [(1, 1), (3, 2), (7, 50), (100, 1)] {
                for key in 0..4 {
                    let sampler =
                        LengthGrouped::new((0..len).map(|n| n * 31 % 17), group).stretch(stretch);
                    let mut all = indices(&sampler, len, key);
                    all.sort();
                    assert_eq!(all, Vec::from_iter(0..len), "{len} in groups of {group}");
                }
            }
        }
    }

    #[test]
    fn groups_are_close_in_length_come_in_any_order_and_differ() {
        let lengths: Vec<u64> = (0..1000).map(|n| n * 7919 % 1000).collect();
        let sampler = LengthGrouped::new(lengths.iter().copied(), 8).stretch(5);
        let groups = |key| -> Vec<Vec<u64>> {
            let all = indices(&sampler, 1000, key);
            all.chunks(8)
                .map(|group| group.iter().map(|&index| lengths[index as usize]).collect())
                .collect()
        };
        let (a, b) = (groups(1), groups(2));
        for group in a.iter().chain(&b) {
            assert!(
                group.iter().max().unwrap() - group.iter().min().unwrap() < 40,
                "{group:?}"
            );
        }
        let rising = a.windows(2).filter(|pair| pair[0][0] < pair[1][0]).count();
        assert!((40..85).contains(&rising), "{rising} of 124 rise");
        let members = |groups: &[Vec<u64>]| -> std::collections::BTreeSet<Vec<u64>> {
            groups
                .iter()
                .map(|group| {
                    let mut group = group.clone();
                    group.sort();
                    group
                })
                .collect()
        };
        assert!(
            members(&a).is_disjoint(&members(&b)),
            "groups are the same in two passes"
        );
    }

    #[test]
    fn wrong_settings_are_problems() {
        assert_eq!(
            LengthGrouped::new([1], 0).hints().problems,
            ["groups of zero samples"]
        );
        assert_eq!(
            LengthGrouped::new([1], 1).stretch(0).hints().problems,
            ["stretches of zero groups"]
        );
        assert!(LengthGrouped::new([1], 1).problem(2).is_some());
    }

    /// A change of this order is a breaking change.
    #[test]
    fn the_order_is_pinned() {
        let sampler = LengthGrouped::new((0..100).map(|n| n % 10), 4).stretch(3);
        assert_eq!(
            indices(&sampler, 100, 0)[..8],
            [37, 86, 7, 27, 43, 23, 24, 73]
        );
    }
}
