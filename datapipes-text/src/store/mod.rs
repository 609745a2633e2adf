//! Token stores: tokens of many documents in a file that is mapped into memory, and an index of the
//! documents.

mod batches;
mod documents;
mod gpt;
mod map;
mod megatron;
mod numpy;
#[cfg(test)]
mod tests;
mod tokenizer;
mod window;
mod writer;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::whole_file::read_text;
use datapipes::{DType, Error, Indexed, MapPipe, Result, Revision, Tensor, Weigh};

pub use self::batches::WindowGraphExt;
use self::documents::Bounds;
pub use self::gpt::{GptOrder, GptSample};
pub use self::window::Window;
pub use self::writer::TokenWriter;
use crate::{RowLayout, Tokens};

/// The numbers that tokens are stored as, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenWidth {
    /// 8 bits, unsigned.
    U8,
    /// 16 bits, unsigned: vocabularies up to 65,536.
    U16,
    /// 32 bits, signed, as Megatron stores large vocabularies; no id is negative.
    I32,
    /// 32 bits, unsigned.
    U32,
    /// 64 bits, signed; no id is negative, and none above `u32::MAX`.
    I64,
}

impl TokenWidth {
    /// Returns the number of bytes of a token.
    pub const fn size(self) -> usize {
        self.dtype().size()
    }

    /// Returns the type of the numbers.
    pub const fn dtype(self) -> DType {
        match self {
            TokenWidth::U8 => DType::U8,
            TokenWidth::U16 => DType::U16,
            TokenWidth::I32 => DType::I32,
            TokenWidth::U32 => DType::U32,
            TokenWidth::I64 => DType::I64,
        }
    }

    /// Appends ids as other numbers; returns the bits of them that are above the 32nd.
    #[inline(always)]
    fn widen<T>(self, bytes: &[u8], to: &mut Vec<T>, wide: impl Fn(u32) -> T) -> u64 {
        let mut high = 0;
        match self {
            TokenWidth::U8 => to.extend(bytes.iter().map(|&id| wide(id.into()))),
            TokenWidth::U16 => {
                let id = |two: &[u8; 2]| wide(u16::from_le_bytes(*two).into());
                to.extend(bytes.as_chunks().0.iter().map(id));
            }
            TokenWidth::I32 | TokenWidth::U32 => {
                let id = |four: &[u8; 4]| wide(u32::from_le_bytes(*four));
                to.extend(bytes.as_chunks().0.iter().map(id));
            }
            TokenWidth::I64 => {
                let id = |eight: &[u8; 8]| {
                    let id = u64::from_le_bytes(*eight);
                    high |= id >> 32;
                    wide(id as u32)
                };
                to.extend(bytes.as_chunks().0.iter().map(id));
            }
        }
        high
    }

    /// Returns the largest id that fits.
    pub const fn max_id(self) -> u32 {
        match self {
            TokenWidth::U8 => u8::MAX as u32,
            TokenWidth::U16 => u16::MAX as u32,
            TokenWidth::I32 => i32::MAX as u32,
            TokenWidth::U32 | TokenWidth::I64 => u32::MAX,
        }
    }
}

