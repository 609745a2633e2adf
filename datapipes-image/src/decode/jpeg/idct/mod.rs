//! Inverse DCT: from blocks of coefficients to samples.
//!
//! The arithmetic is that of libjpeg-turbo's accurate integer transform (Loeffler, Ligtenberg and
//! Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications", 1989), and of its
//! transforms of reduced size, to the bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod reduced;

use super::block::Block;

/// Makes a function whose body is compiled twice, with and without AVX2; the version that this
/// machine supports is called.
macro_rules! with_avx2 {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        $vis fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with($($arg: $type),*) $body
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: this machine has AVX2.
                    return unsafe { with($($arg),*) };
                }
            }
            $body
        }
    };
}
pub(super) use with_avx2;

const BITS: u32 = 13;
const PASS: u32 = 2;

/// Returns a factor with 13 fraction bits.
const fn fix(value: f64) -> i32 {
    (value * (1 << BITS) as f64 + 0.5) as i32
}

mod factors {
    use super::fix;

    pub(super) const F_0_298: i32 = fix(0.298631336);
    pub(super) const F_0_390: i32 = fix(0.390180644);
    pub(super) const F_0_541: i32 = fix(0.541196100);
    pub(super) const F_0_765: i32 = fix(0.765366865);
    pub(super) const F_0_899: i32 = fix(0.899976223);
    pub(super) const F_1_175: i32 = fix(1.175875602);
    pub(super) const F_1_501: i32 = fix(1.501321110);
    pub(super) const F_1_847: i32 = fix(1.847759065);
    pub(super) const F_1_961: i32 = fix(1.961570560);
    pub(super) const F_2_053: i32 = fix(2.053119869);
    pub(super) const F_2_562: i32 = fix(2.562915447);
    pub(super) const F_3_072: i32 = fix(3.072711026);
}
use factors::*;

/// Makes samples of the blocks of a row: `size` by `size` of each, from left to right. `lasts` has
/// the place of the last nonzero coefficient of each block, in the file's order.
pub(super) fn row(
    size: usize,
    blocks: &[Block],
    lasts: &[u8],
    quant: &[u16; 64],
    out: &mut [u8],
    stride: usize,
) {
    match size {
        8 => whole(blocks, lasts, quant, out, stride),
        4 => quarter(blocks, quant, out, stride),
        2 => sixteenth(blocks, quant, out, stride),
        _ => mean(blocks, quant, out),
    }
}

fn whole(blocks: &[Block], lasts: &[u8], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this machine has AVX2.
        return unsafe { avx2::whole(blocks, lasts, quant, out, stride) };
    }
    whole_portable(blocks, lasts, quant, out, stride);
}

fn whole_portable(
    blocks: &[Block],
    lasts: &[u8],
    quant: &[u16; 64],
    out: &mut [u8],
    stride: usize,
) {
    for (n, (block, &last)) in blocks.iter().zip(lasts).enumerate() {
        let square = &mut out[n * 8..];
        if last == 0 {
            let value = flat(block.0[0], quant[0]);
            for row in 0..8 {
                square[row * stride..][..8].fill(value);
            }
            continue;
        }
        for (row, samples) in transform(&block.0, quant).iter().enumerate() {
            square[row * stride..][..8].copy_from_slice(samples);
        }
    }
}

/// Returns the sample of a block that has only a mean.
#[inline(always)]
fn flat(mean: i16, quant: u16) -> u8 {
    let value = mean.wrapping_mul(quant as i16).wrapping_shl(PASS);
    sample((i32::from(value) + (1 << (PASS + 2))) >> (PASS + 3))
}

#[inline(always)]
fn sample(value: i32) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

type Lines = [[i16; 8]; 8];

/// Transforms a block as libjpeg-turbo does with vectors of 16 bits, even if they overflow in
/// damaged images.
#[inline(always)]
fn transform(block: &[i16; 64], quant: &[u16; 64]) -> [[u8; 8]; 8] {
    let mut lines: Lines = [[0; 8]; 8];
    for (line, (block, quant)) in lines.iter_mut().zip(
        block
            .as_chunks::<8>()
            .0
            .iter()
            .zip(quant.as_chunks::<8>().0),
    ) {
        for n in 0..8 {
            line[n] = block[n].wrapping_mul(quant[n] as i16);
        }
    }
    let lines = if block[8..] == [0; 56] {
        [lines[0].map(|value| value.wrapping_shl(PASS)); 8]
    } else {
        pass::<{ BITS - PASS }>(&lines)
    };
    let lines = turn(&pass::<{ BITS + PASS + 3 }>(&turn(&lines)));
    lines.map(|line| line.map(|value| sample(value.into())))
}

