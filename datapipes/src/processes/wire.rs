//! Encoding of the settings of processes, for sending them to a process.

use super::Processes;

// A child receives these settings when it starts, and has no remote workers of its own.
wire_struct!(Processes {
    count, memory, time_limit, restarts, nice, cpus, env, reads, writes, no_network;
    #[cfg(feature = "remote")] remote = None
});

#[cfg(test)]
mod tests {
    use super::super::tests::full;
    use super::*;
    use crate::codec::Parcel;
    use crate::{Reader, Wire, Writer};

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
