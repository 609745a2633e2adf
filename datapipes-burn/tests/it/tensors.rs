//! Conversion of tensors: type, shape and values stay the same, and the memory is not copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn_core::tensor::{Bool, DType, Device, Element, Float, Int, Tensor, TensorData, bf16, f16};
use bytes::Bytes;
use datapipes::ErrorKind;
use datapipes_burn::{IntoBurn, Kind};

fn device() -> Device {
    Device::flex()
}

fn own<T: datapipes::Element>(values: &[T], shape: &[usize]) -> datapipes::Tensor {
    datapipes::Tensor::from_vec(values.to_vec(), shape).unwrap()
}

fn place(tensor: &datapipes::Tensor) -> usize {
    tensor.as_bytes().as_ptr() as usize
}

/// Returns the address of the numbers of a tensor in burn, if nothing else shares it.
fn place_in_burn<const D: usize, K: Kind>(tensor: Tensor<D, K>) -> usize {
    tensor.into_data().as_bytes().as_ptr() as usize
}

fn refused<O>(tensor: datapipes::Tensor) -> (ErrorKind, String)
where
    datapipes::Tensor: IntoBurn<O>,
{
    let error = IntoBurn::<O>::into_burn(tensor, &device())
        .err()
        .expect("it is refused");
    (error.kind(), error.to_string())
}

/// Checks owned and shared numbers of a type: in burn they have the same type, values and address.
fn check<T, K>(values: [T; 6], dtype: DType)
where
    T: datapipes::Element + Element + PartialEq,
    K: Kind,
{
    let own = own(&values, &[2, 3]);
    // Three of six values, so that the bytes are a view into the middle.
    let shared = own
        .clone()
        .into_shared()
        .row(1)
        .unwrap()
        .reshape([3, 1])
        .unwrap();

    let (was, want) = (place(&own), values.to_vec());
    let tensor: Tensor<2, K> = own.into_burn(&device()).unwrap();
    assert_eq!((tensor.dtype(), tensor.dims()), (dtype, [2, 3]));
    let data = tensor.into_data();
    assert_eq!(data.as_bytes().as_ptr() as usize, was, "{dtype:?}, owned");
    assert_eq!(data.try_to_vec::<T>().unwrap(), want);

    let was = place(&shared);
    let tensor: Tensor<2, K> = shared.clone().into_burn(&device()).unwrap();
    assert_eq!((tensor.dtype(), tensor.dims()), (dtype, [3, 1]));
    let data = tensor.into_data();
    assert_eq!(data.as_bytes().as_ptr() as usize, was, "{dtype:?}, shared");
    assert_eq!(data.try_to_vec::<T>().unwrap(), want[3..]);

    let data: TensorData = shared.into_burn(&device()).unwrap();
    assert_eq!(
        (data.dtype(), data.as_bytes().as_ptr() as usize),
        (dtype, was)
    );
}

/// A batch whose rows were filled in place is not copied, and its memory returns to the pool when
/// burn drops it.
#[test]
fn a_pooled_batch_is_handed_over_where_it_is_and_returns() {
    let loader = datapipes::DataLoader::builder(datapipes::testing::pooled_batches(400, 4))
        .workers(0)
        .build()
        .unwrap();
    let mut places = std::collections::HashSet::new();
    for (number, batch) in loader.epoch(0).blocking().enumerate() {
        let batch = batch.unwrap();
        assert!(batch.is_pooled());
        let was = place(&batch);
        let tensor: Tensor<2> = batch.into_burn(&device()).unwrap();
        let data = tensor.into_data();
        assert_eq!(data.as_bytes().as_ptr() as usize, was);
        assert_eq!(data.try_to_vec::<f32>().unwrap()[0], 4.0 * number as f32);
        places.insert(was);
    }
    // Rows that cost so little are made some batches ahead.
    assert!(places.len() < 50, "{} places for 100 batches", places.len());
}

