//! Every implementation makes the round trip, and survives damage.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::BuildHasherDefault;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use half::{bf16, f16};
use proptest::prelude::*;

use super::{PAYLOAD, Parcel, Wire, Writer};
use crate::{DType, Element, Error, ErrorKind, Result, Tensor, TypedVec};

fn parcel<T: Wire>(value: &T) -> Parcel {
    let mut writer = Writer::new();
    value.encode(&mut writer).unwrap();
    Parcel::of(writer)
}

/// Returns the value read back; nothing is left over, and every value takes a byte.
fn sent<T: Wire>(value: &T) -> T {
    let parcel = parcel(value);
    assert!(!parcel.head.is_empty());
    let mut reader = parcel.reader();
    let back = T::decode(&mut reader).unwrap();
    reader.end().unwrap();
    back
}

fn check<T: Wire + PartialEq + Debug>(value: T) {
    assert_eq!(sent(&value), value);
    let many = vec![value];
    assert_eq!(sent(&many), many);
    damage(&many[0]);
}

/// Checks that each cut is an error, and that each flipped bit gives a value that can be sent, or
/// an error.
fn damage<T: Wire>(value: &T) {
    let whole = parcel(value);
    let Parcel { head, payloads } = &whole;
    if head.len() > 300 {
        return;
    }
    let read = |head: &[u8]| T::decode(&mut super::Reader::new(head, payloads));
    for len in 0..head.len() {
        assert_eq!(
            read(&head[..len]).err().map(|error| error.kind()),
            Some(ErrorKind::Protocol),
            "{len}"
        );
    }
    for at in 0..head.len() {
        for bit in 0..8 {
            let mut bytes = head.to_vec();
            bytes[at] ^= 1 << bit;
            match read(&bytes) {
                Ok(other) => drop(sent(&other)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
            }
        }
    }
}

#[test]
fn numbers_at_their_ends() {
    macro_rules! ends {
        ($($type:ty)*) => {$(
            check(<$type>::MIN);
            check(<$type>::MAX);
            check(vec![<$type>::MAX; 3]);
            check([<$type>::MIN; 4]);
        )*};
    }
    ends!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f16 bf16 f32 f64 char);
    check(vec![true, false]);
    check(Vec::<f64>::new());
    assert_eq!(sent(&f32::from_bits(0x7fc0_1234)).to_bits(), 0x7fc0_1234);
}

#[test]
fn single_values() {
    check(());
    check(PhantomData::<u8>);
    check("ü".to_owned());
    check(Box::<str>::from("b"));
    check(Arc::<str>::from(""));
    check(PathBuf::from("a/b"));
    check(Duration::new(u64::MAX, 999_999_999));
    check(ErrorKind::Crashed);
    check(3u8..7);
    check(Some(Some(1u8)));
    check(Some(None::<()>));
    check(Result::<u8, String>::Err("no".into()));
    check(Box::new(Arc::new(5i8)));
    check(Bytes::from_static(b"bytes"));
    let error = sent(&Result::<u8>::Err(Error::limit("much").at(&"node".into())));
    assert_eq!(error.unwrap_err().to_string(), "node: limit reached: much");
}

#[cfg(unix)]
#[test]
fn paths_that_are_not_utf8() {
    use std::os::unix::ffi::OsStringExt;
    check(PathBuf::from(std::ffi::OsString::from_vec(vec![
        b'a', 0xff, 0,
    ])));
    check(std::ffi::OsString::from_vec(vec![0xfe]));
}

