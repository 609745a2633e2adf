//! What stands at the end of an archive, and behind it.

use datapipes::ErrorKind;

use super::header::{BLOCK, Fault, corrupt};

/// What is done about data behind the end marker of a tar archive; see
/// [`Untar::trailing`](super::Untar::trailing).
///
/// Zeros are no such data: archives are filled up with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trailing {
    /// An error behind the members, `Corrupt`. The default: it may be a second archive, which would
    /// be left out in silence.
    #[default]
    Refuse,
    /// The archive ends at its marker, and what follows is not looked at. GNU tar, bsdtar and
    /// Python's `tarfile` do so.
    Ignore,
    /// Another archive begins there, as behind `cat a.tar b.tar`, and its members follow. What is
    /// none is `Corrupt`. As `--ignore-zeros` of GNU tar and bsdtar, and `ignore_zeros` of
    /// `tarfile`.
    Read,
}

/// How an archive has to end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    /// By a marker.
    pub(super) marked: bool,
    pub(super) trailing: Trailing,
}

/// The end marker: two blocks of zeros.
const MARKER: u64 = 2 * BLOCK as u64;

impl Ends {
    /// Those that are not usual, in words.
    pub(super) fn settings(self) -> String {
        let marked = self.marked.then_some("end marker required");
        let trailing = match self.trailing {
            Trailing::Refuse => None,
            Trailing::Ignore => Some("what follows it is ignored"),
            Trailing::Read => Some("what follows it is read"),
        };
        Vec::from_iter(marked.into_iter().chain(trailing)).join(", ")
    }

    /// That an archive may end behind so many bytes of zeros.
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

    /// Whether to go on at data behind so many bytes of zeros. Less than a marker is no end, but
    /// damage.
    pub(super) fn goes_on(self, zeros: u64) -> Result<bool, Fault> {
        match self.trailing {
            Trailing::Read if zeros >= MARKER => Ok(true),
            Trailing::Ignore if zeros >= MARKER => Ok(false),
            _ => Err(corrupt(format!(
                "data behind the end, which is {zeros} bytes of zeros"
            ))),
        }
    }
}
