//! Reads records of files as their bytes arrive, or part by part.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{
    Context, Emitter, Error, Hints, Item, Items, Origin, Pipe, Result, Work, opaque_debug,
    wire_struct,
};
use futures::future::join_all;
use tracing::warn;

use super::Format;
use super::arriving::Arriving;
use super::compression::Inflating;
use super::framing::{Block, RecordPosition, RecordSplitter, Step};
use super::parts::Parts;
use crate::stores::Get;
use crate::stores::load::Loaded;
use crate::{File, FileRef};

/// Approximate number of bytes that it holds of a file besides finished blocks: the piece that is
/// being cut, and the piece before, which its blocks keep alive as slices. A piece has 4 MiB if read
/// from this machine, and mostly 1 MiB from elsewhere.
const HELD: usize = 8 << 20;
/// Maximum number of bytes of parts that are read at once, unless one part is larger.
const AHEAD: u64 = HELD as u64;

/// Splits files into blocks of whole records; small files, which are already in memory, are one
/// block, and so is each part of a file that is read part by part.
///
/// It reads one file after the other. Blocks of a file have the origin of the file.
pub(crate) struct SplitRecords<F: ?Sized>(pub(crate) Arc<F>);

opaque_debug!(SplitRecords<F: ?Sized> {});

wire_struct! {
    /// Position at which the reading of a file is to be resumed.
    #[derive(Clone)]
    struct Stop {
        /// The name of the file, and the version of its content.
        name: String,
        version: Option<String>,
        packed: bool,
        /// Position; of a file that is read part by part, the number of the part is that of the record.
        at: RecordPosition,
        /// Ranges before the position that have to be read again.
        heads: Vec<(u64, u64)>,
    }
}

impl<F: Format> Pipe<Loaded> for SplitRecords<F> {
    type Out = Block<F::Item>;

    fn apply(&self, mut input: Items<Loaded>, cx: &Context) -> Items<Block<F::Item>> {
        let (format, cx) = (self.0.clone(), cx.clone());
        Items::generate(async move |out| {
            let mut stop = match cx.restored::<Option<Stop>>() {
                Ok(restored) => restored.flatten(),
                Err(error) => return out.emit(Err(error)).await,
            };
            loop {
                out.snapshot(&cx, || stop.clone());
                let Some(file) = out.next_from(&mut input).await else {
                    return;
                };
                let (file, origin) = file.into_parts();
                let mut file = Reading {
                    format: &format,
                    out: &out,
                    origin,
                    cx: &cx,
                    read: file,
                    lost: false,
                };
                match file.give(stop.take()).await {
                    Err(error) if file.lost => {
                        // The following records would be taken for the missing ones.
                        warn!(file = %file.origin, %error, "an epoch cannot go on in the middle of a file");
                        let error = Error::config("cannot go on in this file").with_source(error);
                        return file.emit(Block::failed(error)).await;
                    }
                    Err(error) => file.emit(Block::failed(error)).await,
                    Ok(()) => {}
                }
            }
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        // The number of others depends on the sizes of the files.
        (input == u64::MAX).then_some(input)
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .work(Work::Io)
            .is_resumable(true)
            .buffered_bytes(HELD)
    }
    fn weigh(&self, block: &Block<F::Item>) -> Option<usize> {
        Some(block.weight)
    }
}

/// A file that is being split.
struct Reading<'a, F: Format + ?Sized> {
    format: &'a Arc<F>,
    out: &'a Emitter<Block<F::Item>>,
    origin: Origin,
    cx: &'a Context,
    read: Loaded,
    /// True if the file could not be resumed where the epoch was stopped.
    lost: bool,
}

impl<F: Format + ?Sized> Reading<'_, F> {
    async fn emit(&self, block: Block<F::Item>) {
        self.out
            .emit(Ok(Item::new(block, self.origin.clone())))
            .await;
    }

    async fn whole(&self, file: File) {
        let format = self.format.clone();
        let (first, weight) = (0, file.weight());
        self.emit(Block {
            first,
            weight,
            open: Box::new(move |cx| format.open(file, cx)),
        })
        .await;
    }

