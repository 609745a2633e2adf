//! Decoded audio.

use datapipes::{Error, Result, Rng, Tensor, Weigh, wire_struct};

/// Greatest number of samples that a file may have by default, and that any step makes: 1 GiB of them.
pub(crate) const MOST: u64 = 1 << 28;

/// Decoded audio: one channel after the other, samples from -1 to 1.
///
/// A decoder of integers never exceeds that range; floats in a file, and what a lossy codec or a
/// resampler makes, may. A *frame* is the samples of all channels at one time.
#[derive(Clone, PartialEq)]
pub struct Audio {
    samples: Vec<f32>,
    channels: usize,
    rate: u32,
}

impl Audio {
    /// Makes audio of these samples, `channels` runs of the same length, which are not copied.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if there are no channels, the rate is 0, or
    /// the samples are no multiple of the channels.
    ///
    /// # Examples
    /// ```
    /// # use datapipes_audio::Audio;
    /// let stereo = Audio::new(16_000, 2, vec![0.1, 0.2, 0.3, -0.1, -0.2, -0.3])?;
    /// assert_eq!((stereo.frames(), stereo.channel(1)), (3, &[-0.1, -0.2, -0.3][..]));
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn new(rate: u32, channels: usize, samples: Vec<f32>) -> Result<Audio> {
        if rate == 0 || channels == 0 || !samples.len().is_multiple_of(channels) {
            return Err(Error::shape(format!(
                "{} samples of {channels} channels at {rate} Hz",
                samples.len()
            )));
        }
        Ok(Audio {
            samples,
            channels,
            rate,
        })
    }

    /// Returns the number of frames a second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the number of samples of each channel.
    pub fn frames(&self) -> usize {
        self.samples.len() / self.channels
    }

    /// Returns the length in seconds.
    pub fn seconds(&self) -> f64 {
        self.frames() as f64 / f64::from(self.rate)
    }

    /// Returns the samples, one channel after the other.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Returns the samples of a channel.
    ///
    /// # Panics
    /// Panics if there is no such channel.
    pub fn channel(&self, channel: usize) -> &[f32] {
        let frames = self.frames();
        &self.samples[channel * frames..][..frames]
    }

    /// Returns the mean of the channels, as one channel.
    #[must_use]
    pub fn to_mono(mut self) -> Audio {
        let frames = self.frames();
        let (mono, rest) = self.samples.split_at_mut(frames);
        mean(mono, rest.chunks_exact(frames.max(1)));
        self.samples.truncate(frames);
        self.channels = 1;
        self
    }

    /// Returns `frames` frames from frame `start` on. Those beyond the end are silence, while
    /// [`DecodeAudio::part`](crate::DecodeAudio::part) returns fewer.
    ///
    /// # Panics
    /// Panics if there is no memory for the frames, as [`fit`](Audio::fit) does.
    #[must_use]
    pub fn padded_part(&self, start: usize, frames: usize) -> Audio {
        let mut samples = Vec::with_capacity(frames * self.channels);
        for channel in 0..self.channels {
            let rest = self.channel(channel).get(start..).unwrap_or_default();
            let rest = &rest[..rest.len().min(frames)];
            samples.extend_from_slice(rest);
            samples.resize((channel + 1) * frames, 0.0);
        }
        Audio { samples, ..*self }
    }

    /// Returns the first `frames` frames, with silence after them if there are fewer.
    #[must_use]
    pub fn fit(self, frames: usize) -> Audio {
        match frames == self.frames() {
            true => self,
            false => self.padded_part(0, frames),
        }
    }

    /// Returns the samples as a tensor `[channels, frames]` of `f32`, without a copy.
    pub fn into_tensor(self) -> Tensor {
        let shape = [self.channels, self.frames()];
        Tensor::from_vec(self.samples, shape).expect("the samples fit the channels")
    }
}

