//! Files that are read part by part, each part by ranges of its own.

use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Context, Result, opaque_debug};

use super::framing::Block;
use crate::FileRef;

/// Reads files of a format that tells where its parts are, as Parquet has row groups.
pub struct ByParts<T>(pub(super) Arc<dyn Parted<T>>);

opaque_debug!(ByParts<T> {});

impl<T> ByParts<T> {
    #[cfg(feature = "parquet")]
    pub(super) fn new(parted: impl Parted<T> + 'static) -> Self {
        ByParts(Arc::new(parted))
    }
}

/// Finds the parts of files of a format, for [`ByParts`].
#[async_trait]
pub(super) trait Parted<T>: Send + Sync {
    /// Finds the parts of a file; `None` for a file that has to be read whole, where the format
    /// also finds out what is wrong with it.
    async fn open(&self, file: &FileRef, cx: &Context) -> Result<Option<Arc<dyn Parts<T>>>>;
}

/// The parts of a file.
#[async_trait]
pub(super) trait Parts<T>: Send + Sync {
    /// Returns the version of the content, if it is known; no other is read.
    fn version(&self) -> Option<&String>;

    fn len(&self) -> usize;

    /// Returns the number of bytes that are read for a part.
    fn size(&self, part: usize) -> u64;

    /// Reads a part.
    async fn read(self: Arc<Self>, part: usize) -> Result<Block<T>>;
}
