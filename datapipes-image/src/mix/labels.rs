//! Labels as probabilities.

use datapipes::{DType, Element, Error, ErrorKind, Result, Tensor};

/// Most classes that labels may have: beyond, it is a mistake, and would not fit in memory.
const MAX_CLASSES: usize = 1 << 24;

/// Makes probabilities of class numbers: 1 for the class, 0 for the others, or less sharp.
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
pub struct OneHot {
    classes: usize,
    smoothing: f64,
}

impl OneHot {
    /// For classes numbered from 0.
    pub fn new(classes: usize) -> Self {
        OneHot { classes, smoothing: 0.0 }
    }

    /// Takes this much of the class and spreads it over all classes (Szegedy et al. 2016), as PyTorch's
    /// `label_smoothing`.
    pub fn smoothing(self, smoothing: f64) -> Self {
        OneHot { smoothing, ..self }
    }

    /// Makes `f32`, `[N, classes]`, of integers, `[N]`. What has that form already is smoothed at most.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there are no classes, or the smoothing is not from 0 to 1; [`ErrorKind::Shape`] for
    /// labels of another form, and for one that is none of the classes, which is named.
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

    fn set<T: Element + Copy + Into<i128>>(&self, labels: &Tensor, soft: &mut [f32], on: f32) -> Result<()> {
        for (place, (&label, row)) in
            labels.as_slice::<T>()?.iter().zip(soft.chunks_exact_mut(self.classes)).enumerate()
        {
            let label: i128 = label.into();
            let Some(value) = usize::try_from(label).ok().and_then(|class| row.get_mut(class)) else {
                let message = format!(
                    "label {label}, at {place} of {}, is none of {} classes",
                    labels.len(),
                    self.classes
                );
                return Err(Error::new(ErrorKind::Shape, message));
            };
            *value = on;
        }
        Ok(())
    }

    fn form(&self, labels: &Tensor) -> Error {
        let message = format!(
            "labels are {} {:?}, neither integers [N] nor f32 [N, {}]",
            labels.dtype(),
            labels.shape(),
            self.classes
        );
        Error::new(ErrorKind::Shape, message)
    }

    /// [`ErrorKind::Config`] if a setting makes no sense.
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
        Err(Error::new(ErrorKind::Config, fault))
    }

    pub(crate) fn settings(&self) -> String {
        match self.smoothing {
            0.0 => format!("{} classes", self.classes),
            smoothing => format!("{} classes, smoothing {smoothing}", self.classes),
        }
    }
}

/// Makes `f32`, `[N, classes]`, of integers, `[N]`: 1 for the class, 0 for the others. See [`OneHot`].
///
/// # Errors
/// As [`OneHot::encode`].
pub fn one_hot(labels: &Tensor, classes: usize) -> Result<Tensor> {
    OneHot::new(classes).encode(labels.clone())
}
