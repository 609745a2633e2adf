//! Colours, policies and mixing in a graph: the same results for any number of workers, and errors
//! that name node and item.

use datapipes::{DataLoader, ErrorKind, Graph, Tensor};
use datapipes_image::prelude::*;

fn pictures(count: u64, channels: u8) -> Graph<Image> {
    Graph::range(0..count).map(move |n| {
        let data = (0..24 * 18 * u64::from(channels))
            .map(|i| (i * (n + 3) / 7) as u8)
            .collect();
        Image::new(24, 18, channels, data).expect("it fits")
    })
}

fn jitter() -> ColorJitter {
    ColorJitter::new()
        .brightness(0.4)
        .contrast(0.4)
        .saturation(0.4)
        .hue(0.1)
}

fn training(channels: u8) -> Graph<(Tensor, Tensor)> {
    let images = pictures(24, channels)
        .color_jitter(jitter())
        .random_gaussian_blur(RandomGaussianBlur::new(5).sigma(0.1, 1.5))
        .random_grayscale(0.3)
        .rand_augment(RandAugment::new(2, 9))
        .trivial_augment(TrivialAugmentWide::new())
        .random_erasing(RandomErasing::new(0.5).noise())
        .to_tensor(Normalize::IMAGENET)
        .random_erasing(RandomErasing::new(0.5).noise());
    let samples = images.enumerate().map(|(n, image)| (image, (n % 5) as i64));
    let mix = RandomMix::new(MixUp::new(0.4, 5), CutMix::new(1.0, 5));
    samples
        .batch(4)
        .collate()
        .one_hot(OneHot::new(5).smoothing(0.1))
        .random_mix(mix)
}

fn run(
    graph: Graph<(Tensor, Tensor)>,
    workers: usize,
    seed: u64,
    epoch: u64,
) -> Vec<(Tensor, Tensor)> {
    let loader = DataLoader::builder(graph)
        .workers(workers)
        .seed(seed)
        .build()
        .unwrap();
    loader.epoch(epoch).blocking().map(Result::unwrap).collect()
}

#[test]
fn batches_depend_on_seed_epoch_and_item_alone() {
    for channels in [1, 3] {
        let one = run(training(channels), 0, 7, 0);
        assert_eq!(one.len(), 6);
        assert_eq!(one[0].0.shape(), [4, usize::from(channels), 18, 24]);
        assert_eq!(one[0].1.shape(), [4, 5]);
        assert_eq!(run(training(channels), 1, 7, 0), one);
        assert_eq!(run(training(channels), 3, 7, 0), one);
        assert_ne!(run(training(channels), 2, 7, 1), one);
        assert_ne!(run(training(channels), 2, 8, 0), one);
        for (_, labels) in &one {
            for row in labels.as_slice::<f32>().unwrap().chunks(5) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
            }
        }
    }
}

#[test]
fn each_item_draws_its_own() {
    let images = pictures(1, 3)
        .flat_map(|image| vec![image; 12])
        .rand_augment(RandAugment::new(2, 9));
    let images = images.collect().unwrap();
    let different = images.iter().filter(|image| **image != images[0]).count();
    assert!(different > 8, "{different}");
}

#[test]
fn labelled_tensors_are_erased_as_those_without_a_label() {
    let erasing = RandomErasing::new(0.7).noise();
    let tensors = || pictures(8, 3).to_tensor_u8();
    let labelled = tensors()
        .enumerate()
        .map(|(n, image)| (image, format!("label {n}")));
    let labelled = labelled.random_erasing(erasing).collect().unwrap();
    // Random draws depend on the node's position, so that here, too, it comes after two other
    // nodes.
    let plain = tensors()
        .enumerate()
        .map(|(_, image)| image)
        .random_erasing(erasing)
        .collect()
        .unwrap();
    let (images, labels): (Vec<Tensor>, Vec<String>) = labelled.into_iter().unzip();
    assert_eq!(images, plain);
    assert_ne!(images, tensors().collect().unwrap());
    assert_eq!(labels[7], "label 7");

    let batches = tensors()
        .map(|image| (image, 0i64))
        .batch(2)
        .collate()
        .random_erasing(erasing);
    let error = batches.collect().unwrap_err().to_string();
    assert!(
        error.contains("random_erasing: ") && error.contains("not of rank 3"),
        "{error}"
    );
}

