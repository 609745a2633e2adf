//! Writes token stores.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Result};

use super::megatron::{CODES, MAGIC, VERSION};
use super::{TokenWidth, map, name, with};

/// Writes documents to a token store, one after another.
///
/// Tokens are written as they come, and the ends of documents to a file beside them (`….ends`), so
/// that memory does not grow with the store. The index is made by [`finish`](TokenWriter::finish),
/// so that a store that was not finished is not opened.
///
/// # Resume
/// A writer that ended early, with its process or without, is opened again at a document up to
/// which it was [synced](TokenWriter::sync):
/// ```
/// use datapipes_text::{TokenStore, TokenWidth, TokenWriter};
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("corpus");
/// let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
/// writer.push(&[1, 2, 3])?;
/// let documents = writer.sync()?;                       // with a checkpoint of what gives the documents
/// writer.push(&[4])?;
/// drop(writer);
///
/// let mut writer = TokenWriter::resume_megatron(&path, TokenWidth::U16, documents)?;
/// writer.push(&[5, 6])?;
/// writer.finish()?;
/// assert_eq!(TokenStore::megatron(&path)?.document(1)?, [5, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    tokens: BufWriter<File>,
    width: TokenWidth,
    format: Format,
    /// End of each document, in tokens, of 64 bits.
    ends: BufWriter<File>,
    /// Mask of the tokens that are trained, once there is one that is not.
    loss: Option<BufWriter<File>>,
    documents: u64,
    len: u64,
    /// True once a write failed.
    failed: bool,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Format {
    /// Prefix of the two files, and the code of the numbers.
    Megatron(PathBuf, u8),
    /// Name of the tokenizer.
    Datatrove(String),
}

impl TokenWriter {
    /// Writes `PREFIX.bin` and `PREFIX.idx`, as Megatron-LM reads them: a sequence and a document
    /// each. Files of these names are replaced.
    ///
    /// # Errors
    /// Errors of creating the file; `Config` for a width that Megatron has no code for (`U32`: use
    /// `I32`).
    pub fn megatron(prefix: impl AsRef<Path>, width: TokenWidth) -> Result<Self> {
        TokenWriter::resume_megatron(prefix, width, 0)
    }

    /// Goes on after the first `documents` of files that [`megatron`](TokenWriter::megatron) began;
    /// what follows them is removed.
    ///
    /// # Errors
    /// As [`megatron`](TokenWriter::megatron); `NotFound` or `Truncated` if there are not so many
    /// documents; `Config` if the store is finished, which stays as it is.
    pub fn resume_megatron(
        prefix: impl AsRef<Path>,
        width: TokenWidth,
        documents: u64,
    ) -> Result<Self> {
        let prefix = prefix.as_ref();
        let Some(&(code, _)) = CODES.iter().find(|(_, known)| *known == width) else {
            let message = format!(
                "Megatron's files have no tokens of {width:?}; `TokenWidth::I32` has as many bits"
            );
            return Err(Error::config(message));
        };
        let format = Format::Megatron(prefix.to_owned(), code);
        let index = with(prefix, ".idx");
        TokenWriter::open(with(prefix, ".bin"), &index, width, format, documents)
    }

    /// Writes `PATH` (`….ds`), `PATH.index` and `PATH.metadata`, as datatrove and nanotron read
    /// them. The metadata names the tokenizer. Files of these names are replaced.
    ///
    /// # Errors
    /// Errors of creating the file; `Config` for another width than `U16` and `U32`.
    pub fn datatrove(
        path: impl AsRef<Path>,
        width: TokenWidth,
        tokenizer: impl Into<String>,
    ) -> Result<Self> {
        TokenWriter::resume_datatrove(path, width, tokenizer, 0)
    }

    /// Goes on after the first `documents` of files that [`datatrove`](TokenWriter::datatrove)
    /// began; what follows them is removed.
    ///
    /// # Errors
    /// As [`datatrove`](TokenWriter::datatrove); `NotFound` or `Truncated` if there are not so many
    /// documents; `Config` if the store is finished, which stays as it is.
    pub fn resume_datatrove(
        path: impl AsRef<Path>,
        width: TokenWidth,
        tokenizer: impl Into<String>,
        documents: u64,
    ) -> Result<Self> {
        if !matches!(width, TokenWidth::U16 | TokenWidth::U32) {
            let message = format!("datatrove's files have tokens of U16 or U32, not of {width:?}");
            return Err(Error::config(message));
        }
        let (path, format) = (path.as_ref(), Format::Datatrove(tokenizer.into()));
        let index = with(path, ".index");
        TokenWriter::open(path.to_owned(), &index, width, format, documents)
    }

