//! Common data sets in their original file layouts: MNIST, CIFAR, COCO, a folder of images.
//!
//! Each is a function that returns data by index ([`Indexed`]), which can be shuffled as a whole,
//! sharded, and split before anything is decoded. Nothing is downloaded.
//!
//! The functions block: they read the files that contain the number of samples, and small sets
//! whole. Call them before the loop, not in async code.
//!
//! ```
//! use datapipes::DataLoader;
//! use datapipes_io::datasets::{Subset, mnist};
//!
//! # let dir = tempfile::tempdir()?;
//! # let folder = dir.path();
//! # std::fs::write(folder.join("train-images-idx3-ubyte"), b"\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02abcd")?;
//! # std::fs::write(folder.join("train-labels-idx1-ubyte"), b"\0\0\x08\x01\0\0\0\x02\x07\x01")?;
//! let train = mnist(folder, Subset::Train)?;
//! let graph = train.samples.shuffle().shard().fetch().batch(64).collate();
//! let loader = DataLoader::builder(graph).seed(1).build()?;
//! for batch in loader.epoch(0).blocking() {
//!     let (images, labels) = batch?;
//!     assert_eq!(images.shape()[0], labels.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cifar;
pub mod coco;
mod image_folder;
mod mnist;

pub use cifar::{Cifar, CifarLabels, cifar10, cifar100};
pub use coco::coco;
pub use image_folder::{IMAGE_EXTENSIONS, image_folder, image_folder_of};
pub use mnist::{mnist, mnist_files};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datapipes::index::Indexed;
use datapipes::index::split::{SplitSample, Splits, Splitter};
use datapipes::{Error, Result, whole_file};

use crate::replace::MOST;

/// A part of a data set that has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subset {
    /// The training set.
    Train,
    /// The test set.
    Test,
}

/// A data set in which each sample has a label.
#[derive(Clone)]
pub struct Labelled<T, L> {
    /// Samples by index, each with its label.
    pub samples: Indexed<(T, L)>,
    /// Labels in the order of the samples, for samplers and splits that use them.
    pub labels: Vec<L>,
    /// Names of the labels: label `n` has the `n`-th name. Empty if the files contain no names.
    pub classes: Vec<String>,
    /// Names of the samples, in their order: for [`image_folder`], paths in the folder. Empty for data
    /// sets whose samples are no files.
    pub names: Arc<[String]>,
}

impl<T, L: Copy + Into<u64>> Labelled<T, L> {
    /// Divides the samples by their labels into training, validation and other parts. The keys of
    /// a part are indices of samples. With [`stable`](Splitter::stable) a file keeps its part when
    /// others are added to the folder, although indices change.
    ///
    /// # Errors
    /// The errors of [`Splitter::split`].
    ///
    /// # Examples
    /// ```
    /// use datapipes::index::split::Splitter;
    /// use datapipes_io::datasets::image_folder;
    /// # let dir = tempfile::tempdir()?;
    /// # let root = dir.path();
    /// # for (class, name) in [("dog", "1.jpg"), ("dog", "2.jpg"), ("cat", "1.jpg"), ("cat", "2.jpg")] {
    /// #     std::fs::create_dir_all(root.join(class))?;
    /// #     std::fs::write(root.join(class).join(name), name)?;
    /// # }
    /// let set = image_folder(root)?;
    /// let folds = set.split(&Splitter::k_fold(2).balance_classes())?;
    /// let (train, validation) = folds.fold(0)?;
    /// let (train, validation) = (set.samples.clone().subset(train), set.samples.subset(validation));
    /// assert_eq!((train.len(), validation.len()), (2, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&self, splitter: &Splitter) -> Result<Splits<u64>> {
        let samples = (0..).zip(&self.labels).map(|(index, &label)| {
            let label: u64 = label.into();
            let mut sample = SplitSample::new(index);
            if splitter.is_stable() {
                sample.entity = self.names.get(index as usize).cloned();
            }
            match self.classes.get(label as usize) {
                Some(name) => sample.class(name),
                None => sample.class(label),
            }
        });
        splitter.split(samples)
    }
}

datapipes::opaque_debug!(Labelled<T, L> {
    samples = self.labels.len(), classes = self.classes.len()
});

/// Returns the first path that exists, or an error that names the searched paths.
fn first_of(what: &str, paths: &[PathBuf]) -> Result<PathBuf> {
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return Ok(path.clone());
    }
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Err(Error::not_found(format!(
        "{what}: there is no {}",
        names.join(", and no ")
    )))
}

/// Reads the content of a file. Blocks.
fn read(path: &Path) -> Result<Bytes> {
    whole_file::read(path, MOST)
        .map(Bytes::from)
        .map_err(|error| Error::io(error).within(path.display()))
}
