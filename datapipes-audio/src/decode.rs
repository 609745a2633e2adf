//! Decoding of audio files.

use std::borrow::Cow;
use std::io::{self, Cursor};

use bytes::Bytes;
use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result, Weigh, catch_panic};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::{Error as Fault, SeekErrorKind};
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, SeekMode, SeekTo, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;
use symphonia::core::units::Timestamp;

use crate::Audio;
use crate::audio::{MOST, mean};

/// Extensions of the files that [`decode`](crate::decode()) reads, separated by spaces.
pub const EXTENSIONS: &str = "wav wave aif aiff aifc flac mp3 ogg oga";

/// Containers that state the exact number of frames, count those of each packet, and lead to the frame
/// that is asked for.
const EXACT: [&str; 3] = ["wave", "aiff", "flac"];

/// Decodes an audio file with the default settings; see [`DecodeAudio`].
///
/// ```
/// # let wav = b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x04\0\0\0\0\x40\0\xc0";
/// let audio = datapipes_audio::decode(wav)?;
/// assert_eq!((audio.rate(), audio.channels(), audio.samples()), (8_000, 1, &[0.5, -0.5][..]));
///
/// let error = datapipes_audio::decode(b"<!DOCTYPE html>").unwrap_err();
/// assert_eq!(error.kind(), datapipes::ErrorKind::Unsupported);
/// # Ok::<(), datapipes::Error>(())
/// ```
///
/// # Errors
/// As [`DecodeAudio::decode`].
pub fn decode(bytes: &[u8]) -> Result<Audio> {
    DecodeAudio::new().decode(bytes)
}

/// The facts that an audio file states, without its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AudioInfo {
    /// Short name of the format: `wave`, `aiff`, `flac`, `mp3`, `ogg` and so on.
    pub format: String,
    /// Number of frames a second.
    pub rate: u32,
    /// Number of channels.
    pub channels: usize,
    /// Number of frames, if the file states it; for MP3 without a Xing or LAME tag an estimate.
    pub frames: Option<u64>,
}

impl AudioInfo {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// As [`DecodeAudio::decode`], of the header alone.
    ///
    /// # Examples
    /// ```
    /// # let wav = b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x04\0\0\0\0\x40\0\xc0";
    /// let info = datapipes_audio::AudioInfo::read(wav)?;
    /// assert_eq!((info.rate, info.channels, info.frames), (8_000, 1, Some(2)));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn read(bytes: &[u8]) -> Result<AudioInfo> {
        guarded(|| Stream::open(&with_lengths(bytes))?.info())
    }
}

/// A decoder of audio files, and its settings: a pipe over [`Bytes`]; [`decode`](DecodeAudio::decode)
/// works without a graph.
///
/// Formats: WAV and AIFF (integers of 8 to 32 bits, floats of 32 and 64 bits, A-law, µ-law), FLAC,
/// MP3, Ogg with Vorbis or FLAC, recognised by content, not by name. Integers become
/// `value / 2^(bits - 1)`, from -1 to 1. The delay and padding that an encoder of MP3 or Vorbis added
/// are removed if the file states them, which MP3 without a LAME tag does not. A WAV file whose header
/// was written before its length was known is read to its end. The decoder is
/// [Symphonia](https://docs.rs/symphonia).
///
/// As a step it runs on the CPU workers, on many files at once; order is kept.
///
/// # Examples
/// ```
/// # let wav = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x04\0\0\0\x08\0\0\0\x02\0\x10\0data\x08\0\0\0\0\x40\0\xc0\0\x20\0\x30";
/// use bytes::Bytes;
/// use datapipes::Graph;
/// use datapipes_audio::DecodeAudio;
///
/// // A file of one second at 4 Hz, from 0.5 s on.
/// let files = Graph::from_vec(vec![Bytes::from_static(wav)]);
/// let parts = files.pipe(DecodeAudio::new().part(0.5, 10.0)).collect()?;
/// assert_eq!(parts[0].samples(), [0.25, 0.375]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecodeAudio {
    max_samples: u64,
    mono: bool,
    part: Option<(f64, f64)>,
}

