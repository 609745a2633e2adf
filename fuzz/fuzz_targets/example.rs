#![no_main]

use datapipes_io::formats::{Example, SequenceExample};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(example) = Example::parse(data.to_vec().into()) {
        let again = Example::parse(example.encode().into()).expect("what was written is read");
        // As text, since NaN is not equal to itself.
        assert_eq!(
            format!("{:?}", again.features().collect::<Vec<_>>()),
            format!("{:?}", example.features().collect::<Vec<_>>())
        );
    }
    let _ = SequenceExample::parse(data.to_vec().into());
});
