//! Opens archives and groups their members, as one step that spreads over the archives.

use datapipes::{Context, Facts, Items, Pipe};

use super::{Sample, Samples, Untar};
use crate::File;

/// Opens archives and groups their members; see [`FileGraph::untar_samples`](crate::FileGraph::untar_samples).
///
/// It is [`Untar`] followed by [`Samples`]. Since a sample never spans two archives, the two together distribute over
/// archives, and so may run on many of them at once.
#[derive(Clone, Debug, Default)]
pub struct UntarSamples {
    untar: Untar,
    samples: Samples,
}

impl UntarSamples {
    /// With the default settings of both.
    pub fn new() -> Self {
        UntarSamples::default()
    }

    /// With settings of one's own.
    pub fn of(untar: Untar, samples: Samples) -> Self {
        UntarSamples { untar, samples }
    }
}

impl Pipe<File> for UntarSamples {
    type Out = Sample;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<Sample> {
        self.samples.apply(self.untar.apply(input, cx), cx)
    }
    fn is_shardable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::any_order().with_settings(Pipe::facts(&self.samples).settings)
    }
    fn weigh(&self, sample: &Sample) -> usize {
        self.samples.weigh(sample)
    }
}
