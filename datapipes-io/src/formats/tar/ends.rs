//! Rules for the end of an archive, and for data after it.

use datapipes::ErrorKind;

use super::header::{BLOCK, Fault, corrupt};

/// Treatment of data after the end marker of a tar archive; see
/// [`Untar::trailing`](super::Untar::trailing).
///
/// Zeros do not count as data: archives are padded with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trailing {
    /// An error after the members, `Corrupt`. The default: the data may be a second archive, which
    /// would be left out silently.
    #[default]
    Refuse,
    /// The data are ignored. GNU tar, bsdtar and Python's `tarfile` do so.
    Ignore,
    /// The data are another archive, as after `cat a.tar b.tar`, and its members follow. Data that
    /// are no archive are `Corrupt`. Corresponds to `--ignore-zeros` of GNU tar and bsdtar, and
    /// `ignore_zeros` of `tarfile`.
    Read,
}

/// Rules for the end of an archive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    /// True if an end marker is required.
    pub(super) marked: bool,
    pub(super) trailing: Trailing,
}

/// Size of the end marker: two blocks of zeros.
const MARKER: u64 = 2 * BLOCK as u64;

impl Ends {
    /// Returns the settings that differ from the defaults, as text.
    pub(super) fn settings(self) -> String {
        let marked = self.marked.then_some("end marker required");
        let trailing = match self.trailing {
            Trailing::Refuse => None,
            Trailing::Ignore => Some("what follows it is ignored"),
            Trailing::Read => Some("what follows it is read"),
        };
        Vec::from_iter(marked.into_iter().chain(trailing)).join(", ")
    }

    /// Checks that an archive may end after this number of zeros.
    pub(super) fn check(self, zeros: u64) -> Result<(), Fault> {
        match zeros {
            _ if !self.marked || zeros >= MARKER => Ok(()),
            0 => Err((
                ErrorKind::Truncated,
                "no end marker, so that members may be missing".to_owned(),
            )),
            _ => Err((
                ErrorKind::Truncated,
                format!("the end marker has {zeros} of {MARKER} bytes"),
            )),
        }
    }

    /// Returns true if reading continues at data after this number of zeros. Fewer zeros than a
    /// marker are damage, not an end.
    pub(super) fn goes_on(self, zeros: u64) -> Result<bool, Fault> {
        match self.trailing {
            Trailing::Read if zeros >= MARKER => Ok(true),
            Trailing::Ignore if zeros >= MARKER => Ok(false),
            _ => Err(corrupt(format!(
                "data after the end, which is {zeros} bytes of zeros"
            ))),
        }
    }
}
