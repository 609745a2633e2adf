//! Any bytes as a `tokenizer.json`, and, after a zero byte, as a text: its tokens are the same whether
//! words are looked up or not.
//!
//! A panic of the crate underneath is caught and becomes an error about the file, without a call of
//! libFuzzer's hook. One of the way to look words up is found as another error than the crate's.
#![no_main]

use datapipes::ErrorKind;
use datapipes_text::{HfTokenizer, Tokenize, Tokenizer};
use serde_json::Value;

/// Words of several scripts, a number, white space, and no text.
const TEXTS: [&str; 3] = ["It's 12345  naïve\n\n漢字 🦊!? <eos>", " a\ta  b ", ""];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (json, text) = match data.iter().position(|&byte| byte == 0) {
        Some(end) => (&data[..end], String::from_utf8_lossy(&data[end + 1..])),
        None => (data, "".into()),
    };
    // Some tokens are drawn at random then.
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    if value["model"]["dropout"]
        .as_f64()
        .is_some_and(|rate| rate > 0.0)
    {
        return;
    }
    let Ok(tokenizer) = HfTokenizer::from_bytes(json) else {
        return;
    };
    for text in TEXTS.into_iter().chain([&*text]) {
        let looked_up = tokenizer.encode(text, false);
        let by_crate = tokenizer.encode(text, true);
        match (looked_up, by_crate) {
            (Ok(looked_up), Ok(by_crate)) => {
                assert_eq!(looked_up.ids, by_crate.ids);
                let offsets = by_crate.offsets.expect("they were asked for");
                assert_eq!(offsets.len(), by_crate.ids.len());
                let decoded = tokenizer.decode(&looked_up.ids);
                assert!(decoded.err().is_none_or(|error| matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::NotFound
                )));
            }
            (Err(looked_up), Err(by_crate)) => {
                assert_eq!([looked_up.kind(), by_crate.kind()], [ErrorKind::Corrupt; 2]);
            }
            (looked_up, by_crate) => panic!("{looked_up:?} and {by_crate:?}"),
        }
    }
    // The tokenizer as a loader describes it, and with the special tokens of its post-processor.
    let tokenize = Tokenize::new(tokenizer.add_special_tokens());
    drop(format!("{tokenize:?}"));
    drop(tokenize.tokens(&text));
});
