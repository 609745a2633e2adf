//! Recordings of several rates and lengths become batches of Whisper's features, in random parts for
//! training and from their beginning for a test; the mean of each class then tells the classes of the
//! test apart.
//!
//! `cargo run --release --features audio --example speech [-- --recordings N] [--batch N]
//! [--workers N] [--seed N]`

mod support;

use std::path::Path;
use std::process::ExitCode;

use datapipes::{BoxError, DataLoader, Graph, Rng, Tensor};
use datapipes_audio::prelude::*;
use datapipes_audio::{decode, random_part};
use datapipes_io::prelude::*;
use datapipes_io::{File, list_files};
use support::args::Args;

const USAGE: &str = "speech [--recordings N] [--batch N] [--workers N] [--seed N]";

/// Pitch of each class, in Hz.
const CLASSES: [f32; 4] = [110.0, 165.0, 220.0, 330.0];
/// Samples of a second of Whisper's input.
const SECOND: usize = 16_000;

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    let args = Args::parse("", "recordings batch workers seed", USAGE);
    let folder = tempfile::tempdir()?;
    let seed = args.get("seed").unwrap_or(42);
    for set in ["train", "test"] {
        let recordings = args.get("recordings").unwrap_or(64);
        (0..recordings).try_for_each(|n| record(folder.path(), set, n))?;
    }
    let whisper = LogMel::whisper(80)?;
    let batches = |set: &str, at_random: bool| {
        let log_mel = whisper.clone();
        let features = list_files(folder.path().join(set), "*.wav")
            .load_files()
            .shuffle(1_000)
            .try_map_with_rng(move |file: File, rng| {
                let audio = decode(&file.data)?.to_mono().resample(SECOND as u32)?;
                let audio = match at_random {
                    true => random_part(&audio, SECOND, rng),
                    false => audio.fit(SECOND),
                };
                datapipes::Ok((log_mel.of(&audio)?, class_of(&file.name)))
            });
        let batches: Graph<(Tensor, Tensor)> =
            features.batch(args.get("batch").unwrap_or(16)).collate();
        let builder = DataLoader::builder(batches).seed(seed);
        builder.workers(args.get("workers").unwrap_or(2)).build()
    };

    let train = batches("train", true)?;
    println!("{}", train.explain());
    let mut means = vec![(vec![0.0; 80], 0.0); CLASSES.len()];
    for batch in train.epoch(0) {
        for (bands, class) in spectra(&batch?)? {
            let (sum, count) = &mut means[class];
            sum.iter_mut()
                .zip(&bands)
                .for_each(|(sum, band)| *sum += band);
            *count += 1.0;
        }
    }
    if let Some(stats) = train.stats() {
        println!("{stats}");
    }
    let distance = |bands: &[f32], (sum, count): &(Vec<f32>, f32)| -> f32 {
        bands
            .iter()
            .zip(sum)
            .map(|(a, b)| (a - b / count).powi(2))
            .sum()
    };
    let (mut right, mut all) = (0, 0);
    for batch in batches("test", false)?.epoch(0) {
        for (bands, class) in spectra(&batch?)? {
            let apart = means.iter().map(|mean| distance(&bands, mean));
            let nearest = apart.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
            right += usize::from(nearest.is_some_and(|(nearest, _)| nearest == class));
            all += 1;
        }
    }
    println!("{right} of {all} recordings of the test are of the class that is nearest");
    if right * 10 < all * 9 {
        return Err("the features do not tell the classes apart".into());
    }
    Ok(())
}

/// Returns the mean of each band over time, and the class, of each recording in a batch.
fn spectra((features, classes): &(Tensor, Tensor)) -> Result<Vec<(Vec<f32>, usize)>, BoxError> {
    let frames = features.shape()[2];
    let recordings = features.as_slice::<f32>()?.chunks_exact(80 * frames);
    let spectrum = |recording: &[f32]| {
        let bands = recording.chunks_exact(frames);
        bands
            .map(|band| band.iter().sum::<f32>() / frames as f32)
            .collect()
    };
    let classes = classes
        .as_slice::<u64>()?
        .iter()
        .map(|&class| class as usize);
    Ok(recordings.map(spectrum).zip(classes).collect())
}

/// Returns the class in the name of a recording: `3-17.wav` is of class 3.
fn class_of(name: &str) -> u64 {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.split('-')
        .next()
        .and_then(|class| class.parse().ok())
        .unwrap_or(0)
}

/// Writes a recording of one to two seconds: a tone with overtones, and noise.
fn record(folder: &Path, set: &str, n: usize) -> std::io::Result<()> {
    let mut rng = Rng::from_key([n as u64, u64::from(set == "test"), 0, 0]);
    let (class, rate) = (
        n % CLASSES.len(),
        [8_000, 22_050, 44_100][rng.below(3) as usize],
    );
    let channels = 1 + rng.below(2) as usize;
    let frames = rate as usize + rng.below(u64::from(rate)) as usize;
    let frame_bytes = 2 * channels as u32;
    let bytes = frames as u32 * frame_bytes;
    let mut wav = b"RIFF".to_vec();
    wav.extend((36 + bytes).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    wav.extend((channels as u16).to_le_bytes());
    wav.extend(u32::to_le_bytes(rate));
    wav.extend((rate * frame_bytes).to_le_bytes());
    wav.extend((frame_bytes as u16).to_le_bytes());
    wav.extend(b"\x10\0data");
    wav.extend(bytes.to_le_bytes());
    for frame in 0..frames {
        let at = frame as f32 / rate as f32 * CLASSES[class] * std::f32::consts::TAU;
        let tone = (at.sin() + (2.0 * at).sin() / 2.0 + (3.0 * at).sin() / 3.0) * 0.2;
        for _ in 0..channels {
            let value = tone + (rng.below(1_000) as f32 - 500.0) * 1e-5;
            wav.extend(((value * 32_767.0) as i16).to_le_bytes());
        }
    }
    std::fs::create_dir_all(folder.join(set))?;
    std::fs::write(folder.join(set).join(format!("{class}-{n}.wav")), wav)
}