    fn open(
        path: PathBuf,
        index: &Path,
        width: TokenWidth,
        format: Format,
        documents: u64,
    ) -> Result<Self> {
        let ends_path = with(&path, ".ends");
        if documents > 0 && index.exists() && !ends_path.exists() {
            return Err(Error::config(format!(
                "{}: the store is finished, and is left as it is",
                name(index)
            )));
        }
        remove(index)?;
        let loss_path = with(&path, ".loss");
        if documents == 0 {
            remove(&loss_path)?;
        }
        let mut ends = open_at(&ends_path, documents, 8, documents == 0)?;
        let len = match documents {
            0 => 0,
            _ => last(&mut ends).map_err(|error| map::failed(&ends_path, error))?,
        };
        let tokens = open_at(&path, len, width.size() as u64, documents == 0)?;
        let loss = match loss_path.exists() {
            true => Some(open_at(&loss_path, len, 1, false)?),
            false => None,
        };
        Ok(TokenWriter {
            loss: loss.map(BufWriter::new),
            tokens: BufWriter::with_capacity(1 << 18, tokens),
            ends: BufWriter::new(ends),
            path,
            width,
            format,
            documents,
            len,
            failed: false,
            bytes: Vec::new(),
        })
    }

    /// Returns the number of tokens written so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if no token was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes a document.
    ///
    /// # Errors
    /// `Limit` if an id is larger than the width can hold, with document and token; then nothing of
    /// the document is written. Errors of writing, after which every call fails: a new writer resumes
    /// after the documents that were synced.
    pub fn push(&mut self, ids: &[u32]) -> Result<()> {
        self.add(ids, None)
    }

    /// Writes a document with labels, of which those that are −100 are not trained: a chat's prompt.
    /// They become `PATH.loss`, a byte for each token, as datatrove writes it with
    /// `save_loss_metadata`. There is no such file as long as all tokens are trained.
    ///
    /// # Errors
    /// As [`push`](TokenWriter::push); `Shape` for another number of labels than of ids;
    /// `Unsupported` for a label that is neither −100 nor the token itself, with document and token,
    /// and for a label of −100 in Megatron's files, which have no mask.
    ///
    /// # Examples
    /// ```
    /// use datapipes_text::{TokenStore, TokenWidth, TokenWriter};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("chats.ds");
    /// let mut writer = TokenWriter::datatrove(&path, TokenWidth::U16, "my tokenizer")?;
    /// writer.push_labelled(&[5, 6, 7], &[-100, -100, 7])?;
    /// writer.finish()?;
    /// let tokens = TokenStore::datatrove(&path)?.labelled_document(0)?;
    /// assert_eq!(tokens.labels, Some(vec![-100, -100, 7]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push_labelled(&mut self, ids: &[u32], labels: &[i64]) -> Result<()> {
        let number = self.documents;
        let wrong = |kind, what: String| {
            let what = format!("{}: document {number}{what}", name(&self.path));
            Err(Error::new(kind, what))
        };
        if ids.len() != labels.len() {
            let what = format!(": {} ids and {} labels", ids.len(), labels.len());
            return wrong(ErrorKind::Shape, what);
        }
        let is_other = |(&id, &label): (&u32, &i64)| label != -100 && label != i64::from(id);
        if let Some(at) = ids.iter().zip(labels).position(is_other) {
            let what = format!(
                ", token {at}: the label {} of id {}, where a mask has that or -100",
                labels[at], ids[at]
            );
            return wrong(ErrorKind::Unsupported, what);
        }
        let trained: Vec<u8> = labels
            .iter()
            .map(|&label| u8::from(label != -100))
            .collect();
        if trained.contains(&0) && matches!(self.format, Format::Megatron(..)) {
            let what =
                " has tokens that are not trained: Megatron's files have no mask, datatrove's do";
            return wrong(ErrorKind::Unsupported, what.to_owned());
        }
        self.add(ids, Some(&trained))
    }

    fn add(&mut self, ids: &[u32], trained: Option<&[u8]>) -> Result<()> {
        self.check()?;
        let number = self.documents;
        if let Some(at) = ids.iter().position(|&id| id > self.width.max_id()) {
            return Err(Error::limit(format!(
                "{}: document {number}, token {at}: id {}, and {:?} holds up to {}",
                name(&self.path),
                ids[at],
                self.width,
                self.width.max_id()
            )));
        }
        if matches!(self.format, Format::Megatron(..)) && i32::try_from(ids.len()).is_err() {
            return Err(Error::limit(format!(
                "{}: document {number}: {} tokens, and an index of Megatron's holds up to {}",
                name(&self.path),
                ids.len(),
                i32::MAX
            )));
        }
        if self.loss.is_none() && trained.is_some_and(|trained| trained.contains(&0)) {
            // All tokens before are trained. The file is there with all of them, or not at all.
            let path = with(&self.path, ".loss");
            let ones = |to: &mut BufWriter<File>| {
                std::io::copy(&mut std::io::repeat(1).take(self.len), to).map(drop)
            };
            write(&path, ones)?;
            self.loss = Some(BufWriter::new(open_at(&path, self.len, 1, false)?));
        }
        let bytes = &mut self.bytes;
        bytes.clear();
        match self.width {
            TokenWidth::U8 => bytes.extend(ids.iter().map(|&id| id as u8)),
            TokenWidth::U16 => bytes.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes())),
            TokenWidth::I32 | TokenWidth::U32 => {
                bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()))
            }
            TokenWidth::I64 => bytes.extend(ids.iter().flat_map(|&id| u64::from(id).to_le_bytes())),
        }
        let end = self.len + ids.len() as u64;
        let mut result = self
            .tokens
            .write_all(bytes)
            .and_then(|()| self.ends.write_all(&end.to_le_bytes()));
        if let Some(loss) = &mut self.loss {
            result = result.and_then(|()| match trained {
                Some(trained) => loss.write_all(trained),
                None => {
                    std::io::copy(&mut std::io::repeat(1).take(ids.len() as u64), loss).map(drop)
                }
            });
        }
        self.written(result)?;
        (self.documents, self.len) = (self.documents + 1, end);
        Ok(())
    }

    /// Records a failed write: the files may have a part of it.
    fn written(&mut self, result: std::io::Result<()>) -> Result<()> {
        result.map_err(|error| {
            self.failed = true;
            map::failed(&self.path, error)
        })
    }

    /// Fails if an earlier write did.
    fn check(&self) -> Result<()> {
        if self.failed {
            let message = format!("{}: an earlier write failed", name(&self.path));
            return Err(Error::new(ErrorKind::Io, message));
        }
        Ok(())
    }

    /// Waits until all documents so far are on the disk; returns their number.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn sync(&mut self) -> Result<u64> {
        self.check()?;
        let sync = |file: &mut BufWriter<File>| {
            file.flush()?;
            file.get_ref().sync_data()
        };
        let result = sync(&mut self.tokens)
            .and_then(|()| self.loss.as_mut().map_or(Ok(()), sync))
            .and_then(|()| sync(&mut self.ends));
        self.written(result)?;
        Ok(self.documents)
    }

    /// Writes the index, and ends the store, once all of it is on the disk.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> Result<()> {
        let count = self.sync()?;
        let (tokens, size) = (self.len, self.width.size() as u64);
        let ends_path = with(&self.path, ".ends");
        match self.format {
            Format::Megatron(prefix, code) => {
                let mapped = map::map(&ends_path)?;
                let ends = || {
                    let ends = mapped.as_chunks().0.iter();
                    ends.map(|end| u64::from_le_bytes(*end))
                };
                let starts = || std::iter::once(0).chain(ends());
                write(&with(&prefix, ".idx"), |to| {
                    to.write_all(MAGIC)?;
                    to.write_all(&VERSION.to_le_bytes())?;
                    to.write_all(&[code])?;
                    to.write_all(&count.to_le_bytes())?;
                    to.write_all(&(count + 1).to_le_bytes())?;
                    for (start, end) in starts().zip(ends()) {
                        to.write_all(&((end - start) as i32).to_le_bytes())?;
                    }
                    for (start, _) in starts().zip(ends()) {
                        to.write_all(&(start * size).to_le_bytes())?;
                    }
                    (0..=count).try_for_each(|document| to.write_all(&document.to_le_bytes()))
                })?;
                drop(mapped);
                remove(&ends_path)
            }
            Format::Datatrove(tokenizer) => {
                write(&with(&self.path, ".metadata"), |to| {
                    write!(to, "{tokenizer}|{size}\n{tokens}\n{tokens}")
                })?;
                // They are its index.
                let index = with(&self.path, ".index");
                std::fs::rename(&ends_path, &index).map_err(|error| map::failed(&index, error))
            }
        }
    }
}