#[test]
fn gray_has_the_channels_asked_for() {
    assert_eq!(
        pictures(1, 3).grayscale(1).collect().unwrap()[0].channels(),
        1
    );
    assert_eq!(
        pictures(1, 1).grayscale(3).collect().unwrap()[0].channels(),
        3
    );
    let colours = pictures(8, 3).random_grayscale(0.0).collect().unwrap();
    assert_eq!(colours, pictures(8, 3).collect().unwrap());
    let grays = pictures(8, 3).random_grayscale(1.0).collect().unwrap();
    assert_eq!(grays, pictures(8, 3).grayscale(3).collect().unwrap());
}

#[test]
fn settings_without_sense_are_found_before_anything_runs() {
    let images = || pictures(1, 3);
    let tensors = || images().to_tensor(Normalize::UNIT);
    let batches = || tensors().map(|image| (image, 0i64)).batch(1).collate();
    let build = |result: Result<(), datapipes::BuildError>| result.unwrap_err().to_string();
    let image = |graph: Graph<Image>| build(DataLoader::builder(graph).build().map(drop));
    let batch =
        |graph: Graph<(Tensor, Tensor)>| build(DataLoader::builder(graph).build().map(drop));
    for (error, text) in [
        (
            image(images().color_jitter(jitter().hue(0.7))),
            "hue from -0.7 to 0.7",
        ),
        (
            image(images().color_jitter(ColorJitter::new().contrast(f64::NAN))),
            "contrast from NaN",
        ),
        (image(images().gaussian_blur(4, 1.0)), "a blur of 4 pixels"),
        (
            image(images().random_gaussian_blur(6)),
            "a blur of 6 pixels",
        ),
        (
            image(images().random_gaussian_blur(RandomGaussianBlur::new(3).sigma(2.0, 0.1))),
            "from 2 to 0.1",
        ),
        (image(images().grayscale(2)), "channels, not 2"),
        (
            image(images().random_grayscale(-1.0)),
            "the probability is -1",
        ),
        (
            image(images().rand_augment(RandAugment::new(2, 40))),
            "magnitude 40 of 31",
        ),
        (
            image(
                images()
                    .trivial_augment(TrivialAugmentWide::new().filter(ResizeFilter::CatmullRom)),
            ),
            "CatmullRom",
        ),
        (
            image(images().random_erasing(RandomErasing::new(2.0))),
            "the probability is 2",
        ),
        (
            build(
                DataLoader::builder(tensors().random_erasing(RandomErasing::new(f64::NAN)))
                    .build()
                    .map(drop),
            ),
            "the probability is NaN",
        ),
        (batch(batches().mixup(MixUp::new(0.0, 5))), "an alpha of 0"),
        (batch(batches().mixup(MixUp::new(1.0, 0))), "0 classes"),
        (
            batch(batches().cutmix(CutMix::new(f64::NAN, 5))),
            "an alpha of NaN",
        ),
        (
            batch(batches().one_hot(OneHot::new(2).smoothing(1.5))),
            "label smoothing of 1.5",
        ),
        (
            batch(batches().random_mix(RandomMix::new(MixUp::new(1.0, 2), CutMix::new(-1.0, 2)))),
            "an alpha of -1",
        ),
    ] {
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_label_of_no_class_names_its_batch() {
    let samples = Graph::range(0..8).map(|n| {
        (
            Tensor::from_vec(vec![0.0f32; 4], [1, 2, 2]).unwrap(),
            n as i64,
        )
    });
    let error = samples
        .batch(4)
        .collate()
        .mixup(MixUp::new(1.0, 7))
        .collect()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    let text = error.to_string();
    assert!(
        text.starts_with("mixup: ") && text.contains("label 7, at 3 of 4, is none of 7 classes"),
        "{text}"
    );
}

#[test]
fn the_plan_says_what_is_drawn() {
    let plan = DataLoader::builder(training(3)).build().unwrap().explain();
    for words in [
        "brightness (0.6, 1.4)",
        "2 of magnitude 9 of 31, Nearest",
        "mixup p 0.5, alpha 0.4, 5 classes",
    ] {
        assert!(plan.contains(words), "{plan}");
    }
}
