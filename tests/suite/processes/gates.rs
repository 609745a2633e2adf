//! A gate in the file system, at which children wait until the test opens it.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::crimes::soon;

/// A FIFO, with its end for writing once somebody waits at it.
pub struct Gate {
    path: PathBuf,
    held: OnceLock<File>,
}

impl Gate {
    /// A new one, closed.
    pub fn new(path: PathBuf) -> Gate {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a name that ends in a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        Gate {
            path,
            held: OnceLock::new(),
        }
    }

    /// Waits until somebody stands at it, who stays there.
    pub fn wait_for_one(&self) {
        soon("somebody is at the gate", || self.is_somebody_there());
    }

    /// Returns true if somebody waits or has waited at the gate.
    pub fn is_somebody_there(&self) -> bool {
        if self.held.get().is_none() {
            // An error as long as nobody has it open to read.
            let mut options = OpenOptions::new();
            if let Ok(end) = options
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&self.path)
            {
                _ = self.held.set(end);
            }
        }
        self.held.get().is_some()
    }

    /// Lets those through who are there and those who come.
    pub fn open(self) {
        // It stays open for writing, so that nobody waits for it who has found the file before it
        // was removed; a byte for each.
        let mut both = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .unwrap();
        both.write_all(&[0; 100]).unwrap();
        std::fs::remove_file(&self.path).unwrap();
        std::mem::forget(both);
    }
}

/// Waits at a gate, if there is one.
pub fn pass(path: &Path) {
    if let Ok(mut gate) = File::open(path) {
        _ = gate.read(&mut [0]);
    }
}