#[test]
fn collections() {
    check(vec![vec!["a".to_owned()], vec![]]);
    let mut deque = VecDeque::from([2u16, 3]);
    deque.push_front(1);
    check(deque);
    check(vec![1u8, 2].into_boxed_slice());
    check(Arc::<[String]>::from(["x".to_owned()]));
    check([Some(1u8), None]);
    check([[1u16, 2], [3, 4]]);
    check([(); 3]);
    check([0u8; 0]);
    check(vec![[0u32; 0]; 5]);
    check((1u8,));
    check((1u8, 2u16, 3u32, 4u64, 5i8, 6i16, "7".to_owned(), [8u8]));
    check(BTreeMap::from([(1u8, vec![1u8]), (2, vec![])]));
    check(BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    check(HashMap::<u8, u8, BuildHasherDefault<DefaultHasher>>::from_iter([(1, 2), (3, 4)]));
    assert_eq!(
        sent(&HashMap::from([(1, 2), (3, 4)])),
        HashMap::from([(3, 4), (1, 2)])
    );
    check(HashSet::<u8, BuildHasherDefault<DefaultHasher>>::from_iter(
        [1, 2],
    ));
}

#[test]
fn a_key_that_comes_twice_is_damage() {
    let twice = vec![(1u8, 2u8), (1, 3)];
    let error = BTreeMap::<u8, u8>::decode(&mut parcel(&twice).reader()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(HashSet::<u8>::decode(&mut parcel(&vec![7u8, 7]).reader()).is_err());
}

#[test]
fn tensors_of_every_type() {
    fn every<T: Element>(value: T) {
        for shape in [&[2, 1][..], &[0, 3], &[2, 0, 7]] {
            let len = shape.iter().product();
            let tensor = Tensor::from_vec(vec![value; len], shape).unwrap();
            check(tensor.clone());
            check(tensor.clone().into_shared());
            check(tensor.into_typed());
        }
        check(Tensor::scalar(value));
        check(T::DTYPE);
    }
    every(1u8);
    every(-1i8);
    every(1u16);
    every(-1i16);
    every(1u32);
    every(-1i32);
    every(1u64);
    every(-1i64);
    every(f16::ONE);
    every(bf16::ONE);
    every(1f32);
    every(1f64);
    every(true);
    assert_eq!(DType::ALL.len(), 13);
}

#[test]
fn large_slices_are_borrowed_and_shared() {
    let bytes = Bytes::from(vec![7; PAYLOAD]);
    let tensor = Tensor::from_vec(vec![1.5f32; PAYLOAD / 4], [PAYLOAD / 8, 2]).unwrap();
    let value = (
        bytes,
        tensor,
        vec![3u64; PAYLOAD / 8],
        "x".repeat(PAYLOAD),
        vec![[0u8; 2]; PAYLOAD],
    );
    let mut writer = Writer::new();
    value.encode(&mut writer).unwrap();
    let (head, payloads) = writer.into_parts();
    assert!(head.len() < 100, "{}", head.len());
    let there = [
        value.0.as_ptr(),
        value.1.as_bytes().as_ptr(),
        value.2.as_ptr().cast(),
        value.3.as_ptr(),
    ];
    assert_eq!([0, 1, 2, 3].map(|place| payloads[place].as_ptr()), there);
    assert_eq!(payloads.len(), 5);

    let payloads: Vec<Bytes> = payloads.into_iter().map(aligned).collect();
    let parcel = Parcel {
        head: head.into(),
        payloads,
    };
    type Value = (Bytes, Tensor, Vec<u64>, String, Vec<[u8; 2]>);
    let back = Value::decode(&mut parcel.reader()).unwrap();
    assert_eq!(back, value);
    assert_eq!(back.0.as_ptr(), parcel.payloads[0].as_ptr());
    assert_eq!(back.1.as_bytes().as_ptr(), parcel.payloads[1].as_ptr());

    // A missing slice, or another.
    for left_out in 0..5 {
        let mut payloads = parcel.payloads.clone();
        payloads.remove(left_out);
        assert!(Value::decode(&mut super::Reader::new(&parcel.head, &payloads)).is_err());
    }
    let bad = Tensor::zeros(DType::Bool, [PAYLOAD]).unwrap();
    let mut parcel = self::parcel(&bad);
    parcel.payloads = vec![Bytes::from(vec![2; PAYLOAD])];
    assert_eq!(
        Tensor::decode(&mut parcel.reader()).unwrap_err().kind(),
        ErrorKind::Protocol
    );
}

/// Copies bytes to memory that is aligned as shared memory is.
fn aligned(bytes: &[u8]) -> Bytes {
    let words: Vec<u64> = vec![0; bytes.len().div_ceil(8)];
    let words = Tensor::from_vec(words, [bytes.len().div_ceil(8)]).unwrap();
    let mut words = words;
    bytemuck::cast_slice_mut(words.as_mut_slice::<u64>().unwrap())[..bytes.len()]
        .copy_from_slice(bytes);
    words.into_shared().shared().unwrap().slice(..bytes.len())
}

#[test]
fn large_numbers_of_any_alignment() {
    for len in [PAYLOAD / 4 - 1, PAYLOAD / 4, PAYLOAD / 4 + 1] {
        let values: Vec<u32> = (0..len as u32).collect();
        for shift in 0..4 {
            let mut parcel = parcel(&values);
            if let [payload] = &mut parcel.payloads[..] {
                *payload = aligned(&[&vec![0; shift], &payload[..]].concat()).slice(shift..);
            }
            assert_eq!(Vec::<u32>::decode(&mut parcel.reader()).unwrap(), values);
        }
    }
    let bools = vec![true; PAYLOAD];
    assert_eq!(sent(&bools), bools);
    let mut bad = parcel(&bools);
    bad.payloads = vec![Bytes::from(vec![3; PAYLOAD])];
    assert!(Vec::<bool>::decode(&mut bad.reader()).is_err());
}

#[test]
fn a_chunk_of_many_numbers_goes_as_one_slice() {
    use super::{Reader, WireOf};
    let chunk = crate::Chunk::run((0..100_000u64).collect(), crate::Origin::root(0, 0));
    let any: Box<dyn std::any::Any + Send> = Box::new(chunk);
    let wire = WireOf::<u64>::new();
    let mut writer = Writer::new();
    wire.encode(&*any, 0..100_000, &mut writer);
    let parcel = Parcel::of(writer);
    assert_eq!((parcel.head.len() < 50, parcel.payloads.len()), (true, 1));
    let back = wire.decode(&mut parcel.reader()).unwrap();
    assert_eq!(
        back.downcast_ref::<crate::Chunk<u64>>().unwrap().values()[99_999],
        99_999
    );
    assert!(wire.decode(&mut Reader::new(&parcel.head, &[])).is_err());
}

/// Announced lengths that would take all memory are not believed.
#[test]
fn announced_lengths_are_not_believed() {
    for number in [u64::MAX, 1 << 32, 1 << 62] {
        let mut writer = Writer::new();
        writer.number(number);
        writer.raw(&[0; 40]);
        let head = writer.into_parts().0;
        fn refuses<T: Wire>(head: &[u8]) {
            assert!(T::decode(&mut super::Reader::new(head, &[])).is_err());
        }
        refuses::<Vec<u8>>(&head);
        refuses::<Vec<[u64; 100]>>(&head);
        refuses::<Vec<()>>(&head);
        refuses::<String>(&head);
        refuses::<Bytes>(&head);
        refuses::<VecDeque<Vec<u8>>>(&head);
        refuses::<HashMap<u64, u64>>(&head);
        refuses::<HashSet<()>>(&head);
        let mut tensor = vec![DType::F64 as u8, 3];
        tensor.extend([head[..head.len() - 40].to_vec(), vec![2, 2], vec![0; 40]].concat());
        refuses::<Tensor>(&tensor);
    }
}

#[derive(Debug, PartialEq)]
struct List(Option<Box<List>>);

impl Wire for List {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.0.encode(to)
    }
    fn decode(from: &mut super::Reader<'_>) -> Result<Self> {
        Wire::decode(from).map(List)
    }
}

#[test]
fn values_without_end_are_refused_on_both_sides() {
    let list = |len| (0..len).fold(List(None), |list, _| List(Some(Box::new(list))));
    assert_eq!(sent(&list(128)), list(128));
    let too_long = list(129);
    let mut writer = Writer::new();
    assert_eq!(
        too_long.encode(&mut writer).unwrap_err().kind(),
        ErrorKind::Limit
    );
    // The writer is intact after a value that it refused.
    list(128).encode(&mut writer).unwrap();
    assert!(List::decode(&mut super::Reader::new(&[1; 1 << 20], &[])).is_err());
}

proptest! {
    #[test]
    fn nested_values(
        value: (
            Vec<Option<(u8, String)>>,
            BTreeMap<String, Vec<f32>>,
            HashMap<i64, Result<Box<u128>, char>>,
            [Vec<bool>; 3],
            VecDeque<(isize, Duration)>,
        ),
    ) {
        prop_assert_eq!(sent(&value), value);
    }

    #[test]
    fn numbers_of_any_size(number: u64) {
        let mut writer = Writer::new();
        writer.number(number);
        prop_assert_eq!(super::Reader::new(&writer.into_parts().0, &[]).number().unwrap(), number);
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        type Nested = Vec<(Option<BTreeMap<String, TypedVec>>, Tensor, Result<[u16; 2]>)>;
        if let Ok(value) = Nested::decode(&mut super::Reader::new(&bytes, &[])) {
            sent(&value);
        }
    }
}
