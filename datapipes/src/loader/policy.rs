//! The policy for items that fail.

use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::{Error, ErrorKind, Origin, Result};

/// The policy for items that fail.
///
/// To try a failed item again before the policy decides, put [`retry`](crate::Graph::retry) around
/// the pipe.
///
/// A policy covers errors about items. A panic, a wrong configuration or an exhausted budget always
/// ends the epoch.
#[derive(Clone, Debug, Default)]
pub struct OnError(Policy);

#[derive(Clone, Debug, Default)]
enum Policy {
    #[default]
    Fail,
    Skip {
        most: u64,
        kept: usize,
        skipped: Arc<Mutex<Vec<Skipped>>>,
    },
}

/// An item that was skipped.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// Number of the epoch.
    pub epoch: u64,
    /// The node in which it failed.
    pub node: String,
    /// Origin of the item, if the error is about one.
    pub item: Option<Origin>,
    /// Kind of the error.
    pub kind: ErrorKind,
    /// The whole error in one line.
    pub error: String,
}

/// Number of skipped items kept with their names, over all epochs.
const KEPT: usize = 1000;

impl OnError {
    /// Lets the first error reach the consumer, and ends the epoch after it. The default.
    pub fn fail() -> Self {
        OnError(Policy::Fail)
    }

    /// Leaves out items that fail, counts them, and sets them aside by name; the `most + 1`st of an
    /// epoch is an error.
    ///
    /// Batches are filled up with the next items, never shortened. The first thousand skipped items
    /// are kept by [`skipped`](OnError::skipped), so that they can be looked at or tried again
    /// later; all are counted, by node and kind ([`Stats::skips`](super::Stats::skips)). Each is a
    /// warning to `tracing`: the first five of an epoch with the whole error, further ones when
    /// their number has doubled; and at its end, also of an epoch that is dropped, the sum by node
    /// and kind.
    pub fn skip(most: u64) -> Self {
        OnError(Policy::Skip {
            most,
            kept: KEPT,
            skipped: Arc::default(),
        })
    }

    /// Returns the items that were set aside so far, over all epochs of the loaders that use this
    /// policy or a clone of it.
    ///
    /// ```
    /// use datapipes::{DataLoader, Graph, OnError};
    /// let policy = OnError::skip(10);
    /// let graph = Graph::from_vec(vec!["1", "x", "3"]).try_map(|text| text.parse::<u8>());
    /// let loader = DataLoader::builder(graph).on_error(policy.clone()).build()?;
    /// assert_eq!(loader.epoch(0).blocking().collect::<Result<Vec<_>, _>>()?, [1, 3]);
    /// assert_eq!(policy.skipped()[0].error, "try_map: 0:1: invalid digit found in string");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn skipped(&self) -> Vec<Skipped> {
        match &self.0 {
            Policy::Fail => Vec::new(),
            Policy::Skip { skipped, .. } => lock(skipped).clone(),
        }
    }

    /// Returns how many items of an epoch may be left out.
    pub(crate) fn most(&self) -> u64 {
        match self.0 {
            Policy::Fail => 0,
            Policy::Skip { most, .. } => most,
        }
    }

    /// Decides about an error, the `before + 1`st of the epoch: returns it if it is skipped, or
    /// fails with the error for the consumer.
    pub(crate) fn decide(&self, epoch: u64, before: u64, error: Error) -> Result<Error> {
        match &self.0 {
            Policy::Skip {
                most,
                kept,
                skipped,
            } if error.kind().is_about_an_item() => {
                if before >= *most {
                    let message = format!(
                        "{} items failed where {most} may be skipped; the last",
                        before + 1
                    );
                    return Err(Error::new(ErrorKind::Limit, message).with_source(error));
                }
                let mut skipped = lock(skipped);
                if skipped.len() < *kept {
                    skipped.push(Skipped {
                        epoch,
                        node: error.node().unwrap_or_default().to_owned(),
                        item: error.item().cloned(),
                        kind: error.kind(),
                        error: error.to_string(),
                    });
                }
                Ok(error)
            }
            _ => Err(error),
        }
    }
}