/// Tokens of many documents, in files that are mapped into memory.
///
/// | files | opened by |
/// |---|---|
/// | Megatron's `NAME.bin` and `NAME.idx` | [`megatron`](TokenStore::megatron) |
/// | datatrove's `NAME.ds`, `NAME.ds.index` and `NAME.ds.metadata` | [`datatrove`](TokenStore::datatrove) |
/// | tokens in a row (`train.bin`), with or without ends of documents | [`flat`](TokenStore::flat) |
///
/// Opening a store reads the header of its index and nothing else, whatever its size; a page of a
/// file is read when a document or window in it is. [`windows`](TokenStore::windows) and
/// [`documents`](TokenStore::documents) are data by index: a global shuffle takes no memory in their
/// number. What an index says is checked where it is used; see [`check`](TokenStore::check).
///
/// An epoch over a store is resumed with the same contents, wherever they are: a checkpoint has the
/// numbers of tokens and documents, and a hash of 16 lengths and 16 places, which are read when a
/// graph is made. Batches of windows have it, too, by [`WindowGraphExt`]; a closure that calls
/// [`window_batch`](TokenStore::window_batch) or [`row_batch`](TokenStore::row_batch) tells a graph
/// nothing of its store.
///
/// Windows, and rows of a plan, are positions in the map of this process: read them before they are
/// sent to another one.
///
/// The files must not be written to or shortened while they are mapped: that is undefined behavior,
/// and a file that becomes shorter ends the process by a signal (`SIGBUS`).
///
/// # Examples
/// ```
/// use datapipes::DataLoader;
/// use datapipes_text::{TokenStore, TokenWidth, TokenWriter};
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("corpus");
/// let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
/// for document in 0..100u32 {
///     writer.push(&vec![document; 1 + document as usize % 7])?;
/// }
/// writer.finish()?;
///
/// let store = TokenStore::megatron(&path)?;
/// let rows = store.windows(64)?.shuffle().shard().fetch()    // all of it, with nothing in memory
///     .try_map(|window| window.row())                        // ids, labels, positions, bounds of documents
///     .batch(2)
///     .collate();
/// let batch = DataLoader::builder(rows).build()?.epoch(0).blocking().next().expect("there are 6 windows")?;
/// assert_eq!(batch.ids.shape(), [2, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TokenStore(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    /// Path of the tokens, for errors.
    name: String,
    tokens: Bytes,
    /// Tells the system how the tokens are read, if they are a file.
    advice: Option<Arc<map::Advice>>,
    width: TokenWidth,
    bounds: Bounds,
    /// A byte for each token, 1 if it is trained and 0 if not, and the name of the file.
    loss: Option<(String, Bytes)>,
    vocab: Option<u32>,
    /// Name of the tokenizer, if the store has one.
    tokenizer: Option<String>,
    /// File in which `datapipes tokenize` has its settings, if it made the store.
    settings: Option<PathBuf>,
    /// Description of the contents, once it was asked for.
    contents: OnceLock<String>,
}

/// Number of documents, and of places, that tell stores apart.
const SAMPLES: u64 = 16;
/// Number of tokens at a place.
const SAMPLE: u64 = 32;

impl TokenStore {
    /// Opens `PREFIX.bin` and `PREFIX.idx`, as Megatron-LM and the tools around it write them.
    ///
    /// # Errors
    /// Errors of opening and mapping the files. `Corrupt` if the index is no index, `Truncated` if
    /// it is shorter than its counts say, `Unsupported` for another version, or numbers that are no
    /// tokens; each with file and byte.
    pub fn megatron(prefix: impl AsRef<Path>) -> Result<TokenStore> {
        let (bin, idx) = (with(prefix.as_ref(), ".bin"), with(prefix.as_ref(), ".idx"));
        let (tokens, advice) = map::map_advised(&bin)?;
        let store = TokenStore::from_megatron(name(&bin), tokens, name(&idx), map::map(&idx)?)?;
        Ok(store.with(|inner| {
            inner.settings = Some(with(prefix.as_ref(), ".json"));
            inner.advice = advice;
        }))
    }

    /// Uses the contents of a `.bin` and an `.idx`, with their names for errors.
    ///
    /// # Errors
    /// As [`megatron`](TokenStore::megatron), once the files are there.
    pub fn from_megatron(
        bin_name: impl Into<String>,
        bin: Bytes,
        idx_name: impl Into<String>,
        idx: Bytes,
    ) -> Result<TokenStore> {
        let (width, bounds) = megatron::parse(idx_name.into(), idx)?;
        TokenStore::new(bin_name.into(), bin, width, bounds)
    }

