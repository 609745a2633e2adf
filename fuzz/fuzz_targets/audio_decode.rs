//! Any bytes as an audio file, of any format.
#![no_main]

use datapipes_audio::{AudioInfo, DecodeAudio};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let settings = DecodeAudio::new().max_samples(1 << 20);
    if let Ok(audio) = settings.decode(data) {
        let info = AudioInfo::read(data).unwrap();
        assert_eq!((info.rate, info.channels), (audio.rate(), audio.channels()));
        let _ = settings.part(0.01, 0.01).mono().decode(data);
    }
});
