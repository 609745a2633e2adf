//! Policies that choose among many augmentations: the augmentations and their strengths.

mod rand_augment;
mod trivial_augment;
mod warp;

pub use rand_augment::RandAugment;
pub use trivial_augment::TrivialAugmentWide;

use datapipes::{Error, Result, Rng};
use warp::{Warp, warp};

use crate::color::{autocontrast, equalize, posterize, solarize};
use crate::{
    Image, ResizeFilter, adjust_brightness, adjust_contrast, adjust_saturation, adjust_sharpness,
};

/// An augmentation. The order is that of torchvision; the drawn number selects by it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

const KINDS: [Kind; 14] = [
    Kind::Identity,
    Kind::ShearX,
    Kind::ShearY,
    Kind::TranslateX,
    Kind::TranslateY,
    Kind::Rotate,
    Kind::Brightness,
    Kind::Color,
    Kind::Contrast,
    Kind::Sharpness,
    Kind::Posterize,
    Kind::Solarize,
    Kind::AutoContrast,
    Kind::Equalize,
];

impl Kind {
    /// Returns true if the strength matters.
    fn is_graded(self) -> bool {
        !matches!(self, Kind::Identity | Kind::AutoContrast | Kind::Equalize)
    }

    /// Returns true if the augmentation has two directions.
    fn is_signed(self) -> bool {
        self.is_graded() && !matches!(self, Kind::Posterize | Kind::Solarize)
    }
}

/// Maximum strength of each kind.
#[derive(Clone, Copy, Debug)]
struct Space {
    shear: f64,
    /// Translation in pixels, by the width or the height.
    translate: fn(u32) -> f64,
    rotate: f64,
    factor: f64,
    /// Number of bits that are removed.
    posterize: f32,
}

impl Space {
    /// Returns magnitude `bin` of `bins`, for an image of this size: computed in `f32`, as
    /// `torch.linspace` does.
    fn magnitude(&self, kind: Kind, bin: u32, bins: u32, width: u32, height: u32) -> f64 {
        let linear =
            |start: f64, end: f64| f64::from(linspace(start as f32, end as f32, bin, bins));
        match kind {
            Kind::Identity | Kind::AutoContrast | Kind::Equalize => 0.0,
            Kind::ShearX | Kind::ShearY => linear(0.0, self.shear),
            Kind::TranslateX => linear(0.0, (self.translate)(width)),
            Kind::TranslateY => linear(0.0, (self.translate)(height)),
            Kind::Rotate => linear(0.0, self.rotate),
            Kind::Brightness | Kind::Color | Kind::Contrast | Kind::Sharpness => {
                linear(0.0, self.factor)
            }
            Kind::Posterize => {
                let step = ((f64::from(bins) - 1.0) / f64::from(self.posterize)) as f32;
                f64::from((8.0 - bin as f32 / step).round_ties_even())
            }
            Kind::Solarize => linear(1.0, 0.0),
        }
    }
}

fn linspace(start: f32, end: f32, at: u32, steps: u32) -> f32 {
    let step = (end - start) / (steps - 1) as f32;
    match at < steps / 2 {
        true => start + step * at as f32,
        false => end - step * (steps - 1 - at) as f32,
    }
}

/// Sampling of moved images, and the colour of new areas.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    filter: ResizeFilter,
    fill: [u8; 3],
}

impl Default for Look {
    fn default() -> Self {
        Look {
            filter: ResizeFilter::Nearest,
            fill: [0; 3],
        }
    }
}

impl Look {
    fn check(&self) -> Result<()> {
        match self.filter {
            ResizeFilter::Nearest | ResizeFilter::Bilinear => Ok(()),
            other => {
                let message = format!("images are moved by Nearest or Bilinear, not {other:?}");
                Err(Error::config(message))
            }
        }
    }
}

/// A chosen augmentation, with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Op {
    kind: Kind,
    magnitude: f64,
}

impl Op {
    /// Draws a kind, then the bin if the kind is graded and none is given, then the sign if it has
    /// one.
    fn draw(space: &Space, bin: Option<u32>, bins: u32, image: &Image, rng: &mut Rng) -> Op {
        let kind = KINDS[rng.below(KINDS.len() as u64) as usize];
        if !kind.is_graded() {
            return Op {
                kind,
                magnitude: 0.0,
            };
        }
        let bin = bin.unwrap_or_else(|| rng.below(u64::from(bins)) as u32);
        let magnitude = space.magnitude(kind, bin, bins, image.width(), image.height());
        let negative = kind.is_signed() && rng.chance(0.5);
        Op {
            kind,
            magnitude: if negative { -magnitude } else { magnitude },
        }
    }

