//! Tar archives, written by the crate `tar`: this library reads them.

use std::io::{self, Write};

/// Writes an archive of these members, and returns the writer.
pub fn write_tar<W: Write>(
    to: W,
    members: impl IntoIterator<Item = (String, impl AsRef<[u8]>)>,
) -> io::Result<W> {
    let mut archive = tar::Builder::new(to);
    for (name, data) in members {
        let data = data.as_ref();
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, data)?;
    }
    archive.into_inner()
}
