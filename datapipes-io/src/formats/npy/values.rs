//! Reordering of values: bytes swapped, Fortran order converted to C order, in one pass.

use datapipes::Result;

use super::super::aligned::Aligned;

/// Number of bytes copied and then swapped while they are in the cache.
const BLOCK: usize = 32 << 10;
/// Side length of the tiles in which axes are transposed.
const TILE: usize = 16;

/// Conversion of values of `size` bytes, each made of numbers of `unit` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout<'a> {
    pub(super) shape: &'a [usize],
    pub(super) size: usize,
    pub(super) unit: usize,
    pub(super) fortran: bool,
    pub(super) swap: bool,
}

impl Layout<'_> {
    /// Returns true if the values need no conversion.
    pub(super) fn is_done(&self) -> bool {
        !self.turns() && !self.swaps()
    }

    fn swaps(&self) -> bool {
        self.swap && self.unit > 1
    }

    /// Fortran order differs from C order only if two axes are longer than one.
    fn turns(&self) -> bool {
        self.fortran
            && self.shape.iter().filter(|&&axis| axis > 1).count() > 1
            && !self.shape.contains(&0)
    }

    /// Returns the values in C order, in the wanted byte order. The length of `data` matches the
    /// shape.
    pub(super) fn apply(&self, data: &[u8]) -> Result<Aligned> {
        if self.turns() {
            let mut out = Aligned::zeroed(data.len())?;
            let to = out.part_mut(0);
            match (self.size, self.swaps().then_some(self.unit)) {
                (1, _) => turn::<1>(data, to, self.shape, |value| value),
                (2, None) => turn::<2>(data, to, self.shape, |value| value),
                (4, None) => turn::<4>(data, to, self.shape, |value| value),
                (8, None) => turn::<8>(data, to, self.shape, |value| value),
                (16, None) => turn::<16>(data, to, self.shape, |value| value),
                (2, _) => turn::<2>(data, to, self.shape, reversed),
                (4, _) => turn::<4>(data, to, self.shape, reversed),
                (8, Some(4)) => turn::<8>(data, to, self.shape, halves_reversed),
                (8, _) => turn::<8>(data, to, self.shape, reversed),
                (16, _) => turn::<16>(data, to, self.shape, halves_reversed),
                (size, _) => unreachable!("no type has {size} bytes"),
            }
            return Ok(out);
        }
        let mut out = Aligned::with_capacity(data.len())?;
        for block in data.chunks(BLOCK) {
            let from = out.len();
            out.extend(block);
            if self.swaps() {
                let block = out.part_mut(from);
                match self.unit {
                    2 => swap::<2>(block),
                    4 => swap::<4>(block),
                    _ => swap::<8>(block),
                }
            }
        }
        Ok(out)
    }
}

fn swap<const N: usize>(block: &mut [u8]) {
    for value in block.as_chunks_mut::<N>().0 {
        value.reverse();
    }
}

fn reversed<const N: usize>(mut value: [u8; N]) -> [u8; N] {
    value.reverse();
    value
}

fn halves_reversed<const N: usize>(mut value: [u8; N]) -> [u8; N] {
    let (real, imaginary) = value.split_at_mut(N / 2);
    real.reverse();
    imaginary.reverse();
    value
}

/// Converts Fortran order to C order. The axes that are contiguous in input and output are walked
/// in tiles, so that both stay in the cache; the axes between them are walked one by one.
fn turn<const N: usize>(
    data: &[u8],
    out: &mut [u8],
    shape: &[usize],
    change: impl Fn([u8; N]) -> [u8; N],
) {
    let (data, out) = (data.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let axes: Vec<usize> = shape.iter().copied().filter(|&axis| axis > 1).collect();
    let ([first, .., last], middle) = (&axes[..], &axes[1..axes.len() - 1]) else {
        unreachable!("two axes have a length")
    };
    // Distance of neighbors along an axis: of the first axis in the output, of the last in the
    // input.
    let (row, column) = (out.len() / first, data.len() / last);
    let between: usize = middle.iter().product();
    for place in 0..between {
        // Position among the axes between, which the two orders count from opposite ends.
        let (mut rest, mut read, mut stride_read, mut stride_write, mut write) =
            (place, 0, *first, row, 0);
        for &axis in middle {
            let index = rest % axis;
            rest /= axis;
            stride_write /= axis;
            read += index * stride_read;
            write += index * stride_write;
            stride_read *= axis;
        }
        for top in (0..*first).step_by(TILE) {
            for left in (0..*last).step_by(TILE) {
                let width = TILE.min(last - left);
                for y in top..(top + TILE).min(*first) {
                    let to = &mut out[write + y * row + left..][..width];
                    for (x, value) in to.iter_mut().enumerate() {
                        *value = change(data[read + y + (left + x) * column]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies one value at a time, by its index along each axis.
    fn plain(data: &[u8], layout: Layout<'_>) -> Vec<u8> {
        let Layout {
            shape, size, unit, ..
        } = layout;
        let mut out = vec![0; data.len()];
        let mut index = vec![0; shape.len()];
        for to in 0..data.len() / size {
            let mut rest = to;
            for (axis, at) in shape.iter().zip(&mut index).rev() {
                (*at, rest) = (rest % axis, rest / axis);
            }
            let by_column = shape
                .iter()
                .zip(&index)
                .rev()
                .fold(0, |from, (axis, at)| from * axis + at);
            let from = if layout.fortran { by_column } else { to };
            let value = &mut out[to * size..][..size];
            value.copy_from_slice(&data[from * size..][..size]);
            if layout.swap {
                value.chunks_mut(unit).for_each(<[u8]>::reverse);
            }
        }
        out
    }

    #[test]
    fn row_99_every_order_and_size_as_one_value_at_a_time() {
        let shapes: [&[usize]; 13] = [
            &[],
            &[1],
            &[7],
            &[2, 3],
            &[3, 1, 2],
            &[17, 33],
            &[40, 1, 3],
            &[3, 40],
            &[2, 3, 4],
            &[5, 2, 3, 4],
            &[18, 2, 19, 3],
            &[1, 1],
            &[16, 16, 2],
        ];
        for shape in shapes {
            for (size, unit) in [(1, 1), (2, 2), (4, 4), (8, 8), (8, 4), (16, 8)] {
                let len = size * shape.iter().product::<usize>();
                let data: Vec<u8> = (0..len).map(|n| (n * 7 + n / 256) as u8).collect();
                for (fortran, swap) in [(false, false), (false, true), (true, false), (true, true)]
                {
                    let layout = Layout {
                        shape,
                        size,
                        unit,
                        fortran,
                        swap,
                    };
                    let out = layout.apply(&data).unwrap().into_bytes();
                    assert!(out == plain(&data, layout), "{layout:?}");
                    assert!(!layout.is_done() || out == data, "{layout:?}");
                }
            }
        }
        for shape in [&[0, 3][..], &[3, 0, 2]] {
            let layout = Layout {
                shape,
                size: 4,
                unit: 4,
                fortran: true,
                swap: true,
            };
            assert_eq!(layout.apply(&[]).unwrap().len(), 0);
        }
    }

    #[test]
    fn more_than_one_block_is_swapped() {
        let data: Vec<u8> = (0..3 * BLOCK + 8)
            .map(|n| n as u8 ^ (n >> 8) as u8)
            .collect();
        let shape = [data.len() / 4];
        let layout = Layout {
            shape: &shape,
            size: 4,
            unit: 4,
            fortran: false,
            swap: true,
        };
        assert!(layout.apply(&data).unwrap().into_bytes() == plain(&data, layout));
    }
}