#[inline(always)]
fn turn(lines: &Lines) -> Lines {
    let mut turned = [[0; 8]; 8];
    for (y, line) in lines.iter().enumerate() {
        for (x, &value) in line.iter().enumerate() {
            turned[x][y] = value;
        }
    }
    turned
}

/// Transforms each column, in one dimension.
#[inline(always)]
fn pass<const SHIFT: u32>(lines: &Lines) -> Lines {
    let mut out = [[0; 8]; 8];
    for n in 0..8 {
        let wide = |value: i16| i32::from(value);
        let line = |row: usize| lines[row][n];
        let (a, b) = (wide(line(2)), wide(line(6)));
        let (even2, even3) = (
            a * F_0_541 + b * (F_0_541 - F_1_847),
            a * (F_0_541 + F_0_765) + b * F_0_541,
        );
        let sum = wide(line(0).wrapping_add(line(4))) << BITS;
        let difference = wide(line(0).wrapping_sub(line(4))) << BITS;
        let even = [
            sum.wrapping_add(even3),
            difference.wrapping_add(even2),
            difference.wrapping_sub(even2),
            sum.wrapping_sub(even3),
        ];
        let (z3, z4) = (
            wide(line(7).wrapping_add(line(3))),
            wide(line(5).wrapping_add(line(1))),
        );
        let (z3, z4) = (
            z3 * (F_1_175 - F_1_961) + z4 * F_1_175,
            z3 * F_1_175 + z4 * (F_1_175 - F_0_390),
        );
        let (t0, t1, t2, t3) = (wide(line(7)), wide(line(5)), wide(line(3)), wide(line(1)));
        let odd = [
            (t0 * -F_0_899 + t3 * (F_1_501 - F_0_899)).wrapping_add(z4),
            (t1 * -F_2_562 + t2 * (F_3_072 - F_2_562)).wrapping_add(z3),
            (t1 * (F_2_053 - F_2_562) + t2 * -F_2_562).wrapping_add(z4),
            (t0 * (F_0_298 - F_0_899) + t3 * -F_0_899).wrapping_add(z3),
        ];
        let narrow = |value: i32| {
            (value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT).clamp(i16::MIN.into(), i16::MAX.into())
                as i16
        };
        for m in 0..4 {
            out[m][n] = narrow(even[m].wrapping_add(odd[m]));
            out[7 - m][n] = narrow(even[m].wrapping_sub(odd[m]));
        }
    }
    out
}

fn quarter(blocks: &[Block], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this machine has AVX2.
        return unsafe { reduced::quarter(blocks, quant, out, stride) };
    }
    quarter_portable(blocks, quant, out, stride);
}

/// Makes blocks of 4 by 4.
fn quarter_portable(blocks: &[Block], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    for (n, block) in blocks.iter().enumerate() {
        let lines = quantised(&block.0, quant);
        let flat = [1, 2, 3, 5, 6, 7]
            .iter()
            .all(|y| block.0[y * 8..][..8] == [0; 8]);
        let mut columns = [[0; 4]; 8];
        for (x, column) in columns.iter_mut().enumerate() {
            *column = match flat {
                true => [i32::from((lines[0][x] as i16).wrapping_shl(PASS)); 4],
                false => four::<{ BITS - PASS + 1 }>([0, 1, 2, 3, 5, 6, 7].map(|y| lines[y][x]))
                    .map(narrow),
            };
        }
        for y in 0..4 {
            let line = four::<{ BITS + PASS + 4 }>([0, 1, 2, 3, 5, 6, 7].map(|x| columns[x][y]));
            out[y * stride + n * 4..][..4].copy_from_slice(&line.map(sample));
        }
    }
}

