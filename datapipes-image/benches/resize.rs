//! Images scaled per second, compared with `fast_image_resize`, as training and evaluation scale
//! photos.
//!
//! Both allocate their result and take turns, image by image; the figures are medians.

use std::hint::black_box;
use std::time::{Duration, Instant};

use datapipes::Rng;
use datapipes_image::{
    Image, RandomResizedCrop, Rect, ResizeFilter, random_resized_crop, resized_crop,
};
use fast_image_resize::images::{CroppedImage, Image as Target, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

const ROUNDS: usize = 400;

struct Case {
    name: &'static str,
    image: Image,
    parts: Vec<Rect>,
    size: (u32, u32),
    filter: ResizeFilter,
}

fn main() {
    let photo = |width, height, channels| photo(width, height, channels);
    let whole = |name, image: Image, size, filter| {
        let parts = vec![Rect {
            x: 0,
            y: 0,
            width: image.width(),
            height: image.height(),
        }];
        Case {
            name,
            image,
            parts,
            size,
            filter,
        }
    };
    let crops = |name, image: Image, filter| {
        let parts = parts(image.width(), image.height());
        Case {
            name,
            image,
            parts,
            size: (224, 224),
            filter,
        }
    };
    let cases = [
        crops(
            "RGB 500x375, crops -> 224, bilinear",
            photo(500, 375, 3),
            ResizeFilter::Bilinear,
        ),
        crops(
            "RGB 500x375, crops -> 224, bicubic",
            photo(500, 375, 3),
            ResizeFilter::CatmullRom,
        ),
        whole(
            "RGB 500x375 -> 224, bilinear",
            photo(500, 375, 3),
            (224, 224),
            ResizeFilter::Bilinear,
        ),
        whole(
            "RGB 500x375 -> 224, lanczos",
            photo(500, 375, 3),
            (224, 224),
            ResizeFilter::Lanczos3,
        ),
        whole(
            "RGB 2048x1536 -> 224, bilinear",
            photo(2048, 1536, 3),
            (224, 224),
            ResizeFilter::Bilinear,
        ),
        whole(
            "RGB 224 -> 512, bicubic",
            photo(224, 224, 3),
            (512, 512),
            ResizeFilter::CatmullRom,
        ),
        crops(
            "gray 500x375, crops -> 224, bilinear",
            photo(500, 375, 1),
            ResizeFilter::Bilinear,
        ),
        whole(
            "gray 2048x1536 -> 224, bilinear",
            photo(2048, 1536, 1),
            (224, 224),
            ResizeFilter::Bilinear,
        ),
        whole(
            "gray 224 -> 512, bicubic",
            photo(224, 224, 1),
            (512, 512),
            ResizeFilter::CatmullRom,
        ),
        whole(
            "RGB 500x375 -> 224, nearest",
            photo(500, 375, 3),
            (224, 224),
            ResizeFilter::Nearest,
        ),
    ];
    println!("{:40} {:>10} {:>10} {:>6}", "", "ours", "theirs", "ratio");
    for case in &cases {
        let mut resizer = Resizer::new();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for &part in case.parts.iter().cycle().take(ROUNDS) {
            ours.push(time(|| {
                resized_crop(
                    black_box(&case.image),
                    part,
                    case.size.0,
                    case.size.1,
                    case.filter,
                )
                .expect("it fits")
            }));
            theirs.push(time(|| {
                other(&mut resizer, black_box(&case.image), part, case)
            }));
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
        println!(
            "{:40} {:>10.1?} {:>10.1?} {ratio:>6.2}",
            case.name, ours, theirs
        );
    }
}

fn time(resize: impl FnOnce() -> Image) -> Duration {
    let start = Instant::now();
    black_box(resize());
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn other(resizer: &mut Resizer, image: &Image, part: Rect, case: &Case) -> Image {
    let algorithm = match case.filter {
        ResizeFilter::Nearest => ResizeAlg::Nearest,
        ResizeFilter::CatmullRom => ResizeAlg::Convolution(FilterType::CatmullRom),
        ResizeFilter::Lanczos3 => ResizeAlg::Convolution(FilterType::Lanczos3),
        _ => ResizeAlg::Convolution(FilterType::Bilinear),
    };
    let pixel = if image.channels() == 1 {
        PixelType::U8
    } else {
        PixelType::U8x3
    };
    let source =
        ImageRef::new(image.width(), image.height(), image.data(), pixel).expect("it fits");
    let source =
        CroppedImage::new(&source, part.x, part.y, part.width, part.height).expect("it fits");
    let (width, height) = case.size;
    let mut out = vec![0; width as usize * height as usize * usize::from(image.channels())];
    let mut target = Target::from_slice_u8(width, height, &mut out, pixel).expect("it fits");
    resizer
        .resize(
            &source,
            &mut target,
            &ResizeOptions::new().resize_alg(algorithm),
        )
        .expect("it fits");
    Image::new(width, height, image.channels(), out).expect("it fits")
}

/// Returns the parts that random crops choose. They are read off the pixels of a crop from a
/// image in which each pixel encodes its position.
fn parts(width: u32, height: u32) -> Vec<Rect> {
    let mut rng = Rng::from_key([1, 2, 3, 4]);
    let settings = RandomResizedCrop::new(224, 224).filter(ResizeFilter::Nearest);
    let data =
        (0..height).flat_map(|y| (0..width).flat_map(move |x| [(x / 2) as u8, (y / 2) as u8, 0]));
    let places = Image::new(width, height, 3, data.collect()).expect("it fits");
    let edge = |pixel: &[u8], c: usize| u32::from(pixel[c]) * 2;
    let part = |image: Image| {
        let (first, last) = (image.pixel(0, 0), image.pixel(223, 223));
        let (x, y) = (edge(first, 0), edge(first, 1));
        let (right, bottom) = (edge(last, 0) + 1, edge(last, 1) + 1);
        Rect {
            x,
            y,
            width: (right.min(width) - x).max(1),
            height: (bottom.min(height) - y).max(1),
        }
    };
    (0..64)
        .map(|_| part(random_resized_crop(&places, settings, &mut rng).expect("it fits")))
        .collect()
}

/// Makes an image of gradients and grain.
fn photo(width: u32, height: u32, channels: u32) -> Image {
    let value = move |x: u32, y: u32, c: u32| {
        let grain =
            (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503_123)).wrapping_mul(97 + c) >> 27;
        (x * 200 / width + grain + c * y * 20 / height) as u8
    };
    let pixels = (0..height).flat_map(move |y| {
        (0..width).flat_map(move |x| (0..channels).map(move |c| value(x, y, c)))
    });
    Image::new(width, height, channels as u8, pixels.collect()).expect("it fits")
}
