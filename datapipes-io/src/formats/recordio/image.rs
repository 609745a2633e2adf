//! The record of a picture.

use bytes::{Buf, Bytes};
use datapipes::{Error, Result, wire_struct};

/// The record of a picture: labels, two numbers, and the encoded picture. The form is MXNet's
/// `IRHeader` before the data.
///
/// Layout: `u32` flag | `f32` label | `u64` id | `u64` id2, little endian; if the flag is above 0,
/// that number of `f32` labels follow, which replace the single label.
///
/// # Examples
/// ```
/// use datapipes_io::formats::ImageRecord;
/// let record = ImageRecord { labels: vec![3.0], id: 17, id2: 0, data: "jpeg bytes".into() };
/// assert_eq!(ImageRecord::parse(record.encode().into())?, record);
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ImageRecord {
    /// One label, or several.
    pub labels: Vec<f32>,
    /// Number chosen by the writer.
    pub id: u64,
    /// Second number chosen by the writer.
    pub id2: u64,
    /// The encoded picture: a slice of the record.
    pub data: Bytes,
}

wire_struct! { ImageRecord { labels, id, id2, data } }

const HEAD: usize = 24;

impl ImageRecord {
    /// Decodes a record: `files.read_as(RecordIo::new()).try_map(ImageRecord::parse)`.
    ///
    /// # Errors
    /// `Truncated` if header or labels are incomplete.
    pub fn parse(mut record: Bytes) -> Result<ImageRecord> {
        let cut = |what: &str, got: usize, want: u64| {
            Error::truncated(format!("the {what} of a picture: {got} of {want} bytes"))
        };
        if record.len() < HEAD {
            return Err(cut("header", record.len(), HEAD as u64));
        }
        let (flag, label) = (record.get_u32_le(), record.get_f32_le());
        let (id, id2) = (record.get_u64_le(), record.get_u64_le());
        let several = u64::from(flag) * 4;
        if several > record.len() as u64 {
            return Err(cut("labels", record.len(), several));
        }
        let labels = match flag {
            0 => vec![label],
            _ => {
                let labels = record.split_to(several as usize);
                labels
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|label| f32::from_le_bytes(*label))
                    .collect()
            }
        };
        Ok(ImageRecord {
            labels,
            id,
            id2,
            data: record,
        })
    }

    /// Encodes the picture as a record, as `mxnet.recordio.pack` does.
    ///
    /// # Panics
    /// Panics with more than 2³² labels.
    pub fn encode(&self) -> Vec<u8> {
        let (flag, label) = match self.labels[..] {
            [label] => (0, label),
            // The format cannot represent an empty list of labels.
            [] => (0, 0.0),
            _ => (
                u32::try_from(self.labels.len()).expect("fewer than 2³² labels"),
                0.0,
            ),
        };
        let mut out = Vec::with_capacity(HEAD + self.data.len());
        out.extend(flag.to_le_bytes());
        out.extend(f32::to_le_bytes(label));
        out.extend(self.id.to_le_bytes());
        out.extend(self.id2.to_le_bytes());
        if flag > 0 {
            out.extend(self.labels.iter().flat_map(|label| label.to_le_bytes()));
        }
        out.extend_from_slice(&self.data);
        out
    }
}
