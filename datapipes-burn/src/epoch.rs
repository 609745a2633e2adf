//! One epoch of a loader, read by burn.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use burn_core::data::dataloader::{DataLoaderIterator, Progress};
use burn_core::data::dataset::DatasetError;
use burn_core::tensor::Device;
use datapipes::{Blocking, Checkpoint, Error, Item, Result, lock};

use crate::Waits;
use crate::count::Count;

/// An epoch as the graph makes it, shared with the loader, which can ask for its checkpoint.
pub(crate) struct Reading<B>(Arc<Mutex<Stage<B>>>);

enum Stage<B> {
    Running(Box<Blocking<B>>),
    /// Checkpoint at the end, or the error that prevented it.
    Ended(Result<Checkpoint>),
}

datapipes::clone_fields!(Reading<B> { 0 });

impl<B: Send + 'static> Reading<B> {
    pub fn new(epoch: Blocking<B>) -> Self {
        Reading(Arc::new(Mutex::new(Stage::Running(Box::new(epoch)))))
    }

    /// Returns the checkpoint after the last batch that was taken. Waits for a batch that is being
    /// taken.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        match &*self.stage() {
            Stage::Running(epoch) => epoch.checkpoint(),
            Stage::Ended(Ok(checkpoint)) => Ok(checkpoint.clone()),
            Stage::Ended(Err(error)) => Err(error.copied()),
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(&*self.stage(), Stage::Running(_))
    }

    fn next(&self) -> Option<Result<Item<B>>> {
        match &mut *self.stage() {
            Stage::Running(epoch) => epoch.next_item(),
            Stage::Ended(_) => None,
        }
    }

    /// Drops the epoch, and with it everything that it started.
    fn end(&self) {
        let mut stage = self.stage();
        if let Stage::Running(epoch) = &*stage {
            *stage = Stage::Ended(epoch.checkpoint());
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage<B>> {
        lock(&self.0)
    }
}

/// A batch as tensors.
pub(crate) struct Made<O> {
    pub batch: O,
    /// Number of its items, if batches report it.
    pub rows: Option<usize>,
    /// Time of the consumer that the conversion took: none if it ran ahead.
    pub took: Duration,
}

/// Conversion of a batch, with the number of its items.
pub(crate) type Convert<B, O> = dyn Fn(B, &Device) -> Result<(O, Option<usize>)> + Send + Sync;

/// A function that begins the next epoch.
pub(crate) type Begin<'a, O> = Box<dyn Fn() -> Result<Reading<Made<O>>> + 'a>;

/// One epoch, on the thread that reads it.
pub(crate) struct Batches<'a, O: Send + 'static> {
    /// Begins another epoch where this one ends, if epochs are cut by steps.
    begin: Begin<'a, O>,
    count: Count,
    /// Error instead of batches.
    refused: Option<Error>,
    /// Epoch being read; none once it has ended.
    items: Option<Reading<Made<O>>>,
    /// Number of batches left, if epochs are cut by steps.
    left: Option<u64>,
    has_failed: bool,
    begun: Option<Instant>,
    waits: Waits,
    /// Times of all epochs.
    all_waits: &'a Mutex<Waits>,
}

impl<'a, O: Send + 'static> Batches<'a, O> {
    pub fn new(
        all_waits: &'a Mutex<Waits>,
        begin: Begin<'a, O>,
        count: Count,
        items: Reading<Made<O>>,
        left: Option<u64>,
    ) -> Self {
        Batches {
            begin,
            count,
            refused: None,
            items: Some(items),
            left,
            has_failed: false,
            begun: None,
            waits: Waits::default(),
            all_waits,
        }
    }

    /// Makes an epoch of one error.
    pub fn refused(all_waits: &'a Mutex<Waits>, begin: Begin<'a, O>, why: Error) -> Self {
        Batches {
            begin,
            count: Count::default(),
            refused: Some(why),
            items: None,
            left: None,
            has_failed: true,
            begun: None,
            waits: Waits::default(),
            all_waits,
        }
    }

    /// Returns the next item. If epochs are cut by steps, an epoch that has ended is followed by
    /// the next.
    fn next_item(&mut self) -> Result<Option<Item<Made<O>>>> {
        let Some(items) = self.items.as_mut().filter(|_| self.left != Some(0)) else {
            return Ok(None);
        };
        let mut item = items.next();
        if item.is_none() && self.left.is_some() {
            items.end();
            *items = (self.begin)()?;
            item = items.next();
        }
        item.transpose()
    }

    fn next_batch(&mut self) -> Result<Option<O>> {
        let begun = Instant::now();
        self.begun.get_or_insert(begun);
        let item = self.next_item();
        let took = match &item {
            Ok(Some(item)) => item.took,
            _ => Duration::ZERO,
        };
        self.waits.converted += took;
        self.waits.waited += begun.elapsed().saturating_sub(took);
        let Some(item) = item? else { return Ok(None) };
        let Made { batch, rows, .. } = item.into_inner();
        self.count.add(rows);
        self.left = self.left.map(|left| left - 1);
        self.waits.batches += 1;
        Ok(Some(batch))
    }

    /// Ends everything that the epoch started, unless the next `iter` continues it, and the clock.
    fn finish(&mut self) {
        if let Some(items) = self.items.take()
            && (self.left.is_none() || self.has_failed)
        {
            items.end();
        }
        let Some(begun) = self.begun.take() else {
            return;
        };
        self.waits.epochs = 1;
        self.waits.wall = begun.elapsed();
        let mut all = lock(self.all_waits);
        all.add(&std::mem::take(&mut self.waits));
    }
}

impl<O: Send + 'static> Iterator for Batches<'_, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(why) = self.refused.take() {
            return Some(Err(DatasetError::new(why)));
        }
        self.items.as_ref()?;
        let batch = self.next_batch().map_err(DatasetError::new).transpose();
        self.has_failed |= matches!(batch, Some(Err(_)));
        if !matches!(batch, Some(Ok(_))) {
            self.finish();
        }
        batch
    }
}

impl<O: Send + 'static> DataLoaderIterator<O> for Batches<'_, O> {
    fn progress(&self) -> Progress {
        self.count.progress()
    }
}

impl<O: Send + 'static> Drop for Batches<'_, O> {
    fn drop(&mut self) {
        self.finish();
    }
}
