use super::*;

fn said<B: fmt::Debug>(result: Result<B>) -> String {
    result
        .unwrap_err()
        .to_string()
        .replace("shape mismatch: ", "")
}

#[test]
fn sequences_are_padded_to_the_longest() {
    let (rows, lengths) = Padding::new(9u8)
        .pad(&[vec![1u8, 2], vec![], vec![3]])
        .unwrap();
    assert_eq!(
        (rows.shape(), rows.as_bytes()),
        (&[3, 2][..], &[1, 2, 9, 9, 3, 9][..])
    );
    assert_eq!(lengths.as_slice::<i64>().unwrap(), [2, 0, 1]);
    let steps = |n: usize, width: usize| Tensor::zeros(DType::F32, [n, width]).unwrap();
    assert_eq!(
        Padding::new(0)
            .pad(&[steps(1, 2), steps(4, 2)])
            .unwrap()
            .0
            .shape(),
        [2, 4, 2]
    );
    let error = said(Padding::new(0).pad(&[steps(1, 2), steps(4, 3)]));
    assert_eq!(
        error,
        "item 0 has steps of shape [2], item 1 has steps of shape [3]"
    );
    let error = said(Padding::new(0).pad(&[Tensor::scalar(1u8)]));
    assert_eq!(error, "item 0 has shape [], which is no sequence");
    let error =
        said(Padding::new(0).pad(&[steps(1, 1), Tensor::zeros(DType::U8, [1, 1]).unwrap()]));
    assert_eq!(error, "item 0 has dtype f32, item 1 has dtype u8");
    let (none, lengths) = Padding::new(0u16).pad::<Vec<u16>>(&[]).unwrap();
    assert_eq!(
        (none.shape(), none.dtype(), lengths.len()),
        (&[0, 0][..], DType::U16, 0)
    );
    // All axes of length zero, and some of them.
    assert_eq!(
        Padding::new(0)
            .pad(&[steps(0, 0), steps(0, 0)])
            .unwrap()
            .0
            .shape(),
        [2, 0, 0]
    );
    assert_eq!(
        Padding::new(0)
            .all_axes()
            .pad(&[steps(2, 0), steps(0, 3)])
            .unwrap()
            .0
            .shape(),
        [2, 2, 3]
    );
}

#[test]
fn a_multiple_and_a_fixed_length_are_kept() {
    let rows = [vec![1i64, 2, 3], vec![4]];
    let shape = |padding: Padding| padding.pad(&rows).map(|(rows, _)| rows.shape().to_vec());
    assert_eq!(shape(Padding::new(0).multiple_of(8)).unwrap(), [2, 8]);
    assert_eq!(shape(Padding::new(0).multiple_of(3)).unwrap(), [2, 3]);
    assert_eq!(shape(Padding::new(0).length(5)).unwrap(), [2, 5]);
    assert_eq!(
        said(shape(Padding::new(0).length(2))),
        "item 0 has 3 steps, more than the 2 to pad to"
    );
    assert!(shape(Padding::new(0).multiple_of(usize::MAX)).is_err());
    assert!(shape(Padding::new(0).multiple_of(0)).is_err());
}

#[test]
fn all_axes_are_padded_where_it_is_said() {
    let picture = |height: usize, width: usize, fill: u8| {
        Tensor::from_vec(vec![fill; height * width], [height, width]).unwrap()
    };
    let padding = Padding::new(0).all_axes();
    let (batch, sizes) = padding.pad(&[picture(1, 3, 7), picture(2, 2, 8)]).unwrap();
    assert_eq!(
        (batch.shape(), batch.as_bytes()),
        (&[2, 2, 3][..], &[7, 7, 7, 0, 0, 0, 8, 8, 0, 8, 8, 0][..])
    );
    assert_eq!(
        (sizes.shape(), sizes.as_slice::<i64>().unwrap()),
        (&[2, 2][..], &[1, 3, 2, 2][..])
    );
    let mask = padding.mask(&batch, &sizes).unwrap();
    assert_eq!(mask.shape(), batch.shape());
    assert_eq!(mask.as_bytes(), [1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0]);
    assert_eq!(
        padding
            .multiple_of(4)
            .pad(&[picture(1, 3, 7)])
            .unwrap()
            .0
            .shape(),
        [1, 4, 4]
    );
    assert!(
        padding
            .pad(&[picture(1, 3, 7), picture(3, 1, 1).reshape([3]).unwrap()])
            .is_err()
    );
}

