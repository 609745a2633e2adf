//! Every codec with files of other tools, cut, changed, and expanding too far.

use std::io::Read;

use datapipes::testing::some_of;
use datapipes::{Context, DataLoader, ErrorKind, Graph, Result};

use super::*;
use crate::File;

/// Returns the content that `make_compression.py` compressed with each tool.
fn content_of_all() -> Vec<u8> {
    (0..120)
        .flat_map(|n| format!("line {n} of text, {}\n", n * n).into_bytes())
        .collect()
}

macro_rules! data {
    ($name:literal) => {
        &include_bytes!(concat!("../../../tests/data/", $name))[..]
    };
}

/// Returns files made by Python's gzip, zstandard, lz4, bz2 and lzma: the codec, the name, and the
/// file.
fn files() -> Vec<(Codec, &'static str, &'static [u8])> {
    let mut files = vec![
        (Codec::Gzip, "text.gz", data!("text.gz")),
        (Codec::Gzip, "text-members.gz", data!("text-members.gz")),
    ];
    if cfg!(feature = "zstd") {
        files.push((Codec::Zstd, "text.zst", data!("text.zst")));
        files.push((Codec::Zstd, "text-frames.zst", data!("text-frames.zst")));
    }
    if cfg!(feature = "lz4") {
        files.push((Codec::Lz4, "text.lz4", data!("text.lz4")));
        files.push((Codec::Lz4, "text-frames.lz4", data!("text-frames.lz4")));
    }
    if cfg!(feature = "bzip2") {
        files.push((Codec::Bzip2, "text.bz2", data!("text.bz2")));
        files.push((Codec::Bzip2, "text-streams.bz2", data!("text-streams.bz2")));
    }
    if cfg!(feature = "xz") {
        files.push((Codec::Xz, "text.xz", data!("text.xz")));
        files.push((Codec::Xz, "text-streams.xz", data!("text-streams.xz")));
    }
    files
}

fn decompress(name: &str, data: impl Into<Bytes>) -> Result<File> {
    decompress_with(Decompress::new(), name, data.into())
}

fn decompress_with(pipe: Decompress, name: &str, data: Bytes) -> Result<File> {
    let read = Graph::from_vec(vec![File::new(name, data)])
        .pipe(pipe)
        .collect();
    read.map(|mut files| files.pop().expect("one in, one out"))
}

/// Returns the output of the stream in pieces of seven bytes, and its end.
fn streamed(codec: Codec, data: &[u8], expansion: Expansion) -> (Vec<u8>, Option<ErrorKind>) {
    let mut reader = reader(
        codec,
        Bytes::copy_from_slice(data),
        expansion,
        &Context::default(),
    );
    let (mut all, mut piece) = (Vec::new(), [0; 7]);
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return (all, None),
            Ok(read) => all.extend_from_slice(&piece[..read]),
            Err(error) => {
                assert!(
                    reader.read(&mut piece).is_err(),
                    "an error does not turn into an end"
                );
                return (all, Some(unpack(error, ErrorKind::User, "").kind()));
            }
        }
    }
}

fn without_checks(name: &str) -> bool {
    name == "text-frames.zst"
}

/// Returns the first error of a graph whose loader lets files inflate to `most` bytes; empty if there
/// is none.
pub(in crate::formats) fn refused<T: Send + 'static>(graph: Graph<T>, most: u64) -> String {
    let loader = DataLoader::builder(graph)
        .workers(2)
        .max_inflated(most)
        .build()
        .unwrap();
    loader
        .epoch(0)
        .blocking()
        .find_map(Result::err)
        .map_or(String::new(), |error| error.to_string())
}

#[test]
fn files_of_other_tools_are_read_whole_and_as_streams() {
    let expected = content_of_all();
    for (codec, name, data) in files() {
        assert_eq!(Codec::of_magic(data), Some(codec), "{name}");
        let file = decompress(name, data).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(file.data, expected, "{name}");
        assert!(
            name.starts_with(&*file.name) && !file.name.contains('.'),
            "{name}"
        );
        assert_eq!(
            streamed(codec, data, Expansion::default()),
            (expected.clone(), None),
            "{name}"
        );
    }
}

#[test]
fn endings_tell_codecs() {
    let named = |name: &str| Codec::of_name(name).map(|(codec, name)| (codec.to_string(), name));
    for (name, codec, bare) in [
        ("a.gz", "gzip", "a"),
        ("a.tgz", "gzip", "a.tar"),
        ("a.tar.GZ", "gzip", "a.tar"),
        ("d/a.b.zst", "zstd", "d/a.b"),
        ("a.zstd", "zstd", "a"),
        ("a.tzst", "zstd", "a.tar"),
        ("a.lz4", "lz4", "a"),
        ("a.bz2", "bzip2", "a"),
        ("a.tbz2", "bzip2", "a.tar"),
        ("a.xz", "xz", "a"),
        ("a.txz", "xz", "a.tar"),
    ] {
        assert_eq!(
            named(name),
            Some((codec.to_owned(), bare.to_owned())),
            "{name}"
        );
    }
    for name in ["", "gz", ".gz", "d/.gz", "a.txt", "a.gz/b"] {
        assert_eq!(named(name), None, "{name}");
    }
}

