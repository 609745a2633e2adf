//! The step from files to rows of batches, compared with the separate steps.

use bytes::Bytes;
use datapipes::{DataLoader, ErrorKind, Graph, OnError, Rng, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{
    ResizeFilter, center_crop, decode, hflip, random_resized_crop, resize, resize_shorter,
    to_tensor, to_tensor_u8,
};

use crate::{file, jpeg};

fn rng(key: u64) -> Rng {
    Rng::from_key([key, 1, 2, 3])
}

/// Returns files of several kinds: all eight orientations, subsampled, progressive, gray, CMYK,
/// PNG.
fn files() -> Vec<(String, Vec<u8>)> {
    let exif = (1..=8).map(|n| format!("exif{n}.jpg"));
    let others = [
        "rgb444.jpg",
        "rgb422.jpg",
        "rgb420.jpg",
        "progressive.jpg",
        "restarts.jpg",
        "gray.jpg",
        "cmyk.jpg",
    ];
    let pngs = ["png.rgba8.png", "png.palette.png", "gray_png.16.png"];
    let names = exif.chain(others.into_iter().chain(pngs).map(str::to_owned));
    names
        .map(|name| (name.clone(), file(&name)))
        .chain([("photo".to_owned(), jpeg(150, 101, |_| {}))])
        .collect()
}

/// Converts `[C, H, W]` to `[H, W, C]`.
fn interleaved(planes: &Tensor) -> Tensor {
    let &[c, h, w] = planes.shape() else {
        panic!("not a picture")
    };
    let values = planes.as_slice::<f32>().unwrap();
    let swapped = (0..h * w * c)
        .map(|n| values[n % c * h * w + n / c])
        .collect();
    Tensor::from_vec::<f32>(swapped, [h, w, c]).unwrap()
}

#[test]
fn one_step_is_the_same_as_many() {
    let crop = RandomResizedCrop::new(20, 13).scale(0.05, 1.0);
    for (name, file) in files() {
        for key in 0..12 {
            let mut draws = rng(key);
            let mut image = random_resized_crop(&decode(&file).unwrap(), crop, &mut draws).unwrap();
            if draws.chance(0.5) {
                hflip(&mut image);
            }
            let (floats, bytes) = (
                to_tensor(&image, &Normalize::IMAGENET).unwrap(),
                to_tensor_u8(&image).unwrap(),
            );

            let rows = ImageRows::random_resized_crop(crop).random_hflip(0.5);
            assert_eq!(
                rows.tensor(&file, &mut rng(key)).unwrap(),
                bytes,
                "{name} {key}"
            );
            let rows = rows.normalize(Normalize::IMAGENET);
            let mut draws_of_rows = rng(key);
            assert_eq!(
                rows.tensor(&file, &mut draws_of_rows).unwrap(),
                floats,
                "{name} {key}"
            );
            assert_eq!(draws_of_rows.next_u64(), draws.next_u64(), "as many draws");
            let hwc = rows
                .layout(Layout::Hwc)
                .tensor(&file, &mut rng(key))
                .unwrap();
            assert_eq!(hwc, interleaved(&floats), "{name} {key}");
        }
    }
}

#[test]
fn what_is_not_random_is_the_same_too() {
    for (name, file) in files() {
        let image = decode(&file).unwrap();
        for filter in [
            ResizeFilter::Nearest,
            ResizeFilter::Bilinear,
            ResizeFilter::CatmullRom,
        ] {
            let whole = to_tensor_u8(&resize(&image, 17, 11, filter).unwrap()).unwrap();
            let rows = ImageRows::resize(17, 11).filter(filter);
            assert_eq!(
                rows.tensor(&file, &mut rng(0)).unwrap(),
                whole,
                "{name} {filter:?}"
            );
            let center = center_crop(&resize_shorter(&image, 14, filter).unwrap(), 12, 9).unwrap();
            let rows = ImageRows::resize_center_crop(14, 12, 9).filter(filter);
            assert_eq!(
                rows.tensor(&file, &mut rng(0)).unwrap(),
                to_tensor_u8(&center).unwrap(),
                "{name} {filter:?}"
            );
        }
        let stored = datapipes_image::DecodeImage::new().ignore_orientation();
        let expected = to_tensor_u8(
            &resize(&stored.decode(&file).unwrap(), 9, 8, ResizeFilter::Bilinear).unwrap(),
        )
        .unwrap();
        let rows = ImageRows::resize(9, 8).decoder(stored);
        assert_eq!(rows.tensor(&file, &mut rng(0)).unwrap(), expected, "{name}");
    }
}

/// Returns the mean difference in levels.
fn difference(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.as_slice::<u8>().unwrap(), b.as_slice::<u8>().unwrap());
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a.abs_diff(b)))
        .sum::<f64>()
        / a.len() as f64
}

