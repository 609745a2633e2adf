//! Mixes inputs by weight in what items measure, not in their number.

use super::fair_share::{self, shares};
use super::{Mixes, Stop, Takes, join};
use crate::{Context, Error, Graph, Hints, Items, Join, Result, Role};

/// Mixes inputs by weight in what a function says of each item; see [`Graph::mix_by_size`].
#[derive(Clone)]
pub struct MixBySize<F> {
    weights: Vec<f64>,
    size: F,
    stop: Stop,
}

impl<F> MixBySize<F> {
    /// Mixes with one weight for each input, until all are exhausted. `size` measures an item.
    pub fn new(weights: impl Into<Vec<f64>>, size: F) -> Self {
        MixBySize {
            weights: weights.into(),
            size,
            stop: Stop::default(),
        }
    }
}

opaque_debug!(MixBySize<F> { weights, stop });

/// The turns of inputs by what they gave: the next is that of the input furthest below its share.
pub(super) struct SizedTurns<F> {
    shares: Vec<u64>,
    /// Sum of the sizes that each input gave since one was left out.
    given: Vec<u64>,
    /// True for inputs that are not left out.
    open: Vec<bool>,
    size: F,
}

impl<T, F: Fn(&T) -> usize + Send + 'static> Takes<T> for SizedTurns<F> {
    type State = (Vec<u64>, Vec<bool>);

    fn state(&self) -> Self::State {
        (self.given.clone(), self.open.clone())
    }

    fn next(&mut self) -> Option<usize> {
        let open = || (0..self.open.len()).filter(|&input| self.open[input]);
        let total: u128 = open().map(|input| u128::from(self.given[input])).sum();
        let shares: u128 = open().map(|input| u128::from(self.shares[input])).sum();
        let due = |input: usize| u128::from(self.shares[input]) * total;
        let has = |input: usize| u128::from(self.given[input]) * shares;
        // Before all others if none is below its share: the first.
        open()
            .rev()
            .max_by_key(|&input| due(input).cast_signed() - has(input).cast_signed())
    }

    fn measure(&self, item: &T) -> u64 {
        // An item of no size counts too: its input would have all turns otherwise.
        ((self.size)(item) as u64).max(1)
    }

    fn gave(&mut self, input: usize, size: u64) -> Result<()> {
        self.given[input] = self.given[input].saturating_add(size);
        Ok(())
    }

    fn leave_out(&mut self, input: usize) {
        self.open[input] = false;
        self.given.fill(0);
    }

    fn has(&self, input: usize) -> bool {
        self.open[input]
    }
}

impl<T, F> Mixes<T> for MixBySize<F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Clone + Send + Sync + 'static,
{
    type Turns = SizedTurns<F>;

    fn turns(&self, cx: &Context, inputs: usize) -> Result<(SizedTurns<F>, Vec<bool>)> {
        let problem = fair_share::problem(&self.weights, false);
        let wrong =
            problem.or((self.weights.len() != inputs).then_some("not a weight for each input"));
        if let Some(problem) = wrong {
            return Err(Error::config(problem));
        }
        let mut turns = SizedTurns {
            shares: shares(&self.weights),
            given: vec![0; inputs],
            open: vec![true; inputs],
            size: self.size.clone(),
        };
        let Some(((given, open), unfinished)) = cx.restored()? else {
            return Ok((turns, vec![true; inputs]));
        };
        (turns.given, turns.open) = (given, open);
        if [turns.given.len(), turns.open.len()] != [inputs; 2] {
            let message = "the snapshot of a mix does not fit its inputs";
            return Err(Error::config(message));
        }
        Ok((turns, unfinished))
    }
    fn stop(&self) -> Stop {
        self.stop
    }
}

