use super::*;
use datapipes::ErrorKind;

fn rng(key: u64) -> Rng {
    Rng::from_key([key, 0, 0, 0])
}

#[test]
fn golden_parts() {
    let (erasing, mut rng) = (RandomErasing::new(0.9), Rng::from_key([1, 2, 3, 4]));
    let parts: Vec<_> = (0..4).map(|_| erasing.part(224, 160, &mut rng)).collect();
    let parts: Vec<_> = parts
        .iter()
        .map(|part| part.map(|p| [p.x, p.y, p.width, p.height]))
        .collect();
    assert_eq!(parts, GOLDEN, "{parts:?}");
}

const GOLDEN: [Option<[u32; 4]>; 4] = [
    Some([36, 109, 91, 50]),
    Some([121, 90, 55, 52]),
    Some([38, 77, 80, 58]),
    Some([16, 43, 163, 61]),
];

#[test]
fn parts_have_the_distribution_asked_for() {
    let (erasing, mut rng) = (RandomErasing::new(0.5), rng(1));
    let (mut areas, mut log_ratios, mut erased) = (0.0, 0.0, 0);
    for _ in 0..8000 {
        let Some(part) = erasing.part(320, 240, &mut rng) else {
            continue;
        };
        assert!(part.x + part.width <= 320 && part.y + part.height <= 240);
        assert!(part.width < 320 && part.height < 240);
        erased += 1;
        areas += f64::from(part.width * part.height) / f64::from(320 * 240);
        log_ratios += (f64::from(part.height) / f64::from(part.width)).ln();
    }
    assert!((3850..4150).contains(&erased), "{erased}");
    // Results of Python for torchvision's algorithm, over 400000 draws; upright parts fit less
    // often.
    let mean = |sum: f64| sum / f64::from(erased);
    assert!((mean(areas) - AREA).abs() < 0.006, "{}", mean(areas));
    assert!(
        (mean(log_ratios) - LOG_RATIO).abs() < 0.04,
        "{}",
        mean(log_ratios)
    );
}

const AREA: f64 = 0.1716;
const LOG_RATIO: f64 = -0.0345;

#[test]
fn the_part_and_only_it_is_erased() {
    let part = RandomErasing::new(1.0).part(30, 20, &mut rng(4)).unwrap();
    let inside = |x: u32, y: u32| {
        (part.x..part.x + part.width).contains(&x) && (part.y..part.y + part.height).contains(&y)
    };
    let places = || (0..20).flat_map(|y| (0..30).map(move |x| (x, y)));
    assert!(part.width > 1 && part.height > 1, "{part:?}");

    let mut image = Image::new(30, 20, 3, vec![9; 1800]).unwrap();
    RandomErasing::new(1.0)
        .rgb([1.0, 2.0, 255.0])
        .apply(&mut image, &mut rng(4))
        .unwrap();
    assert!(
        places().all(|(x, y)| image.pixel(x, y) == if inside(x, y) { [1, 2, 255] } else { [9; 3] })
    );

    let mut tensor = Tensor::from_vec(vec![9.0f32; 1800], [3, 20, 30]).unwrap();
    RandomErasing::new(1.0)
        .rgb([-1.5, 2.0, 0.0])
        .apply_tensor(&mut tensor, &mut rng(4))
        .unwrap();
    let values = tensor.as_slice::<f32>().unwrap();
    for (c, value) in [-1.5, 2.0, 0.0].into_iter().enumerate() {
        let plane = &values[c * 600..][..600];
        assert!(
            places()
                .zip(plane)
                .all(|((x, y), &v)| v == if inside(x, y) { value } else { 9.0 })
        );
    }

    let mut tensor = Tensor::from_vec(vec![9.0f32; 4 * 600], [4, 20, 30]).unwrap();
    RandomErasing::new(1.0)
        .noise()
        .apply_tensor(&mut tensor, &mut rng(4))
        .unwrap();
    let values = tensor.as_slice::<f32>().unwrap();
    let kept = values.iter().filter(|&&value| value == 9.0).count();
    assert_eq!(kept, 4 * (600 - (part.width * part.height) as usize));
    let noise: Vec<f32> = values
        .iter()
        .copied()
        .filter(|&value| value != 9.0)
        .collect();
    let square = noise.iter().map(|value| value * value).sum::<f32>() / noise.len() as f32;
    assert!((square - 1.0).abs() < 0.3, "{square}");

    let mut image = Image::new(30, 20, 1, vec![9; 600]).unwrap();
    RandomErasing::new(1.0)
        .noise()
        .apply(&mut image, &mut rng(4))
        .unwrap();
    assert!(places().all(|(x, y)| inside(x, y) || image.pixel(x, y) == [9]));
    let other = places().filter(|&(x, y)| image.pixel(x, y) != [9]).count();
    assert!(other * 10 > (part.width * part.height * 9) as usize);
}

#[test]
fn without_chance_or_room_nothing_is_erased() {
    let before = Image::new(6, 5, 3, (0..90).collect()).unwrap();
    let mut image = before.clone();
    RandomErasing::new(0.0)
        .apply(&mut image, &mut rng(1))
        .unwrap();
    RandomErasing::new(1.0)
        .scale(1.0, 1.0)
        .apply(&mut image, &mut rng(1))
        .unwrap();
    assert_eq!(image, before);
    let mut pixel = Image::new(1, 1, 1, vec![7]).unwrap();
    RandomErasing::new(1.0)
        .apply(&mut pixel, &mut rng(1))
        .unwrap();
    assert_eq!(pixel.data(), [7]);
}

