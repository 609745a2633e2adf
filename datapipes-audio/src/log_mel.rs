//! Log-mel spectrograms.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use datapipes::{Error, Result, Tensor};
use realfft::{RealFftPlanner, RealToComplex};

use crate::Audio;

/// Least power whose logarithm is taken.
const FLOOR: f32 = 1e-10;

/// The log-mel spectrogram of mono audio: a tensor `[mels, frames]` of `f32`.
///
/// Each frame is the power spectrum of `fft` samples around every `hop`-th sample, in a Hann window;
/// the audio is reflected at its ends. Triangular bands of equal width on Slaney's mel scale, from 0 Hz
/// to half the rate and each of area 1, sum it (librosa's `melspectrogram` by default). A band without
/// a frequency of the spectrum, as with many mels and a short window, is always the least value.
/// [`new`](LogMel::new) takes the natural logarithm, [`whisper`](LogMel::whisper) makes the features of
/// OpenAI's Whisper.
///
/// # Examples
/// ```
/// use datapipes_audio::{Audio, LogMel};
/// let tone = (0..16_000).map(|n| (n as f32 * 0.1).sin()).collect();
/// let tone = Audio::new(16_000, 1, tone)?;
/// assert_eq!(LogMel::new(16_000, 512, 128, 64)?.of(&tone)?.shape(), [64, 126]);
/// assert_eq!(LogMel::whisper(80)?.of(&tone)?.shape(), [80, 100]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone)]
pub struct LogMel {
    rate: u32,
    hop: usize,
    whisper: bool,
    window: Vec<f32>,
    bands: Vec<Band>,
    plan: Arc<dyn RealToComplex<f32>>,
}

/// Weights of the frequencies of a band, from the first that has one.
#[derive(Clone)]
struct Band {
    first: usize,
    weights: Vec<f32>,
}

impl LogMel {
    /// Makes a spectrogram of audio at `rate` Hz with `1 + samples / hop` frames: the natural
    /// logarithm of the power in each band, at least `ln(1e-10)`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a number is 0, `fft` is 1 or more than
    /// 2^20, or `mels` is more than 4,096.
    pub fn new(rate: u32, fft: usize, hop: usize, mels: usize) -> Result<LogMel> {
        if rate == 0 || hop == 0 || !(1..=4096).contains(&mels) || !(2..=1 << 20).contains(&fft) {
            return Err(Error::config(format!(
                "a spectrogram at {rate} Hz of {mels} mels, {fft} samples every {hop}"
            )));
        }
        let window = (0..fft).map(|n| (n as f64 * PI / fft as f64).sin().powi(2) as f32);
        Ok(LogMel {
            rate,
            hop,
            whisper: false,
            window: window.collect(),
            bands: bands(rate, fft, mels),
            plan: RealFftPlanner::new().plan_fft_forward(fft),
        })
    }

    /// Makes the input of Whisper: audio at 16 kHz, 400 samples every 160, `mels` of 80, or
    /// 128 for `large-v3`; `samples / 160` frames. The decimal logarithm is cut 8 below the greatest
    /// value, and scaled by `(value + 4) / 4`. Whisper takes 30 s, which
    /// [`fit(480_000)`](Audio::fit) makes of any recording.
    ///
    /// # Errors
    /// As [`new`](LogMel::new).
    pub fn whisper(mels: usize) -> Result<LogMel> {
        LogMel::new(16_000, 400, 160, mels).map(|this| LogMel {
            whisper: true,
            ..this
        })
    }

    /// Computes the spectrogram.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the audio has no frame of the spectrogram,
    /// another rate, or more than one channel; [`ErrorKind::Corrupt`](datapipes::ErrorKind::Corrupt) if a
    /// sample is infinite or no number.
    pub fn of(&self, audio: &Audio) -> Result<Tensor> {
        let least = if self.whisper { self.hop } else { 1 };
        if audio.rate() != self.rate || audio.channels() != 1 || audio.frames() < least {
            let rate = self.rate;
            return Err(Error::shape(format!(
                "{audio:?} for a spectrogram of one channel at {rate} Hz, of at least {least} samples"
            )));
        }
        let samples = audio.samples();
        if samples.iter().any(|sample| !sample.is_finite()) {
            return Err(Error::corrupt("a sample is infinite or no number"));
        }
        let frames = samples.len() / self.hop + usize::from(!self.whisper);
        let mut values = vec![0.0; self.bands.len() * frames];
        let (mut input, mut spectrum) = (self.plan.make_input_vec(), self.plan.make_output_vec());
        let mut scratch = self.plan.make_scratch_vec();
        let mut power = Vec::with_capacity(spectrum.len());
        for frame in 0..frames {
            self.cut(samples, frame * self.hop, &mut input);
            self.plan
                .process_with_scratch(&mut input, &mut spectrum, &mut scratch)
                .map_err(|error| Error::shape(error.to_string()))?;
            power.clear();
            power.extend(spectrum.iter().map(|value| value.norm_sqr()));
            for (mel, band) in self.bands.iter().enumerate() {
                let pairs = band.weights.iter().zip(&power[band.first..]);
                let sum: f32 = pairs.map(|(weight, power)| weight * power).sum();
                values[mel * frames + frame] = sum.max(FLOOR);
            }
        }
        self.compress(&mut values);
        Tensor::from_vec(values, [self.bands.len(), frames])
    }

