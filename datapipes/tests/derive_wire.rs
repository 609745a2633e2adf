//! `#[derive(Wire)]` and `Serde`, as a user has them. The test shadows names of the standard
//! library, to check that derived code does not depend on them.
#![cfg(all(feature = "derive", feature = "serde", feature = "testing"))]

use std::collections::BTreeMap;
use std::fmt::Debug;

use datapipes::testing::{sent, wire_bytes, wire_from};
use datapipes::{ErrorKind, Tensor, Wire};
use serde::{Deserialize, Serialize};

fn check<T: Wire + PartialEq + Debug>(value: T) {
    assert_eq!(sent(&value).unwrap(), value);
}

mod crowded {
    #![allow(dead_code, non_camel_case_types, reason = "to be in the way")]
    struct Result;
    struct Option;
    struct Default;
    struct Ok;
    struct Err;
    struct u64;
    mod datapipes {}
    mod std {}

    #[derive(Debug, PartialEq, ::datapipes::Wire)]
    pub struct Named {
        pub to: u8,
        pub from: ::std::string::String,
        pub r#type: ::std::vec::Vec<f32>,
        pub field_0: u16,
    }

    #[derive(Debug, PartialEq, ::datapipes::Wire)]
    pub enum Sum {
        Unit,
        Tuple(u8, Named),
        Struct {
            to: i32,
            number: ::std::boxed::Box<Sum>,
        },
    }
}
use crowded::{Named, Sum};

fn named() -> Named {
    Named {
        to: 1,
        from: "a".into(),
        r#type: vec![0.5],
        field_0: 7,
    }
}

