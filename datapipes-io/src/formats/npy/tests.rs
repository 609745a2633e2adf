//! Files written by NumPy, and errors in arrays.

use bytes::Bytes;
use datapipes::{DType, ErrorKind, Tensor};

use super::*;
use crate::testing::{check_format, gzip, read_all};

const F4: &[u8] = include_bytes!("../../../tests/data/numpy-f4.npy");

fn file(text: &str, values: &[u8]) -> Vec<u8> {
    let len = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &len[..], text.as_bytes(), values].concat()
}

fn described(descr: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    file(
        &format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"),
        values,
    )
}

#[test]
fn an_aligned_native_array_is_a_view() {
    let data = Bytes::from_owner(
        super::super::aligned::Aligned::copy(F4)
            .unwrap()
            .into_bytes(),
    );
    let array = Array::parse(data.clone()).unwrap();
    assert_eq!(
        (array.shape(), array.len(), array.fortran_order()),
        (&[2, 3][..], 6, false)
    );
    assert_eq!(array.data().as_ptr(), data[128..].as_ptr());
    let tensor = array.tensor().unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[2, 3][..]));
    if cfg!(target_endian = "little") {
        assert_eq!(tensor.as_bytes().as_ptr(), data[128..].as_ptr());
        assert!(matches!(
            array.values_le().unwrap(),
            std::borrow::Cow::Borrowed(_)
        ));
    }
    assert_eq!(
        tensor.as_slice::<f32>().unwrap(),
        [-2.75, 6.5, 15.75, 25.0, 34.25, 43.5]
    );
    assert_eq!(format!("{array:?}"), "Array(<f4 [2, 3])");
}

#[test]
fn an_array_that_is_not_aligned_is_copied_once() {
    let shifted = Bytes::from([b"xyz", F4].concat()).slice(3..);
    let (shifted, aligned) = (
        Array::parse(shifted).unwrap(),
        Array::parse(F4.into()).unwrap(),
    );
    assert_eq!(shifted, aligned);
    assert_eq!(shifted.tensor().unwrap(), aligned.tensor().unwrap());
    // Shared like a view, so that a clone is cheap.
    assert!(shifted.tensor().unwrap().is_shared());
}

#[test]
fn row_99_cut_or_with_more_behind() {
    let kind = |data: &[u8]| {
        Array::parse(Bytes::copy_from_slice(data))
            .unwrap_err()
            .kind()
    };
    for cut in 0..F4.len() {
        assert_eq!(kind(&F4[..cut]), ErrorKind::Truncated, "{cut}");
    }
    for more in [&b"\0"[..], F4] {
        assert_eq!(kind(&[F4, more].concat()), ErrorKind::Corrupt);
    }
    let error = Array::parse(F4[..140].into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "truncated: 12 of 24 bytes of values, which begin at byte 128"
    );
    // A shape that fits the address space but not the file allocates nothing.
    let huge = described("<f8", "(1099511627776, 1024)", &[0; 64]);
    assert_eq!(kind(&huge), ErrorKind::Truncated);
    assert_eq!(
        kind(&described("<f8", "(2305843009213693952,)", &[0; 64])),
        ErrorKind::Corrupt
    );
}

#[test]
fn row_99_every_flipped_bit_of_a_header_is_seen_or_harmless() {
    let whole = Array::parse(F4.into()).unwrap();
    for at in 0..128 * 8 {
        let mut data = F4.to_vec();
        data[at / 8] ^= 1 << (at % 8);
        if let Ok(array) = Array::parse(data.into()) {
            // The values are the same; the type may be another of the same size.
            assert_eq!(array.data(), whole.data());
            assert_eq!(array.len() * array.dtype().size(), 24);
        }
    }
}