#[test]
fn settings_without_sense_are_refused_with_their_numbers() {
    let mut image = Image::new(4, 4, 1, vec![0; 16]).unwrap();
    let new = || RandomErasing::new(1.0);
    for (erasing, kind, text) in [
        (RandomErasing::new(1.5), ErrorKind::Config, "1.5"),
        (RandomErasing::new(f64::NAN), ErrorKind::Config, "NaN"),
        (new().scale(-0.1, 0.5), ErrorKind::Config, "-0.1 to 0.5"),
        (new().scale(0.5, 1.1), ErrorKind::Config, "0.5 to 1.1"),
        (new().scale(0.5, 0.4), ErrorKind::Config, "0.5 to 0.4"),
        (new().ratio(0.0, 1.0), ErrorKind::Config, "0 to 1"),
        (
            new().ratio(1.0, f64::INFINITY),
            ErrorKind::Config,
            "1 to inf",
        ),
        (new().ratio(f64::NAN, 1.0), ErrorKind::Config, "NaN to 1"),
        (new().value(-1.0), ErrorKind::Config, "with -1"),
        (new().value(0.5), ErrorKind::Config, "with 0.5"),
        (new().value(f32::NAN), ErrorKind::Config, "with NaN"),
        (new().rgb([0.0; 3]), ErrorKind::Shape, "1 channels"),
    ] {
        let error = erasing.apply(&mut image, &mut rng(1)).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(text), "{error}");
    }
    let mut bytes = Tensor::from_vec(vec![0u8; 12], [3, 2, 2]).unwrap();
    for value in [256.0, -1.0, 0.5] {
        let error = new()
            .value(value)
            .apply_tensor(&mut bytes, &mut rng(1))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    let mut wide = Tensor::from_vec(vec![0i64; 12], [3, 2, 2]).unwrap();
    let error = new().apply_tensor(&mut wide, &mut rng(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("not i64"), "{error}");
    for shape in [[3, 0, 5], [3, 5, 0]] {
        let mut empty = Tensor::from_vec(Vec::<f32>::new(), shape).unwrap();
        let error = new().apply_tensor(&mut empty, &mut rng(1)).unwrap_err();
        assert!(error.to_string().contains("no pixels"), "{error}");
    }
    let mut flat = Tensor::from_vec(vec![0f32; 12], [12]).unwrap();
    assert!(
        new()
            .apply_tensor(&mut flat, &mut rng(1))
            .unwrap_err()
            .to_string()
            .contains("[12]")
    );
    let mut gray = Tensor::from_vec(vec![0f32; 4], [1, 2, 2]).unwrap();
    assert_eq!(
        new()
            .rgb([0.0; 3])
            .apply_tensor(&mut gray, &mut rng(1))
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
}

#[test]
fn both_layouts_and_bytes_are_erased_alike() {
    let part = RandomErasing::new(1.0).part(30, 20, &mut rng(4)).unwrap();
    let inside = |place: usize| {
        let (x, y) = ((place % 30) as u32, (place / 30) as u32);
        (part.x..part.x + part.width).contains(&x) && (part.y..part.y + part.height).contains(&y)
    };
    let erasing = RandomErasing::new(1.0).rgb([1.0, 2.0, 255.0]);
    let mut first = Tensor::from_vec(vec![9u8; 1800], [3, 20, 30]).unwrap();
    erasing.apply_tensor(&mut first, &mut rng(4)).unwrap();
    let mut last = Tensor::from_vec(vec![9u8; 1800], [20, 30, 3]).unwrap();
    erasing
        .layout(Layout::Hwc)
        .apply_tensor(&mut last, &mut rng(4))
        .unwrap();
    let mut numbers = Tensor::from_vec(vec![9f32; 1800], [20, 30, 3]).unwrap();
    erasing
        .layout(Layout::Hwc)
        .apply_tensor(&mut numbers, &mut rng(4))
        .unwrap();
    let (first, last) = (
        first.as_slice::<u8>().unwrap(),
        last.as_slice::<u8>().unwrap(),
    );
    let numbers = numbers.as_slice::<f32>().unwrap();
    for place in 0..600 {
        for (c, value) in [1, 2, 255].into_iter().enumerate() {
            let wanted = if inside(place) { value } else { 9 };
            assert_eq!(
                (first[c * 600 + place], last[place * 3 + c]),
                (wanted, wanted)
            );
            assert_eq!(numbers[place * 3 + c], f32::from(wanted));
        }
    }

    // Noise in bytes is that of images.
    let mut image = Image::new(30, 20, 3, vec![9; 1800]).unwrap();
    RandomErasing::new(1.0)
        .noise()
        .apply(&mut image, &mut rng(4))
        .unwrap();
    let mut tensor = Tensor::from_vec(vec![9u8; 1800], [20, 30, 3]).unwrap();
    RandomErasing::new(1.0)
        .noise()
        .layout(Layout::Hwc)
        .apply_tensor(&mut tensor, &mut rng(4))
        .unwrap();
    assert_eq!(tensor.as_slice::<u8>().unwrap(), image.data());
    assert_ne!(image.data(), [9; 1800]);
}

#[test]
fn channels_that_seem_to_come_last_are_refused_unless_the_layout_was_said() {
    let tensor = || Tensor::from_vec(vec![9f32; 1800], [20, 30, 3]).unwrap();
    let error = RandomErasing::new(0.0)
        .apply_tensor(&mut tensor(), &mut rng(1))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(
        error
            .to_string()
            .contains("[20, 30, 3]: the channels seem to come last"),
        "{error}"
    );
    for layout in [Layout::Chw, Layout::Hwc] {
        RandomErasing::new(1.0)
            .layout(layout)
            .apply_tensor(&mut tensor(), &mut rng(1))
            .unwrap();
    }
}
