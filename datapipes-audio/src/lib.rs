//! Audio for `datapipes`: decoding, resampling and log-mel spectrograms, as plain functions and as
//! steps of a graph.
//!
//! - **Decode** WAV, AIFF, FLAC, MP3 and Ogg Vorbis, or only some seconds of a long recording:
//!   [`decode()`], [`DecodeAudio`]; the header alone: [`AudioInfo`]. Opus, AAC and WMA are not read.
//!   [`DecodeAudio::decode`] says which damage is an error.
//! - **Transform** an [`Audio`]: [`Audio::to_mono`], [`Audio::resample`], [`Audio::fit`],
//!   [`random_part`]; to a tensor by [`Audio::into_tensor`].
//! - **Features**: [`LogMel`] has those of Whisper, and others.
//! - **In a graph**, the methods of [`DecodeAudioGraphExt`] and [`AudioGraphExt`] do the same.
//!
//! ```
//! use bytes::Bytes;
//! use datapipes::{Graph, Tensor};
//! use datapipes_audio::prelude::*;
//!
//! # let mut wav = b"RIFF\x24\x7d\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\x7d\0\0".to_vec();
//! # wav.extend((0..16_000_i32).flat_map(|n| ((n % 100) as i16 * 99).to_le_bytes()));
//! // Two seconds at 8 kHz, to the input of Whisper.
//! let files: Graph<Bytes> = Graph::from_vec(vec![Bytes::from(wav)]);
//! let features: Graph<Tensor> = files
//!     .decode_audio()
//!     .to_mono()
//!     .resample(16_000)
//!     .fit(30 * 16_000)
//!     .log_mel(LogMel::whisper(80)?);
//! assert_eq!(features.collect()?[0].shape(), [80, 3000]);
//! # Ok::<(), datapipes::Error>(())
//! ```
//!
//! Recordings of different lengths are cut to one by [`fit`](AudioGraphExt::fit), or padded in their
//! batch by [`Graph::padded_batch`](datapipes::Graph::padded_batch).

mod audio;
mod decode;
mod graph_ext;
mod log_mel;
mod resample;

pub use crate::audio::{Audio, random_part};
pub use crate::decode::{AudioInfo, DecodeAudio, EXTENSIONS, decode};
pub use crate::graph_ext::{AudioGraphExt, DecodeAudioGraphExt};
pub use crate::log_mel::LogMel;
pub use crate::resample::Resampler;

/// Traits and types for a graph of audio.
pub mod prelude {
    pub use crate::{Audio, AudioGraphExt, DecodeAudio, DecodeAudioGraphExt, LogMel};
}