/// Joins streams that must not cycle: [`Stop::FirstExhausted`] or [`Stop::AllExhausted`].
impl<T, F> Join<Vec<T>> for MixBySize<F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn join(&self, inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        join(self, inputs, cx, Some)
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        match self.stop {
            Stop::AllExhausted => inputs
                .iter()
                .try_fold(0, |sum: u64, len| Some(sum.saturating_add((*len)?))),
            // The number depends on the sizes.
            Stop::FirstExhausted | Stop::CycleUntilAll => None,
            Stop::CycleForever => {
                let has_items = |len: &Option<u64>| len.is_some_and(|len| len > 0);
                inputs.iter().any(has_items).then_some(u64::MAX)
            }
        }
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .is_resumable(true)
            .selects(true)
            .role(Role::Scatter)
            .settings(format_args!(
                "{:?}, weights {:?} of sizes",
                self.stop, self.weights
            ))
            .problem(fair_share::problem(&self.weights, false))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Mixes graphs by weight in what `size` says of each item: input `i` has its part of the sum of
    /// sizes, not of the number of items. For documents of a language model, weights of tokens.
    ///
    /// The turn goes to the input that is furthest below its share of what was given, the first of
    /// those that are equally far. Of the sizes given at any point, each input therefore has its part to
    /// within the largest item for each input, from the start or from where an input was left out.
    /// An item of size 0 counts as 1, and one that fails as nothing. The mix uses no random numbers.
    /// Everything else is as in [`mix_until`](Graph::mix_until); a checkpoint holds the sums, and
    /// assumes that the function is the same in a resumed epoch. The weights have to be the same.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::Stop};
    ///
    /// let long = Graph::from_vec(vec!["long document"; 2]);
    /// let short = Graph::from_vec(vec!["tiny"; 6]);
    /// let mixed = Graph::mix_by_size(Stop::AllExhausted, [(long, 1.0), (short, 1.0)], |text| text.len());
    /// let sizes: Vec<usize> = mixed.collect().unwrap().iter().map(|text| text.len()).collect();
    /// assert_eq!(sizes, [13, 4, 4, 4, 4, 13, 4, 4]);
    /// ```
    pub fn mix_by_size<F>(
        stop: Stop,
        inputs: impl IntoIterator<Item = (Graph<T>, f64)>,
        size: F,
    ) -> Graph<T>
    where
        F: Fn(&T) -> usize + Clone + Send + Sync + 'static,
    {
        let (inputs, weights): (Vec<_>, Vec<f64>) = inputs.into_iter().unzip();
        let mix = MixBySize {
            stop,
            ..MixBySize::new(weights, size)
        };
        mix.of(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cycled;
    use super::*;
    use crate::{Checkpoint, DataLoader};

    fn size(n: &u64) -> usize {
        match n / 1000 {
            1 => 100,
            2 => 1 + (n * 7919 % 61) as usize,
            _ => 10 * (n % 3) as usize,
        }
    }

    fn inputs(lengths: [u64; 3]) -> [(Graph<u64>, f64); 3] {
        let weights = [2.0, 1.0, 1.0];
        std::array::from_fn(|input| {
            let from = 1000 * (input as u64 + 1);
            (Graph::range(from..from + lengths[input]), weights[input])
        })
    }

    #[test]
    fn keeps_the_contract_of_joins() {
        let items = || {
            vec![
                (1000..1004).collect(),
                (2000..2009).collect(),
                (3000..3004).collect::<Vec<u64>>(),
            ]
        };
        for stop in [Stop::FirstExhausted, Stop::AllExhausted] {
            let mix = MixBySize {
                stop,
                ..MixBySize::new([2.0, 1.0, 1.0], size)
            };
            crate::testing::check_join(&mix, items());
        }
        let cycled = items().into_iter().map(|items| {
            let rounds = (0..3).map(|_| items.iter().copied().map(Some).chain([None]));
            rounds.flatten().collect()
        });
        let cycled: Vec<Vec<Option<u64>>> = cycled.collect();
        for stop in [Stop::CycleUntilAll, Stop::CycleForever] {
            let mix = MixBySize {
                stop,
                ..MixBySize::new([2.0, 1.0, 1.0], size)
            };
            crate::testing::check_but_len(&Cycled(mix), cycled.clone());
        }
    }

    #[test]
    fn shares_of_the_sizes_are_exact_at_every_point() {
        let mixed = Graph::mix_by_size(Stop::FirstExhausted, inputs([500; 3]), size)
            .collect()
            .unwrap();
        assert!(mixed.len() > 700);
        let mut given = [0.0; 3];
        for n in mixed {
            given[n as usize / 1000 - 1] += size(&n).max(1) as f64;
            let total: f64 = given.iter().sum();
            for (given, weight) in given.iter().zip([0.5, 0.25, 0.25]) {
                assert!((given - weight * total).abs() < 300.0);
            }
        }
    }

    #[test]
    fn the_order_is_pinned() {
        let mixed = Graph::mix_by_size(Stop::AllExhausted, inputs([3, 9, 5]), size)
            .collect()
            .unwrap();
        assert_eq!(mixed[..5], [1000, 2000, 3000, 3001, 3002]);
        assert_eq!(mixed[5..11], [2001, 3003, 3004, 2002, 1001, 1002]);
        assert_eq!(mixed[11..], [2003, 2004, 2005, 2006, 2007, 2008]);
    }

    #[test]
    fn stop_rules_are_those_of_a_mix() {
        let mix = |stop| {
            Graph::mix_by_size(stop, inputs([2, 0, 9]), size)
                .take(40)
                .collect()
                .unwrap()
        };
        assert_eq!(mix(Stop::FirstExhausted), [1000]);
        let mut all = mix(Stop::AllExhausted);
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter((1000..1002).chain(3000..3009)));
        let until = mix(Stop::CycleUntilAll);
        assert!(
            until.len() < 40 && (1000..1002).chain(3000..3009).all(|n| until.contains(&n)),
            "{until:?}"
        );
        assert_eq!(mix(Stop::CycleForever).len(), 40);
        assert!(
            Graph::mix_by_size(Stop::AllExhausted, [(Graph::range(0..1), 0.0)], size)
                .collect()
                .is_err()
        );
        assert!(
            Graph::mix_by_size(Stop::AllExhausted, [], |n: &u8| (*n).into())
                .collect()
                .is_err()
        );
    }

    #[test]
    fn a_stopped_epoch_goes_on_with_the_same_turns() {
        for stop in [
            Stop::FirstExhausted,
            Stop::AllExhausted,
            Stop::CycleUntilAll,
            Stop::CycleForever,
        ] {
            let graph = Graph::mix_by_size(stop, inputs([20, 35, 0]), size).take(200);
            let loader = DataLoader::builder(graph.clone())
                .resumable()
                .build()
                .unwrap();
            let whole = graph.collect().unwrap();
            for at in [0, 1, whole.len() / 2, whole.len()] {
                let mut epoch = loader.epoch(0).blocking();
                assert_eq!(epoch.by_ref().take(at).count(), at);
                let state =
                    Checkpoint::from_bytes(&epoch.checkpoint().unwrap().to_bytes()).unwrap();
                let rest: Vec<u64> = loader
                    .resume(&state)
                    .unwrap()
                    .blocking()
                    .map(Result::unwrap)
                    .collect();
                assert_eq!(rest, whole[at..], "{stop:?}, stopped at {at}");
            }
        }
    }

    #[test]
    fn other_weights_are_refused_on_resume() {
        let loader = |weight| {
            let [first, second, _] = inputs([9, 9, 0]).map(|(graph, _)| graph);
            let graph =
                Graph::mix_by_size(Stop::AllExhausted, [(first, weight), (second, 1.0)], size);
            DataLoader::builder(graph).resumable().build().unwrap()
        };
        let state = loader(1.0).epoch(0).blocking().checkpoint().unwrap();
        let error = loader(2.0).resume(&state).expect_err("other weights");
        assert!(error.to_string().contains("mix_by_size"), "{error}");
    }
}
