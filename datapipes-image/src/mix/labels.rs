//! Labels as probabilities.

use datapipes::{DType, Element, Error, Result, Tensor};

/// Maximum number of classes: a larger one is a mistake, and would not fit in memory.
const MAX_CLASSES: usize = 1 << 24;

/// Makes probabilities of class numbers: 1 for the class, 0 for the others, or smoothed values.
///
/// ```
/// # use datapipes::Tensor;
/// # use datapipes_image::OneHot;
/// let labels = Tensor::from_vec(vec![2i64, 0], [2])?;
/// let soft = OneHot::new(4).smoothing(0.1).encode(labels)?;
/// assert_eq!(soft.as_slice::<f32>()?, [0.025, 0.025, 0.925, 0.025, 0.925, 0.025, 0.025, 0.025]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct OneHot {
    classes: usize,
    smoothing: f64,
}

impl OneHot {
    /// Sets the number of classes, which are numbered from 0.
    pub fn new(classes: usize) -> Self {
        OneHot {
            classes,
            smoothing: 0.0,
        }
    }

    /// Takes this much probability from the class and spreads it over all classes (Szegedy et al.
    /// 2016), as PyTorch's `label_smoothing`.
    pub fn smoothing(self, smoothing: f64) -> Self {
        OneHot { smoothing, ..self }
    }

    /// Makes `f32`, `[N, classes]`, of integers, `[N]`. Labels that have that form already are only
    /// smoothed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](datapipes::ErrorKind::Config) if there are no classes, or the smoothing is not from 0 to 1;
    /// [`ErrorKind::Shape`](datapipes::ErrorKind::Shape) for labels of another form, and for a label that is none of the
    /// classes, which the error names.
    pub fn encode(&self, labels: Tensor) -> Result<Tensor> {
        self.check()?;
        let off = (self.smoothing / self.classes as f64) as f32;
        let on = (1.0 - self.smoothing + self.smoothing / self.classes as f64) as f32;
        match (labels.dtype(), labels.shape()) {
            (DType::F32, &[_, classes]) if classes == self.classes => {
                let mut labels = labels;
                if self.smoothing > 0.0 {
                    let keep = (1.0 - self.smoothing) as f32;
                    for value in labels.as_mut_slice::<f32>()? {
                        *value = *value * keep + off;
                    }
                }
                Ok(labels)
            }
            (dtype, &[n]) => {
                let mut soft = Tensor::zeros(DType::F32, [n, self.classes])?;
                let values = soft.as_mut_slice::<f32>()?;
                if off > 0.0 {
                    values.fill(off);
                }
                match dtype {
                    DType::U8 => self.set::<u8>(&labels, values, on)?,
                    DType::I8 => self.set::<i8>(&labels, values, on)?,
                    DType::U16 => self.set::<u16>(&labels, values, on)?,
                    DType::I16 => self.set::<i16>(&labels, values, on)?,
                    DType::U32 => self.set::<u32>(&labels, values, on)?,
                    DType::I32 => self.set::<i32>(&labels, values, on)?,
                    DType::U64 => self.set::<u64>(&labels, values, on)?,
                    DType::I64 => self.set::<i64>(&labels, values, on)?,
                    _ => return Err(self.form(&labels)),
                }
                Ok(soft)
            }
            _ => Err(self.form(&labels)),
        }
    }

    fn set<T: Element + Copy + Into<i128>>(
        &self,
        labels: &Tensor,
        soft: &mut [f32],
        on: f32,
    ) -> Result<()> {
        for (place, (&label, row)) in labels
            .as_slice::<T>()?
            .iter()
            .zip(soft.chunks_exact_mut(self.classes))
            .enumerate()
        {
            let label: i128 = label.into();
            let Some(value) = usize::try_from(label)
                .ok()
                .and_then(|class| row.get_mut(class))
            else {
                return Err(Error::shape(format!(
                    "label {label}, at {place} of {}, is none of {} classes",
                    labels.len(),
                    self.classes
                )));
            };
            *value = on;
        }
        Ok(())
    }

    fn form(&self, labels: &Tensor) -> Error {
        Error::shape(format!(
            "labels are {} {:?}, neither integers [N] nor f32 [N, {}]",
            labels.dtype(),
            labels.shape(),
            self.classes
        ))
    }

