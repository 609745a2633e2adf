//! Observations of a child by its parent: its memory, the way it ended, and its last output.

mod lines;

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::Pid;

pub(super) use self::lines::LastLines;

/// Private memory of a process: no memory shared with its parent, and no files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Vitals {
    /// Private bytes in memory.
    pub resident: u64,
    /// Private bytes that were swapped out.
    pub swapped: u64,
}

impl Vitals {
    /// Reads the memory of a child that was not waited for yet, so that its process number is still
    /// valid. Reads one small file of `/proc`.
    pub(super) fn of(pid: Pid) -> io::Result<Vitals> {
        let status = fs::read(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
        // A process that has ended and was not waited for has no memory, and no such lines.
        Ok(Vitals {
            resident: kib(&status, b"RssAnon:") << 10,
            swapped: kib(&status, b"VmSwap:") << 10,
        })
    }

    /// Returns true if the child should be replaced before the limit ends it: at 7/8 of the limit.
    pub(super) fn near(&self, limit: u64) -> bool {
        self.resident.saturating_add(self.swapped) > limit / 8 * 7
    }
}

/// Returns the number of a line `Name:   123 kB`; 0 if there is none.
fn kib(status: &[u8], name: &[u8]) -> u64 {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.trim_ascii().split(|byte| *byte == b' ').next());
    number
        .and_then(|number| std::str::from_utf8(number).ok()?.parse().ok())
        .unwrap_or(0)
}

/// Describes the end of a child: `ended by SIGSEGV (signal 11)`. `out_of_memory` is the result of
/// [`OomWatch::rose`] after the end.
pub(super) fn words(status: ExitStatus, out_of_memory: bool) -> String {
    let core = if status.core_dumped() {
        ", core dumped"
    } else {
        ""
    };
    match (status.signal(), status.code()) {
        // The kernel uses this signal, and no other, if memory runs out.
        (Some(9), _) if out_of_memory => {
            "ended by SIGKILL (out of memory, says the control group)".into()
        }
        (Some(signal), _) => match name(signal) {
            Some(name) => format!("ended by {name} (signal {signal}{core})"),
            None => format!("ended by signal {signal}{core}"),
        },
        (None, Some(0)) => "exited without a word (code 0)".into(),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => format!("ended: {status}"),
    }
}

/// Returns the name of a signal by its number on Linux. MIPS and SPARC number some signals
/// differently.
fn name(signal: i32) -> Option<&'static str> {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    let known = !cfg!(any(
        target_arch = "mips",
        target_arch = "mips64",
        target_arch = "sparc",
        target_arch = "sparc64"
    ));
    match signal {
        1..=31 if known => Some(NAMES[signal as usize - 1]),
        32..=64 => Some("a real-time signal"),
        _ => None,
    }
}

/// Detects if the kernel has killed a process of this control group for lack of memory since the
/// watch was made.
///
/// A child that ended by `SIGKILL` in that time was most likely that process; the kernel does not
/// report which process it was.
#[derive(Debug)]
pub(super) struct OomWatch {
    /// File and its earlier count; none if the system has no such count.
    before: Option<(PathBuf, u64)>,
}

impl OomWatch {
    pub(super) fn now() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        OomWatch::among(candidates(&groups))
    }

    fn among(files: impl IntoIterator<Item = PathBuf>) -> Self {
        OomWatch {
            before: files
                .into_iter()
                .find_map(|file| Some((count(&file)?, file)))
                .map(|(n, file)| (file, n)),
        }
    }

    /// Returns true if the count has risen. The kernel counts before it kills, so the result is
    /// certain once the child has ended.
    pub(super) fn rose(&self) -> bool {
        self.before
            .as_ref()
            .is_some_and(|(file, before)| count(file).is_some_and(|now| now > *before))
    }
}

/// Returns the possible files of the count, by `/proc/self/cgroup`: version 2 mounted alone and
/// beside version 1, then version 1. In a container the path may be the host's, and the group's
/// files are at the root of the mount.
fn candidates(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut group = |mount: &str, path: &str, file: &str| {
        files.push(
            Path::new(mount)
                .join(path.trim_start_matches('/'))
                .join(file),
        );
        files.push(Path::new(mount).join(file));
    };
    let lines = || {
        groups
            .lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'))
    };
    for (_, path) in lines().filter(|(controllers, _)| controllers.is_empty()) {
        group("/sys/fs/cgroup", path, "memory.events");
        group("/sys/fs/cgroup/unified", path, "memory.events");
    }
    for (_, path) in
        lines().filter(|(controllers, _)| controllers.split(',').any(|name| name == "memory"))
    {
        group("/sys/fs/cgroup/memory", path, "memory.oom_control");
    }
    files
}

