use super::*;
use crate::ErrorKind;

#[test]
fn own_numbers_move_in_and_out() {
    let values = vec![1.5f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let place = values.as_ptr();
    let tensor = Tensor::from_vec(values, [2, 3]).unwrap();
    assert_eq!(
        (
            tensor.dtype(),
            tensor.rank(),
            tensor.len(),
            tensor.byte_len()
        ),
        (DType::F32, 2, 6, 24)
    );
    assert!(!tensor.is_shared());
    assert_eq!(
        tensor.as_slice::<u8>().unwrap_err().kind(),
        ErrorKind::Shape
    );
    let back = tensor.reshape([6]).unwrap().into_vec::<f32>().unwrap();
    assert_eq!(back.as_ptr(), place);
}

#[test]
fn shared_bytes_are_not_copied_unless_misaligned() {
    let all = Tensor::from_vec((0..16u32).collect(), [16])
        .unwrap()
        .into_shared();
    let bytes = all.shared().unwrap().clone();
    let aligned = Tensor::from_bytes(bytes.slice(4..20), DType::U32, [2, 2]).unwrap();
    assert!(aligned.is_shared());
    assert_eq!(aligned.as_bytes().as_ptr(), bytes[4..].as_ptr());
    assert_eq!(aligned.as_slice::<u32>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(
        aligned.row(1).unwrap().as_bytes().as_ptr(),
        bytes[12..].as_ptr()
    );
    assert_eq!(aligned.into_vec::<u32>().unwrap(), [1, 2, 3, 4]);

    let shifted = Tensor::from_bytes(bytes.slice(1..9), DType::U32, [2]).unwrap();
    assert!(!shifted.is_shared());
    assert_eq!(shifted.as_bytes(), &bytes[1..9]);
}

#[test]
fn every_type_makes_the_round_trip() {
    fn check<T: Element>(value: T) {
        let own = Tensor::from_vec(vec![T::default(), value], [2, 1]).unwrap();
        let bytes = Bytes::copy_from_slice(own.as_bytes());
        let shared = Tensor::from_bytes(bytes, T::DTYPE, [2, 1]).unwrap();
        assert_eq!(shared, own);
        assert_eq!(shared.as_slice::<T>().unwrap()[1], value);
        assert_eq!(
            own.clone().into_shared().into_vec::<T>().unwrap(),
            [T::default(), value]
        );
        assert_eq!(
            Tensor::zeros(T::DTYPE, [1])
                .unwrap()
                .as_slice::<T>()
                .unwrap(),
            [T::default()]
        );
        assert_eq!(own.len(), 2);
    }
    check(7u8);
    check(-7i8);
    check(7u16);
    check(-7i16);
    check(7u32);
    check(-7i32);
    check(7u64);
    check(-7i64);
    check(f16::from_f32(0.5));
    check(bf16::from_f32(0.5));
    check(0.5f32);
    check(0.5f64);
    check(true);
}

#[test]
fn wrong_lengths_are_told_with_numbers() {
    let error = Tensor::from_vec(vec![1u8; 5], [2, 3]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: 5 elements for shape [2, 3], which has 6"
    );
    let error = Tensor::from_bytes(Bytes::from(vec![0; 5]), DType::F32, [2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: 5 bytes for shape [2] of f32, which has 8"
    );
    let error = Tensor::from_bytes(Bytes::from(vec![1, 2]), DType::Bool, [2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(Tensor::zeros(DType::U8, [usize::MAX, 2]).is_err());
    assert!(Tensor::zeros(DType::F64, [usize::MAX / 8]).is_err());
    assert!(Tensor::zeros(DType::U8, [0, usize::MAX, 2]).is_err());
    assert!(Tensor::scalar(1u8).reshape([2]).is_err());
    assert!(Tensor::scalar(1u8).row(0).is_err());
}

#[test]
fn stack_adds_an_axis_and_names_who_differs() {
    let [a, b] = [[1u8, 2], [3, 4]].map(|v| Tensor::from_vec(v.to_vec(), [2]).unwrap());
    let both = Tensor::stack(&[a.clone(), b.clone()]).unwrap();
    assert_eq!(both, Tensor::from_vec(vec![1u8, 2, 3, 4], [2, 2]).unwrap());
    let error = Tensor::stack(&[a.clone(), b.reshape([1, 2]).unwrap()]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: item 0 has shape [2], item 1 has shape [1, 2]"
    );
    let error = Tensor::stack(&[a.clone(), a, Tensor::list(vec![1i8, 2])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shape mismatch: item 0 has dtype u8, item 2 has dtype i8"
    );
    assert!(Tensor::stack(&[]).is_err());
}

#[test]
fn empty_axes_and_scalars() {
    let none = Tensor::zeros(DType::F64, [0, 3]).unwrap().into_shared();
    assert!(none.is_empty() && none.as_slice::<f64>().unwrap().is_empty());
    let rows = Tensor::zeros(DType::F64, [3, 0]).unwrap();
    assert_eq!(rows.row(2).unwrap().shape(), [0]);
    assert_eq!(rows.rows(1..3).unwrap().shape(), [2, 0]);
    assert!(rows.rows(1..4).is_err());
    assert_eq!(
        Tensor::from_bytes(Bytes::new(), DType::F64, [0])
            .unwrap()
            .len(),
        0
    );
    assert_eq!(
        Tensor::stack(&[Tensor::scalar(1u8), Tensor::scalar(2u8)])
            .unwrap()
            .shape(),
        [2]
    );
}

#[test]
fn writing_to_shared_numbers_leaves_the_others() {
    let shared = Tensor::list(vec![1u8, 2]).into_shared();
    let mut mine = shared.clone();
    mine.as_mut_slice::<u8>().unwrap()[0] = 9;
    assert_eq!(shared.as_slice::<u8>().unwrap(), [1, 2]);
    assert_eq!(mine.as_slice::<u8>().unwrap(), [9, 2]);
    assert!(mine.as_mut_slice::<i8>().is_err());
}

#[test]
fn debug_is_short() {
    let tensor = Tensor::list((0..9u8).collect());
    assert_eq!(
        format!("{tensor:?}"),
        "Tensor(u8 [9]: 0, 1, 2, 3, 4, 5, 6, 7, …)"
    );
}

#[test]
fn what_is_appended_is_the_tensor_also_in_memory_that_was_used_before() {
    for len in [3, 100_000, 90_000, 100_000] {
        let filled = Tensor::from_fill([len], |values| {
            assert!(values.is_empty() && values.capacity() >= len);
            values.extend((0..len as u32).map(|n| n + len as u32));
            Ok(())
        });
        let filled = filled.unwrap();
        let numbers = filled.as_slice::<u32>().unwrap();
        assert!(numbers.iter().copied().eq(len as u32..2 * len as u32));
        assert_eq!(filled.is_pooled(), len > 3);
    }
    for len in [3, 100_000] {
        let short = Tensor::from_fill::<u32>([len], |values| {
            values.extend(std::iter::repeat_n(1, len - 1));
            Ok(())
        });
        let said = format!("{} elements for shape [{len}]", len - 1);
        let error = short.unwrap_err().to_string();
        assert!(error.contains(&said), "{error}");
    }
    let failed = Tensor::from_fill::<u8>([1], |_| Err(Error::new(ErrorKind::Io, "unreadable")));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
}
