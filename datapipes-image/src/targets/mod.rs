//! Targets that belong to an image and move with it: classes of pixels, boxes, points.

mod boxes;
mod keypoints;
mod mask;

use datapipes::{Error, Result, wire_struct};

pub use boxes::Boxes;
pub use keypoints::{Keypoint, Keypoints, Visibility};
pub use mask::{Mask, MaskValue};

/// Boxes kept by [`Boxes::sanitize`], for selecting the data that belongs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBoxes {
    indices: Vec<usize>,
    of: usize,
}

wire_struct!(KeptBoxes { indices, of } by KeptBoxes::new);

impl KeptBoxes {
    fn new(indices: Vec<usize>, of: usize) -> Result<Self, String> {
        let last = indices.last();
        if !indices.is_sorted_by(|a, b| a < b) || last.is_some_and(|&last| last >= of) {
            return Err(format!(
                "{} indices of {of} boxes, not in order",
                indices.len()
            ));
        }
        Ok(KeptBoxes { indices, of })
    }

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