/// Reads the line `oom_kill 3`, which both versions have.
fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_5_an_end_by_a_signal_has_the_signals_name() {
        let ended = |raw, oom| words(ExitStatus::from_raw(raw), oom);
        assert_eq!(ended(11, false), "ended by SIGSEGV (signal 11)");
        assert_eq!(ended(11, true), "ended by SIGSEGV (signal 11)");
        assert_eq!(
            ended(6 | 0x80, false),
            "ended by SIGABRT (signal 6, core dumped)"
        );
        assert_eq!(ended(31, false), "ended by SIGSYS (signal 31)");
        assert_eq!(ended(34, false), "ended by a real-time signal (signal 34)");
        assert_eq!(ended(9, false), "ended by SIGKILL (signal 9)");
    }

    #[test]
    fn row_6_an_exit_without_a_word_has_its_code() {
        assert_eq!(
            words(ExitStatus::from_raw(0), false),
            "exited without a word (code 0)"
        );
        assert_eq!(
            words(ExitStatus::from_raw(3 << 8), false),
            "exited with code 3"
        );
    }

    #[test]
    fn names_are_those_that_the_system_gives() {
        for (signal, expected) in [
            (rustix::process::Signal::HUP, "SIGHUP"),
            (rustix::process::Signal::BUS, "SIGBUS"),
            (rustix::process::Signal::KILL, "SIGKILL"),
            (rustix::process::Signal::STKFLT, "SIGSTKFLT"),
            (rustix::process::Signal::STOP, "SIGSTOP"),
            (rustix::process::Signal::XCPU, "SIGXCPU"),
            (rustix::process::Signal::WINCH, "SIGWINCH"),
            (rustix::process::Signal::SYS, "SIGSYS"),
        ] {
            assert_eq!(name(signal.as_raw()), Some(expected));
        }
    }

    #[test]
    fn memory_of_our_own_is_seen() {
        let pid = rustix::process::getpid();
        let before = Vitals::of(pid).unwrap();
        // Large enough that memory freed by other tests does not hide it.
        let block = vec![1u8; 64 << 20];
        let with = Vitals::of(pid).unwrap();
        assert!(
            before.resident > 0 && with.resident > (32 << 20),
            "{before:?} {with:?}, {}",
            block[1 << 20]
        );
        assert!(with.near(with.resident));
        assert!(!with.near(u64::MAX));
    }

    #[test]
    fn seven_eighths_of_the_limit_are_too_much() {
        let vitals = |resident, swapped| Vitals { resident, swapped };
        assert!(!vitals(7 << 20, 0).near(8 << 20));
        assert!(vitals((7 << 20) + 1, 0).near(8 << 20));
        assert!(vitals(5 << 20, 3 << 20).near(8 << 20));
        assert!(vitals(u64::MAX, u64::MAX).near(u64::MAX));
    }

    #[test]
    fn no_such_process_is_an_error() {
        assert!(Vitals::of(Pid::from_raw(i32::MAX).unwrap()).is_err());
        assert_eq!(
            kib(
                b"VmSwap:\t     12 kB\nRssAnon:\t\nRssFile: x kB",
                b"VmSwap:"
            ),
            12
        );
        assert_eq!(kib(b"RssAnon:\t\n", b"RssAnon:"), 0);
    }

    #[test]
    fn row_7_a_kill_of_the_control_group_is_seen() {
        let file = std::env::temp_dir().join(format!("datapipes-oom-{}", std::process::id()));
        fs::write(&file, "low 0\noom 1\noom_kill 2\noom_group_kill 7\n").unwrap();
        let watch = OomWatch::among(["/no/such/file".into(), file.clone()]);
        assert!(!watch.rose());
        fs::write(&file, "low 0\noom 1\noom_kill 3\n").unwrap();
        assert!(watch.rose());
        fs::remove_file(&file).unwrap();
        assert!(!watch.rose());
        assert!(!OomWatch::among([]).rose());
        assert_eq!(
            words(ExitStatus::from_raw(9), true),
            "ended by SIGKILL (out of memory, says the control group)"
        );
    }

    #[test]
    fn the_control_group_is_found_in_both_versions() {
        let files = candidates("4:cpu,memory:/job/1\n1:cpu:/\nx\n0::/user.slice/a:b\n");
        let files: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/user.slice/a:b/memory.events",
                "/sys/fs/cgroup/memory.events",
                "/sys/fs/cgroup/unified/user.slice/a:b/memory.events",
                "/sys/fs/cgroup/unified/memory.events",
                "/sys/fs/cgroup/memory/job/1/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control",
            ]
        );
        if OomWatch::now().before.is_none() {
            println!("skipped: no control group here counts kills");
        }
    }
}
