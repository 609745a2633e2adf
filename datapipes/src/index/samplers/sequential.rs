//! A sampler of every sample, in order.

use crate::Rng;
use crate::index::{Drawn, Draws, Sampler};

/// Draws every sample, in order.
///
/// # Examples
/// ```
/// use datapipes::index::{SamplerExt, Sequential};
/// assert_eq!(Sequential.indices(3).collect()?, [0, 1, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequential;

impl Sampler for Sequential {
    fn len(&self, len: u64) -> u64 {
        len
    }
    fn start(&self, _: u64, _: &mut Rng) -> Draws {
        Box::new(Drawn::once)
    }
    fn name(&self) -> String {
        "index_sequential".to_owned()
    }
}
