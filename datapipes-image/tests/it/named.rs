//! Bad images in a graph: errors that name the file, batches that stay full.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use datapipes::{
    Context, DataLoader, Error, ErrorKind, Graph, Hints, Item, Items, OnError, Pipe, Result, Tensor,
};
use datapipes_image::prelude::*;
use datapipes_image::{resize, to_tensor, to_tensor_u8};

use crate::file;

/// A pipe that reads files and names its items after them.
#[derive(Clone)]
struct Read;

impl Pipe<&'static str> for Read {
    type Out = Bytes;

    fn apply(&self, input: Items<&'static str>, cx: &Context) -> Items<Bytes> {
        input.each(cx, |item| {
            let (name, origin) = item.into_parts();
            Some(Item::new(name, origin).named(name).try_map(read))
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
    }
}

/// A pipe that names files in memory.
#[derive(Clone)]
struct Named;

impl Pipe<(&'static str, Bytes)> for Named {
    type Out = Bytes;

    fn apply(&self, input: Items<(&'static str, Bytes)>, cx: &Context) -> Items<Bytes> {
        input.each(cx, |item| {
            let ((name, bytes), origin) = item.into_parts();
            Some(Ok(Item::new(bytes, origin).named(name)))
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
    }
}

fn read(name: &str) -> Result<Bytes> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read(&path)
        .map(Bytes::from)
        .map_err(|error| Error::new(ErrorKind::Io, name).with_source(error))
}

fn files(names: &[&'static str]) -> Graph<Bytes> {
    Graph::from_vec(names.to_vec()).pipe(Read)
}

fn failure<T: Send + 'static>(graph: Graph<T>, workers: usize) -> Error {
    let loader = DataLoader::builder(graph).workers(workers).build().unwrap();
    loader.epoch(0).blocking().find_map(Result::err).unwrap()
}

#[test]
fn row_114_a_panic_while_decoding_is_an_error_with_the_files_name() {
    // With threads as workers, a hang can neither be told from slow work nor be ended.
    let names = [
        "formats/plain.gif",
        "formats/lossy.webp",
        "formats/rgb_lzw.tif",
    ];
    let graph = files(&names).map(|bytes| {
        let image = datapipes_image::decode(&bytes).unwrap();
        assert!(image.width() != 75, "a decoder's own fault");
        image
    });
    for workers in [0, 2] {
        let error = failure(graph.clone(), workers).to_string();
        assert!(
            error.contains("formats/lossy.webp") && error.contains("a decoder's own fault"),
            "{error}"
        );
    }
    // A panic of user code is a bug, which no policy skips. A panic inside of `decode` becomes an
    // error of the image: see the test of the same row there.
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(1))
        .build()
        .unwrap();
    let kinds: Vec<_> = loader
        .epoch(0)
        .blocking()
        .filter_map(Result::err)
        .map(|error| error.kind())
        .collect();
    assert_eq!(kinds, [ErrorKind::Panic]);
}

/// Returns true for `rgb420.jpg`, the only wide image of the three.
fn is_wide(image: &Image) -> bool {
    image.width() == 49
}

#[test]
fn row_115_pictures_that_do_not_fit_together_are_both_named() {
    let size: fn(Image) -> Result<Tensor> = |image| to_tensor_u8(&image);
    let channels = |image: Image| {
        let scaled = resize(&image, 9, 9, ResizeFilter::Bilinear)?;
        let gray = || Image::new(9, 9, 1, scaled.data().iter().step_by(3).copied().collect());
        to_tensor_u8(&if is_wide(&image) { gray()? } else { scaled })
    };
    let dtype = |image: Image| {
        let scaled = resize(&image, 9, 9, ResizeFilter::Bilinear)?;
        if is_wide(&image) {
            to_tensor(&scaled, &Normalize::UNIT)
        } else {
            to_tensor_u8(&scaled)
        }
    };
    for (convert, a, b) in [
        (size, "[3, 17, 23]", "[3, 35, 49]"),
        (channels, "[3, 9, 9]", "[1, 9, 9]"),
        (dtype, "u8", "f32"),
    ] {
        let graph =
            files(&["formats/rgb24.bmp", "formats/rgb_lzw.tif", "rgb420.jpg"]).decode_image();
        let graph = graph.try_map(convert).batch(3).collate();
        for workers in [0, 2] {
            let error = failure(graph.clone(), workers);
            assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
            let text = error.to_string();
            let told = format!(
                "formats/rgb24.bmp has {}",
                if a == "u8" { "dtype" } else { "shape" }
            );
            for part in [&told, a, "rgb420.jpg has", b] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}

#[test]
fn row_115_what_is_skipped_leaves_batches_full() {
    // An HTML page with an image's name, a cut file, and whole files of other formats than their
    // names say.
    let names = ["a.jpg", "b.jpg", "c.png", "d.png", "e.gif", "f.tif"];
    let whole = [
        file("formats/plain.gif"),
        file("formats/rgb24.bmp"),
        file("formats/strips.tif"),
    ];
    let contents: Vec<(&str, Bytes)> = names
        .into_iter()
        .zip([
            whole[0].clone(),
            b"<!DOCTYPE html>".to_vec(),
            whole[1].clone(),
            whole[1][..900].to_vec(),
            whole[2].clone(),
            whole[0].clone(),
        ])
        .map(|(name, content)| (name, Bytes::from(content)))
        .collect();
    let graph = Graph::from_vec(contents)
        .pipe(Named)
        .decode_image()
        .to_tensor_u8()
        .batch(2)
        .collate();
    for workers in [0, 2] {
        let loader = DataLoader::builder(graph.clone())
            .workers(workers)
            .on_error(OnError::skip(2))
            .build()
            .unwrap();
        let batches: Vec<Tensor> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        let shapes: Vec<&[usize]> = batches.iter().map(Tensor::shape).collect();
        assert_eq!(shapes, [[2, 3, 17, 23], [2, 3, 17, 23]]);
        let skipped: Vec<String> = loader
            .stats()
            .unwrap()
            .skipped_items
            .iter()
            .map(|skipped| skipped.error.to_string())
            .collect();
        assert_eq!(skipped.len(), 2);
        assert!(
            skipped
                .iter()
                .any(|e| e.contains("b.jpg") && e.contains("not an image")),
            "{skipped:?}"
        );
        assert!(
            skipped
                .iter()
                .any(|e| e.contains("d.png") && e.contains("a BMP of 900 bytes")),
            "{skipped:?}"
        );
    }
}
