//! Round trips of the types that graphs carry, and damaged encodings.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use datapipes::testing::{check_wire, sent, wire_bytes, wire_from};
use datapipes::{ErrorKind, Tensor, Wire};

use crate::datasets::coco;
use crate::formats::{Array, FieldDecoder, ImageRecord, Value};
use crate::{File, FileRef, Sample};

fn check<T: Wire + Debug>(value: T) {
    check_wire(&value);
}

#[test]
fn files_and_samples() {
    check(File::new("a.txt", "some text"));
    check(
        Sample::new("train/17")
            .with("jpg", vec![0xff, 0xd8])
            .with("cls", "3\n"),
    );
    let mut sized = FileRef::new("/data/a.tar");
    sized.size = Some(7);
    check(sized);
    let listed = FileRef::below("/data".as_ref(), "b/c.txt".as_ref());
    let back = sent(&listed).unwrap();
    assert_eq!((back.name(), &back.path), ("b/c.txt".into(), &listed.path));
    check(listed);
}

#[test]
fn a_large_file_is_not_copied() {
    let file = File::new("a", vec![7; 1 << 20]);
    let large = [file.data.clone()];
    let bytes = wire_bytes(&file).unwrap();
    let head = &bytes[..bytes.len() - (1 << 20)];
    let back: File = wire_from(head, &large).unwrap();
    assert_eq!(back.data.as_ptr(), file.data.as_ptr());
}

#[test]
fn a_reference_into_a_store_says_what_to_do() {
    let store: Arc<dyn crate::stores::Store> = Arc::new(crate::stores::InMemory::new());
    let error = sent(&FileRef::stored(store, "a/b", None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("\"a/b\" in memory:"), "{error}");
}

#[test]
fn decoded_samples() {
    let sample = Sample::new("8")
        .with("cls", "3")
        .with("txt", "ü")
        .with(
            "json",
            r#"{"a": [1, -2.5, 18446744073709551615, null], "b": {"c": "d", "e": 0.1}}"#,
        )
        .with(
            "npy",
            Array::from_tensor(&Tensor::from_vec(vec![1.5f32, 2.0], [2]).unwrap())
                .unwrap()
                .to_npy(),
        )
        .with("bin", vec![1, 2]);
    let decoded = FieldDecoder::new().decode(sample).unwrap();
    assert_eq!(decoded.fields().len(), 5);
    check(decoded);
    #[cfg(feature = "msgpack")]
    {
        let pack = rmpv::Value::Map(vec![(
            rmpv::Value::Nil,
            rmpv::Value::Array(vec![1.into(), "x".into()]),
        )]);
        check(Value::MessagePack(pack));
        let deep = (0..110).fold(rmpv::Value::Nil, |value, _| rmpv::Value::Array(vec![value]));
        assert_eq!(
            sent(&Value::MessagePack(deep)).unwrap_err().kind(),
            ErrorKind::Limit
        );
        let deep = (0..99).fold(rmpv::Value::Nil, |value, _| {
            rmpv::Value::Map(vec![(value, 1.into())])
        });
        assert!(sent(&Value::MessagePack(deep)).is_ok());
    }
    let json = |depth| (0..depth).fold(serde_json::Value::Null, |value, _| vec![value].into());
    assert!(sent(&Value::Json(json(99))).is_ok());
    assert_eq!(
        sent(&Value::Json(json(100))).unwrap_err().kind(),
        ErrorKind::Limit
    );
}

#[test]
fn arrays() {
    let tensor = Tensor::from_vec(vec![1u16, 2, 3, 4, 5, 6], [2, 3]).unwrap();
    check(Array::from_tensor(&tensor).unwrap());
    let fortran = include_bytes!("../../../fuzz/seeds/npy/c16-big-fortran.npy");
    check(Array::parse(Bytes::from_static(fortran)).unwrap());
    check(ImageRecord {
        labels: vec![3.0, 4.5],
        id: 17,
        id2: 1,
        data: "jpeg".into(),
    });
}

#[cfg(feature = "zip")]
#[test]
fn arrays_with_names() {
    check(crate::formats::Arrays::default());
}

#[cfg(feature = "tfrecord")]
#[test]
fn examples() {
    use crate::formats::{Example, SequenceExample};
    let example = Example::new()
        .with("label", 3)
        .with("box", vec![0.5, 1.0])
        .with("image", "jpeg bytes");
    check(example.clone());
    check(SequenceExample::new(example).with("times", vec![0.5.into(), 1.5.into()]));
}

#[test]
fn samples_of_coco() {
    let json = br#"{"images": [{"id": 1, "file_name": "a.jpg", "width": 2, "height": 2}],
        "categories": [{"id": 3, "name": "dog", "keypoints": ["nose"], "skeleton": [[1, 1]]}],
        "annotations": [
            {"id": 5, "image_id": 1, "caption": "a dog"},
            {"id": 6, "image_id": 1, "category_id": 3, "bbox": [0, 0, 1, 1], "area": 1, "iscrowd": 0,
             "segmentation": [[0, 0, 1, 0, 1, 1]], "keypoints": [1, 1, 2], "num_keypoints": 1},
            {"id": 7, "image_id": 1, "iscrowd": 1, "segmentation": {"size": [2, 2], "counts": [1, 3]}}]}"#;
    let coco::Annotations {
        mut pictures,
        categories,
    } = coco::Annotations::parse(json).unwrap();
    assert_eq!(pictures[0].annotations.len(), 3);
    check(categories);
    check(coco::CocoSample {
        file: File::new("a.jpg", "jpeg"),
        picture: Arc::new(pictures.remove(0)),
    });
}
