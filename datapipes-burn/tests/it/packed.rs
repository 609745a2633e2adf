//! Packed text: the fields of a batch and its attention mask as tensors of burn.

use burn_core::data::dataloader::DataLoader as _;
use burn_core::tensor::activation::softmax;
use burn_core::tensor::{Bool, Device, Int, Tensor};
use datapipes::{DataLoader, Graph};
use datapipes_burn::{BurnLoader, IntoBurn};
use datapipes_text::{Attention, MaskForm, Pack, PackedBatch, prelude::*};

/// Token ids, labels, positions, `cu_seqlens` and document numbers.
type Fields = (
    Tensor<2, Int>,
    Tensor<2, Int>,
    Tensor<2, Int>,
    Tensor<1, Int>,
    Tensor<2, Int>,
);

#[test]
fn documents_of_a_row_do_not_see_each_other() {
    let documents = vec![vec![1u32, 2, 3], vec![4, 5]];
    let rows = Graph::from_vec(documents).pack(Pack::concat(4));
    let loader = DataLoader::builder(rows.batch(2).collate())
        .build()
        .unwrap();
    let device = Device::flex();
    let convert = |batch: PackedBatch, device: &Device| -> datapipes::Result<_> {
        let mask = batch.mask(Attention::Causal, MaskForm::Hide)?;
        let mask: Tensor<3, Bool> = mask.into_burn(device)?;
        let fields: Fields = batch.into_tuple().into_burn(device)?;
        Ok((fields, mask))
    };
    let loader = BurnLoader::with(loader, &device, convert)
        .items(2)
        .batch_size(2);
    let batch = loader.iter().next().unwrap().unwrap();
    let ((ids, labels, positions, bounds, document), mask) = batch;
    fn values<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i64> {
        tensor.into_data().convert::<i64>().try_to_vec().unwrap()
    }
    assert_eq!(values(ids), [1, 2, 3, 4, 5, 0, 0, 0]);
    assert_eq!(values(labels), [2, 3, -100, 5, -100, -100, -100, -100]);
    assert_eq!(values(positions), [0, 1, 2, 0, 0, 0, 0, 0]);
    assert_eq!(values(bounds), [0, 3, 4, 5, 8]);
    assert_eq!(values(document), [1, 1, 1, 2, 1, 0, 0, 0]);

    // Equal scores: a token looks at those of its document before it, and at itself.
    let scores = Tensor::<3>::zeros([2, 4, 4], &device).mask_fill(mask, f32::NEG_INFINITY);
    let weights: Vec<f32> = softmax(scores, 2).into_data().try_to_vec().unwrap();
    let (half, third) = (0.5, 1.0 / 3.0);
    #[rustfmt::skip]
    let expected = [
        1.0, 0.0, 0.0, 0.0,
        half, half, 0.0, 0.0,
        third, third, third, 0.0,
        0.0, 0.0, 0.0, 1.0,
    ];
    for (weight, expected) in weights.iter().zip(expected) {
        assert!((weight - expected).abs() < 1e-6, "{weights:?}");
    }
}
