//! Walks a tar archive member by member, as its bytes arrive.
//!
//! Different readers of this format see different members in some archives. Such archives are an
//! error here: two names or two extension headers for one member, malformed records, or data after
//! the end, unless it is requested. A member has one size, both for its content and for the
//! distance to the next member.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Error, ErrorKind};

use super::ends::Ends;
use super::feed::Feed;
use super::header::{
    BLOCK, Extension, Fault, MAX_EXTENSION, MAX_EXTENSIONS, check_sum, corrupt, number, once,
    padding,
};
use crate::File;

/// An iterator over the regular files of an archive, in order. The result does not depend on the
/// sizes of the pieces.
#[derive(Default)]
pub(super) struct Walker {
    feed: Feed,
    state: State,
    /// Settings of global headers for all members after them.
    global: Extension,
    /// Settings for the next member.
    extension: Extension,
    next: Next,
    /// Name of the previous member, for errors.
    last: Option<Arc<str>>,
    /// Position of the fault, if it is not that of the next bytes.
    place: Option<u64>,
    max_member: u64,
    headers_only: bool,
    ends: Ends,
}

/// Result of a step.
pub(super) enum Step {
    File(File, Place),
    /// A member that cannot be yielded as it is.
    Refused(Arc<str>, Error),
    /// An error after which nothing more can be read.
    Broken(Error),
    /// Another [piece](Walker::push) is needed, or a notice that there is [none](Walker::end).
    More,
    End,
}

/// Position of a member in its archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Position of its first header.
    pub(super) start: u64,
    /// Position of its data.
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Content that is expected next.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Header,
    Extension,
    ExtensionPadding,
    SparseMap,
    Data,
    Padding,
    /// Only zeros, with their number so far.
    Zeros(u64),
    Done,
}

/// The member or extension whose header was read.
#[derive(Default)]
struct Next {
    kind: u8,
    size: u64,
    start: u64,
    name: Arc<str>,
    refused: Option<&'static str>,
    regular: bool,
    /// Data of an extension.
    data: Bytes,
}

impl Walker {
    /// Returns a walker of an archive that comes in pieces, with its length if it is known.
    pub(super) fn new(len: Option<u64>) -> Self {
        Walker {
            feed: Feed::of_len(len),
            max_member: u64::MAX,
            ..Walker::default()
        }
    }

    /// Returns a walker of an archive that is whole in memory.
    pub(super) fn whole(archive: Bytes) -> Self {
        let mut walker = Walker::new(None);
        walker.push(archive);
        walker.end();
        walker
    }

    /// Skips the data: files are returned empty, with their positions.
    pub(super) fn headers_only(self) -> Self {
        Walker {
            headers_only: true,
            ..self
        }
    }

    /// Sets the rules for the end of the archive.
    pub(super) fn ends(self, ends: Ends) -> Self {
        Walker { ends, ..self }
    }

    /// Refuses larger members before their bytes are collected.
    pub(super) fn max_member(self, max_member: u64) -> Self {
        Walker { max_member, ..self }
    }

