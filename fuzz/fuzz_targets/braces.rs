//! Any text as a pattern with braces.
#![no_main]

use datapipes_io::stores::expand_braces_to;

libfuzzer_sys::fuzz_target!(|pattern: &str| {
    if let Ok(names) = expand_braces_to(pattern, 1000) {
        assert!((1..=1000).contains(&names.len()));
    }
});
