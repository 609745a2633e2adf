//! Any bytes as a NumPy array. An array that is read is also put in order and written.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for array in datapipes_io::testing::read_all(datapipes_io::formats::Npy::new(), data.to_vec())
        .into_iter()
        .flatten()
    {
        let read = datapipes_io::formats::Array::parse(array.to_npy().into())
            .expect("it was written here");
        assert!(
            read == array && read.values_le().expect("it is small").len() == array.data().len()
        );
        drop(array.tensor());
    }
});
