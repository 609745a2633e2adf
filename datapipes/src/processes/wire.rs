//! Encoding of the settings of processes, for sending them to a process.

use super::Processes;
use crate::{Reader, Result, Wire, Writer};

/// Encodes the settings that a child receives at its start.
impl Wire for Processes {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.count.encode(to)?;
        self.memory.encode(to)?;
        self.time_limit.encode(to)?;
        self.restarts.encode(to)?;
        self.nice.encode(to)?;
        self.cpus.encode(to)?;
        self.env.encode(to)?;
        self.reads.encode(to)?;
        self.writes.encode(to)?;
        self.no_network.encode(to)
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        Ok(Processes {
            count: Wire::decode(from)?,
            memory: Wire::decode(from)?,
            time_limit: Wire::decode(from)?,
            restarts: Wire::decode(from)?,
            nice: Wire::decode(from)?,
            cpus: Wire::decode(from)?,
            env: Wire::decode(from)?,
            reads: Wire::decode(from)?,
            writes: Wire::decode(from)?,
            no_network: Wire::decode(from)?,
            // A child has no workers of its own.
            #[cfg(feature = "remote")]
            remote: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::full;
    use super::*;
    use crate::codec::Parcel;

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
        use std::os::unix::ffi::OsStrExt;
        let processes = Processes::new(1).only_reads([std::ffi::OsStr::from_bytes(b"/data/\xff")]);
        assert_eq!(
            Processes::decode(&mut parcel(&processes).reader()).unwrap(),
            processes
        );
    }

    #[test]
    fn row_10_cut_or_damaged_settings_are_an_error_or_other_settings() {
        let whole = parcel(&full()).head;
        for len in 0..whole.len() {
            assert!(
                Processes::decode(&mut Reader::new(&whole[..len], &[])).is_err(),
                "cut at {len}"
            );
        }
        for place in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.to_vec();
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
        assert_eq!(
            error.message(),
            "from another process: 1000000000 nanoseconds of one second"
        );
    }
}
