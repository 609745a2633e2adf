//! Packed text: the fields of a batch and its attention mask as tensors of burn.

use std::sync::Arc;

use burn_core::data::dataloader::split::split_dataloader;
use burn_core::data::dataloader::{DataLoader as _, DataLoaderIterator};
use burn_core::tensor::activation::softmax;
use burn_core::tensor::{Bool, Device, Int, Tensor};
use datapipes::{DataLoader, Graph, Rank, Uneven};
use datapipes_burn::{BurnLoader, IntoBurn};
use datapipes_text::{
    Attention, MaskForm, Pack, PackPlan, PackedBatch, TokenStore, TokenWidth, TokenWriter,
    prelude::*,
};

/// Token ids, labels, positions, `cu_seqlens` and document numbers.
type Fields = (
    Tensor<2, Int>,
    Tensor<2, Int>,
    Tensor<2, Int>,
    Tensor<1, Int>,
    Tensor<2, Int>,
);

fn values<const D: usize>(tensor: Tensor<D, Int>) -> Vec<i64> {
    tensor.into_data().convert::<i64>().try_to_vec().unwrap()
}

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

/// Tokens of a row, and rows of a step over all ranks.
const LENGTH: usize = 32;
const STEP: usize = 4;
/// Documents of the store. Token `n` of document `d` is `100 * d + n`.
const DOCUMENTS: i64 = 120;

/// Some documents are longer than a row.
fn document_len(document: i64) -> i64 {
    1 + document * 37 % 75
}

