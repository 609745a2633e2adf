//! A seccomp filter that blocks the system calls that make sockets.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::refused;
use crate::Result;

/// Numbers of system calls.
#[cfg(target_arch = "x86_64")]
mod calls {
    pub(super) const SOCKET: i64 = 41;
    pub(super) const SOCKETPAIR: i64 = 53;
    /// Bit of the additional call numbers, if the kernel supports the interface x32.
    pub(super) const ALSO: i64 = 0x4000_0000;
}
#[cfg(target_arch = "aarch64")]
mod calls {
    pub(super) const SOCKET: i64 = 198;
    pub(super) const SOCKETPAIR: i64 = 199;
    pub(super) const ALSO: i64 = 0;
}

/// Call number on all architectures, as for all newer calls.
const IO_URING_SETUP: i64 = 425;
const PIDFD_GETFD: i64 = 438;

/// Makes system calls fail that create a socket of another family than Unix, or obtain one in
/// another way. Existing sockets are not affected: the child talks to its parent over one.
pub(super) fn no_sockets() -> Result<()> {
    let program = filter().map_err(refused("no network"))?;
    seccompiler::apply_filter(&program).map_err(refused("no network"))
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let unix = u64::from(rustix::net::AddressFamily::UNIX.as_raw());
    let not_unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix)?;
    let not_unix = SeccompRule::new(vec![not_unix])?;
    let rules: BTreeMap<i64, Vec<SeccompRule>> = [
        (calls::SOCKET, vec![not_unix.clone()]),
        (calls::SOCKETPAIR, vec![not_unix]),
        // No rule: whatever the arguments.
        (IO_URING_SETUP, Vec::new()),
        (PIDFD_GETFD, Vec::new()),
    ]
    .into_iter()
    .flat_map(|(call, rules)| [(call, rules.clone()), (call | calls::ALSO, rules)])
    .collect();
    let denied = SeccompAction::Errno(Errno::ACCESS.raw_os_error() as u32);
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        denied,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}