/// Replaces a channel by the mean of it and others.
pub(crate) fn mean<'a>(first: &mut [f32], others: impl ExactSizeIterator<Item = &'a [f32]>) {
    let channels = 1 + others.len();
    for channel in others {
        let pairs = first.iter_mut().zip(channel);
        pairs.for_each(|(sum, value)| *sum += value);
    }
    if channels > 1 {
        first.iter_mut().for_each(|sum| *sum /= channels as f32);
    }
}

/// Returns `frames` frames that begin at a random place; audio of fewer frames is returned from its
/// beginning, with silence after it.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_audio::{Audio, random_part};
/// let audio = Audio::new(8_000, 1, (0..100).map(|n| n as f32 / 100.0).collect())?;
/// let parts = Graph::from_vec(vec![audio]).map_with_rng(|audio, rng| random_part(&audio, 10, rng));
/// assert_eq!(parts.collect()?[0].frames(), 10);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn random_part(audio: &Audio, frames: usize, rng: &mut Rng) -> Audio {
    let places = audio.frames().saturating_sub(frames) as u64 + 1;
    audio.padded_part(rng.below(places) as usize, frames)
}

datapipes::formatted! {
    Debug |audio: Audio|
        "Audio({}x{} at {} Hz)", audio.channels, audio.frames(), audio.rate;
}

impl Weigh for Audio {
    fn weigh(&self) -> usize {
        self.samples.weigh() + size_of_val(self) - size_of_val(&self.samples)
    }
}

wire_struct!(Audio { rate, channels, samples } by Audio::new);

#[cfg(test)]
mod tests {
    use datapipes::ErrorKind;

    use super::*;

    fn counted(channels: usize, frames: usize) -> Audio {
        let samples = (0..channels * frames).map(|n| n as f32).collect();
        Audio::new(8_000, channels, samples).unwrap()
    }

    #[test]
    fn its_samples_fit_its_channels() {
        for (rate, channels, samples) in [(0, 1, 4), (8_000, 0, 4), (8_000, 3, 4)] {
            let error = Audio::new(rate, channels, vec![0.0; samples]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
        }
        assert_eq!(Audio::new(8_000, 2, vec![]).unwrap().frames(), 0);
        assert_eq!(counted(2, 4_000).seconds(), 0.5);
    }

    #[test]
    fn parts_are_of_each_channel_and_end_in_silence() {
        let stereo = counted(2, 4);
        assert_eq!(stereo.padded_part(1, 2).samples(), [1.0, 2.0, 5.0, 6.0]);
        assert_eq!(stereo.padded_part(3, 2).samples(), [3.0, 0.0, 7.0, 0.0]);
        assert_eq!(stereo.padded_part(9, 1).samples(), [0.0, 0.0]);
        assert_eq!(stereo.clone().fit(1).samples(), [0.0, 4.0]);
        assert_eq!(stereo.clone().fit(4), stereo);
        assert_eq!(counted(2, 0).fit(1).samples(), [0.0, 0.0]);
    }

    #[test]
    fn mono_is_the_mean() {
        assert_eq!(counted(3, 2).to_mono().samples(), [2.0, 3.0]);
        assert_eq!(counted(1, 2).to_mono(), counted(1, 2));
        assert_eq!(counted(2, 0).to_mono().channels(), 1);
    }

    #[test]
    fn every_place_of_a_part_is_drawn() {
        let (audio, mut rng) = (counted(1, 5), Rng::from_key([1; 4]));
        let mut starts: Vec<u32> = (0..99)
            .map(|_| random_part(&audio, 3, &mut rng).samples()[0] as u32)
            .collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts, [0, 1, 2]);
        assert_eq!(random_part(&audio, 6, &mut rng).samples()[5], 0.0);
    }

    #[test]
    fn it_travels_and_is_weighed() {
        let audio = counted(2, 30_000);
        assert_eq!(datapipes::testing::sent(&audio).unwrap(), audio);
        assert_eq!(audio.weigh(), size_of::<Audio>() + 240_000);
    }
}
