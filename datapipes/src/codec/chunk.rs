//! Encoding of chunks, origins and errors for other processes.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::{Reader, Wire, Writer, damaged};
use crate::origin::Link;
use crate::origin::OriginRef;
use crate::{Chunk, Error, ErrorKind, Item, Origin, Result};

/// Bound on the depth of origins, which no valid graph comes near.
const DEEPEST: usize = 200;
/// Bound on the causes of an error; the others are left out.
const MOST_CAUSES: usize = 64;
/// Bound on the items in one origin, each with its ancestors. Since siblings share ancestors, few
/// bytes could otherwise describe more items than could ever be visited.
const HEAVIEST: usize = 1 << 24;

/// Encodes the items of an edge whose type the caller does not know.
pub(crate) trait ChunkWire: Send + Sync {
    /// Writes some of the items and errors of a `Chunk<T>`, by their places. A value that cannot be
    /// written, or whose encoding panics, becomes an error.
    fn encode<'a>(&self, chunk: &'a (dyn Any + Send), places: Range<usize>, to: &mut Writer<'a>);
    /// Reads a `Chunk<T>`.
    fn decode(&self, from: &mut Reader<'_>) -> Result<Box<dyn Any + Send>>;
    /// Returns the item that is, or failed, at a place of a `Chunk<T>`.
    fn origin(&self, chunk: &(dyn Any + Send), place: usize) -> Option<Origin>;
    /// Returns the name of the item type, for a comparison of graphs.
    fn type_name(&self) -> &'static str;
}

pub(crate) struct WireOf<T>(PhantomData<fn() -> T>);

impl<T: Wire> WireOf<T> {
    #[expect(clippy::new_ret_no_self, reason = "it is known by what it does only")]
    pub(crate) fn new() -> Arc<dyn ChunkWire> {
        Arc::new(WireOf::<T>(PhantomData))
    }
}

impl<T: Wire> ChunkWire for WireOf<T> {
    fn encode<'a>(&self, chunk: &'a (dyn Any + Send), places: Range<usize>, to: &mut Writer<'a>) {
        let chunk = chunk
            .downcast_ref::<Chunk<T>>()
            .expect("edges are wired by type");
        let begun = to.mark();
        if encode(chunk, places.clone(), to).is_err() {
            to.back_to(begun);
            encode_each(chunk, places, to);
        }
    }

    fn decode(&self, from: &mut Reader<'_>) -> Result<Box<dyn Any + Send>> {
        Ok(Box::new(decode::<T>(from)?))
    }

    fn origin(&self, chunk: &(dyn Any + Send), place: usize) -> Option<Origin> {
        let chunk = chunk
            .downcast_ref::<Chunk<T>>()
            .expect("edges are wired by type");
        let (values, errors) = chunk.columns(place..place + 1);
        let origin = chunk
            .origins(values)
            .next()
            .map(|origin| Origin::from_parts(origin.link.cloned(), origin.index));
        origin.or_else(|| errors.first().and_then(|(_, error)| error.item().cloned()))
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }
}

/// Writes consecutive items, then each error with the number of values before it.
fn encode<'a, T: Wire>(
    chunk: &'a Chunk<T>,
    places: Range<usize>,
    to: &mut Writer<'a>,
) -> Result<()> {
    let (values, errors) = chunk.columns(places);
    to.number(values.len() as u64);
    to.number(errors.len() as u64);
    for (place, error) in errors {
        to.number((place - values.start) as u64);
        encode_error(error, to);
    }
    match chunk.run_from(values.start) {
        Some(raw) => {
            to.raw(&[1]);
            to.number(raw);
        }
        None => {
            to.raw(&[0]);
            let mut origins = OriginWriter::default();
            chunk
                .origins(values.clone())
                .for_each(|origin| origins.write(origin, to));
        }
    }
    caught(|| T::encode_all(&chunk.values()[values], to))
}

/// Runs a user's code; a panic of it is an error.
fn caught<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(Error::panic(payload)))
}

/// Writes the items one by one: a value that cannot be written is an error in its place.
fn encode_each<'a, T: Wire>(chunk: &'a Chunk<T>, places: Range<usize>, to: &mut Writer<'a>) {
    // Written as pieces, so that a value which fails half-way leaves nothing behind.
    to.number(u64::MAX);
    to.number(places.len() as u64);
    for place in places {
        let begun = to.mark();
        if let Err(error) = encode(chunk, place..place + 1, to) {
            to.back_to(begun);
            let (values, _) = chunk.columns(place..place + 1);
            let origin = chunk.origins(values).next();
            to.number(0);
            to.number(1);
            to.number(0);
            encode_error(
                &match origin {
                    Some(origin) => {
                        error.of(&Origin::from_parts(origin.link.cloned(), origin.index))
                    }
                    None => error,
                },
                to,
            );
            to.raw(&[0]);
        }
    }
}

