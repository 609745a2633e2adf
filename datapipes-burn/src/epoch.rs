//! One epoch of a loader, in burn's hands.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use burn_core::data::dataloader::{DataLoaderIterator, Progress};
use burn_core::data::dataset::DatasetError;
use datapipes::{Item, Result};

use crate::count::Count;
use crate::{BurnLoader, Waits};

/// The batches of an epoch, still as the graph makes them.
pub(crate) type Items<'a, B> = Box<dyn Iterator<Item = Result<Item<B>>> + 'a>;

/// One epoch, on the thread that reads it.
pub(crate) struct Batches<'a, B, O> {
    from: &'a BurnLoader<B, O>,
    count: Count,
    /// None once it has ended.
    items: Option<Items<'a, B>>,
    begun: Option<Instant>,
    waits: Waits,
}

impl<'a, B, O> Batches<'a, B, O> {
    pub fn new(from: &'a BurnLoader<B, O>, count: Count, items: Items<'a, B>) -> Self {
        Batches { from, count, items: Some(items), begun: None, waits: Waits::default() }
    }

    fn next_batch(&mut self) -> Result<Option<O>> {
        let begun = Instant::now();
        self.begun.get_or_insert(begun);
        let item = self.items.as_mut().and_then(Iterator::next);
        let arrived = Instant::now();
        self.waits.waited += arrived - begun;
        let Some(item) = item else { return Ok(None) };
        let (batch, origin) = item?.into_parts();
        let rows = self.from.rows.map(|rows| rows(&batch));
        let made = (self.from.convert)(batch, &self.from.device);
        self.waits.converted += arrived.elapsed();
        let made = made.map_err(|error| error.at(&Arc::from("into burn")).of(&origin))?;
        self.count.add(rows);
        self.waits.batches += 1;
        Ok(Some(made))
    }

    /// Ends everything that the epoch started, and the clock.
    fn finish(&mut self) {
        self.items = None;
        let Some(begun) = self.begun.take() else { return };
        self.waits.epochs = 1;
        self.waits.wall = begun.elapsed();
        let mut all = self.from.waits.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(&std::mem::take(&mut self.waits));
    }
}

impl<B, O> Iterator for Batches<'_, B, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.items.as_ref()?;
        let batch = self.next_batch().map_err(DatasetError::new).transpose();
        if !matches!(batch, Some(Ok(_))) {
            self.finish();
        }
        batch
    }
}

impl<B, O> DataLoaderIterator<O> for Batches<'_, B, O> {
    fn progress(&self) -> Progress {
        self.count.progress()
    }
}

impl<B, O> Drop for Batches<'_, B, O> {
    fn drop(&mut self) {
        self.finish();
    }
}