    /// Opens `PATH`, a `.ds` of datatrove and nanotron, and its index `PATH.index`. The width is
    /// that in `PATH.metadata` if there is one, else [`TokenWidth::U16`], as in datatrove. If there is a
    /// `PATH.loss`, it says which tokens are trained; see [`loss`](TokenStore::loss).
    ///
    /// # Errors
    /// Errors of opening and mapping the files; `Corrupt` if metadata, index and tokens contradict
    /// each other; each with its file.
    pub fn datatrove(path: impl AsRef<Path>) -> Result<TokenStore> {
        let path = path.as_ref();
        let metadata = with(path, ".metadata");
        let (tokenizer, width, count) = match read_text(&metadata, 1 << 20) {
            Ok(text) => datatrove_metadata(&text).ok_or_else(|| {
                Error::corrupt(format!(
                    "{}: no `tokenizer|size` in the first line, or no count in the next",
                    name(&metadata)
                ))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                (None, TokenWidth::U16, None)
            }
            Err(error) => return Err(map::failed(&metadata, error)),
        };
        let mut store = TokenStore::flat(path, width, Some(&with(path, ".index")))?;
        store = store.with(|inner| {
            inner.tokenizer = tokenizer;
            inner.settings = Some(path.with_extension("json"));
        });
        let loss = with(path, ".loss");
        if loss.exists() {
            store = store.loss(name(&loss), map::map(&loss)?)?;
        }
        match count {
            Some(count) if count != store.len() => Err(Error::corrupt(format!(
                "{}: it says that there are {count} tokens, and {} has {} of {} bytes",
                name(&metadata),
                store.0.name,
                store.len(),
                width.size()
            ))),
            _ => Ok(store),
        }
    }

    /// Opens a file of tokens in a row, without a header. `ends` is a file of the end of each
    /// document in tokens, of 64 bits each; without it the file is one document.
    ///
    /// # Errors
    /// Errors of opening and mapping the files; `Corrupt` if the length of one is no multiple of
    /// its numbers, or the last document does not end with the tokens.
    pub fn flat(
        path: impl AsRef<Path>,
        width: TokenWidth,
        ends: Option<&Path>,
    ) -> Result<TokenStore> {
        let path = path.as_ref();
        let ends = match ends {
            Some(ends) => Some((name(ends), map::map(ends)?)),
            None => None,
        };
        let (tokens, advice) = map::map_advised(path)?;
        let store = TokenStore::from_flat(name(path), tokens, width, ends)?;
        Ok(store.with(|inner| inner.advice = advice))
    }

    /// Uses tokens in a row and the ends of documents, with their names for errors.
    ///
    /// # Errors
    /// As [`flat`](TokenStore::flat), once the files are there.
    pub fn from_flat(
        tokens_name: impl Into<String>,
        tokens: Bytes,
        width: TokenWidth,
        ends: Option<(String, Bytes)>,
    ) -> Result<TokenStore> {
        let bounds = match ends {
            Some((name, ends)) => Bounds::ends(name, ends)?,
            None => Bounds::Whole((tokens.len() / width.size()) as u64),
        };
        TokenStore::new(tokens_name.into(), tokens, width, bounds)
    }

    fn new(name: String, tokens: Bytes, width: TokenWidth, bounds: Bounds) -> Result<TokenStore> {
        let size = width.size();
        if !tokens.len().is_multiple_of(size) {
            return Err(Error::corrupt(format!(
                "{name}: {} bytes, no multiple of the {size} of a token",
                tokens.len()
            )));
        }
        let store = TokenStore(Arc::new(Inner {
            name,
            tokens,
            advice: None,
            width,
            bounds,
            loss: None,
            vocab: None,
            tokenizer: None,
            settings: None,
            contents: OnceLock::new(),
        }));
        let end = store.0.bounds.end(size)?;
        if end > store.len() {
            return Err(Error::truncated(format!(
                "{}: {} tokens, and the last document in {} ends at {end}",
                store.0.name,
                store.len(),
                store.0.bounds.name()
            )));
        }
        Ok(store)
    }

    /// Sets the size of the vocabulary: an id that is not below it is an error of kind `Corrupt`
    /// wherever it is read, so that the tokens of another tokenizer are found.
    #[must_use]
    pub fn vocab(self, size: u32) -> TokenStore {
        self.with(|inner| inner.vocab = Some(size))
    }

    /// Returns the store with a change of what it says of itself.
    fn with(&self, change: impl FnOnce(&mut Inner)) -> TokenStore {
        let mut inner = Inner::clone(&self.0);
        inner.contents = OnceLock::new();
        change(&mut inner);
        TokenStore(Arc::new(inner))
    }

    /// Uses a mask of the tokens that are trained, of a byte for each: 1, or 0 for one whose label is
    /// −100, such as a prompt's. datatrove writes it with `save_loss_metadata`. The rows of windows,
    /// plans and samples, and [`labelled_documents`](TokenStore::labelled_documents), have labels
    /// accordingly.
    ///
    /// # Errors
    /// `Corrupt` if there is another number of bytes than of tokens, with the name.
    pub fn loss(self, mask_name: impl Into<String>, mask: Bytes) -> Result<TokenStore> {
        let mask_name = mask_name.into();
        if mask.len() as u64 != self.len() {
            return Err(Error::corrupt(format!(
                "{mask_name}: {} bytes, and {} has {} tokens",
                mask.len(),
                self.0.name,
                self.len()
            )));
        }
        Ok(self.with(|inner| inner.loss = Some((mask_name, mask))))
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> u64 {
        (self.0.tokens.len() / self.0.width.size()) as u64
    }

    /// Returns true if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers that tokens are stored as.
    pub fn width(&self) -> TokenWidth {
        self.0.width
    }

    /// Describes what is in the store and not where it is, for settings: the same store elsewhere is
    /// described in the same way.
    pub(crate) fn contents(&self) -> &str {
        self.0.contents.get_or_init(|| {
            let mask = match self.0.loss {
                Some(_) => ", with a mask",
                None => "",
            };
            let (tokens, documents) = (self.len(), self.document_count());
            let width = self.width();
            let key = match &self.0.advice {
                Some(advice) => advice.at_random(|| self.sampled()),
                None => self.sampled(),
            };
            format!("{tokens} tokens in {documents} documents, {width:?}{mask}, {key:016x}")
        })
    }

    /// Returns a hash of some lengths of documents, and of some tokens with their mask. What cannot
    /// be read is an error where it is used.
    fn sampled(&self) -> u64 {
        let spread = |count: u64| {
            let last = u128::from(count.saturating_sub(1));
            let place = move |at| (u128::from(at) * last / u128::from(SAMPLES - 1)) as u64;
            (0..SAMPLES.min(count)).map(move |at| if count > SAMPLES { place(at) } else { at })
        };
        let mut hasher = blake3::Hasher::new();
        for number in spread(self.document_count()) {
            let len = self.document_len(number).unwrap_or(u64::MAX);
            hasher.update(&len.to_le_bytes());
        }
        for place in spread(self.len()) {
            let range = place..place.saturating_add(SAMPLE).min(self.len());
            hasher.update(self.bytes(&range).unwrap_or_default());
            if let Some((_, mask)) = &self.0.loss {
                hasher.update(&mask[range.start as usize..range.end as usize]);
            }
        }
        let mut key = [0; 8];
        hasher.finalize_xof().fill(&mut key);
        u64::from_le_bytes(key)
    }

    /// Returns the revision of data made of the store, which other data of it have not.
    fn revision(&self, settings: impl fmt::Display) -> Revision {
        Revision::Fixed(format!("{}{settings}", self.contents()))
    }

    /// Returns the number of documents.
    pub fn document_count(&self) -> u64 {
        self.0.bounds.count()
    }

    /// Returns the tokens of a document.
    ///
    /// # Errors
    /// `Corrupt` or `Truncated` if the index contradicts itself or the tokens, with file and byte;
    /// `NotFound` for a number that no document has.
    pub fn document(&self, number: u64) -> Result<Vec<u32>> {
        Ok(self.labelled_document(number)?.ids)
    }

    /// Returns the tokens of a document, with labels if the store has a [mask](TokenStore::loss).
    ///
    /// # Errors
    /// As [`document`](TokenStore::document); `Corrupt` for a byte of the mask that is neither 0 nor
    /// 1.
    pub fn labelled_document(&self, number: u64) -> Result<Tokens> {
        let ranges = self.ranges(number)?;
        let mut tokens = Tokens::from(Vec::with_capacity(total(&ranges) as usize));
        for range in ranges {
            self.read_labelled(range, &mut tokens)?;
        }
        Ok(tokens)
    }

    /// Returns the number of tokens of a document, from the index alone.
    ///
    /// # Errors
    /// As [`document`](TokenStore::document).
    pub fn document_len(&self, number: u64) -> Result<u64> {
        Ok(total(&self.ranges(number)?))
    }

    /// Returns the ranges of a document's tokens, all of which are there, and not more of them than
    /// the store has.
    fn ranges(&self, number: u64) -> Result<Vec<Range<u64>>> {
        if number >= self.document_count() {
            return Err(Error::not_found(format!(
                "{}: document {number} of {}",
                self.0.name,
                self.document_count()
            )));
        }
        let ranges = self.0.bounds.document(number, self.0.width.size())?;
        ranges
            .iter()
            .try_for_each(|range| self.bytes(range).map(drop))?;
        let tokens = total(&ranges);
        if tokens > self.len() {
            let what = format!("document {number} has {tokens} tokens");
            return Err(self.too_many(what));
        }
        Ok(ranges)
    }

    /// Makes the error of documents that have tokens in common.
    pub(crate) fn overlap(&self) -> Error {
        self.too_many("documents have more tokens, some in common".to_owned())
    }

    /// Makes the error of an index that says that there are more tokens than in the store.
    fn too_many(&self, what: String) -> Error {
        let (index, store) = (self.0.bounds.name(), &self.0.name);
        let message = format!("{index}: {what}, and {store} has {}", self.len());
        Error::corrupt(message)
    }

    /// Returns at most `len` tokens of a document, beginning with token `start`.
    pub(crate) fn part(&self, number: u64, start: u64, len: usize) -> Result<Tokens> {
        let (mut skipped, mut tokens) = (start, Tokens::from(Vec::with_capacity(len)));
        for range in self.ranges(number)? {
            let begin = range.start.saturating_add(skipped).min(range.end);
            skipped -= begin - range.start;
            let end = begin
                .saturating_add((len - tokens.ids.len()) as u64)
                .min(range.end);
            self.read_labelled(begin..end, &mut tokens)?;
        }
        Ok(tokens)
    }

    /// Returns all documents with labels as data by index, for a store with a
    /// [mask](TokenStore::loss). Everything else is as in [`documents`](TokenStore::documents).
    pub fn labelled_documents(&self) -> Indexed<Tokens> {
        self.by_number("labelled_documents", TokenStore::labelled_document)
    }

    /// Returns all documents as data by index: `store.documents().shuffle().shard().fetch()`.
    /// Their ids alone: with a [mask](TokenStore::loss) see
    /// [`labelled_documents`](TokenStore::labelled_documents).
    ///
    /// They are read where they are fetched, on the async runtime: a page that is not in memory holds
    /// up the other reads there. [`windows`](TokenStore::windows) and a [`PackPlan`](crate::PackPlan)
    /// are read on the CPU workers.
    ///
    /// # Errors
    /// An item that cannot be read is an error as in [`document`](TokenStore::document).
    pub fn documents(&self) -> Indexed<Vec<u32>> {
        self.by_number("documents", TokenStore::document)
    }

    fn by_number<T: Weigh + Send + 'static>(
        &self,
        name: &'static str,
        read: fn(&TokenStore, u64) -> Result<T>,
    ) -> Indexed<T> {
        self.read_in_a_row();
        let store = self.clone();
        Indexed::new(Documents { store, name, read })
    }

    /// Returns the tokens cut into windows of `length`, as data by index: window `i` has tokens
    /// `i * length` and those after it, of as many documents as there are. The tokens that are left
    /// over at the end are in no window.
    ///
    /// Windows are expected in a random order: of a file that is not in memory, the system reads the
    /// pages of a window and nothing around them. [`documents`](TokenStore::documents) that follow each
    /// other are read ahead. The last call of either decides, for all who read the store.
    ///
    /// `length` may be a [`RowLayout`], which has the length and what else decides about
    /// [rows](Window::row).
    ///
    /// A window is a position: it is read by [`Window::row`] or [`Window::ids`], in a step after
    /// `fetch`, which runs on the CPU workers. For ids alone
    /// [`window_batch`](TokenStore::window_batch) is faster.
    ///
    /// # Errors
    /// `Config` for a length of 0, or a layout with gaps. `Unsupported` if documents are not stored one after another,
    /// from the beginning to the end, as far as the ends of the index tell.
    pub fn windows(&self, length: impl Into<RowLayout>) -> Result<Indexed<Window>> {
        let layout = self.layout_of_windows(length.into())?;
        self.read_at_random();
        Ok(Indexed::new(Windows(self.clone(), Arc::new(layout))))
    }

    /// Announces that tokens are read at random places from now on, as windows mostly are.
    fn read_at_random(&self) {
        if let Some(advice) = &self.0.advice {
            advice.random();
        }
    }

    /// Announces that tokens may be read in a row from now on, as documents are.
    fn read_in_a_row(&self) {
        if let Some(advice) = &self.0.advice {
            advice.in_a_row();
        }
    }

    /// Returns the layout, if windows can have it.
    fn layout_of_windows(&self, layout: RowLayout) -> Result<RowLayout> {
        let length = layout.length;
        if length == 0 || u32::try_from(length).is_err() {
            let message = format!("windows of {length} tokens: 1 to {} are possible", u32::MAX);
            return Err(Error::config(message));
        }
        if layout.has_gaps() {
            let message = "windows have no gaps between documents, and as many as there are";
            return Err(Error::config(message));
        }
        self.0
            .bounds
            .check_in_a_row(self.len(), self.0.width.size())?;
        Ok(layout)
    }

    /// Checks that windows have these numbers.
    fn check_windows(&self, length: usize, windows: &[u64]) -> Result<()> {
        let count = self
            .len()
            .checked_div(length as u64)
            .ok_or_else(|| Error::config("windows of no tokens"))?;
        match windows.iter().find(|&&number| number >= count) {
            Some(number) => {
                let message = format!("{}: window {number} of {count}", self.0.name);
                Err(Error::not_found(message))
            }
            None => Ok(()),
        }
    }

    /// Returns the ids of some windows of `length` tokens, by the windows' numbers, as a batch
    /// `[windows, length]` of the stored type. This is the fastest way to ids alone: one copy from
    /// the mapped file, and no item for each window. All fields are in
    /// [`row_batch`](TokenStore::row_batch). In a graph use
    /// [`window_batches`](WindowGraphExt::window_batches), by which a checkpoint knows the store.
    ///
    /// # Errors
    /// `NotFound` for a number that no window has; `Corrupt` for an id that is not in the
    /// [vocabulary](TokenStore::vocab), if that was set; `Config` for a length of 0.
    ///
    /// # Examples
    /// ```
    /// use datapipes_text::{TokenStore, TokenWidth};
    ///
    /// let tokens: Vec<u8> = (0..100u16).flat_map(u16::to_le_bytes).collect();
    /// let store = TokenStore::from_flat("tokens", tokens.into(), TokenWidth::U16, None)?;
    /// assert_eq!(store.window_batch(2, &[7, 0])?.as_slice::<u16>()?, [14, 15, 0, 1]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn window_batch(&self, length: usize, windows: &[u64]) -> Result<Tensor> {
        self.check_windows(length, windows)?;
        macro_rules! copy {
            ($number:ty) => {
                Tensor::from_fill([windows.len(), length], |ids| {
                    self.prefetch_begins(length, windows)?;
                    for (at, &window) in windows.iter().enumerate() {
                        self.prefetch_next(length, &windows[at + 1..])?;
                        let range = place(length, window);
                        let begin = ids.len();
                        let bytes = self.bytes(&range)?;
                        match bytemuck::try_cast_slice(bytes) {
                            // As `memcpy` does it, with the widest registers that there are.
                            Ok(same) if cfg!(target_endian = "little") => {
                                ids.extend_from_slice(same)
                            }
                            _ => {
                                let bytes = bytes.as_chunks().0.iter();
                                ids.extend(bytes.map(|id| <$number>::from_le_bytes(*id)));
                            }
                        }
                        // A negative number is large as one without a sign.
                        let largest = || ids[begin..].iter().map(|&id| i64::from(id) as u64).max();
                        if self
                            .0
                            .vocab
                            .is_some_and(|vocab| largest() >= Some(vocab.into()))
                        {
                            return Err(self.no_token(&range));
                        }
                    }
                    Ok(())
                })
            };
        }
        match self.0.width {
            TokenWidth::U8 => copy!(u8),
            TokenWidth::U16 => copy!(u16),
            TokenWidth::I32 => copy!(i32),
            TokenWidth::U32 => copy!(u32),
            TokenWidth::I64 => copy!(i64),
        }
    }

