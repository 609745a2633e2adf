//! Merges the checkpoints of all ranks into one.

use super::compare::compare;
use super::{Checkpoint, Saved};
use crate::{Error, Result};

impl Checkpoint {
    /// Merges the checkpoints of all ranks of a job into one, with which each rank
    /// [resumes](crate::DataLoader::resume): with the same number of ranks, or another.
    ///
    /// - **The same number**: each rank finds its own checkpoint.
    /// - **Fewer, if the old number is a multiple**: any graph. New rank `j` of `m` reads the
    ///   epochs of the old ranks `j`, `j + m`, ... to their ends, a batch of each in turn: the
    ///   batches that would have come, none twice, none left out. With 2 ranks for 8, four steps of
    ///   a new rank correspond to one old step. Each of the old epochs has its own buffers, and
    ///   reads the nodes upstream of the [`sharding_filter`](crate::Graph::sharding_filter) for
    ///   itself. The next epoch is dealt to the new ranks.
    /// - **Any number**, if the global batches do not depend on the number of ranks: between
    ///   `sharding_filter` (or [`Indexed::shard`](crate::Indexed::shard)) and the consumer are only
    ///   one-in-one-out pipes, `prefetch`, and one `batch`, of `G / world` items for some `G`. A
    ///   pipe of your own may be there if it [tells its snapshots](crate::Pipe::snapshot_at). Then
    ///   step `t` of all ranks together is items `t * G` to `(t + 1) * G` of the stream upstream of
    ///   the filter, and the new ranks continue that sequence. For this kind of graph the
    ///   checkpoint of one rank alone is enough, if no rank skipped an item.
    ///
    /// If the graph and the numbers do not allow it, `resume` returns an error. The order of the
    /// checkpoints does not matter. Items are not compared, and could not be.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), with both values, if the checkpoints are not those of all ranks, each
    /// once, of one run at one step; a rank that has nothing left may have had fewer steps.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Indexed, Checkpoint, Uneven};
    /// let loader = |rank, world, batch| {
    ///     let graph = Indexed::range(100).shuffle().shard().fetch().batch(batch);
    ///     let loader = DataLoader::builder(graph).seed(7).workers(0).resumable();
    ///     loader.rank(rank, world).uneven(Uneven::Drop).build().unwrap()
    /// };
    /// let mut checkpoints = Vec::new();
    /// for rank in 0..4 {
    ///     let mut epoch = loader(rank, 4, 2).epoch(0).blocking();
    ///     epoch.by_ref().take(5).collect::<datapipes::Result<Vec<_>>>()?;
    ///     checkpoints.push(epoch.checkpoint()?);
    /// }
    /// let checkpoint = Checkpoint::merge(&checkpoints)?;
    /// // Of 100 samples 40 were seen; two ranks share the others.
    /// let rest = loader(1, 2, 4).resume(&checkpoint)?.blocking();
    /// assert_eq!(rest.collect::<datapipes::Result<Vec<_>>>()?.concat().len(), 30);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn merge(checkpoints: &[Checkpoint]) -> Result<Checkpoint> {
        let Some(first) = checkpoints.first() else {
            return Err(refused("there are none".to_owned()));
        };
        let mut ranks: Vec<Saved> = checkpoints
            .iter()
            .flat_map(|checkpoint| checkpoint.0.iter().cloned())
            .collect();
        ranks.sort_by_key(|saved| saved.rank);
        let world = ranks[0].world;
        if let Some(two) = ranks.windows(2).find(|two| two[0].rank == two[1].rank) {
            return Err(refused(format!("two are of rank {}", two[0].rank)));
        }
        for saved in &ranks {
            saved.same_run(&first.0[0])?;
        }
        if ranks.len() as u64 != world {
            return Err(refused(format!(
                "there are {}, of a job of {world} ranks",
                ranks.len()
            )));
        }
        // Ranks that have nothing left may have had fewer steps than others.
        let mut going = checkpoints
            .iter()
            .filter(|checkpoint| !checkpoint.is_finished());
        if let Some(one) = going.next()
            && let Some(other) = going.find(|other| other.delivered() != one.delivered())
        {
            let [a, b] =
                [one, other].map(|checkpoint| (checkpoint.0[0].rank, checkpoint.delivered()));
            let message = format!(
                "rank {} has {} steps delivered, and rank {} has {}",
                b.0, b.1, a.0, a.1
            );
            return Err(refused(message));
        }
        Ok(Checkpoint::of(ranks))
    }
}

impl Saved {
    fn same_run(&self, other: &Saved) -> Result<()> {
        let (mine, others) = (self.rank, other.rank);
        let pairs = [
            ("ranks", self.world, other.world),
            ("as seed", self.seed, other.seed),
            ("as epoch", self.epoch, other.epoch),
        ];
        if let Some((what, is, was)) = pairs.into_iter().find(|(_, is, was)| is != was) {
            return Err(refused(format!(
                "rank {mine} has {is} {what}, and rank {others} has {was}"
            )));
        }
        let mut differences = compare(&other.nodes, &self.nodes, |_| None);
        if self.uneven != other.uneven {
            differences.push(format!(
                "uneven was {:?}, and is {:?}",
                other.uneven, self.uneven
            ));
        }
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
    Error::config(format!("the checkpoints cannot be merged: {why}"))
}
