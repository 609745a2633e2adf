//! Conversion of components to RGB, with libjpeg's roundings and, for four components, Pillow's.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::header::Color;
use super::idct::with_avx2;

/// Converts a row of each component to a row of pixels.
pub(super) fn convert(color: Color, rows: [&[u8]; 4], out: &mut [u8]) {
    match color {
        Color::Gray => gray(rows[0], out),
        Color::Rgb => rgb([rows[0], rows[1], rows[2]], out),
        Color::YCbCr => ycc([rows[0], rows[1], rows[2]], out),
        Color::Cmyk => cmyk(rows, out),
        Color::Ycck => ycck(rows, out),
    }
}

fn gray(row: &[u8], out: &mut [u8]) {
    for (out, &sample) in out.as_chunks_mut::<3>().0.iter_mut().zip(row) {
        *out = [sample; 3];
    }
}

with_avx2! {
    fn rgb(rows: [&[u8]; 3], out: &mut [u8]) {
        zip(rows, out, |r, g, b| [r, g, b])
    }
}

fn ycc(rows: [&[u8]; 3], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if out.len() >= 16 * 3 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this machine has AVX2.
        return unsafe { avx2::ycc(rows, out) };
    }
    ycc_portable(rows, out);
}

fn ycc_portable(rows: [&[u8]; 3], out: &mut [u8]) {
    zip(rows, out, rgb_of);
}

#[inline(always)]
fn zip(rows: [&[u8]; 3], out: &mut [u8], of: impl Fn(u8, u8, u8) -> [u8; 3]) {
    let out = out.as_chunks_mut::<3>().0;
    let (a, b, c) = (
        &rows[0][..out.len()],
        &rows[1][..out.len()],
        &rows[2][..out.len()],
    );
    for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
        *out = of(a, b, c);
    }
}

/// Converts a colour, with 16 fraction bits; each factor is rounded to those.
#[inline(always)]
fn rgb_of(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let half = 1 << 15;
    [
        y + ((91_881 * cr + half) >> 16),
        y + ((-22_554 * cb - 46_802 * cr + half) >> 16),
        y + ((116_130 * cb + half) >> 16),
    ]
    .map(|channel| channel.clamp(0, 255) as u8)
}

/// Converts inverted ink: the light that black does not absorb, and of that the light that the
/// colour does not absorb.
fn cmyk(rows: [&[u8]; 4], out: &mut [u8]) {
    let [c, m, y, k] = rows;
    for ((((out, &c), &m), &y), &k) in out
        .as_chunks_mut::<3>()
        .0
        .iter_mut()
        .zip(c)
        .zip(m)
        .zip(y)
        .zip(k)
    {
        *out = [c, m, y].map(|light| under(light, k));
    }
}

fn ycck(rows: [&[u8]; 4], out: &mut [u8]) {
    let [y, cb, cr, k] = rows;
    for ((((out, &y), &cb), &cr), &k) in out
        .as_chunks_mut::<3>()
        .0
        .iter_mut()
        .zip(y)
        .zip(cb)
        .zip(cr)
        .zip(k)
    {
        // libjpeg makes ink of the colours: light in the file is 255 minus ink.
        *out = rgb_of(y, cb, cr).map(|ink| under(255 - ink, k));
    }
}

/// Multiplies in Pillow's way: the light of the black minus the part of it that the ink takes,
/// which is rounded.
fn under(light: u8, black: u8) -> u8 {
    let product = u32::from(255 - light) * u32::from(black) + 128;
    black - (((product >> 8) + product) >> 8) as u8
}
