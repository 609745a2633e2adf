//! The rank that a launcher gave a process by environment variables.

use super::Rank;
use crate::{Error, Result};

/// The variables by which a launcher tells a process its rank. Of several names, the first that is
/// set counts.
struct Launcher {
    name: &'static str,
    index: &'static str,
    world: &'static [&'static str],
}

/// Sources: the manuals of torchrun ("Environment Variables"), srun ("OUTPUT ENVIRONMENT
/// VARIABLES"), mpirun of Open MPI, the PMI of MPICH, and Kubernetes' page on indexed jobs. `srun`
/// always sets the number of tasks of the step, but that of the job only if it was asked for.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "torchrun",
        index: "RANK",
        world: &["WORLD_SIZE"],
    },
    Launcher {
        name: "SLURM",
        index: "SLURM_PROCID",
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
    },
    Launcher {
        name: "Open MPI",
        index: "OMPI_COMM_WORLD_RANK",
        world: &["OMPI_COMM_WORLD_SIZE"],
    },
    Launcher {
        name: "PMI",
        index: "PMI_RANK",
        world: &["PMI_SIZE"],
    },
    Launcher {
        name: "Kubernetes",
        index: "JOB_COMPLETION_INDEX",
        world: &["JOB_COMPLETIONS", "WORLD_SIZE"],
    },
];

/// Variables of a launcher that are set, by name.
struct LauncherVars {
    launcher: &'static Launcher,
    index: Option<usize>,
    world: Option<(&'static str, usize)>,
}

impl Rank {
    /// Returns the rank that this process's launcher gave it by environment variables; 0 of 1 if
    /// there are none. This is the only place where the library reads these variables, and only
    /// when it is called.
    ///
    /// | launcher | rank | number of ranks |
    /// |---|---|---|
    /// | torchrun, and what follows it | `RANK` | `WORLD_SIZE` |
    /// | SLURM (`srun`) | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS`, else `SLURM_NTASKS` |
    /// | Open MPI (`mpirun`) | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK` | `PMI_SIZE` |
    /// | Kubernetes, indexed job | `JOB_COMPLETION_INDEX` | `JOB_COMPLETIONS`, else `WORLD_SIZE` |
    ///
    /// Kubernetes does not tell a pod the number of pods: set `JOB_COMPLETIONS` in the pod
    /// template's `env` to the job's number of `completions`.
    ///
    /// A launcher may run inside another: `srun` starts one torchrun on each node, which starts one
    /// process for each GPU. The launcher with the most ranks then counts. The others must be
    /// consistent with it: each of their ranks stands for an equal number of its consecutive ranks.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), with names and values, if a number of ranks is set without a rank, or
    /// a rank without a number; if a value is not a number, or a rank not below the number of
    /// ranks; if launchers contradict each other. To leave a launcher out, call
    /// [`from_vars`](Rank::from_vars).
    pub fn from_env() -> Result<Rank> {
        Rank::from_vars(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// Returns the rank from variables that are looked up by name, such as some of the
    /// environment's.
    ///
    /// # Errors
    /// Fails as [`from_env`](Rank::from_env) does.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Rank;
    /// let vars = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8")];
    /// let lookup = |name: &str| Some(vars.iter().find(|var| var.0 == name)?.1.to_owned());
    /// assert_eq!(Rank::from_vars(lookup)?, Rank { index: 3, world: 8 });
    /// assert_eq!(Rank::from_vars(|_| None)?, Rank { index: 0, world: 1 });
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn from_vars(lookup: impl Fn(&str) -> Option<String>) -> Result<Rank> {
        let number = |name: &str| match lookup(name) {
            None => Ok(None),
            // A variable that is empty was meant to be unset.
            Some(text) if text.trim().is_empty() => Ok(None),
            Some(text) => text.trim().parse::<usize>().map(Some).map_err(|_| {
                let text: String = text.chars().take(100).collect();
                Error::config(format!("{name} is {text:?}, which is no number"))
            }),
        };
        let mut launchers: Vec<LauncherVars> = Vec::new();
        for launcher in &LAUNCHERS {
            let index = number(launcher.index)?;
            let mut world = None;
            for &name in launcher.world {
                // With a rank of the launcher's own next to it, the name is torchrun's.
                let others = launcher.index != "RANK" && name == "WORLD_SIZE";
                if world.is_none() && !(others && (index.is_none() || number("RANK")?.is_some())) {
                    world = number(name)?.map(|world| (name, world));
                }
            }
            if index.is_some() || world.is_some() {
                launchers.push(LauncherVars {
                    launcher,
                    index,
                    world,
                });
            }
        }
        for launcher in &launchers {
            launcher.check()?;
        }
        let whole = launchers
            .iter()
            .filter_map(|launcher| Some((launcher, launcher.rank()?)));
        let Some((inner, rank)) = whole.max_by_key(|(_, rank)| rank.world) else {
            return match launchers.first() {
                Some(launcher) => Err(launcher.half()),
                None => Ok(Rank::default()),
            };
        };
        match launchers.iter().find(|outer| !outer.contains(rank)) {
            Some(outer) => {
                let (a, b) = (inner.shown(), outer.shown());
                Err(Error::config(format!(
                    "launchers contradict each other: {a}, and {b}"
                )))
            }
            None => Ok(rank),
        }
    }
}

impl LauncherVars {
    /// Returns the rank, if rank and number of ranks are set. One rank needs no number.
    fn rank(&self) -> Option<Rank> {
        match (self.index, self.world?.1) {
            (Some(index), world) => Some(Rank { index, world }),
            (None, 1) => Some(Rank::default()),
            (None, _) => None,
        }
    }

    fn check(&self) -> Result<()> {
        match (self.index, self.world) {
            (_, Some((name, 0))) => Err(Error::config(format!("{name} is 0: there is no rank"))),
            (Some(index), Some((_, world))) if index >= world => Err(Error::config(format!(
                "{}: there is no such rank, they are numbered from 0",
                self.shown()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns true if a rank of another launcher can be one of those that this one started, or
    /// this one itself.
    fn contains(&self, inner: Rank) -> bool {
        let Some((_, world)) = self.world else {
            return true;
        };
        inner.world.is_multiple_of(world)
            && self
                .index
                .is_none_or(|index| inner.index / (inner.world / world) == index)
    }

    fn half(&self) -> Error {
        let message = match self.world {
            Some((name, world)) => {
                format!(
                    "{name} is {world}, and {} is not set: which of them is this?",
                    self.launcher.index
                )
            }
            None => format!(
                "{} is {}, and {} is not set: how many are there?",
                self.launcher.index,
                self.index.unwrap_or(0),
                self.launcher.world.join(" or ")
            ),
        };
        Error::config(message)
    }

    fn shown(&self) -> String {
        let index = self
            .index
            .map(|index| format!("{}={index}", self.launcher.index));
        let world = self.world.map(|(name, world)| format!("{name}={world}"));
        let both: Vec<String> = [index, world].into_iter().flatten().collect();
        format!("{} says {}", self.launcher.name, both.join(" "))
    }
}
