//! Random rotations and affine maps.

use datapipes::{Error, Result, Rng};

use super::warp::{Warp, warp_image};
use super::{Affine, Draw, Fill, Geometry, Rotation};
use crate::{Image, ResizeFilter};

/// Settings of [`random_rotation`]: torchvision's `RandomRotation`.
///
/// Degrees alone, `10.0`, mean from -10 to 10; two numbers are the range.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomRotation {
    degrees: (f64, f64),
    rotation: Rotation,
}

impl RandomRotation {
    /// Sets the largest angle to either side, in degrees.
    pub fn new(degrees: f64) -> Self {
        RandomRotation {
            degrees: (-degrees, degrees),
            rotation: Rotation::new(0.0),
        }
    }

    /// Sets the range of the angle in degrees, **counter-clockwise**.
    pub fn between(least: f64, most: f64) -> Self {
        RandomRotation {
            degrees: (least, most),
            rotation: Rotation::new(0.0),
        }
    }

    datapipes::setters! {
        /// Sets the filter: `Nearest` (the default) or `Bilinear`.
        filter(filter: ResizeFilter) => rotation.filter = filter;

        /// Sets the colour of new areas.
        fill(fill: impl Into<Fill>) => rotation.fill = fill.into();

        /// Makes the result large enough for the whole image.
        expand() => rotation.expand = true;
    }

    fn resolve(&self, rng: &mut Rng) -> Result<Rotation> {
        self.check()?;
        Ok(self
            .rotation
            .degrees(rng.range(self.degrees.0, self.degrees.1)))
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_range("degrees", self.degrees)?;
        self.rotation.resolve(1, 1).map(drop)
    }

    pub(crate) fn settings(&self) -> String {
        format!("{:?} degrees, {}", self.degrees, self.rotation.settings())
    }
}

datapipes::conversions! {
    |degrees: f64| -> RandomRotation { RandomRotation::new(degrees) }
    |(least, most): (f64, f64)| -> RandomRotation { RandomRotation::between(least, most) }
}

impl Draw for RandomRotation {
    fn draw(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Geometry> {
        let rotation = self.resolve(rng)?;
        Geometry::new(width, height).rotate(rotation)
    }
}

/// Rotates an image by a random angle; see [`rotate`](crate::rotate()).
///
/// # Errors
/// As [`rotate`](crate::rotate()); [`ErrorKind::Config`](datapipes::ErrorKind::Config) if degrees are not finite or not in order.
///
/// # Examples
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, random_rotation};
/// let (image, mut rng) = (Image::new(3, 1, 1, vec![1, 2, 3])?, Rng::from_key([1, 0, 0, 0]));
/// assert_eq!(random_rotation(&image, (180.0, 180.0), &mut rng)?.data(), [3, 2, 1]);
/// assert_eq!(random_rotation(&image, 10.0, &mut rng)?.pixel(1, 0), [2]); // the middle stays
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn random_rotation(
    image: &Image,
    settings: impl Into<RandomRotation>,
    rng: &mut Rng,
) -> Result<Image> {
    let rotation = settings.into().resolve(rng)?;
    warp_image(image, &rotation.resolve(image.width(), image.height())?)
}

/// Settings of [`random_affine`]: torchvision's `RandomAffine`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct RandomAffine {
    degrees: (f64, f64),
    translate: Option<(f64, f64)>,
    scale: Option<(f64, f64)>,
    shear_x: Option<(f64, f64)>,
    shear_y: Option<(f64, f64)>,
    affine: Affine,
}

impl RandomAffine {
    /// Sets the largest angle to either side, in degrees. Nothing else is changed by default.
    pub fn new(degrees: f64) -> Self {
        let (translate, scale, shear_x, shear_y) = (None, None, None, None);
        RandomAffine {
            degrees: (-degrees, degrees),
            translate,
            scale,
            shear_x,
            shear_y,
            affine: Affine::new(),
        }
    }

