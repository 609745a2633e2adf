//! Valid and invalid annotations in COCO's format.

use std::fs;

use datapipes::ErrorKind;

use super::*;

const JSON: &str = r#"{
  "info": {"year": 2017, "nested": [[{}]]},
  "licenses": [{"id": 1, "url": "x"}],
  "images": [
    {"id": 9, "file_name": "b/9.jpg", "width": 4, "height": 2, "license": 1, "coco_url": "http://x"},
    {"id": 2, "file_name": "2.jpg", "width": 3, "height": 3},
    {"id": 5, "file_name": "5.jpg", "width": 1, "height": 1}
  ],
  "annotations": [
    {"id": 11, "image_id": 9, "category_id": 1, "segmentation": [[0, 0.5, 1, 1, 2, 0]], "area": 702.1057499999998,
     "iscrowd": 0, "bbox": [473.07, 395.93, 38.65, 28.67]},
    {"id": 12, "image_id": 2, "category_id": 90, "segmentation": {"counts": "233", "size": [2, 4]}, "area": 3,
     "iscrowd": 1, "bbox": [1, 0, 2, 2]},
    {"id": 10, "image_id": 9, "category_id": 1, "keypoints": [1, 2, 2, 0, 0, 0], "num_keypoints": 1, "segmentation": []},
    {"id": 13, "image_id": 2, "caption": "a d\u00f6g", "iscrowd": false}
  ],
  "categories": [
    {"supercategory": "person", "id": 1, "name": "person", "keypoints": ["nose", "eye"], "skeleton": [[1, 2]]},
    {"id": 90, "name": "toothbrush"}
  ]
}"#;

#[test]
fn what_the_file_says_comes_with_its_image() {
    let read = Annotations::parse(JSON.as_bytes()).unwrap();
    let ids: Vec<i64> = read.pictures.iter().map(|picture| picture.id).collect();
    assert_eq!(ids, [2, 5, 9]);
    let [two, five, nine] = &read.pictures[..] else {
        panic!()
    };
    assert_eq!((two.width, two.height, &*two.file_name), (3, 3, "2.jpg"));
    assert!(five.annotations.is_empty());

    let [crowd, caption] = &two.annotations[..] else {
        panic!()
    };
    assert!(crowd.iscrowd && !caption.iscrowd);
    assert_eq!(
        crowd
            .segmentation
            .as_ref()
            .unwrap()
            .rle()
            .unwrap()
            .runs()
            .unwrap(),
        [2, 3, 3]
    );
    assert_eq!(
        (caption.caption.as_deref(), caption.category_id),
        (Some("a dög"), None)
    );

    let [outlined, points] = &nine.annotations[..] else {
        panic!()
    };
    assert_eq!((outlined.id, points.id), (11, 10));
    assert_eq!(outlined.bbox, Some([473.07, 395.93, 38.65, 28.67]));
    assert_eq!(outlined.area, Some(702.1057499999998));
    let polygons = outlined.segmentation.as_ref().unwrap().polygons().unwrap();
    assert_eq!(polygons, [[0.0, 0.5, 1.0, 1.0, 2.0, 0.0]]);
    assert_eq!(
        (&points.keypoints[..2], points.num_keypoints),
        (&[1.0, 2.0][..], Some(1))
    );
    assert_eq!(points.segmentation, Some(Segmentation::Polygons(vec![])));

    assert_eq!(read.categories[0].skeleton, [[1, 2]]);
    assert_eq!(
        (
            &*read.categories[1].name,
            &*read.categories[1].supercategory
        ),
        ("toothbrush", "")
    );
    let marked = [b"\xef\xbb\xbf", JSON.as_bytes()].concat();
    assert_eq!(Annotations::parse(&marked).unwrap(), read);
}