    /// Asks the processor for the beginnings of windows that are read soon. Random windows wait for
    /// the addresses of their pages; those of several are found at once.
    fn prefetch_begins(&self, length: usize, windows: &[u64]) -> Result<()> {
        const WINDOWS: usize = 64;
        const LINES: usize = 4;
        for &window in windows.iter().take(WINDOWS) {
            prefetch(self.bytes(&place(length, window))?, LINES);
        }
        Ok(())
    }

    /// Asks the processor for 4 KiB of the first of the windows that are read next.
    fn prefetch_next(&self, length: usize, windows: &[u64]) -> Result<()> {
        const LINES: usize = 64;
        if let Some(&next) = windows.first() {
            prefetch(self.bytes(&place(length, next))?, LINES);
        }
        Ok(())
    }

    /// Reads all of the index and all tokens, and checks them.
    ///
    /// # Errors
    /// The first contradiction, with file and byte.
    pub fn check(&self) -> Result<()> {
        for number in 0..self.document_count() {
            for range in self.ranges(number)? {
                self.read_labelled(range, &mut Tokens::default())?;
            }
        }
        Ok(())
    }

    /// Appends tokens, and their labels if there is a mask.
    fn read_labelled(&self, range: Range<u64>, tokens: &mut Tokens) -> Result<()> {
        self.read(range.clone(), &mut tokens.ids)?;
        if self.0.loss.is_some() {
            self.read_labels(range, tokens.labels.get_or_insert_default())?;
        }
        Ok(())
    }

