//! Any bytes as a message of another process: the result is a value or an error. A value is written
//! and read again unchanged.
#![no_main]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use datapipes::testing::{sent, wire_bytes, wire_chunk, wire_from};
use datapipes::{DType, Error, Origin, Serde, Tensor, TypedVec, Wire};
use datapipes_image::{Boxes, Image, Keypoints, Mask};
use datapipes_io::formats::{Array, Decoded, Example, ImageRecord, MdsSample};
use datapipes_io::{File, FileRef, Sample};

/// A type that contains itself.
#[derive(Wire)]
enum Tree {
    Leaf(u8),
    Node(Vec<Tree>),
    Both(Box<(Tree, Tree)>),
}

#[derive(Wire)]
#[allow(dead_code, reason = "it only travels")]
struct Everything {
    numbers: (u8, i16, u32, u64, i128, usize, f32, f64),
    texts: (char, String, Arc<str>, PathBuf),
    slices: (Vec<u16>, Bytes, Box<[bool]>, VecDeque<[u8; 3]>),
    maps: (BTreeMap<String, Vec<u8>>, BTreeSet<char>),
    time: Option<Duration>,
    result: Result<[(); 2], Error>,
    tensors: (DType, TypedVec, Tensor),
}

type Message = BTreeMap<String, (Option<u32>, Vec<f64>, Vec<Result<i8, String>>)>;

/// The large slices that a message may name: zeros, and ones, by their lengths.
static LARGE: LazyLock<[Bytes; 2]> =
    LazyLock::new(|| [vec![0; 64 << 10].into(), vec![1; 65 << 10].into()]);

fn read<T: Wire>(data: &[u8]) {
    if let Ok(value) = wire_from::<T>(data, &*LARGE) {
        let once = wire_bytes(&value).expect("what was read can be written");
        let again = sent(&value).expect("what was written can be read");
        assert!(wire_bytes(&again).expect("as before") == once);
    }
}

fn chunk<T: Wire>(data: &[u8]) {
    if let Ok((items, once)) = wire_chunk::<T>(data, &*LARGE) {
        for item in items {
            match item {
                Ok(item) => drop((item.origin().key(), item.origin().to_string())),
                Err(error) => drop(error.to_string()),
            }
        }
        // Large slices come after the others.
        if once.len() < 64 << 10 {
            let (_, again) = wire_chunk::<T>(&once, &[]).expect("what was written can be read");
            assert!(again == once);
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    match kind % 24 {
        0 => read::<Everything>(data),
        1 => read::<Tree>(data),
        2 => read::<Tensor>(data),
        3 => read::<TypedVec>(data),
        4 => read::<Vec<Option<Tensor>>>(data),
        5 => read::<Error>(data),
        6 => read::<Origin>(data),
        7 => chunk::<u64>(data),
        8 => chunk::<(String, Tensor)>(data),
        9 => chunk::<Serde<Message>>(data),
        10 => read::<Serde<Message>>(data),
        11 => drop(wire_from::<HashMap<Vec<u8>, Bytes>>(data, &*LARGE)),
        12 => read::<(Vec<f32>, Vec<bool>, Vec<[u64; 2]>)>(data),
        13 => read::<File>(data),
        14 => read::<FileRef>(data),
        15 => read::<Sample>(data),
        16 => read::<Decoded>(data),
        17 => read::<Array>(data),
        18 => read::<Example>(data),
        19 => read::<(ImageRecord, MdsSample)>(data),
        20 => read::<Image>(data),
        21 => read::<(Boxes, Keypoints)>(data),
        22 => read::<Mask<u16>>(data),
        _ => chunk::<Sample>(data),
    }
});
