//! The question of `datapipes blame`, which runs the user's program with the question in
//! environment variables: only that program has the graph.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Blame;
use super::picture::draw;
use crate::loader::replay::Step;
use crate::loader::{Checkpoint, DataLoader};
use crate::{Error, Origin, Result, Tensor};

/// Path of the checkpoint. If it is set, the program is asked.
const STATE: &str = "DATAPIPES_BLAME";
/// Path of the settings file that `datapipes tune` wants. A program without feature `tune` is asked,
/// too, and must not train then.
pub(in crate::loader) const TUNE: &str = "DATAPIPES_TUNE";
/// Steps, as `A..B`.
const STEPS: &str = "DATAPIPES_BLAME_STEPS";
/// Folder for pictures, if they are wanted.
const PICTURES: &str = "DATAPIPES_BLAME_OUT";
/// File that the answer is written to; standard output if there is none.
const ANSWER: &str = "DATAPIPES_BLAME_ANSWER";

/// True once a loader has begun to answer.
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Returns an error if the program is asked, and no loader has answered. A program that does not
/// answer would train, and might overwrite the checkpoint that it is asked about.
pub(in crate::loader) fn refuse_unanswered() -> Result<()> {
    if ANSWERED.load(Ordering::Relaxed) {
        return Ok(());
    }
    for (variable, command, note) in [(STATE, "blame", ""), (TUNE, "tune", " (feature `tune`)")] {
        if std::env::var_os(variable).is_some() {
            return Err(Error::config(format!(
                "{variable} is set, so `datapipes {command}` runs this program, and no loader \
                 answered before this epoch: after `build`, add `if loader.answer_{command}()? {{ \
                 return Ok(()) }}`{note}"
            )));
        }
    }
    Ok(())
}

/// Records that a loader answers the question, so that epochs may run.
pub(in crate::loader) fn begin_answer() {
    ANSWERED.store(true, Ordering::Relaxed);
}

/// Writes an answer to the file that a variable names, or else to standard output.
pub(in crate::loader) fn write_answer(variable: &str, answer: &dyn fmt::Display) -> Result<()> {
    match std::env::var_os(variable) {
        Some(path) => fs::write(&path, format!("{answer}\n"))
            .map_err(|error| failed(&PathBuf::from(path), error)),
        None => writeln!(std::io::stdout().lock(), "{answer}").map_err(Error::io),
    }
}

