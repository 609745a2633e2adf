//! Counts of an epoch's items: the total and the progress.

use burn_core::data::dataloader::Progress;
use datapipes::{Error, Result};

/// Numbers of items that the user gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GivenCounts {
    pub items: Option<usize>,
    pub batch_size: Option<usize>,
}

/// Counts the items of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Count {
    total: usize,
    /// Number of batches in the epoch, if known.
    batches: Option<usize>,
    unit: Unit,
    seen: usize,
    done: usize,
}

/// Number of items that a batch counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Unit {
    /// Number that the batch reports.
    Rows,
    /// Number that the user gave.
    Each(usize),
    /// Share of all items.
    Share,
    /// One: batches are counted.
    #[default]
    Batch,
}

impl Count {
    /// Makes the count of an epoch with this many batches, if known; `rows` is true if a batch
    /// reports its number of items.
    pub fn new(given: GivenCounts, batches: Option<u64>, rows: bool) -> Result<Count> {
        let batches = batches.and_then(|batches| usize::try_from(batches).ok());
        let config = |what: &str| Err(Error::config(what));
        let (total, unit) = match (given.items, given.batch_size, batches) {
            (Some(items), _, _) if rows => (items, Unit::Rows),
            (Some(items), Some(each), _) => (items, Unit::Each(each)),
            (Some(items), None, Some(_)) => (items, Unit::Share),
            (Some(_), None, None) => {
                return config(
                    "burn wants to know how many items a batch has, and this one does not say: give `batch_size`",
                );
            }
            (None, Some(each), Some(batches)) => (
                batches.saturating_mul(each),
                if rows { Unit::Rows } else { Unit::Each(each) },
            ),
            (None, None, Some(batches)) => (batches, Unit::Batch),
            (None, each, None) => {
                let also = if rows || each.is_some() {
                    ""
                } else {
                    ", and `batch_size`"
                };
                return config(&format!(
                    "burn wants to know how many items an epoch has, and the graph does not: give `items`{also}"
                ));
            }
        };
        Ok(Count {
            total,
            batches,
            unit,
            seen: 0,
            done: 0,
        })
    }

    pub fn total(&self) -> usize {
        self.total
    }

    /// Adds one batch, with its number of items if it reports one.
    pub fn add(&mut self, rows: Option<usize>) {
        self.seen = self.seen.saturating_add(1);
        self.done = match (self.unit, rows) {
            (Unit::Rows, Some(rows)) => self.done.saturating_add(rows),
            (Unit::Each(each), _) => self.done.saturating_add(each),
            (Unit::Share, _) => {
                let part = self.total as u128 * self.seen as u128
                    / self.batches.unwrap_or(1).max(1) as u128;
                usize::try_from(part).unwrap_or(usize::MAX)
            }
            (Unit::Batch | Unit::Rows, _) => self.done.saturating_add(1),
        };
    }

    /// Starts after this many batches, in an epoch that is resumed. Their items are estimated if
    /// only batches report them.
    pub fn begin_at(&mut self, batches: u64) {
        let batches = usize::try_from(batches).unwrap_or(usize::MAX);
        self.seen = batches;
        self.done = match (self.unit, self.batches) {
            (Unit::Each(each), _) => each.saturating_mul(batches),
            (Unit::Batch, _) => batches,
            (Unit::Share | Unit::Rows, Some(all)) => {
                let part = self.total as u128 * batches as u128 / all.max(1) as u128;
                usize::try_from(part).unwrap_or(usize::MAX)
            }
            (Unit::Share | Unit::Rows, None) => 0,
        };
    }

