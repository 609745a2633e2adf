//! What libjpeg-turbo warns of though the pixels are right. It stops at its first warning, so that
//! none hides another; here the reason for a harmless one is taken out of the file, which is then
//! decoded anew.
//!
//! Such files are not rare: collections from the web have them.

use datapipes::Error;

use crate::decode::jpeg::Header;

/// The file without what this error is about; `None` if it is not harmless.
pub(super) fn without(error: &Error, bytes: &[u8], header: &Header) -> Option<Vec<u8>> {
    let text = error.to_string();
    let mut bytes = bytes.to_vec();
    if text.contains("unknown JFIF revision number") {
        let jfif = bytes[..header.scan]
            .windows(5)
            .position(|window| window == b"JFIF\0")?;
        change(&mut bytes, jfif + 5, 1)?;
    } else if text.contains("Unknown Adobe color transform code") {
        // The usual one, for which it takes an unknown one, too.
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
