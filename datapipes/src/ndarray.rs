//! Tensors as arrays of the crate `ndarray`.

use ndarray::{Array, ArrayD, ArrayViewD, ArrayViewMutD, Dimension, IxDyn, ShapeError};

use crate::{Element, Error, Result, Tensor};

/// Numbers of a tensor as an array, for slicing and arithmetic (feature `ndarray`).
///
/// # Examples
/// ```
/// use datapipes::Tensor;
/// use ndarray::{Axis, array};
///
/// let mut image = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// assert_eq!(image.view::<f32>()?.sum_axis(Axis(0)).into_raw_vec_and_offset().0, [5.0, 7.0, 9.0]);
/// image.view_mut::<f32>()?.mapv_inplace(|value| value / 2.0);
/// assert_eq!(Tensor::from_array(array![[0.5f32, 1.0, 1.5], [2.0, 2.5, 3.0]])?, image);
/// # Ok::<(), datapipes::Error>(())
/// ```
impl Tensor {
    /// Returns the elements as a view of the same shape; nothing is copied.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](crate::ErrorKind::Shape) if the elements are of another type.
    pub fn view<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        ArrayViewD::from_shape(self.shape(), self.as_slice()?)
            .map_err(|error| refused(self.shape(), error))
    }

    /// Returns the elements as a view to write to. Shared ones are copied first, as by
    /// [`as_mut_slice`](Tensor::as_mut_slice); own ones are not.
    ///
    /// # Errors
    /// As [`view`](Tensor::view).
    pub fn view_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        let shape = self.shape().to_vec();
        ArrayViewMutD::from_shape(&*shape, self.as_mut_slice()?)
            .map_err(|error| refused(&shape, error))
    }

    /// Returns the elements as an owned array: moved out if the tensor owns them, copied once if they
    /// are shared.
    ///
    /// # Errors
    /// As [`view`](Tensor::view).
    pub fn into_array<T: Element>(self) -> Result<ArrayD<T>> {
        let shape = self.shape().to_vec();
        ArrayD::from_shape_vec(IxDyn(&shape), self.into_vec()?)
            .map_err(|error| refused(&shape, error))
    }

    /// Takes over an array. An array in standard layout (row-major and contiguous, as most
    /// constructors make it) is moved without a copy, and elements outside of its slice are cut
    /// off. Any other, such as a transposed one, is copied once.
    ///
    /// # Errors
    /// None that the types do not rule out.
    pub fn from_array<T: Element, D: Dimension>(array: Array<T, D>) -> Result<Tensor> {
        let (shape, len) = (array.shape().to_vec(), array.len());
        let values = if array.is_standard_layout() {
            let (mut values, offset) = array.into_raw_vec_and_offset();
            let start = offset.unwrap_or(0);
            values.truncate(start + len);
            values.drain(..start);
            values
        } else {
            // In logical order, which is row-major.
            array.iter().copied().collect()
        };
        Tensor::from_vec(values, shape)
    }
}

fn refused(shape: &[usize], error: ShapeError) -> Error {
    Error::shape(format!("shape {shape:?} as an ndarray")).with_source(error)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, Axis, arr0, array, s};

    use super::*;
    use crate::DType;
    use crate::ErrorKind;

    fn tensor() -> Tensor {
        Tensor::from_vec((0..24u16).collect(), [2, 3, 4]).unwrap()
    }

    #[test]
    fn views_lend_the_same_numbers() {
        let mut own = tensor();
        let at = own.as_bytes().as_ptr();
        let view = own.view::<u16>().unwrap();
        assert_eq!((view.shape(), view.as_ptr().cast()), (&[2, 3, 4][..], at));
        assert_eq!(view[[1, 2, 3]], 23);
        let mut view = own.view_mut::<u16>().unwrap();
        view.slice_mut(s![0, .., ..]).fill(7);
        assert_eq!(view.as_ptr().cast(), at);
        assert_eq!(own.as_slice::<u16>().unwrap()[10..14], [7, 7, 12, 13]);

        let mut shared = tensor().into_shared();
        let (at, other) = (shared.as_bytes().as_ptr(), shared.clone());
        assert_eq!(shared.view::<u16>().unwrap().as_ptr().cast(), at);
        shared.view_mut::<u16>().unwrap()[[0, 0, 0]] = 99;
        assert_ne!(shared.as_bytes().as_ptr(), at);
        assert_eq!(other.as_slice::<u16>().unwrap()[0], 0);
    }

    #[test]
    fn own_arrays_move_both_ways() {
        let own = tensor();
        let at = own.as_bytes().as_ptr();
        let array = own.into_array::<u16>().unwrap();
        assert_eq!((array.shape(), array.as_ptr().cast()), (&[2, 3, 4][..], at));
        let back = Tensor::from_array(array).unwrap();
        assert_eq!((&back, back.as_bytes().as_ptr()), (&tensor(), at));
        assert_eq!(
            tensor().into_shared().into_array::<u16>().unwrap()[[0, 2, 3]],
            11
        );
    }

    #[test]
    fn other_layouts_keep_their_values() {
        let array = Array3::from_shape_vec((2, 3, 4), (0..24i64).collect()).unwrap();
        let turned = array.clone().reversed_axes();
        let wanted: Vec<i64> = turned.iter().copied().collect();
        let tensor = Tensor::from_array(turned).unwrap();
        assert_eq!(tensor.shape(), [4, 3, 2]);
        assert_eq!(tensor.into_vec::<i64>().unwrap(), wanted);
        // Parts of a larger array: some contiguous, some not.
        for axis in 0..3 {
            let part = array.clone().index_axis_move(Axis(axis), 1);
            let (shape, wanted) = (
                part.shape().to_vec(),
                part.iter().copied().collect::<Vec<_>>(),
            );
            let tensor = Tensor::from_array(part).unwrap();
            assert_eq!(tensor.shape(), shape);
            assert_eq!(tensor.as_slice::<i64>().unwrap(), wanted);
        }
        let backwards = array![1u8, 2, 3].slice_move(s![..;-1]);
        assert_eq!(Tensor::from_array(backwards).unwrap().as_bytes(), [3, 2, 1]);
    }

    #[test]
    fn scalars_and_arrays_without_elements() {
        assert_eq!(
            Tensor::from_array(arr0(2.5f64)).unwrap(),
            Tensor::scalar(2.5f64)
        );
        assert_eq!(
            Tensor::scalar(true).view::<bool>().unwrap().shape(),
            [0usize; 0]
        );
        let none = Tensor::from_array(Array3::<f32>::zeros((2, 0, 3))).unwrap();
        assert_eq!((none.dtype(), none.shape()), (DType::F32, &[2, 0, 3][..]));
        assert_eq!(none.view::<f32>().unwrap().shape(), [2, 0, 3]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert_eq!(tensor().view::<f32>().unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(
            tensor().view_mut::<f32>().unwrap_err().kind(),
            ErrorKind::Shape
        );
        assert_eq!(
            tensor().into_array::<f32>().unwrap_err().kind(),
            ErrorKind::Shape
        );
    }
}