    /// Appends tokens as labels: −100 where the mask says so. They are not checked.
    #[inline(always)]
    fn read_labels(&self, range: Range<u64>, labels: &mut Vec<i64>) -> Result<()> {
        let begin = labels.len();
        self.0.width.widen(self.bytes(&range)?, labels, i64::from);
        let Some((name, mask)) = &self.0.loss else {
            return Ok(());
        };
        for (byte, label) in (range.start..range.end).zip(&mut labels[begin..]) {
            match mask[byte as usize] {
                0 => *label = -100,
                1 => {}
                other => {
                    let message =
                        format!("{name}: byte {byte}: {other}, where 0 and 1 are possible");
                    return Err(Error::corrupt(message));
                }
            }
        }
        Ok(())
    }

    /// Appends tokens, widened and checked.
    #[inline(always)]
    fn read(&self, range: Range<u64>, ids: &mut Vec<u32>) -> Result<()> {
        let begin = ids.len();
        let high = self.0.width.widen(self.bytes(&range)?, ids, |id| id);
        // A negative number is large as one without a sign.
        let most = self
            .0
            .vocab
            .map_or(self.0.width.max_id(), |vocab| vocab.saturating_sub(1));
        let can_exceed = self.0.vocab.is_some() || self.0.width == TokenWidth::I32;
        // The largest is found faster than the first that is too large.
        if high > 0 || (can_exceed && ids[begin..].iter().max().is_some_and(|&id| id > most)) {
            return Err(self.no_token(&range));
        }
        Ok(())
    }