    /// Returns the progress. It never exceeds the total, since burn's estimate of the remaining
    /// time would underflow. If the number of batches is known, the progress is complete with the
    /// last batch, and not before: burn's learner then applies gradients that it has accumulated.
    pub fn progress(&self) -> Progress {
        let done = match self.batches {
            Some(batches) if self.seen >= batches => self.total,
            Some(_) => self.done.min(self.total.saturating_sub(1)),
            None => self.done.min(self.total),
        };
        let unit = if self.unit == Unit::Batch {
            "batches"
        } else {
            "items"
        };
        Progress::new(done, self.total, Some(unit.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(items: Option<usize>, batch_size: Option<usize>) -> GivenCounts {
        GivenCounts { items, batch_size }
    }

    /// Returns the progress after each batch, and true if it is complete.
    fn course(mut count: Count, rows: &[usize]) -> Vec<(usize, bool)> {
        let step = |rows: &usize| {
            count.add(Some(*rows));
            let progress = count.progress();
            (progress.items_processed, progress.is_completed())
        };
        rows.iter().map(step).collect()
    }

    #[test]
    fn rows_are_counted_where_batches_have_them() {
        let count = Count::new(given(Some(10), None), None, true).unwrap();
        assert_eq!(
            course(count, &[4, 4, 2]),
            [(4, false), (8, false), (10, true)]
        );
        // Items beyond the given number are not shown.
        assert_eq!(course(count, &[8, 8]), [(8, false), (10, true)]);
    }

    #[test]
    fn the_last_batch_completes_an_epoch_of_known_length_and_no_other() {
        let count = Count::new(given(None, Some(4)), Some(3), true).unwrap();
        assert_eq!(count.total(), 12);
        assert_eq!(
            course(count, &[4, 4, 2]),
            [(4, false), (8, false), (12, true)]
        );
        let count = Count::new(given(Some(5), None), Some(3), true).unwrap();
        assert_eq!(
            course(count, &[4, 4, 2]),
            [(4, false), (4, false), (5, true)]
        );
    }

    #[test]
    fn batches_that_do_not_say_get_a_share_or_a_fixed_number() {
        let count = Count::new(given(Some(10), None), Some(4), false).unwrap();
        assert_eq!(
            course(count, &[0; 4]),
            [(2, false), (5, false), (7, false), (10, true)]
        );
        let count = Count::new(given(Some(10), Some(4)), None, false).unwrap();
        assert_eq!(course(count, &[0; 3]), [(4, false), (8, false), (10, true)]);
        let count = Count::new(given(None, None), Some(2), false).unwrap();
        assert_eq!(course(count, &[9; 2]), [(1, false), (2, true)]);
        assert_eq!(count.progress().unit.as_deref(), Some("batches"));
    }

    #[test]
    fn an_epoch_that_goes_on_counts_what_has_been() {
        let begun = |given, batches, rows| {
            let mut count = Count::new(given, batches, rows).unwrap();
            count.begin_at(2);
            count.add(Some(3));
            let progress = count.progress();
            (progress.items_processed, progress.is_completed())
        };
        assert_eq!(begun(given(Some(10), Some(4)), None, false), (10, true));
        assert_eq!(begun(given(Some(10), None), Some(5), false), (6, false));
        assert_eq!(begun(given(None, None), Some(3), false), (3, true));
        assert_eq!(begun(given(Some(20), None), Some(5), true), (8 + 3, false));
        assert_eq!(begun(given(Some(20), None), None, true), (3, false));
    }

    #[test]
    fn what_is_missing_is_named() {
        let said = |given, batches, rows| Count::new(given, batches, rows).unwrap_err().to_string();
        assert!(said(given(None, Some(4)), None, false).ends_with("give `items`"));
        assert!(said(given(None, None), None, true).ends_with("give `items`"));
        assert!(said(given(None, None), None, false).ends_with("give `items`, and `batch_size`"));
        assert!(said(given(Some(4), None), None, false).contains("give `batch_size`"));
    }

    #[test]
    fn nothing_overflows() {
        let count = Count::new(given(None, Some(usize::MAX)), Some(u64::MAX), true).unwrap();
        assert_eq!(
            course(count, &[usize::MAX, usize::MAX]),
            [(usize::MAX - 1, false); 2]
        );
        let count = Count::new(given(Some(usize::MAX), None), Some(2), false).unwrap();
        assert_eq!(course(count, &[0, 0])[1], (usize::MAX, true));
        assert_eq!(
            course(
                Count::new(given(Some(0), None), Some(0), true).unwrap(),
                &[]
            ),
            []
        );
    }
}
