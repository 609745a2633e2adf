//! Columns of numbers as tensors.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use bytes::Bytes;
use datapipes::{DType, Error, Result, Tensor};

use super::no_column;

/// Returns a column of numbers as a tensor, without a copy if its values are aligned.
///
/// Integers, floats and booleans become a tensor of rank 1, lists of a fixed size of them one of
/// rank 2, and so on. Booleans, which Arrow packs into bits, are copied. The tensor keeps the same
/// memory alive as the column.
///
/// # Errors
/// `NotFound` if there is no such column; `Shape` if one of its values is null, which a tensor
/// cannot represent; `Unsupported` for columns of other types. Text, dates and decimals are best
/// converted where the data are written, or read as [`ParquetRows`](super::super::ParquetRows) or
/// [`ArrowRows`](super::ArrowRows).
///
/// # Examples
/// ```
/// use datapipes_io::formats::{ArrowIpc, arrow::column_tensor};
/// use datapipes_io::{File, prelude::*};
///
/// # let data = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/table.arrow"));
/// let file = File::new("table.arrow", data.to_vec());
/// let batches = datapipes::Graph::from_vec(vec![file]).read_as(ArrowIpc::new()).collect()?;
/// let points = column_tensor(&batches[0], "point")?;
/// assert_eq!(points.shape(), [4, 2]);
/// assert_eq!(points.row(1)?.as_slice::<f32>()?, [1.0, 1.5]);
/// # datapipes::Ok(())
/// ```
pub fn column_tensor(batch: &RecordBatch, name: &str) -> Result<Tensor> {
    let column = batch.column_by_name(name).ok_or_else(|| {
        no_column(
            name,
            batch
                .schema_ref()
                .fields()
                .iter()
                .map(|field| field.name().as_str()),
        )
    })?;
    let shape = vec![column.len()];
    tensor(column.as_ref(), shape).map_err(|error| error.within(format_args!("column {name:?}")))
}

fn tensor(array: &dyn Array, mut shape: Vec<usize>) -> Result<Tensor> {
    if array.null_count() > 0 {
        let what = format!("{} of {} values are null", array.null_count(), array.len());
        return Err(Error::shape(what));
    }
    match array.data_type() {
        DataType::Int8 => numbers::<Int8Type>(array, DType::I8, shape),
        DataType::Int16 => numbers::<Int16Type>(array, DType::I16, shape),
        DataType::Int32 => numbers::<Int32Type>(array, DType::I32, shape),
        DataType::Int64 => numbers::<Int64Type>(array, DType::I64, shape),
        DataType::UInt8 => numbers::<UInt8Type>(array, DType::U8, shape),
        DataType::UInt16 => numbers::<UInt16Type>(array, DType::U16, shape),
        DataType::UInt32 => numbers::<UInt32Type>(array, DType::U32, shape),
        DataType::UInt64 => numbers::<UInt64Type>(array, DType::U64, shape),
        DataType::Float16 => numbers::<Float16Type>(array, DType::F16, shape),
        DataType::Float32 => numbers::<Float32Type>(array, DType::F32, shape),
        DataType::Float64 => numbers::<Float64Type>(array, DType::F64, shape),
        DataType::Boolean => Tensor::from_vec(
            array.as_boolean().values().iter().collect::<Vec<bool>>(),
            shape,
        ),
        DataType::FixedSizeList(_, _) => {
            let lists = array.as_fixed_size_list();
            shape.push(usize::try_from(lists.value_length()).unwrap_or(0));
            tensor(lists.values().as_ref(), shape)
        }
        other => {
            let what = format!("{other} is neither numbers nor lists of a fixed size of them");
            Err(Error::unsupported(what))
        }
    }
}

fn numbers<T: ArrowPrimitiveType>(
    array: &dyn Array,
    dtype: DType,
    shape: Vec<usize>,
) -> Result<Tensor> {
    let values = array.as_primitive::<T>().values().inner().clone();
    Tensor::from_bytes(Bytes::from_owner(values), dtype, shape)
}
