//! Random draws of geometries, in graphs and in closures; and settings that are refused.

use bytes::Bytes;
use datapipes::{DataLoader, ErrorKind, Graph, Rng, Tensor};
use datapipes_image::prelude::*;
use datapipes_image::{
    Affine, Border, Boxes, Draw, Geometry, Keypoint, Keypoints, Mask, Op, PadMode, RandomAffine,
    RandomCrop, RandomFlip, RandomRotation, Rect, Rotation, Visibility, affine, decode, five_crop,
    pad, random_affine, random_crop, random_rotation, rotate,
};

use crate::jpeg;

fn rng(key: u64) -> Rng {
    Rng::from_key([key, 0, 0, 0])
}

fn gray(width: u32, height: u32) -> Image {
    let data = (0..width * height)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    Image::new(width, height, 1, data).unwrap()
}

#[test]
fn parts_are_pinned() {
    let settings = RandomCrop::new(9, 7).padding((2, 1));
    let mut rng = rng(1);
    let parts: Vec<(u32, u32)> = (0..6)
        .map(
            |_| match settings.draw(20, 10, &mut rng).unwrap().ops().last() {
                Some(Op::Crop(part)) => (part.x, part.y),
                other => panic!("{other:?}"),
            },
        )
        .collect();
    assert_eq!(parts, PARTS, "{parts:?}");
}

#[test]
fn turns_are_pinned() {
    let turn = RandomAffine::new(45.0)
        .translate(0.3, 0.2)
        .scale(0.7, 1.4)
        .shear_x(-10.0, 10.0)
        .shear_y(-5.0, 5.0);
    let (mut one, mut other) = (rng(2), rng(2));
    let rotated = RandomRotation::between(-30.0, 60.0)
        .expand()
        .filter(ResizeFilter::Bilinear);
    let mut sums = Vec::new();
    for _ in 0..3 {
        let (image, again) = (gray(31, 23), gray(31, 23));
        let image = random_affine(&image, turn, &mut one).unwrap();
        assert_eq!(
            Geometry::of(&again)
                .draw(&turn, &mut other)
                .unwrap()
                .apply(again)
                .unwrap(),
            image
        );
        sums.push(checksum(&image));
        let (image, again) = (gray(31, 23), gray(31, 23));
        let image = random_rotation(&image, rotated, &mut one).unwrap();
        assert_eq!(
            Geometry::of(&again)
                .draw(&rotated, &mut other)
                .unwrap()
                .apply(again)
                .unwrap(),
            image
        );
        sums.push(checksum(&image));
    }
    assert_eq!(sums, TURNS, "{sums:?}");
}

/// Returns the FNV-1a hash of the size and the pixels.
fn checksum(image: &Image) -> u32 {
    let size = [image.width() as u8, image.height() as u8];
    let bytes = size.iter().chain(image.data());
    bytes.fold(0x811c_9dc5, |h, b| {
        (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)
    })
}

const PARTS: [(u32, u32); 6] = [(6, 3), (4, 5), (12, 2), (14, 5), (13, 5), (2, 1)];
const TURNS: [u32; 6] = [
    2023412605, 4001457698, 181575819, 3274242411, 2926607147, 3582916853,
];

