//! Data sets that the Hugging Face library `datasets` saved to a folder.

use std::path::Path;

use datapipes::whole_file::read;
use datapipes::{Error, Indexed, Result};
use serde::Deserialize;

use super::ArrowIpc;
use crate::formats::Row;
use crate::stores::local::is_inside;

/// Maximum number of bytes of the files that describe a data set.
const MOST: u64 = 1 << 20;

/// State of a data set in `state.json`.
#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    shards: Vec<Shard>,
    /// Files of rows in another order than that of the shards, of early versions.
    #[serde(rename = "_indices_files", alias = "_indices_data_files", default)]
    indices: Option<Vec<Shard>>,
}

#[derive(Deserialize)]
struct Shard {
    filename: String,
}

/// The file of a folder whose data sets are splits.
#[derive(Deserialize)]
struct Splits {
    splits: Vec<String>,
}

impl ArrowIpc {
    /// Maps the shards of a data set that the Hugging Face library `datasets` wrote by
    /// `save_to_disk`, and returns its rows by index, shard after shard in the order of its
    /// `state.json`. The same rules as for [`index_mapped`](ArrowIpc::index_mapped) hold for the
    /// files. Feature `mmap`.
    ///
    /// # Errors
    /// `NotFound` if there is no `state.json`; for a folder of several splits it names them.
    /// `Unsupported` for a data set that was shuffled or selected, and saved as indices of rows
    /// (`_indices_files`, by early versions): `flatten_indices()` before it is saved writes the
    /// rows. `Corrupt` for a `state.json` with something else. The errors of
    /// [`index_mapped`](ArrowIpc::index_mapped).
    ///
    /// # Examples
    /// ```
    /// use datapipes_io::formats::ArrowIpc;
    ///
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/saved-dataset");
    /// // Python: Dataset.from_dict({"text": [..], ..}).save_to_disk(folder, num_shards=2)
    /// let rows = ArrowIpc::new().columns(["text"]).saved_dataset(folder)?;
    /// let texts = rows.shuffle().shard().fetch().map(|row| row["text"].to_string());
    /// assert_eq!(texts.collect()?.len(), 7);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn saved_dataset(&self, folder: impl AsRef<Path>) -> Result<Indexed<Row>> {
        let folder = folder.as_ref();
        let path = folder.join("state.json");
        let within = |error: Error| error.within(path.display());
        let text = read(&path, MOST).map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            match splits(folder).filter(|_| missing) {
                Some(splits) => Error::not_found(format!(
                    "{} has splits, a folder each: {splits}",
                    folder.display()
                )),
                None => within(error.into()),
            }
        })?;
        let state: State = serde_json::from_slice(&text)
            .map_err(|error| within(Error::corrupt("no state of a data set").with_source(error)))?;
        if state.indices.is_some_and(|files| !files.is_empty()) {
            let what = "the order of its rows is in _indices_files, which are not read; save it after flatten_indices()";
            return Err(within(Error::unsupported(what)));
        }
        if state.shards.is_empty() {
            return Err(within(Error::corrupt("it lists no files of rows")));
        }
        let shards = state.shards.iter().map(|Shard { filename }| {
            if !is_inside(filename) {
                let what = format!("the file {filename:?} is not of this folder");
                return Err(within(Error::corrupt(what)));
            }
            Ok(Indexed::new(self.index_mapped(folder.join(filename))?))
        });
        Ok(Indexed::concat(shards.collect::<Result<Vec<_>>>()?))
    }
}

/// Returns the names of the splits of a folder.
fn splits(folder: &Path) -> Option<String> {
    let text = read(&folder.join("dataset_dict.json"), MOST).ok()?;
    let Splits { splits } = serde_json::from_slice(&text).ok()?;
    Some(splits.join(", "))
}