    /// Yields the blocks of the file, from a position on.
    async fn give(&mut self, stop: Option<Stop>) -> Result<()> {
        let file = match &self.read {
            Loaded::Large(file) => file.clone(),
            Loaded::Whole(file) => {
                if let Some(stop) = stop.filter(|stop| stop.name == *file.name) {
                    self.lost = true;
                    let what = format!("stopped after byte {} of a larger file", stop.at.offset);
                    return Err(Error::changed(what));
                }
                self.whole(file.clone()).await;
                return Ok(());
            }
        };
        let name = file.name().into_owned();
        let stop = stop.filter(|stop| stop.name == name);
        let goes_on = stop.is_some();
        if let Some(parted) = self.format.by_parts() {
            // As long as the rest of the file cannot be read, it counts as lost: the delivered items of
            // this file must not be skipped in the next one.
            self.lost = goes_on;
            return match parted.0.open(&file, self.cx).await? {
                Some(parts) => self.give_parts(&name, &parts, stop).await,
                None if goes_on => {
                    let what = "it cannot be read part by part any more";
                    Err(Error::changed(what))
                }
                None => {
                    let mut arriving = Arriving::open(&file, Get::default()).await?;
                    let first = arriving.first(0).await?.unwrap_or_default();
                    self.whole(File::new(name, arriving.all(first).await?))
                        .await;
                    Ok(())
                }
            };
        }
        let splitter = self.format.splitter();
        let mut splitter = splitter.expect("large files are of formats with parts or records");
        let opened = Source::open(&file, &mut splitter, stop, self.cx).await;
        self.lost = goes_on && opened.is_err();
        let mut source = match opened? {
            Ok(source) => source,
            Err(file) => {
                self.whole(file).await;
                return Ok(());
            }
        };
        while !self.cx.is_cancelled() {
            // The file itself comes again, and is opened there.
            self.out.snapshot_with(self.cx, |held| {
                held.hold(self.cx.position(0).checked_sub(1));
                let (at, heads) = splitter.split.place();
                let (name, version, packed) =
                    (name.clone(), source.version(), source.inflating.is_some());
                Some(Stop {
                    name,
                    version,
                    packed,
                    at,
                    heads: heads.to_vec(),
                })
            });
            match splitter.split.step() {
                Step::Block(block) => self.emit(block).await,
                Step::End => break,
                Step::More => match source.next(self.cx).await {
                    Ok(Some(piece)) => splitter.split.push(piece),
                    Ok(None) => splitter.split.end(),
                    Err(error) => {
                        if let Some(block) = splitter.split.flush() {
                            self.emit(block).await;
                        }
                        return Err(error);
                    }
                },
            }
        }
        Ok(())
    }

    /// Yields the parts of the file, from a position on.
    async fn give_parts(
        &mut self,
        name: &str,
        parts: &Arc<dyn Parts<F::Item>>,
        stop: Option<Stop>,
    ) -> Result<()> {
        let version = parts.version().cloned();
        let first = match stop {
            Some(stop) if stop.version != version => {
                return Err(Error::changed("another version of the file"));
            }
            stop => stop.map_or(0, |stop| stop.at.record as usize),
        };
        let mut part = first;
        while part < parts.len() && !self.cx.is_cancelled() {
            let end = ahead(&**parts, part);
            // All are complete before the first is handed on: nobody polls a request while the
            // consumer does something else.
            let blocks = join_all((part..end).map(|part| parts.clone().read(part))).await;
            for (at, block) in (part..end).zip(blocks) {
                self.out.snapshot_with(self.cx, |held| {
                    // The file itself comes again, and is opened there.
                    held.hold(self.cx.position(0).checked_sub(1));
                    Some(Stop {
                        name: name.to_owned(),
                        version: version.clone(),
                        packed: false,
                        at: RecordPosition {
                            record: at as u64,
                            ..RecordPosition::default()
                        },
                        heads: Vec::new(),
                    })
                });
                let block = block?;
                self.lost = false;
                self.emit(block).await;
            }
            part = end;
        }
        Ok(())
    }
}

/// Returns the end of the parts that are read at once, from a first one on.
fn ahead<T>(parts: &dyn Parts<T>, first: usize) -> usize {
    let mut bytes = parts.size(first);
    let more = (first + 1..parts.len()).take_while(|&part| {
        bytes += parts.size(part);
        bytes <= AHEAD
    });
    first + 1 + more.count()
}

/// Number of bytes of a file that are examined to recognize its compression, if there are that
/// many.
const FIRST: usize = 64 << 10;

/// The content of a file, from a position on.
struct Source {
    arriving: Option<Arriving>,
    /// Decompressor, if the file is compressed.
    inflating: Option<Inflating>,
    version: Option<String>,
}

