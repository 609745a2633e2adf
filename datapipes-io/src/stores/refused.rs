//! The refusal of files that are not those of a lock.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use datapipes::Error;

use super::Meta;
use super::lock::{Difference, Lockfile, parse};

/// Number of files that a message names.
const NAMED: usize = 5;

/// The files that are refused, as the cause of an error.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    url: String,
    /// The first differences, each with the first step that would use the file, if it is known.
    named: Vec<(Difference, Option<u64>)>,
    /// Number of other differences.
    more: usize,
    /// The lock, and what was listed instead; `None` for a file that was opened by its name.
    listings: Option<(Lockfile, Arc<[Meta]>)>,
}

impl Refused {
    /// Refuses what differs from a lock.
    pub fn new(url: &str, mut differences: Vec<Difference>) -> Self {
        let more = differences.len().saturating_sub(NAMED);
        differences.truncate(NAMED);
        Refused {
            url: url.to_owned(),
            named: differences.into_iter().map(|one| (one, None)).collect(),
            more,
            listings: None,
        }
    }

    /// Adds the lock and what was listed instead.
    pub fn of_listings(mut self, lock: Lockfile, now: Vec<Meta>) -> Self {
        self.listings = Some((lock, now.into()));
        self
    }

    /// Returns the refusal that an error has as its cause.
    pub fn of_error(error: &Error) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }

    /// Adds the first steps that would use the files: of the lock, those of an epoch over its files;
    /// of new ones, those of an epoch over what is there now. `is_used` tells if an epoch uses the
    /// name, and `steps_of` returns the steps of some places of such a list of names.
    pub async fn with_steps<F>(
        mut self,
        is_used: impl Fn(&str) -> bool,
        steps_of: impl Fn(Vec<String>, Vec<u64>) -> F,
    ) -> Self
    where
        F: Future<Output = Vec<Option<u64>>>,
    {
        let Some((lock, now)) = &self.listings else {
            return self;
        };
        let Ok(held) = parse(lock.pattern()) else {
            return self;
        };
        let used = |name: &&str| is_used(name);
        let now: Vec<&str> = now.iter().map(|meta| &*meta.key).filter(used).collect();
        let locked = lock.files().iter().map(|file| &*file.name);
        let mut then: Vec<&str> = locked.filter(used).collect();
        if !now.iter().all(|name| held.accepts(Path::new(name))) {
            // It is not known at what places an epoch had the files that the lock leaves alone.
            then.clear();
        }
        for (is_new, names) in [(false, then), (true, now)] {
            let (mut places, mut wanted) = (Vec::new(), Vec::new());
            for (one, step) in &mut self.named {
                let place = names.iter().position(|&name| name == one.name);
                if let Some(place) = place.filter(|_| one.is_new == is_new) {
                    places.push(place as u64);
                    wanted.push(step);
                }
            }
            if wanted.is_empty() {
                continue;
            }
            let names = names.iter().map(|&name| name.to_owned()).collect();
            let steps = steps_of(names, places).await;
            wanted
                .into_iter()
                .zip(steps)
                .for_each(|(to, step)| *to = step);
        }
        self
    }

    /// Makes the error, of kind `Config`, which no policy skips.
    pub fn into_error(self) -> Error {
        let message = format!("{} is not what was locked", self.url);
        Error::config(message).with_source(self)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (one, step)) in self.named.iter().enumerate() {
            let colon = if place == 0 { "" } else { "; " };
            write!(f, "{colon}{}", one.text)?;
            if let Some(step) = step {
                write!(f, ", first used by step {step}")?;
            }
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Refused {}
