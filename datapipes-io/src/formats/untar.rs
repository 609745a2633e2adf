//! Opens tar archives.

use bytes::Bytes;
use std::sync::Arc;

use datapipes::{Context, Error, ErrorKind, Facts, Item, Items, Pipe, Result};

use super::compression::{Expansion, inflate, is_gzip};
use super::tar::{Entries, Entry};
use crate::File;

/// Opens tar archives; see [`FileGraph::untar`](crate::FileGraph::untar).
///
/// - Reads the formats v7, ustar, GNU (long names) and pax. Folders, links and devices are left out. A sparse member
///   is refused by name, never given condensed.
/// - An archive that begins as gzip does is inflated first, as a whole; see [`Gunzip`](crate::Gunzip). So an error in
///   its last byte is found before its first member is given.
/// - A header with a wrong checksum, a cut, a malformed extension, an empty file, or data behind the end marker is
///   an error that tells the place and the member before. The members before it have been given by then; the next
///   archive follows.
/// - The end marker (two blocks of zeros) may be missing or half there, since there are tools that write none. So
///   a file cut exactly between two members cannot be told from a whole one.
/// - Names are names: nothing is ever written, so `..` and absolute paths mean nothing here. A member's
///   [origin](datapipes::Origin) is a child of its archive's, numbered among the members that come out.
#[derive(Clone, Debug, Default)]
pub struct Untar {
    expansion: Expansion,
}

impl Untar {
    /// With the default limits of [`max_expansion`](Untar::max_expansion).
    pub fn new() -> Self {
        Untar::default()
    }

    /// Refuses a gzipped archive that inflates to more than `bytes`, or to more than `ratio` times its own size once
    /// it is past 1 MiB. By default 8 GiB, and 1100 times, which is more than gzip can reach.
    pub fn max_expansion(self, bytes: u64, ratio: u64) -> Self {
        Untar { expansion: Expansion { bytes, ratio, ..self.expansion } }
    }
}

impl Pipe<File> for Untar {
    type Out = File;

    fn apply(&self, mut input: Items<File>, cx: &Context) -> Items<File> {
        let (expansion, cx) = (self.expansion, cx.clone());
        Items::generate(async move |out| {
            while let Some(archive) = out.next_from(&mut input).await {
                let (file, origin) = archive.into_parts();
                let entries = match open(file.data, expansion, &cx) {
                    Ok(entries) => entries,
                    Err(error) => {
                        out.emit(Err(error.of(&origin))).await;
                        continue;
                    }
                };
                let children = origin.children();
                for (index, entry) in entries.enumerate() {
                    if cx.is_cancelled() {
                        return;
                    }
                    // The file's own name: shared, not copied.
                    let place = |name: &Arc<str>| children.at(index as u64).named(name.clone());
                    let item = match entry {
                        Entry::File(file) => {
                            let origin = place(&file.name);
                            Ok(Item::new(file, origin))
                        }
                        Entry::Refused(name, error) => Err(error.of(&place(&name))),
                        Entry::Broken(error) => Err(error.of(&origin)),
                    };
                    out.emit(item).await;
                }
            }
        })
    }
    fn is_shardable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::any_order().with_children()
    }
    fn weigh(&self, file: &File) -> Option<usize> {
        Some(file.weight())
    }
}

fn open(data: Bytes, expansion: Expansion, cx: &Context) -> Result<Entries> {
    if data.is_empty() {
        return Err(Error::new(ErrorKind::Truncated, "an empty file where an archive is due"));
    }
    Ok(Entries::new(if is_gzip(&data) { inflate(&data, expansion, cx)? } else { data }))
}