    /// Makes the error of the first token in a range that is none.
    fn no_token(&self, range: &Range<u64>) -> Error {
        let size = self.0.width.size();
        let bytes = self.bytes(range).unwrap_or_default();
        let value = |bytes: &[u8]| match self.0.width {
            TokenWidth::I32 => i64::from(i32::from_le_bytes(bytes.try_into().expect("four bytes"))),
            _ => {
                let mut eight = [0; 8];
                eight[..size].copy_from_slice(bytes);
                i64::from_le_bytes(eight)
            }
        };
        let most = self
            .0
            .vocab
            .map_or(i64::from(u32::MAX), |vocab| i64::from(vocab) - 1);
        let wrong = |&(_, id): &(usize, i64)| !(0..=most).contains(&id);
        let (at, id) = bytes
            .chunks_exact(size)
            .map(value)
            .enumerate()
            .find(wrong)
            .unwrap_or_default();
        let byte = (range.start as usize + at) * size;
        Error::corrupt(format!(
            "{}: byte {byte}: id {id}, where ids are 0 to {most}",
            self.0.name
        ))
    }

    /// Returns the bytes of some tokens.
    fn bytes(&self, range: &Range<u64>) -> Result<&[u8]> {
        let size = self.0.width.size() as u64;
        let byte = |at: u64| usize::try_from(at.checked_mul(size)?).ok();
        let found = byte(range.start).zip(byte(range.end));
        found
            .and_then(|(begin, end)| self.0.tokens.get(begin..end))
            .ok_or_else(|| {
                Error::truncated(format!(
                    "{}: {} tokens, and {} says that some are at {} to {}",
                    self.0.name,
                    self.len(),
                    self.0.bounds.name(),
                    range.start,
                    range.end
                ))
            })
    }
}

