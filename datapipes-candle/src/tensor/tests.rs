use bytes::Bytes;
use candle_core::{DType as Candle, Storage, WithDType};
use datapipes::Element;
use half::{bf16, f16};

use super::*;

/// Returns the address of the numbers of a tensor on the CPU.
fn address<T: WithDType>(tensor: &Tensor) -> *const u8 {
    match &*tensor.storage_and_layout().0 {
        Storage::Cpu(storage) => storage.as_slice::<T>().unwrap().as_ptr().cast(),
        _ => panic!("not on the CPU"),
    }
}

fn moves<T: Element + WithDType>(values: Vec<T>) {
    let (at, wanted) = (values.as_ptr().cast(), values.clone());
    let tensor = datapipes::Tensor::from_vec(values, [3, 2]).unwrap();
    let moved = to_candle(tensor, &Device::Cpu).unwrap();
    assert_eq!(
        (moved.dtype(), moved.dims()),
        (<T as WithDType>::DTYPE, &[3, 2][..])
    );
    assert_eq!(address::<T>(&moved), at, "{:?} was copied", moved.dtype());
    assert_eq!(moved.flatten_all().unwrap().to_vec1::<T>().unwrap(), wanted);
}

#[test]
fn a_batch_whose_rows_were_filled_in_place_moves() {
    let batches = datapipes::testing::pooled_batches(10, 4);
    let loader = datapipes::DataLoader::builder(batches)
        .workers(0)
        .build()
        .unwrap();
    for (number, batch) in loader.epoch(0).blocking().enumerate() {
        let batch = batch.unwrap();
        let at = batch.as_bytes().as_ptr();
        assert!(batch.is_pooled());
        let moved = to_candle(batch, &Device::Cpu).unwrap();
        assert_eq!(address::<f32>(&moved), at, "it was copied");
        assert_eq!(
            moved.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0],
            4.0 * number as f32
        );
    }
}

#[test]
fn owned_numbers_keep_their_address() {
    moves::<u8>((0..6).collect());
    moves::<u32>((0..6).collect());
    moves::<i16>((0..6).collect());
    moves::<i32>((0..6).collect());
    moves::<i64>((0..6).collect());
    moves::<bf16>((0..6u8).map(bf16::from).collect());
    moves::<f16>((0..6u8).map(f16::from).collect());
    moves::<f32>((0..6u8).map(f32::from).collect());
    moves::<f64>((0..6u8).map(f64::from).collect());
}

#[test]
fn bool_is_u8_at_the_same_address() {
    let values = vec![true, false, true];
    let at = values.as_ptr().cast();
    let moved = to_candle(
        datapipes::Tensor::from_vec(values, [3]).unwrap(),
        &Device::Cpu,
    )
    .unwrap();
    assert_eq!((moved.dtype(), address::<u8>(&moved)), (Candle::U8, at));
    assert_eq!(moved.to_vec1::<u8>().unwrap(), [1, 0, 1]);
}

#[test]
fn shared_bytes_are_copied_wherever_they_begin() {
    let bytes = Bytes::from((0..13).collect::<Vec<u8>>());
    for start in 0..4 {
        let slice = bytes.slice(start..start + 8);
        let wanted: Vec<f32> = slice
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| f32::from_ne_bytes(*word))
            .collect();
        let tensor = datapipes::Tensor::from_bytes(slice, datapipes::DType::F32, [2]).unwrap();
        let copied = to_candle(tensor, &Device::Cpu).unwrap();
        assert_eq!(copied.to_vec1::<f32>().unwrap(), wanted);
        assert!(!bytes.as_ptr_range().contains(&address::<f32>(&copied)));
    }
}

#[test]
fn uploads_give_the_same_values() {
    // Checks the path of a GPU on this machine's CPU: the same code of this crate.
    let check = |tensor: datapipes::Tensor| {
        let (moved, uploaded) = (
            to_candle(tensor.clone(), &Device::Cpu).unwrap(),
            upload(&tensor, &Device::Cpu).unwrap(),
        );
        assert_eq!(
            (moved.dtype(), moved.dims()),
            (uploaded.dtype(), uploaded.dims())
        );
        let numbers = |tensor: &Tensor| {
            tensor
                .to_dtype(Candle::F64)
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1::<f64>()
                .unwrap()
        };
        assert_eq!(numbers(&moved), numbers(&uploaded));
    };
    use datapipes::DType::*;
    for dtype in [U8, U32, I16, I32, I64, BF16, F16, F32, F64, Bool] {
        let bytes = vec![1u8; 6 * dtype.size()];
        check(datapipes::Tensor::from_bytes(bytes.into(), dtype, [3, 2]).unwrap());
        check(datapipes::Tensor::zeros(dtype, []).unwrap());
        check(datapipes::Tensor::zeros(dtype, [0, 3]).unwrap());
    }
    for dtype in [I8, U16, U64] {
        let tensor = datapipes::Tensor::zeros(dtype, [1]).unwrap();
        assert_eq!(
            upload(&tensor, &Device::Cpu).unwrap_err().to_string(),
            to_candle(tensor, &Device::Cpu).unwrap_err().to_string()
        );
    }
}

#[test]
fn types_that_candle_lacks_are_named_or_widened() {
    let tensor = |dtype| datapipes::Tensor::zeros(dtype, [2, 1]).unwrap();
    for (dtype, name, wider) in [
        (datapipes::DType::I8, "i8", Candle::I16),
        (datapipes::DType::U16, "u16", Candle::U32),
        (datapipes::DType::U64, "u64", Candle::I64),
        (datapipes::DType::F16, "", Candle::F16),
    ] {
        let widened = to_candle_widened(tensor(dtype), &Device::Cpu).unwrap();
        assert_eq!((widened.dtype(), widened.dims()), (wider, &[2, 1][..]));
        match to_candle(tensor(dtype), &Device::Cpu) {
            Ok(_) => assert_eq!(name, ""),
            Err(error) => assert_eq!(
                error.to_string(),
                format!(
                    "candle has no tensors of {name}; `to_candle_widened` makes a type of it that candle has"
                )
            ),
        }
    }
    let large = datapipes::Tensor::from_vec(vec![0u64, 1 << 63], [2]).unwrap();
    assert_eq!(
        to_candle_widened(large, &Device::Cpu)
            .unwrap_err()
            .to_string(),
        "element 1 of a tensor of u64 is 9223372036854775808, too large for i64"
    );
    let least = datapipes::Tensor::from_vec(vec![i8::MIN, i8::MAX], [2]).unwrap();
    let widened = to_candle_widened(least, &Device::Cpu).unwrap();
    assert_eq!(widened.to_vec1::<i16>().unwrap(), [-128, 127]);
}
