//! Texts in JSON.

use std::fmt::Write as _;

/// Appends a text as a JSON string.
pub(super) fn quote(text: &str, to: &mut String) {
    to.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => to.extend(['\\', letter]),
            '\0'..='\u{1f}' => {
                let _ = write!(to, "\\u{:04x}", u32::from(letter));
            }
            _ => to.push(letter),
        }
    }
    to.push('"');
}
