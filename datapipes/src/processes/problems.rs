//! Problems of the settings of processes that can be found before any process is started.

use std::path::PathBuf;

use super::{Processes, bytes};
use crate::error::escape;

/// Least memory limit: a program cannot start with less.
const LEAST_MEMORY: u64 = 16 << 20;

impl Processes {
    /// Returns the problems, including settings that this machine cannot keep; one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        #[cfg(feature = "remote")]
        problems.extend(self.remote.iter().flat_map(|remote| remote.problems()));
        let mut say = |problem: String| problems.push(problem);
        if self.count == 0 {
            say("0 processes do no work".into());
        }
        if self.time_limit.is_some_and(|limit| limit.is_zero()) {
            say("a time limit of zero ends every job".into());
        }
        match self.memory {
            Some(memory) if memory < LEAST_MEMORY => {
                say(format!(
                    "{memory} bytes of memory are not enough to start: at least {}",
                    bytes(LEAST_MEMORY)
                ));
            }
            _ => (),
        }
        if let Some(nice) = self.nice.filter(|nice| !(-20..=19).contains(nice)) {
            say(format!("nice {nice} is not between -20 and 19"));
        }
        if self.cpus.as_ref().is_some_and(Vec::is_empty) {
            say("the set of CPUs is empty".into());
        }
        for name in self.env.iter().flatten() {
            if name.is_empty() || name.contains(['=', '\0']) {
                say(format!("`{}` is no name of a variable", escape(name)));
            }
        }
        for (path, what) in self.paths() {
            let shown = path.display().to_string();
            if !path.is_absolute() {
                say(format!("{what} `{}`: not an absolute path", escape(&shown)));
            } else if let Err(error) = path.metadata() {
                say(format!("{what} `{}`: {error}", escape(&shown)));
            }
        }
        self.system_problems(&mut problems);
        problems
    }

    fn paths(&self) -> impl Iterator<Item = (&PathBuf, &'static str)> {
        let reads = self.reads.iter().flatten().map(|path| (path, "to read"));
        reads.chain(self.writes.iter().flatten().map(|path| (path, "to write")))
    }

    #[cfg(not(target_os = "linux"))]
    fn system_problems(&self, problems: &mut Vec<String>) {
        for (said, what) in [
            (self.memory.is_some(), "a memory limit"),
            (self.nice.is_some(), "a nice level"),
            (self.cpus.is_some(), "a set of CPUs"),
            (self.limits_paths(), "a limit of paths"),
            (self.no_network, "no network"),
        ] {
            if said {
                problems.push(format!("{what} for processes needs Linux"));
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn system_problems(&self, problems: &mut Vec<String>) {
        let impossible = self.cpus.iter().flatten().filter(|cpu| !may_run_on(**cpu));
        let impossible: Vec<usize> = impossible.copied().collect();
        if !impossible.is_empty() {
            problems.push(format!(
                "this process may not run on CPU {}",
                super::ranges(&impossible)
            ));
        }
        if let Some(nice) = self
            .nice
            .filter(|nice| (-20..=19).contains(nice) && !may_be_nice(*nice))
        {
            problems.push(format!(
                "nice {nice} needs the privilege CAP_SYS_NICE, or a higher RLIMIT_NICE"
            ));
        }
        if self.limits_paths()
            && let Some(problem) = landlock()
        {
            problems.push(format!("a limit of paths {problem}"));
        }
        if self.no_network {
            if !cfg!(feature = "isolation") {
                problems.push("no network needs the feature `isolation` of `datapipes`".into());
            } else if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
                problems.push(format!(
                    "no network is for x86-64 and AArch64, not {}",
                    std::env::consts::ARCH
                ));
            }
        }
    }
}

/// Looks at the main thread's CPU set, since the calling thread may be pinned to a part of it.
#[cfg(target_os = "linux")]
fn may_run_on(cpu: usize) -> bool {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let ours = sched_getaffinity(Some(rustix::process::getpid()));
    // For CPUs beyond the size of the set, the child will find out.
    cpu < CpuSet::MAX_CPU && ours.map_or(true, |ours| ours.is_set(cpu))
}

/// Returns true if this process may set the priority; mirrors `can_nice` of the kernel.
#[cfg(target_os = "linux")]
fn may_be_nice(nice: i32) -> bool {
    use rustix::process::{Resource, getpriority_process, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};

    let least = 20
        - getrlimit(Resource::Nice)
            .current
            .map_or(40, |limit| limit.min(40) as i32);
    nice >= least
        || getpriority_process(None).is_ok_and(|now| nice >= now)
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
}

/// Returns the reason why there is no Landlock.
#[cfg(all(target_os = "linux", feature = "isolation"))]
fn landlock() -> Option<&'static str> {
    use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};

    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let made = ruleset
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create);
    made.is_err()
        .then_some("needs Landlock, which this kernel does not have or has not enabled")
}

#[cfg(all(target_os = "linux", not(feature = "isolation")))]
fn landlock() -> Option<&'static str> {
    Some("needs the feature `isolation` of `datapipes`")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_wrong_is_said_at_once_with_its_number() {
        let wrong = Processes::new(0)
            .time_limit(Duration::ZERO)
            .memory(1 << 20)
            .nice(20)
            .cpus([])
            .only_env(["PATH", "A=B", ""]);
        let expected = [
            "0 processes do no work",
            "a time limit of zero ends every job",
            "1048576 bytes of memory are not enough to start: at least 16 MiB",
            "nice 20 is not between -20 and 19",
            "the set of CPUs is empty",
            "`A=B` is no name of a variable",
            "`` is no name of a variable",
        ];
        let problems = wrong.problems();
        assert_eq!(&problems[..7], expected);
        assert_eq!(Processes::new(1).problems(), [""; 0]);
    }

    #[test]
    fn paths_are_absolute_and_there() {
        let problems = Processes::new(1)
            .only_reads(["data", "/"])
            .only_writes(["/no/such\nfolder"])
            .problems();
        assert_eq!(problems[0], "to read `data`: not an absolute path");
        assert!(
            problems[1].starts_with("to write `/no/such\\nfolder`: "),
            "{problems:?}"
        );
        let rest = &problems[2..];
        if cfg!(all(target_os = "linux", feature = "isolation")) {
            assert!(
                rest.iter().all(|problem| problem.contains("this kernel")),
                "{rest:?}"
            );
        } else if cfg!(target_os = "linux") {
            assert_eq!(
                rest,
                ["a limit of paths needs the feature `isolation` of `datapipes`"]
            );
        } else {
            assert_eq!(rest, ["a limit of paths for processes needs Linux"]);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn cpus_are_ours() {
        let ours = rustix::thread::sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        let one = (0..1024).find(|cpu| ours.is_set(*cpu)).unwrap();
        assert_eq!(Processes::new(1).cpus([one]).problems(), [""; 0]);
        let problems = Processes::new(1)
            .cpus([one, 5000, 5001, usize::MAX])
            .problems();
        assert_eq!(
            problems,
            [format!(
                "this process may not run on CPU 5000-5001,{}",
                usize::MAX
            )]
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_network_is_missed_with_the_feature_only() {
        let problems = Processes::new(1).no_network().problems();
        let possible = cfg!(feature = "isolation")
            && cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        assert_eq!(problems.is_empty(), possible, "{problems:?}");
        assert!(Processes::new(1).nice(19).problems().is_empty());
    }
}
