//! Writes tar archives.

use std::io::Write;

use datapipes::{Error, ErrorKind, Result};

use super::header::{BLOCK, MAX_EXTENSION, padding};

/// A writer of a tar archive, with the same bytes for the same members on every machine.
///
/// - The format is ustar (POSIX 1003.1-1988), which every tool reads. A name that does not fit
///   there, because it is too long or not ASCII, and a size of 8 GiB or more, are stored in a pax
///   header (POSIX 1003.1-2001) before the member.
/// - All members are regular files of mode 0644, time 0 and owner 0, unless set; other numbers that
///   do not fit are written in binary, as GNU tar does. The end marker is two blocks of zeros,
///   without the padding to 10 KiB that tapes need.
/// - Data is written unchanged; nothing is buffered. Names are not compared: an archive may have
///   two members of one name.
///
/// # Examples
/// ```
/// use datapipes_io::formats::TarWriter;
/// let mut archive = TarWriter::new(Vec::new());
/// archive.append("a.txt", b"hello")?;
/// assert_eq!(archive.finish()?.len(), 4 * 512);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an archive without its end is cut"]
pub struct TarWriter<W> {
    out: W,
    attributes: Attributes,
    len: u64,
    /// True after a failed write.
    broken: bool,
}

/// Properties in headers other than name and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    mode: u32,
    owner: (u32, u32),
    mtime: u64,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes {
            mode: 0o644,
            owner: (0, 0),
            mtime: 0,
        }
    }
}

impl<W: Write> TarWriter<W> {
    /// Returns a writer to `out`, which gets small and large pieces: best a
    /// [`BufWriter`](std::io::BufWriter).
    pub fn new(out: W) -> Self {
        TarWriter {
            out,
            attributes: Attributes::default(),
            len: 0,
            broken: false,
        }
    }

    datapipes::setters! {
        /// Sets the permissions of the following members.
        mode(mode: u32) => attributes.mode = mode & 0o7777;

        /// Sets user and group of the following members.
        owner(user: u32, group: u32) => attributes.owner = (user, group);

        /// Sets the modification time of the following members, in seconds since 1970.
        mtime(seconds: u64) => attributes.mtime = seconds;
    }

    /// Adds a file.
    ///
    /// # Errors
    /// `Unsupported` for a name that would be read differently: empty, with a NUL, or with a slash
    /// at its end. `Limit` for a name that no reader accepts (a header of 1 MiB). In these cases
    /// nothing was written. An error of the output is final.
    pub fn append(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let headers = headers(name, data.len() as u64, self.attributes)?;
        let padding = padding(data.len() as u64) as usize;
        for part in [&headers[..], data, &[0; BLOCK][..padding]] {
            self.write(part)?;
        }
        Ok(())
    }

    /// Returns the number of bytes written.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the end, and returns the output, flushed.
    ///
    /// # Errors
    /// The errors of the output, including earlier ones.
    pub fn finish(mut self) -> Result<W> {
        self.write(&[0; END])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self, data: &[u8]) -> Result<()> {
        if self.broken {
            return Err(Error::new(
                ErrorKind::Io,
                "the archive is cut since an error before",
            ));
        }
        self.broken = true;
        self.out.write_all(data)?;
        self.len += data.len() as u64;
        self.broken = false;
        Ok(())
    }
}

/// Size of the end marker of an archive.
pub(super) const END: usize = 2 * BLOCK;

/// Returns the number of bytes that a member takes in an archive.
pub(super) fn len_of(name: &str, size: u64) -> Result<u64> {
    Ok(headers(name, size, Attributes::default())?.len() as u64 + size + padding(size))
}

/// Returns the header of a member, with the extension headers before it.
pub(super) fn headers(name: &str, size: u64, attributes: Attributes) -> Result<Vec<u8>> {
    let refused = |what: &str| {
        Err(Error::unsupported(format!(
            "a member named {name:?}: {what}"
        )))
    };
    match name {
        "" => return refused("a name has at least one letter"),
        _ if name.contains('\0') => return refused("a NUL ends a name"),
        _ if name.ends_with('/') => return refused("names of folders end with a slash"),
        _ => {}
    }
    let (prefix, last) = split(name).unwrap_or_default();
    let mut records = Vec::new();
    if last.is_empty() {
        record(&mut records, "path", name);
    }
    if size > OCTAL_12 {
        record(&mut records, "size", &size.to_string());
    }
    if records.len() as u64 > MAX_EXTENSION {
        let what = format!(
            "a member with a name of {} bytes; a header has {MAX_EXTENSION}",
            name.len()
        );
        return Err(Error::limit(what));
    }
    let mut headers = Vec::with_capacity(BLOCK);
    if !records.is_empty() {
        // The name that Python's tarfile uses, for tools that do not know such headers.
        headers.extend(header(
            b'x',
            "",
            "././@PaxHeader",
            records.len() as u64,
            attributes,
        ));
        headers.extend_from_slice(&records);
        headers.resize(headers.len().next_multiple_of(BLOCK), 0);
    }
    let plain: String;
    let last = match last {
        "" => {
            // The part of the name that fits, for those tools.
            plain = name
                .chars()
                .map(|c| if c.is_ascii() { c } else { '_' })
                .take(100)
                .collect();
            plain.trim_end_matches('/')
        }
        last => last,
    };
    headers.extend(header(b'0', prefix, last, size, attributes));
    Ok(headers)
}

/// Splits a name into prefix and name of ustar, if it fits.
fn split(name: &str) -> Option<(&str, &str)> {
    if !name.is_ascii() {
        return None;
    }
    if name.len() <= 100 {
        return Some(("", name));
    }
    // The first slash after which the name is short enough; an empty prefix would be the root.
    let from = name.len().checked_sub(101)?.max(1);
    let slash = from + name.get(from..)?.find('/')?;
    let (prefix, last) = (&name[..slash], &name[slash + 1..]);
    // After a prefix that ends in a slash, libarchive adds no other.
    (prefix.len() <= 155 && !prefix.ends_with('/')).then_some((prefix, last))
}

/// The largest number in eleven octal digits.
const OCTAL_12: u64 = 0o77777777777;

fn header(kind: u8, prefix: &str, name: &str, size: u64, attributes: Attributes) -> [u8; BLOCK] {
    let Attributes {
        mode,
        owner: (user, group),
        mtime,
    } = attributes;
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    number(&mut block[100..108], mode.into());
    number(&mut block[108..116], user.into());
    number(&mut block[116..124], group.into());
    number(&mut block[124..136], size);
    number(&mut block[136..148], mtime);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    number(&mut block[329..337], 0);
    number(&mut block[337..345], 0);
    block[345..345 + prefix.len()].copy_from_slice(prefix.as_bytes());
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Writes a number in octal with a NUL after it; in binary if octal is too short.
fn number(field: &mut [u8], value: u64) {
    let digits = format!("{value:0width$o}\0", width = field.len() - 1);
    if digits.len() == field.len() {
        field.copy_from_slice(digits.as_bytes());
    } else {
        let bytes = value.to_be_bytes();
        let most = field.len().min(bytes.len());
        let from = field.len() - most;
        field[from..].copy_from_slice(&bytes[bytes.len() - most..]);
        field[0] = 0x80;
    }
}

/// Adds `19 path=some/name\n`, where 19 is the length of the whole record.
fn record(records: &mut Vec<u8>, key: &str, value: &str) {
    let bare = key.len() + value.len() + 3;
    let mut len = bare + 1;
    while bare + len.to_string().len() > len {
        len = bare + len.to_string().len();
    }
    records.extend_from_slice(format!("{len} {key}={value}\n").as_bytes());
}