#[test]
fn a_scaled_decode_shows_the_same_part() {
    let large = jpeg(701, 523, |_| {});
    let full = ImageRows::random_resized_crop(RandomResizedCrop::new(32, 32)).random_hflip(0.5);
    let mut differs = 0;
    for key in 0..30 {
        let whole = full.tensor(&large, &mut rng(key)).unwrap();
        let scaled = full.clone().scaled().tensor(&large, &mut rng(key)).unwrap();
        differs += usize::from(whole != scaled);
        assert!(
            difference(&whole, &scaled) < 2.5,
            "{key}: {}",
            difference(&whole, &scaled)
        );
    }
    assert!(
        differs > 20,
        "{differs} of 30 were decoded at a lower scale"
    );
    // The stored orientation has no effect.
    for number in 1..=8 {
        let file = file(&format!("exif{number}.jpg"));
        let rows = ImageRows::resize(4, 4);
        let (whole, scaled) = (
            rows.tensor(&file, &mut rng(0)).unwrap(),
            rows.clone().scaled().tensor(&file, &mut rng(0)).unwrap(),
        );
        assert!(
            difference(&whole, &scaled) < 6.0,
            "{number}: {}",
            difference(&whole, &scaled)
        );
    }
    // A part that is hardly larger than the row is not scaled while decoding.
    let file = file("rgb420.jpg");
    let same = ImageRows::resize(30, 30);
    assert_eq!(
        same.tensor(&file, &mut rng(0)).unwrap(),
        same.clone().scaled().tensor(&file, &mut rng(0)).unwrap()
    );
}

#[test]
fn rows_of_a_graph_become_batches_with_their_labels() {
    let file = Bytes::from(file("rgb420.jpg"));
    let graph = Graph::range(0..50).map(move |n| (file.clone(), n as u32));
    let rows = ImageRows::random_resized_crop(16)
        .random_hflip(0.5)
        .normalize(Normalize::UNIT);
    let run = |workers| {
        let graph = graph.clone().image_rows(rows.clone()).batch(8).collate();
        let loader = DataLoader::builder(graph)
            .workers(workers)
            .seed(3)
            .build()
            .unwrap();
        loader
            .epoch(0)
            .blocking()
            .collect::<Result<Vec<_>, _>>()
            .unwrap()
    };
    let batches = run(0);
    assert!(
        batches.iter().all(|(images, _)| images.is_pooled()),
        "batches are where rows were written"
    );
    assert_eq!(batches[0].0.shape(), [8, 3, 16, 16]);
    assert_eq!(batches[6].0.shape(), [2, 3, 16, 16]);
    assert_eq!(batches[6].1.as_slice::<u32>().unwrap(), [48, 49]);
    assert_ne!(
        batches[0].0.row(0).unwrap(),
        batches[0].0.row(1).unwrap(),
        "each with its own crop"
    );
    assert!(run(1) == batches && run(3) == batches);
    let plan = DataLoader::builder(graph.image_rows(rows).batch(8).collate())
        .workers(2)
        .build()
        .unwrap()
        .explain();
    assert!(
        plan.to_string().contains("(straight into batches of 8)"),
        "{plan}"
    );
}

#[test]
fn a_bad_file_is_named_and_batches_stay_full() {
    let good = Bytes::from(file("rgb420.jpg"));
    let graph = Graph::range(0..40).map(move |n| match n {
        7 => Bytes::from_static(b"<!DOCTYPE html>"),
        20 => good.slice(..good.len() / 2),
        _ => good.clone(),
    });
    let graph = graph.image_rows(ImageRows::resize(8, 8)).batch(6).collate();
    let error = DataLoader::builder(graph.clone())
        .workers(2)
        .build()
        .unwrap()
        .epoch(0)
        .blocking()
        .find_map(Result::err);
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .starts_with("image_rows: 0:7: unsupported: not an image"),
        "{error}"
    );
    for workers in [0, 2] {
        let skip = OnError::skip(5);
        let loader = DataLoader::builder(graph.clone())
            .workers(workers)
            .on_error(skip.clone())
            .build()
            .unwrap();
        let sizes: Vec<usize> = loader
            .epoch(0)
            .blocking()
            .map(|batch| batch.unwrap().shape()[0])
            .collect();
        assert_eq!(sizes, [6, 6, 6, 6, 6, 6, 2]);
        assert_eq!(loader.stats().unwrap().skipped, 2);
    }
}

#[test]
fn settings_without_sense_are_found_when_the_loader_is_built() {
    for (rows, number) in [
        (ImageRows::resize(0, 8), "0x8"),
        (ImageRows::random_resized_crop(0), "0x0"),
        (
            ImageRows::random_resized_crop(RandomResizedCrop::new(8, 8).scale(0.0, 1.0)),
            "0 to 1",
        ),
        (ImageRows::resize_center_crop(8, 9, 9), "9x9"),
        (ImageRows::resize_center_crop(0, 0, 9), "0x9"),
        (ImageRows::resize(8, 8).random_hflip(1.5), "1.5"),
        (ImageRows::resize(8, 8).random_hflip(f64::NAN), "NaN"),
    ] {
        let said = rows.tensor(&file("gray.jpg"), &mut rng(0)).unwrap_err();
        assert_eq!(said.kind(), ErrorKind::Config);
        assert!(said.to_string().contains(number), "{said}");
        let graph = Graph::from_vec(vec![Bytes::new()]).image_rows(rows);
        let said = DataLoader::builder(graph).build().unwrap_err().to_string();
        assert!(said.contains(number), "{said}");
    }
    // A wide crop may be wider than the shorter edge of a wide image; for a tall image it is an
    // error that says so.
    let wide = ImageRows::resize_center_crop(20, 25, 15);
    assert!(wide.tensor(&jpeg(60, 40, |_| {}), &mut rng(0)).is_ok());
    let error = wide.tensor(&jpeg(40, 60, |_| {}), &mut rng(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    // The row has a wrong shape or type.
    let rows = ImageRows::resize(4, 3);
    for (dtype, shape) in [
        (datapipes::DType::U8, [3, 4, 3]),
        (datapipes::DType::F32, [3, 3, 4]),
    ] {
        let mut row = Tensor::zeros(dtype, shape).unwrap();
        let error = rows
            .fill(&file("gray.jpg"), &mut rng(0), &mut row)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
    }
}