/// Documents by number, as a function reads them.
struct Documents<T> {
    store: TokenStore,
    name: &'static str,
    read: fn(&TokenStore, u64) -> Result<T>,
}

#[async_trait]
impl<T: Weigh + Send + 'static> MapPipe for Documents<T> {
    type Out = T;

    fn len(&self) -> u64 {
        self.store.document_count()
    }
    async fn get(&self, number: u64) -> Result<T> {
        (self.read)(&self.store, number)
    }
    async fn get_many(&self, numbers: &[u64]) -> Vec<Result<T>> {
        let read = |&number| (self.read)(&self.store, number);
        numbers.iter().map(read).collect()
    }
    fn revision(&self) -> Revision {
        self.store.revision("")
    }
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn sample_name(&self, number: u64) -> Option<Arc<str>> {
        Some(format!("{}/{number}", self.store.0.name).into())
    }
    fn weigh(&self, document: &T) -> Option<usize> {
        Some(document.weigh())
    }
}

/// Windows of a length by number.
struct Windows(TokenStore, Arc<RowLayout>);

impl Windows {
    fn window(&self, number: u64) -> Window {
        Window::new(
            self.0.clone(),
            number * self.1.length as u64,
            self.1.clone(),
        )
    }
}

#[async_trait]
impl MapPipe for Windows {
    type Out = Window;

