//! Digest of a list of file names, to recognize the same list later.

use std::fmt;

use datapipes::{Context, Error, Item, Reader, Result, Wire, Writer};

use super::Store;
use crate::FileRef;

/// The digest (BLAKE3) of names, in their order, and of sizes if they are known.
#[derive(Clone, Default)]
pub(crate) struct Names {
    hasher: blake3::Hasher,
    count: u64,
}

impl Names {
    /// Adds a name.
    pub fn add(&mut self, name: &str, size: Option<u64>) {
        self.hasher.update(&(name.len() as u64).to_le_bytes());
        self.hasher.update(name.as_bytes());
        self.hasher
            .update(&size.map_or([0xff; 8], u64::to_le_bytes));
        self.count += 1;
    }

    /// Returns the number of names and 64 bits of their digest.
    pub fn digest(&self) -> (u64, u64) {
        let digest = self.hasher.finalize();
        let first = digest
            .as_bytes()
            .first_chunk()
            .expect("a digest has 32 bytes");
        (self.count, u64::from_le_bytes(*first))
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, digest) = self.digest();
        write!(f, "{count} files, digest {digest:016x}")
    }
}

/// A listing that may be resumed: names that were given before come first, and have to be the same.
pub(crate) struct Listed {
    names: Names,
    /// True if checkpoints can be requested.
    keeps: bool,
    /// Number of names given before, and their digest.
    before: Option<(u64, u64)>,
    /// First error in the place of a name that was given before. It explains why the names differ.
    error: Option<String>,
    /// Revision of the store that the names are of.
    revision: Option<String>,
}

/// A snapshot: the number of names that were given, their digest, and the revision that they are
/// of, if the store has any.
pub(crate) struct Given((u64, u64), Option<String>);

/// Snapshots without a revision are pairs of numbers.
impl Wire for Given {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.0.encode(to)?;
        self.1.iter().try_for_each(|revision| revision.encode(to))
    }
    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let names = Wire::decode(from)?;
        let revision = (from.left() > 0).then(|| Wire::decode(from));
        Ok(Given(names, revision.transpose()?))
    }
}

impl Listed {
    /// Starts or resumes the listing of an epoch.
    pub fn of(cx: &Context) -> Result<Listed> {
        let before: Option<Given> = cx.restored()?;
        let (before, revision) = before.map_or((None, None), |Given(names, revision)| {
            (Some(names).filter(|names| names.0 > 0), revision)
        });
        Ok(Listed {
            names: Names::default(),
            keeps: cx.is_resumable(),
            before,
            error: None,
            revision,
        })
    }

    /// Makes a store read the revision that was listed before, or finds out which one it reads.
    ///
    /// # Errors
    /// `Config` if the store reads another revision already; the errors of the store.
    pub async fn pin(&mut self, store: &dyn Store) -> Result<()> {
        match &self.revision {
            Some(revision) => store.pin_revision(revision)?,
            None if self.keeps => self.revision = store.revision().await?,
            None => {}
        }
        Ok(())
    }

    /// Adds the next name, or an error in its place; returns true if it is to be passed on.
    ///
    /// # Errors
    /// `Config`, which ends the epoch under every error policy, if the first names have changed.
    pub fn next(&mut self, found: &Result<Item<FileRef>>) -> Result<bool> {
        if !self.keeps {
            return Ok(true);
        }
        match found {
            Ok(file) => self.names.add(&file.name(), file.size),
            // The name at this place may have changed, or be gone.
            Err(error) => {
                self.names.add("", None);
                if self.before.is_some() {
                    self.error.get_or_insert_with(|| error.to_string());
                }
            }
        }
        match self.before {
            None => Ok(true),
            Some((count, _)) if self.names.count < count => Ok(false),
            Some((count, digest)) => {
                self.before = None;
                match self.names.digest() == (count, digest) {
                    true => Ok(false),
                    false => Err(self.differs(
                        format!(
                            "the first {count} files of the list are not those that had been given"
                        ),
                        "files were added, removed, renamed or changed since",
                    )),
                }
            }
        }
    }

    /// Checks the end of the listing.
    ///
    /// # Errors
    /// The error of [`next`](Listed::next), if there are fewer names than before.
    pub fn end(&self) -> Result<()> {
        match self.before {
            None => Ok(()),
            Some((count, _)) => Err(self.differs(
                format!(
                    "{} files are listed, of which {count} had been given",
                    self.names.count
                ),
                "files were removed since",
            )),
        }
    }

    /// Returns the error of a list that has changed, with its cause as far as it is known.
    fn differs(&self, what: String, usually: &str) -> Error {
        let cause = self.error.as_deref().unwrap_or(usually);
        Error::config(what).with_source(cause)
    }

    /// Returns true if all names that were given before have passed.
    pub fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// Returns the snapshot.
    pub fn kept(&self) -> Given {
        Given(self.names.digest(), self.revision.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(names: &[(&str, Option<u64>)]) -> (u64, u64) {
        let mut all = Names::default();
        names.iter().for_each(|(name, size)| all.add(name, *size));
        all.digest()
    }

    #[test]
    fn row_126_other_lists_have_other_digests() {
        let lists: [&[(&str, Option<u64>)]; 7] = [
            &[],
            &[("a", None)],
            &[("a", Some(1))],
            &[("a", None), ("b", None)],
            &[("b", None), ("a", None)],
            &[("ab", None)],
            &[("", None), ("ab", None)],
        ];
        for (at, list) in lists.iter().enumerate() {
            assert_eq!(digest(list), digest(list));
            for other in &lists[at + 1..] {
                assert_ne!(digest(list).1, digest(other).1, "{list:?} {other:?}");
            }
        }
    }

    /// The digest is part of checkpoints and plans.
    #[test]
    fn the_digest_is_pinned() {
        let mut names = Names::default();
        names.add("train/1.tar", Some(512));
        assert_eq!(names.to_string(), "1 files, digest e0233996bff00c69");
    }
}
