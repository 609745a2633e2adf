//! How the settings of processes get to a process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Processes;
use crate::wire::damaged;
use crate::{Reader, Result, Wire, Writer};

/// A child gets what was said at its start.
impl Wire for Processes {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.count.encode(to)?;
        self.memory.encode(to)?;
        match self.time_limit {
            None => to.raw(&[0]),
            Some(limit) => {
                to.raw(&[1]);
                to.number(limit.as_secs());
                to.number(limit.subsec_nanos().into());
            }
        }
        self.restarts.encode(to)?;
        self.nice.encode(to)?;
        self.cpus.encode(to)?;
        self.env.encode(to)?;
        encode_paths(self.reads.as_deref(), to)?;
        encode_paths(self.writes.as_deref(), to)?;
        self.no_network.encode(to)
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Processes {
            count: usize::decode(from)?,
            memory: Option::decode(from)?,
            time_limit: match bool::decode(from)? {
                false => None,
                true => {
                    let (seconds, nanos) = (from.number()?, from.number()?);
                    match u32::try_from(nanos) {
                        Ok(nanos @ ..1_000_000_000) => Some(Duration::new(seconds, nanos)),
                        _ => return Err(damaged(format_args!("{nanos} nanoseconds"))),
                    }
                }
            },
            restarts: usize::decode(from)?,
            nice: Option::decode(from)?,
            cpus: Option::decode(from)?,
            env: Option::decode(from)?,
            reads: decode_paths(from)?,
            writes: decode_paths(from)?,
            no_network: bool::decode(from)?,
        })
    }
}

/// Paths as the system has them, which need not be UTF-8.
fn encode_paths<'a>(paths: Option<&'a [PathBuf]>, to: &mut Writer<'a>) -> Result<()> {
    to.raw(&[u8::from(paths.is_some())]);
    let Some(paths) = paths else { return Ok(()) };
    to.number(paths.len() as u64);
    paths.iter().for_each(|path| to.payload(path.as_os_str().as_encoded_bytes()));
    Ok(())
}

fn decode_paths(from: &mut Reader<'_>) -> Result<Option<Vec<PathBuf>>> {
    if !bool::decode(from)? {
        return Ok(None);
    }
    let count = from.count()?;
    let mut paths = Vec::new();
    for _ in 0..count {
        paths.push(path(&from.payload()?)?);
    }
    Ok(Some(paths))
}

#[cfg(unix)]
fn path(bytes: &[u8]) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)).to_path_buf())
}

#[cfg(not(unix))]
fn path(bytes: &[u8]) -> Result<PathBuf> {
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("a path that is not UTF-8"))?;
    Ok(Path::new(text).to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::super::tests::full;
    use super::*;
    use crate::wire::Parcel;

    fn parcel(processes: &Processes) -> Parcel {
        let mut writer = Writer::new();
        processes.encode(&mut writer).unwrap();
        Parcel::of(writer)
    }

    #[test]
    fn travels_whole() {
        for processes in [full(), Processes::new(7)] {
            let parcel = parcel(&processes);
            let mut reader = parcel.reader();
            assert_eq!(Processes::decode(&mut reader).unwrap(), processes);
            reader.end().unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_is_no_text_travels_too() {
        let processes = Processes::new(1).only_reads([path(b"/data/\xff").unwrap()]);
        assert_eq!(Processes::decode(&mut parcel(&processes).reader()).unwrap(), processes);
    }

    #[test]
    fn row_10_cut_or_damaged_settings_are_an_error_or_other_settings() {
        let whole = parcel(&full()).head;
        for len in 0..whole.len() {
            assert!(Processes::decode(&mut Reader::new(&whole[..len], &[])).is_err(), "cut at {len}");
        }
        for place in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[place] ^= 1 << bit;
                let _ = Processes::decode(&mut Reader::new(&bytes, &[]));
            }
        }
        // More nanoseconds than a second has.
        let mut writer = Writer::new();
        (1usize.encode(&mut writer)).unwrap();
        writer.raw(&[0, 1, 0]);
        writer.number(1_000_000_000);
        let parcel = Parcel::of(writer);
        let error = Processes::decode(&mut parcel.reader()).unwrap_err();
        assert_eq!(error.message(), "from another process: 1000000000 nanoseconds");
    }
}
