//! Decoding allocates nothing for an image once the memory of its thread is large enough.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;

use datapipes::{DType, Rng, Tensor};
use datapipes_image::{ImageRows, Normalize};

struct Counting;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Memory) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_picture_from_file_to_row_allocates_nothing() {
    let names = [
        "rgb444",
        "rgb422",
        "rgb420",
        "progressive",
        "restarts",
        "gray",
        "cmyk",
        "exif6",
        "adobe_rgb",
    ];
    let path = |name: &str| format!("{}/tests/data/{name}.jpg", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<Vec<u8>> = names
        .iter()
        .map(|name| std::fs::read(path(name)).expect("a file of ours"))
        .collect();
    for rows in [
        ImageRows::random_resized_crop(24)
            .random_hflip(0.5)
            .normalize(Normalize::IMAGENET),
        ImageRows::random_resized_crop(12)
            .random_hflip(0.5)
            .scaled(),
        ImageRows::resize_center_crop(20, 16, 16),
    ] {
        let dtype = if rows.clone().to_string().contains("f32") {
            DType::F32
        } else {
            DType::U8
        };
        let mut row = Tensor::zeros(dtype, rows.shape()).expect("a fine size");
        let mut pass = || {
            for (file, name) in files.iter().zip(names) {
                let mut rng = Rng::from_key([5; 4]);
                for _ in 0..20 {
                    let before = ALLOCATIONS.get();
                    rows.fill(file, &mut rng, &mut row).expect("a fine picture");
                    LAST.set((name, ALLOCATIONS.get() - before));
                    TOTAL.set(TOTAL.get() + ALLOCATIONS.get() - before);
                }
            }
        };
        pass();
        TOTAL.set(0);
        pass();
        assert_eq!(TOTAL.get(), 0, "{rows}: the last was {:?}", LAST.get());
    }
}

thread_local! {
    static LAST: Cell<(&'static str, u64)> = const { Cell::new(("", 0)) };
    static TOTAL: Cell<u64> = const { Cell::new(0) };
}
