//! Audio in graphs: the contract of steps, names of errors, processes, a stop in the middle.

use bytes::Bytes;
use datapipes::testing::check_pipe;
use datapipes::{DataLoader, ErrorKind, Graph, OnError, Tensor};
use datapipes_audio::prelude::*;

fn file(name: &str) -> Bytes {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap().into()
}

fn files() -> Vec<Bytes> {
    let names = [
        "s16.wav",
        "s16.flac",
        "vorbis.ogg",
        "u8.wav",
        "lame.mp3",
        "f32.wav",
    ];
    names.into_iter().map(file).collect()
}

fn features(files: Vec<Bytes>) -> Graph<Tensor> {
    let parts = Graph::from_vec(files)
        .decode_audio()
        .to_mono()
        .random_part(1_000);
    let log_mel = LogMel::new(16_000, 256, 128, 20).unwrap();
    parts.resample(16_000).fit(800).log_mel(log_mel)
}

#[test]
fn the_decoder_keeps_the_contract_of_a_pipe() {
    check_pipe(&DecodeAudio::new(), files());
    check_pipe(&DecodeAudio::new().mono().part(0.01, 0.02), files());
}

#[test]
fn workers_change_nothing_and_a_stopped_epoch_goes_on() {
    let loader = |workers| {
        let graph = features(files()).batch(2);
        DataLoader::builder(graph)
            .seed(7)
            .workers(workers)
            .resumable()
            .build()
            .unwrap()
    };
    let whole: Vec<_> = loader(0).epoch(1).into_iter().map(Result::unwrap).collect();
    assert_eq!(
        loader(2)
            .epoch(1)
            .into_iter()
            .map(Result::unwrap)
            .collect::<Vec<_>>(),
        whole
    );
    let other: Vec<_> = loader(0).epoch(0).into_iter().map(Result::unwrap).collect();
    assert_ne!(other, whole, "another epoch takes other parts");

    let mut stopped = loader(1).epoch(1).blocking();
    let mut seen: Vec<_> = stopped.by_ref().take(1).map(Result::unwrap).collect();
    let checkpoint = stopped.checkpoint().unwrap();
    seen.extend(
        loader(2)
            .resume(&checkpoint)
            .unwrap()
            .into_iter()
            .map(Result::unwrap),
    );
    assert_eq!(seen, whole);
}

#[test]
fn a_bad_file_is_named_and_can_be_skipped() {
    let mut damaged = files();
    damaged[1].truncate(9_000);
    let error = features(damaged.clone()).collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
    assert_eq!(
        (error.node(), error.item().unwrap().to_string().as_str()),
        (Some("decode_audio"), "0:1")
    );
    let loader = DataLoader::builder(features(damaged))
        .on_error(OnError::skip(1))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).into_iter().map(Result::unwrap).count(), 5);
}

#[test]
fn wrong_settings_end_before_the_first_item() {
    let graph = Graph::from_vec(files()).pipe(DecodeAudio::new().part(f64::NAN, 1.0));
    let error = DataLoader::builder(graph).build().unwrap_err().to_string();
    assert!(
        error.contains("decode_audio") && error.contains("NaN"),
        "{error}"
    );
    let audio = || Graph::from_vec(files()).decode_audio();
    for (graph, said) in [
        (audio().resample(0), "resample: to 0 Hz"),
        (audio().fit(usize::MAX), "fit: 18446744073709551615 frames"),
    ] {
        let error = DataLoader::builder(graph).build().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_file_of_an_odd_rate_can_be_skipped() {
    let with_rate = |rate: u32| {
        let mut wav = file("s16.wav").to_vec();
        wav[24..28].copy_from_slice(&rate.to_le_bytes());
        Bytes::from(wav)
    };
    // A filter that is too large, and a second that becomes an hour of samples.
    let odd = [2_000_003, 1];
    for rate in odd {
        let graph = Graph::from_vec(vec![with_rate(rate), file("s16.wav")]).decode_audio();
        let loader = DataLoader::builder(graph.resample(if rate == 1 { 384_000 } else { 16_000 }))
            .on_error(OnError::skip(1))
            .build()
            .unwrap();
        let items: Vec<_> = loader.epoch(0).into_iter().collect();
        assert!(items.len() == 1 && items[0].is_ok(), "{rate} Hz: {items:?}");
    }
}