fn decode<T: Wire>(from: &mut Reader<'_>) -> Result<Chunk<T>> {
    if from.peek_number()? == u64::MAX {
        from.number()?;
        let pieces = from.count()?;
        let mut all = Chunk::with_capacity(pieces);
        for _ in 0..pieces {
            if from.peek_number()? == u64::MAX {
                return Err(damaged("pieces of pieces"));
            }
            all.extend(decode::<T>(from)?);
        }
        return Ok(all);
    }
    let values = from.many()?;
    let count = from.count()?;
    let mut errors = Vec::new();
    let mut last = 0;
    for _ in 0..count {
        let place = from.number()? as usize;
        if place < last || place > values {
            return Err(damaged(format_args!(
                "an error after {place} of {values} values"
            )));
        }
        last = place;
        errors.push((place, decode_error(from)?));
    }
    let run = match u8::decode(from)? {
        0 => None,
        1 => Some(from.number()?),
        other => return Err(damaged(format_args!("{other} is no kind of origins"))),
    };
    if run.is_some_and(|first| first.checked_add(values as u64).is_none()) {
        return Err(damaged("a run of origins that does not end"));
    }
    let origins = match run {
        Some(_) => Vec::new(),
        None => {
            let mut reader = OriginReader::default();
            (0..values)
                .map(|_| reader.read(from))
                .collect::<Result<Vec<_>>>()?
        }
    };
    let column = caught(|| T::decode_all(values, from))?;
    let mut chunk = match run {
        Some(first) => Chunk::run(column, Origin::from_raw(first)),
        None => Chunk::from_columns(column, origins),
    };
    chunk.set_errors(errors);
    Ok(chunk)
}

const ROOT: u8 = 0;
/// Marks a child of the same parent as the last child.
const SIBLING: u8 = 1;
const CHILD: u8 = 2;
const JOINED: u8 = 3;
const NAMED: u8 = 4;

/// Writes origins, a parent once for all of its children in a row.
#[derive(Default)]
struct OriginWriter<'a> {
    parent: Option<&'a Arc<Link>>,
}

impl<'a> OriginWriter<'a> {
    fn write(&mut self, origin: OriginRef<'a>, to: &mut Writer<'_>) {
        let OriginRef { link, index } = origin;
        match link.map(|link| (link, &**link)) {
            None => to.raw(&[ROOT]),
            Some((link, Link::Child(_)))
                if self.parent.is_some_and(|last| Arc::ptr_eq(last, link)) =>
            {
                to.raw(&[SIBLING]);
            }
            Some((link, Link::Child(parent))) => {
                to.raw(&[CHILD]);
                self.write(parent.by_ref(), to);
                self.parent = Some(link);
            }
            Some((_, Link::Joined(parts))) => {
                to.raw(&[JOINED]);
                to.number(parts.len() as u64);
                parts.iter().for_each(|part| self.write(part.by_ref(), to));
            }
            Some((_, Link::Named(above, name))) => {
                if let Some(name) = name.get() {
                    to.raw(&[NAMED]);
                    to.number(name.len() as u64);
                    to.raw(name.as_bytes());
                }
                return self.write(
                    OriginRef {
                        link: above.as_ref(),
                        index,
                    },
                    to,
                );
            }
        }
        to.number(index);
    }
}

#[derive(Default)]
struct OriginReader {
    /// Parent of the last child, its weight, and its height.
    parent: Option<(Arc<Link>, usize, usize)>,
    depth: usize,
    /// Weight of all so far.
    sum: usize,
}

impl OriginReader {
    fn read(&mut self, from: &mut Reader<'_>) -> Result<Origin> {
        let (origin, weight, _) = self.read_weighed(from)?;
        self.sum = self.sum.saturating_add(weight);
        if self.sum > HEAVIEST {
            return Err(damaged(format_args!(
                "origins of more than {HEAVIEST} items"
            )));
        }
        Ok(origin)
    }

    /// Reads an origin, with the number of items in it, and its depth.
    fn read_weighed(&mut self, from: &mut Reader<'_>) -> Result<(Origin, usize, usize)> {
        if self.depth >= DEEPEST {
            return Err(damaged("an origin without end"));
        }
        self.depth += 1;
        let (link, above, height) = match u8::decode(from)? {
            ROOT => (None, 0, 0),
            SIBLING => {
                let parent = self
                    .parent
                    .as_ref()
                    .ok_or_else(|| damaged("a sibling of nobody"))?;
                (Some(parent.0.clone()), parent.1, parent.2)
            }
            CHILD => {
                let (parent, weight, height) = self.read_weighed(from)?;
                let link = Arc::new(Link::Child(parent));
                self.parent = Some((link.clone(), weight, height + 1));
                (Some(link), weight, height + 1)
            }
            JOINED => {
                let (mut parts, mut sum, mut highest) = (Vec::new(), 0, 0);
                for _ in 0..from.count()? {
                    let (part, weight, height) = self.read_weighed(from)?;
                    parts.push(part);
                    highest = highest.max(height);
                    sum += weight;
                    if sum > HEAVIEST {
                        return Err(damaged(format_args!(
                            "an origin of more than {HEAVIEST} items"
                        )));
                    }
                }
                (Some(Arc::new(Link::Joined(parts.into()))), sum, highest + 1)
            }
            NAMED => {
                let name = text(from)?;
                let (origin, weight, height) = self.read_weighed(from)?;
                self.depth -= 1;
                return Ok((origin.named(name), weight, height + 1));
            }
            other => return Err(damaged(format_args!("{other} is no kind of origin"))),
        };
        self.depth -= 1;
        // Written siblings may be stacked without a nested call here.
        if height > DEEPEST {
            return Err(damaged("an origin without end"));
        }
        Ok((Origin::from_parts(link, from.number()?), above + 1, height))
    }
}

