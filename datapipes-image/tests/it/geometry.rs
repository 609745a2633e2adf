//! Images and targets under a geometry: torchvision's results, and properties that hold for any
//! draw.

use std::collections::BTreeMap;

use datapipes::{ErrorKind, Result, Rng};
use datapipes_image::{
    Affine, Border, Boxes, Draw, Geometry, Image, Keypoint, Keypoints, Mask, PadMode, RandomAffine,
    RandomCrop, RandomFlip, RandomResizedCrop, RandomRotation, Rect, ResizeFilter, Rotation,
    Visibility, affine, crop, hflip, pad, resize, rotate, vflip,
};

use crate::{difference, file, picture};

const SIZE: (u32, u32) = (29, 20);
const PAD: (u32, u32, u32, u32) = (3, 1, 2, 4);
const PART: Rect = Rect {
    x: 5,
    y: 2,
    width: 20,
    height: 15,
};
const COLOUR: [u8; 3] = [90, 5, 200];

fn padding() -> Border {
    Border::new(PAD.0, PAD.1, PAD.2, PAD.3)
}

fn mask(name: &str) -> Mask {
    Mask::from_image(picture(name)).unwrap()
}

fn boxes() -> Boxes {
    let boxes = [
        [0., 0., 29., 20.],
        [2., 3., 11.5, 9.25],
        [20., 1., 28., 4.],
        [14., 18., 14.5, 20.],
        [6.; 4],
    ];
    Boxes::new(SIZE.0, SIZE.1, boxes.to_vec()).unwrap()
}

fn points() -> Keypoints {
    let points = [[0., 0.], [28., 19.], [14.5, 10.], [3.25, 17.5], [27., 0.5]];
    let point = |[x, y]: [f32; 2]| Keypoint {
        x,
        y,
        visibility: Visibility::Visible,
    };
    Keypoints::new(SIZE.0, SIZE.1, points.map(point).to_vec()).unwrap()
}

type Expected = BTreeMap<(String, String), ((u32, u32), Vec<f32>)>;

/// Parses `geometry.txt` into the size and the numbers for each name and kind.
fn expected() -> Expected {
    let text = String::from_utf8(file("geometry.txt")).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = words[4..]
            .iter()
            .map(|word| word.parse().unwrap())
            .collect();
        let size = (words[2].parse().unwrap(), words[3].parse().unwrap());
        ((words[0].to_owned(), words[1].to_owned()), (size, numbers))
    };
    text.lines().map(line).collect()
}

/// Returns all geometries of the script, by its names.
fn geometries() -> Vec<(&'static str, Geometry)> {
    let start = || Geometry::new(SIZE.0, SIZE.1);
    let turned = |degrees| start().rotate(degrees).unwrap();
    let expanded = |degrees| start().rotate(Rotation::new(degrees).expand()).unwrap();
    vec![
        ("pad", start().pad(padding()).unwrap()),
        ("crop", start().crop(PART).unwrap()),
        ("center_crop", start().center_crop(20, 15).unwrap()),
        (
            "resize",
            start().resize(41, 9, ResizeFilter::Bilinear).unwrap(),
        ),
        (
            "resized_crop",
            start()
                .resized_crop(PART, 13, 8, ResizeFilter::Bilinear)
                .unwrap(),
        ),
        ("hflip", start().hflip()),
        ("vflip", start().vflip()),
        ("rotate_31", turned(31.0)),
        ("rotate_-123.4", turned(-123.4)),
        ("rotate_31_expand", expanded(31.0)),
        ("rotate_90_expand", expanded(90.0)),
        ("rotate_180_expand", expanded(180.0)),
        ("rotate_270_expand", expanded(270.0)),
        ("affine_all", start().affine(affines()[0].1).unwrap()),
        ("affine_shear", start().affine(affines()[1].1).unwrap()),
        ("affine_small", start().affine(affines()[2].1).unwrap()),
    ]
}

