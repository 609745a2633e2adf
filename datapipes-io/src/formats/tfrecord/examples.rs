//! Reads TFRecord files of `tf.train.Example`.

use super::{Example, TfRecords, place};
use crate::formats::{Format, RecordSplitter};

/// Reads TFRecord files whose records are `tf.train.Example`, in the order of the file.
///
/// The rules of [`TfRecords`] apply; a record that is no example is an error in its place, which
/// names record and feature.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::formats::{Example, TfExamples, TfRecordWriter};
/// use datapipes_io::{File, prelude::*};
///
/// let mut writer = TfRecordWriter::new(Vec::new());
/// for label in 0..3 {
///     writer.write(&Example::new().with("label", label).encode())?;
/// }
/// let (data, _) = writer.finish()?;
/// let files = Graph::from_vec(vec![File::new("a.tfrecord", data)]);
/// let labels = files.read_as(TfExamples::new()).try_map(|example| example.int("label"));
/// assert_eq!(labels.collect()?, [0, 1, 2]);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TfExamples {
    records: TfRecords,
}

impl TfExamples {
    /// Returns the format with the default settings for records.
    pub fn new() -> Self {
        TfExamples::default()
    }

    /// Returns the format with these settings for records.
    pub fn of(records: TfRecords) -> Self {
        TfExamples { records }
    }
}

impl Format for TfExamples {
    type Item = Example;

    fn splitter(&self) -> Option<RecordSplitter<Example>> {
        Some(self.records.splitter_by(|data, at| {
            Example::parse(data).map_err(|error| error.within(place(at.record, at.offset)))
        }))
    }
    fn settings(&self) -> String {
        self.records.settings()
    }
    fn weigh(&self, example: &Example) -> Option<usize> {
        Some(example.weight())
    }
}