impl Source {
    /// Opens a file for the splitter, or reads it whole if it cannot be split.
    async fn open<T: Send + 'static>(
        file: &FileRef,
        splitter: &mut RecordSplitter<T>,
        stop: Option<Stop>,
        cx: &Context,
    ) -> Result<Result<Source, File>> {
        splitter.allow(cx);
        let version = stop.as_ref().and_then(|stop| stop.version.clone());
        let stop = match stop {
            Some(stop) if !stop.packed => {
                return Source::resume(file, splitter, stop).await.map(Ok);
            }
            stop => stop,
        };
        let mut arriving = Arriving::open(file, Get::default().of_version(version)).await?;
        let first = arriving.first(FIRST).await?.unwrap_or_default();
        let name = file.name();
        let packing = (splitter.packing)(&first, &name)?;
        let version = arriving.version().cloned();
        let Some(packing) = packing else {
            if splitter.split.is_whole(&first) {
                return Ok(Err(File::new(name, arriving.all(first).await?)));
            }
            if let Some(len) = arriving.len() {
                splitter.split.begin(len);
            }
            splitter.split.push(first);
            return Ok(Ok(Source {
                arriving: Some(arriving),
                inflating: None,
                version,
            }));
        };
        let inflating = Inflating::new(packing, arriving.len(), splitter.expansion, cx);
        inflating.push(first);
        let mut source = Source {
            arriving: Some(arriving),
            inflating: Some(inflating),
            version,
        };
        match stop {
            Some(stop) => source.skip(splitter, &stop, cx).await?,
            None => {
                let first = source.next(cx).await?.unwrap_or_default();
                if splitter.split.is_whole(&first) {
                    let mut data = Vec::from(first);
                    while let Some(piece) = source.next(cx).await? {
                        data.extend_from_slice(&piece);
                    }
                    let name =
                        super::Codec::of_name(&name).map_or(name.into_owned(), |(_, name)| name);
                    return Ok(Err(File::new(name, data)));
                }
                splitter.split.push(first);
            }
        }
        Ok(Ok(source))
    }

    /// Requests only the ranges that are read again, and the rest of the file.
    async fn resume<T: Send + 'static>(
        file: &FileRef,
        splitter: &mut RecordSplitter<T>,
        stop: Stop,
    ) -> Result<Source> {
        let Stop {
            version, at, heads, ..
        } = stop;
        let get = |begin, end| Get::range(begin..end).of_version(version.clone());
        let mut read = Vec::with_capacity(heads.len());
        for (begin, end) in heads {
            let mut arriving = Arriving::open(file, get(begin, end)).await?;
            let first = arriving.first(0).await?.unwrap_or_default();
            read.push(((begin, end), arriving.all(first).await?));
        }
        if let Some(len) = file.size {
            splitter.split.begin(len);
        }
        splitter.split.resume(at, read)?;
        let arriving = match file.size == Some(at.offset) {
            true => None,
            false => Some(Arriving::open(file, get(at.offset, u64::MAX)).await?),
        };
        Ok(Source {
            arriving,
            inflating: None,
            version,
        })
    }

    /// Decompresses and discards the bytes before a position.
    async fn skip<T: Send + 'static>(
        &mut self,
        splitter: &mut RecordSplitter<T>,
        stop: &Stop,
        cx: &Context,
    ) -> Result<()> {
        let mut heads: Vec<_> = stop.heads.iter().map(|&head| (head, Vec::new())).collect();
        let mut at = 0;
        while at < stop.at.offset {
            let Some(mut piece) = self.next(cx).await? else {
                return Err(Error::changed(format!(
                    "{at} bytes of content, and the epoch was stopped after {}",
                    stop.at.offset
                )));
            };
            let end = at + piece.len() as u64;
            for ((begin, until), data) in &mut heads {
                let (from, to) = ((*begin).max(at), (*until).min(end));
                if from < to {
                    data.extend_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
                }
            }
            if end > stop.at.offset {
                splitter
                    .split
                    .push(piece.split_off((stop.at.offset - at) as usize));
            }
            at = end;
        }
        splitter.split.resume(
            stop.at,
            heads
                .into_iter()
                .map(|(head, data)| (head, data.into()))
                .collect(),
        )
    }

    fn version(&self) -> Option<String> {
        self.version.clone()
    }

    async fn piece(&mut self) -> Result<Option<Bytes>> {
        match &mut self.arriving {
            Some(arriving) => arriving.piece().await,
            None => Ok(None),
        }
    }

    /// Returns the next piece of the content; `None` at the end.
    async fn next(&mut self, cx: &Context) -> Result<Option<Bytes>> {
        loop {
            let Some(mut inflating) = self.inflating.take() else {
                return self.piece().await;
            };
            let (inflating, step) = cx
                .blocking(move || {
                    let step = inflating.step();
                    (inflating, step)
                })
                .await?;
            let inflating = self.inflating.insert(inflating);
            match step? {
                Some(piece) => return Ok(Some(piece).filter(|piece| !piece.is_empty())),
                None => match &mut self.arriving {
                    Some(arriving) => match arriving.piece().await? {
                        Some(piece) => inflating.push(piece),
                        None => inflating.end(),
                    },
                    None => inflating.end(),
                },
            }
        }
    }
}

#[cfg(test)]
#[cfg(feature = "formats")]
mod tests;