#[test]
fn one_axis_is_padded_where_it_is_said() {
    let mel =
        |frames: usize, fill: u8| Tensor::from_vec(vec![fill; 2 * frames], [2, frames]).unwrap();
    let padding = Padding::new(0).axis(1);
    let (batch, frames) = padding.pad(&[mel(1, 7), mel(3, 8)]).unwrap();
    assert_eq!(
        (batch.shape(), batch.as_bytes()),
        (&[2, 2, 3][..], &[7, 0, 0, 7, 0, 0, 8, 8, 8, 8, 8, 8][..])
    );
    assert_eq!(frames.as_slice::<i64>().unwrap(), [1, 3]);
    let mask = padding.mask(&batch, &frames).unwrap();
    assert_eq!(
        (mask.shape(), mask.as_bytes()),
        (&[2, 3][..], &[1, 0, 0, 1, 1, 1][..])
    );
    let shape = |padding: Padding| Ok(padding.pad(&[mel(3, 1)])?.0.shape().to_vec());
    assert_eq!(shape(padding.multiple_of(4)).unwrap(), [1, 2, 4]);
    assert_eq!(shape(padding.length(5)).unwrap(), [1, 2, 5]);
    assert_eq!(
        said(shape(padding.length(2))),
        "item 0 has 3 steps, more than the 2 to pad to"
    );
    assert_eq!(
        said(padding.pad(&[mel(3, 1), Tensor::zeros(DType::U8, [3, 3]).unwrap()])),
        "item 0 has steps of shape [2], item 1 has steps of shape [3]"
    );
    assert_eq!(
        said(padding.pad(&[vec![1u8]])),
        "item 0 has shape [1], which has no axis 1"
    );
    assert_eq!(format!("{:?}", padding.length(5)), "0, to 5, axis 1");
}

#[test]
fn the_mask_says_where_no_padding_is() {
    let padding = Padding::new(0f32).length(3);
    let (batch, lengths) = padding
        .pad(&[vec![0f32, 1.0], vec![], vec![1.0; 3]])
        .unwrap();
    let mask = padding.mask(&batch, &lengths).unwrap();
    assert_eq!(
        (mask.shape(), mask.as_bytes()),
        (&[3, 3][..], &[1, 1, 0, 0, 0, 0, 1, 1, 1][..])
    );
    assert!(padding.mask(&batch, &Tensor::list(vec![1i64])).is_err());
    assert!(
        padding
            .mask(&batch, &Tensor::list(vec![4i64, 0, 0]))
            .is_err()
    );
    assert!(
        padding
            .mask(&batch, &Tensor::list(vec![-1i64, 0, 0]))
            .is_err()
    );
    assert!(padding.mask(&Tensor::scalar(1u8), &lengths).is_err());
    assert!(padding.mask(&batch, &Tensor::scalar(1i64)).is_err());
}

