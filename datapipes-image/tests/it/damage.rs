//! WebP, GIF, BMP and TIFF files that are cut, damaged, or malicious.

use std::time::{Duration, Instant};

use datapipes::ErrorKind;
use datapipes_image::{DecodeImage, decode, dimensions};
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::file;
use crate::formats::files;

fn put_u32(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

#[test]
fn row_108_a_cut_file_is_an_error_wherever_it_is_cut() {
    for (name, _) in files() {
        let bytes = file(&name);
        // Cuts the headers at each byte, the rest at each percent, and the last bytes one by one.
        let percents = (0..100).map(|percent| bytes.len() * percent / 100);
        let ends = (0..64.min(bytes.len()))
            .chain(percents)
            .chain(bytes.len().saturating_sub(16)..bytes.len());
        for end in ends {
            let Err(error) = decode(&bytes[..end]) else {
                panic!("{name} cut at {end} of {}", bytes.len())
            };
            assert_eq!(
                error.kind(),
                ErrorKind::Truncated,
                "{name} cut at {end}: {error}"
            );
        }
    }
}

/// The sizes in the containers are consistent, but there is less data than the pixels need, as
/// after a careless repair.
#[test]
fn row_108_short_data_in_whole_containers_is_an_error() {
    let fails = |bytes: &[u8], what: String| {
        let Err(error) = decode(bytes) else {
            panic!("{what}")
        };
        let expected = matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Corrupt);
        assert!(expected, "{what}: {error}");
    };
    for name in [
        "lossy.webp",
        "cwebp_simple.webp",
        "lossless.webp",
        "lossless_grain.webp",
        "cwebp_palette.webp",
    ] {
        let bytes = file(&format!("formats/{name}"));
        let size = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
        // A bit reader may be some bytes ahead, so that the last three bytes are not cut.
        for len in (0..size - 3).step_by(2) {
            let mut cut = bytes[..20 + len].to_vec();
            put_u32(&mut cut, 4, 12 + len);
            put_u32(&mut cut, 16, len);
            fails(&cut, format!("{name} with {len} of {size} bytes"));
        }
    }
    for name in ["plain.gif", "interlaced.gif", "screen_larger.gif"] {
        let bytes = file(&format!("formats/{name}"));
        let image = 13 + 96;
        assert_eq!(bytes[image], b',');
        let data = image + 11;
        let len = usize::from(bytes[data]);
        for keep in 0..len - 2 {
            let mut cut = bytes[..data + 1 + keep].to_vec();
            cut[data] = keep as u8;
            cut.extend(if keep > 0 { &b"\0;"[..] } else { b";" });
            fails(&cut, format!("{name} with {keep} of {len} bytes"));
        }
    }
    // Deflate is left out: its decoder follows the stream and not the length in the file.
    for name in ["rgb_none", "rgb_lzw", "rgb_packbits", "gray", "bits"] {
        let bytes = file(&format!("formats/{name}.tif"));
        let entry = bytes
            .windows(4)
            .position(|w| w == [0x17, 1, 4, 0] || w == [0x17, 1, 3, 0])
            .unwrap()
            + 8;
        let len = usize::from(u16::from_le_bytes([bytes[entry], bytes[entry + 1]]));
        for keep in (0..len - 6).step_by(3) {
            let mut cut = bytes.clone();
            cut[entry..entry + 2].copy_from_slice(&(keep as u16).to_le_bytes());
            fails(&cut, format!("{name} with {keep} of {len} bytes"));
        }
    }
    // An end-of-picture code after each row of run lengths, and in the middle of one.
    let bytes = file("formats/rle8.bmp");
    let data = 14 + 40 + 1024;
    for at in (data..bytes.len() - 4).step_by(2) {
        let cut = [&bytes[..at], &[0, 1]].concat();
        fails(&cut, format!("rle8 ended at {at}"));
    }
}

