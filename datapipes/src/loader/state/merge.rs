//! The states of all ranks as one.

use std::sync::Arc;

use super::compare::compare;
use super::{Saved, State};
use crate::{Error, ErrorKind, Result};

impl State {
    /// The states of all ranks of a job as one, from which any number of ranks can
    /// [resume](crate::DataLoader::resume), each with this same state.
    ///
    /// That takes a graph whose global batches do not depend on the number of ranks: between
    /// [`sharding_filter`](crate::Graph::sharding_filter) (or [`Indexed::shard`](crate::Indexed::shard)) and the consumer
    /// stand only pipes that give one item for each, `prefetch`, and one `batch`, of `G / world` items for some `G`. Then
    /// step `t` of all ranks together is items `t * G` to `(t + 1) * G` of the stream above the filter. If the
    /// graph is another, `resume` says so. For such a graph the state of one rank alone does as well, if no rank
    /// skipped an item.
    ///
    /// The order of the states does not matter. Items are not compared, nor could they be.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], with both values, if they are not those of all ranks, each once, of one run at one step; or
    /// if items were skipped, since ranks then have had parts of different lengths.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Indexed, State, Uneven};
    /// let loader = |rank, world, batch| {
    ///     let graph = Indexed::range(100).shuffle().shard().fetch().batch(batch);
    ///     let loader = DataLoader::builder(graph).seed(7).workers(0).resumable();
    ///     loader.rank(rank, world).uneven(Uneven::Drop).build().unwrap()
    /// };
    /// let mut states = Vec::new();
    /// for rank in 0..4 {
    ///     let mut epoch = loader(rank, 4, 2).epoch(0).blocking();
    ///     epoch.by_ref().take(5).collect::<datapipes::Result<Vec<_>>>()?;
    ///     states.push(epoch.state()?);
    /// }
    /// let state = State::merge(&states)?;
    /// // Of 100 samples 40 were seen; two ranks share the others.
    /// let rest = loader(1, 2, 4).resume(&state)?.blocking();
    /// assert_eq!(rest.collect::<datapipes::Result<Vec<_>>>()?.concat().len(), 30);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn merge(states: &[State]) -> Result<State> {
        let Some(State(first)) = states.first() else {
            return Err(refused("there are none".to_owned()));
        };
        if states.len() as u64 != first.world {
            return Err(refused(format!("there are {}, of a job of {} ranks", states.len(), first.world)));
        }
        let mut seen = vec![false; states.len()];
        for State(state) in states {
            let place = state.rank.and_then(|rank| usize::try_from(rank).ok());
            match (state.rank, place.and_then(|at| seen.get_mut(at))) {
                (None, _) => return Err(refused("one of them is of several ranks already".to_owned())),
                (Some(rank), None) => {
                    return Err(refused(format!("one is of rank {rank} of {}", state.world)));
                }
                (Some(rank), Some(true)) => return Err(refused(format!("two are of rank {rank}"))),
                (Some(_), Some(seen)) => *seen = true,
            }
            state.same_step(first)?;
        }
        // If one has seen the end and another has not, what is left of all is the end.
        let State(open) = states.iter().find(|state| !state.is_finished()).unwrap_or(&states[0]);
        Ok(State(Arc::new(Saved { rank: None, ..(**open).clone() })))
    }
}

impl Saved {
    fn same_step(&self, other: &Saved) -> Result<()> {
        let rank = |saved: &Saved| saved.rank.unwrap_or(0);
        let [mine, others] = [rank(self), rank(other)];
        let pairs = [
            ("ranks", self.world, other.world),
            ("as seed", self.seed, other.seed),
            ("as epoch", self.epoch, other.epoch),
            ("steps delivered", self.delivered, other.delivered),
        ];
        if let Some((what, is, was)) = pairs.into_iter().find(|(_, is, was)| is != was) {
            return Err(refused(format!("rank {mine} has {is} {what}, and rank {others} has {was}")));
        }
        if self.skipped > 0 {
            return Err(refused(format!(
                "rank {mine} skipped {} items, so that ranks are not at one place of the data",
                self.skipped
            )));
        }
        let differences = compare(&other.nodes, &self.nodes, false);
        match differences.is_empty() {
            true => Ok(()),
            false => Err(refused(format!(
                "ranks {others} and {mine} have different graphs: {}",
                differences.join("; ")
            ))),
        }
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Config, format!("the states cannot be merged: {why}"))
}