/// Reads text unchanged, for names and messages.
fn text<'a>(from: &mut Reader<'a>) -> Result<&'a str> {
    let len = from.count()?;
    std::str::from_utf8(from.raw(len)?).map_err(|_| damaged("text that is not UTF-8"))
}

fn put_text(text: &str, to: &mut Writer<'_>) {
    to.number(text.len() as u64);
    to.raw(text.as_bytes());
}

/// Writes an error: its message, and the messages of its causes.
fn encode_error(error: &Error, to: &mut Writer<'_>) {
    to.raw(&[error.kind().number()]);
    // A fatal error must stay one at the other end, whether its kind or its mark makes it fatal.
    let fatal = !error.is_about_an_item();
    let marks = [
        error.is_transient(),
        fatal,
        error.is_echo(),
        error.is_counted_once(),
    ];
    let flag = |(bit, mark): (usize, bool)| u8::from(mark) << bit;
    to.raw(&[marks.into_iter().enumerate().map(flag).sum()]);
    match error.node() {
        None => to.raw(&[0]),
        Some(node) => {
            to.raw(&[1]);
            put_text(node, to);
        }
    }
    match error.item() {
        None => to.raw(&[0]),
        Some(item) => {
            to.raw(&[1]);
            OriginWriter::default().write(item.by_ref(), to);
        }
    }
    put_text(error.message(), to);
    let causes = error.causes();
    let causes = &causes[..causes.len().min(MOST_CAUSES)];
    to.number(causes.len() as u64);
    causes.iter().for_each(|cause| put_text(cause, to));
    let micros = |pause: Duration| {
        u64::try_from(pause.as_micros())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    };
    to.number(error.retry_after().map_or(0, micros));
}

fn decode_error(from: &mut Reader<'_>) -> Result<Error> {
    let kind = u8::decode(from)?;
    let kind = ErrorKind::from_number(kind)
        .ok_or_else(|| damaged(format_args!("{kind} is no kind of error")))?;
    let flags = u8::decode(from)?;
    if flags > 15 {
        return Err(damaged("an error has unknown flags"));
    }
    let node: Option<Arc<str>> = bool::decode(from)?
        .then(|| text(from))
        .transpose()?
        .map(Into::into);
    let item = bool::decode(from)?
        .then(|| OriginReader::default().read(from))
        .transpose()?;
    let mut error = Error::new(kind, text(from)?);
    if flags & 2 != 0 {
        error = error.fatal();
    }
    if flags & 4 != 0 {
        error = error.echo();
    }
    if flags & 8 != 0 {
        error = error.counted_once();
    }
    let causes = from.count()?;
    // Causes are dropped one within the other.
    if causes > MOST_CAUSES {
        return Err(damaged(format_args!("an error of {causes} causes")));
    }
    let causes = (0..causes)
        .map(|_| text(from))
        .collect::<Result<Vec<_>>>()?;
    if let Some(cause) = causes.into_iter().rev().fold(None, |source, text| {
        Some(Box::new(Cause {
            text: text.to_owned(),
            source,
        }))
    }) {
        error = error.with_source(cause);
    }
    match from.number()? {
        0 if flags & 1 != 0 => error = error.transient(),
        0 => {}
        micros => error = error.with_retry_after(Duration::from_micros(micros - 1)),
    }
    if let Some(node) = node {
        error = error.at(&node);
    }
    Ok(match item {
        Some(item) => error.of(&item),
        None => error,
    })
}

/// Encodes node and item, kind, message and causes; a cause is reduced to its message, and can no
/// longer be downcast.
impl Wire for Error {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        encode_error(self, to);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        decode_error(from)
    }
}

/// Encodes coordinates and names.
impl Wire for Origin {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        OriginWriter::default().write(self.by_ref(), to);
        Ok(())
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        OriginReader::default().read(from)
    }
}

impl<T: Wire> Wire for Item<T> {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.origin().encode(to)?;
        (**self).encode(to)
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let origin = Origin::decode(from)?;
        Ok(Item::new(T::decode(from)?, origin))
    }
}

/// A cause of an error of another process, as its message.
#[derive(Debug)]
struct Cause {
    text: String,
    source: Option<Box<Cause>>,
}

formatted! { Display |cause: Cause| "{}", cause.text; }

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests;
