//! A sampler of some samples, in a given order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::index::{Drawn, Draws, Sampler};
use crate::{Hints, Rng, Role};

/// Draws some samples, in the given order: a range, or a list of indices; see
/// [`Indexed::subset`](crate::Indexed::subset).
///
/// # Examples
/// ```
/// use datapipes::index::{SamplerExt, Subset};
/// assert_eq!(Subset::from(2..4).indices(10).collect()?, [2, 3]);
/// assert_eq!(Subset::from(vec![7, 1, 7]).indices(10).collect()?, [7, 1, 7]);
/// assert!(Subset::from(0..11).indices(10).collect().is_err());
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Subset(Which);

#[derive(Clone, Debug)]
enum Which {
    Range(Range<u64>),
    Once(Arc<[u64]>),
    /// Indices, each with the number of times it came before.
    Again(Arc<[(u64, u64)]>),
}

conversions! {
    |range: Range<u64>| -> Subset { Subset(Which::Range(range)) }
}

impl From<Vec<u64>> for Subset {
    fn from(indices: Vec<u64>) -> Self {
        let mut seen = HashMap::with_capacity(indices.len());
        let mut again = false;
        for &index in &indices {
            again |= seen.insert(index, 0u64).is_some();
        }
        if !again {
            return Subset(Which::Once(indices.into()));
        }
        let counted = indices.into_iter().map(|index| {
            let times = seen.get_mut(&index).expect("all were put in above");
            *times += 1;
            (index, *times - 1)
        });
        Subset(Which::Again(counted.collect()))
    }
}

conversions! {
    |indices: &[u64]| -> Subset { Subset::from(indices.to_vec()) }
}

impl FromIterator<u64> for Subset {
    fn from_iter<I: IntoIterator<Item = u64>>(indices: I) -> Self {
        Subset::from(Vec::from_iter(indices))
    }
}

impl Sampler for Subset {
    fn len(&self, _: u64) -> u64 {
        match &self.0 {
            Which::Range(range) => range.end.saturating_sub(range.start),
            Which::Once(indices) => indices.len() as u64,
            Which::Again(indices) => indices.len() as u64,
        }
    }
    fn start(&self, _: u64, _: &mut Rng) -> Draws {
        match self.0.clone() {
            Which::Range(range) => Box::new(move |position| Drawn::once(range.start + position)),
            Which::Once(indices) => {
                Box::new(move |position| Drawn::once(indices[position as usize]))
            }
            Which::Again(indices) => Box::new(move |position| {
                let (index, times) = indices[position as usize];
                Drawn::again(index, times)
            }),
        }
    }
    fn problem(&self, len: u64) -> Option<String> {
        let last = match &self.0 {
            Which::Range(range) if range.is_empty() => None,
            Which::Range(range) => range.end.checked_sub(1),
            Which::Once(indices) => indices.iter().copied().max(),
            Which::Again(indices) => indices.iter().map(|(index, _)| *index).max(),
        };
        last.filter(|&last| last >= len)
            .map(|last| format!("index {last}, where there are {len} samples"))
    }
    fn name(&self) -> String {
        "index_subset".to_owned()
    }
    fn hints(&self) -> Hints {
        let settings = match &self.0 {
            Which::Range(range) => format!("{range:?}"),
            _ => format!("{} indices", self.len(0)),
        };
        let role = match &self.0 {
            Which::Again(_) => Role::Scatter,
            _ => Role::Plain,
        };
        Hints::any_order()
            .never_blocks(true)
            .role(role)
            .settings(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::samplers::{check_draws, drawn, indices};

    #[test]
    fn an_index_given_twice_is_two_draws() {
        let subset = Subset::from_iter([3, 1, 3, 3]);
        let all = drawn(&subset, 5, 0);
        check_draws(&all);
        assert_eq!(indices(&subset, 5, 0), [3, 1, 3, 3]);
        assert!(
            drawn(&Subset::from(vec![3, 1]), 5, 0)
                .iter()
                .all(|drawn| drawn.draw.is_none())
        );
    }

    #[test]
    fn what_is_not_there_is_a_problem() {
        assert_eq!(
            Subset::from(vec![1, 5]).problem(5).unwrap(),
            "index 5, where there are 5 samples"
        );
        assert!(Subset::from(0..6).problem(5).is_some());
        assert!(Subset::from(5..5).problem(5).is_none() && Subset::from(9..9).problem(5).is_none());
        assert!(Subset::from(vec![]).problem(0).is_none());
    }
}