fn store(folder: &tempfile::TempDir) -> TokenStore {
    let path = folder.path().join("corpus");
    let mut writer = TokenWriter::megatron(&path, TokenWidth::U16).unwrap();
    for document in 0..DOCUMENTS {
        let tokens = (0..document_len(document)).map(|n| (100 * document + n) as u32);
        writer.push(&tokens.collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    TokenStore::megatron(&path).unwrap()
}

/// All fields of a batch and its mask, in this library and in burn.
type Batch = (PackedTensors, datapipes::Tensor);
type PackedTensors = (
    datapipes::Tensor,
    datapipes::Tensor,
    datapipes::Tensor,
    datapipes::Tensor,
    datapipes::Tensor,
);
type Feed = (Fields, Tensor<3, Bool>);

fn planned(store: &TokenStore, devices: usize) -> BurnLoader<Batch, Feed> {
    // An epoch has several windows.
    let plan = PackPlan::new(store.clone(), LENGTH).step(STEP).window(50);
    let rows = plan.report(devices).unwrap().rows as usize;
    let of_rank = move |rank: Rank| {
        let batches = plan
            .graph()
            .sharding_filter()
            .try_map(|row| row.read())
            .batch(STEP / rank.world)
            .collate()
            .try_map(|batch| {
                let mask = batch.mask(Attention::Causal, MaskForm::Hide)?;
                datapipes::Ok((batch.into_tuple(), mask))
            });
        let loader = DataLoader::builder(batches).rank(rank.index, rank.world);
        loader.uneven(Uneven::Drop).seed(1).resumable().build()
    };
    BurnLoader::new(of_rank(Rank::default()).unwrap(), &Device::flex())
        .items(rows)
        .for_devices(devices, of_rank)
}

#[derive(Debug, PartialEq)]
struct Row {
    ids: Vec<i64>,
    labels: Vec<i64>,
    positions: Vec<i64>,
    document: Vec<i64>,
    /// True where a token does not see another.
    hidden: Vec<bool>,
}

fn rows(((ids, labels, positions, bounds, document), mask): Feed) -> Vec<Row> {
    let count = ids.dims()[0];
    for field in [&ids, &labels, &positions, &document] {
        assert_eq!(field.dims(), [count, LENGTH]);
    }
    assert_eq!(mask.dims(), [count, LENGTH, LENGTH]);
    let hidden: Vec<bool> = mask.into_data().try_to_vec().unwrap();
    let [ids, labels, positions, document] = [ids, labels, positions, document].map(values);
    // A segment begins where a row does, and where the piece of a document is another one.
    let begins = |&at: &usize| at % LENGTH == 0 || document[at] != document[at - 1];
    let mut expected: Vec<_> = (0..ids.len()).filter(begins).map(|at| at as i64).collect();
    expected.push(ids.len() as i64);
    assert_eq!(values(bounds), expected);
    let row = |n: usize| {
        let part = |field: &[i64]| field[n * LENGTH..(n + 1) * LENGTH].to_vec();
        Row {
            ids: part(&ids),
            labels: part(&labels),
            positions: part(&positions),
            document: part(&document),
            hidden: hidden[n * LENGTH * LENGTH..(n + 1) * LENGTH * LENGTH].to_vec(),
        }
    };
    (0..count).map(row).collect()
}

/// Takes so many steps of all devices, or all that are left. Device `k` of `n` has rows `k`,
/// `k + n`, and so on.
fn steps(epochs: &mut [Box<dyn DataLoaderIterator<Feed> + '_>], most: usize) -> Vec<Vec<Row>> {
    let mut steps = Vec::new();
    while steps.len() < most {
        let parts = epochs.iter_mut().map(|epoch| epoch.next());
        let parts: Vec<_> = parts
            .map(|part| part.map(|feed| rows(feed.unwrap())))
            .collect();
        if parts.iter().all(Option::is_none) {
            break;
        }
        let mut parts: Vec<_> = parts
            .into_iter()
            .map(|part| part.unwrap().into_iter())
            .collect();
        let dealt = (0..STEP).map(|n| parts[n % epochs.len()].next().unwrap());
        steps.push(dealt.collect());
    }
    steps
}

/// The fields follow from the ids, since an id tells document and place.
fn check(row: &Row) {
    for (at, &id) in row.ids.iter().enumerate() {
        let sees: Vec<_> = (0..=at)
            .filter(|&key| row.document[key] == row.document[at])
            .collect();
        let expected: Vec<_> = (0..LENGTH).map(|key| !sees.contains(&key)).collect();
        assert_eq!(row.hidden[at * LENGTH..(at + 1) * LENGTH], expected);
        if row.document[at] == 0 {
            assert_eq!((id, row.labels[at], row.positions[at]), (0, -100, 0));
            continue;
        }
        let place = at - sees[0];
        assert_eq!(row.positions[at], place as i64);
        assert_eq!(id, row.ids[sees[0]] + place as i64, "one document");
        let is_last = id % 100 + 1 == document_len(id / 100);
        assert_eq!(row.labels[at], if is_last { -100 } else { id + 1 });
    }
}

#[test]
fn the_rows_of_a_plan_arrive_in_the_same_steps_on_one_device_and_on_two() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let split = |loader: &BurnLoader<Batch, Feed>, devices: usize| {
        split_dataloader(Arc::new(loader.clone()), &vec![Device::flex(); devices])
    };
    let all = |loader: BurnLoader<Batch, Feed>, devices: usize| {
        let parts = split(&loader, devices);
        let mut epochs: Vec<_> = parts.iter().map(|part| part.iter()).collect();
        steps(&mut epochs, usize::MAX)
    };
    let whole = all(planned(&store, 1), 1);
    assert!(whole.len() > 30, "{} steps", whole.len());
    let tokens = whole.iter().flatten().flat_map(|row| {
        check(row);
        let tokens = row.ids.iter().zip(&row.document);
        tokens
            .filter(|&(_, &document)| document > 0)
            .map(|(&id, _)| id)
    });
    let mut tokens: Vec<_> = tokens.collect();
    tokens.sort_unstable();
    let written = (0..DOCUMENTS).flat_map(|d| (0..document_len(d)).map(move |n| 100 * d + n));
    assert!(tokens.into_iter().eq(written), "each token comes once");
    assert_eq!(all(planned(&store, 2), 2), whole);

    // Stopped on the one number of devices, in the first window and the second; resumed on the other.
    for (first, second) in [(1, 2), (2, 1)] {
        for stop in [3, 17] {
            let loader = planned(&store, first);
            let parts = split(&loader, first);
            let mut epochs: Vec<_> = parts.iter().map(|part| part.iter()).collect();
            assert_eq!(steps(&mut epochs, stop), whole[..stop]);
            let checkpoint = loader.checkpoint().unwrap();
            drop(epochs);
            let resumed = planned(&store, second).resume(&checkpoint).unwrap();
            assert_eq!(all(resumed, second), whole[stop..]);
        }
    }
}
