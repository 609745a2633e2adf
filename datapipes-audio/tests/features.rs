//! Resampling and spectrograms beside those of torchaudio, Transformers and librosa
//! (`data/make.py`).

use datapipes::ErrorKind::{Config, Corrupt, Limit, Shape};
use datapipes_audio::{Audio, LogMel, Resampler, decode};

fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn numbers(name: &str) -> Vec<f32> {
    let bytes = file(name);
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&four| f32::from_le_bytes(four))
        .collect()
}

fn left() -> Audio {
    let wav = decode(&file("s16.wav")).unwrap();
    Audio::new(wav.rate(), 1, wav.channel(0).to_vec()).unwrap()
}

fn check(got: &[f32], name: &str, tolerance: f32) {
    let wanted = numbers(name);
    assert_eq!(got.len(), wanted.len(), "{name}");
    let most = got
        .iter()
        .zip(&wanted)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(most <= tolerance, "{name}: {most}");
}

#[test]
fn resampling_is_that_of_torchaudio() {
    for rate in [8_000, 16_000, 44_100] {
        let audio = left().resample(rate).unwrap();
        assert_eq!(audio.rate(), rate);
        check(audio.samples(), &format!("torchaudio_{rate}.f32"), 1e-5);
    }
}

#[test]
fn channels_are_resampled_apart() {
    let wav = decode(&file("s16.wav")).unwrap();
    let both = wav.clone().resample(8_000).unwrap();
    assert_eq!(both.channel(0), left().resample(8_000).unwrap().samples());
    assert_eq!(wav.clone().resample(22_050).unwrap(), wav);
}

#[test]
fn few_samples_or_none_are_resampled() {
    for (frames, to, wanted) in [
        (0, 16_000, 0),
        (1, 16_000, 1),
        (1, 48_000, 3),
        (5, 4_000, 2),
    ] {
        let audio = Audio::new(16_000, 1, vec![0.5; frames]).unwrap();
        assert_eq!(
            audio.resample(to).unwrap().frames(),
            wanted,
            "{frames} to {to} Hz"
        );
    }
}

#[test]
fn filters_that_cannot_be_made_are_refused() {
    for (from, to, kind) in [
        (0, 8_000, Config),
        (8_000, 0, Config),
        (u32::MAX, u32::MAX - 1, Limit),
        (1, u32::MAX, Limit),
    ] {
        assert_eq!(
            Resampler::new(from, to).unwrap_err().kind(),
            kind,
            "{from} to {to}"
        );
    }
    let same = Resampler::new(22_050, 22_050).unwrap();
    assert_eq!(same.resample(&left()).unwrap(), left());
    let long = Audio::new(1, 1, vec![0.0; 1_000_000]).unwrap();
    assert_eq!(long.resample(48_000).unwrap_err().kind(), Limit);
    let resampler = Resampler::new(44_100, 16_000).unwrap();
    assert_eq!(resampler.resample(&left()).unwrap_err().kind(), Shape);
}

#[test]
fn spectrograms_are_those_of_whisper() {
    let audio = left().resample(16_000).unwrap();
    for mels in [80, 128] {
        let features = LogMel::whisper(mels).unwrap().of(&audio).unwrap();
        assert_eq!(features.shape(), [mels, 30]);
        check(
            features.as_slice().unwrap(),
            &format!("whisper_{mels}.f32"),
            5e-4,
        );
    }
}

#[test]
fn spectrograms_are_those_of_librosa() {
    let features = LogMel::new(22_050, 512, 128, 64)
        .unwrap()
        .of(&left())
        .unwrap();
    assert_eq!(features.shape(), [64, 52]);
    check(features.as_slice().unwrap(), "librosa_64.f32", 2e-3);
}

#[test]
fn audio_shorter_than_a_window_is_reflected() {
    for frames in [1, 2, 160, 399] {
        let audio = Audio::new(16_000, 1, vec![0.5; frames]).unwrap();
        let features = LogMel::new(16_000, 400, 160, 40)
            .unwrap()
            .of(&audio)
            .unwrap();
        assert_eq!(features.shape(), [40, 1 + frames / 160]);
        assert!(
            features
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .all(|value| value.is_finite())
        );
    }
}

#[test]
fn other_audio_and_settings_are_refused() {
    let whisper = LogMel::whisper(80).unwrap();
    let stereo = decode(&file("s16.wav")).unwrap().resample(16_000).unwrap();
    let empty = Audio::new(16_000, 1, vec![]).unwrap();
    let short = Audio::new(16_000, 1, vec![0.0; 159]).unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        let audio = Audio::new(16_000, 1, vec![value; 400]).unwrap();
        assert_eq!(whisper.of(&audio).unwrap_err().kind(), Corrupt);
    }
    for audio in [left(), stereo, empty, short] {
        assert_eq!(whisper.of(&audio).unwrap_err().kind(), Shape, "{audio:?}");
    }
    for (rate, fft, hop, mels) in [
        (0, 4, 1, 1),
        (8, 1, 1, 1),
        (8, 4, 0, 1),
        (8, 4, 1, 0),
        (8, 4, 1, 5_000),
    ] {
        assert_eq!(
            LogMel::new(rate, fft, hop, mels).unwrap_err().kind(),
            Config
        );
    }
}
