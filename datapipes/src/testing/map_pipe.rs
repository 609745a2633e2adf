//! Checks of the contract of data that is read by index.

use std::fmt::Debug;

use super::{block_on, runtime};
use crate::MapPipe;

/// Checks that data keeps the contract of [`MapPipe`]. Ten or some more samples show most; all are read
/// three times.
///
/// - *The same again*: a sample, or its error, is the same when it is read again, in any order.
/// - *Many at once*: `get_many` answers each index, in their order, and as `get` does, also if an index
///   comes twice; no index has no answer.
/// - *Length*: it does not change.
///
/// # Panics
/// Panics if one of these properties does not hold; the message names it.
///
/// # Examples
/// ```
/// use datapipes::{MapPipe, Result, async_trait, testing};
///
/// struct Squares(u64);
///
/// #[async_trait]
/// impl MapPipe for Squares {
///     type Out = u64;
///     fn len(&self) -> u64 { self.0 }
///     async fn get(&self, index: u64) -> Result<u64> { Ok(index * index) }
/// }
/// testing::check_map_pipe(&Squares(10));
/// ```
pub fn check_map_pipe<M>(data: &M)
where
    M: MapPipe<Out: PartialEq + Debug> + ?Sized,
{
    let len = data.len();
    let backwards: Vec<u64> = (0..len).rev().chain(0..len).collect();
    let _entered = runtime().enter();
    let (alone, many, none) = block_on(async {
        let mut alone = Vec::new();
        for index in 0..len {
            alone.push(data.get(index).await);
        }
        (
            alone,
            data.get_many(&backwards).await,
            data.get_many(&[]).await,
        )
    });
    let said = |sample: &crate::Result<M::Out>| sample.as_ref().err().map(ToString::to_string);
    assert_eq!(many.len(), backwards.len(), "`get_many` answers each index");
    assert!(none.is_empty(), "`get_many` of no index has no answer");
    for (&index, sample) in backwards.iter().zip(&many) {
        let first = &alone[index as usize];
        assert_eq!(
            (sample.as_ref().ok(), said(sample)),
            (first.as_ref().ok(), said(first)),
            "sample {index} by `get_many`, and before that by `get`"
        );
    }
    assert_eq!(data.len(), len, "the length changed");
}
