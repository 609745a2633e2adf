//! Change of the sampling rate.

use std::f64::consts::PI;

use datapipes::{Error, Result};

use crate::Audio;
use crate::audio::MOST;

/// Zero crossings of the filter on each side, and its cutoff as a part of the lower Nyquist
/// frequency: torchaudio's defaults.
const ZEROS: f64 = 6.0;
const ROLLOFF: f64 = 0.99;
/// Greatest number of coefficients, 4 MiB of them.
const MOST_TAPS: u64 = 1 << 20;

/// A change of the sampling rate by band-limited interpolation: a sinc filter of six zero crossings a
/// side in a Hann window, as `torchaudio.functional.resample` has it by default
/// ([J. O. Smith, *Digital Audio Resampling*](https://ccrma.stanford.edu/~jos/resample/)).
///
/// The result has `ceil(frames * to / from)` frames, and begins when the input does. What is before
/// and after the input counts as silence.
///
/// # Examples
/// ```
/// use datapipes_audio::{Audio, Resampler};
/// let resampler = Resampler::new(44_100, 16_000)?;
/// let second = Audio::new(44_100, 1, vec![0.5; 44_100])?;
/// let second = resampler.resample(&second)?;
/// assert_eq!((second.rate(), second.frames()), (16_000, 16_000));
/// assert!((second.samples()[8_000] - 0.5).abs() < 1e-3);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Resampler {
    rates: (u32, u32),
    /// The rates without their common divisor: `from` frames become `to`.
    from: usize,
    to: usize,
    /// Number of coefficients of each phase.
    taps: usize,
    /// Place of the first input frame of each phase, relative to the first one of its period.
    starts: Vec<isize>,
    /// Coefficients, phase by phase.
    filter: Vec<f32>,
}

impl Resampler {
    /// Computes the filter between two rates, in frames a second.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a rate is 0.
    /// [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if the filter would have more than 2^20
    /// coefficients: it has 13 to 15 times the higher rate, after both were divided by their greatest
    /// common divisor.
    pub fn new(from: u32, to: u32) -> Result<Resampler> {
        if from == 0 || to == 0 {
            return Err(Error::config(format!("resampling from {from} to {to} Hz")));
        }
        let divisor = greatest_common_divisor(from, to);
        let (period, phases) = (from / divisor, to / divisor);
        // The filter in units of input frames: its cutoff, and half of its width.
        let cutoff = f64::from(period.min(phases)) * ROLLOFF / f64::from(period);
        let half = ZEROS / cutoff;
        let taps = 2 * half.ceil() as u64 + 1;
        let size = taps.saturating_mul(phases.into());
        if size > MOST_TAPS {
            return Err(Error::limit(format!(
                "resampling from {from} to {to} Hz takes {size} coefficients, more than {MOST_TAPS}"
            )));
        }
        let (mut starts, mut filter) = (Vec::new(), Vec::with_capacity(size as usize));
        for phase in 0..phases {
            let at = f64::from(phase) * f64::from(period) / f64::from(phases);
            let start = (at - half).ceil();
            starts.push(start as isize);
            filter.extend((0..taps).map(|tap| {
                let t = (start + tap as f64 - at) * cutoff;
                (weight(t) * cutoff) as f32
            }));
        }
        Ok(Resampler {
            rates: (from, to),
            from: period as usize,
            to: phases as usize,
            taps: taps as usize,
            starts,
            filter,
        })
    }

    /// Returns the audio at the new rate.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the audio has another rate than the one
    /// that the filter was made for. [`ErrorKind::Limit`](datapipes::ErrorKind::Limit) if the result
    /// would have more than 2^28 samples.
    pub fn resample(&self, audio: &Audio) -> Result<Audio> {
        let (from, to) = self.rates;
        if audio.rate() != from {
            return Err(Error::shape(format!(
                "audio at {} Hz for a resampler from {from} Hz",
                audio.rate()
            )));
        }
        if from == to {
            return Ok(audio.clone());
        }
        let frames = (audio.frames() as u128 * self.to as u128).div_ceil(self.from as u128);
        if frames.saturating_mul(audio.channels() as u128) > MOST.into() {
            return Err(Error::limit(format!(
                "{audio:?} has {frames} frames at {to} Hz"
            )));
        }
        let frames = frames as usize;
        let mut samples = Vec::with_capacity(frames * audio.channels());
        for channel in 0..audio.channels() {
            let input = audio.channel(channel);
            samples.extend((0..frames).map(|frame| {
                let phase = frame % self.to;
                let first = (frame / self.to * self.from) as isize + self.starts[phase];
                let filter = &self.filter[phase * self.taps..][..self.taps];
                filtered(input, first, filter)
            }));
        }
        Audio::new(to, audio.channels(), samples)
    }
}

impl Audio {
    /// Returns the audio at another rate; see [`Resampler`].
    ///
    /// # Errors
    /// As [`Resampler::new`] and [`Resampler::resample`].
    pub fn resample(self, rate: u32) -> Result<Audio> {
        Resampler::new(self.rate(), rate)?.resample(&self)
    }
}

/// Returns the sum of the frames from `first` on, each times its coefficient.
fn filtered(input: &[f32], first: isize, filter: &[f32]) -> f32 {
    let before = usize::try_from(-first).unwrap_or(0).min(filter.len());
    let input = input.get(usize::try_from(first).unwrap_or(0)..);
    dot(&filter[before..], input.unwrap_or_default())
}

/// Sums in eight places, which the compiler does at once.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len().min(b.len());
    let ((a, a_rest), (b, b_rest)) = (a[..len].as_chunks::<8>(), b[..len].as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Returns the windowed sinc at a number of zero crossings from its middle.
fn weight(t: f64) -> f64 {
    match t {
        0.0 => 1.0,
        t if t.abs() >= ZEROS => 0.0,
        t => (t * PI).sin() / (t * PI) * (t * PI / ZEROS / 2.0).cos().powi(2),
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        b => greatest_common_divisor(b, a % b),
    }
}
