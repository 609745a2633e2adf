//! Answers of a monitored loader.

use serde::{Deserialize, Serialize};

use crate::loader::Stats;
use crate::{Error, Result};

/// Version of the answers. A client refuses answers of another version.
pub const PROTOCOL: u32 = 1;

/// Figures of a loader at one moment: an answer of a monitored loader.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// Version of the answers, [`PROTOCOL`].
    pub protocol: u32,
    /// Version of the library.
    pub version: String,
    /// Process number in the system.
    pub process: u32,
    /// File name of the program.
    pub program: String,
    /// Number of the loader in its process, from 0.
    pub loader: u64,
    /// Number of the latest epoch that was started; `None` before the first.
    pub epoch: Option<u64>,
    /// True if that epoch has begun, and neither come to its end nor been dropped.
    pub running: bool,
    /// Figures of that epoch, without the list of [skipped items](Stats::skipped_items); their
    /// numbers are in [`skips`](Stats::skips).
    pub stats: Option<Stats>,
    /// The parts that do not change, in the first answer of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Description>,
}

/// Description of a loader.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Description {
    /// The plan as a tree, as [`DataLoader::explain`](crate::DataLoader::explain) returns it.
    pub explain: String,
    /// Number of items in an epoch, if it is known; see
    /// [`DataLoader::len_hint`](crate::DataLoader::len_hint).
    pub length: Option<u64>,
    /// Inputs of each node of [`Stats::nodes`], as places in that list.
    pub inputs: Vec<Vec<usize>>,
}

impl Figures {
    /// Reads an answer of a monitored loader, a line of JSON.
    ///
    /// # Errors
    /// `Protocol` if it is the answer of another version, or of something else; `Unavailable` if it is
    /// a refusal.
    pub fn parse(line: &str) -> Result<Figures> {
        #[derive(Deserialize)]
        struct Head {
            protocol: u32,
            #[serde(default)]
            version: String,
            error: Option<String>,
        }
        let head: Head = serde_json::from_str(line).map_err(|error| {
            let message = "what answers is no monitored loader";
            Error::protocol(message).with_source(error)
        })?;
        if let Some(refused) = head.error {
            return Err(Error::unavailable(refused));
        }
        let other = || {
            Error::protocol(format!(
                "datapipes {} answers by version {} of the protocol, and this program has {}, with version {PROTOCOL}",
                head.version,
                head.protocol,
                env!("CARGO_PKG_VERSION")
            ))
        };
        if head.protocol != PROTOCOL {
            return Err(other());
        }
        serde_json::from_str(line).map_err(|error| other().with_source(error))
    }
}