#[test]
fn every_type_is_handed_over_as_it_is_and_where_it_is() {
    check::<f32, Float>([0.5, -1.0, 2.0, f32::MAX, 4.0, 5.5], DType::F32);
    check::<f64, Float>([0.5, -1.0, 2.0, f64::MAX, 4.0, 5.5], DType::F64);
    check::<f16, Float>(
        [0.5, -1.0, 2.0, 3.0, 4.0, 5.5].map(f16::from_f32),
        DType::F16,
    );
    check::<bf16, Float>(
        [0.5, -1.0, 2.0, 3.0, 4.0, 5.5].map(bf16::from_f32),
        DType::BF16,
    );
    check::<u8, Int>([0, 1, 2, 3, 254, 255], DType::U8);
    check::<i8, Int>([0, 1, 2, 3, 127, -128], DType::I8);
    check::<u16, Int>([0, 1, 2, 3, 4, u16::MAX], DType::U16);
    check::<i16, Int>([0, 1, 2, 3, 4, i16::MIN], DType::I16);
    check::<u32, Int>([0, 1, 2, 3, 4, u32::MAX], DType::U32);
    check::<i32, Int>([0, 1, 2, 3, 4, i32::MIN], DType::I32);
    check::<u64, Int>([0, 1, 2, 3, 4, u64::MAX], DType::U64);
    check::<i64, Int>([0, 1, 2, 3, 4, i64::MIN], DType::I64);
}

#[test]
fn bools_are_what_the_device_stores_them_as() {
    let own = own(&[true, false, true, true], &[4]);
    let shared = own.clone().into_shared();
    for tensor in [own, shared] {
        let was = place(&tensor);
        let bools: Tensor<1, Bool> = tensor.clone().into_burn(&device()).unwrap();
        assert_eq!(bools.dtype(), DType::Bool(device().settings().bool_dtype));
        assert_eq!(
            bools
                .clone()
                .int()
                .into_data()
                .iter::<i64>()
                .collect::<Vec<_>>(),
            [1, 0, 1, 1]
        );
        assert_eq!(
            bools.into_data().iter::<bool>().collect::<Vec<_>>(),
            [true, false, true, true]
        );
        let bools: Tensor<1, Bool> = tensor.into_burn(&device()).unwrap();
        assert_eq!(place_in_burn(bools), was);
    }
}

#[test]
fn misaligned_bytes_are_copied_once_when_they_become_a_tensor_and_not_again() {
    let mut bytes = vec![0; 16];
    let at = bytes.as_ptr().align_offset(4) + 1;
    bytes[at..at + 4].copy_from_slice(&1.5f32.to_ne_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&2.5f32.to_ne_bytes());
    let view = Bytes::from(bytes).slice(at..at + 8);
    let tensor = datapipes::Tensor::from_bytes(view.clone(), datapipes::DType::F32, [2]).unwrap();
    let was = place(&tensor);
    assert_ne!(was, view.as_ptr() as usize);
    let ours: Tensor<1> = tensor.into_burn(&device()).unwrap();
    let doubled = (ours.clone() * 2.0).into_data();
    assert_eq!(doubled.try_to_vec::<f32>().unwrap(), [3.0, 5.0]);
    assert_eq!(place_in_burn(ours), was);
}