impl<T: Send + 'static> DataLoader<T> {
    /// Answers the question of `datapipes blame CHECKPOINT --steps A..B -- PROGRAM`, if this program was
    /// started by that command: prints the [blame](DataLoader::blame), and writes pictures with
    /// `--out`. Returns true if it did; the program should end then. Returns false at once if it
    /// was not asked. Call it after `build`, for the loader that the checkpoints are of.
    ///
    /// With `--out DIR` each output that is a picture is written to `DIR` as a PNG file: a
    /// [`Tensor`] of the shape `[height, width]`, `[height, width, channels]` or
    /// `[channels, height, width]` with 1 or 3 channels, of `u8` or floats, alone or with a label.
    /// For other types see [`answer_blame_with`](DataLoader::answer_blame_with).
    ///
    /// The question is in the environment variables `DATAPIPES_BLAME` (the path of the checkpoint),
    /// `DATAPIPES_BLAME_STEPS` (`A..B`), `DATAPIPES_BLAME_OUT` and `DATAPIPES_BLAME_ANSWER` (files
    /// for pictures and text). As long as the first is set and no loader has answered, every epoch
    /// of a loader fails; [`Graph::collect`](crate::Graph::collect) does not.
    ///
    /// # Errors
    /// Those of [`Checkpoint::load`] and [`blame`](DataLoader::blame); [`ErrorKind::Config`](crate::ErrorKind::Config) for
    /// steps that cannot be parsed; [`ErrorKind::Io`](crate::ErrorKind::Io) for a file that cannot be written.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// # fn main() -> Result<(), datapipes::BoxError> {
    /// let loader = DataLoader::builder(Graph::range(0..100).batch(4)).resumable().build()?;
    /// if loader.answer_blame()? {
    ///     return Ok(());
    /// }
    /// for batch in loader.epoch(0) {
    ///     assert_eq!(batch?.len(), 4); // training
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn answer_blame(&self) -> Result<bool> {
        self.answer_blame_with(|_| None)
    }

    /// Does the same, and draws more types: `picture` converts the output of a node to a tensor
    /// that can be drawn, if it is a picture. For pictures of `datapipes-image` this is
    /// `datapipes_image::picture`; for types of your own it may use [`labelled`](crate::labelled).
    ///
    /// # Errors
    /// Fails as [`answer_blame`](DataLoader::answer_blame) does.
    pub fn answer_blame_with(&self, picture: impl Fn(&dyn Any) -> Option<Tensor>) -> Result<bool> {
        let Some(path) = std::env::var_os(STATE) else {
            return Ok(false);
        };
        begin_answer();
        let steps = std::env::var(STEPS).unwrap_or_default();
        let folder = std::env::var_os(PICTURES).map(PathBuf::from);
        let (answer, pictures) = self.answer(Path::new(&path), &steps, folder, picture)?;
        write_answer(ANSWER, &answer)?;
        pictures.map(|()| true)
    }

    /// Returns the blame, and whether its pictures could be written.
    pub(super) fn answer(
        &self,
        path: &Path,
        steps: &str,
        folder: Option<PathBuf>,
        picture: impl Fn(&dyn Any) -> Option<Tensor>,
    ) -> Result<(Blame, Result<()>)> {
        let steps = parse(steps)?;
        let checkpoint = Checkpoint::load(path)?;
        if let Some(folder) = &folder {
            // The work comes after it.
            fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        }
        let mut pictures = folder.map(Pictures::new);
        let mut problem = None;
        let blame = self.blame_with(&checkpoint, steps, |number, step, values| {
            let Some(pictures) = pictures.as_mut().filter(|_| problem.is_none()) else {
                return;
            };
            let drawn = |value: &dyn Any| match picture(value) {
                Some(tensor) => draw(&tensor),
                None => draw(value),
            };
            problem = pictures.write(number, step, values, drawn).err();
        })?;
        Ok((blame, problem.map_or(Ok(()), Err)))
    }
}

/// Parses `A..B`.
fn parse(text: &str) -> Result<Range<u64>> {
    let parsed = text
        .split_once("..")
        .and_then(|(from, to)| Some(from.trim().parse().ok()?..to.trim().parse().ok()?));
    parsed.ok_or_else(|| {
        let message = format!("{STEPS} is {text:?}, and has to be a range of steps such as 10..12");
        Error::config(message)
    })
}

/// A folder of pictures.
struct Pictures {
    folder: PathBuf,
    /// Step of the batch, with the number of each of its samples.
    step: u64,
    samples: HashMap<Origin, usize>,
    /// Number of steps seen for each sample: the numbers of nodes.
    nodes: HashMap<usize, usize>,
}

impl Pictures {
    fn new(folder: PathBuf) -> Pictures {
        Pictures {
            folder,
            step: u64::MAX,
            samples: HashMap::new(),
            nodes: HashMap::new(),
        }
    }

    /// Writes the pictures among a node's output for a sample, as
    /// `DIR/step-12/003-01-decode.png`.
    fn write(
        &mut self,
        number: u64,
        step: &Step,
        values: &[&dyn Any],
        drawn: impl Fn(&dyn Any) -> Option<Vec<u8>>,
    ) -> Result<()> {
        if self.step != number {
            (self.samples, self.nodes) = Default::default();
            self.step = number;
        }
        let next = self.samples.len();
        let sample = *self.samples.entry(step.part().clone()).or_insert(next);
        let node = self.nodes.entry(sample).or_default();
        *node += 1;
        if !step.is_run() {
            return Ok(());
        }
        let folder = self.folder.join(format!("step-{number}"));
        let files = values.iter().filter_map(|value| drawn(*value));
        for (place, file) in files.enumerate() {
            let is_plain = |c: char| c.is_alphanumeric() || "-_".contains(c);
            let name: String = step
                .node()
                .chars()
                .take(40)
                .map(|c| if is_plain(c) { c } else { '_' })
                .collect();
            let place = if place == 0 {
                String::new()
            } else {
                format!("-{}", place + 1)
            };
            let path = folder.join(format!("{sample:03}-{:02}-{name}{place}.png", *node - 1));
            fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
            fs::write(&path, file).map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::io(error).within(path.display())
}