    /// Adds the next piece, when it is requested.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.feed.push(piece);
    }

    /// Ends the input: there are no more pieces.
    pub(super) fn end(&mut self) {
        self.feed.end();
    }

    /// Returns the position at which the next piece has to begin, if bytes that are skipped anyway
    /// need not be read.
    pub(super) fn jump(&mut self) -> u64 {
        self.feed.jump()
    }

    /// Returns true if a global header changed names, sizes or types of members: then no part of
    /// the archive can be read by itself.
    pub(super) fn is_global(&self) -> bool {
        self.global.path.is_some() || self.global.size.is_some() || self.global.sparse
    }

    pub(super) fn next(&mut self) -> Step {
        match self.step() {
            Ok(step) => {
                if matches!(step, Step::End) {
                    self.state = State::Done;
                }
                step
            }
            Err(fault) => {
                self.state = State::Done;
                Step::Broken(self.name(fault))
            }
        }
    }

    fn step(&mut self) -> Result<Step, Fault> {
        loop {
            match self.state {
                State::Header => {
                    let at = self.feed.at();
                    match self.feed.is_between() {
                        Some(true) if at > 0 && self.extension.count == 0 => {
                            return self.ends.check(0).map(|()| Step::End);
                        }
                        Some(false) => return Ok(Step::More),
                        _ => {}
                    }
                    let what = if at == 0 {
                        "no tar archive, a header"
                    } else {
                        "a header"
                    };
                    let Some(block) = self.feed.take(BLOCK as u64, what)? else {
                        return Ok(Step::More);
                    };
                    self.header(block[..].try_into().expect("taken with this length"), at)?;
                }
                State::Extension => {
                    let data = self.feed.take(self.next.size, "an extension header")?;
                    let Some(data) = data else {
                        return Ok(Step::More);
                    };
                    (self.next.data, self.state) = (data, State::ExtensionPadding);
                }
                State::ExtensionPadding => {
                    let padded = self.feed.take(padding(self.next.size), "padding")?;
                    if padded.is_none() {
                        return Ok(Step::More);
                    }
                    self.extend()?;
                    self.state = State::Header;
                }
                State::SparseMap => {
                    let map = self.feed.take(BLOCK as u64, "a map of a sparse member")?;
                    let Some(map) = map else {
                        return Ok(Step::More);
                    };
                    self.state = if map[504] != 0 {
                        State::SparseMap
                    } else {
                        State::Data
                    };
                }
                State::Data => match self.data()? {
                    Some(step) => return Ok(step),
                    None if self.state == State::Data => return Ok(Step::More),
                    None => {}
                },
                // A cut in the padding is detected after the member, which is complete.
                State::Padding => match self.feed.skip(padding(self.next.size), "") {
                    Ok(true) => self.state = State::Header,
                    Ok(false) => return Ok(Step::More),
                    Err((kind, _)) => {
                        self.place = self.feed.len();
                        return Err((kind, "cut in the padding of a member".to_owned()));
                    }
                },
                State::Zeros(seen) => {
                    if let Some(step) = self.zeros(seen)? {
                        return Ok(step);
                    }
                }
                State::Done => return Ok(Step::End),
            }
        }
    }

    fn header(&mut self, block: &[u8; BLOCK], at: u64) -> Result<(), Fault> {
        self.place = Some(at);
        if block[0] == 0 && block.iter().all(|&byte| byte == 0) {
            if self.extension.count > 0 {
                return Err(corrupt("an extension header without a member"));
            }
            self.state = State::Zeros(BLOCK as u64);
            return Ok(());
        }
        check_sum(block, at)?;
        self.place = None;

        let kind = block[156];
        // Links and devices have no data, whatever size they state.
        let is_bare = (b'1'..=b'6').contains(&kind);
        let own_size = if is_bare {
            0
        } else {
            number(&block[124..136]).ok_or_else(|| corrupt("a size that is no number"))?
        };
        if self.extension.count == 0 {
            self.next.start = at;
        }
        self.next.kind = kind;
        if !matches!(kind, b'L' | b'K' | b'x' | b'g') {
            self.next.size = if is_bare {
                0
            } else {
                self.extension.size.unwrap_or(own_size)
            };
            return self.member(block);
        }
        self.extension.count += 1;
        if self.extension.count > MAX_EXTENSIONS {
            let message = format!("more than {MAX_EXTENSIONS} extension headers in a row");
            return Err((ErrorKind::Limit, message));
        }
        if own_size > MAX_EXTENSION {
            let message =
                format!("an extension header of {own_size} bytes; {MAX_EXTENSION} are allowed");
            return Err((ErrorKind::Limit, message));
        }
        (self.next.size, self.state) = (own_size, State::Extension);
        Ok(())
    }

    /// Handles an extension that was read.
    fn extend(&mut self) -> Result<(), Fault> {
        let data = std::mem::take(&mut self.next.data);
        match self.next.kind {
            b'L' => self.extension.set_long_name(&data),
            b'K' => once(std::mem::replace(&mut self.extension.long_link, true)),
            b'x' => {
                once(std::mem::replace(&mut self.extension.pax, true))?;
                self.extension.read_pax(&data)
            }
            _ => {
                self.global.read_pax(&data)?;
                self.extension.read_pax(&data)
            }
        }
    }

    /// Handles a member whose header was read.
    fn member(&mut self, block: &[u8; BLOCK]) -> Result<(), Fault> {
        let next = &mut self.next;
        let extension = std::mem::replace(&mut self.extension, self.global.clone());
        next.name = extension.name(block)?;
        let is_sparse = next.kind == b'S' || extension.sparse;
        // Before there was a type for folders, they were empty files whose names end in a slash.
        next.regular =
            matches!(next.kind, b'0' | b'7') || next.kind == 0 && !next.name.ends_with('/');
        next.refused = match next.kind {
            _ if is_sparse => Some("a sparse member"),
            b'M' => Some("a part of a member that spans volumes"),
            _ => None,
        };
        let has_map = next.kind == b'S' && block[482] != 0;
        self.state = if has_map {
            State::SparseMap
        } else {
            State::Data
        };
        Ok(())
    }

    /// Returns the data of a member, read or skipped; `None` if more bytes are needed, or the
    /// member is no file.
    fn data(&mut self) -> Result<Option<Step>, Fault> {
        let Next {
            size,
            start,
            regular,
            refused,
            ..
        } = self.next;
        let (name, offset) = (&self.next.name, self.feed.at());
        let what = format_args!("member {name:?}");
        let data = if regular && refused.is_none() && !self.headers_only {
            if size > self.max_member {
                let message = format!("{what} has {size} bytes; {} are allowed", self.max_member);
                return Err((ErrorKind::Limit, message));
            }
            self.feed.take(size, what)?
        } else {
            self.feed.skip(size, what)?.then(Bytes::new)
        };
        let Some(data) = data else { return Ok(None) };
        let name = std::mem::take(&mut self.next.name);
        self.last = Some(name.clone());
        self.state = State::Padding;
        Ok(match refused {
            Some(what) => Some(Step::Refused(name, Error::unsupported(what))),
            None => regular.then(|| {
                Step::File(
                    File { name, data },
                    Place {
                        start,
                        offset,
                        size,
                    },
                )
            }),
        })
    }

    /// Handles the bytes after `seen` zeros; returns `None` for more zeros, or the header of
    /// another archive.
    fn zeros(&mut self, seen: u64) -> Result<Option<Step>, Fault> {
        match self.feed.is_between() {
            Some(true) => return self.ends.check(seen).map(|()| Some(Step::End)),
            Some(false) => return Ok(Some(Step::More)),
            None => {}
        }
        let (at, size) = (
            self.feed.at(),
            self.feed.left().unwrap_or(u64::MAX).min(BLOCK as u64),
        );
        let Some(block) = self.feed.take(size, "a block of zeros")? else {
            return Ok(Some(Step::More));
        };
        let Some(more) = block.iter().position(|&byte| byte != 0) else {
            self.state = State::Zeros(seen + size);
            return Ok(None);
        };
        if !self.ends.goes_on(seen + more as u64)? {
            return Ok(Some(Step::End));
        }
        let block: &[u8; BLOCK] = block[..]
            .try_into()
            .map_err(|_| corrupt("no archive after the end, but less than a header"))?;
        self.global = Extension::default();
        self.extension = Extension::default();
        self.state = State::Header;
        self.header(block, at).map(|()| None)
    }

    fn name(&self, (kind, what): Fault) -> Error {
        if self.feed.len() == Some(0) {
            return Error::new(kind, "an empty file where an archive is due");
        }
        let place = match &self.last {
            Some(name) => format!("after member {name:?}"),
            None => "before the first member".to_owned(),
        };
        let at = self.place.unwrap_or(self.feed.at());
        let of = self
            .feed
            .len()
            .map(|len| format!(" of {len}"))
            .unwrap_or_default();
        Error::new(kind, format!("{what}; at byte {at}{of}, {place}"))
    }
}
