//! Tensors as pictures, in PNG files.

use std::any::Any;

use crate::{DType, Tensor, labelled};

/// Maximum number of pixels of a picture; a larger tensor is not drawn.
const MOST_PIXELS: usize = 1 << 26;

/// Draws a tensor, alone or with a label, of the shape `[height, width]`, `[height, width, 1 or 3]`
/// or `[1 or 3, height, width]`. Bytes are drawn as they are, numbers from 0 to 1 as shades, and
/// other numbers scaled between their smallest and largest; what is not finite is black.
pub(super) fn draw(value: &dyn Any) -> Option<Vec<u8>> {
    let tensor = labelled::<Tensor>(value)?;
    let (height, width, channels, is_planar) = match *tensor.shape() {
        [height, width] => (height, width, 1, false),
        [height, width, channels @ (1 | 3)] => (height, width, channels, false),
        [channels @ (1 | 3), height, width] => (height, width, channels, true),
        _ => return None,
    };
    let pixels = height.checked_mul(width)?;
    if !(1..=MOST_PIXELS).contains(&pixels) {
        return None;
    }
    let shades = shades(tensor)?;
    let rows: Vec<u8> = if is_planar {
        let at = |pixel: usize| (0..channels).map(move |channel| channel * pixels + pixel);
        (0..pixels)
            .flat_map(|pixel| at(pixel).map(|place| shades[place]))
            .collect()
    } else {
        shades
    };
    Some(png(
        u32::try_from(width).ok()?,
        u32::try_from(height).ok()?,
        channels == 3,
        &rows,
    ))
}

/// Returns the numbers of a tensor as bytes.
fn shades(tensor: &Tensor) -> Option<Vec<u8>> {
    let numbers: Vec<f64> = match tensor.dtype() {
        DType::U8 => return tensor.as_slice::<u8>().ok().map(<[u8]>::to_vec),
        DType::F32 => {
            let numbers = tensor.as_slice::<f32>().ok()?;
            numbers.iter().map(|&number| f64::from(number)).collect()
        }
        DType::F64 => tensor.as_slice::<f64>().ok()?.to_vec(),
        _ => return None,
    };
    let finite = numbers.iter().copied().filter(|number| number.is_finite());
    let (low, high) = finite.fold((0.0, 1.0), |(low, high): (f64, f64), number| {
        (low.min(number), high.max(number))
    });
    let shade = |number: f64| ((number - low) / (high - low) * 255.0).round() as u8;
    Some(numbers.into_iter().map(shade).collect())
}

/// Encodes 8-bit pixels as a PNG file, without compression: no dependency is needed for that.
fn png(width: u32, height: u32, is_rgb: bool, pixels: &[u8]) -> Vec<u8> {
    let line = width as usize * if is_rgb { 3 } else { 1 };
    let mut lines = Vec::with_capacity(pixels.len() + height as usize);
    for pixels in pixels.chunks_exact(line) {
        lines.push(0);
        lines.extend_from_slice(pixels);
    }
    let mut stream = vec![0x78, 0x01];
    let mut blocks = lines.chunks(usize::from(u16::MAX)).peekable();
    while let Some(block) = blocks.next() {
        let len = block.len() as u16;
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend(len.to_le_bytes());
        stream.extend((!len).to_le_bytes());
        stream.extend_from_slice(block);
    }
    stream.extend(adler32(&lines).to_be_bytes());
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, if is_rgb { 2 } else { 0 }, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", &header), (b"IDAT", &stream), (b"IEND", &vec![])] {
        file.extend((data.len() as u32).to_be_bytes());
        let begin = file.len();
        file.extend(kind);
        file.extend(data);
        let sum = crc32(&file[begin..]);
        file.extend(sum.to_be_bytes());
    }
    file
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum: u32, _| {
            (sum >> 1) ^ (0xEDB8_8320 & 0_u32.wrapping_sub(sum & 1))
        })
    })
}

fn adler32(data: &[u8]) -> u32 {
    let (a, b) = data.iter().fold((1, 0), |(a, b): (u32, u32), &byte| {
        let a = (a + u32::from(byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    }

    #[test]
    fn tensors_that_are_pictures_are_drawn_and_no_others() {
        let bytes = |shape: &[usize]| {
            let len = shape.iter().product::<usize>();
            Tensor::from_vec((0..len).map(|n| n as u8).collect(), shape).unwrap()
        };
        let size = |png: Vec<u8>| {
            let at = |place: usize| u32::from_be_bytes(png[place..place + 4].try_into().unwrap());
            (at(16), at(20), png[25])
        };
        assert_eq!(size(draw(&bytes(&[5, 7])).unwrap()), (7, 5, 0));
        assert_eq!(size(draw(&bytes(&[5, 7, 3])).unwrap()), (7, 5, 2));
        assert_eq!(size(draw(&(bytes(&[3, 5, 7]), 9_u32)).unwrap()), (7, 5, 2));
        assert!(draw(&bytes(&[5])).is_none() && draw(&bytes(&[2, 5, 7])).is_none());
        assert!(draw(&bytes(&[0, 7])).is_none() && draw(&7_u64).is_none());
        let odd = vec![f32::NAN, -2.0, 0.0, f32::INFINITY, 2.0, 1.0];
        let odd = Tensor::from_vec(odd, [2, 3]).unwrap();
        assert_eq!(shades(&odd).unwrap(), [0, 0, 128, 255, 255, 191]);
        let planes = [0_u8, 1, 10, 11, 20, 21].to_vec();
        let planes = Tensor::from_vec(planes, [3, 1, 2]).unwrap();
        let file = draw(&planes).unwrap();
        let pixels = [0, 0, 10, 20, 1, 11, 21];
        assert!(file.windows(7).any(|part| part == pixels), "{file:?}");
    }
}
