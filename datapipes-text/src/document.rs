//! Documents: sequences of token ids, with a target for each token if it is another one.

use std::ops::Range;
use std::sync::Arc;

use datapipes::{Weigh, Wire};

/// A sequence of token ids, which can be packed.
///
/// Implement it for a sample type of your own to pack it as it is.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_text::{Document, Pack, prelude::*};
///
/// struct Page { ids: Vec<u32>, url: String }
///
/// impl Document for Page {
///     fn ids(&self) -> &[u32] {
///         &self.ids
///     }
/// }
///
/// let pages = Graph::range(1..4).map(|n| Page { ids: vec![n as u32; n as usize], url: n.to_string() });
/// let rows = pages.pack(Pack::concat(3)).collect()?;
/// assert_eq!(rows[0].ids, [1, 2, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait Document: Send + 'static {
    /// Returns the token ids.
    fn ids(&self) -> &[u32];

    /// Returns a label for each of the [`ids`](Document::ids): the id that the model should give at
    /// that place. The label of a token that is not trained, such as a prompt's, is −100, or the
    /// one that [`Pack::ignore`](crate::Pack::ignore) sets. `None`, the default, stands for the ids
    /// themselves.
    fn labels(&self) -> Option<&[i64]> {
        None
    }
}

macro_rules! lists {
    ($($list:ty)*) => {$(
        impl Document for $list {
            fn ids(&self) -> &[u32] {
                self
            }
        }
    )*};
}

lists!(Vec<u32> Box<[u32]> Arc<[u32]>);

/// The tokens of a text: what a tokenizer returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Wire)]
pub struct Tokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Labels of the tokens, in place and not shifted; see [`Document::labels`].
    pub labels: Option<Vec<i64>>,
    /// Bytes of the text that each token stands for, if the tokenizer was asked for them. A token
    /// that is not in the text has an empty range.
    pub offsets: Option<Vec<Range<u32>>>,
}

impl Tokens {
    /// Keeps the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        if let Some(labels) = &mut self.labels {
            labels.truncate(len);
        }
        if let Some(offsets) = &mut self.offsets {
            offsets.truncate(len);
        }
    }
}

impl From<Vec<u32>> for Tokens {
    fn from(ids: Vec<u32>) -> Self {
        Tokens {
            ids,
            ..Tokens::default()
        }
    }
}

impl Document for Tokens {
    fn ids(&self) -> &[u32] {
        &self.ids
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
}

impl Weigh for Tokens {
    fn weigh(&self) -> usize {
        let offsets = self.offsets.as_ref().map_or(0, Vec::capacity);
        let labels = self.labels.as_ref().map_or(0, Vec::capacity);
        size_of::<Self>()
            + 4 * self.ids.capacity()
            + size_of::<i64>() * labels
            + size_of::<Range<u32>>() * offsets
    }
}
