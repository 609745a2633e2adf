//! Writes token stores.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Result};

use super::megatron::{CODES, MAGIC, VERSION};
use super::{TokenWidth, map, name, with};

/// Writes documents to a token store, one after another.
///
/// Tokens are written as they come; the index is written by [`finish`](TokenWriter::finish), so that
/// a store that was not finished is not opened. Until then it takes 8 bytes for each document.
///
/// # Examples
/// See [`TokenStore`](crate::TokenStore).
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    tokens: BufWriter<File>,
    width: TokenWidth,
    format: Format,
    /// End of each document, in tokens.
    ends: Vec<u64>,
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
        let prefix = prefix.as_ref();
        let Some(&(code, _)) = CODES.iter().find(|(_, known)| *known == width) else {
            let message = format!(
                "Megatron's files have no tokens of {width:?}; `TokenWidth::I32` has as many bits"
            );
            return Err(Error::new(ErrorKind::Config, message));
        };
        remove(&with(prefix, ".idx"))?;
        TokenWriter::create(
            with(prefix, ".bin"),
            width,
            Format::Megatron(prefix.to_owned(), code),
        )
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
        if !matches!(width, TokenWidth::U16 | TokenWidth::U32) {
            let message = format!("datatrove's files have tokens of U16 or U32, not of {width:?}");
            return Err(Error::new(ErrorKind::Config, message));
        }
        let path = path.as_ref();
        remove(&with(path, ".index"))?;
        TokenWriter::create(path.to_owned(), width, Format::Datatrove(tokenizer.into()))
    }

    fn create(path: PathBuf, width: TokenWidth, format: Format) -> Result<Self> {
        let file = File::create(&path).map_err(|error| map::failed(&path, error))?;
        let tokens = BufWriter::with_capacity(1 << 18, file);
        Ok(TokenWriter {
            path,
            tokens,
            width,
            format,
            ends: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Returns the number of tokens written so far.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns true if no token was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes a document.
    ///
    /// # Errors
    /// `Limit` if an id is larger than the width can hold, with document and token; then nothing of
    /// the document is written. Errors of writing.
    pub fn push(&mut self, ids: &[u32]) -> Result<()> {
        let number = self.ends.len();
        if let Some(at) = ids.iter().position(|&id| id > self.width.max_id()) {
            let message = format!(
                "{}: document {number}, token {at}: id {}, and {:?} holds up to {}",
                name(&self.path),
                ids[at],
                self.width,
                self.width.max_id()
            );
            return Err(Error::new(ErrorKind::Limit, message));
        }
        if matches!(self.format, Format::Megatron(..)) && i32::try_from(ids.len()).is_err() {
            let message = format!(
                "{}: document {number}: {} tokens, and an index of Megatron's holds up to {}",
                name(&self.path),
                ids.len(),
                i32::MAX
            );
            return Err(Error::new(ErrorKind::Limit, message));
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
        self.tokens
            .write_all(bytes)
            .map_err(|error| map::failed(&self.path, error))?;
        self.ends.push(self.len() + ids.len() as u64);
        Ok(())
    }

    /// Writes the index, and ends the store.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn finish(mut self) -> Result<()> {
        self.tokens
            .flush()
            .map_err(|error| map::failed(&self.path, error))?;
        let tokens = self.len();
        match self.format {
            Format::Megatron(prefix, code) => {
                let starts = || std::iter::once(0).chain(self.ends.iter().copied());
                let count = self.ends.len() as u64;
                write(&with(&prefix, ".idx"), |to| {
                    to.write_all(MAGIC)?;
                    to.write_all(&VERSION.to_le_bytes())?;
                    to.write_all(&[code])?;
                    to.write_all(&count.to_le_bytes())?;
                    to.write_all(&(count + 1).to_le_bytes())?;
                    for (start, end) in starts().zip(&self.ends) {
                        to.write_all(&((end - start) as i32).to_le_bytes())?;
                    }
                    for start in starts().take(self.ends.len()) {
                        to.write_all(&(start * self.width.size() as u64).to_le_bytes())?;
                    }
                    (0..=count).try_for_each(|document| to.write_all(&document.to_le_bytes()))
                })
            }
            Format::Datatrove(tokenizer) => {
                write(&with(&self.path, ".metadata"), |to| {
                    write!(to, "{tokenizer}|{}\n{tokens}\n{tokens}", self.width.size())
                })?;
                write(&with(&self.path, ".index"), |to| {
                    self.ends
                        .iter()
                        .try_for_each(|end| to.write_all(&end.to_le_bytes()))
                })
            }
        }
    }
}

/// Writes a file that is there as a whole, or not at all.
fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let part = with(path, ".part");
    let write = || {
        let mut to = BufWriter::new(File::create(&part)?);
        fill(&mut to)?;
        to.flush()?;
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