#[test]
fn parts_are_everywhere_alike_and_are_not_drawn_without_a_choice() {
    let image = gray(6, 4);
    let mut rng = rng(3);
    let mut counts = [[0; 3]; 2];
    for _ in 0..6000 {
        let geometry = RandomCrop::new(4, 3).draw(6, 4, &mut rng).unwrap();
        match geometry.ops().next() {
            Some(Op::Crop(part)) => counts[part.y as usize][part.x as usize] += 1_u32,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        counts
            .as_flattened()
            .iter()
            .all(|count| count.abs_diff(1000) < 150),
        "{counts:?}"
    );

    let (mut one, mut other) = (self::rng(4), self::rng(4));
    assert_eq!(random_crop(&image, (6, 4), &mut one).unwrap(), image);
    assert_eq!(one.next_u64(), other.next_u64());
}

#[test]
fn a_picture_that_is_too_small_is_padded_only_if_asked_for() {
    let mut rng = rng(5);
    let image = gray(6, 4);
    let error = random_crop(&image, RandomCrop::new(6, 7).padding((0, 1)), &mut rng).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(
        error
            .to_string()
            .contains("a crop of 6x7 at (0, 0) does not lie in an image of 6x6"),
        "{error}"
    );
    // As in torchvision, missing pixels are added on both sides, so that the image may lie
    // anywhere.
    let settings = RandomCrop::new(9, 5)
        .padding(Border::new(1, 0, 0, 0).fill(7))
        .pad_if_needed();
    let mut xs = Vec::new();
    for _ in 0..50 {
        let ops = settings.draw(6, 4, &mut rng).unwrap();
        let ops: Vec<&Op> = ops.ops().collect();
        match ops[..] {
            [Op::Pad(padding), Op::Crop(part)] => {
                assert_eq!(*padding, Border::new(3, 1, 2, 1).fill(7));
                xs.push(part.x);
            }
            _ => panic!("{ops:?}"),
        }
        assert_eq!(random_crop(&image, settings, &mut rng).unwrap().height(), 5);
    }
    xs.sort_unstable();
    xs.dedup();
    assert_eq!(xs, [0, 1, 2]);
}

fn pictures(count: u16) -> Graph<Image> {
    Graph::from_vec(
        (0..count)
            .map(|i| Bytes::from(jpeg(40 + i, 30, |_| {})))
            .collect(),
    )
    .decode_image()
}

#[test]
fn steps_of_a_graph_do_the_same_with_any_number_of_workers() {
    let graph = || {
        pictures(8)
            .pad(2)
            .random_crop(RandomCrop::new(40, 30).pad_if_needed())
            .random_rotation(10.0)
            .random_affine(RandomAffine::new(0.0).translate(0.1, 0.1))
            .random_vflip(0.5)
            .vflip()
            .five_crop(16, 12)
            .try_map(|parts| {
                parts
                    .iter()
                    .map(datapipes_image::to_tensor_u8)
                    .collect::<datapipes::Result<Vec<_>>>()
            })
            .try_map(|parts| Tensor::stack(&parts))
    };
    let run = |workers, epoch| -> Vec<Vec<u8>> {
        let loader = DataLoader::builder(graph())
            .workers(workers)
            .seed(7)
            .build()
            .unwrap();
        let tensors = loader.epoch(epoch).blocking().map(|tensor| tensor.unwrap());
        tensors
            .inspect(|tensor| assert_eq!(tensor.shape(), [5, 3, 12, 16]))
            .map(|t| t.into_vec().unwrap())
            .collect()
    };
    let one = run(0, 0);
    assert_eq!(one.len(), 8);
    assert_eq!(run(2, 0), one);
    assert_ne!(run(2, 1), one);
}

#[test]
fn a_flip_of_a_graph_is_that_of_a_geometry() {
    let image = decode(&jpeg(40, 30, |_| {})).unwrap();
    let flipped = pictures(1).vflip().collect().unwrap().remove(0);
    assert_eq!(
        Geometry::of(&image).vflip().apply(image.clone()).unwrap(),
        flipped
    );
    assert_eq!(pictures(1).random_vflip(0.0).collect().unwrap()[0], image);
    assert_eq!(pictures(1).random_vflip(1.0).collect().unwrap()[0], flipped);
    let parts = pictures(1).five_crop(8, 6).collect().unwrap().remove(0);
    assert_eq!(parts, five_crop(&image, 8, 6).unwrap());
}

#[test]
fn settings_without_sense_are_found_before_anything_runs() {
    let images = || pictures(1);
    for (graph, text) in [
        (images().random_vflip(-0.1), "-0.1"),
        (images().random_crop((3, 0)), "3x0"),
        (images().random_rotation((5.0, -5.0)), "5 to -5"),
        (images().random_rotation(f64::NAN), "NaN"),
        (
            images().random_rotation(RandomRotation::new(5.0).filter(ResizeFilter::Lanczos3)),
            "Lanczos3",
        ),
        (
            images().random_affine(RandomAffine::new(f64::INFINITY)),
            "inf",
        ),
        (
            images().random_affine(RandomAffine::new(0.0).translate(1.5, 0.0)),
            "1.5",
        ),
        (
            images().random_affine(RandomAffine::new(0.0).scale(0.0, 1.0)),
            "scale by 0",
        ),
        (
            images().random_affine(RandomAffine::new(0.0).shear_x(0.0, 90.0)),
            "90",
        ),
        (
            images().random_affine(RandomAffine::new(0.0).shear_y(f64::NAN, 0.0)),
            "NaN",
        ),
        (
            images().five_crop(0, 3).map(|parts| parts[0].clone()),
            "0x3",
        ),
    ] {
        let error = DataLoader::builder(graph)
            .build()
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains(text), "{error}");
    }
    for p in [1.5, f64::NAN] {
        assert_eq!(
            RandomFlip::horizontal(p)
                .draw(4, 4, &mut rng(1))
                .unwrap_err()
                .kind(),
            ErrorKind::Config
        );
    }
}

