//! Audio on one thread: decoding beside Symphonia alone, resampling and spectrograms beside Python's,
//! if it is installed; and a whole pipeline with two workers.
//!
//! `cargo bench --features audio --bench audio [-- --json]`. One line a case: seconds of audio a
//! second, those of the floor or peer in the same run, the ratio and its goal. The recording of 30 s is
//! noise and a tone, as WAV.

mod support;

use std::io::Cursor;

use bytes::Bytes;
use datapipes::{DataLoader, Graph, Rng};
use datapipes_audio::prelude::*;
use datapipes_audio::{Resampler, decode};
use support::{Case, Lines, again, case, peer_case};
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::formats::TrackType;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSourceStream;

const RATE: u32 = 44_100;
const SECONDS: u32 = 30;

/// Makes a WAV file of one channel.
fn recording() -> Vec<u8> {
    let mut rng = Rng::from_key([3; 4]);
    let bytes = RATE * SECONDS * 2;
    let mut wav = b"RIFF".to_vec();
    wav.extend((36 + bytes).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    wav.extend(RATE.to_le_bytes());
    wav.extend((RATE * 2).to_le_bytes());
    wav.extend(b"\x02\0\x10\0data");
    wav.extend(bytes.to_le_bytes());
    wav.extend((0..RATE * SECONDS).flat_map(|n| {
        let tone = (n as f32 * 0.05).sin() * 9_000.0;
        (tone as i16 + rng.below(2_000) as i16).to_le_bytes()
    }));
    wav
}

/// Decodes with Symphonia, into one vector.
fn plain(bytes: &[u8]) -> Vec<f32> {
    let source = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let probe = symphonia::default::get_probe();
    let mut format = probe
        .probe(&Hint::new(), source, Default::default(), Default::default())
        .expect("a WAV file");
    let track = format.default_track(TrackType::Audio).expect("one track");
    let params = track
        .codec_params
        .as_ref()
        .and_then(|params| params.audio());
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(params.expect("audio"), &AudioDecoderOptions::default())
        .expect("PCM");
    let (mut samples, mut packet_samples) = (Vec::new(), Vec::<f32>::new());
    while let Some(packet) = format.next_packet().expect("whole") {
        let decoded = decoder.decode(&packet).expect("whole");
        decoded.copy_to_vec_interleaved(&mut packet_samples);
        samples.extend_from_slice(&packet_samples);
    }
    samples
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    const TIMES: usize = 4;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("recording.wav");
    let wav = recording();
    std::fs::write(&path, &wav)?;
    let lines = Lines::new("audio", "s/s");
    let seconds = f64::from(SECONDS) * TIMES as f64;
    let times = |mut work: Box<dyn FnMut()>| move || (0..TIMES).for_each(|_| work());
    let peer = |what: &str| {
        let args = [what, &path.display().to_string(), &TIMES.to_string()].map(str::to_owned);
        peer_case("Python", "audio.py", args.into())
    };
    let beside = |name: &str, floor: Option<Case<'_>>, ours: Case<'_>, goals| {
        if let Some(floor) = floor {
            lines.beside(name, seconds, 5, &mut [floor, ours], goals);
        }
    };

    let (bytes, audio) = (wav.clone(), decode(&wav)?);
    let ours = case("decode", times(Box::new(move || drop(decode(&bytes)))));
    let bytes = wav.clone();
    let floor = case("Symphonia", times(Box::new(move || drop(plain(&bytes)))));
    beside("decode WAV", Some(floor), ours, (0.9, 0.0));
    let bytes = wav.clone();
    let ours = case("decode", times(Box::new(move || drop(decode(&bytes)))));
    beside("decode WAV", peer("decode"), ours, (1.0, 0.0));

    let (resampler, source) = (Resampler::new(RATE, 16_000)?, audio.clone());
    let ours = case(
        "resample",
        times(Box::new(move || drop(resampler.resample(&source)))),
    );
    beside("44,100 to 16,000 Hz", peer("resample"), ours, (1.0, 0.0));

    let (whisper, source) = (LogMel::whisper(80)?, audio.resample(16_000)?);
    let ours = case(
        "log_mel",
        times(Box::new(move || drop(whisper.of(&source)))),
    );
    beside("Whisper's features", peer("log_mel"), ours, (1.0, 0.0));

    let graph = |workers| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        let files = Graph::from_vec(vec![Bytes::from(wav.clone()); TIMES * 4]);
        let features = files
            .decode_audio()
            .resample(16_000)
            .log_mel(LogMel::whisper(80)?);
        Ok(DataLoader::builder(features.batch(4).collate())
            .workers(workers)
            .build()?)
    };
    let mut cases = [
        again("no workers", graph(0)?),
        again("2 workers", graph(2)?),
    ];
    lines.beside(
        "all three, 2 workers",
        4.0 * seconds,
        5,
        &mut cases,
        (1.8, 0.0),
    );
    Ok(())
}
