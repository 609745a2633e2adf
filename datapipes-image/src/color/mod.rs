//! Changes of colours and tones, with the results of torchvision on `uint8` tensors.

mod adjust;
mod gray;
mod hue;
mod jitter;
mod planes;
mod tone;

pub use self::adjust::{adjust_brightness, adjust_contrast, adjust_saturation, adjust_sharpness};
pub(crate) use self::gray::check_channels;
pub use self::gray::{grayscale, random_grayscale};
pub use self::hue::adjust_hue;
pub use self::jitter::ColorJitter;
pub use self::tone::{autocontrast, equalize, invert, posterize, solarize};
