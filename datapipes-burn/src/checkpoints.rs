//! The loader's checkpoints next to those of burn's learner.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn_core::data::dataloader::DataLoader;
use burn_train::checkpoint::{
    Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction, CheckpointingStrategy,
};
use burn_train::metric::store::EventStoreClient;
use burn_train::{InferenceStep, Interrupter, LearnerModel, SupervisedTraining, TrainStep};
use datapipes::{Checkpoint as LoaderCheckpoint, Error, ErrorKind, Result};

use crate::BurnLoader;

/// Names of the files that the learner saves.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// Makes a training with burn's learner that resumes after a stop or a kill, with model, optimizer,
/// learning rate and data from the same moment.
///
/// It is [`SupervisedTraining::new`] with checkpoints in `folder/checkpoint`, each of which
/// includes the loader's [checkpoint](BurnLoader::checkpoint). `strategy` decides which epochs are
/// saved and kept, as burn's [`KeepLastNCheckpoints`](burn_train::checkpoint::KeepLastNCheckpoints)
/// does. If the folder has checkpoints, the learner and the loader resume from the newest complete
/// one.
///
/// - Burn's learner saves only at the end of its epochs. With [`BurnLoader::steps_per_epoch`], an
///   epoch of the learner is a fixed number of batches, in the middle of the loader's epochs: a
///   kill then costs the batches since the last of these. Validation runs as often.
/// - A file of a checkpoint is written as a whole or not at all. An old checkpoint is deleted only
///   when all files of a newer one exist, so there may be one checkpoint more than the strategy
///   keeps. Burn's threads write their files; the loader's checkpoint, some hundred bytes, is on
///   the disk before they begin.
/// - Some values are not in burn's checkpoints and are therefore not resumed: the random state of
///   its backend (dropout), metrics, and accumulated gradients that were not applied yet.
///
/// # Errors
/// As [`BurnLoader::resume`], so also if the loader is not
/// [resumable](datapipes::loader::Builder::resumable); [`ErrorKind::Io`] if the folder cannot be
/// read. A checkpoint of the loader that cannot be saved interrupts the training, as any checkpoint
/// that burn cannot save.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
///
/// use burn_train::checkpoint::KeepLastNCheckpoints;
/// use burn_train::{InferenceStep, Learner, LearnerModel, TrainStep};
/// use burn_core::tensor::Tensor;
/// use datapipes_burn::{BurnLoader, resumable_training};
///
/// type Batch = (Tensor<4>, Tensor<1, burn_core::tensor::Int>);
/// type Loader = BurnLoader<(datapipes::Tensor, datapipes::Tensor), Batch>;
///
/// fn train<M>(learner: Learner<M>, training: Loader, validation: Loader) -> datapipes::Result<()>
/// where
///     M: LearnerModel + TrainStep<Input = Batch> + InferenceStep<Input = Batch>,
/// {
///     // 200 times 500 batches, in this run and those before.
///     let training = resumable_training::<M, _, _>(
///         "run",
///         training.steps_per_epoch(500),
///         Arc::new(validation),
///         KeepLastNCheckpoints::new(2),
///     )?;
///     training.num_epochs(200).launch(learner);
///     Ok(())
/// }
/// ```
pub fn resumable_training<M, B, S>(
    folder: impl AsRef<Path>,
    loader: BurnLoader<B, <M as TrainStep>::Input>,
    validation: Arc<dyn DataLoader<<M as InferenceStep>::Input>>,
    strategy: S,
) -> Result<SupervisedTraining<M>>
where
    M: LearnerModel,
    B: Send + 'static,
    <M as TrainStep>::Input: Send + 'static,
    S: CheckpointingStrategy + 'static,
{
    let files = Files(folder.as_ref().join("checkpoint"));
    fs::create_dir_all(&files.0).map_err(|error| files.failed(error))?;
    let newest = files.newest()?;
    let loader = match newest {
        Some(number) => loader.resume(&LoaderCheckpoint::load(files.data(number))?)?,
        None => loader,
    };
    // Without a checkpoint of its own the loader would resume with other data.
    loader.inner().epoch(0).checkpoint()?;

    let training = SupervisedTraining::new(folder, Arc::new(loader.clone()), validation);
    let interrupter = training.interrupter();
    let part = |name| Part {
        files: files.clone(),
        name,
    };
    let [model, optim, scheduler] = PARTS;
    let training = training.with_custom_checkpointers(part(model), part(optim), part(scheduler));
    let strategy = WithData {
        strategy: Box::new(strategy),
        loader,
        files,
        interrupter,
        saved: newest,
        late: Vec::new(),
    };
    let training = training.with_checkpointing_strategy(strategy);
    Ok(match newest {
        Some(number) => training.checkpoint(number),
        None => training,
    })
}

/// The folder of the checkpoints.
#[derive(Clone, Debug)]
struct Files(PathBuf);

impl Files {
    /// Returns the path of the loader's checkpoint.
    fn data(&self, number: usize) -> PathBuf {
        self.0.join(format!("data-{number}.checkpoint"))
    }

    fn part(&self, name: &str, number: usize) -> PathBuf {
        self.0.join(format!("{name}-{number}.bpk"))
    }

