//! The ranks that an epoch reads: its own, or several in turn, if it continues epochs begun by more
//! ranks.

use std::sync::Arc;
use std::task::{self, Poll, ready};

use super::Checkpoint;
use super::batches::Batches;
use super::checkpoint::Progress;
use super::latest::{Latest, Runs};
use super::left::Left;
use super::rank_epoch::{RankEpoch, Stand, Start};
use crate::run::DevicePrefetchGauge;
use crate::{Item, Result};

pub(super) struct Ranks<T> {
    /// The rank that gave the last item, or gives the next one.
    at: RankEpoch<T>,
    /// The other ranks that are read in turn.
    others: Vec<RankEpoch<T>>,
    /// Number of the rank that gave the last item.
    last: usize,
    number: u64,
    runs: Runs,
    latest: Arc<Latest>,
    has_begun: bool,
}

impl<T: Send + 'static> Ranks<T> {
    pub fn new(mut start: Start) -> Self {
        let ranks = std::mem::take(&mut start.ranks).into_iter();
        let mut ranks: Vec<_> = ranks
            .map(|(share, resume)| RankEpoch::new(&start, share, resume))
            .collect();
        let at = ranks.remove(0);
        let last = at.share.rank.index;
        Ranks {
            at,
            others: ranks,
            last,
            number: start.number,
            runs: start.runs,
            latest: start.latest,
            has_begun: false,
        }
    }

    /// Returns true if there are several, which are read in turn.
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns an item that is ready, if there is one rank.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<Result<Item<T>>> {
        self.at.pop_ready()
    }

    fn all(&self) -> impl Iterator<Item = &RankEpoch<T>> {
        std::iter::once(&self.at).chain(&self.others)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut RankEpoch<T>> {
        std::iter::once(&mut self.at).chain(&mut self.others)
    }

    /// Selects the rank that has given least, the first of several; a rank with nothing left comes
    /// last. All ranks thus give equally many, one after the other, wherever they stood.
    fn turn(&mut self) {
        let key = |epoch: &RankEpoch<T>| (epoch.is_done(), epoch.delivered, epoch.share.rank.index);
        if let Some(least) = self.others.iter_mut().min_by_key(|other| key(other))
            && key(least) < key(&self.at)
        {
            std::mem::swap(least, &mut self.at);
        }
    }
}

impl<T: Send + 'static> Batches<T> for Ranks<T> {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Option<Result<Item<T>>>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.latest.set(self.number, self.runs.clone());
        }
        loop {
            self.turn();
            let polled = ready!(self.at.poll_item(cx));
            match &polled {
                Some(Ok(_)) => self.last = self.at.share.rank.index,
                Some(Err(_)) => self.others.iter_mut().for_each(RankEpoch::end),
                None if self.others.iter().all(RankEpoch::is_done) => {}
                // The others go on.
                None => continue,
            }
            return Poll::Ready(polled);
        }
    }

    fn checkpoint(&self, back: bool) -> Result<Checkpoint> {
        let saved = self
            .all()
            .map(|epoch| epoch.saved(back && epoch.share.rank.index == self.last));
        Ok(Checkpoint::of(saved.collect::<Result<_>>()?))
    }

    fn left(&self) -> Left {
        self.others
            .iter()
            .fold(self.at.left(), |left, rank| left.and(rank.left()))
    }

    fn has_last(&self) -> bool {
        self.all()
            .any(|epoch| epoch.share.rank.index == self.last && epoch.taken)
    }

    fn keep_last(&mut self) {
        self.all_mut().for_each(|epoch| epoch.taken = false);
    }

    fn end_without_last(&mut self, drained: bool) {
        let (back, last) = (self.has_last(), self.last);
        self.all_mut()
            .for_each(|epoch| epoch.end_at(back && epoch.share.rank.index == last, drained));
    }

    fn will_block(&mut self) {
        self.all_mut().for_each(|epoch| epoch.blocking = true);
    }

    fn will_agree(&mut self) {
        self.all_mut().for_each(|epoch| epoch.agreed = true);
    }

    fn hand_over(&mut self, gauge: Option<&Arc<DevicePrefetchGauge>>) -> Vec<Stand> {
        self.all_mut().map(|epoch| epoch.hand_over(gauge)).collect()
    }

    fn progress(&self) -> Option<Progress> {
        Some(self.at.progress())
    }
}
