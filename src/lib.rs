//! Package that owns the workspace's `examples/`, `tests/` and `benches/`. The library is in
//! `datapipes/`.
//!
//! The samples of the README are compiled with the feature `text`, which one of them needs.
#![cfg_attr(any(feature = "text", not(doctest)), doc = include_str!("../README.md"))]

/// Compiles the samples of the guide in `docs/` as doc tests.
#[cfg(doctest)]
mod guide {
    macro_rules! chapters {
        ($($name:ident = $file:literal),* $(,)?) => { $(#[doc = include_str!(concat!("../docs/src/", $file))] mod $name {})* };
    }
    chapters! {
        concepts = "concepts.md", images = "images.md", formats = "formats.md", far = "far.md", resume = "resume.md",
        past = "past.md", processes = "processes.md", remote = "remote.md", extend = "extend.md", performance = "performance.md", from_pytorch = "from-pytorch.md",
        from_webdataset = "from-webdataset.md", from_tfdata_grain = "from-tfdata-grain.md", from_burn = "from-burn.md",
    }
    #[cfg(feature = "text")]
    chapters! { text = "text.md" }
    #[cfg(feature = "audio")]
    chapters! { audio = "audio.md" }
}