#[test]
fn structs_and_enums_make_the_round_trip() {
    check(named());
    check(Sum::Unit);
    check(vec![
        Sum::Tuple(3, named()),
        Sum::Struct {
            to: -1,
            number: Box::new(Sum::Unit),
        },
    ]);

    #[derive(Debug, PartialEq, Wire)]
    struct Unit;
    #[derive(Debug, PartialEq, Wire)]
    struct Empty {}
    #[derive(Debug, PartialEq, Wire)]
    struct Tuple(u8, (Unit, Empty));
    check(vec![Tuple(1, (Unit, Empty {}))]);

    #[derive(Debug, PartialEq, Wire)]
    struct OnlySkipped(#[wire(skip)] u8);
    assert_eq!(
        sent(&vec![OnlySkipped(5), OnlySkipped(6)]).unwrap(),
        [OnlySkipped(0), OnlySkipped(0)]
    );
}

#[test]
fn generic_types_travel_if_their_parameters_do() {
    #[derive(Debug, PartialEq, Wire)]
    struct Pair<A, B: Clone, const N: usize>
    where
        A: Debug,
    {
        a: A,
        b: [B; N],
    }
    check(Pair {
        a: named(),
        b: [Some(1u8), None],
    });

    #[derive(Debug, PartialEq, Wire)]
    enum Tree<T> {
        Leaf(T),
        Node(Vec<Tree<T>>),
    }
    check(Tree::Node(vec![
        Tree::Leaf("x".to_owned()),
        Tree::Node(vec![]),
    ]));
}

#[test]
fn a_tree_without_end_is_refused() {
    #[derive(Debug, Wire)]
    enum Tree {
        Leaf,
        Node(Box<Tree>),
    }
    let bytes = vec![1; 1 << 20];
    assert_eq!(
        wire_from::<Tree>(&bytes, &[]).unwrap_err().kind(),
        ErrorKind::Protocol
    );
    assert!(matches!(
        sent(&Tree::Node(Box::new(Tree::Leaf))),
        Ok(Tree::Node(_))
    ));
}

#[test]
fn an_unknown_variant_is_named() {
    let error = wire_from::<Sum>(&[9, 0, 0], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(
        error.to_string().contains("Sum has no variant 9"),
        "{error}"
    );

    #[derive(Debug, Wire)]
    enum Never {}
    assert!(
        wire_from::<Never>(&[0], &[])
            .unwrap_err()
            .to_string()
            .contains("Never has no variant 0")
    );
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Unit,
    New(u8),
    Tuple(u8, i64),
    Struct { a: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
enum Tagged {
    A { x: u8 },
    B,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Flat {
    b: bool,
    #[serde(flatten)]
    rest: BTreeMap<String, i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    first: Option<u8>,
    #[serde(default)]
    kinds: Vec<Kind>,
    #[serde(skip)]
    local: u8,
    #[serde(rename = "else")]
    other: Option<f64>,
    tagged: Vec<Tagged>,
    untagged: Vec<Untagged>,
    flat: Flat,
    wide: (u128, i128, char, ()),
    map: BTreeMap<u32, Option<u8>>,
}

fn record() -> Record {
    Record {
        first: None,
        kinds: vec![
            Kind::Unit,
            Kind::New(3),
            Kind::Tuple(4, -5),
            Kind::Struct { a: None },
            Kind::Struct {
                a: Some("b".into()),
            },
        ],
        local: 0,
        other: Some(0.1),
        tagged: vec![Tagged::A { x: 1 }, Tagged::B],
        untagged: vec![
            Untagged::Number(300),
            Untagged::Text("t".into()),
            Untagged::Bytes(vec![1, 255]),
        ],
        flat: Flat {
            b: true,
            rest: BTreeMap::from([("n".into(), -7)]),
        },
        wide: (u128::MAX, i128::MIN, 'ü', ()),
        map: BTreeMap::from([(1, None), (2, Some(3))]),
    }
}

#[test]
fn serde_values_make_the_round_trip() {
    check(datapipes::Serde(record()));
    check(datapipes::Serde(Record {
        first: Some(1),
        other: None,
        ..record()
    }));
    check(vec![datapipes::Serde(()), datapipes::Serde(())]);
    let local = Record {
        local: 9,
        ..record()
    };
    assert_eq!(
        sent(&datapipes::Serde(local)).unwrap().into_inner(),
        record()
    );
}

#[test]
fn fields_by_serde() {
    #[derive(Debug, PartialEq, Wire)]
    struct Sample<M> {
        pixels: Tensor,
        #[wire(serde)]
        meta: Option<Record>,
        #[wire(serde)]
        kind: Kind,
        #[wire(skip)]
        cache: Option<std::num::NonZeroU8>,
        more: M,
    }
    let sample = |cache| Sample {
        pixels: Tensor::scalar(1u8),
        meta: Some(record()),
        kind: Kind::New(1),
        cache,
        more: vec![1u8],
    };
    assert_eq!(
        sent(&sample(std::num::NonZeroU8::new(1))).unwrap(),
        sample(None)
    );
}

#[test]
fn damaged_messages_of_serde_are_errors_that_name_the_type() {
    let whole = wire_bytes(&datapipes::Serde(record())).unwrap();
    for len in 0..whole.len() {
        assert!(wire_from::<datapipes::Serde<Record>>(&whole[..len], &[]).is_err());
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let _ = wire_from::<datapipes::Serde<Record>>(&bytes, &[]);
        }
    }
    let message = |bytes: &[u8]| [&(bytes.len() as u64).to_ne_bytes()[..], bytes].concat();
    // Lengths of 2^32 - 1, for a list, a text, bytes and a map.
    for marker in [0xdd, 0xdb, 0xc6, 0xdf] {
        let bytes = message(&[marker, 0xff, 0xff, 0xff, 0xff, 1, 2]);
        let error = wire_from::<datapipes::Serde<Vec<u64>>>(&bytes, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("Vec<u64>"), "{error}");
        assert!(wire_from::<datapipes::Serde<String>>(&bytes, &[]).is_err());
        assert!(wire_from::<datapipes::Serde<BTreeMap<u8, u8>>>(&bytes, &[]).is_err());
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Deep(Vec<Deep>);
    assert!(wire_from::<datapipes::Serde<Deep>>(&message(&[0x91; 1 << 16]), &[]).is_err());
    let deep = |len| (0..len).fold(Deep(vec![]), |deep, _| Deep(vec![deep]));
    check(datapipes::Serde(deep(100)));
    assert!(wire_bytes(&datapipes::Serde(deep(200))).is_err());
}

#[test]
fn what_serde_cannot_write_is_an_error_of_the_item() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Shy(#[serde(serialize_with = "refuse")] u8);
    fn refuse<S: serde::Serializer>(_: &u8, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("will not go"))
    }
    let error = wire_bytes(&datapipes::Serde(Shy(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::User);
    assert!(
        error.to_string().contains("Shy") && error.to_string().contains("will not go"),
        "{error}"
    );
}