#[test]
fn row_109_changed_bytes_do_not_panic_and_end_soon() {
    let begun = Instant::now();
    let settings = DecodeImage::new().max_pixels(1 << 20);
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for (name, _) in files() {
        let bytes = file(&name);
        for _ in 0..60 {
            let mut bytes = bytes.clone();
            for _ in 0..=next() % 3 {
                // Damages the headers more often than the rest.
                let at = next()
                    % bytes
                        .len()
                        .min(if next() % 2 == 0 { 128 } else { usize::MAX });
                bytes[at] = if next() % 4 == 0 { 0xff } else { next() as u8 };
            }
            match settings.decode(&bytes) {
                Ok(image) => {
                    assert_eq!(
                        settings.dimensions(&bytes).unwrap(),
                        (image.width(), image.height()),
                        "{name}"
                    );
                }
                Err(error) => assert!(!error.to_string().contains("panicked"), "{name}: {error}"),
            }
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// Computes the CRC-32 of a PNG chunk.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| {
        if crc & 1 == 1 {
            crc >> 1 ^ 0xedb8_8320
        } else {
            crc >> 1
        }
    };
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| bit(crc))
    })
}

/// Makes a PNG with this stream of pixels and correct chunk checksums.
fn png_of(plain: &[u8], stream: &[u8]) -> Vec<u8> {
    let data = plain.windows(4).position(|w| w == b"IDAT").unwrap();
    let mut bytes = plain[..data - 4].to_vec();
    bytes.extend((stream.len() as u32).to_be_bytes());
    let chunk = [b"IDAT", stream].concat();
    bytes.extend(&chunk);
    bytes.extend(crc32(&chunk).to_be_bytes());
    bytes.extend(&plain[plain.len() - 12..]);
    bytes
}

#[test]
fn row_109_a_png_is_as_its_checksums_say() {
    let plain = file("formats/expected00.png");
    let data = plain.windows(4).position(|w| w == b"IDAT").unwrap() + 4;
    let stream = &plain[data..plain.len() - 16];
    assert_eq!(png_of(&plain, stream), plain);
    let mut crc = plain.clone();
    crc[data + stream.len()] ^= 1;
    assert_eq!(decode(&crc).unwrap_err().kind(), ErrorKind::Corrupt);
    // The chunk's own checksum is corrected: the header of the zlib stream is wrong, or the stream
    // is too short.
    for at in [0, 1] {
        let mut stream = stream.to_vec();
        stream[at] ^= 0x11;
        assert_eq!(
            decode(&png_of(&plain, &stream)).unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{at}"
        );
    }
    for percent in 0..99 {
        let short = &stream[..stream.len() * percent / 100];
        assert!(decode(&png_of(&plain, short)).is_err(), "{percent} %");
    }
}

/// Returns the type and the body of each chunk of a PNG.
fn chunks_of(png: &[u8]) -> Vec<(&[u8], &[u8])> {
    let (mut chunks, mut at) = (Vec::new(), 8);
    while at < png.len() {
        let len = u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
        chunks.push((&png[at + 4..at + 8], &png[at + 8..at + 8 + len]));
        at += 12 + len;
    }
    chunks
}

fn put(png: &mut Vec<u8>, kind: &[u8], body: &[u8]) {
    png.extend((body.len() as u32).to_be_bytes());
    let chunk = [kind, body].concat();
    png.extend(&chunk);
    png.extend(crc32(&chunk).to_be_bytes());
}

fn stream_of(png: &[u8]) -> Vec<u8> {
    chunks_of(png)
        .iter()
        .filter(|(kind, _)| *kind == b"IDAT")
        .flat_map(|(_, body)| body.to_vec())
        .collect()
}

/// Replaces the stream of pixels of a PNG, in chunks of `size` bytes, and puts other chunks before
/// it.
fn png_with(png: &[u8], stream: &[u8], size: usize, before: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut made = png[..8].to_vec();
    let mut is_first = true;
    for (kind, body) in chunks_of(png) {
        if kind != b"IDAT" {
            put(&mut made, kind, body);
        } else if std::mem::take(&mut is_first) {
            before
                .iter()
                .for_each(|(kind, body)| put(&mut made, kind, body));
            stream
                .chunks(size)
                .for_each(|part| put(&mut made, b"IDAT", part));
        }
    }
    made
}