    /// Fails with [`ErrorKind::Config`](datapipes::ErrorKind::Config) if a setting is invalid.
    pub(crate) fn check(&self) -> Result<()> {
        let fault = match *self {
            OneHot { classes, .. } if !(1..=MAX_CLASSES).contains(&classes) => {
                format!("labels of {classes} classes: from 1 to {MAX_CLASSES}")
            }
            OneHot { smoothing, .. } if !(0.0..=1.0).contains(&smoothing) => {
                format!("label smoothing of {smoothing}: from 0 to 1")
            }
            _ => return Ok(()),
        };
        Err(Error::config(fault))
    }

    pub(crate) fn settings(&self) -> String {
        match self.smoothing {
            0.0 => format!("{} classes", self.classes),
            smoothing => format!("{} classes, smoothing {smoothing}", self.classes),
        }
    }
}

/// Makes `f32`, `[N, classes]`, of integers, `[N]`: 1 for the class, 0 for the others. See
/// [`OneHot`].
///
/// # Errors
/// As [`OneHot::encode`].
///
/// # Examples
/// ```
/// # use datapipes::Tensor;
/// # use datapipes_image::one_hot;
/// let labels = Tensor::from_vec(vec![2i64, 0], [2])?;
/// assert_eq!(one_hot(&labels, 3)?.as_slice::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), datapipes::Error>(())
/// ```
pub fn one_hot(labels: &Tensor, classes: usize) -> Result<Tensor> {
    OneHot::new(classes).encode(labels.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn integers_of_any_type_become_rows() {
        let rows = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0];
        let check = |labels: Tensor| {
            let soft = one_hot(&labels, 3).unwrap();
            assert_eq!(
                (soft.shape(), soft.as_slice::<f32>().unwrap()),
                (&[2, 3][..], &rows[..])
            );
        };
        check(Tensor::from_vec(vec![1u8, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1i8, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1u16, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1i16, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1u32, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1i32, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1u64, 0], [2]).unwrap());
        check(Tensor::from_vec(vec![1i64, 0], [2]).unwrap());
        check(Tensor::from_vec(rows.to_vec(), [2, 3]).unwrap());
    }

    #[test]
    fn smoothing_takes_from_soft_labels_too() {
        let hard = Tensor::from_vec(vec![1i64, 0], [2]).unwrap();
        let once = OneHot::new(5).smoothing(0.2).encode(hard.clone()).unwrap();
        let later = OneHot::new(5)
            .smoothing(0.2)
            .encode(one_hot(&hard, 5).unwrap())
            .unwrap();
        let (once, later) = (
            once.as_slice::<f32>().unwrap(),
            later.as_slice::<f32>().unwrap(),
        );
        assert!(
            once.iter().zip(later).all(|(a, b)| (a - b).abs() < 1e-7),
            "{once:?} {later:?}"
        );
        assert!((once[..5].iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_label_of_no_class_is_named() {
        for (labels, text) in [
            (
                Tensor::from_vec(vec![0i64, 9, 10], [3]),
                "label 10, at 2 of 3, is none of 10 classes",
            ),
            (Tensor::from_vec(vec![-1i64], [1]), "label -1, at 0 of 1"),
            (
                Tensor::from_vec(vec![u64::MAX], [1]),
                "label 18446744073709551615",
            ),
            (Tensor::from_vec(vec![1.0f32], [1]), "labels are f32 [1]"),
            (
                Tensor::from_vec(vec![1i64], [1, 1]),
                "labels are i64 [1, 1]",
            ),
            (Tensor::from_vec(vec![1f32], [1, 1]), "f32 [N, 10]"),
            (Tensor::from_vec(vec![true], [1]), "labels are bool [1]"),
        ] {
            let error = one_hot(&labels.unwrap(), 10).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains(text), "{error}");
        }
        let label = || Tensor::from_vec(vec![0u8], [1]).unwrap();
        assert!(
            one_hot(&label(), 0)
                .unwrap_err()
                .to_string()
                .contains("0 classes")
        );
        assert!(
            one_hot(&label(), usize::MAX)
                .unwrap_err()
                .to_string()
                .contains("classes: from 1")
        );
        for smoothing in [-0.1, 1.1, f64::NAN] {
            let error = OneHot::new(2)
                .smoothing(smoothing)
                .encode(label())
                .unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains(&format!("smoothing of {smoothing}")),
                "{error}"
            );
        }
    }
}
