use super::super::Parcel;
use super::*;

fn sent<T: Wire>(chunk: Chunk<T>, places: Range<usize>) -> Vec<Result<Item<T>>> {
    let any: Box<dyn Any + Send> = Box::new(chunk);
    let mut writer = Writer::new();
    let wire = WireOf::<T>::new();
    wire.encode(&*any, places, &mut writer);
    let parcel = Parcel::of(writer);
    let mut reader = parcel.reader();
    let back = wire.decode(&mut reader).unwrap();
    reader.end().unwrap();
    back.downcast::<Chunk<T>>().unwrap().into_iter().collect()
}

fn sample() -> Chunk<u64> {
    let archive = Origin::root(0, 3).named("a.tar");
    let mut chunk = Chunk::with_capacity(4);
    let cause = std::io::Error::other("disk on fire");
    chunk.push(Err(Error::corrupt("bad").at(&"untar".into()).of(&archive)));
    chunk.push(Ok(Item::new(1, archive.child(0).named("x.jpg"))));
    chunk.push(Ok(Item::new(2, archive.child(1))));
    chunk.push(Err(Error::io(cause)
        .transient()
        .fatal()
        .echo()
        .counted_once()));
    chunk.push(Ok(Item::new(
        3,
        Origin::joined(vec![Origin::root(1, 2), archive.child(9)], 4),
    )));
    chunk
}

fn shown(items: Vec<Result<Item<u64>>>) -> Vec<String> {
    items
        .into_iter()
        .map(|item| match item {
            Ok(item) => format!("{} {} {:#x}", *item, item.origin(), item.origin().key()),
            Err(error) => {
                let flags = (
                    error.is_transient(),
                    error.is_about_an_item(),
                    error.is_echo(),
                );
                format!("{error} {:?} {flags:?}", error.kind())
            }
        })
        .collect()
}

#[test]
fn items_and_errors_arrive_in_their_places() {
    let all = shown(sample().into_iter().collect());
    assert_eq!(shown(sent(sample(), 0..5)), all);
    for from in 0..5 {
        for to in from..=5 {
            assert_eq!(
                shown(sent(sample(), from..to)),
                all[from..to],
                "{from}..{to}"
            );
        }
    }
    let run = Chunk::run(vec![7u64, 8, 9], Origin::root(2, 70));
    assert_eq!(
        shown(sent(run, 1..3))[0],
        shown(vec![Ok(Item::new(8, Origin::root(2, 71)))])[0]
    );
}

#[test]
fn siblings_share_their_parent() {
    let children = Origin::root(0, 1).children();
    let chunk = Chunk::from_columns(vec![0u64, 1], vec![children.at(0), children.at(1)]);
    let back = sent(chunk, 0..2);
    let [a, b] = [0, 1].map(|i| back[i].as_ref().unwrap().origin().by_ref().link.unwrap());
    assert!(Arc::ptr_eq(a, b));
}

#[derive(Debug, PartialEq)]
struct Shy(u8);

impl Wire for Shy {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        to.raw(&[self.0]);
        if self.0 == 2 {
            Err(Error::user("will not go"))
        } else {
            Ok(())
        }
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        u8::decode(from).map(Shy)
    }
}

#[test]
fn a_value_that_cannot_be_written_costs_itself() {
    let back = sent(
        Chunk::run(vec![Shy(1), Shy(2), Shy(3)], Origin::root(0, 5)),
        0..3,
    );
    assert_eq!(
        back[1].as_ref().unwrap_err().to_string(),
        "0:6: will not go"
    );
    assert_eq!(
        (&**back[0].as_ref().unwrap(), &**back[2].as_ref().unwrap()),
        (&Shy(1), &Shy(3))
    );
}

/// Dropping an error visits its causes one by one, and reading an origin visits its items.
#[test]
fn row_10_causes_and_shared_parents_are_bounded() {
    let mut writer = Writer::new();
    writer.raw(&[0, 0, 0, 0, 0]);
    writer.number(1 << 20);
    let message = [writer.into_parts().0, vec![0; (1 << 20) + 1]].concat();
    let error = Error::decode(&mut Reader::new(&message, &[])).unwrap_err();
    assert!(error.to_string().contains("1048576 causes"), "{error}");
    let chain = (0..100).fold(None, |source, n| {
        Some(Box::new(Cause {
            text: format!("{n}"),
            source,
        }))
    });
    let deep = Error::new(ErrorKind::User, "deep").with_source(chain.expect("there are some"));
    let mut writer = Writer::new();
    deep.encode(&mut writer).unwrap();
    assert!(Error::decode(&mut Parcel::of(writer).reader()).is_ok());

    // Each is a child of two siblings of the one below: in a few bytes, twice as many.
    let doubled = |levels: usize| {
        (1..levels).fold(vec![CHILD, ROOT, 0, 0], |below, _| {
            [&[CHILD, JOINED, 2], &below[..], &[SIBLING, 0, 0, 0]].concat()
        })
    };
    assert!(Origin::decode(&mut Reader::new(&doubled(10), &[])).is_ok());
    let error = Origin::decode(&mut Reader::new(&doubled(60), &[])).unwrap_err();
    assert!(
        error.to_string().contains("more than 16777216 items"),
        "{error}"
    );
}

#[test]
fn damage_is_an_error() {
    let any: Box<dyn Any + Send> = Box::new(sample());
    let wire = WireOf::<u64>::new();
    let mut writer = Writer::new();
    wire.encode(&*any, 0..5, &mut writer);
    let whole = Parcel::of(writer).head;
    for len in 0..whole.len() {
        assert!(
            wire.decode(&mut Reader::new(&whole[..len], &[])).is_err(),
            "{len}"
        );
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << bit;
            let _ = wire.decode(&mut Reader::new(&bytes, &[]));
        }
    }
    let endless = [NAMED, 0].repeat(5000);
    assert!(Origin::decode(&mut Reader::new(&endless, &[])).is_err());
    let endless = [CHILD].repeat(5000);
    assert!(Origin::decode(&mut Reader::new(&endless, &[])).is_err());
    // Each is a child of the one before, written as its sibling.
    let mut chain = vec![CHILD, ROOT, 0, 0];
    chain.extend([CHILD, SIBLING, 0, 0].repeat(100_000));
    let (mut reader, mut from) = (OriginReader::default(), Reader::new(&chain, &[]));
    let read = (0..=100_000).try_for_each(|_| reader.read(&mut from).map(drop));
    assert!(read.unwrap_err().to_string().contains("without end"));
}
