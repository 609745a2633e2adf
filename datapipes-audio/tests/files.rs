//! Files of other programs (`data/make.py`), whole, in part and damaged.

use datapipes::ErrorKind::{self, Corrupt, Limit, Shape, Truncated, Unsupported};
use datapipes_audio::{Audio, AudioInfo, DecodeAudio, decode};

fn file(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

fn read(name: &str) -> Audio {
    decode(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

const LOSSLESS: [&str; 5] = ["s16.wav", "s16.aiff", "s16.flac", "flac.ogg", "stream.wav"];
const LOSSY: [&str; 3] = ["lame.mp3", "bare.mp3", "vorbis.ogg"];

/// Ratio of the power of a signal to that of its difference from another one, in dB.
fn decibels(wanted: &[f32], got: &[f32]) -> f32 {
    let power =
        |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    let noise = power(&mut wanted.iter().zip(got).map(|(a, b)| a - b));
    10.0 * (power(&mut wanted.iter().copied()) / noise).log10()
}

#[test]
fn lossless_formats_give_the_same_samples() {
    let wav = read("s16.wav");
    assert_eq!(
        (wav.rate(), wav.channels(), wav.frames()),
        (22_050, 2, 6_615)
    );
    // The first samples, as soundfile reads them.
    let bytes = file("s16.wav");
    let first = i16::from_le_bytes([bytes[44], bytes[45]]);
    assert_eq!(wav.channel(0)[0], f32::from(first) / 32_768.0);
    for name in LOSSLESS {
        assert_eq!(read(name), wav, "{name}");
    }
}

#[test]
fn lengths_that_a_recorder_did_not_write_are_those_of_the_file() {
    let (wav, audio) = (file("s16.wav"), read("s16.wav"));
    for (riff, data) in [
        (0, 0),
        (u32::MAX, u32::MAX),
        (u32::MAX, 0),
        (36, 26_460),
        (0, u32::MAX),
        (0x7fff_f024, 0x7fff_f000),
        (0x8000_0024, 0x8000_0000),
    ] {
        let mut bytes = wav.clone();
        bytes[4..8].copy_from_slice(&riff.to_le_bytes());
        bytes[40..44].copy_from_slice(&data.to_le_bytes());
        assert_eq!(decode(&bytes).unwrap(), audio, "{riff} {data}");
    }
}

#[test]
fn every_encoding_of_wav_is_read() {
    let wav = read("s16.wav");
    let tolerances = [
        ("u8", 1.0 / 128.0),
        ("s24", 0.0),
        ("s32", 0.0),
        ("f32", 0.0),
        ("f64", 0.0),
        ("alaw", 0.03),
        ("ulaw", 0.03),
    ];
    for (name, tolerance) in tolerances {
        let audio = read(&format!("{name}.wav"));
        assert_eq!((audio.channels(), audio.frames()), (2, 2_000), "{name}");
        let pairs = audio.channel(1).iter().zip(wav.channel(1));
        let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most <= tolerance, "{name}: {most}");
    }
}

#[test]
fn lossy_formats_begin_and_end_with_the_sound() {
    let wav = read("s16.wav");
    for (name, frames, least) in [
        ("lame.mp3", 6_615, 25.0),
        ("vorbis.ogg", 6_615, 25.0),
        ("bare.mp3", 8_064, 0.0),
    ] {
        let audio = read(name);
        assert_eq!(
            (audio.rate(), audio.channels(), audio.frames()),
            (22_050, 2, frames),
            "{name}"
        );
        let close = decibels(wav.channel(1), audio.channel(1));
        assert!(close > least, "{name}: {close} dB");
    }
    // Without a tag nobody knows how much silence the encoder put before it.
    let late = read("bare.mp3");
    let after = (0..1_449).map(|delay| decibels(wav.channel(1), &late.channel(1)[delay..]));
    assert!(after.fold(0.0, f32::max) > 20.0);
}

#[test]
fn a_part_is_that_of_the_whole() {
    for name in LOSSLESS.iter().chain(&LOSSY) {
        let (bytes, whole) = (file(name), read(name));
        for (start, frames) in [
            (0, 10),
            (1, 1),
            (700, 3_000),
            (4_608, 2_000),
            (6_000, 99_999),
        ] {
            let rate = f64::from(whole.rate());
            let decoder = DecodeAudio::new().part(start as f64 / rate, frames as f64 / rate);
            let part = decoder
                .decode(&bytes)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let wanted = whole.padded_part(start, frames.min(whole.frames() - start));
            assert_eq!(part, wanted, "{name} from {start}");
        }
        for start in [10.0, whole.seconds()] {
            let error = DecodeAudio::new()
                .part(start, 1.0)
                .decode(&bytes)
                .unwrap_err();
            assert_eq!(error.kind(), Shape, "{name}: {error}");
        }
        let none = DecodeAudio::new().part(0.1, 0.0).decode(&bytes).unwrap();
        assert_eq!((none.frames(), none.channels()), (0, 2), "{name}");
    }
    let error = DecodeAudio::new()
        .part(-1.0, 1.0)
        .decode(&file("s16.wav"))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[test]
fn mono_is_the_mean_of_the_channels() {
    let bytes = file("s16.flac");
    let mono = DecodeAudio::new().mono().decode(&bytes).unwrap();
    assert_eq!(mono, read("s16.wav").to_mono());
    let few = DecodeAudio::new().mono().max_samples(6_615);
    assert_eq!(few.decode(&bytes).unwrap(), mono);
}

#[test]
fn what_a_file_states() {
    for (name, format, frames) in [
        ("s16.wav", "wave", Some(6_615)),
        ("s16.flac", "flac", Some(6_615)),
        ("stream.wav", "wave", Some(6_615)),
        ("vorbis.ogg", "ogg", Some(6_615)),
        ("lame.mp3", "mp3", Some(6_615)),
    ] {
        let info = AudioInfo::read(&file(name)).unwrap();
        let known = (&*info.format, info.frames, info.rate, info.channels);
        assert_eq!(known, (format, frames, 22_050, 2), "{name}");
    }
}

#[test]
fn what_is_no_audio_is_refused() {
    for (bytes, kind, said) in [
        (&b""[..], Unsupported, "starts with \"\""),
        (b"<!DOCTYPE html>", Unsupported, "<!DOCTYP"),
        (&[0; 5_000], Unsupported, "\\x00"),
        (&file("opus.ogg"), Unsupported, "codec"),
        (&file("s16.wav")[..40], Truncated, "ends"),
    ] {
        let error = decode(bytes).unwrap_err();

        assert!(
            error.kind() == kind && error.to_string().contains(said),
            "{error}"
        );
    }
    let error = DecodeAudio::new()
        .max_samples(13_229)
        .decode(&file("s16.wav"))
        .unwrap_err();
    assert_eq!(error.kind(), Limit);
}

#[test]
fn a_file_that_ends_early_is_truncated() {
    for name in ["s16.wav", "s16.aiff", "s16.flac", "vorbis.ogg", "flac.ogg"] {
        let bytes = file(name);
        for len in (0..bytes.len()).step_by(97) {
            match decode(&bytes[..len]) {
                Ok(audio) => assert_eq!(audio.frames(), 6_615, "{name} of {len} bytes"),
                Err(error) => assert!(
                    matches!(error.kind(), Truncated | Corrupt | Unsupported),
                    "{name} of {len} bytes: {error}"
                ),
            }
        }
        let error = decode(&bytes[..bytes.len() / 2]).unwrap_err();
        assert!(
            matches!(error.kind(), Truncated | Corrupt),
            "{name}: {error}"
        );
    }
}

#[test]
fn damage_of_a_file_with_checksums_is_an_error() {
    let (whole, audio) = (file("s16.flac"), read("s16.flac"));
    let second = DecodeAudio::new().part(0.2, 0.05);
    let part = second.decode(&whole).unwrap();
    for at in (0..whole.len()).step_by(41) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        // A name or a date may be damaged.
        assert!(
            decode(&bytes).is_ok_and(|same| same == audio) || decode(&bytes).is_err(),
            "byte {at}"
        );
        assert!(
            second.decode(&bytes).is_ok_and(|same| same == part) || second.decode(&bytes).is_err()
        );
    }
}

#[test]
fn no_damage_is_a_panic() {
    for name in LOSSLESS.iter().chain(&LOSSY) {
        let whole = file(name);
        for at in (0..whole.len()).step_by(41) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            if let Err(error) = decode(&bytes) {
                assert!(
                    !error.to_string().contains("panicked"),
                    "{name}, byte {at}: {error}"
                );
            }
        }
    }
}