    /// Returns true if all files of a checkpoint exist.
    fn is_whole(&self, number: usize) -> bool {
        self.data(number).exists() && PARTS.iter().all(|part| self.part(part, number).exists())
    }

    /// Removes the parts that a killed run left of a checkpoint of this number: with those that are
    /// written first now they would make one of two moments.
    fn begin(&self, number: usize) -> Result<(), CheckpointerError> {
        let mut parts = PARTS.iter();
        parts.try_for_each(|part| remove(&self.part(part, number)))
    }

    fn newest(&self) -> Result<Option<usize>> {
        let mut newest: Option<usize> = None;
        for entry in fs::read_dir(&self.0).map_err(|error| self.failed(error))? {
            let name = entry.map_err(|error| self.failed(error))?.file_name();
            let number = name.to_str().and_then(|name| {
                let number = name.strip_prefix("data-")?.strip_suffix(".checkpoint")?;
                number.parse().ok()
            });
            newest = newest.max(number.filter(|&number| self.is_whole(number)));
        }
        Ok(newest)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::new(
            ErrorKind::Io,
            format!("{}: the checkpoints", self.0.display()),
        )
        .with_source(error)
    }
}

/// A file of a checkpoint, which exists completely or not at all.
struct Part {
    files: Files,
    name: &'static str,
}

impl<R: Checkpoint> Checkpointer<R> for Part {
    fn save(&self, number: usize, record: R) -> Result<(), CheckpointerError> {
        let beside = self.files.0.join(format!(".{}-{number}.bpk", self.name));
        record.save(beside.clone())?;
        let synced = File::open(&beside).and_then(|file| file.sync_all());
        let renamed = synced.and_then(|()| fs::rename(&beside, self.files.part(self.name, number)));
        // Syncs the new name to the disk, too, if folders can be opened.
        let synced = renamed.and_then(|()| {
            if cfg!(unix) {
                File::open(&self.files.0)?.sync_all()
            } else {
                Ok(())
            }
        });
        synced.map_err(CheckpointerError::IOError)
    }

    fn delete(&self, number: usize) -> Result<(), CheckpointerError> {
        remove(&self.files.part(self.name, number))
    }

    fn restore(&self, number: usize) -> Result<R, CheckpointerError> {
        R::load(self.files.part(self.name, number))
    }
}

fn remove(path: &Path) -> Result<(), CheckpointerError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointerError::IOError(error))
        }
        _ => Ok(()),
    }
}

/// A strategy, and the loader's checkpoint next to each of the learner's.
struct WithData<B, O> {
    strategy: Box<dyn CheckpointingStrategy>,
    /// Loader that shares its running epoch with the learner's loader.
    loader: BurnLoader<B, O>,
    files: Files,
    interrupter: Interrupter,
    /// Newest checkpoint with a checkpoint of the loader.
    saved: Option<usize>,
    /// Checkpoints to be deleted once the newest is complete.
    late: Vec<usize>,
}

impl<B: Send + 'static, O: Send + 'static> CheckpointingStrategy for WithData<B, O> {
    /// Called between two epochs of the learner, by the thread that reads the loader.
    fn checkpointing(
        &mut self,
        number: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let mut actions = Vec::new();
        if self.saved.is_none_or(|newest| self.files.is_whole(newest)) {
            for old in self.late.drain(..) {
                self.interrupter
                    .fail_on_error(remove(&self.files.data(old)));
                actions.push(CheckpointingAction::Delete(old));
            }
        }
        for action in self.strategy.checkpointing(number, store) {
            match action {
                CheckpointingAction::Delete(old) => self.late.push(old),
                CheckpointingAction::Save => {
                    self.interrupter.fail_on_error(self.files.begin(number));
                    match self
                        .loader
                        .checkpoint()
                        .and_then(|checkpoint| checkpoint.save(self.files.data(number)))
                    {
                        Ok(()) => {
                            self.saved = Some(number);
                            actions.push(action);
                        }
                        Err(error) => self
                            .interrupter
                            .fail(CheckpointerError::Unknown(error.to_string())),
                    }
                }
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_whole_checkpoint_is_found() {
        let folder = std::env::temp_dir().join(format!("datapipes-burn-{}", std::process::id()));
        let files = Files(folder.clone());
        fs::create_dir_all(&folder).unwrap();
        for number in [3, 7] {
            fs::write(files.data(number), "").unwrap();
            for part in PARTS {
                fs::write(files.part(part, number), "").unwrap();
            }
            assert_eq!(files.newest().unwrap(), Some(number));
        }
        for other in [
            "data-8.checkpoint",
            "data-9.checkpoint.new",
            "data-x.checkpoint",
        ] {
            fs::write(folder.join(other), "").unwrap();
        }
        assert_eq!(files.newest().unwrap(), Some(7));
        // Parts of a run before do not complete a checkpoint of this one.
        files.begin(7).unwrap();
        fs::write(files.part(PARTS[0], 7), "").unwrap();
        assert_eq!(files.newest().unwrap(), Some(3));
        fs::remove_dir_all(&folder).unwrap();
    }
}