/// Opens a file to write after its first `count` numbers of a size; removes what follows them.
fn open_at(path: &Path, count: u64, size: u64, create: bool) -> Result<File> {
    let end = count.saturating_mul(size);
    let open = || {
        let mut options = File::options();
        let options = options
            .read(true)
            .write(true)
            .create(create)
            .truncate(create);
        let mut file = options.open(path)?;
        let has = file.seek(SeekFrom::End(0))?;
        if has >= end {
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
        }
        Ok((file, has))
    };
    match open().map_err(|error| map::failed(path, error))? {
        (file, has) if has >= end => Ok(file),
        (_, has) => {
            let message = format!("{}: {has} bytes, where {end} were written", name(path));
            Err(Error::truncated(message))
        }
    }
}

/// Reads the last number of 64 bits of a file, and ends at its end.
fn last(file: &mut File) -> std::io::Result<u64> {
    let mut number = [0; 8];
    file.seek(SeekFrom::End(-8))?;
    file.read_exact(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

/// Writes a file that is there as a whole, or not at all. Its name has an ending, in place of which the
/// name of the unfinished file has another.
fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let part = path.with_extension("part");
    let write = || {
        let mut to = BufWriter::new(File::create(&part)?);
        fill(&mut to)?;
        to.flush()?;
        to.get_ref().sync_data()?;
        std::fs::rename(&part, path)
    };
    write().map_err(|error| map::failed(path, error))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(map::failed(path, error)),
        _ => Ok(()),
    }
}