fn affines() -> [(&'static str, Affine); 3] {
    let all = Affine::new()
        .angle(17.3)
        .translate(3.0, -2.0)
        .scale(1.27)
        .shear(11.9, -7.3);
    let shear = Affine::new().shear(23.1, 0.0);
    let small = Affine::new()
        .angle(-71.7)
        .translate(0.0, 1.0)
        .scale(0.53)
        .shear(0.0, 19.7);
    [
        ("affine_all", all),
        ("affine_shear", shear),
        ("affine_small", small),
    ]
}

fn off(name: &str, image: &Image) -> u8 {
    difference(image, &picture(&format!("geometry.{name}.png")))
}

#[test]
fn borders_are_torchvisions() {
    let (source, classes) = (
        picture("geometry.source.png"),
        mask("geometry.source.mask.png"),
    );
    let padded = |mode: Border| pad(&source, mode).unwrap();
    assert_eq!(
        off("pad_constant", &padded(padding().fill([10, 20, 30]))),
        0
    );
    assert_eq!(off("pad_edge", &padded(padding().mode(PadMode::Edge))), 0);
    assert_eq!(
        off("pad_reflect", &padded(padding().mode(PadMode::Reflect))),
        0
    );
    assert_eq!(
        off("pad_symmetric", &padded(padding().mode(PadMode::Symmetric))),
        0
    );
    let geometry = Geometry::of(&source)
        .pad(padding().mode(PadMode::Reflect))
        .unwrap();
    assert_eq!(
        geometry.apply(classes).unwrap(),
        mask("geometry.pad_reflect.mask.png")
    );
}

#[test]
fn turned_pictures_are_torchvisions() {
    let source = picture("geometry.source.png");
    for (name, rotation) in [
        ("rotate_31", Rotation::new(31.0)),
        ("rotate_-123.4", Rotation::new(-123.4)),
        ("rotate_31_expand", Rotation::new(31.0).expand()),
    ] {
        let turned = |filter, fill| rotate(&source, rotation.filter(filter).fill(fill)).unwrap();
        assert_eq!(
            off(
                &format!("{name}.nearest"),
                &turned(ResizeFilter::Nearest, COLOUR)
            ),
            0,
            "{name}"
        );
        assert!(
            off(
                &format!("{name}.bilinear"),
                &turned(ResizeFilter::Bilinear, [0; 3])
            ) <= 1,
            "{name}"
        );
        assert!(
            off(
                &format!("{name}.filled"),
                &turned(ResizeFilter::Bilinear, COLOUR)
            ) <= 1,
            "{name}"
        );
    }
    for degrees in [90.0, 180.0, 270.0, -90.0, 450.0] {
        let name = format!("rotate_{}_expand.nearest", f64::rem_euclid(degrees, 360.0));
        for filter in [ResizeFilter::Nearest, ResizeFilter::Bilinear] {
            let turned = rotate(&source, Rotation::new(degrees).filter(filter).expand()).unwrap();
            assert_eq!(off(&name, &turned), 0, "{degrees}");
        }
    }
}

#[test]
fn sheared_pictures_are_torchvisions() {
    let source = picture("geometry.source.png");
    for (name, settings) in affines() {
        let moved = |filter, fill| affine(&source, settings.filter(filter).fill(fill)).unwrap();
        assert_eq!(
            off(
                &format!("{name}.nearest"),
                &moved(ResizeFilter::Nearest, COLOUR)
            ),
            0,
            "{name}"
        );
        assert!(
            off(
                &format!("{name}.bilinear"),
                &moved(ResizeFilter::Bilinear, [0; 3])
            ) <= 1,
            "{name}"
        );
        assert!(
            off(
                &format!("{name}.filled"),
                &moved(ResizeFilter::Bilinear, COLOUR)
            ) <= 1,
            "{name}"
        );
    }
}

#[test]
fn targets_are_where_torchvision_puts_them() {
    let (expected, classes) = (expected(), mask("geometry.source.mask.png"));
    for (name, geometry) in geometries() {
        let (moved, boxes, points) = geometry
            .apply((classes.clone().outside(255), boxes(), points()))
            .unwrap();
        let crops = [
            "crop",
            "center_crop",
            "resized_crop",
            "resize",
            "hflip",
            "vflip",
        ];
        let wanted = mask(&format!("geometry.{name}.mask.png"));
        assert_eq!(
            (moved.width(), moved.height()),
            (wanted.width(), wanted.height()),
            "{name}"
        );
        assert_eq!(moved.values(), wanted.values(), "{name}");
        assert_eq!(
            moved.values().contains(&255),
            !crops.contains(&name) && !name.contains("0_expand"),
            "{name}"
        );

        // If torchvision rotates and expands, the size used for its boxes differs from that of
        // its image, and the boxes are up to a pixel off.
        let is_expanded = name == "rotate_31_expand";
        let most = if is_expanded { 1.0 } else { 1e-3 };
        for (kind, size, places) in [
            (
                "boxes",
                (boxes.width(), boxes.height()),
                boxes.corners().as_flattened().to_vec(),
            ),
            ("points", (points.width(), points.height()), places(&points)),
        ] {
            let (wanted_size, wanted) = &expected[&(name.to_owned(), kind.to_owned())];
            assert_eq!(size, (moved.width(), moved.height()), "{name}");
            assert_eq!(size == *wanted_size, !is_expanded, "{name}");
            close(name, &places, wanted, most);
        }
        let size = geometry.size();
        for point in points.points() {
            let is_inside = point.x >= 0.0
                && point.x < size.0 as f32
                && point.y >= 0.0
                && point.y < size.1 as f32;
            assert_eq!(
                point.visibility == Visibility::Visible,
                is_inside,
                "{name}: {point:?}"
            );
        }
    }
}

fn places(points: &Keypoints) -> Vec<f32> {
    points
        .points()
        .iter()
        .flat_map(|point| [point.x, point.y])
        .collect()
}

fn close(name: &str, ours: &[f32], wanted: &[f32], most: f32) {
    assert_eq!(ours.len(), wanted.len(), "{name}");
    let off = ours
        .iter()
        .zip(wanted)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(
        off <= most,
        "{name} is off by {off}: {ours:?}, not {wanted:?}"
    );
}

#[test]
fn the_boxes_kept_are_torchvisions() {
    let expected = expected();
    for (name, size, area) in [
        ("sanitize_1_1", 1.0, 1.0),
        ("sanitize_0_0.5", 0.0, 0.5),
        ("sanitize_3_30", 3.0, 30.0),
    ] {
        let geometry = Geometry::new(SIZE.0, SIZE.1).crop(PART).unwrap();
        let (boxes, kept) = geometry
            .apply(boxes())
            .unwrap()
            .sanitize(size, area)
            .unwrap();
        let wanted = |kind: &str| &expected[&(name.to_owned(), kind.to_owned())].1;
        close(name, boxes.corners().as_flattened(), wanted("boxes"), 1e-3);
        let indices: Vec<f32> = kept.indices().iter().map(|&index| index as f32).collect();
        assert_eq!(&indices, wanted("kept"), "{name}");
        let labels = kept.select((0..5_u8).collect()).unwrap();
        assert!(
            labels
                .iter()
                .zip(kept.indices())
                .all(|(label, index)| usize::from(*label) == *index)
        );
    }
}

#[test]
fn a_square_turns_exactly_with_both_filters() {
    let source = crop(
        &picture("geometry.source.png"),
        Rect {
            x: 2,
            y: 3,
            width: 17,
            height: 17,
        },
    )
    .unwrap();
    for filter in [ResizeFilter::Nearest, ResizeFilter::Bilinear] {
        let turned = |degrees| rotate(&source, Rotation::new(degrees).filter(filter)).unwrap();
        assert_eq!(turned(0.0), source);
        assert_eq!(turned(360.0), source);
        let mut both = source.clone();
        hflip(&mut both);
        vflip(&mut both);
        assert_eq!(turned(180.0), both);
        assert_eq!(turned(-180.0), both);
        for (x, y) in [(0, 0), (3, 11), (16, 2)] {
            // Rotation is counter-clockwise: the right side becomes the top.
            assert_eq!(turned(90.0).pixel(y, 16 - x), source.pixel(x, y));
            assert_eq!(turned(270.0).pixel(16 - y, x), source.pixel(x, y));
        }
        assert_eq!(
            rotate(&turned(90.0), Rotation::new(-90.0).filter(filter)).unwrap(),
            source
        );
    }
}

#[test]
fn a_quarter_turn_keeps_its_pixels_where_the_middle_falls_between_two() {
    // 6x5: torchvision takes every other row twice here, because of rounding in its floats.
    let values: Vec<u8> = (1..=30).collect();
    let image = Image::new(6, 5, 1, values).unwrap();
    let turned = rotate(&image, 90.0).unwrap();
    let mut seen: Vec<u8> = turned
        .data()
        .iter()
        .copied()
        .filter(|&value| value > 0)
        .collect();
    seen.sort_unstable();
    let count = seen.len();
    seen.dedup();
    assert_eq!((seen.len(), count), (25, 25), "{:?}", turned.data());
}

#[test]
fn the_mask_of_a_picture_stays_its_mask() {
    // Gray images are their own masks: every exact geometry must do the same to both.
    let values: Vec<u8> = (0..23 * 17).map(|i| (i * 31 % 251 + 1) as u8).collect();
    let image = Image::new(23, 17, 1, values.clone()).unwrap();
    let start = || Geometry::new(23, 17);
    for geometry in [
        start().hflip().vflip(),
        start()
            .crop(Rect {
                x: 3,
                y: 2,
                width: 11,
                height: 13,
            })
            .unwrap()
            .hflip(),
        start()
            .pad(Border::new(4, 0, 1, 7).fill(9))
            .unwrap()
            .center_crop(9, 22)
            .unwrap(),
        start()
            .pad(Border::from(5).mode(PadMode::Symmetric))
            .unwrap(),
        start()
            .rotate(Rotation::new(40.0).fill(9).expand())
            .unwrap(),
        start()
            .affine(Affine::new().angle(12.0).shear(5.0, 9.0).scale(1.5).fill(9))
            .unwrap(),
    ] {
        let mask = Mask::new(23, 17, values.clone()).unwrap().outside(9);
        let (image, mask) = geometry.apply((image.clone(), mask)).unwrap();
        assert_eq!((image.width(), image.height()), geometry.size());
        assert_eq!(image.data(), mask.values(), "{geometry:?}");
    }
}

#[test]
fn a_scaled_mask_lies_under_its_picture() {
    // The image has two halves. Counts the pixels that are on the other side of 128 than the mask
    // says.
    let values = |low: u8, high: u8| -> Vec<u8> {
        (0..64 * 48)
            .map(|i| if i % 64 + i / 64 < 50 { low } else { high })
            .collect()
    };
    let image = Image::new(64, 48, 1, values(0, 255)).unwrap();
    for (width, height) in [(16, 12), (23, 31), (200, 150)] {
        let geometry = Geometry::of(&image)
            .resize(width, height, ResizeFilter::Bilinear)
            .unwrap();
        let mask = Mask::new(64, 48, values(0, 1)).unwrap();
        let (scaled, mask) = geometry.apply((image.clone(), mask)).unwrap();
        assert_eq!(
            scaled,
            resize(&image, width, height, ResizeFilter::Bilinear).unwrap()
        );
        let pairs = scaled.data().iter().zip(mask.values());
        let wrong = pairs
            .filter(|(pixel, class)| (**pixel >= 128) != (**class == 1))
            .count();
        // Pixels whose centre lies on the border may be on either side.
        assert!(
            wrong * 100 <= (width * height) as usize,
            "{wrong} of {width}x{height}"
        );
    }
}

#[test]
fn boxes_stay_in_the_picture_and_around_their_pixels() {
    let mut rng = Rng::from_key([5, 0, 0, 0]);
    let turn = RandomAffine::new(180.0)
        .translate(0.4, 0.4)
        .scale(0.3, 2.5)
        .shear_x(-30.0, 30.0)
        .shear_y(-30.0, 30.0);
    let part = RandomCrop::new(33, 47).padding(3).pad_if_needed();
    let mut seen = 0;
    for round in 0..300 {
        // Each geometry has only one step that takes nearest pixels: the errors of two would add
        // up.
        let start = Geometry::new(40, 30)
            .draw(&RandomFlip::vertical(0.5), &mut rng)
            .unwrap();
        let geometry = match round % 2 {
            0 => start.draw(&turn, &mut rng).unwrap().draw(&part, &mut rng),
            _ => start.draw(&RandomResizedCrop::new(33, 47), &mut rng),
        };
        let geometry = geometry
            .unwrap()
            .draw(&RandomFlip::horizontal(0.5), &mut rng)
            .unwrap();
        let (x, y) = (rng.below(30) as u32, rng.below(20) as u32);
        let inside = |i: u32| (x..x + 9).contains(&(i % 40)) && (y..y + 7).contains(&(i / 40));
        let mask = Mask::new(40, 30, (0..1200).map(|i| u16::from(inside(i))).collect()).unwrap();
        let corner = [x as f32, y as f32, x as f32 + 9.0, y as f32 + 7.0];
        let boxes = Boxes::new(40, 30, vec![corner, [0.0, 0.0, 40.0, 30.0]]).unwrap();
        let (mask, boxes) = geometry.apply((mask, boxes)).unwrap();
        // Boxes outside of the image, or with swapped corners, are refused.
        let boxes = Boxes::new(33, 47, boxes.corners().to_vec()).unwrap();
        let [left, top, right, bottom] = boxes.corners()[0];
        for (i, _) in mask
            .values()
            .iter()
            .enumerate()
            .filter(|(_, class)| **class == 1)
        {
            let (x, y) = ((i % 33) as f32 + 0.5, (i / 33) as f32 + 0.5);
            assert!(
                x >= left - 1e-3 && x <= right + 1e-3,
                "{x} in {left} to {right}: {geometry:?}"
            );
            assert!(
                y >= top - 1e-3 && y <= bottom + 1e-3,
                "{y} in {top} to {bottom}: {geometry:?}"
            );
            seen += 1;
        }
    }
    assert!(seen > 10_000, "{seen}");
}

#[test]
fn without_pixels_there_is_no_geometry() {
    let draws: [&dyn Draw; 5] = [
        &RandomResizedCrop::new(4, 4),
        &RandomFlip::horizontal(0.5),
        &RandomCrop::new(1, 1).pad_if_needed(),
        &RandomRotation::new(10.0),
        &RandomAffine::new(10.0),
    ];
    for (width, height) in [(0, 0), (0, 5), (5, 0)] {
        let new = || Geometry::new(width, height);
        let mut rng = Rng::from_key([1, 0, 0, 0]);
        let mut refused: Vec<Result<()>> = vec![
            Boxes::new(width, height, vec![]).map(drop),
            Boxes::clamped(width, height, vec![[0.0, 0.0, 1.0, 1.0]]).map(drop),
            Boxes::from_xywh(width, height, [[0.0; 4]]).map(drop),
            Keypoints::new(width, height, vec![]).map(drop),
            Keypoints::from_coco(width, height, &[]).map(drop),
            new().pad(Border::from(1).mode(PadMode::Reflect)).map(drop),
            new().pad(1).map(drop),
            new()
                .crop(Rect {
                    x: 0,
                    y: 0,
                    width: 1,
                    height: 1,
                })
                .map(drop),
            new().resize(4, 4, ResizeFilter::Bilinear).map(drop),
            new().hflip().rotate(Rotation::new(30.0).expand()).map(drop),
            new().affine(Affine::new()).map(drop),
            new().then(new()).map(drop),
            new().apply(Image::new(1, 1, 1, vec![0]).unwrap()).map(drop),
        ];
        for random in draws {
            refused.push(random.draw(width, height, &mut rng).map(drop));
            refused.push(new().draw(random, &mut rng).map(drop));
            assert!(Geometry::new(5, 6).draw(random, &mut rng).is_ok());
        }
        for (index, result) in refused.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape, "{index}: {error}");
            assert!(
                error.to_string().contains(&format!("{width}x{height}")),
                "{index}: {error}"
            );
        }
    }
}
