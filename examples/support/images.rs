//! Graphs of common inputs: tar shards, or folders of images with a folder for each class.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use datapipes::{BoxError, Graph, Result, Tensor};
use datapipes_image::EXTENSIONS;
use datapipes_image::prelude::*;
use datapipes_io::prelude::*;
use datapipes_io::{Sample, list_files};

/// Returns encoded images and their labels, from all tar shards below a folder (or one shard).
pub fn from_shards(path: &Path, names: usize, samples: usize) -> Graph<(Bytes, u32)> {
    list_files(path, "**/*.{tar,tar.gz,tgz}")
        .shuffle(names)
        .sharding_filter()
        .stream_untar()
        .samples()
        .shuffle(samples)
        .named("shuffle samples")
        .try_map(labelled)
        .named("label")
}

fn labelled(sample: Sample) -> Result<(Bytes, u32)> {
    let field = EXTENSIONS
        .split(' ')
        .find(|field| sample.has(field))
        .unwrap_or("jpg");
    Ok((sample.get(field)?.clone(), sample.parse("cls")?))
}

/// Returns encoded images and their labels, from a folder of folders; classes are numbered by their
/// folders' names.
pub fn from_folder(path: &Path, names: usize) -> std::io::Result<Graph<(Bytes, u32)>> {
    let mut classes = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            classes.insert(entry.file_name().to_string_lossy().into_owned(), 0);
        }
    }
    for (number, label) in classes.values_mut().enumerate() {
        *label = number as u32;
    }
    let files = list_files(path, "**/*.{jpg,jpeg,png,JPG,JPEG,PNG}");
    let labelled = files
        .shuffle(names)
        .sharding_filter()
        .load_files()
        .try_map(move |file| {
            let class = file.name.split('/').next().unwrap_or_default();
            let label = classes
                .get(class)
                .ok_or_else(|| format!("{} is not in the folder of a class", file.name))?;
            Ok::<_, BoxError>((file.data, *label))
        });
    Ok(labelled.named("label"))
}

/// Applies the augmentation of ImageNet training: decode, random resized crop to `size`, flip,
/// normalize; then batches of tensors, `[n, 3, size, size]` of `f32` and `[n]` of `u32`.
pub fn training_batches(
    images: Graph<(Bytes, u32)>,
    size: u32,
    batch: usize,
) -> Graph<(Tensor, Tensor)> {
    images.image_rows(training(size)).batch(batch).collate()
}

/// Returns the processing of an image in training.
pub fn training(size: u32) -> ImageRows {
    ImageRows::random_resized_crop(size)
        .random_hflip(0.5)
        .normalize(Normalize::IMAGENET)
}

/// Returns true if there are tar shards at or below a path, false if there are images; an error if
/// neither.
pub fn has_shards(path: &Path) -> Result<bool, BoxError> {
    if let Err(error) = std::fs::metadata(path) {
        return Err(format!("{}: {error}", path.display()).into());
    }
    let found = |pattern| {
        list_files(path, pattern)
            .take(1)
            .collect()
            .is_ok_and(|files| !files.is_empty())
    };
    if found("**/*.{tar,tar.gz,tgz}") {
        Ok(true)
    } else if path.is_dir() && found("**/*.{jpg,jpeg,png,JPG,JPEG,PNG}") {
        Ok(false)
    } else {
        Err(format!("{}: neither tar shards nor images", path.display()).into())
    }
}
