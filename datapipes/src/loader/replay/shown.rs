//! Descriptions of values in words, for known types.

use std::any::Any;

use crate::error::escape;
use crate::item::pair;
use crate::{DType, Tensor};

/// Number of values that are described.
pub(super) const SHOWN: usize = 4;
/// Length at which a text is cut.
const LONG: usize = 60;

/// Describes a value in words, if it is of a known type.
pub(super) fn shown(value: &dyn Any) -> Option<String> {
    macro_rules! numbers {
        ($($type:ty)*) => {
            $(if let Some(number) = value.downcast_ref::<$type>() {
                return Some(format!("{number:?}"));
            })*
        };
    }
    numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 bool char);
    if let Some(text) = value
        .downcast_ref::<String>()
        .map(String::as_str)
        .or(value.downcast_ref::<&str>().copied())
    {
        let cut: String = text.chars().take(LONG).collect();
        let dots = if cut.len() < text.len() { "…" } else { "" };
        return Some(format!("\"{}{dots}\"", escape(&cut)));
    }
    if let Some(bytes) = value.downcast_ref::<Vec<u8>>() {
        return Some(format!("{} bytes", bytes.len()));
    }
    if let Some(numbers) = value.downcast_ref::<Vec<f32>>() {
        return Some(format!(
            "{} numbers{}",
            numbers.len(),
            range_and_non_finite(numbers.iter().map(|&x| f64::from(x)))
        ));
    }
    if let Some(numbers) = value.downcast_ref::<Vec<f64>>() {
        return Some(format!(
            "{} numbers{}",
            numbers.len(),
            range_and_non_finite(numbers.iter().copied())
        ));
    }
    if let Some((tensor, label)) = pair::<Tensor>(value) {
        return Some(format!("({}, {})", shown(tensor)?, shown(label)?));
    }
    let tensor = value.downcast_ref::<Tensor>()?;
    let numbers = match tensor.dtype() {
        DType::F32 => tensor
            .as_slice::<f32>()
            .map(|all| range_and_non_finite(all.iter().map(|&x| f64::from(x)))),
        DType::F64 => tensor
            .as_slice::<f64>()
            .map(|all| range_and_non_finite(all.iter().copied())),
        _ => Ok(String::new()),
    };
    Some(format!(
        "{:?} {:?}{}",
        tensor.dtype(),
        tensor.shape(),
        numbers.unwrap_or_default()
    ))
}

/// Describes how many of some numbers are not finite, and the range of the others.
fn range_and_non_finite(numbers: impl Iterator<Item = f64>) -> String {
    let (mut nan, mut infinite, mut least, mut most) =
        (0u64, 0u64, f64::INFINITY, f64::NEG_INFINITY);
    for number in numbers {
        nan += u64::from(number.is_nan());
        infinite += u64::from(number.is_infinite());
        if number.is_finite() {
            (least, most) = (least.min(number), most.max(number));
        }
    }
    let mut text = if least <= most {
        format!(", {least} to {most}")
    } else {
        String::new()
    };
    for (count, what) in [(nan, "NaN"), (infinite, "infinite")] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}
