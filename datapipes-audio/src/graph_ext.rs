//! Methods for graphs of files or audio.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use datapipes::pipes::MapWithRng;
use datapipes::{Graph, Pipe, Result, Rng, Tensor, Weigh, lock};

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
pub trait DecodeAudioGraphExt: Into<Graph<Bytes>> + sealed::Sealed {
    /// Decodes audio files, with the default settings. For other settings, use
    /// `graph.pipe(`[`DecodeAudio`]`)`; for audio in samples, [`decode`](crate::decode()) in
    /// [`try_map`](Graph::try_map).
    ///
    /// Runs on the CPU workers, on many files at once; order is kept.
    ///
    /// # Errors
    /// A file that is no complete audio file is replaced by an error; see [`DecodeAudio::decode`].
    fn decode_audio(self) -> Graph<Audio> {
        self.into().pipe(DecodeAudio::new())
    }
}

impl DecodeAudioGraphExt for Graph<Bytes> {}

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
pub trait AudioGraphExt: Into<Graph<Audio>> + sealed::Sealed {
    /// Makes one channel, the mean of all; see [`Audio::to_mono`].
    fn to_mono(self) -> Graph<Audio> {
        add(self, step("to_mono", |audio, _| Ok(audio.to_mono())))
    }

    /// Changes the sampling rate, whatever the rate of each item is; see [`Resampler`]. The filters for up
    /// to 16 rates are kept, at most 64 MiB.
    ///
    /// # Errors
    /// As [`Resampler::new`] and [`Resampler::resample`], for the item.
    fn resample(self, rate: u32) -> Graph<Audio> {
        let known: Arc<Mutex<HashMap<u32, Arc<Resampler>>>> = Arc::default();
        let settings = format!("to {rate} Hz");
        let step = step("resample", move |audio, _| {
            if audio.rate() == rate {
                return Ok(audio);
            }
            let filters = || lock(&known);
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
        let problem = (rate == 0).then_some(settings.clone());
        add(self, step.settings(settings).problem(problem))
    }

    /// Cuts each item to its first frames, or adds silence; see [`Audio::fit`].
    fn fit(self, frames: usize) -> Graph<Audio> {
        add(
            self,
            of_frames(frames, step("fit", move |audio, _| Ok(audio.fit(frames)))),
        )
    }

    /// Takes frames that begin at a random place; see [`random_part`]. The place depends on seed,
    /// epoch, node and item alone.
    fn random_part(self, frames: usize) -> Graph<Audio> {
        let part = move |audio, rng: &mut Rng| Ok(random_part(&audio, frames, rng));
        add(self, of_frames(frames, step("random_part", part)))
    }

    /// Makes spectrograms, `[mels, frames]` of `f32`; see [`LogMel`].
    ///
    /// # Errors
    /// As [`LogMel::of`], for the item.
    fn log_mel(self, log_mel: LogMel) -> Graph<Tensor> {
        let (settings, log_mel) = (format!("{log_mel:?}"), Arc::new(log_mel));
        let step = step("log_mel", move |audio, _| log_mel.of(&audio));
        add(self, step.settings(settings))
    }

    /// Makes tensors `[channels, frames]` of `f32`; see [`Audio::into_tensor`].
    fn to_tensor(self) -> Graph<Tensor> {
        add(self, step("to_tensor", |audio, _| Ok(audio.into_tensor())))
    }
}

impl AudioGraphExt for Graph<Audio> {}

/// Adds a step, whose outputs weigh what they keep alive.
fn add<Out: Weigh + Send + 'static>(
    graph: impl Into<Graph<Audio>>,
    step: impl Pipe<Audio, Out = Out>,
) -> Graph<Out> {
    graph.into().pipe(step).weighed(Weigh::weigh)
}

fn step<Out, F>(kind: &'static str, f: F) -> MapWithRng<F>
where
    F: Fn(Audio, &mut Rng) -> Result<Out> + Clone + Send + Sync + 'static,
{
    MapWithRng::new(f).kind(kind)
}

/// Sets the number of frames that a step makes, and refuses too many.
fn of_frames<F>(frames: usize, step: MapWithRng<F>) -> MapWithRng<F> {
    let settings = format!("{frames} frames");
    let problem = (frames as u64 > MOST).then_some(settings.clone());
    step.settings(settings).problem(problem)
}

mod sealed {
    /// Graphs that have these methods; more may be added to the traits.
    pub trait Sealed {}

    impl Sealed for datapipes::Graph<bytes::Bytes> {}
    impl Sealed for datapipes::Graph<crate::Audio> {}
}
