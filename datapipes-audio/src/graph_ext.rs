//! Methods for graphs of files or audio.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use datapipes::{Arity, Context, Graph, Hints, Items, Pipe, Result, Rng, Tensor, Weigh};

use crate::audio::MOST;
use crate::{Audio, DecodeAudio, LogMel, Resampler, random_part};

/// Number of rates whose filters a step keeps.
const RATES: usize = 16;

/// Decoding, for a graph of files. Import it with the [`prelude`](crate::prelude).
///
/// # Examples
/// ```
/// # let wav = b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x04\0\0\0\0\x40\0\xc0";
/// use datapipes_audio::prelude::*;
/// let files = datapipes::Graph::from_vec(vec![bytes::Bytes::from_static(wav)]);
/// assert_eq!(files.decode_audio().collect()?[0].frames(), 2);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait DecodeAudioGraphExt: sealed::Sealed {
    /// Decodes audio files, with the default settings. For other settings, use
    /// `graph.pipe(`[`DecodeAudio`]`)`; for audio in samples, [`decode`](crate::decode()) in
    /// [`try_map`](Graph::try_map).
    ///
    /// Runs on the CPU workers, on many files at once; order is kept.
    ///
    /// # Errors
    /// A file that is no complete audio file is replaced by an error; see [`DecodeAudio::decode`].
    fn decode_audio(self) -> Graph<Audio>;
}

impl DecodeAudioGraphExt for Graph<Bytes> {
    fn decode_audio(self) -> Graph<Audio> {
        self.pipe(DecodeAudio::new())
    }
}

/// Transforms, for a graph of [`Audio`]. Import it with the [`prelude`](crate::prelude).
///
/// All run on the CPU workers, on many recordings at once, and keep order; neighbouring steps run as
/// one segment. A wrong setting is reported when the loader is built. For audio that is a field of a
/// sample, use the methods of [`Audio`] in [`try_map`](Graph::try_map).
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_audio::prelude::*;
///
/// let stereo = Audio::new(8_000, 2, vec![0.25; 2 * 8_000])?;
/// let graph = Graph::from_vec(vec![stereo]).to_mono().random_part(4_000).resample(16_000);
/// assert_eq!(graph.fit(9_000).to_tensor().collect()?[0].shape(), [1, 9_000]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub trait AudioGraphExt: sealed::Sealed {
    /// Makes one channel, the mean of all; see [`Audio::to_mono`].
    fn to_mono(self) -> Graph<Audio>;

    /// Changes the sampling rate, whatever the rate of each item is; see [`Resampler`]. The filters for up
    /// to 16 rates are kept, at most 64 MiB.
    ///
    /// # Errors
    /// As [`Resampler::new`] and [`Resampler::resample`], for the item.
    fn resample(self, rate: u32) -> Graph<Audio>;

    /// Cuts each item to its first frames, or adds silence; see [`Audio::fit`].
    fn fit(self, frames: usize) -> Graph<Audio>;

    /// Takes frames that begin at a random place; see [`random_part`]. The place depends on seed,
    /// epoch, node and item alone.
    fn random_part(self, frames: usize) -> Graph<Audio>;

    /// Makes spectrograms, `[mels, frames]` of `f32`; see [`LogMel`].
    ///
    /// # Errors
    /// As [`LogMel::of`], for the item.
    fn log_mel(self, log_mel: LogMel) -> Graph<Tensor>;

    /// Makes tensors `[channels, frames]` of `f32`; see [`Audio::into_tensor`].
    fn to_tensor(self) -> Graph<Tensor>;
}

impl AudioGraphExt for Graph<Audio> {
    fn to_mono(self) -> Graph<Audio> {
        self.pipe(Step::new("to_mono", "", |audio: Audio, _| {
            Ok(audio.to_mono())
        }))
    }

    fn resample(self, rate: u32) -> Graph<Audio> {
        let known: Mutex<HashMap<u32, Arc<Resampler>>> = Mutex::default();
        let settings = format!("to {rate} Hz");
        let step = Step::new("resample", settings, move |audio: Audio, _| {
            if audio.rate() == rate {
                return Ok(audio);
            }
            let filters = || known.lock().unwrap_or_else(PoisonError::into_inner);
            let filter = filters().get(&audio.rate()).cloned();
            let filter = match filter {
                Some(filter) => filter,
                None => {
                    // Others do not wait while it is computed.
                    let filter = Arc::new(Resampler::new(audio.rate(), rate)?);
                    let mut filters = filters();
                    if filters.len() == RATES {
                        filters.clear();
                    }
                    filters.insert(audio.rate(), filter.clone());
                    filter
                }
            };
            filter.resample(&audio)
        });
        self.pipe(step.check(rate > 0))
    }

    fn fit(self, frames: usize) -> Graph<Audio> {
        let settings = format!("{frames} frames");
        let fit = move |audio: Audio, _: &mut Rng| Ok(audio.fit(frames));
        self.pipe(Step::new("fit", settings, fit).check(frames as u64 <= MOST))
    }

    fn random_part(self, frames: usize) -> Graph<Audio> {
        let settings = format!("{frames} frames");
        let part = move |audio: Audio, rng: &mut Rng| Ok(random_part(&audio, frames, rng));
        self.pipe(Step::new("random_part", settings, part).check(frames as u64 <= MOST))
    }

    fn log_mel(self, log_mel: LogMel) -> Graph<Tensor> {
        let settings = format!("{log_mel:?}");
        let of = move |audio: Audio, _: &mut Rng| log_mel.of(&audio);
        self.pipe(Step::new("log_mel", settings, of))
    }

    fn to_tensor(self) -> Graph<Tensor> {
        self.pipe(Step::new("to_tensor", "", |audio: Audio, _| {
            Ok(audio.into_tensor())
        }))
    }
}

mod sealed {
    /// Graphs that have these methods; more may be added to the traits.
    pub trait Sealed {}

    impl Sealed for datapipes::Graph<bytes::Bytes> {}
    impl Sealed for datapipes::Graph<crate::Audio> {}
}

/// A one-to-one step of audio.
struct Step<F> {
    name: &'static str,
    settings: String,
    problem: Option<String>,
    f: Arc<F>,
}

impl<F> Step<F> {
    fn new<Out>(name: &'static str, settings: impl Into<String>, f: F) -> Self
    where
        F: Fn(Audio, &mut Rng) -> Result<Out> + Send + Sync + 'static,
    {
        let (settings, f) = (settings.into(), Arc::new(f));
        Step {
            name,
            settings,
            problem: None,
            f,
        }
    }

    /// Refuses the graph unless its settings are right.
    fn check(self, is_right: bool) -> Self {
        let problem = (!is_right).then(|| self.settings.clone());
        Step { problem, ..self }
    }
}

impl<Out: Weigh + Send + 'static, F> Pipe<Audio> for Step<F>
where
    F: Fn(Audio, &mut Rng) -> Result<Out> + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<Audio>, cx: &Context) -> Items<Out> {
        let (f, context) = (self.f.clone(), cx.clone());
        input.each(cx, move |item| {
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|audio| f(audio, &mut rng)))
        })
    }
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .arity(Arity::One)
            .settings(&self.settings)
            .problem(self.problem.as_deref())
    }
    fn weigh(&self, item: &Out) -> Option<usize> {
        Some(item.weigh())
    }
}
