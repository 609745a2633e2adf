//! Targets that belong to an image and move with it: classes of pixels, boxes, points.

mod boxes;
mod keypoints;
mod mask;

use datapipes::{Error, Reader, Result, Wire, Writer};

pub use boxes::Boxes;
pub use keypoints::{Keypoint, Keypoints, Visibility};
pub use mask::{Mask, MaskValue};

/// Boxes kept by [`Boxes::sanitize`], for selecting the data that belongs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBoxes {
    indices: Vec<usize>,
    of: usize,
}

/// Encodes the indices, and the number of boxes before.
impl Wire for KeptBoxes {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.indices.encode(to)?;
        self.of.encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let (indices, of): (Vec<usize>, usize) = Wire::decode(from)?;
        if !indices.is_sorted_by(|a, b| a < b) || indices.last().is_some_and(|&last| last >= of) {
            return Err(Reader::damaged(format_args!(
                "{} indices of {of} boxes, not in order",
                indices.len()
            )));
        }
        Ok(KeptBoxes { indices, of })
    }
}

impl KeptBoxes {
    /// Returns the indices, in order.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Selects the entries of a list (labels, masks) whose boxes were kept.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) if the list is not as long as the boxes were.
    pub fn select<T>(&self, list: Vec<T>) -> Result<Vec<T>> {
        if list.len() != self.of {
            let message = format!("{} labels for {} boxes", list.len(), self.of);
            return Err(Error::shape(message));
        }
        let mut kept = self.indices.iter().peekable();
        let is_kept = |(index, value)| kept.next_if_eq(&&index).map(|_| value);
        Ok(list.into_iter().enumerate().filter_map(is_kept).collect())
    }
}
