//! Memory allocated for values from another process: little for an announced length, and once for
//! the bytes that are there.
#![cfg(feature = "testing")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bytes::Bytes;
use datapipes::testing::{wire_bytes, wire_from};
use datapipes::{DType, Tensor, Wire};

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated. Freed bytes are not subtracted, so that bytes
    /// allocated twice count twice.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // A thread that is ending may have lost the counter.
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn asked<R>(run: impl FnOnce() -> R) -> (usize, R) {
    let before = ASKED.get();
    let result = run();
    (ASKED.get() - before, result)
}

/// Checks that bytes which announce a huge length are refused, with few bytes allocated.
fn refuses<T: Wire>(bytes: &[u8]) {
    let (asked, read) = asked(|| wire_from::<T>(bytes, &[]));
    assert!(read.is_err(), "{}", std::any::type_name::<T>());
    assert!(
        asked < 4096,
        "{asked} bytes for {}",
        std::any::type_name::<T>()
    );
}

#[test]
fn row_10_announced_lengths_take_no_memory() {
    // 2^32, and the largest number, in a varint of seven bits per byte.
    for number in [
        &[0x80, 0x80, 0x80, 0x80, 0x10][..],
        &[[0xff; 9].as_slice(), &[1]].concat(),
    ] {
        let bytes = [number, &[1; 20]].concat();
        refuses::<Vec<u8>>(&bytes);
        refuses::<Vec<[u64; 100]>>(&bytes);
        refuses::<Vec<Option<[u64; 100]>>>(&bytes);
        refuses::<VecDeque<String>>(&bytes);
        refuses::<String>(&bytes);
        refuses::<Bytes>(&bytes);
        refuses::<HashMap<u64, [u64; 100]>>(&bytes);
        refuses::<HashSet<()>>(&bytes);
        refuses::<BTreeMap<u8, u8>>(&bytes);
        refuses::<Tensor>(&[&[DType::F64 as u8][..], &bytes].concat());
        refuses::<Tensor>(&[&[DType::F64 as u8, 2, 2], &bytes[..]].concat());
        refuses::<datapipes::Error>(&[&[0, 0, 0, 0], &bytes[..]].concat());
        refuses::<datapipes::Origin>(&[&[3], &bytes[..]].concat());
    }
}

#[cfg(feature = "serde")]
#[test]
fn row_10_announced_lengths_of_serde_take_little_memory() {
    use datapipes::Serde;
    for marker in [0xdd, 0xdb, 0xc6, 0xdf] {
        let message = [marker, 0xff, 0xff, 0xff, 0xff, 1, 2];
        let bytes = [&(message.len() as u64).to_ne_bytes()[..], &message].concat();
        for read in [
            |bytes: &[u8]| wire_from::<Serde<Vec<u64>>>(bytes, &[]).is_ok(),
            |bytes: &[u8]| wire_from::<Serde<String>>(bytes, &[]).is_ok(),
            |bytes: &[u8]| wire_from::<Serde<BTreeMap<u64, Vec<u8>>>>(bytes, &[]).is_ok(),
            |bytes: &[u8]| wire_from::<Serde<HashMap<u64, u64>>>(bytes, &[]).is_ok(),
        ] {
            // Serde reserves at most a mebibyte for an announced length.
            let (asked, read) = asked(|| read(&bytes));
            assert!(!read && asked < 3 << 20, "{asked} bytes");
        }
    }
}

#[test]
fn what_is_there_is_allocated_once() {
    const LEN: usize = 1 << 20;
    let shared = Bytes::from(vec![0; LEN]);
    let large = std::slice::from_ref(&shared);
    let head = |value: &[u8]| value[..value.len() - LEN].to_vec();

    let bytes = head(&wire_bytes(&shared).unwrap());
    let (asked_bytes, back) = asked(|| wire_from::<Bytes>(&bytes, large).unwrap());
    assert_eq!((back.as_ptr(), back.len()), (shared.as_ptr(), LEN));
    let tensor = head(&wire_bytes(&Tensor::zeros(DType::U8, [LEN / 4, 4]).unwrap()).unwrap());
    let (asked_tensor, back) = asked(|| wire_from::<Tensor>(&tensor, large).unwrap());
    assert_eq!(back.as_bytes().as_ptr(), shared.as_ptr());
    assert!(
        asked_bytes + asked_tensor < 500,
        "{asked_bytes} and {asked_tensor}"
    );

    let numbers = head(&wire_bytes(&vec![0f32; LEN / 4]).unwrap());
    let (asked_numbers, _) = asked(|| wire_from::<Vec<f32>>(&numbers, large).unwrap());
    let text = head(&wire_bytes(&"a".repeat(LEN)).unwrap());
    let (asked_text, _) = asked(|| wire_from::<String>(&text, large).unwrap());
    for asked in [asked_numbers, asked_text] {
        assert!((LEN..LEN + 500).contains(&asked), "{asked}");
    }
}