impl Default for DecodeAudio {
    fn default() -> Self {
        DecodeAudio::new()
    }
}

impl DecodeAudio {
    /// Makes a decoder of whole files with all of their channels, of at most 2^28 samples (1 GiB, and up
    /// to twice that while it decodes).
    pub fn new() -> Self {
        DecodeAudio {
            max_samples: MOST,
            mono: false,
            part: None,
        }
    }

    /// Sets the greatest number of samples, of all channels that are kept, that a file may have.
    #[must_use]
    pub fn max_samples(self, max_samples: u64) -> Self {
        DecodeAudio {
            max_samples,
            ..self
        }
    }

    /// Returns one channel, the mean of all.
    #[must_use]
    pub fn mono(self) -> Self {
        DecodeAudio { mono: true, ..self }
    }

    /// Decodes `seconds` seconds from `start` seconds on, or fewer if the file ends before. Both are
    /// rounded to frames. In WAV, AIFF and FLAC what lies before is skipped; in the other formats it is
    /// decoded, since their frames depend on those before.
    #[must_use]
    pub fn part(self, start: f64, seconds: f64) -> Self {
        DecodeAudio {
            part: Some((start, seconds)),
            ..self
        }
    }

    /// Decodes a file.
    ///
    /// # Errors
    /// [`Unsupported`](datapipes::ErrorKind::Unsupported) for a format or codec that is not read;
    /// [`Truncated`](datapipes::ErrorKind::Truncated) for a file with fewer frames than it states;
    /// [`Corrupt`](datapipes::ErrorKind::Corrupt) for one that violates its format;
    /// [`Limit`](datapipes::ErrorKind::Limit) for one with too many samples;
    /// [`Shape`](datapipes::ErrorKind::Shape) if the part begins at the end of the file or later, and
    /// [`Config`](datapipes::ErrorKind::Config) if its start or length is negative or no number.
    ///
    /// FLAC has checksums: all damage of it is an error, and so is a missing end of a WAV, AIFF or FLAC
    /// that states its length, and of Ogg. In MP3 a missing end is not noticed, and damage in the middle of
    /// MP3 or Ogg may make the recording shorter or a moment of it silent.
    pub fn decode(&self, bytes: &[u8]) -> Result<Audio> {
        if let Some(problem) = self.problem() {
            return Err(Error::config(problem));
        }
        guarded(|| self.decode_unguarded(bytes))
    }

    fn problem(&self) -> Option<String> {
        if self.max_samples == 0 {
            return Some("at most zero samples".to_owned());
        }
        let (start, seconds) = self.part?;
        let fits = |value: f64| value.is_finite() && value >= 0.0;
        let bad = !fits(start) || !fits(seconds);
        bad.then(|| format!("a part of {seconds} s from {start} s on"))
    }

    fn decode_unguarded(&self, bytes: &[u8]) -> Result<Audio> {
        let bytes = with_lengths(bytes);
        let mut stream = Stream::open(&bytes)?;
        let info = stream.info()?;
        let rate = info.rate;
        let frames = |seconds: f64| (seconds * f64::from(rate)).round() as u64;
        let (start, most) = self.part.map_or((0, u64::MAX), |(start, seconds)| {
            (frames(start), frames(seconds))
        });
        let end = start.saturating_add(most);
        let exact = EXACT
            .contains(&&*info.format)
            .then_some(info.frames)
            .flatten();
        let outside = |frames: u64| {
            let length = frames as f64 / f64::from(rate);
            let from = start as f64 / f64::from(rate);
            Error::shape(format!("a part from {from} s on of a file of {length} s"))
        };
        if let Some(frames) = exact.filter(|&frames| start > 0 && start >= frames) {
            return Err(outside(frames));
        }
        let mut at = match exact {
            Some(_) if start > 0 => stream.seek(start)?,
            _ => 0,
        };
        let channels = if self.mono { 1 } else { info.channels };
        let mut planes = vec![Vec::new(); channels];
        let mut scratch = Vec::new();
        while at < end
            && let Some(decoded) = stream.next(&info, exact.map(|_| at), &mut scratch)?
        {
            let from = start.saturating_sub(at).min(decoded as u64) as usize;
            let to = (end - at).min(decoded as u64) as usize;
            at += decoded as u64;
            let samples = ((planes[0].len() + to - from) * channels) as u64;
            if samples > self.max_samples {
                let most = self.max_samples;
                return Err(Error::limit(format!("more than {most} samples")));
            }
            if self.mono {
                let (first, others) = scratch.split_at_mut(1);
                mean(&mut first[0], others.iter().map(Vec::as_slice));
            }
            for (plane, decoded) in planes.iter_mut().zip(&scratch) {
                plane.extend_from_slice(&decoded[from..to]);
            }
        }
        if at < end
            && let Some(frames) = exact.filter(|&frames| at < frames)
        {
            return Err(Error::truncated(format!("{at} of {frames} frames")));
        }
        if start > 0 && at <= start && most > 0 {
            return Err(outside(at));
        }
        let samples = match channels {
            1 => planes.swap_remove(0),
            _ => planes.concat(),
        };
        Audio::new(rate, channels, samples)
    }
}