    datapipes::setters! {
        /// Sets the range of the angle in degrees, **clockwise**.
        degrees(least: f64, most: f64) => degrees = (least, most);

        /// Moves by up to these parts of the width and the height to either side, in whole pixels.
        translate(x: f64, y: f64) => translate = Some((x, y));

        /// Sets the range of the scale.
        scale(least: f64, most: f64) => scale = Some((least, most));

        /// Sets the range of the shear along x, in degrees.
        shear_x(least: f64, most: f64) => shear_x = Some((least, most));

        /// Sets the range of the shear along y, in degrees.
        shear_y(least: f64, most: f64) => shear_y = Some((least, most));

        /// Sets the filter: `Nearest` (the default) or `Bilinear`.
        filter(filter: ResizeFilter) => affine.filter = filter;

        /// Sets the colour of new areas.
        fill(fill: impl Into<Fill>) => affine.fill = fill.into();
    }

    /// Draws the angle; then, if they are set, the translation along x and along y, the scale, the
    /// shear along x, and along y.
    fn resolve(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Warp> {
        self.check()?;
        let mut affine = self.affine.angle(rng.range(self.degrees.0, self.degrees.1));
        if let Some((x, y)) = self.translate {
            let mut way = |part: f64, edge: u32| {
                let most = part * f64::from(edge);
                // Rounds as Python's `round` does.
                rng.range(-most, most).round_ties_even()
            };
            let x = way(x, width);
            affine = affine.translate(x, way(y, height));
        }
        if let Some((least, most)) = self.scale {
            affine = affine.scale(rng.range(least, most));
        }
        let mut shear =
            |range: Option<(f64, f64)>| range.map_or(0.0, |(least, most)| rng.range(least, most));
        let x = shear(self.shear_x);
        affine.shear(x, shear(self.shear_y)).resolve(width, height)
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        check_range("degrees", self.degrees)?;
        let (x, y) = self.translate.unwrap_or_default();
        if !((0.0..=1.0).contains(&x) && (0.0..=1.0).contains(&y)) {
            let message =
                format!("moved by up to {x} of the width and {y} of the height, not from 0 to 1");
            return Err(Error::config(message));
        }
        for (name, range) in [
            ("scale", self.scale),
            ("shear x", self.shear_x),
            ("shear y", self.shear_y),
        ] {
            check_range(name, range.unwrap_or_default())?;
        }
        // The ends of a range are its worst cases.
        let end = |range: Option<(f64, f64)>, usual: f64| {
            range.map_or([usual; 2], |(least, most)| [least, most])
        };
        let (scale, x, y) = (
            end(self.scale, 1.0),
            end(self.shear_x, 0.0),
            end(self.shear_y, 0.0),
        );
        for end in 0..2 {
            self.affine
                .scale(scale[end])
                .shear(x[end], y[end])
                .resolve(1, 1)?;
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> String {
        let mut text = format!("{:?} degrees, ", self.degrees);
        for (name, range) in [
            ("translate", self.translate),
            ("scale", self.scale),
            ("shear x", self.shear_x),
            ("shear y", self.shear_y),
        ] {
            if let Some(range) = range {
                text += &format!("{name} {range:?}, ");
            }
        }
        text + &self.affine.settings()
    }
}

datapipes::conversions! {
    |degrees: f64| -> RandomAffine { RandomAffine::new(degrees) }
}

impl Draw for RandomAffine {
    fn draw(&self, width: u32, height: u32, rng: &mut Rng) -> Result<Geometry> {
        let warp = self.resolve(width, height, rng)?;
        Geometry::new(width, height).warp(warp)
    }
}

/// Rotates, moves, scales and shears an image at random; see [`affine`](crate::affine()).
///
/// # Errors
/// As [`affine`](crate::affine()); [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a range is not finite or not in order.
///
/// # Examples
/// ```
/// # use datapipes::Rng;
/// # use datapipes_image::{Image, RandomAffine, random_affine};
/// let (image, mut rng) = (Image::new(4, 1, 1, vec![1, 2, 3, 4])?, Rng::from_key([1, 0, 0, 0]));
/// let moved = random_affine(&image, RandomAffine::new(0.0).translate(0.5, 0.0), &mut rng)?;
/// assert_eq!((moved.width(), moved.height()), (4, 1));
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn random_affine(
    image: &Image,
    settings: impl Into<RandomAffine>,
    rng: &mut Rng,
) -> Result<Image> {
    warp_image(
        image,
        &settings
            .into()
            .resolve(image.width(), image.height(), rng)?,
    )
}

fn check_range(name: &str, (least, most): (f64, f64)) -> Result<()> {
    if least.is_finite() && most.is_finite() && least <= most {
        return Ok(());
    }
    let message = format!("{name} from {least} to {most}: it has to be in order");
    Err(Error::config(message))
}
