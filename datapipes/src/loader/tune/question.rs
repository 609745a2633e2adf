//! The question of `datapipes tune`, which runs the user's program with the question in environment
//! variables: only that program has the graph.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{Tuner, Tuning};
use crate::loader::DataLoader;
use crate::loader::blame::{TUNE, begin_answer, write_answer};
use crate::loader::settings_file::check_path;
use crate::whole_file::{probe, replace_shared};
use crate::{BoxError, Error, Result};

/// `grid` or `search`.
const METHOD: &str = "DATAPIPES_TUNE_METHOD";
const CORES: &str = "DATAPIPES_TUNE_CORES";
const GPUS: &str = "DATAPIPES_TUNE_GPUS";
const PREFETCH: &str = "DATAPIPES_TUNE_PREFETCH";
const BATCHES: &str = "DATAPIPES_TUNE_BATCHES";
/// Bound of memory, in MiB.
const MEMORY: &str = "DATAPIPES_TUNE_MEMORY";
/// File for the heat map, if it is wanted.
const PICTURE: &str = "DATAPIPES_TUNE_SVG";
/// File that the answer is written to; standard output if there is none.
const ANSWER: &str = "DATAPIPES_TUNE_ANSWER";

impl<T: Send + 'static> DataLoader<T> {
    /// Answers the question of `datapipes tune --out SETTINGS -- PROGRAM`, if this program was started
    /// by that command: finds the best settings by a [`Tuner`], without a step, and writes them to a
    /// file for [`settings_from`](crate::loader::Builder::settings_from). Returns true if it did;
    /// the program should end then. Returns false at once if it was not asked. Call it after
    /// `build`.
    ///
    /// The question is in the environment variables `DATAPIPES_TUNE` (the path of the settings
    /// file), `DATAPIPES_TUNE_METHOD` (`search` or `grid`), `DATAPIPES_TUNE_CORES`, `…_GPUS`,
    /// `…_PREFETCH`, `…_BATCHES`, `…_MEMORY` (MiB), `…_SVG` and `…_ANSWER` (files for the heat map
    /// and the table). As long as the first is set and no loader has answered, every epoch
    /// of a loader fails; [`Graph::collect`](crate::Graph::collect) does not.
    ///
    /// # Errors
    /// Those of [`Tuner::search`], [`Tuner::grid`] and [`Tuning::save`]; [`ErrorKind::Config`](crate::ErrorKind::Config) for
    /// values that cannot be parsed; [`ErrorKind::Io`](crate::ErrorKind::Io) for a file that cannot be written.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// # fn main() -> Result<(), datapipes::BoxError> {
    /// let loader = DataLoader::builder(Graph::range(0..100).batch(4)).build()?;
    /// if loader.answer_tune()? {
    ///     return Ok(());
    /// }
    /// for batch in loader.epoch(0) {
    ///     assert_eq!(batch?.len(), 4); // training
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn answer_tune(&self) -> Result<bool> {
        self.answer_tune_with(|_| crate::Ok(()))
    }

    /// Does the same with a training step, whose time is part of the runs; see [`Tuner::step`].
    ///
    /// # Errors
    /// Fails as [`answer_tune`](DataLoader::answer_tune) does, and with the errors of the step.
    pub fn answer_tune_with<E: Into<BoxError>>(
        &self,
        step: impl FnMut(T) -> Result<(), E>,
    ) -> Result<bool> {
        let Some(out) = std::env::var_os(TUNE) else {
            return Ok(false);
        };
        begin_answer();
        let value = |name: &str| std::env::var(name).ok();
        let picture = std::env::var_os(PICTURE).map(PathBuf::from);
        // The runs may take an hour.
        check_path(Path::new(&out))?;
        picture.as_deref().map_or(Ok(()), check_picture)?;
        let tuning = self.tuned(step, value)?;
        // First what needs no path of the user.
        write_answer(ANSWER, &tuning)?;
        tuning.save(Path::new(&out))?;
        if let Some(path) = picture {
            let written = replace_shared(&path, tuning.heat_map().as_bytes());
            written.map_err(|error| Error::io(error).within(path.display()))?;
        }
        Ok(true)
    }

    /// Tunes with the values of these variables.
    pub(super) fn tuned<E: Into<BoxError>>(
        &self,
        step: impl FnMut(T) -> Result<(), E>,
        value: impl Fn(&str) -> Option<String>,
    ) -> Result<Tuning> {
        let mut tuner = Tuner::of(self).step(step);
        if let Some(cores) = number(&value, CORES)? {
            tuner = tuner.cores(cores);
        }
        if let Some(gpus) = number(&value, GPUS)? {
            tuner = tuner.gpus(gpus);
        }
        if let Some(prefetch) = number(&value, PREFETCH)? {
            tuner = tuner.most_prefetch(prefetch);
        }
        if let Some(batches) = number(&value, BATCHES)? {
            tuner = tuner.batches(batches);
        }
        if let Some(memory) = number::<u32>(&value, MEMORY)? {
            tuner = tuner.memory(u64::from(memory) << 20);
        }
        match value(METHOD).as_deref() {
            None | Some("search") => tuner.search(),
            Some("grid") => tuner.grid(),
            Some(other) => {
                let message = format!("{METHOD} is {other:?}, and has to be search or grid");
                Err(Error::config(message))
            }
        }
    }
}

fn check_picture(path: &Path) -> Result<()> {
    probe(path).map_err(|error| Error::io(error).within(path.display()))
}

/// Parses the value of a variable.
fn number<N: FromStr>(value: impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<N>> {
    let parse = |text: String| {
        text.parse().map_err(|_| {
            let message = format!("{name} is {text:?}, and has to be a number");
            Error::config(message)
        })
    };
    value(name).map(parse).transpose()
}