#[test]
fn images_are_read_when_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (images, annotations) = (dir.path().join("val"), dir.path().join("a.json"));
    let fails = || coco(&images, &annotations).unwrap_err();
    assert!(
        fails().kind() == ErrorKind::NotFound
            && fails().to_string().contains("val: no such folder")
    );
    fs::create_dir_all(images.join("b")).unwrap();
    assert!(fails().kind() == ErrorKind::NotFound && fails().to_string().contains("a.json"));
    fs::write(&annotations, JSON).unwrap();
    fs::write(images.join("b/9.jpg"), "nine").unwrap();
    fs::write(images.join("2.jpg"), "two").unwrap();
    let set = coco(&images, &annotations).unwrap();
    assert_eq!(
        (set.samples.len(), set.pictures.len(), set.categories.len()),
        (3, 3, 2)
    );
    let read = set
        .samples
        .clone()
        .subset(vec![2, 0])
        .fetch()
        .collect()
        .unwrap();
    assert_eq!(
        (&*read[0].file.name, &read[0].file.data[..]),
        ("b/9.jpg", &b"nine"[..])
    );
    assert_eq!(
        (read[1].picture.id, read[1].picture.annotations.len()),
        (2, 2)
    );
    let error = set.samples.subset(1..2).fetch().collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().contains("image 5") && error.to_string().contains("5.jpg"),
        "{error}"
    );
}

