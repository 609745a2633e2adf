//! Digest of a list of file names, to recognize the same list later.

use std::fmt;

use datapipes::{Context, Error, ErrorKind, Item, Result};

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
}

impl Listed {
    /// Starts or resumes the listing of an epoch.
    pub fn of(cx: &Context) -> Result<Listed> {
        let before = cx.restored()?.filter(|&(count, _)| count > 0);
        Ok(Listed {
            names: Names::default(),
            keeps: cx.is_resumable(),
            before,
        })
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
            Err(_) => self.names.add("", None),
        }
        match self.before {
            None => Ok(true),
            Some((count, _)) if self.names.count < count => Ok(false),
            Some((count, digest)) => {
                self.before = None;
                match self.names.digest() == (count, digest) {
                    true => Ok(false),
                    false => Err(changed(count)),
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
            Some((count, _)) => Err(Error::new(
                ErrorKind::Config,
                format!(
                    "{} files are listed, of which {count} had been given: files were removed since",
                    self.names.count
                ),
            )),
        }
    }

    /// Returns true if all names that were given before have passed.
    pub fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// Returns the snapshot.
    pub fn kept(&self) -> (u64, u64) {
        self.names.digest()
    }
}

fn changed(count: u64) -> Error {
    let message = format!(
        "the first {count} files of the list are not those that had been given: files were added, removed, renamed or \
         changed since"
    );
    Error::new(ErrorKind::Config, message)
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
