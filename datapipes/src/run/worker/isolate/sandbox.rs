//! The paths that a child may use, by Landlock, which also keeps it from the network together with
//! [`sockets`](super::sockets).
//!
//! What a child may read in any case is listed here, and in the documentation of
//! `Processes::only_reads`.

use std::collections::BTreeSet;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    make_bitflags,
};
use rustix::fs::{FileType, fstat};

use super::refused;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::sockets::no_sockets;
use crate::error::escape;
use crate::{Processes, Result};

/// The newest version whose rules the tests have seen at work. An older kernel keeps what it knows
/// of them.
const TESTED: ABI = ABI::V7;

/// What any program may read, where it is there: libraries that are loaded later (for names of
/// hosts and users, for unwinding), the time zone, what `malloc` and `available_parallelism` ask
/// the system. Nothing of it is a user's.
const READABLE: &[&str] = &[
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
];

/// The same in `/proc`. Not the whole of it: others' command lines are nobody's business.
const PROC: &[&str] = &[
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm/overcommit_memory",
];

const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
];

/// To read is not to execute: nothing gives that, so nothing can be started.
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

pub(super) fn restrict(processes: &Processes) -> Result<()> {
    if processes.limits_paths() || processes.no_network {
        landlock(processes)?;
    }
    if processes.no_network {
        no_sockets()?;
    }
    Ok(())
}

fn landlock(processes: &Processes) -> Result<()> {
    let cannot = |error: RulesetError| refused("a limit by Landlock")(error);
    let mut ruleset = Ruleset::default();
    if processes.limits_paths() {
        // Without Landlock there is no limit: an error. Rules that came with later kernels are
        // wanted, but not needed.
        let needed = ruleset.set_compatibility(CompatLevel::HardRequirement);
        let needed = needed
            .handle_access(AccessFs::from_all(ABI::V1))
            .map_err(cannot)?;
        let wanted = needed.set_compatibility(CompatLevel::BestEffort);
        ruleset = wanted
            .handle_access(AccessFs::from_all(TESTED))
            .map_err(cannot)?;
    }
    if processes.no_network {
        // For sockets that a child is given; it makes none itself, by the filter.
        ruleset = ruleset
            .handle_access(AccessNet::from_all(TESTED))
            .map_err(cannot)?;
    }
    let mut ruleset = ruleset
        .scope(Scope::from_all(TESTED))
        .and_then(Ruleset::create)
        .map_err(cannot)?;
    if processes.limits_paths() {
        let libraries = mapped();
        for path in READABLE
            .iter()
            .map(Path::new)
            .chain(libraries.iter().map(PathBuf::as_path))
        {
            if let Ok(fd) = PathFd::new(path) {
                ruleset = allow(ruleset, &fd, READ).map_err(cannot)?;
            }
        }
        for path in PROC {
            if let Ok(fd) = PathFd::new(path) {
                ruleset = allow(ruleset, &fd, READ).map_err(cannot)?;
                // The rule holds for a file that `/proc` makes anew once nobody has it open and
                // memory is short.
                mem::forget(fd);
            }
        }
        for path in DEVICES {
            if let Ok(fd) = PathFd::new(path) {
                ruleset = allow(
                    ruleset,
                    &fd,
                    READ | AccessFs::WriteFile | AccessFs::IoctlDev,
                )
                .map_err(cannot)?;
            }
        }
        for path in processes.reads.iter().flatten() {
            ruleset = allow(ruleset, &open(path)?, READ).map_err(cannot)?;
        }
        let write = AccessFs::from_write(TESTED) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
        for path in processes.writes.iter().flatten() {
            ruleset = allow(ruleset, &open(path)?, READ | write).map_err(cannot)?;
        }
    }
    let status = ruleset.restrict_self().map_err(cannot)?;
    if processes.limits_paths() && status.ruleset == RulesetStatus::NotEnforced {
        return Err(refused("a limit of paths")("the kernel has no Landlock"));
    }
    Ok(())
}

fn open(path: &Path) -> Result<PathFd> {
    let shown = path.display().to_string();
    PathFd::new(path).map_err(refused(format_args!("the path `{}`", escape(&shown))))
}

/// Allows something below a folder, or as much of it as there is for a file.
fn allow(
    ruleset: RulesetCreated,
    fd: &PathFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let folder =
        fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    let access = if folder {
        access
    } else {
        access & AccessFs::from_file(TESTED)
    };
    ruleset.add_rule(PathBeneath::new(fd, access))
}

/// The files that code of this process was loaded from: the executable (for back-traces) and its
/// libraries, wherever they are.
fn mapped() -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(code).map(PathBuf::from).collect()
}

/// The path in a line `7f00-7f01 r-xp 00000000 fe:00 1234 /usr/lib/libc.so.6` of a mapping that can
/// be executed.
fn code(line: &str) -> Option<&str> {
    let (addresses, rest) = line.split_once(' ')?;
    let (allowed, rest) = rest.split_once(' ')?;
    let path = &rest[rest.find('/')?..];
    (addresses.contains('-') && allowed.contains('x')).then_some(path)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn no_sockets() -> Result<()> {
    Err(refused("no network")(format_args!(
        "not on {}",
        std::env::consts::ARCH
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_can_be_executed_and_has_a_path() {
        assert_eq!(
            code("7f00-7f01 r-xp 00000000 fe:00 1234    /usr/lib/a b.so"),
            Some("/usr/lib/a b.so")
        );
        assert_eq!(
            code("7f00-7f01 r--p 00000000 fe:00 1234    /usr/lib/a.so"),
            None
        );
        assert_eq!(code("7f00-7f01 r-xp 00000000 00:00 0       [vdso]"), None);
        assert_eq!(code(""), None);
        let executable = std::env::current_exe().unwrap();
        assert!(mapped().contains(&executable), "{:?}", mapped());
    }
}
