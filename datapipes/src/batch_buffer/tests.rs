use super::*;
use crate::Tensor;

fn rows(batch: usize) -> (Arc<Pool>, Arc<Rows>) {
    let pool = Arc::new(Pool::new(1 << 20));
    (pool.clone(), Arc::new(Rows::new(pool, batch)))
}

/// Makes a row of one number twice.
fn row(rows: &Rows, place: u64) -> Tensor {
    let mut part = rows.take::<f32>(place, 2).unwrap();
    part.slice_mut::<f32>().unwrap().fill(place as f32);
    Tensor::pooled(part, vec![2])
}

fn address(tensor: &Tensor) -> *const u8 {
    tensor.as_bytes().as_ptr()
}

#[test]
fn rows_side_by_side_are_a_batch() {
    let (_, rows) = rows(3);
    // Filled in any order.
    let mut filled = [2, 0, 1].map(|place| row(&rows, place));
    filled.sort_by(|a, b| {
        a.as_slice::<f32>().unwrap()[0].total_cmp(&b.as_slice::<f32>().unwrap()[0])
    });
    let first = address(&filled[0]);
    let batch = Tensor::stack_rows(filled.into()).unwrap();
    assert_eq!((batch.shape(), address(&batch)), (&[3, 2][..], first));
    assert!(batch.is_pooled() && !batch.is_shared());
    assert_eq!(
        batch.as_slice::<f32>().unwrap(),
        [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    );
    // Its vector moves out, and so do its bytes.
    let vector = batch.into_vec::<f32>().unwrap();
    assert_eq!((vector.as_ptr().cast(), vector.len()), (first, 6));
}

#[test]
fn a_batch_that_is_not_full_is_shorter() {
    let (_, rows) = rows(4);
    let batch = Tensor::stack_rows(vec![row(&rows, 4), row(&rows, 5)]).unwrap();
    assert_eq!(batch.as_slice::<f32>().unwrap(), [4.0, 4.0, 5.0, 5.0]);
    let first = address(&batch);
    let vector = batch.reshape([4]).unwrap().into_vec::<f32>().unwrap();
    assert_eq!((vector.as_ptr().cast(), vector.len()), (first, 4));
}

#[test]
fn memory_returns_and_is_used_again() {
    let (pool, rows) = rows(2);
    let batch = Tensor::stack_rows(vec![row(&rows, 0), row(&rows, 1)]).unwrap();
    let first = address(&batch);
    let shared = batch.into_shared();
    assert_eq!(address(&shared), first);
    let lent = shared.shared().unwrap().slice(8..);
    drop(shared);
    assert!(
        pool.kept.lock().unwrap().is_empty(),
        "somebody still has a part of it"
    );
    drop(lent);
    assert_eq!(pool.kept.lock().unwrap().len(), 1);
    let again = Tensor::stack_rows(vec![row(&rows, 6), row(&rows, 7)]).unwrap();
    assert_eq!(address(&again), first);
    drop(again);
    // Memory that moved out does not come back.
    let batch = Tensor::stack_rows(vec![row(&rows, 8), row(&rows, 9)]).unwrap();
    drop(batch.into_vec::<f32>().unwrap());
    let kept = pool.kept.lock().unwrap().len();
    // A pool that is gone takes nothing back.
    let late = row(&rows, 10);
    drop((pool, rows));
    assert_eq!(
        (kept, late.as_slice::<f32>().unwrap()),
        (0, &[10.0, 10.0][..])
    );
}

#[test]
fn what_is_not_side_by_side_is_copied_into_memory_of_the_pool() {
    let (_, rows) = rows(3);
    for places in [vec![1, 0, 2], vec![3, 5], vec![8, 9]] {
        let parts: Vec<Tensor> = places.iter().map(|&place| row(&rows, place)).collect();
        let addresses: Vec<_> = parts.iter().map(address).collect();
        let batch = Tensor::stack_rows(parts).unwrap();
        assert!(
            !addresses.contains(&address(&batch)) && batch.is_pooled(),
            "{places:?}"
        );
        let expected: Vec<f32> = places.iter().flat_map(|&place| [place as f32; 2]).collect();
        assert_eq!(batch.as_slice::<f32>().unwrap(), expected);
    }
    let mixed = vec![
        row(&rows, 12),
        Tensor::from_vec(vec![7f32, 7.0], [2]).unwrap(),
    ];
    assert_eq!(
        Tensor::stack_rows(mixed)
            .unwrap()
            .as_slice::<f32>()
            .unwrap(),
        [12.0, 12.0, 7.0, 7.0]
    );
    let ragged = vec![row(&rows, 15), row(&rows, 16).reshape([1, 2]).unwrap()];
    assert!(Tensor::stack_rows(ragged).is_err());
}

#[test]
fn a_row_is_handed_out_once_and_only_if_it_fits() {
    let (_, rows) = rows(3);
    let held = row(&rows, 1);
    assert!(rows.take::<f32>(1, 2).is_none());
    assert!(rows.take::<f32>(2, 3).is_none(), "another length");
    assert!(rows.take::<u8>(2, 2).is_none(), "another type");
    assert!(rows.take::<u8>(3, usize::MAX).is_none(), "more than can be");
    assert!(rows.take::<u8>(3, 0).is_none());
    assert!(rows.take::<f32>(2, 2).is_some());
    let copy = held.clone();
    assert!(!copy.is_pooled() && copy == held);
    drop(held);
    // The slab died with its last row; there is a new one.
    assert!(rows.take::<u8>(1, 5).is_some());
}

#[test]
fn a_batch_that_begins_off_a_slab_sets_the_next_ones_right() {
    let (_, rows) = rows(3);
    // Item 1 failed above, so that no row was asked for: all others are one too far.
    let batch = |numbers: [u64; 3]| {
        let parts: Vec<Tensor> = numbers.iter().map(|&number| row(&rows, number)).collect();
        let first = address(&parts[0]);
        address(&Tensor::stack_rows(parts).unwrap()) == first
    };
    assert!(!batch([0, 2, 3]), "with a gap");
    assert!(
        !batch([4, 5, 6]),
        "over two slabs; tells that it is off by one"
    );
    // Batches that were on their way at that time.
    assert!(batch([7, 8, 9]) && batch([10, 11, 12]));
}

#[test]
fn a_small_part_does_not_keep_the_memory_of_all() {
    let (pool, rows) = rows(100);
    let vector = row(&rows, 0).into_vec::<f32>().unwrap();
    assert!(vector.capacity() < 10);
    assert_eq!(pool.kept.lock().unwrap().len(), 1);
    // No more is kept than was allowed.
    let tiny = Arc::new(Pool::new(100));
    let rows = Rows::new(tiny.clone(), 100);
    drop(row(&rows, 0));
    assert!(tiny.kept.lock().unwrap().is_empty());
}

#[test]
fn writing_is_seen_by_nobody_else() {
    let (_, rows) = rows(2);
    let (mut a, b) = (row(&rows, 0), row(&rows, 1));
    a.as_mut_slice::<f32>().unwrap()[1] = 9.0;
    assert!(a.as_mut_slice::<u8>().is_err());
    assert_eq!(
        (a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap()),
        (&[0.0, 9.0][..], &[1.0, 1.0][..])
    );
    // A row that is not the first of its slab is copied out.
    drop(a);
    assert_eq!(b.into_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
fn large_zeros_use_the_memory_of_those_before() {
    let pool = Arc::new(Pool::by_use(10 << 20));
    let mut first = pool.zeros::<f32>(100_000);
    first.slice_mut::<f32>().unwrap().fill(7.0);
    let place = first.as_bytes().as_ptr();
    drop(first);
    let second = pool.zeros::<f32>(99_000);
    assert_eq!(second.as_bytes().as_ptr(), place);
    assert_eq!(second.slice::<f32>().unwrap(), vec![0.0; 99_000]);
    // Another type, and memory that was moved out, are no concern of it.
    assert_eq!(pool.zeros::<u8>(400_000).as_bytes(), vec![0; 400_000]);
    assert_eq!(second.into_typed().len(), 99_000);
    assert_eq!(pool.lent.load(Ordering::Relaxed), 0);
}

#[test]
fn values_that_are_overwritten_are_not_cleared_before() {
    let pool = Arc::new(Pool::by_use(10 << 20));
    let mut first = pool.old::<f32>(100_000);
    assert_eq!(first.slice::<f32>().unwrap(), vec![0.0; 100_000]);
    first.slice_mut::<f32>().unwrap().fill(7.0);
    drop(first);
    assert_eq!(
        pool.old::<f32>(99_000).slice::<f32>().unwrap(),
        vec![7.0; 99_000]
    );
}

#[test]
fn a_large_batch_that_is_not_filled_in_place_returns_its_memory() {
    let rows: Vec<Vec<f32>> = (0..4).map(|n| vec![n as f32; 20_000]).collect();
    let tensors = rows
        .iter()
        .map(|row| Tensor::from_vec(row.clone(), [20_000]));
    let tensors: Vec<Tensor> = tensors.collect::<crate::Result<_>>().unwrap();
    for batch in [
        Tensor::stack(&tensors).unwrap(),
        Tensor::stack_rows(tensors).unwrap(),
        crate::Collate::collate(rows.clone()).unwrap(),
    ] {
        assert!(batch.is_pooled());
        assert_eq!(batch.shape(), [4, 20_000]);
        assert_eq!(batch.as_slice::<f32>().unwrap(), rows.concat());
    }
    let small: Tensor = crate::Collate::collate(vec![vec![1u8, 2], vec![3, 4]]).unwrap();
    assert!(!small.is_pooled());
}

#[test]
fn little_more_is_kept_than_is_in_use() {
    let pool = Arc::new(Pool::by_use(3_000_000));
    let kept = || lock(&pool.kept).len();
    let mut parts: Vec<SlabPart> = (0..10).map(|_| pool.zeros::<u8>(1_000_000)).collect();
    parts.truncate(6);
    assert_eq!(kept(), 3, "as many bytes as may be kept");
    parts.truncate(2);
    assert_eq!(kept(), 2, "as many as are in use");
    parts.clear();
    assert_eq!(kept(), 1);
}

#[test]
fn a_large_tensor_of_zeros_is_one_like_any_other() {
    let mut tensor = Tensor::zeros(DType::F32, [100, 1000]).unwrap();
    assert!(tensor.is_pooled());
    assert!(!Tensor::zeros(DType::F32, [100]).unwrap().is_pooled());
    tensor.as_mut_slice::<f32>().unwrap()[1] = 3.0;
    let copy = tensor.clone();
    assert_eq!((copy.is_pooled(), &copy), (false, &tensor));
    let stacked = Tensor::stack(&[tensor.clone(), tensor.clone()]).unwrap();
    assert_eq!(stacked.row(1).unwrap(), tensor);
    assert_eq!(
        tensor
            .clone()
            .into_shared()
            .reshape([100_000])
            .unwrap()
            .as_slice::<f32>()
            .unwrap()[1],
        3.0
    );
    assert_eq!(tensor.into_vec::<f32>().unwrap()[1], 3.0);
}
