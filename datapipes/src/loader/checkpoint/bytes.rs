//! A checkpoint as bytes.

use std::sync::Arc;

use super::{Checkpoint, Copies, Saved, SavedNode};
use crate::checkpoint::{Cursor, InputCursor, MAX_POSITION};
use crate::stable_hash;
use crate::{Error, Reader, Result, Uneven, Writer};

/// First bytes of a checkpoint.
const MAGIC: &[u8; 4] = b"DPst";
/// Version of the format. Before raising it, store a checkpoint of the version before in
/// `tests/golden/states/`. Version 2 has the copies among the errors that were skipped; without
/// any, version 1 is written.
pub(super) const VERSION: u64 = 2;

impl Checkpoint {
    /// Returns the checkpoint as bytes: a version, the contents, a checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let version = self.version();
        writer.raw(MAGIC);
        writer.number(version);
        writer.number(self.0.len() as u64);
        for saved in &*self.0 {
            write(saved, &mut writer);
            if version > 1 {
                writer.number(saved.copies.uncounted);
                writer.number(saved.copies.counted.len() as u64);
                saved
                    .copies
                    .counted
                    .iter()
                    .for_each(|&key| writer.number(key));
            }
        }
        let (mut bytes, _) = writer.into_parts();
        let sum = stable_hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Returns the first version that has room for all of the checkpoint.
    pub(super) fn version(&self) -> u64 {
        1 + u64::from(
            self.0
                .iter()
                .any(|saved| *saved.copies != Copies::default()),
        )
    }

    /// Reads the checkpoint that was written as these bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the bytes are no checkpoint, or cut, or damaged;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if a later version of the library wrote them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Checkpoint> {
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("it does not begin as one"));
        }
        let version = Reader::new(&bytes[MAGIC.len()..], &[])
            .number()
            .map_err(|_| damaged("it is cut"))?;
        if version > VERSION || version == 0 {
            return Err(later(version));
        }
        let Some((head, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(damaged("it is cut"));
        };
        if stable_hash(head) != u64::from_le_bytes(*sum) {
            return Err(damaged("its checksum is another"));
        }
        let mut reader = Reader::new(&head[MAGIC.len()..], &[]);
        let mut all = || {
            reader.number()?;
            let ranks = (0..reader.count()?)
                .map(|_| {
                    let saved = read(&mut reader)?;
                    let copies = match version {
                        1 => Arc::default(),
                        _ => copies(&mut reader)?,
                    };
                    Ok(Saved { copies, ..saved })
                })
                .collect::<Result<Vec<_>>>()?;
            reader.end().map(|()| ranks)
        };
        Checkpoint::checked(all().map_err(damaged)?)
    }

    /// Validates a checkpoint that was read.
    pub(super) fn checked(ranks: Vec<Saved>) -> Result<Checkpoint> {
        let run = |saved: &Saved| (saved.seed, saved.epoch, saved.world, saved.uneven);
        let one = ranks
            .first()
            .is_some_and(|first| ranks.iter().all(|saved| run(saved) == run(first)));
        let near = |all: u64, saved: &Saved| {
            all.checked_add(saved.delivered)?
                .checked_add(saved.skipped)
                .filter(|&all| all < MAX_POSITION)
        };
        let counted = ranks.iter().try_fold(0, near).is_some();
        let ascend = ranks.is_sorted_by(|a, b| a.rank < b.rank);
        match one && counted && ascend && ranks.iter().all(is_one) {
            true => Ok(Checkpoint::of(ranks)),
            false => Err(damaged("its numbers contradict each other")),
        }
    }
}

fn is_one(saved: &Saved) -> bool {
    let known = |(at, node): (usize, &SavedNode)| {
        node.inputs.iter().all(|&input| input < at as u64)
            && node.cursor.as_ref().is_none_or(is_sane)
    };
    saved.copies.uncounted <= saved.skipped
        && saved.rank < saved.world
        && saved.world < MAX_POSITION
        && saved.nodes.iter().enumerate().all(known)
}

/// Bound on the pieces and items held at once.
const MANY: u64 = 1 << 24;

fn is_sane(cursor: &Cursor) -> bool {
    let near = |number: &u64| *number < MAX_POSITION;
    let sum = |sum: u64, some: u64| sum.checked_add(some).filter(near);
    let inside = cursor
        .pieces
        .iter()
        .try_fold(0, |all, piece| sum(all, piece.0));
    let outside = cursor
        .pieces
        .iter()
        .try_fold(0, |all, piece| sum(all, piece.1));
    inside.is_some_and(|inside| inside < MANY)
        && outside.is_some()
        && !cursor.outputs.is_empty()
        && cursor.outputs.iter().all(near)
        && cursor.inputs.iter().all(|input| {
            near(&input.from)
                && input.reach <= input.from
                && input.held.is_sorted_by(|a, b| a < b)
                && input.held.last().is_none_or(|&last| last < input.from)
        })
}

pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("this is no checkpoint of an epoch: {what}"))
}

pub(super) fn later(version: u64) -> Error {
    let message =
        format!("a checkpoint of version {version}; this library reads versions 1 to {VERSION}");
    Error::unsupported(message)
}

fn write(saved: &Saved, to: &mut Writer<'_>) {
    let Saved {
        seed,
        epoch,
        finished,
        delivered,
        skipped,
        copies: _,
        world,
        rank,
        uneven,
        nodes,
    } = saved;
    let (finished, uneven) = (u64::from(*finished), Uneven::number(*uneven));
    for number in [
        *seed,
        *epoch,
        finished,
        *delivered,
        *skipped,
        *world,
        *rank,
        uneven,
        nodes.len() as u64,
    ] {
        to.number(number);
    }
    for SavedNode {
        name,
        kind,
        settings,
        inputs,
        cursor,
    } in nodes
    {
        for text in [name, kind, settings] {
            some(text.as_bytes(), to);
        }
        ascending(inputs, to);
        to.number(u64::from(cursor.is_some()));
        let Some(Cursor {
            outputs,
            inputs,
            state,
            pieces,
            round,
            unordered,
        }) = cursor
        else {
            continue;
        };
        ascending(outputs, to);
        to.number(inputs.len() as u64);
        for InputCursor { from, reach, held } in inputs {
            to.number(*from);
            to.number(from - reach);
            ascending(held, to);
        }
        some(state, to);
        to.number(pieces.len() as u64);
        for (inside, outside) in pieces {
            to.number(*inside);
            to.number(*outside);
        }
        to.number(*round);
        to.number(u64::from(*unordered));
    }
}

fn some(bytes: &[u8], to: &mut Writer<'_>) {
    to.number(bytes.len() as u64);
    to.raw(bytes);
}

/// Writes numbers by their distances, which are small if they ascend.
fn ascending(numbers: &[u64], to: &mut Writer<'_>) {
    to.number(numbers.len() as u64);
    let mut last = 0u64;
    for &number in numbers {
        to.number(number.wrapping_sub(last));
        last = number;
    }
}

fn read(from: &mut Reader<'_>) -> Result<Saved> {
    let mut saved = Saved {
        seed: from.number()?,
        epoch: from.number()?,
        finished: bool_from(from)?,
        delivered: from.number()?,
        skipped: from.number()?,
        copies: Arc::default(),
        world: from.number()?,
        rank: from.number()?,
        uneven: Uneven::from_number(from.number()?)
            .ok_or_else(|| Reader::damaged("no rule for uneven ranks"))?,
        nodes: Vec::new(),
    };
    for _ in 0..from.count()? {
        let [name, kind, settings] = [text(from)?, text(from)?, text(from)?];
        let inputs = distances(from)?;
        let cursor = match bool_from(from)? {
            false => None,
            true => Some(cursor(from)?),
        };
        saved.nodes.push(SavedNode {
            name,
            kind,
            settings,
            inputs,
            cursor,
        });
    }
    Ok(saved)
}

fn copies(from: &mut Reader<'_>) -> Result<Arc<Copies>> {
    let uncounted = from.number()?;
    let counted = (0..from.count()?)
        .map(|_| from.number())
        .collect::<Result<_>>()?;
    Ok(Arc::new(Copies { uncounted, counted }))
}

fn cursor(from: &mut Reader<'_>) -> Result<Cursor> {
    let mut cursor = Cursor {
        outputs: distances(from)?,
        ..Cursor::default()
    };
    for _ in 0..from.count()? {
        let at = from.number()?;
        let reach = at
            .checked_sub(from.number()?)
            .ok_or_else(|| Reader::damaged("a reach below zero"))?;
        cursor.inputs.push(InputCursor {
            from: at,
            reach,
            held: distances(from)?,
        });
    }
    let len = from.count()?;
    cursor.state = from.raw(len)?.to_vec();
    for _ in 0..from.count()? {
        cursor.pieces.push((from.number()?, from.number()?));
    }
    cursor.round = from.number()?;
    cursor.unordered = bool_from(from)?;
    Ok(cursor)
}

fn bool_from(from: &mut Reader<'_>) -> Result<bool> {
    match from.number()? {
        0 => Ok(false),
        1 => Ok(true),
        number => Err(Reader::damaged(format_args!(
            "{number} is not true or false"
        ))),
    }
}

fn text(from: &mut Reader<'_>) -> Result<String> {
    let len = from.count()?;
    String::from_utf8(from.raw(len)?.to_vec())
        .map_err(|_| Reader::damaged("a name that is no text"))
}

fn distances(from: &mut Reader<'_>) -> Result<Vec<u64>> {
    let mut last = 0u64;
    let mut numbers = Vec::new();
    for _ in 0..from.count()? {
        last = last.wrapping_add(from.number()?);
        numbers.push(last);
    }
    Ok(numbers)
}
