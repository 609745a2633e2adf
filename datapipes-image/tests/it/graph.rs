//! Images in a graph: the same images for any number of workers, and errors that name node and
//! item.

use bytes::Bytes;
use datapipes::{DataLoader, ErrorKind, Graph, OnError, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{
    Affine, Rect, Rotation, affine, center_crop, crop, decode, hflip, random_resized_crop, rotate,
    to_tensor,
};

use crate::{file, jpeg};

fn files(count: u16) -> Graph<Bytes> {
    Graph::from_vec(
        (0..count)
            .map(|i| Bytes::from(jpeg(60 + i, 50, |_| {})))
            .collect(),
    )
}

fn training(count: u16) -> Graph<Tensor> {
    files(count)
        .decode_image()
        .random_resized_crop(32)
        .random_hflip(0.5)
        .to_tensor(Normalize::IMAGENET)
}

fn run(graph: Graph<Tensor>, workers: usize, seed: u64, epoch: u64) -> Vec<Vec<f32>> {
    let loader = DataLoader::builder(graph)
        .workers(workers)
        .seed(seed)
        .build()
        .unwrap();
    loader
        .epoch(epoch)
        .blocking()
        .map(|t| t.unwrap().into_vec().unwrap())
        .collect()
}

#[test]
fn pictures_depend_on_seed_epoch_and_item_alone() {
    let one = run(training(12), 0, 7, 0);
    assert_eq!(one.len(), 12);
    assert_eq!(run(training(12), 2, 7, 0), one);
    assert_ne!(run(training(12), 2, 7, 1), one);
    assert_ne!(run(training(12), 2, 8, 0), one);
    assert_ne!(one[0], one[1]);
}

#[test]
fn closures_on_samples_do_the_same_work() {
    let samples = files(3).map(|bytes| (bytes, "label"));
    let graph = samples.try_map_with_rng(|(bytes, label), rng| {
        let mut image = random_resized_crop(&decode(&bytes)?, 32, rng)?;
        if rng.chance(0.5) {
            hflip(&mut image);
        }
        Ok::<_, datapipes::Error>((to_tensor(&image, &Normalize::IMAGENET)?, label))
    });
    let out = graph.collect().unwrap();
    assert_eq!(out[2].0.shape(), [3, 32, 32]);
    assert_eq!(out[2].1, "label");
}

#[test]
fn fixed_steps_are_the_functions_of_their_names() {
    let part = Rect {
        x: 7,
        y: 3,
        width: 40,
        height: 30,
    };
    let turn = Rotation::new(20.0).expand().fill([9, 8, 7]);
    let shear = Affine::new()
        .shear(10.0, -5.0)
        .translate(3.0, 1.0)
        .filter(ResizeFilter::Bilinear);
    let made = files(2)
        .decode_image()
        .crop(part)
        .hflip()
        .rotate(turn)
        .affine(shear);
    let plan = DataLoader::builder(made.clone()).build().unwrap().explain();
    for words in [
        "40x30 at (7, 3)",
        "20 degrees, Nearest, expanded",
        "shear (10.0, -5.0), Bilinear",
    ] {
        assert!(plan.contains(words), "{plan}");
    }
    for (image, made) in files(2)
        .decode_image()
        .collect()
        .unwrap()
        .iter()
        .zip(made.collect().unwrap())
    {
        let mut wanted = crop(image, part).unwrap();
        hflip(&mut wanted);
        assert_eq!(
            affine(&rotate(&wanted, turn).unwrap(), shear).unwrap(),
            made
        );
    }
    let outside = Rect { x: 21, ..part };
    let error = files(1).decode_image().crop(outside).collect().unwrap_err();
    assert!(error.to_string().starts_with("crop: 0:0: "), "{error}");
}

#[test]
fn evaluation_needs_no_randomness() {
    let graph = files(2)
        .decode_image()
        .resize_shorter(40, ResizeFilter::Bilinear)
        .center_crop(32, 32);
    let loader = DataLoader::builder(graph.to_tensor_u8()).build().unwrap();
    let epoch = |n| -> Vec<Vec<u8>> {
        loader
            .epoch(n)
            .blocking()
            .map(|t| t.unwrap().into_vec().unwrap())
            .collect()
    };
    assert_eq!(epoch(0), epoch(1));
    assert_eq!(epoch(0)[0].len(), 3 * 32 * 32);
}

#[test]
fn row_108_a_bad_file_costs_one_item_and_is_named() {
    let whole = file("rgb420.jpg");
    let cut = whole[..whole.len() / 2].to_vec();
    let graph = Graph::from_vec(
        [whole.clone(), cut, b"<html>".to_vec(), whole]
            .map(Bytes::from)
            .to_vec(),
    );
    let graph = graph.decode_image();
    let outcome: Vec<_> = DataLoader::builder(graph.clone())
        .build()
        .unwrap()
        .epoch(0)
        .blocking()
        .collect();
    let error = outcome.into_iter().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert!(
        error
            .to_string()
            .starts_with("decode_image: 0:1: truncated: a JPEG of "),
        "{error}"
    );

    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(10))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().filter_map(Result::ok).count(), 2);
}

#[test]
fn settings_without_sense_are_found_before_anything_runs() {
    let images = || files(1).decode_image();
    for (graph, text) in [
        (images().resize(0, 5, ResizeFilter::Bilinear), "0x5"),
        (images().resize_shorter(0, ResizeFilter::Bilinear), "0x0"),
        (images().center_crop(3, 0), "3x0"),
        (
            images().crop(Rect {
                x: 0,
                y: 0,
                width: 0,
                height: 4,
            }),
            "0x4",
        ),
        (images().rotate(f64::INFINITY), "by -inf degrees"),
        (
            images().rotate(Rotation::new(1.0).filter(ResizeFilter::Lanczos3)),
            "Lanczos3 cannot turn",
        ),
        (images().affine(Affine::new().scale(0.0)), "scale by 0"),
        (
            images().affine(Affine::new().shear(90.0, 0.0)),
            "shear by (90",
        ),
        (images().random_resized_crop(0), "0x0"),
        (
            images().random_resized_crop(RandomResizedCrop::new(8, 8).scale(2.0, 1.0)),
            "2 to 1",
        ),
        (images().random_hflip(1.5), "1.5"),
        (images().random_hflip(f64::NAN), "NaN"),
    ] {
        let error = DataLoader::builder(graph)
            .build()
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_picture_that_is_too_small_is_an_error_of_its_own() {
    let error = files(1)
        .decode_image()
        .center_crop(61, 50)
        .collect()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(
        error
            .to_string()
            .contains("a crop of 61x50 at (0, 0) does not lie in an image of 60x50"),
        "{error}"
    );
    assert!(center_crop(&decode(&jpeg(60, 50, |_| {})).unwrap(), 60, 50).is_ok());
}