impl Pipe<Bytes> for DecodeAudio {
    type Out = Audio;

    fn apply(&self, input: Items<Bytes>, cx: &Context) -> Items<Audio> {
        let this = self.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|bytes| this.decode(&bytes)))
        })
    }
    fn hints(&self) -> Hints {
        let DecodeAudio {
            max_samples,
            mono,
            part,
        } = self;
        let mono = if *mono { ", mono" } else { "" };
        let part = part.map(|(start, seconds)| format!(", {seconds} s from {start} s on"));
        let part = part.unwrap_or_default();
        Hints::shardable()
            .arity(Arity::One)
            .settings(format_args!("at most {max_samples} samples{mono}{part}"))
            .problem(self.problem().as_deref())
    }
    fn weigh(&self, audio: &Audio) -> Option<usize> {
        Some(audio.weigh())
    }
}

/// An opened file.
struct Stream<'a> {
    format: Box<dyn FormatReader + 'a>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
}

impl<'a> Stream<'a> {
    fn open(bytes: &'a [u8]) -> Result<Stream<'a>> {
        let source = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
        let (options, tags) = (FormatOptions::default(), MetadataOptions::default());
        let format = symphonia::default::get_probe()
            .probe(&Hint::new(), source, options, tags)
            .map_err(|fault| match fault {
                Fault::Unsupported(_) => Error::unsupported(unknown(bytes)),
                fault => error_of(fault),
            })?;
        let track = format
            .default_track(TrackType::Audio)
            .ok_or_else(|| Error::unsupported("a file without audio"))?;
        let params = track
            .codec_params
            .as_ref()
            .and_then(|params| params.audio());
        let params = params.ok_or_else(|| Error::corrupt("audio without a codec"))?;
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(params, &AudioDecoderOptions::default())
            .map_err(error_of)?;
        let track = track.id;
        Ok(Stream {
            format,
            decoder,
            track,
        })
    }

    fn info(&mut self) -> Result<AudioInfo> {
        let tracks = self.format.tracks().iter();
        let frames = tracks.filter(|track| track.id == self.track);
        let frames = frames.filter_map(|track| track.num_frames).next();
        let params = self.decoder.codec_params();
        let channels = params
            .channels
            .as_ref()
            .map_or(0, |channels| channels.count());
        match params.sample_rate.filter(|&rate| rate > 0 && channels > 0) {
            Some(rate) => Ok(AudioInfo {
                format: self.format.format_info().short_name.to_owned(),
                rate,
                channels,
                frames,
            }),
            None => Err(Error::corrupt("audio without a rate or channels")),
        }
    }

    /// Goes to a frame, or one before it. Returns the number of the frame that comes next.
    fn seek(&mut self, frame: u64) -> Result<u64> {
        let ts = Timestamp::new(frame as i64);
        let track_id = self.track;
        let to = SeekTo::Timestamp { ts, track_id };
        let sought = self.format.seek(SeekMode::Accurate, to).map_err(error_of)?;
        self.decoder.reset();
        Ok(sought.actual_ts.get().max(0) as u64)
    }

    /// Decodes the next packet, which has to begin at this frame if that is known, into a run of samples for
    /// each channel. Returns the number of frames; `None` at the end.
    fn next(
        &mut self,
        info: &AudioInfo,
        at: Option<u64>,
        into: &mut Vec<Vec<f32>>,
    ) -> Result<Option<usize>> {
        loop {
            let Some(packet) = self.format.next_packet().map_err(error_of)? else {
                return Ok(None);
            };
            if packet.track_id != self.track {
                continue;
            }
            let begins = packet.pts.get();
            if let Some(at) = at.filter(|&at| begins != at as i64) {
                return Err(Error::corrupt(format!(
                    "frame {begins} comes after frame {at}"
                )));
            }
            let decoded = self.decoder.decode(&packet).map_err(error_of)?;
            let spec = decoded.spec();
            let now = (spec.rate(), spec.channels().count());
            if now != (info.rate, info.channels) {
                let AudioInfo { rate, channels, .. } = info;
                return Err(Error::unsupported(format!(
                    "{channels} channels at {rate} Hz, and later {} at {} Hz",
                    now.1, now.0
                )));
            }
            decoded.copy_to_vecs_planar(into);
            return Ok(Some(decoded.frames()));
        }
    }
}

/// Least length of samples that a program writes for one that it does not know yet: sox this, others
/// 2^31 or 2^32 - 1.
const UNKNOWN: u32 = 0x7fff_0000;

/// Returns a WAV file whose lengths were not known when its header was written, or whose outer length is
/// too small for its samples, with the lengths that it has; any other file as it is.
fn with_lengths(bytes: &[u8]) -> Cow<'_, [u8]> {
    let Some((&[b'R', b'I', b'F', b'F', riff @ .., b'W', b'A', b'V', b'E'], mut rest)) =
        bytes.split_first_chunk::<12>()
    else {
        return bytes.into();
    };
    let riff = u32::from_le_bytes(riff);
    while let Some((&[id @ .., a, b, c, d], chunk)) = rest.split_first_chunk::<8>() {
        let len = u32::from_le_bytes([a, b, c, d]);
        let start = bytes.len() - chunk.len();
        if id == *b"data" {
            let is_unknown = len >= UNKNOWN && len as usize > chunk.len()
                || len == 0 && matches!(riff, 0 | u32::MAX);
            let is_outside = u64::from(riff) + 8 < start as u64 + u64::from(len);
            if is_unknown || is_outside {
                let length = |len: usize| u32::try_from(len).unwrap_or(u32::MAX - 1).to_le_bytes();
                let mut whole = bytes.to_vec();
                whole[4..8].copy_from_slice(&length(bytes.len() - 8));
                if is_unknown {
                    whole[start - 4..start].copy_from_slice(&length(chunk.len()));
                }
                return whole.into();
            }
        }
        rest = chunk
            .get(len as usize + len as usize % 2..)
            .unwrap_or_default();
    }
    bytes.into()
}

/// Calls the decoder. A panic becomes an error of the file; the decoder keeps no state between two
/// files.
fn guarded<R>(decode: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_panic(decode).unwrap_or_else(|panic| Err(Error::corrupt(format!("the decoder {panic}"))))
}

fn unknown(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(8)];
    format!(
        "not audio of a known kind: it starts with {:?}; WAV, AIFF, FLAC, MP3 and Ogg are read",
        start.escape_ascii().to_string()
    )
}

fn error_of(fault: Fault) -> Error {
    match fault {
        Fault::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Error::truncated("the file ends within a packet")
        }
        Fault::IoError(error) => Error::corrupt("it cannot be read").with_source(error),
        Fault::DecodeError(what) => Error::corrupt(what),
        Fault::SeekError(SeekErrorKind::OutOfRange) => Error::truncated("it ends before the part"),
        Fault::Unsupported(what) => Error::unsupported(what),
        Fault::LimitError(what) => Error::limit(what),
        Fault::ResetRequired => {
            Error::unsupported("a chained file, or one whose parameters change")
        }
        other => Error::corrupt(other.to_string()),
    }
}