#[test]
fn the_type_is_kept_and_a_value_that_it_cannot_hold_is_an_error() {
    fn padded<E: Element>(padding: impl Element + Into<Padding>) -> Option<E> {
        let (batch, _) = Padding::new(padding)
            .length(1)
            .pad(&[Vec::<E>::new()])
            .ok()?;
        assert_eq!(batch.dtype(), E::DTYPE);
        Some(batch.as_slice::<E>().unwrap()[0])
    }
    assert_eq!(padded::<u8>(255), Some(255));
    assert_eq!(padded::<u8>(256), None);
    assert_eq!(padded::<u8>(-1), None);
    assert_eq!(padded::<i64>(-100), Some(-100));
    assert_eq!(padded::<i64>(u64::MAX), None);
    assert_eq!(padded::<u64>(u64::MAX), Some(u64::MAX));
    assert_eq!(padded::<u64>(3.0), Some(3));
    assert_eq!(padded::<u64>(3.5), None);
    assert_eq!(padded::<u64>(f64::NAN), None);
    assert_eq!(padded::<u64>(1e300), None);
    assert_eq!(padded::<f32>(-1), Some(-1.0));
    assert_eq!(padded::<f32>(0.1), Some(0.1));
    assert_eq!(padded::<f32>(1e300), None);
    assert_eq!(padded::<f32>((1 << 24) + 1), None);
    assert_eq!(padded::<f32>(f64::NEG_INFINITY), Some(f32::NEG_INFINITY));
    assert!(padded::<f16>(f64::NAN).unwrap().is_nan());
    assert_eq!(padded::<f16>(65504), Some(f16::MAX));
    assert_eq!(padded::<f16>(70000), None);
    assert_eq!(padded::<bf16>(2.0), Some(bf16::from_f32(2.0)));
    assert_eq!(padded::<bool>(true), Some(true));
    assert_eq!(padded::<bool>(0), Some(false));
    assert_eq!(padded::<bool>(2), None);
    assert_eq!(padded::<u8>(true), None);
    let error = said(Padding::new(-1).pad(&[vec![0u8]]));
    assert_eq!(
        error,
        "item 0 has dtype u8, which cannot hold the padding -1"
    );
}

#[test]
fn tuples_maps_and_options_keep_what_is_not_padded() {
    let items = vec![
        ((vec![1u8, 2], 7u32), "a".to_owned()),
        ((vec![3], 8), "b".to_owned()),
    ];
    let (((rows, lengths), labels), names) = Padded::padded(items, &((0, ()), ())).unwrap();
    assert_eq!(
        (rows.as_bytes(), lengths.as_slice::<i64>().unwrap()),
        (&[1, 2, 3, 0][..], &[2, 1][..])
    );
    assert_eq!(
        (labels.as_slice::<u32>().unwrap(), names),
        (&[7, 8][..], vec!["a".to_owned(), "b".to_owned()])
    );
    let odd = vec![((vec![1u8], vec![1u8]),), ((vec![2], vec![]),)];
    assert_eq!(
        said(Padded::padded(odd, &((0, ()),))),
        "0.1: item 0 has length 1, item 1 has length 0"
    );

    let map = |ids: Vec<u32>, label: u32| {
        BTreeMap::from([("ids".to_owned(), ids), ("label".to_owned(), vec![label])])
    };
    let maps = || vec![map(vec![5], 1), map(vec![6, 7], 2)];
    let (batch, lengths) = Padded::padded(maps(), &[("ids", 9)]).unwrap();
    assert_eq!(
        (batch["ids"].shape(), batch["label"].shape()),
        (&[2, 2][..], &[2, 1][..])
    );
    assert_eq!(batch["ids"].as_slice::<u32>().unwrap(), [5, 9, 6, 7]);
    assert_eq!(lengths.keys().collect::<Vec<_>>(), ["ids"]);
    let (batch, lengths) = Padded::padded(maps(), &0).unwrap();
    assert_eq!(
        (
            batch["ids"].shape(),
            lengths["label"].as_slice::<i64>().unwrap()
        ),
        (&[2, 2][..], &[1, 1][..])
    );
    let error = said(Padded::padded(maps(), &[("idz", 9)]));
    assert_eq!(error, "item 0 has no key \"idz\", which is to be padded");
    let error = said(Padded::padded(maps(), &[("label", 9)]));
    assert_eq!(error, "\"ids\": item 0 has length 1, item 1 has length 2");
    let hashed = vec![
        HashMap::from([(1u8, vec![1u8])]),
        HashMap::from([(1, vec![])]),
    ];
    assert_eq!(
        Padded::padded(hashed, &[(1u8, Padding::new(3))]).unwrap().0[&1].as_bytes(),
        [1, 3]
    );

    let (some, _) = Padded::padded(vec![Some(vec![1u8]), Some(vec![])], &0).unwrap();
    assert_eq!(some.unwrap().as_bytes(), [1, 0]);
    assert_eq!(
        Padded::padded(vec![None::<Vec<u8>>, None], &0).unwrap(),
        (None, None)
    );
    assert!(Padded::padded(vec![None, Some(vec![1u8])], &0).is_err());
}
