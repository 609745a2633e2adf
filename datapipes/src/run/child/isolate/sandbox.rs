//! Paths that a child may use, restricted by Landlock, which also blocks the network together with
//! [`sockets`](super::sockets).
//!
//! The paths that a child may read in any case are listed here, and in the documentation of
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

/// Newest version whose rules were tested. An older kernel applies the rules that it supports.
const TESTED: ABI = ABI::V7;

/// Paths that any program may read, if they exist: libraries that are loaded later (for names of
/// hosts and users, for unwinding), the time zone, files that `malloc` and `available_parallelism`
/// read. None of them contains user data.
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

/// Readable files in `/proc`. Not all of it: the command lines of other processes stay private.
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

/// Read access does not include execution: no rule grants execution, so nothing can be started.
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
        // Without Landlock there is no limit, which is an error. Rules of later kernels are applied
        // if possible.
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
        // For sockets that a child inherits; the filter keeps it from making sockets itself.
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
                // The rule applies to an inode that `/proc` makes anew once nobody has it open and
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

/// Grants access to everything below a folder, or as much of it as applies to a file.
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

/// Returns the files from which this process's code was loaded: the executable (for back-traces)
/// and its libraries, in any folder.
fn mapped() -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(code).map(PathBuf::from).collect()
}

/// Returns the path in a line `7f00-7f01 r-xp 00000000 fe:00 1234 /usr/lib/libc.so.6` of an
/// executable mapping.
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