    fn apply(self, image: &mut Image, look: &Look) -> Result<()> {
        let Op { kind, magnitude } = self;
        let mut moved =
            |how: Warp| warp(image, how, look.filter == ResizeFilter::Bilinear, look.fill);
        match kind {
            Kind::Identity => {}
            Kind::ShearX => moved(Warp::shear(magnitude, 0.0)),
            Kind::ShearY => moved(Warp::shear(0.0, magnitude)),
            Kind::TranslateX => moved(Warp::translate(magnitude.trunc(), 0.0)),
            Kind::TranslateY => moved(Warp::translate(0.0, magnitude.trunc())),
            Kind::Rotate => moved(Warp::rotate(magnitude)),
            Kind::Brightness => adjust_brightness(image, 1.0 + magnitude)?,
            Kind::Color => adjust_saturation(image, 1.0 + magnitude)?,
            Kind::Contrast => adjust_contrast(image, 1.0 + magnitude)?,
            Kind::Sharpness => adjust_sharpness(image, 1.0 + magnitude)?,
            Kind::Posterize => posterize(image, magnitude as u8)?,
            // From the first whole number that is not below it.
            Kind::Solarize => solarize(image, (255.0 * magnitude).ceil() as u8),
            Kind::AutoContrast => autocontrast(image),
            Kind::Equalize => equalize(image),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    const SPACES: [(&str, Space); 2] = [
        ("RandAugment", rand_augment::SPACE),
        ("TrivialAugmentWide", trivial_augment::SPACE),
    ];

    #[test]
    fn magnitudes_are_torchvisions() {
        let mut seen = 0;
        for line in include_str!("../../tests/data/colour.magnitudes.txt").lines() {
            let mut words = line.split(' ');
            let (space, kind) = (words.next().unwrap(), words.next().unwrap());
            let space = SPACES.iter().find(|(name, _)| *name == space).unwrap().1;
            let kind = KINDS
                .into_iter()
                .find(|k| format!("{k:?}") == kind)
                .unwrap();
            let wanted: Vec<f64> = words.map(|word| word.parse().unwrap()).collect();
            let bins = wanted.len() as u32;
            let magnitudes: Vec<f64> = (0..bins)
                .map(|bin| space.magnitude(kind, bin, bins, 500, 333))
                .collect();
            for (is, should) in magnitudes.into_iter().zip(wanted) {
                // The last bit in the original depends on how many numbers the machine computes at
                // once: 16 pixels may become 15 there, and are 16 here.
                assert!(
                    (is - should).abs() <= 1.2e-7 * should,
                    "{kind:?}: {is} {should}"
                );
            }
            assert!(kind.is_graded());
            seen += 1;
        }
        assert_eq!(seen, 2 * 2 * 11);
    }

    #[test]
    fn golden_draws() {
        let image = Image::black(500, 333, 3);
        let mut rng = Rng::from_key([1, 2, 3, 4]);
        let mut draw = |space, bin| -> Draws {
            std::array::from_fn(|_| {
                let op = Op::draw(space, bin, 31, &image, &mut rng);
                (op.kind, op.magnitude as f32)
            })
        };
        let draws = (
            draw(&rand_augment::SPACE, Some(9)),
            draw(&trivial_augment::SPACE, None),
        );
        assert_eq!(draws, GOLDEN, "{draws:?}");
    }

    /// Kinds and magnitudes, the latter in `f32`.
    type Draws = [(Kind, f32); 6];
    const GOLDEN: (Draws, Draws) = (
        [
            (Kind::Sharpness, 0.26999998),
            (Kind::TranslateY, -45.271904),
            (Kind::Equalize, 0.0),
            (Kind::TranslateX, -67.97583),
            (Kind::Sharpness, -0.26999998),
            (Kind::Brightness, 0.26999998),
        ],
        [
            (Kind::Color, -0.82500005),
            (Kind::Solarize, 0.6333333),
            (Kind::Posterize, 6.0),
            (Kind::TranslateX, 1.0666667),
            (Kind::Equalize, 0.0),
            (Kind::ShearX, 0.429),
        ],
    );

    #[test]
    fn each_kind_is_drawn_and_signs_are_even() {
        let (image, mut rng) = (Image::black(50, 40, 1), Rng::from_key([2, 0, 0, 0]));
        let draws = 28_000;
        let (mut counts, mut signed, mut negative) = ([0u32; 14], 0u32, 0u32);
        for _ in 0..draws {
            let op = Op::draw(&rand_augment::SPACE, Some(9), 31, &image, &mut rng);
            counts[op.kind as usize] += 1;
            signed += u32::from(op.kind.is_signed());
            negative += u32::from(op.magnitude < 0.0);
        }
        assert!(
            counts.iter().all(|count| count.abs_diff(2000) < 220),
            "{counts:?}"
        );
        assert!(
            negative.abs_diff(signed / 2) < 400,
            "{negative} of {signed}"
        );
    }

    #[test]
    fn settings_without_sense_are_refused_with_their_numbers() {
        let mut image = Image::black(4, 4, 3);
        let mut rng = Rng::from_key([0; 4]);
        for (policy, text) in [
            (
                RandAugment::new(2, 31),
                "2 augmentations of magnitude 31 of 31",
            ),
            (RandAugment::new(2, 0).bins(1), "of 1"),
            (RandAugment::new(1001, 9), "1001 augmentations"),
            (
                RandAugment::new(2, 9).filter(ResizeFilter::Lanczos3),
                "Lanczos3",
            ),
        ] {
            let error = policy.apply(&mut image, &mut rng).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(text), "{error}");
        }
        let error = TrivialAugmentWide::new()
            .bins(0)
            .apply(&mut image, &mut rng)
            .unwrap_err();
        assert!(error.to_string().contains("0 strengths"), "{error}");
    }
}
