//! Colours: torchvision's results for the same images, and properties that hold for any image.

use datapipes::{ErrorKind, Result};
use datapipes_image::{
    Image, adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, adjust_sharpness,
    autocontrast, equalize, grayscale, invert, posterize, solarize,
};

use crate::picture;

const FACTORS: [f64; 5] = [0.0, 0.37, 0.5, 1.0, 1.83];
const TURNS: [f64; 6] = [-0.5, -0.13, 0.0, 0.02, 0.31, 0.5];

/// Reads the file's image, with one channel if it is gray.
fn stored(name: &str) -> Image {
    let image = picture(&format!("colour.{name}.png"));
    if !name.ends_with("gray") && name != "grayscale" {
        return image;
    }
    let first = image
        .data()
        .iter()
        .step_by(usize::from(image.channels()))
        .copied()
        .collect();
    Image::new(image.width(), image.height(), 1, first).unwrap()
}

/// Compares each input, changed by a function, with torchvision's result in file `name`. Returns
/// the number of values that differ, each by 1.
fn compare(name: &str, sources: &[Image], f: impl Fn(&mut Image, usize) -> Result<()>) -> usize {
    let wanted = stored(name);
    let mut is = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        let mut image = source.clone();
        f(&mut image, n).unwrap();
        is.extend_from_slice(image.data());
    }
    assert_eq!(is.len(), wanted.data().len(), "{name}");
    let differences: Vec<u8> = is
        .iter()
        .zip(wanted.data())
        .map(|(a, b)| a.abs_diff(*b))
        .collect();
    assert!(
        differences.iter().all(|&d| d <= 1),
        "{name}: {:?}",
        differences.iter().max()
    );
    differences.iter().filter(|&&d| d == 1).count()
}

/// Runs [`compare`] on a colour image and on a gray one.
fn both(name: &str, count: usize, f: impl Fn(&mut Image, usize) -> Result<()>) -> [usize; 2] {
    let sources = |name| vec![stored(name); count];
    [
        compare(name, &sources("source"), &f),
        compare(&format!("{name}_gray"), &sources("gray"), &f),
    ]
}

#[test]
fn factors_are_torchvisions() {
    assert_eq!(
        both("brightness", 5, |image, n| adjust_brightness(
            image, FACTORS[n]
        )),
        [0, 0]
    );
    assert_eq!(
        both("contrast", 5, |image, n| adjust_contrast(image, FACTORS[n])),
        [0, 0]
    );
    assert_eq!(
        both("sharpness", 5, |image, n| adjust_sharpness(
            image, FACTORS[n]
        )),
        [0, 0]
    );
    let sources = vec![stored("source"); 5];
    assert_eq!(
        compare("saturation", &sources, |image, n| adjust_saturation(
            image, FACTORS[n]
        )),
        0
    );
}

#[test]
fn hues_are_torchvisions() {
    let sources = vec![stored("source"); 6];
    assert_eq!(
        compare("hue", &sources, |image, n| adjust_hue(image, TURNS[n])),
        0
    );
}

#[test]
fn tones_are_torchvisions() {
    assert_eq!(
        both("posterize", 3, |image, n| posterize(image, [1, 3, 7][n])),
        [0, 0]
    );
    let solarized = both("solarize", 3, |image, n| {
        solarize(image, [0, 100, 255][n]);
        Ok(())
    });
    assert_eq!(solarized, [0, 0]);
    for (name, f) in [
        ("autocontrast", autocontrast as fn(&mut Image)),
        ("equalize", equalize),
    ] {
        let run = |image: &mut Image, _| {
            f(image);
            Ok(())
        };
        assert_eq!(compare(name, &[stored("source"), stored("dull")], run), 0);
        assert_eq!(compare(&format!("{name}_gray"), &[stored("gray")], run), 0);
    }
    let gray = |image: &mut Image, _| {
        *image = grayscale(image, 1)?;
        Ok(())
    };
    assert_eq!(compare("grayscale", &[stored("source")], gray), 0);
}

#[test]
fn what_changes_nothing_changes_nothing() {
    for name in ["source", "gray"] {
        let before = stored(name);
        let mut image = before.clone();
        for adjust in [
            adjust_brightness,
            adjust_contrast,
            adjust_saturation,
            adjust_sharpness,
        ] {
            adjust(&mut image, 1.0).unwrap();
            assert_eq!(image, before);
        }
        adjust_hue(&mut image, 0.0).unwrap();
        posterize(&mut image, 8).unwrap();
        invert(&mut image);
        assert_ne!(image, before);
        invert(&mut image);
        assert_eq!(image, before);
        solarize(&mut image, 0);
        invert(&mut image);
        assert_eq!(image, before);
        posterize(&mut image, 0).unwrap();
        assert!(image.data().iter().all(|&value| value == 0));
        for f in [autocontrast as fn(&mut Image), equalize] {
            let black = image.clone();
            f(&mut image);
            assert_eq!(image, black);
        }
    }
    // An image without colour has neither saturation nor hue to adjust.
    let mut gray = stored("gray");
    adjust_saturation(&mut gray, 0.3).unwrap();
    adjust_hue(&mut gray, 0.3).unwrap();
    assert_eq!(gray, stored("gray"));
    // Rounding must not lower a gray pixel by a level.
    let mut gray = Image::new(256, 1, 3, (0..=255).flat_map(|v| [v; 3]).collect()).unwrap();
    let before = gray.clone();
    for step in -50..=50 {
        adjust_hue(&mut gray, f64::from(step) / 100.0).unwrap();
    }
    assert_eq!(gray, before);
}

#[test]
fn factors_without_sense_are_refused_with_their_numbers() {
    for mut image in [stored("source"), stored("gray")] {
        let before = image.clone();
        for factor in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            for (name, adjust) in [
                (
                    "brightness",
                    adjust_brightness as fn(&mut Image, f64) -> Result<()>,
                ),
                ("contrast", adjust_contrast),
                ("saturation", adjust_saturation),
                ("sharpness", adjust_sharpness),
            ] {
                let error = adjust(&mut image, factor).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Config);
                assert!(
                    error
                        .to_string()
                        .contains(&format!("a {name} factor of {factor}")),
                    "{error}"
                );
            }
        }
        for turn in [-0.51, 0.51, f64::NAN] {
            let error = adjust_hue(&mut image, turn).unwrap_err();
            assert!(
                error.to_string().contains(&format!("hue of {turn}")),
                "{error}"
            );
        }
        assert!(
            posterize(&mut image, 9)
                .unwrap_err()
                .to_string()
                .contains("9 bits")
        );
        assert_eq!(image, before);
    }
}

#[test]
fn pictures_of_any_size_are_taken() {
    for (width, height) in [(1, 1), (1, 9), (9, 1), (2, 2), (3, 3), (65, 3), (63, 2)] {
        for channels in [1, 3] {
            let len = width as usize * height as usize * usize::from(channels);
            let mut image = Image::new(
                width,
                height,
                channels,
                (0..len).map(|i| (i * 37) as u8).collect(),
            )
            .unwrap();
            for adjust in [
                adjust_brightness,
                adjust_contrast,
                adjust_saturation,
                adjust_sharpness,
            ] {
                adjust(&mut image, 1.3).unwrap();
                adjust(&mut image, 1e30).unwrap();
            }
            adjust_hue(&mut image, 0.2).unwrap();
            autocontrast(&mut image);
            equalize(&mut image);
            assert_eq!(image.data().len(), len);
        }
    }
}