#[test]
fn row_110_what_would_not_fit_in_memory_is_refused_before_it_is_made() {
    let image = gray(6, 4);
    for padding in [
        Border::from(u32::MAX),
        Border::new(0, 0, u32::MAX, 0),
        Border::from(20_000),
    ] {
        let error = pad(&image, padding).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
        assert!(Geometry::of(&image).pad(padding).is_err());
    }
    assert_eq!(
        random_crop(&image, RandomCrop::new(20_000, 20_000), &mut rng(1))
            .unwrap_err()
            .kind(),
        ErrorKind::Config
    );
    let settings = RandomCrop::new(13_000, 13_000).pad_if_needed();
    assert_eq!(
        random_crop(&image, settings, &mut rng(1))
            .unwrap_err()
            .kind(),
        ErrorKind::Limit
    );

    let thin = gray(100_000, 1);
    let error = rotate(&thin, Rotation::new(45.0).expand()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains("70712x70713"), "{error}");
    assert_eq!(
        rotate(&thin, Rotation::new(90.0).expand())
            .unwrap()
            .height(),
        100_000
    );

    for settings in [
        Affine::new().scale(1e-9),
        Affine::new().translate(1e300, 0.0),
        Affine::new().shear(89.9999999, 0.0),
    ] {
        assert_eq!(
            affine(&image, settings).unwrap_err().kind(),
            ErrorKind::Shape,
            "{settings:?}"
        );
    }
    let largest = Affine::new().scale(1e7).translate(2e8, -2e8);
    assert_eq!(
        affine(&image, largest).unwrap(),
        affine(&gray(6, 4), largest).unwrap()
    );
    for settings in [
        Affine::new().angle(f64::NAN),
        Affine::new().scale(-1.0),
        Affine::new().scale(1e-310),
    ] {
        assert_eq!(
            affine(&image, settings).unwrap_err().kind(),
            ErrorKind::Config,
            "{settings:?}"
        );
    }
}

#[test]
fn a_border_is_mirrored_only_as_far_as_there_is_a_picture() {
    let image = gray(6, 4);
    for (mode, most) in [(PadMode::Reflect, 3), (PadMode::Symmetric, 4)] {
        assert!(pad(&image, Border::from(most).mode(mode)).is_ok());
        let error = pad(&image, Border::from(most + 1).mode(mode)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.to_string().contains("6x4"), "{error}");
    }
    let error = pad(&image, Border::from(1).fill([1, 2, 3])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: a gray image cannot be filled with the colour (1, 2, 3)"
    );
    assert_eq!(
        rotate(&image, Rotation::new(5.0).fill([1, 2, 3]))
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
}

#[test]
fn boxes_that_are_none_are_refused_by_their_number() {
    let fine = [1.0, 1.0, 2.0, 3.0];
    for (bad, text) in [
        ([f32::NAN, 0.0, 1.0, 1.0], "NaN"),
        ([0.0, 0.0, f32::INFINITY, 1.0], "inf"),
        ([2.0, 0.0, 1.0, 1.0], "[2.0, 0.0, 1.0, 1.0]"),
        ([0.0, 1.0, 1.0, 0.5], "in order"),
    ] {
        for error in [
            Boxes::new(6, 4, vec![fine, bad]),
            Boxes::clamped(6, 4, vec![fine, bad]),
        ] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(
                error.to_string().contains("box 1") && error.to_string().contains(text),
                "{error}"
            );
        }
    }
    for outside in [
        [-0.5, 0.0, 1.0, 1.0],
        [0.0, 0.0, 6.5, 1.0],
        [0.0, 3.0, 1.0, 4.1],
    ] {
        let error = Boxes::new(6, 4, vec![outside]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.to_string().contains("box 0") && error.to_string().contains("6x4"),
            "{error}"
        );
        assert!(Boxes::clamped(6, 4, vec![outside]).is_ok());
    }
    let coco = Boxes::from_xywh(6, 4, [[1.5, 1.0, 5.0, 2.0]]).unwrap();
    assert_eq!(coco.corners(), [[1.5, 1.0, 6.0, 3.0]]);
    assert!(Boxes::from_xywh(6, 4, [[1.5, 1.0, -1.0, 2.0]]).is_err());
    assert!(Boxes::from_xywh(6, 4, [[1e300, 1.0, 1.0, 2.0]]).is_err());
    assert_eq!(
        Boxes::new(6, 4, vec![])
            .unwrap()
            .into_tensor()
            .unwrap()
            .shape(),
        [0, 4]
    );
}

