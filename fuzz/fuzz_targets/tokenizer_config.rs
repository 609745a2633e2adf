//! Any bytes as a `tokenizer_config.json`, whose chat template is compiled.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    drop(datapipes_text::ChatTemplate::from_tokenizer_config(data));
});
