//! Samples from shards to tensors, through both crates that take part.

use datapipes::{DataLoader, OnError};
use datapipes_io::datasets::image_folder;
use datapipes_io::formats::{FieldDecoder, Value};
use datapipes_io::prelude::*;
use datapipes_io::stores::shards;

fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let mut file = Vec::new();
    let pixels = vec![99; usize::from(width) * usize::from(height) * 3];
    let encoder = jpeg_encoder::Encoder::new(&mut file, 90);
    encoder
        .encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    file
}

#[test]
fn fields_of_shards_become_numbers_and_pictures() {
    let dir = tempfile::tempdir().unwrap();
    for shard in 0..2 {
        let mut tar = tar::Builder::new(Vec::new());
        for sample in 0..3 {
            let broken = (shard, sample) == (1, 1);
            let image = if broken {
                b"no picture".to_vec()
            } else {
                jpeg(16 + sample, 8)
            };
            let class = sample.to_string().into_bytes();
            for (field, data) in [
                ("cls", class),
                ("view.JPG", image),
                ("json", b"[1]".to_vec()),
            ] {
                let mut header = tar::Header::new_gnu();
                header.set_size(data.len() as u64);
                header.set_cksum();
                tar.append_data(&mut header, format!("{shard}-{sample}.{field}"), &data[..])
                    .unwrap();
            }
        }
        std::fs::write(
            dir.path().join(format!("s-{shard}.tar")),
            tar.into_inner().unwrap(),
        )
        .unwrap();
    }
    let pattern = format!("{}/s-{{0..1}}.tar", dir.path().display());
    let decoder =
        FieldDecoder::new().with(datapipes_image::EXTENSIONS, datapipes_image::decode_tensor);
    let graph = shards(&pattern)
        .unwrap()
        .load_files()
        .untar()
        .samples()
        .decode_fields(decoder);
    let loader = DataLoader::builder(graph)
        .workers(2)
        .on_error(OnError::skip(1))
        .build()
        .unwrap();
    let samples: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
    let keys: Vec<&str> = samples
        .iter()
        .map(|sample| sample.key().rsplit('/').next().unwrap())
        .collect();
    assert_eq!(keys, ["0-0", "0-1", "0-2", "1-0", "1-2"]);
    let last = &samples[4];
    assert_eq!(last.get("cls").unwrap(), &Value::Int(2));
    assert_eq!(
        last.get("view.jpg").unwrap().as_tensor().unwrap().shape(),
        [8, 18, 3]
    );
    let error = &loader.stats().unwrap().skipped_items[0].error;
    assert!(
        error.contains(r#"field "view.jpg" of sample "1-1": not an image of a known kind"#),
        "{error}"
    );
}

/// A label that is missing, and one that is no number: the sample and its field are named.
#[test]
fn row_115_samples_without_a_label_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let fields: [(&str, &[u8]); 5] = [
        ("a.jpg", b""),
        ("a.cls", b"1"),
        ("b.jpg", b""),
        ("c.jpg", b""),
        ("c.cls", b"seven"),
    ];
    for (name, data) in fields {
        let data = if name.ends_with("jpg") {
            jpeg(8, 8)
        } else {
            data.to_vec()
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_cksum();
        tar.append_data(&mut header, name, &data[..]).unwrap();
    }
    let path = dir.path().join("s.tar");
    std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
    let graph = shards(path.to_str().unwrap())
        .unwrap()
        .load_files()
        .untar()
        .samples()
        .try_map(|sample| {
            let image = datapipes_image::decode_tensor(sample.get("jpg")?)?;
            datapipes::Ok((image, sample.parse::<u32>("cls")?))
        });
    let loader = DataLoader::builder(graph)
        .on_error(OnError::skip(2))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().filter_map(Result::ok).count(), 1);
    let errors: Vec<String> = loader
        .stats()
        .unwrap()
        .skipped_items
        .iter()
        .map(|skipped| skipped.error.to_string())
        .collect();
    assert!(
        errors[0].contains(r#"sample "b""#) && errors[0].contains(r#""cls""#),
        "{errors:?}"
    );
    assert!(
        errors[1].contains(r#"field "cls" of sample "c""#),
        "{errors:?}"
    );
}

#[test]
fn a_folder_of_images_becomes_batches() {
    let dir = tempfile::tempdir().unwrap();
    for (class, count) in [("cat", 3), ("dog", 2)] {
        std::fs::create_dir(dir.path().join(class)).unwrap();
        for n in 0..count {
            std::fs::write(dir.path().join(class).join(format!("{n}.jpg")), jpeg(16, 8)).unwrap();
        }
    }
    let set = image_folder(dir.path()).unwrap();
    let graph = set
        .samples
        .shuffle()
        .fetch()
        .try_map(|(file, class)| {
            datapipes::Ok((datapipes_image::decode_tensor(&file.data)?, class))
        })
        .batch(5)
        .collate();
    let (images, mut classes) = graph.collect().unwrap().remove(0);
    assert_eq!(images.shape(), [5, 8, 16, 3]);
    let classes = classes.as_mut_slice::<u32>().unwrap();
    classes.sort_unstable();
    assert_eq!(classes, [0, 0, 0, 1, 1]);
}