/// Truncates to 16 bits.
#[inline(always)]
fn narrow(value: i32) -> i32 {
    value.clamp(i16::MIN.into(), i16::MAX.into())
}

#[inline(always)]
fn quantised(block: &[i16; 64], quant: &[u16; 64]) -> [[i32; 8]; 8] {
    let mut lines = [[0; 8]; 8];
    for (line, (block, quant)) in lines.iter_mut().zip(
        block
            .as_chunks::<8>()
            .0
            .iter()
            .zip(quant.as_chunks::<8>().0),
    ) {
        for n in 0..8 {
            line[n] = i32::from(block[n].wrapping_mul(quant[n] as i16));
        }
    }
    lines
}

/// Returns four values of coefficients 0, 1, 2, 3, 5, 6 and 7.
#[inline(always)]
fn four<const SHIFT: u32>([z0, z1, z2, z3, z5, z6, z7]: [i32; 7]) -> [i32; 4] {
    let mean = z0.wrapping_shl(BITS + 1);
    let even = z2
        .wrapping_mul(fix(1.847759065))
        .wrapping_sub(z6.wrapping_mul(fix(0.765366865)));
    let (sum, difference) = (mean.wrapping_add(even), mean.wrapping_sub(even));
    let product = |factors: [i32; 4]| {
        let [a, b, c, d] = factors;
        (z7.wrapping_mul(a).wrapping_add(z5.wrapping_mul(b)))
            .wrapping_add(z3.wrapping_mul(c).wrapping_add(z1.wrapping_mul(d)))
    };
    let inner = product([
        -fix(0.211164243),
        fix(1.451774981),
        -fix(2.172734803),
        fix(1.061594337),
    ]);
    let outer = product([
        -fix(0.509795579),
        -fix(0.601344887),
        fix(0.899976223),
        fix(2.562915447),
    ]);
    [
        sum.wrapping_add(outer),
        difference.wrapping_add(inner),
        difference.wrapping_sub(inner),
        sum.wrapping_sub(outer),
    ]
    .map(|value| value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT)
}

fn sixteenth(blocks: &[Block], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this machine has AVX2.
        return unsafe { reduced::sixteenth(blocks, quant, out, stride) };
    }
    sixteenth_portable(blocks, quant, out, stride);
}

/// Makes blocks of 2 by 2.
fn sixteenth_portable(blocks: &[Block], quant: &[u16; 64], out: &mut [u8], stride: usize) {
    for (n, block) in blocks.iter().enumerate() {
        let lines = quantised(&block.0, quant);
        let mut columns = [[0; 2]; 8];
        for (x, column) in columns.iter_mut().enumerate() {
            *column = two::<{ BITS - PASS + 2 }>([0, 1, 3, 5, 7].map(|y| lines[y][x]));
            if x > 0 {
                *column = column.map(narrow);
            }
        }
        for y in 0..2 {
            let line = two::<{ BITS + PASS + 5 }>([0, 1, 3, 5, 7].map(|x| columns[x][y]));
            out[y * stride + n * 2..][..2].copy_from_slice(&line.map(sample));
        }
    }
}

/// Returns two values of coefficients 0, 1, 3, 5 and 7.
#[inline(always)]
fn two<const SHIFT: u32>([z0, z1, z3, z5, z7]: [i32; 5]) -> [i32; 2] {
    let mean = z0.wrapping_shl(BITS + 2);
    let odd = (z5
        .wrapping_mul(fix(0.850430095))
        .wrapping_sub(z7.wrapping_mul(fix(0.720959822))))
    .wrapping_add(
        z1.wrapping_mul(fix(3.624509785))
            .wrapping_sub(z3.wrapping_mul(fix(1.272758580))),
    );
    [mean.wrapping_add(odd), mean.wrapping_sub(odd)]
        .map(|value| value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT)
}

/// Makes blocks of one sample.
fn mean(blocks: &[Block], quant: &[u16; 64], out: &mut [u8]) {
    for (out, block) in out.iter_mut().zip(blocks) {
        let value = i32::from(block.0[0]).wrapping_mul(i32::from(quant[0]));
        // In damaged images, values of more than ten bits lose the upper bits.
        *out = sample(((value + 4) >> 3) << 22 >> 22);
    }
}