    /// Copies the samples around one of them, in the window; they are reflected at both ends.
    fn cut(&self, samples: &[f32], middle: usize, into: &mut [f32]) {
        let half = into.len() / 2;
        let inside = middle.checked_sub(half);
        let inside = inside.and_then(|start| samples.get(start..start + into.len()));
        let windowed = into.iter_mut().zip(&self.window);
        match inside {
            Some(samples) => windowed
                .zip(samples)
                .for_each(|((to, window), sample)| *to = sample * window),
            None => windowed.enumerate().for_each(|(n, (to, window))| {
                let at = (middle + n) as isize - half as isize;
                *to = samples[reflected(at, samples.len())] * window;
            }),
        }
    }

    fn compress(&self, values: &mut [f32]) {
        if !self.whisper {
            return values.iter_mut().for_each(|value| *value = value.ln());
        }
        let least = values.iter().copied().fold(FLOOR, f32::max).log10() - 8.0;
        let scaled = |value: f32| (value.log10().max(least) + 4.0) / 4.0;
        values.iter_mut().for_each(|value| *value = scaled(*value));
    }
}

/// Returns the place of a sample in audio that goes on backwards at both ends; the end itself comes
/// once.
fn reflected(at: isize, len: usize) -> usize {
    let period = 2 * (len - 1);
    if period == 0 {
        return 0;
    }
    let at = at.rem_euclid(period as isize) as usize;
    at.min(period - at)
}

/// Returns Slaney's triangles (M. Slaney, *Auditory Toolbox*, 1998), each of area 1 over Hz.
fn bands(rate: u32, fft: usize, mels: usize) -> Vec<Band> {
    let highest = mel_of(f64::from(rate) / 2.0);
    let edges: Vec<f64> = (0..mels + 2)
        .map(|n| hz_of(highest * n as f64 / (mels + 1) as f64))
        .collect();
    let hz = |bin: usize| bin as f64 * f64::from(rate) / fft as f64;
    let band = |edges: &[f64]| {
        let (low, middle, high) = (edges[0], edges[1], edges[2]);
        let weight = |hz: f64| {
            let slope = ((hz - low) / (middle - low)).min((high - hz) / (high - middle));
            slope.max(0.0) * 2.0 / (high - low)
        };
        let bins = (0..=fft / 2).map(|bin| weight(hz(bin)) as f32);
        let first = bins.clone().take_while(|&weight| weight == 0.0).count();
        let weights = bins.skip(first).take_while(|&weight| weight > 0.0);
        let weights: Vec<f32> = weights.collect();
        // A band between two frequencies has none.
        let first = first.min(fft / 2);
        Band { first, weights }
    };
    edges.windows(3).map(band).collect()
}

/// Frequency at which Slaney's scale turns from linear to logarithmic, its mel, and the factor between
/// mels after it.
const TURN: (f64, f64) = (1000.0, 15.0);

fn step() -> f64 {
    6.4_f64.ln() / 27.0
}

fn mel_of(hz: f64) -> f64 {
    match hz < TURN.0 {
        true => hz * TURN.1 / TURN.0,
        false => TURN.1 + (hz / TURN.0).ln() / step(),
    }
}

fn hz_of(mel: f64) -> f64 {
    match mel < TURN.1 {
        true => mel * TURN.0 / TURN.1,
        false => TURN.0 * ((mel - TURN.1) * step()).exp(),
    }
}

impl fmt::Debug for LogMel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mels, fft, hop) = (self.bands.len(), self.window.len(), self.hop);
        let like = if self.whisper { ", as Whisper" } else { "" };
        write!(
            f,
            "LogMel({mels} mels at {} Hz, {fft} samples every {hop}{like})",
            self.rate
        )
    }
}
