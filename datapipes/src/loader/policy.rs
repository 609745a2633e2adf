//! The policy for items that fail.

use std::collections::VecDeque;

use crate::{Error, Result, mix_bits, stable_hash};

/// Number of failures that are remembered to recognize copies of them. Outputs of a node run apart by
/// fewer items than this, unless their buffer was made larger.
const REMEMBERED: usize = 4096;

/// Errors that are copies of one failure, as outputs of a node give them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Copies {
    /// Number of errors that were skipped and not counted.
    pub uncounted: u64,
    /// Keys of the last failures that are [counted once](Error::counted_once), in 48 bits, which all
    /// formats hold.
    pub counted: VecDeque<u64>,
}

impl Copies {
    /// Returns true if an error counts: it is no copy of one that was counted.
    pub(crate) fn counts(&self, error: &Error) -> bool {
        !error.is_echo() && key(error).is_none_or(|key| !self.counted.contains(&key))
    }

    /// Adds an error that was skipped.
    pub(crate) fn add(&mut self, error: &Error) {
        if !self.counts(error) {
            self.uncounted += 1;
        } else if let Some(key) = key(error) {
            if self.counted.len() == REMEMBERED {
                self.counted.pop_front();
            }
            self.counted.push_back(key);
        }
    }
}

/// Returns the key of the failure of which an error may be a copy.
fn key(error: &Error) -> Option<u64> {
    let (node, item) = error.node().zip(error.item())?;
    let key = mix_bits(stable_hash(node.as_bytes()) ^ item.key()) >> 16;
    error.is_counted_once().then_some(key)
}

/// The policy for items that fail.
///
/// To try a failed item again before the policy decides, put [`retry`](crate::Graph::retry) around
/// the pipe.
///
/// A policy covers errors about items. A panic, a wrong configuration and an exhausted budget always
/// end the epoch, and so does an error that is [fatal](Error::fatal), since an unknown number of items
/// is lost: a listing that breaks off or finds nothing, a scan of a table or a plan of packed rows that
/// breaks off, a source or a pipe that fails as a whole ([`Items::fail`](crate::Items::fail)), inputs
/// of a [strict zip](crate::pipes::Zip::strict) that differ in length, items that do not divide among
/// ranks where that is an [error](crate::Uneven::Error). A file
/// counts as one item, whatever was left in it when it could not be read on, and so does a folder within
/// a listing that cannot be read. [`Stats`](super::Stats) lists the skipped items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnError {
    /// Number of items that may be left out.
    most: Option<u64>,
}

impl OnError {
    /// Lets the first error reach the consumer, and ends the epoch after it. The default.
    ///
    /// Items that steps hold when it comes, as those of an unfinished batch, are not delivered, also if
    /// it is an error that no policy skips: without the error the epoch has no such short batch. A [checkpoint](crate::Blocking::checkpoint) taken after it has the place before these
    /// items, so that they come in the epoch that is resumed there.
    pub fn fail() -> Self {
        OnError { most: None }
    }

    /// Leaves out items that fail, counts them, and sets them aside by name; the `most + 1`st of an
    /// epoch is an error.
    ///
    /// Batches are filled up with the next items, never shortened. The first thousand skipped items
    /// of an epoch are kept ([`Stats::skipped_items`](super::Stats::skipped_items)), so that they
    /// can be looked at or tried again later; all are counted, by node and kind
    /// ([`Stats::skips`](super::Stats::skips)). Skipped items are warnings of `tracing`: the first
    /// five of an epoch with the whole error, further ones each time their number has doubled. At
    /// the end of the epoch, also of one that is dropped, a warning has the sums by node and kind.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, OnError};
    ///
    /// let graph = Graph::from_vec(vec!["1", "x", "3"]).try_map(|text| text.parse::<u8>());
    /// let loader = DataLoader::builder(graph).on_error(OnError::skip(10)).build()?;
    /// assert_eq!(loader.epoch(0).blocking().collect::<Result<Vec<_>, _>>()?, [1, 3]);
    ///
    /// let stats = loader.stats().expect("an epoch has begun");
    /// assert_eq!(stats.skipped, 1);
    /// assert_eq!(stats.skipped_items[0].error, "try_map: 0:1: invalid digit found in string");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn skip(most: u64) -> Self {
        OnError { most: Some(most) }
    }

    /// Returns how many items of an epoch may be left out.
    pub(crate) fn most(&self) -> u64 {
        self.most.unwrap_or(0)
    }

    /// Decides about an error, the `before + 1`st of the epoch if it `counts`: returns it if it is
    /// skipped, or fails with the error for the consumer.
    pub(crate) fn decide(&self, before: u64, counts: bool, error: Error) -> Result<Error> {
        match self.most {
            Some(most) if error.is_about_an_item() => {
                if before < most || !counts {
                    return Ok(error);
                }
                let message = format!(
                    "{} items failed where {most} may be skipped; the last",
                    before + 1
                );
                Err(Error::limit(message).with_source(error))
            }
            _ => Err(error),
        }
    }
}