/// Rows 96 and 97: a cut is an error, unless it is between two members, frames or streams.
#[test]
fn row_96_cut_at_every_byte() {
    let expected = content_of_all();
    for (codec, name, data) in files() {
        let mut whole = 0;
        for cut in 0..data.len() {
            match decompress(name, data[..cut].to_vec()) {
                Ok(file) => {
                    assert!(expected.starts_with(&file.data), "{name} cut at {cut}");
                    whole += 1;
                }
                Err(error) => {
                    // The first bytes indicate the codec; with fewer bytes only the name does.
                    let short = Codec::of_magic(&data[..cut]).is_none() && cut > 0;
                    let kind = if short {
                        ErrorKind::Corrupt
                    } else {
                        ErrorKind::Truncated
                    };
                    // Stream padding of xz is a multiple of four.
                    let padding =
                        error.kind() == ErrorKind::Corrupt && error.to_string().contains("padding");
                    assert!(
                        error.kind() == kind || padding,
                        "{name} cut at {cut}: {error}"
                    );
                }
            }
            let (read, error) = streamed(codec, &data[..cut], Expansion::default());
            assert!(expected.starts_with(&read), "{name} cut at {cut}");
            assert!(error.is_some() || whole > 0, "{name} cut at {cut}");
        }
        // Members, frames and streams before the last, and padding.
        let between = match name {
            "text-members.gz" | "text-streams.bz2" => 2,
            "text-frames.lz4" => 3,
            "text-frames.zst" => 5,
            "text-streams.xz" => 5,
            _ => 0,
        };
        assert_eq!(whole, between, "{name}");
    }
}

#[test]
fn row_96_no_flipped_bit_changes_the_content() {
    let expected = content_of_all();
    for (_, name, data) in files() {
        let mut unseen = 0;
        for at in some_of(0..data.len()) {
            let mut flipped = data.to_vec();
            flipped[at] ^= 1 << (at % 8);
            match decompress(name, flipped) {
                Ok(file) if file.data == expected => {}
                Ok(_) => unseen += 1,
                Err(_) => {}
            }
        }
        // Frames without checksums detect nothing; a bit of the header of lz4 tells if there is
        // one.
        let unchecked = without_checks(name) || name == "text-frames.lz4";
        assert!(
            unseen == 0 || unchecked,
            "{name}: {unseen} changes not seen"
        );
    }
}

#[test]
fn row_96_what_follows_the_end_is_an_error() {
    for (_, name, data) in files() {
        for trailing in [&b"x"[..], b"garbage after the end", &[0; 510]] {
            let error = decompress(name, [data, trailing].concat()).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Corrupt,
                "{name}, {trailing:?}: {error}"
            );
        }
    }
}