#[test]
fn labels_that_are_missing_are_an_error() {
    let (_, kept) = Boxes::new(6, 4, vec![[0.0; 4], [0.0, 0.0, 2.0, 2.0]])
        .unwrap()
        .sanitize(1.0, 1.0)
        .unwrap();
    assert_eq!(kept.select(vec![7, 8]).unwrap(), [8]);
    let error = kept.select(vec![7]).unwrap_err();
    assert_eq!(error.to_string(), "shape mismatch: 1 labels for 2 boxes");
    for (size, area) in [(-1.0, 0.0), (f32::NAN, 0.0), (0.0, f32::NAN)] {
        let error = Boxes::new(6, 4, vec![])
            .unwrap()
            .sanitize(size, area)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

#[test]
fn row_115_a_target_of_another_size_is_an_error_with_both() {
    let geometry = Geometry::new(6, 4).hflip();
    let wrong = [
        geometry.apply(gray(5, 4)).map(drop).unwrap_err(),
        geometry
            .apply((gray(6, 4), Mask::new(5, 4, vec![0_u8; 20]).unwrap()))
            .map(drop)
            .unwrap_err(),
        geometry
            .apply(Some(Boxes::new(5, 4, vec![]).unwrap()))
            .map(drop)
            .unwrap_err(),
        geometry
            .apply(vec![Keypoints::new(5, 4, vec![]).unwrap()])
            .map(drop)
            .unwrap_err(),
    ];
    for error in wrong {
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(
            error.to_string().contains("5x4") && error.to_string().contains("6x4"),
            "{error}"
        );
    }
    assert!(Geometry::new(6, 4).then(Geometry::new(4, 6)).is_err());
    assert!(
        Geometry::new(6, 4)
            .warp(Affine::new().resolve(4, 6).unwrap())
            .is_err()
    );
    assert!(
        Geometry::new(6, 4)
            .crop(Rect {
                x: 0,
                y: 0,
                width: 0,
                height: 2
            })
            .is_err()
    );

    let error = Mask::new(3, 2, vec![1_u8; 5]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: 5 values for a mask of 3x2"
    );
    assert!(
        Mask::<u8>::from_tensor(Tensor::zeros(datapipes::DType::U8, [1, 2, 3]).unwrap()).is_err()
    );
    assert!(
        Mask::<u16>::from_tensor(Tensor::zeros(datapipes::DType::U8, [2, 3]).unwrap()).is_err()
    );
    let error = Mask::from_image(Image::new(2, 1, 3, vec![1, 1, 1, 1, 2, 1]).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: a mask is gray, and the pixel at (1, 0) is [1, 2, 1]"
    );
}

#[test]
fn targets_in_a_border_that_repeats_the_picture_are_refused() {
    let geometry = Geometry::new(6, 4)
        .pad(Border::from(1).mode(PadMode::Edge))
        .unwrap();
    let error = geometry
        .apply(Boxes::new(6, 4, vec![]).unwrap())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        geometry
            .apply(Keypoints::new(6, 4, vec![]).unwrap())
            .is_err()
    );
    assert!(
        geometry
            .apply(Mask::new(6, 4, vec![0_u32; 24]).unwrap())
            .is_ok()
    );
}

#[test]
fn points_that_leave_stay_absent() {
    let numbers = [1.0, 1.0, 2.0, 4.0, 3.0, 1.0, 2.0, 2.0, 0.0, 9.0, 0.0, 2.0];
    let points = Keypoints::from_coco(6, 4, &numbers).unwrap();
    let seen = |points: &Keypoints| {
        points
            .points()
            .iter()
            .map(|point| point.visibility as u8)
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&points), [2, 1, 0, 0]);
    let part = Rect {
        x: 2,
        y: 0,
        width: 4,
        height: 4,
    };
    let geometry = Geometry::new(6, 4)
        .crop(part)
        .unwrap()
        .pad(Border::new(2, 0, 0, 0))
        .unwrap();
    let points = geometry.apply(points).unwrap();
    // The first point is back at its position, but the part of the image it marked is gone.
    assert_eq!(
        points.points()[0],
        Keypoint {
            x: 1.0,
            y: 1.0,
            visibility: Visibility::Absent
        }
    );
    assert_eq!(seen(&points), [0, 1, 0, 0]);
    assert_eq!(
        points.to_tensor().unwrap().as_slice::<f32>().unwrap()[3..6],
        [4.0, 3.0, 1.0]
    );
    for (numbers, text) in [
        (&[1.0, 2.0][..], "2 numbers"),
        (&[0.0, 0.0, 3.0], "3"),
        (&[f64::NAN, 0.0, 1.0], "NaN"),
    ] {
        let error = Keypoints::from_coco(6, 4, numbers).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(text), "{error}");
    }
}