#[test]
fn row_99_bytes_that_are_no_bool() {
    let array = Array::parse(described("|b1", "(3,)", &[0, 1, 2]).into()).unwrap();
    assert_eq!(array.tensor().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(*array.values_le().unwrap(), [0, 1, 2]);
}

#[test]
fn complex_numbers_are_two_floats() {
    let values: Vec<u8> = [1.5f32, -2.0]
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect();
    let array = Array::parse(described(">c8", "(1,)", &values).into()).unwrap();
    let tensor = array.tensor().unwrap();
    assert_eq!(
        (tensor.shape(), tensor.as_slice::<f32>().unwrap()),
        (&[1, 2][..], &[1.5, -2.0][..])
    );
}

#[test]
fn tensors_are_written_and_read() {
    for tensor in [
        Tensor::from_vec(vec![1u8, 2, 3], [3]).unwrap(),
        Tensor::from_vec(vec![true, false], [2, 1])
            .unwrap()
            .into_shared(),
        Tensor::from_vec(vec![i64::MIN, 5], [1, 2]).unwrap(),
        Tensor::scalar(0.25f64),
        Tensor::zeros(DType::F16, [0, 4]).unwrap(),
    ] {
        let array = Array::from_tensor(&tensor).unwrap();
        let mut written = Vec::new();
        array.write_npy(&mut written).unwrap();
        assert_eq!(written, array.to_npy());
        assert_eq!(
            Array::parse(written.into()).unwrap().tensor().unwrap(),
            tensor
        );
    }
    let shared = Tensor::from_vec(vec![1u32, 2], [2]).unwrap().into_shared();
    let array = Array::from_tensor(&shared).unwrap();
    assert_eq!(array.data().as_ptr(), shared.as_bytes().as_ptr());
    let bf16 = Tensor::zeros(DType::BF16, [1]).unwrap();
    assert_eq!(
        Array::from_tensor(&bf16).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(Array::parse(F4.into()).unwrap().to_npy(), F4);
}

#[test]
fn a_compressed_file_is_found_by_its_first_bytes() {
    let gzip = gzip(F4);
    let read = read_all(Npy::new(), gzip.clone());
    assert_eq!(*read[0].as_ref().unwrap(), Array::parse(F4.into()).unwrap());
    let read = read_all(Npy::new().max_expansion(100, 1000), gzip);
    assert_eq!(read[0].as_ref().unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn survives_what_may_be_in_a_file() {
    assert_eq!(check_format(Npy::new, F4), 1);
    assert_eq!(
        check_format(Npy::new, &described(">i2", "(2, 1, 3)", &[7; 12])),
        1
    );
}

#[cfg(feature = "zip")]
mod archives {
    use std::io::Cursor;

    use datapipes::Graph;

    use super::*;
    use crate::FileGraphExt;
    use crate::formats::Unzip;
    use crate::formats::compression::tests::refused;

    const FILES: &[u8] = include_bytes!("../../../tests/data/numpy-files.zip");
    const TABLE: &str = include_str!("../../../tests/data/numpy-files.tsv");
    const SAVEZ: &[u8] = include_bytes!("../../../tests/data/numpy-savez.npz");
    const COMPRESSED: &[u8] = include_bytes!("../../../tests/data/numpy-savez-compressed.npz");
    const OBJECT: &[u8] = include_bytes!("../../../tests/data/numpy-savez-object.npz");

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn row_98_what_an_item_inflates_to_is_limited_for_the_loader() {
        let zeros = Array::from_tensor(&Tensor::zeros(DType::U8, [3 << 20]).unwrap()).unwrap();
        let mut npz = NpzWriter::new(Cursor::new(Vec::new())).deflated();
        npz.add("a", &zeros).unwrap();
        npz.add("b", &zeros).unwrap();
        let file = File::new("a.npz", npz.finish().unwrap().into_inner());
        let files = || Graph::from_vec(vec![file.clone()]);
        let allows = |most| {
            let arrays = refused(files().read_as(Npz::new()), most).is_empty();
            let members = refused(files().read_as(Npz::new().members()), most).is_empty();
            // All arrays are one item.
            let map = refused(files().read_as(Npz::new().map()), most).is_empty();
            [arrays, members, map]
        };
        assert_eq!(allows(2 << 20), [false, false, false]);
        assert_eq!(allows(4 << 20), [true, true, false]);
        assert_eq!(allows(8 << 20), [true, true, true]);
    }

    #[test]
    fn row_99_all_types_orders_and_versions_of_numpy() {
        let files = read_all(Unzip::new(), FILES);
        assert_eq!(files.len(), TABLE.lines().count());
        let mut refused = 0;
        for (file, line) in files.into_iter().zip(TABLE.lines()) {
            let (file, fields) = (file.unwrap(), line.split('\t').collect::<Vec<_>>());
            assert_eq!(&*file.name, fields[0]);
            let read = Array::parse(file.data.clone());
            let [name, descr, dtype, shape, fortran, values] = fields[..] else {
                let error = read.expect_err(fields[0]);
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert_eq!(
                    fields[0] == "object.npy",
                    error.to_string().contains("a pickle"),
                    "{error}"
                );
                refused += 1;
                continue;
            };
            let array = read.expect(name);
            let shape: Vec<usize> = shape
                .split_whitespace()
                .map(|axis| axis.parse().unwrap())
                .collect();
            assert_eq!(
                (array.dtype().to_string(), array.dtype().name()),
                (descr.to_owned(), dtype)
            );
            assert_eq!(
                (array.shape(), array.fortran_order()),
                (&shape[..], fortran == "True")
            );
            assert_eq!(hex(&array.values_le().unwrap()), values, "{name}");
            let tensor = array.tensor().unwrap();
            assert_eq!(
                tensor.len(),
                array.len() * array.dtype().size() / array.dtype().unit()
            );
            if cfg!(target_endian = "little") {
                assert_eq!(hex(tensor.as_bytes()), values, "{name}");
            }
            // The output equals NumPy's, except for the versions that were requested.
            if !name.starts_with("version") || name == "version1.npy" {
                assert_eq!(array.to_npy(), file.data, "{name}");
            }
            for cut in 0..file.data.len().min(400) {
                let error = Array::parse(file.data.slice(..cut)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Truncated, "{name} cut at {cut}");
            }
        }
        assert_eq!(refused, 10);
    }

    #[test]
    fn numpy_savez_stored_and_compressed() {
        let expected = [
            "images",
            "weights",
            "turned",
            "label",
            "none",
            "ünïcode/name.x",
        ];
        let mut both = [SAVEZ, COMPRESSED].map(|file| {
            let map = read_all(Npz::new().map(), file).remove(0).unwrap();
            assert_eq!(
                map.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                expected
            );
            let each: Vec<_> = read_all(Npz::new(), file)
                .into_iter()
                .map(Result::unwrap)
                .collect();
            let members = read_all(Npz::new().members(), file)
                .into_iter()
                .map(Result::unwrap);
            let decoded: Vec<_> = members.map(|member| member.decode().unwrap()).collect();
            assert_eq!(
                (&each, &decoded),
                (&map.iter().map(|(_, array)| array.clone()).collect(), &each)
            );
            map
        });
        assert_eq!(both[0], both[1]);
        let map = &mut both[1];
        assert_eq!(map.get("images").unwrap().shape(), [4, 5, 3]);
        assert_eq!(
            map.get("label")
                .unwrap()
                .tensor()
                .unwrap()
                .as_slice::<i64>()
                .unwrap(),
            [-11]
        );
        let turned = map.take("turned").unwrap();
        assert!(turned.fortran_order() && turned.dtype().is_big_endian());
        let numbers = turned.tensor().unwrap().into_vec::<f64>().unwrap();
        assert_eq!(
            numbers,
            (0..12).map(|n| f64::from(n * 37 - 11)).collect::<Vec<_>>()
        );
        let error = map.get("turned").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error
                .to_string()
                .contains("no array \"turned\"; there are [\"images\""),
            "{error}"
        );
    }

    #[test]
    fn stored_arrays_are_slices_where_they_are_aligned_and_the_others_are() {
        // A byte more or less before the archive shifts all its content.
        for shift in 0..8 {
            let data = Bytes::from([&vec![0; shift], SAVEZ].concat()).slice(shift..);
            let inside = |part: &[u8]| data.as_ptr_range().contains(&part.as_ptr());
            let unchecked = read_all(Npz::new().unchecked(), data.clone())
                .remove(1)
                .unwrap();
            assert!(inside(unchecked.data()));
            let is_aligned = unchecked.data().as_ptr().align_offset(8) == 0;
            let stored = read_all(Npz::new(), data.clone()).remove(1).unwrap();
            assert_eq!(inside(stored.data()), is_aligned);
            assert_eq!(stored, unchecked);
            let inflated = read_all(Npz::new(), COMPRESSED).remove(1).unwrap();
            for array in [stored, inflated] {
                if cfg!(target_endian = "little") {
                    assert_eq!(
                        array.tensor().unwrap().as_bytes().as_ptr(),
                        array.data().as_ptr()
                    );
                }
            }
        }
    }

    #[test]
    fn row_99_objects_in_archives_are_refused_and_the_others_follow() {
        let read = read_all(Npz::new(), OBJECT);
        assert!(read[0].is_ok());
        let error = read[1].as_ref().unwrap_err().to_string();
        assert!(
            error.contains("0:0/bad: unsupported: descr '|O': objects are refused"),
            "{error}"
        );
        let error = read_all(Npz::new().map(), OBJECT).remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("array \"bad\": descr '|O'"),
            "{error}"
        );
    }

    #[test]
    fn members_that_are_no_arrays_are_named() {
        let mut zip = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["a.npy", "read.me", "b.npy"] {
            zip.start_file(name, ::zip::write::SimpleFileOptions::default())
                .unwrap();
            std::io::Write::write_all(&mut zip, F4).unwrap();
        }
        let read = read_all(Npz::new(), zip.finish().unwrap().into_inner());
        assert_eq!(
            read.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true]
        );
        let error = read[1].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("member \"read.me\""), "{error}");
    }

    #[test]
    fn what_is_written_is_read_and_aligned() {
        let map = read_all(Npz::new().map(), SAVEZ).remove(0).unwrap();
        for deflated in [false, true] {
            let mut npz = NpzWriter::new(Cursor::new(Vec::new()));
            if deflated {
                npz = npz.deflated();
            }
            for (name, array) in map.iter() {
                npz.add(name, array).unwrap();
            }
            assert_eq!(
                npz.add("label", map.get("label").unwrap())
                    .unwrap_err()
                    .kind(),
                ErrorKind::Unsupported
            );
            let file = super::super::super::aligned::Aligned::copy(npz.finish().unwrap().get_ref())
                .unwrap();
            let read = read_all(Npz::new().map(), file.into_bytes())
                .remove(0)
                .unwrap();
            assert_eq!(read, map);
            for (name, array) in read {
                assert!(
                    array.is_empty() || array.data().as_ptr().addr().is_multiple_of(64),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_an_archive_is_seen_or_harmless() {
        let whole = read_all(Npz::new().map(), COMPRESSED).remove(0).unwrap();
        for file in [SAVEZ, COMPRESSED] {
            for at in datapipes::testing::some_of(0..file.len()) {
                let mut data = file.to_vec();
                data[at] ^= 1 << (at % 8);
                if let Ok(map) = read_all(Npz::new().map(), data).remove(0) {
                    assert!(map == whole, "byte {at}");
                }
            }
            for cut in datapipes::testing::some_of(0..file.len()) {
                assert!(
                    read_all(Npz::new().map(), file[..cut].to_vec())
                        .remove(0)
                        .is_err(),
                    "cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn survives_what_may_be_in_an_archive() {
        assert_eq!(check_format(Npz::new, SAVEZ), 6);
        assert_eq!(check_format(|| Npz::new().map(), COMPRESSED), 1);
    }
}