#[test]
fn row_109_the_checksum_of_a_pngs_pixels_is_compared() {
    for name in [
        "formats/expected00.png",
        "rgb420.expected.png",
        "png.rgba8.png",
        "png.rgb16.png",
        "png.rgba16.png",
        "png.interlaced.png",
        "png.palette.png",
        "png.palette_trns.png",
        "gray_png.8.png",
        "gray_png.alpha.png",
        "gray_png.16.png",
        "bits_png.1.png",
    ] {
        let whole = file(name);
        let (expected, stream) = (decode(&whole).unwrap(), stream_of(&whole));
        let size = dimensions(&whole).unwrap();
        let control: Vec<u8> = [0u32, size.0, size.1, 0, 0]
            .iter()
            .flat_map(|n| n.to_be_bytes())
            .collect();
        let control = [&control[..], &[0, 1, 0, 1, 0, 0]].concat();
        let animated: [(&[u8], &[u8]); 2] =
            [(b"acTL", &[0, 0, 0, 1, 0, 0, 0, 0]), (b"fcTL", &control)];
        for before in [&[][..], &animated] {
            let read = |stream: &[u8], size| decode(&png_with(&whole, stream, size, before));
            for size in [1, 7, 1000, stream.len()] {
                assert!(
                    read(&stream, size).unwrap() == expected,
                    "{name} in chunks of {size}"
                );
                for at in stream.len() - 4..stream.len() {
                    let mut wrong = stream.clone();
                    wrong[at] ^= 0x10;
                    let error = read(&wrong, size).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
                }
                for missing in 1..=4 {
                    let error = read(&stream[..stream.len() - missing], size).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Truncated, "{name}: {error}");
                }
                // Bytes after the stream are not part of it.
                assert!(
                    read(&[&stream[..], b"more"].concat(), size).unwrap() == expected,
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn row_109_the_checksum_of_a_masks_classes_is_compared() {
    for name in [
        "gray_png.8.png",
        "gray_png.16.png",
        "png.palette.png",
        "bits_png.1.png",
    ] {
        let whole = file(name);
        let mut stream = stream_of(&whole);
        assert!(
            datapipes_image::Mask::<u16>::decode(&png_with(&whole, &stream, 9, &[])).is_ok(),
            "{name}"
        );
        *stream.last_mut().unwrap() ^= 1;
        let wrong = datapipes_image::Mask::<u16>::decode(&png_with(&whole, &stream, 9, &[]));
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
    }
}

/// A small image has a stream of 64 MiB. All of it is inflated for the checksum, up to the limit.
#[test]
fn row_111_a_png_with_more_in_its_stream_than_its_pixels_is_bounded() {
    let (zeros, mut bomb) = (vec![0u8; 64 << 20], Vec::new());
    PngEncoder::new(&mut bomb)
        .write_image(&zeros, 8 << 10, 8 << 10, ExtendedColorType::L8)
        .unwrap();
    let bomb = png_with(&file("gray_png.8.png"), &stream_of(&bomb), 1 << 16, &[]);
    let error = DecodeImage::new()
        .max_bytes(1 << 20)
        .decode(&bomb)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(decode(&bomb).is_ok());
}

/// Small files whose headers announce huge images.
#[test]
fn row_110_huge_pictures_are_refused_from_their_headers() {
    let begun = Instant::now();
    let limit = |name: &str, change: &dyn Fn(&mut Vec<u8>), size: (u32, u32)| {
        let mut bytes = file(&format!("formats/{name}"));
        change(&mut bytes);
        assert_eq!(dimensions(&bytes).unwrap(), size, "{name}");
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{name}: {error}");
        assert!(
            error
                .to_string()
                .contains(&format!("{}x{}", size.0, size.1)),
            "{error}"
        );
    };
    limit(
        "lossy.webp",
        &|b| b[26..30].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]),
        (16383, 16383),
    );
    limit(
        "lossless.webp",
        &|b| b[21..25].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]),
        (16384, 16384),
    );
    limit(
        "animated.webp",
        &|b| b[24..30].fill(0xff),
        (1 << 24, 1 << 24),
    );
    limit("plain.gif", &|b| b[6..10].fill(0xff), (65535, 65535));
    limit(
        "plain.gif",
        &|b| b[13 + 96 + 5..][..4].fill(0xff),
        (65535, 65535),
    );
    // A frame at the far corner of a small screen.
    limit(
        "plain.gif",
        &|b| b[13 + 96 + 1..][..4].fill(0xff),
        (65535 + 23, 65535 + 17),
    );
    limit(
        "rgb24.bmp",
        &|b| b[18..26].copy_from_slice(&[0xa0, 0x86, 1, 0, 0xa0, 0x86, 1, 0]),
        (100_000, 100_000),
    );
    limit(
        "rgb24.bmp",
        &|b| b[18..26].copy_from_slice(&[255, 255, 255, 127, 1, 0, 0, 128]),
        (0x7fff_ffff, 0x7fff_ffff),
    );
    let edge = |b: &mut Vec<u8>, tag: u8, value: u32| {
        let at = b
            .windows(3)
            .position(|w| w[0] == tag && w[1] == 1 && matches!(w[2], 3 | 4))
            .unwrap();
        b[at + 2] = 4;
        b[at + 8..at + 12].copy_from_slice(&value.to_le_bytes());
    };
    for size in [100_000, u32::MAX] {
        limit(
            "rgb_lzw.tif",
            &|b| [0, 1].into_iter().for_each(|tag| edge(b, tag, size)),
            (size, size),
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// Impossible sizes, and sizes that contradict each other.
#[test]
fn row_110_sizes_without_sense_are_errors() {
    for (name, at, values) in [
        ("lossy.webp", 26, &[0, 0][..]),
        // The canvas differs from the image.
        ("lossy_alpha.webp", 24, &[99]),
        ("animated.webp", 24, &[3]),
        ("plain.gif", 13 + 96 + 5, &[0, 0]),
        ("rgb24.bmp", 18, &[0, 0, 0, 0]),
        ("rgb24.bmp", 22, &[0, 0, 0, 0]),
        ("rgb24.bmp", 21, &[0xff]),
        // The pixels begin within the headers; a palette has 2^32 colours.
        ("rgb24.bmp", 10, &[20]),
        ("palette8.bmp", 46, &[255, 255, 255, 255]),
        ("palette8.bmp", 46, &[9, 0, 0, 0]),
    ] {
        let mut bytes = file(&format!("formats/{name}"));
        bytes[at..at + values.len()].copy_from_slice(values);
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
    }
}

#[test]
fn row_110_limits_are_the_users_too() {
    for name in [
        "lossy.webp",
        "lossless.webp",
        "plain.gif",
        "rgb24.bmp",
        "rgb_lzw.tif",
    ] {
        let bytes = file(&format!("formats/{name}"));
        let (width, height) = dimensions(&bytes).unwrap();
        let pixels = u64::from(width) * u64::from(height);
        assert!(DecodeImage::new().max_pixels(pixels).decode(&bytes).is_ok());
        for settings in [
            DecodeImage::new().max_pixels(pixels - 1),
            DecodeImage::new().max_bytes(3 * pixels - 1),
        ] {
            assert_eq!(
                settings.decode(&bytes).unwrap_err().kind(),
                ErrorKind::Limit,
                "{name}"
            );
        }
    }
}

/// 64 MiB of zeros as a profile, and as text, of a small PNG: neither is expanded.
#[test]
fn row_111_a_png_with_a_bomb_in_its_notes_is_decoded_without_them() {
    let (zeros, mut bomb) = (vec![0u8; 64 << 20], Vec::new());
    PngEncoder::new(&mut bomb)
        .write_image(&zeros, 8 << 10, 8 << 10, ExtendedColorType::L8)
        .unwrap();
    let mut stream = Vec::new();
    let mut at = 8;
    while at < bomb.len() {
        let len = u32::from_be_bytes(bomb[at..at + 4].try_into().unwrap()) as usize;
        if &bomb[at + 4..at + 8] == b"IDAT" {
            stream.extend(&bomb[at + 8..at + 8 + len]);
        }
        at += 12 + len;
    }
    assert!(stream.len() < 1 << 20);
    let plain = file("formats/expected00.png");
    for (kind, head) in [
        (b"iCCP", &b"a\0\0"[..]),
        (b"zTXt", b"a\0\0"),
        (b"iTXt", b"a\0\x01\0\0\0"),
    ] {
        let mut bytes = plain[..33].to_vec();
        bytes.extend(((head.len() + stream.len()) as u32).to_be_bytes());
        bytes.extend(kind);
        bytes.extend(head);
        bytes.extend(&stream);
        bytes.extend([0; 4]);
        bytes.extend(&plain[33..]);
        let small = DecodeImage::new().max_bytes(1 << 20);
        assert_eq!(small.decode(&bytes).unwrap(), decode(&plain).unwrap());
    }
}

#[test]
fn row_111_a_hundred_thousand_frames_cost_their_bytes() {
    let begun = Instant::now();
    let gif = file("formats/plain.gif");
    let mut bytes = gif[..gif.len() - 1].to_vec();
    for _ in 0..100_000 {
        bytes.extend(b"!\xf9\x04\0\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0");
    }
    let cut = bytes.clone();
    bytes.push(b';');
    assert_eq!(decode(&bytes).unwrap(), decode(&gif).unwrap());
    assert_eq!(decode(&cut).unwrap_err().kind(), ErrorKind::Truncated);

    let webp = file("formats/animated.webp");
    let at = webp.windows(4).position(|w| w == b"ANMF").unwrap();
    let len = 8 + u32::from_le_bytes(webp[at + 4..at + 8].try_into().unwrap()) as usize;
    let one = webp[at..at + len + (len & 1)].to_vec();
    let mut bytes = webp.clone();
    for _ in 0..100_000 {
        bytes.extend(&one);
    }
    let size = bytes.len() - 8;
    put_u32(&mut bytes, 4, size);
    assert_eq!(decode(&bytes).unwrap(), decode(&webp).unwrap());
    bytes.pop();
    assert_eq!(decode(&bytes).unwrap_err().kind(), ErrorKind::Truncated);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Directories that form a cycle, and lists that are longer than the file.
#[test]
fn row_111_directories_that_point_at_each_other_end() {
    let begun = Instant::now();
    let bytes = file("formats/gray.tif");
    let first = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let count = usize::from(u16::from_le_bytes([bytes[first], bytes[first + 1]]));
    let next = first + 2 + 12 * count;
    let mut circle = bytes.clone();
    put_u32(&mut circle, next, first);
    let error = decode(&circle).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("point at each other"), "{error}");
    assert!(dimensions(&circle).is_ok());

    for entry in (first + 2..next).step_by(12) {
        for huge in [0x10_0000, 0x7fff_ffff, u32::MAX as usize] {
            let mut long = bytes.clone();
            put_u32(&mut long, entry + 4, huge);
            assert!(decode(&long).is_err());
        }
    }
    // Tiles of 2^31 pixels in each direction for a small image.
    let mut tiles = file("formats/tiles.tif");
    for tag in [0x42, 0x43] {
        let at = tiles
            .windows(3)
            .position(|w| w[0] == tag && w[1] == 1 && matches!(w[2], 3 | 4))
            .unwrap();
        tiles[at + 2] = 4;
        put_u32(&mut tiles, at + 8, 0x7fff_fff0);
    }
    assert!(decode(&tiles).is_err());
    assert!(begun.elapsed() < Duration::from_secs(5));
}
