//! CPU time and memory of a process.
#![allow(dead_code, reason = "not all who use this ask for both")]

use std::fs::read_to_string;

/// Returns the user and system time of this process so far.
#[cfg(unix)]
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(not(unix))]
pub fn cpu_seconds() -> f64 {
    0.0
}

/// Returns the user and system time of another process so far, in steps of 10 ms.
pub fn cpu_seconds_of(process: impl std::fmt::Display) -> f64 {
    let stat = read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, which may have spaces, ends with the last parenthesis.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks = ticks.filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Returns a field of `/proc/self/status` in MB: `VmRSS` is the current value, `VmHWM` the peak.
pub fn memory_mb(field: &str) -> f64 {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    let kb = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}
