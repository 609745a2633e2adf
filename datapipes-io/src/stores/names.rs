//! What a list of files is known by, so that another one is told from it.

use std::fmt;

use datapipes::{Context, Error, ErrorKind, Item, Result};

use crate::FileRef;

/// The digest (BLAKE3) of some names, in their order, and of sizes where they are known.
#[derive(Clone, Default)]
pub(crate) struct Names {
    hasher: blake3::Hasher,
    count: u64,
}

impl Names {
    /// One more.
    pub fn add(&mut self, name: &str, size: Option<u64>) {
        self.hasher.update(&(name.len() as u64).to_le_bytes());
        self.hasher.update(name.as_bytes());
        self.hasher
            .update(&size.map_or([0xff; 8], u64::to_le_bytes));
        self.count += 1;
    }

    /// Their number and 64 bits of their digest.
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

/// A listing that goes on: the names that were given before come first, and have to be the same
/// ones.
pub(crate) struct Listed {
    names: Names,
    /// Whether states can be asked for.
    keeps: bool,
    /// How many were given before, and their digest.
    before: Option<(u64, u64)>,
}

impl Listed {
    /// Where an epoch begins or goes on.
    pub fn of(cx: &Context) -> Result<Listed> {
        let before = cx.restored()?.filter(|&(count, _)| count > 0);
        Ok(Listed {
            names: Names::default(),
            keeps: cx.is_resumable(),
            before,
        })
    }

    /// Takes note of the next one, or of an error in its place, and says whether it is to be given.
    ///
    /// # Errors
    /// `Config`, which ends the epoch whatever the policy, if the first names are not what they
    /// were.
    pub fn next(&mut self, found: &Result<Item<FileRef>>) -> Result<bool> {
        if !self.keeps {
            return Ok(true);
        }
        match found {
            Ok(file) => self.names.add(&file.name(), file.size),
            // It may be another one by now, or none.
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

    /// There are no more.
    ///
    /// # Errors
    /// As [`next`](Listed::next), if there are fewer than there were.
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

    /// Whether all that had been given before is through.
    pub fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// What is kept of it.
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

    /// It stands in states and plans.
    #[test]
    fn the_digest_is_pinned() {
        let mut names = Names::default();
        names.add("train/1.tar", Some(512));
        assert_eq!(names.to_string(), "1 files, digest e0233996bff00c69");
    }
}
