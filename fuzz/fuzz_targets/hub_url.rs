//! Any text as the URL of a repository of the Hugging Face Hub. A folder of it is no repository.
#![no_main]

use datapipes_io::stores::Hub;

libfuzzer_sys::fuzz_target!(|url: &str| {
    if Hub::is_repository(url) {
        assert!(!Hub::is_repository(&format!("{url}/a/b/c")), "{url}");
    }
});
