//! Tests of Pillow's results, and of all kinds of sizes and parts.

use datapipes::{ErrorKind, Rng};

use super::passes::Kernel;
use super::resampler::Resampler;
use super::view::{Part, View};
use super::*;
use crate::{crop, decode};

const FILTERS: [ResizeFilter; 6] = [
    ResizeFilter::Nearest,
    ResizeFilter::Box,
    ResizeFilter::Bilinear,
    ResizeFilter::Hamming,
    ResizeFilter::CatmullRom,
    ResizeFilter::Lanczos3,
];

/// One resampler for each kernel that this machine supports.
fn resamplers() -> Vec<Resampler> {
    let best = Kernel::best();
    let all = if best == Kernel::Portable {
        vec![best]
    } else {
        vec![best, Kernel::Portable]
    };
    all.into_iter().map(Resampler::new).collect()
}

fn noise(width: u32, height: u32, channels: u8) -> Image {
    let len = width * height * u32::from(channels);
    let data = (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    Image::new(width, height, channels, data).unwrap()
}

/// Returns a number from 1, often a small one.
fn edge(rng: &mut Rng, most: u64) -> u32 {
    let most = if rng.chance(0.3) { 4 } else { most };
    1 + rng.below(most) as u32
}

fn scaled(
    resampler: &mut Resampler,
    source: View<'_>,
    part: Part,
    size: (u32, u32),
    filter: ResizeFilter,
) -> Vec<u8> {
    // Old contents must be overwritten.
    let mut out = vec![0xA5; size.0 as usize * size.1 as usize * source.channels()];
    resampler
        .resize(source, part, size.0, size.1, filter, &mut out)
        .unwrap();
    out
}

#[test]
fn every_byte_is_pillows() {
    let rgb = decode(include_bytes!("../../tests/data/resize.source.png")).unwrap();
    let red = rgb.data().iter().step_by(3).copied().collect();
    let gray = Image::new(rgb.width(), rgb.height(), 1, red).unwrap();
    let mut resamplers = resamplers();
    let mut cases = 0;
    for line in include_str!("../../tests/data/resize.cases.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let filter = FILTERS
            .into_iter()
            .find(|f| format!("{f:?}") == fields[0])
            .unwrap();
        let number = |n: usize| fields[n].parse::<f64>().unwrap();
        let (left, top) = (number(2), number(3));
        let part = Part {
            left,
            top,
            width: number(4) - left,
            height: number(5) - top,
        };
        let size = (number(6) as u32, number(7) as u32);
        let byte = |n: usize| u8::from_str_radix(&fields[8][n..n + 2], 16).unwrap();
        let expected: Vec<u8> = (0..fields[8].len()).step_by(2).map(byte).collect();
        let source = View::from(if fields[1] == "1" { &gray } else { &rgb });
        for resampler in &mut resamplers {
            let got = scaled(resampler, source, part, size, filter);
            assert_eq!(got, expected, "{filter:?} {part:?} -> {size:?}");
        }
        cases += 1;
    }
    assert_eq!(cases, 14 * FILTERS.len());
}

#[test]
fn all_kernels_give_the_same_for_any_size_and_part() {
    let mut rng = Rng::from_key([8, 0, 0, 0]);
    let mut resamplers = resamplers();
    for n in 0..400 {
        let (width, height, channels) = (
            edge(&mut rng, 50),
            edge(&mut rng, 50),
            1 + 2 * (n % 2) as u8,
        );
        let size = (edge(&mut rng, 50), edge(&mut rng, 50));
        // The stride is longer than a row, and there are no bytes after the last pixel.
        let row = width as usize * usize::from(channels);
        let stride = row + rng.below(20) as usize;
        let len = stride * (height as usize - 1) + row;
        let data: Vec<u8> = (0..len).map(|_| (rng.next_u64() >> 56) as u8).collect();
        let source = View::new(&data, width, height, channels, stride).unwrap();
        let mut span = |edge: u32| {
            let (a, b) = (
                rng.below(1000) as f64 / 1000.0,
                rng.below(1000) as f64 / 1000.0,
            );
            let (start, end) = (
                a.min(b) * f64::from(edge),
                (a.max(b) + 0.001) * f64::from(edge),
            );
            (start, end - start)
        };
        let ((left, part_w), (top, part_h)) = (span(width), span(height));
        let part = Part {
            left,
            top,
            width: part_w,
            height: part_h,
        };
        for part in [source.whole(), part] {
            let filter = FILTERS[n % FILTERS.len()];
            let all: Vec<Vec<u8>> = resamplers
                .iter_mut()
                .map(|r| scaled(r, source, part, size, filter))
                .collect();
            assert!(
                all.windows(2).all(|w| w[0] == w[1]),
                "{source:?} {part:?} -> {size:?} {filter:?}"
            );
        }
    }
}

#[test]
fn one_color_stays_one_color() {
    let mut rng = Rng::from_key([9, 0, 0, 0]);
    for resampler in &mut resamplers() {
        for n in 0..300 {
            let (width, height) = (edge(&mut rng, 90), edge(&mut rng, 90));
            let color = [[0, 255, 77], [255; 3], [1, 2, 254]][n % 3];
            let data = color.repeat(width as usize * height as usize);
            let image = Image::new(width, height, 3, data).unwrap();
            let (view, size) = (View::from(&image), (edge(&mut rng, 90), edge(&mut rng, 90)));
            let out = scaled(
                resampler,
                view,
                view.whole(),
                size,
                FILTERS[n % FILTERS.len()],
            );
            assert!(
                out.chunks(3).all(|pixel| pixel == color),
                "{image:?} {size:?} {n}"
            );
        }
    }
}

#[test]
fn the_same_size_is_the_same_picture() {
    for filter in FILTERS {
        assert_eq!(
            resize(&noise(31, 17, 3), 31, 17, filter).unwrap(),
            noise(31, 17, 3)
        );
    }
}

#[test]
fn in_one_pass_is_the_same_as_in_two() {
    let part = Rect {
        x: 5,
        y: 3,
        width: 21,
        height: 11,
    };
    for channels in [1, 3] {
        let image = noise(40, 30, channels);
        for filter in FILTERS {
            let two = resize(&crop(&image, part).unwrap(), 16, 16, filter).unwrap();
            assert_eq!(
                resized_crop(&image, part, 16, 16, filter).unwrap(),
                two,
                "{filter:?}"
            );
        }
    }
}

#[test]
fn a_box_sees_beyond_its_edges_and_a_crop_does_not() {
    let mut image = Image::new(8, 8, 1, vec![0; 64]).unwrap();
    let inside = Rect {
        x: 2,
        y: 2,
        width: 4,
        height: 4,
    };
    for y in 2..6 {
        image.data_mut()[y * 8 + 2..y * 8 + 6].fill(200);
    }
    let part = Part {
        left: 2.0,
        top: 2.0,
        width: 4.0,
        height: 4.0,
    };
    let mut resampler = Resampler::default();
    let view = View::from(&image);
    let boxed = scaled(&mut resampler, view, part, (2, 2), ResizeFilter::Bilinear);
    let cropped = view.crop(inside).unwrap();
    let cropped = scaled(
        &mut resampler,
        cropped,
        cropped.whole(),
        (2, 2),
        ResizeFilter::Bilinear,
    );
    // Image.resize((2, 2), Image.BILINEAR, box=(2, 2, 6, 6)); Image.crop((2, 2, 6, 6)).resize(...)
    assert_eq!((boxed, cropped), (vec![153; 4], vec![200; 4]));
}

#[test]
fn rows_come_one_by_one_from_the_top() {
    let image = noise(40, 30, 3);
    for (size, filter) in [
        ((16, 9), ResizeFilter::Bilinear),
        ((50, 4), ResizeFilter::Lanczos3),
        ((40, 30), ResizeFilter::Box),
    ] {
        let (view, mut rows, mut all) = (View::from(&image), 0, Vec::new());
        let each = |y: u32, row: &[u8]| {
            assert_eq!((y, row.len()), (rows, size.0 as usize * 3));
            rows += 1;
            all.extend_from_slice(row);
        };
        Resampler::default()
            .resize_rows(view, view.whole(), size.0, size.1, filter, each)
            .unwrap();
        assert_eq!(
            (rows, all),
            (
                size.1,
                resize(&image, size.0, size.1, filter).unwrap().into_data()
            )
        );
    }
}

#[test]
fn a_long_line_becomes_a_pixel() {
    for (width, height) in [(4000, 1), (1, 4000)] {
        let data = (0..4000).map(|i| (i % 256) as u8).collect();
        let image = Image::new(width, height, 1, data).unwrap();
        for filter in FILTERS {
            // Image.fromarray(numpy.arange(4000, dtype=numpy.uint8).reshape(...)).resize((1, 1),
            // ...)
            let expected = match filter {
                ResizeFilter::Nearest => [208],
                ResizeFilter::Hamming => [127],
                _ => [126],
            };
            assert_eq!(
                resize(&image, 1, 1, filter).unwrap().data(),
                expected,
                "{filter:?} {width}"
            );
        }
    }
}

#[test]
fn memory_is_used_again_unless_it_is_large() {
    let image = noise(300, 200, 3);
    let mut resampler = Resampler::default();
    let run = |resampler: &mut Resampler| {
        let mut rng = Rng::from_key([3, 0, 0, 0]);
        for filter in FILTERS {
            for _ in 0..20 {
                let (x, y) = (rng.below(200) as u32, rng.below(100) as u32);
                let part = Rect {
                    x,
                    y,
                    width: edge(&mut rng, 99),
                    height: edge(&mut rng, 99),
                };
                let view = View::from(&image).crop(part).unwrap();
                scaled(resampler, view, view.whole(), (64, 48), filter);
            }
        }
    };
    run(&mut resampler);
    let memory = resampler.memory();
    run(&mut resampler);
    assert_eq!(resampler.memory(), memory);

    let line = noise(3, 1, 1);
    let view = View::from(&line);
    scaled(
        &mut resampler,
        view,
        view.whole(),
        (1_200_000, 1),
        ResizeFilter::Bilinear,
    );
    assert!(
        resampler.memory() < 8 << 20,
        "{} bytes are kept",
        resampler.memory()
    );
}

#[test]
fn row_110_memory_in_between_is_bounded() {
    let line = noise(3, 1, 1);
    let view = View::from(&line);
    let error = Resampler::default()
        .resize_rows(
            view,
            view.whole(),
            100_000_000,
            1,
            ResizeFilter::Bilinear,
            |_, _| unreachable!(),
        )
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(
        error
            .to_string()
            .contains("from 3x1 to 100000000x1 needs 2900000096 bytes"),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_is_an_error_with_numbers() {
    let image = noise(10, 8, 3);
    let view = View::from(&image);
    let mut out = vec![0; 27];
    let mut resampler = Resampler::default();
    for (left, top, width, height) in [
        (0.0, 0.0, 10.1, 8.0),
        (-0.1, 0.0, 5.0, 5.0),
        (3.0, 3.0, 0.0, 2.0),
        (3.0, 3.0, -1.0, 2.0),
        (0.0, f64::NAN, 1.0, 1.0),
        (0.0, 0.0, f64::INFINITY, 1.0),
        (0.0, 7.0, 1.0, 2.0),
    ] {
        let part = Part {
            left,
            top,
            width,
            height,
        };
        let error = resampler
            .resize(view, part, 3, 3, ResizeFilter::Bilinear, &mut out)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.to_string().contains("in an image of 10x8"), "{error}");
    }
    let error = resampler
        .resize(view, view.whole(), 3, 2, ResizeFilter::Box, &mut out)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: 27 bytes for an image of 3x2x3"
    );
    let error = resampler
        .resize(view, view.whole(), 0, 2, ResizeFilter::Box, &mut out)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);

    for (len, width, height, channels, stride) in [
        (24, 3, 3, 3, 9),
        (27, 3, 3, 3, 8),
        (27, 0, 3, 3, 9),
        (27, 3, 3, 4, 9),
        (9, 1, u32::MAX, 1, usize::MAX),
    ] {
        let error = View::new(&out[..len], width, height, channels, stride).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(
            error.to_string().contains(&format!("{len} bytes")),
            "{error}"
        );
    }
    let beyond = Rect {
        x: 9,
        y: 0,
        width: 2,
        height: 1,
    };
    assert_eq!(view.crop(beyond).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(
        resized_crop(&image, beyond, 3, 3, ResizeFilter::Box)
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
}

#[test]
fn sizes_without_pixels_or_without_end_are_errors() {
    for (width, height) in [(0, 5), (5, 0), (u32::MAX, u32::MAX), (20_000, 20_000)] {
        let error = resize(&noise(4, 4, 3), width, height, ResizeFilter::Bilinear).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(
            error.to_string().contains(&format!("{width}x{height}")),
            "{error}"
        );
    }
    assert_eq!(
        resize_shorter(&noise(4, 4, 3), 0, ResizeFilter::Bilinear)
            .unwrap_err()
            .kind(),
        ErrorKind::Config
    );
    assert!(resize_shorter(&noise(4000, 1, 3), u32::MAX, ResizeFilter::Bilinear).is_err());
}

#[test]
fn the_shorter_edge_leads() {
    let size = |image: Image| (image.width(), image.height());
    assert_eq!(
        size(resize_shorter(&noise(50, 37, 3), 20, ResizeFilter::Bilinear).unwrap()),
        (27, 20)
    );
    assert_eq!(
        size(resize_shorter(&noise(37, 50, 3), 20, ResizeFilter::Bilinear).unwrap()),
        (20, 27)
    );
    assert_eq!(
        size(resize_shorter(&noise(1, 1, 3), 20, ResizeFilter::Bilinear).unwrap()),
        (20, 20)
    );
}