#[test]
fn burn_writes_in_place_to_what_it_owns_and_copies_what_is_shared() {
    let own = own(&[1f32, 2.0, 3.0, 4.0], &[4]);
    let was = place(&own);
    let tensor: Tensor<1> = own.into_burn(&device()).unwrap();
    let tensor = tensor.mul_scalar(2.0);
    assert_eq!(
        tensor.clone().into_data().try_to_vec::<f32>().unwrap(),
        [2.0, 4.0, 6.0, 8.0]
    );
    assert_eq!(place_in_burn(tensor), was);

    let shared = datapipes::Tensor::from_vec(vec![1f32, 2.0], [2])
        .unwrap()
        .into_shared();
    let tensor: Tensor<1> = shared.clone().into_burn(&device()).unwrap();
    let twice = tensor.mul_scalar(2.0).into_data();
    assert_eq!(twice.try_to_vec::<f32>().unwrap(), [2.0, 4.0]);
    assert_eq!(shared.as_slice::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn what_is_shared_is_let_go_with_the_last_tensor_of_burn() {
    struct Slot(datapipes::Tensor, Arc<AtomicBool>);
    impl AsRef<[u8]> for Slot {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    impl Drop for Slot {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let free = Arc::new(AtomicBool::new(false));
    let slot = Bytes::from_owner(Slot(own(&[1u64, 2, 3], &[3]), free.clone()));
    let tensor = datapipes::Tensor::from_bytes(slot, datapipes::DType::U64, [3]).unwrap();
    let tensor: Tensor<1, Int> = tensor.into_burn(&device()).unwrap();
    let view = tensor.clone().slice(1..3);
    drop(tensor);
    assert!(!free.load(Ordering::Relaxed));
    assert_eq!(
        view.clone().into_data().iter::<i64>().collect::<Vec<_>>(),
        [2, 3]
    );
    drop(view);
    assert!(free.load(Ordering::Relaxed));
}

#[test]
fn row_115_what_does_not_fit_is_an_error_with_both_sides() {
    let pixels = || own(&[1u8; 6], &[1, 2, 3]);
    let (kind, said) = refused::<Tensor<4, Int>>(pixels());
    assert_eq!(
        (kind, &*said),
        (
            ErrorKind::Shape,
            "shape mismatch: a tensor of shape [1, 2, 3] was asked for rank 4"
        )
    );
    let (kind, said) = refused::<Tensor<3>>(pixels());
    assert_eq!(
        (kind, &*said),
        (
            ErrorKind::Shape,
            "shape mismatch: a tensor of u8 was asked for floats"
        )
    );
    let (_, said) = refused::<Tensor<3, Bool>>(pixels());
    assert_eq!(said, "shape mismatch: a tensor of u8 was asked for bools");
    let (_, said) = refused::<Tensor<1, Int>>(own(&[1f32], &[1]));
    assert_eq!(
        said,
        "shape mismatch: a tensor of f32 was asked for integers"
    );
    let (_, said) = refused::<Tensor<1, Int>>(own(&[true], &[1]));
    assert_eq!(
        said,
        "shape mismatch: a tensor of bool was asked for integers"
    );
    // Burn has no tensors of rank 0.
    let (kind, said) = refused::<Tensor<1, Int>>(datapipes::Tensor::scalar(7i64));
    assert_eq!(
        (kind, &*said),
        (
            ErrorKind::Shape,
            "shape mismatch: a tensor of shape [] was asked for rank 1"
        )
    );
    assert_eq!(
        refused::<Tensor<0, Int>>(datapipes::Tensor::scalar(7i64)).0,
        ErrorKind::Shape
    );
}

#[test]
fn empty_tensors_are_handed_over() {
    for shape in [vec![0], vec![0, 3], vec![3, 0]] {
        let none = datapipes::Tensor::zeros(datapipes::DType::F64, shape.clone()).unwrap();
        for none in [none.clone(), none.into_shared()] {
            let data: TensorData = none.into_burn(&device()).unwrap();
            assert_eq!(
                (data.shape().as_slice(), data.num_elements()),
                (&shape[..], 0)
            );
        }
    }
    let none = datapipes::Tensor::zeros(datapipes::DType::F32, [0, 2]).unwrap();
    let none: Tensor<2> = none.into_burn(&device()).unwrap();
    assert_eq!((none + 1.0).dims(), [0, 2]);
    let none = datapipes::Tensor::from_bytes(Bytes::new(), datapipes::DType::F64, [0]).unwrap();
    assert_eq!(
        IntoBurn::<Tensor<1>>::into_burn(none, &device())
            .unwrap()
            .dims(),
        [0]
    );
}

#[test]
fn tuples_options_and_texts_become_what_their_parts_do() {
    let batch = (
        own(&[1f32; 4], &[2, 2]),
        Some(own(&[1i64, 2], &[2])),
        vec!["a".to_owned(), "b".to_owned()],
    );
    type Out = (Tensor<2>, Option<Tensor<1, Int>>, Vec<String>);
    assert_eq!(IntoBurn::<Out>::rows(&batch), 2);
    let (points, labels, names): Out = batch.into_burn(&device()).unwrap();
    assert_eq!(
        (points.dims(), labels.unwrap().dims(), names.len()),
        ([2, 2], [2], 2)
    );
    let none: Option<Tensor<1>> = None::<datapipes::Tensor>.into_burn(&device()).unwrap();
    assert!(none.is_none());

    let batch = (own(&[1f32; 4], &[2, 2]), own(&[1u8, 2], &[2]));
    let error = IntoBurn::<(Tensor<2>, Tensor<1>)>::into_burn(batch, &device()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: part 1: a tensor of u8 was asked for floats"
    );
}
