//! Any bytes as COCO annotations, and their masks.
#![no_main]

use datapipes_io::datasets::coco::Annotations;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(read) = Annotations::parse(data) else {
        return;
    };
    let annotations = read
        .pictures
        .iter()
        .flat_map(|picture| &picture.annotations);
    for outline in annotations.filter_map(|annotation| annotation.segmentation.as_ref()) {
        if let Some(rle) = outline.rle() {
            drop(rle.mask_to(1 << 20));
        }
    }
});
