//! Warnings of libjpeg-turbo about files whose pixels are right. It stops at its first warning, so
//! that none hides another. The cause of a harmless warning is removed from a copy of the file,
//! which is then decoded again.
//!
//! Such files are not rare: collections from the web have them.

use datapipes::Error;

use crate::decode::jpeg::Header;

/// Returns the file without the cause of this error; `None` if the error is not harmless.
pub(super) fn without(error: &Error, bytes: &[u8], header: &Header) -> Option<Vec<u8>> {
    let text = error.to_string();
    let mut bytes = bytes.to_vec();
    if text.contains("unknown JFIF revision number") {
        let jfif = bytes[..header.scan]
            .windows(5)
            .position(|window| window == b"JFIF\0")?;
        change(&mut bytes, jfif + 5, 1)?;
    } else if text.contains("Unknown Adobe color transform code") {
        // The usual transform, which it also assumes for an unknown one.
        change(&mut bytes, header.adobe_at + 14, 1)?;
    } else {
        // Between the last pixel and the end marker.
        let (text, _) = text.split_once(" extraneous bytes before marker 0xd9")?;
        let (_, count) = text.rsplit_once(' ')?;
        let end = bytes.len() - 2;
        let start = end.checked_sub(count.parse().ok()?)?;
        bytes.drain(start..end);
    }
    Some(bytes)
}

fn change(bytes: &mut [u8], at: usize, value: u8) -> Option<()> {
    let byte = bytes.get_mut(at).filter(|byte| **byte != value)?;
    *byte = value;
    Some(())
}