#[cfg(feature = "zstd")]
#[test]
fn row_97_dictionaries_and_wide_windows_are_refused_by_name() {
    let error = decompress("a.zst", data!("dictionary.zst")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("it needs dictionary "),
        "{error}"
    );
    let error = decompress("a.zst", data!("window.zst")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let said = "zstd, frame at byte 0: its window is 268435456 bytes, and 134217728 are allowed";
    assert!(error.to_string().ends_with(said), "{error}");
    let wide = Decompress::new().max_window(256 << 20);
    let read = decompress_with(wide, "a.zst", Bytes::from_static(data!("window.zst"))).unwrap();
    assert_eq!(read.data, content_of_all());
}

#[cfg(feature = "xz")]
#[test]
fn row_97_a_large_dictionary_of_xz_is_refused() {
    let narrow = Decompress::new().max_window(1 << 20);
    let error = decompress_with(narrow, "a.xz", Bytes::from_static(data!("text.xz"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

#[cfg(feature = "lz4")]
#[test]
fn frames_of_lz4_that_are_not_read_are_refused_by_name() {
    let legacy = decompress("a.lz4", &b"\x02\x21\x4c\x18\x05\0\0\0\x10aaaa"[..]).unwrap_err();
    let dictionary = decompress(
        "a.lz4",
        &b"\x04\x22\x4d\x18\x61\x40\x01\0\0\0\0\0\0\0\0"[..],
    )
    .unwrap_err();
    assert_eq!(
        [legacy.kind(), dictionary.kind()],
        [ErrorKind::Unsupported; 2]
    );
}

fn packed(codec: Codec, data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    match codec {
        Codec::Gzip => {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(data).unwrap();
            packer.finish().unwrap()
        }
        #[cfg(feature = "zstd")]
        Codec::Zstd => ::zstd::stream::encode_all(data, 1).unwrap(),
        #[cfg(feature = "lz4")]
        Codec::Lz4 => {
            let mut packer = lz4_flex::frame::FrameEncoder::new(Vec::new());
            packer.write_all(data).unwrap();
            packer.finish().unwrap()
        }
        #[cfg(feature = "bzip2")]
        Codec::Bzip2 => {
            let mut packer =
                ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::best());
            packer.write_all(data).unwrap();
            packer.finish().unwrap()
        }
        #[cfg(feature = "xz")]
        Codec::Xz => {
            let mut packer =
                lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(0))
                    .unwrap();
            packer.write_all(data).unwrap();
            packer.finish().unwrap()
        }
        #[allow(
            unreachable_patterns,
            reason = "with all features there is no codec left"
        )]
        _ => unreachable!(),
    }
}

/// Returns the codecs whose features are enabled.
fn codecs() -> Vec<Codec> {
    let mut codecs: Vec<Codec> = files().into_iter().map(|(codec, ..)| codec).collect();
    codecs.dedup();
    codecs
}

#[test]
fn row_98_bombs_are_refused_and_not_kept() {
    for codec in codecs() {
        let bomb = packed(codec, &vec![0; 8 << 20]);
        let refused = |bytes, ratio| {
            let pipe = Decompress::new().max_expansion(bytes, ratio);
            decompress_with(pipe, "bomb", bomb.clone().into())
                .err()
                .map(|error| error.kind())
        };
        assert_eq!(refused(1 << 30, 1 << 20), None, "{codec}");
        assert_eq!(refused(4 << 20, 1 << 20), Some(ErrorKind::Limit), "{codec}");
        assert_eq!(refused(1 << 30, 100), Some(ErrorKind::Limit), "{codec}");
        let narrow = Expansion {
            bytes: 2 << 20,
            ..Expansion::default()
        };
        let (read, error) = streamed(codec, &bomb, narrow);
        assert_eq!(error, Some(ErrorKind::Limit), "{codec}");
        assert!(read.len() <= 2 << 20, "{codec}");
    }
}

#[test]
fn row_98_many_empty_members_end() {
    for codec in codecs() {
        let empty = packed(codec, b"");
        let start = std::time::Instant::now();
        let file = decompress("empty", empty.repeat(100_000)).unwrap();
        assert_eq!(file.data, "", "{codec}");
        assert!(start.elapsed().as_secs() < 10, "{codec}");
    }
    if cfg!(feature = "zstd") {
        let skippable = b"\x50\x2a\x4d\x18\0\0\0\0".repeat(100_000);
        assert_eq!(decompress("empty", skippable).unwrap().data, "");
    }
}

#[test]
fn row_106_content_goes_before_the_name() {
    let hello = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 5, 0, 0xfa, 0xff, b'h', b'e', b'l', b'l', b'o',
    ];
    let hello = [&hello[..], &[0x86, 0xa6, 0x10, 0x36, 5, 0, 0, 0]].concat();
    assert_eq!(
        decompress("a.txt", hello.clone()).unwrap(),
        File::new("a.txt", "hello")
    );
    assert_eq!(
        decompress("a.txt.zst", hello).unwrap(),
        File::new("a.txt", "hello")
    );
    let plain = Bytes::from_static(b"plain");
    let passed = decompress("a.txt", plain.clone()).unwrap();
    assert_eq!(passed.data.as_ptr(), plain.as_ptr());
    let error = decompress("a.txt.zst", plain).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error
            .to_string()
            .ends_with("its name says zstd, and its first bytes are of no codec"),
        "{error}"
    );
    let error = decompress("a.txt.gz", Bytes::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert_eq!(
        decompress("a.txt", Bytes::new()).unwrap(),
        File::new("a.txt", "")
    );
}

#[test]
fn a_codec_whose_feature_is_off_is_named() {
    for (feature, codec, magic) in [
        (cfg!(feature = "zstd"), "zstd", &b"\x28\xb5\x2f\xfd"[..]),
        (cfg!(feature = "lz4"), "lz4", b"\x04\x22\x4d\x18"),
        (cfg!(feature = "bzip2"), "bzip2", b"BZh9"),
        (cfg!(feature = "xz"), "xz", b"\xfd7zXZ\0"),
    ] {
        let error = decompress("a", magic).unwrap_err();
        let expected = if feature {
            ErrorKind::Truncated
        } else {
            ErrorKind::Unsupported
        };
        assert_eq!(error.kind(), expected, "{error}");
        assert!(error.to_string().contains(codec), "{error}");
    }
}

#[test]
fn any_bytes_are_survived() {
    for codec in some_of(codecs()) {
        let data = [
            packed(codec, b"some text, some more text\n"),
            packed(codec, b"last\n"),
        ]
        .concat();
        let lines = || {
            crate::formats::Lines::new()
                .max_expansion(1000, 1000)
                .bytes()
        };
        assert_eq!(crate::testing::check_format(lines, &data), 2, "{codec}");
    }
}
