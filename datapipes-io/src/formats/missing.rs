//! The error of a part that a sample does not have.

use std::fmt::Display;

use datapipes::Error;

/// Maximum number of names that a message contains.
const SHOWN: usize = 20;

/// Returns the error of a missing field, column or the like of a sample, naming the existing ones.
pub(super) fn missing<'a>(
    sample: impl Display,
    what: &str,
    name: &str,
    there: impl ExactSizeIterator<Item = &'a str>,
) -> Error {
    let more = there.len().saturating_sub(SHOWN);
    let names: Vec<_> = there.take(SHOWN).map(|name| format!("{name:?}")).collect();
    let mut names = match names[..] {
        [] => "none".to_owned(),
        _ => names.join(", "),
    };
    if more > 0 {
        names += &format!(" and {more} more");
    }
    let message = format!("{sample} has no {what} {name:?}, but {names}");
    Error::not_found(message)
}