#[test]
fn row_94_names_do_not_leave_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::write(dir.path().join("secret"), "x").unwrap();
    let json = dir.path().join("a.json");
    for name in ["../secret", "/etc/passwd", "a/../../secret", ""] {
        let text = format!(
            r#"{{"images": [{{"id": 1, "file_name": {name:?}, "width": 1, "height": 1}}]}}"#
        );
        fs::write(&json, text).unwrap();
        let error = coco(dir.path().join("in"), &json)
            .unwrap()
            .samples
            .fetch()
            .collect()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[test]
fn what_does_not_fit_together_is_named() {
    let fails = |from: &str, to: &str| {
        assert!(JSON.contains(from), "{from}");
        let error = Annotations::parse(JSON.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        error.to_string()
    };
    for (from, to, what) in [
        (
            r#""image_id": 2,"#,
            r#""image_id": -7,"#,
            "annotations of images that are not there: -7",
        ),
        (
            r#""category_id": 90"#,
            r#""category_id": 3"#,
            "annotations of categories that are not there: 3",
        ),
        (
            r#"{"id": 2,"#,
            r#"{"id": 9,"#,
            "ids of images that are there twice: 9",
        ),
        (
            r#"{"id": 12,"#,
            r#"{"id": 11,"#,
            "ids of annotations that are there twice: 11",
        ),
        (
            r#"{"id": 90,"#,
            r#"{"id": 1,"#,
            "ids of categories that are there twice: 1",
        ),
        (r#""iscrowd": 1"#, r#""iscrowd": 2"#, "expected 0 or 1"),
        (
            r#""area": 3"#,
            r#""area": NaN"#,
            "byte 631: no annotations in COCO's form: expected value at line 12",
        ),
        (r#"[1, 0, 2, 2]"#, "[1, 0, 2]", "array of length 4"),
        (r#""counts": "233", "#, "", "missing field `counts`"),
        (r#""counts": "233""#, r#""counts": [-1]"#, "expected u32"),
        (r#""file_name": "2.jpg", "#, "", "missing field `file_name`"),
        (r#""width": 3"#, r#""width": 1e10"#, "byte "),
        (
            r#"[[1, 2]]"#,
            &"[".repeat(100_000),
            "invalid type: sequence",
        ),
        (r#"[[{}]]"#, &"[".repeat(100_000), "byte 100"),
    ] {
        let text = fails(from, to);
        assert!(text.contains(what), "{text}, not {what}");
    }
    let many = (0..30)
        .map(|n| format!(r#"{{"id": {n}, "image_id": {n}}}"#))
        .collect::<Vec<_>>()
        .join(",");
    let error =
        Annotations::parse(format!(r#"{{"images": [], "annotations": [{many}]}}"#).as_bytes())
            .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("not there: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more"),
        "{error}"
    );
}

#[test]
fn cut_files_are_errors() {
    for cut in 0..JSON.len() {
        let error = Annotations::parse(&JSON.as_bytes()[..cut]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{cut}");
    }
}

/// The table is made by `tests/data/make_coco.py` with pycocotools.
#[test]
fn runs_are_those_of_pycocotools() {
    let table: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/data/coco-rle.json")).unwrap();
    let cases = table["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as u32;
        let (height, width) = (number(&case["size"][0]), number(&case["size"][1]));
        let runs: Vec<u32> = case["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(number)
            .collect();
        let packed = Rle::packed(height, width, case["counts"].as_str().unwrap());
        assert_eq!(packed.runs().unwrap(), runs);
        let mask = packed.mask().unwrap();
        assert_eq!(
            mask.as_bytes(),
            Rle::runs_of(height, width, runs.clone())
                .mask()
                .unwrap()
                .as_bytes()
        );
        assert_eq!(mask.shape(), [height as usize, width as usize]);
        let inside = mask
            .as_bytes()
            .iter()
            .map(|&pixel| u64::from(pixel))
            .sum::<u64>();
        assert_eq!(inside, case["area"].as_u64().unwrap());
        // Column by column again.
        let column = |x: u32| (0..height).map(move |y| (y * width + x) as usize);
        let mut expected = runs
            .iter()
            .enumerate()
            .flat_map(|(n, &run)| (0..run).map(move |_| (n % 2) as u8));
        assert!(
            (0..width)
                .flat_map(column)
                .all(|place| Some(mask.as_bytes()[place]) == expected.next())
        );
    }
}

#[test]
fn row_98_runs_that_lie_are_errors_before_anything_is_allocated() {
    for (rle, kind, what) in [
        (
            Rle::runs_of(u32::MAX, u32::MAX, [1]),
            ErrorKind::Limit,
            "more than 178956970 pixels",
        ),
        (
            Rle::runs_of(2, 2, [1, 2]),
            ErrorKind::Corrupt,
            "runs of 3 pixels for a mask of 2x2",
        ),
        (
            Rle::runs_of(2, 2, [u32::MAX; 3]),
            ErrorKind::Corrupt,
            "runs of 12884901885 pixels",
        ),
        (
            Rle::packed(2, 2, "P"),
            ErrorKind::Corrupt,
            "byte 0 of packed runs: a number without an end",
        ),
        (
            Rle::packed(2, 2, "1P"),
            ErrorKind::Corrupt,
            "byte 1 of packed runs: a number without an end",
        ),
        (
            Rle::packed(2, 2, "O"),
            ErrorKind::Corrupt,
            "byte 0 of packed runs: a run of -1 pixels",
        ),
        (
            Rle::packed(2, 2, "1 "),
            ErrorKind::Corrupt,
            "byte 1 of packed runs: ' ' is not expected",
        ),
        (
            Rle::packed(2, 2, "ooooooooooo"),
            ErrorKind::Corrupt,
            "byte 8 of packed runs",
        ),
        (
            Rle::packed(2, 2, ""),
            ErrorKind::Corrupt,
            "runs of 0 pixels",
        ),
    ] {
        let error = rle.mask().unwrap_err();
        assert!(
            error.kind() == kind && error.to_string().contains(what),
            "{error}, not {what}"
        );
    }
    assert_eq!(Rle::runs_of(0, 7, []).mask().unwrap().shape(), [0, 7]);
    assert_eq!(
        Rle::packed(1, 3, "0003").mask_to(3).unwrap().as_bytes(),
        [1, 1, 1]
    );
    assert_eq!(
        Rle::runs_of(2, 2, [4]).mask_to(3).unwrap_err().kind(),
        ErrorKind::Limit
    );
}