    fn len(&self) -> u64 {
        self.0.len() / self.1.length as u64
    }
    async fn get(&self, number: u64) -> Result<Window> {
        Ok(self.window(number))
    }
    async fn get_many(&self, numbers: &[u64]) -> Vec<Result<Window>> {
        numbers
            .iter()
            .map(|&number| Ok(self.window(number)))
            .collect()
    }
    fn revision(&self) -> Revision {
        let (length, layout) = (self.1.length, self.1.settings());
        self.0
            .revision(format_args!(", windows of {length}{layout}"))
    }
    fn name(&self) -> String {
        "windows".to_owned()
    }
    fn sample_name(&self, number: u64) -> Option<Arc<str>> {
        Some(format!("{}/{number}", self.0.0.name).into())
    }
    fn weigh(&self, _: &Window) -> Option<usize> {
        Some(size_of::<Window>())
    }
}

datapipes::opaque_debug! {
    TokenStore { name = self.0.name, tokens = self.len(), width = self.0.width, documents = self.document_count() }
}

/// Returns the tokens of a window.
fn place(length: usize, window: u64) -> Range<u64> {
    let start = window * length as u64;
    start..start + length as u64
}

/// Asks the processor for some lines of bytes that are read soon.
fn prefetch(bytes: &[u8], lines: usize) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE).take(lines) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it is a hint, which reads nothing; the address is that of bytes that are there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, lines, LINE);
}

/// Returns the number of tokens of some ranges.
fn total(ranges: &[Range<u64>]) -> u64 {
    let lens = ranges.iter().map(|range| range.end - range.start);
    lens.fold(0, u64::saturating_add)
}

/// Returns name of the tokenizer, width and number of tokens according to the metadata of a `.ds`:
/// `NAME|SIZE`, the number, and the number for people.
fn datatrove_metadata(text: &str) -> Option<(Option<String>, TokenWidth, Option<u64>)> {
    let mut lines = text.lines();
    let (name, size) = lines.next()?.rsplit_once('|')?;
    let width = match size.trim() {
        "2" => TokenWidth::U16,
        "4" => TokenWidth::U32,
        _ => return None,
    };
    let count = match lines.next() {
        Some(count) => Some(count.trim().parse().ok()?),
        None => None,
    };
    // Without a tokenizer's name datatrove writes this placeholder.
    let is_name = !name.is_empty() && name != "Unknown Tokenizer";
    Some((is_name.then(|| name.to_owned()), width, count))
}

/// Returns the path with something after it.
fn with(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}
