//! What belongs to a picture and moves with it: classes of pixels, boxes, points.

mod boxes;
mod keypoints;
mod mask;

use datapipes::{Error, ErrorKind, Result};

pub use boxes::Boxes;
pub use keypoints::{Keypoint, Keypoints, Visibility};
pub use mask::{Class, Mask};

/// Which boxes were kept, for what belongs to them to follow; of [`Boxes::sanitize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    indices: Vec<usize>,
    of: usize,
}

impl Kept {
    /// The indices, in order.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Those of a list (labels, masks) whose boxes were kept.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if it is not as long as the boxes were.
    pub fn select<T>(&self, list: Vec<T>) -> Result<Vec<T>> {
        if list.len() != self.of {
            let message = format!("{} labels for {} boxes", list.len(), self.of);
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let mut kept = self.indices.iter().peekable();
        let is_kept = |(index, value)| kept.next_if_eq(&&index).map(|_| value);
        Ok(list.into_iter().enumerate().filter_map(is_kept).collect())
    }
}
