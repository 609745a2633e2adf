//! Kinds of files, by name and first bytes, and their views.

use datapipes_io::formats::Codec;

use crate::words::words;

words! {
    /// A view of a file.
    pub enum As {
        Auto = "auto",
        Bytes = "bytes",
        Members = "members",
        Samples = "samples",
        Lines = "lines",
        Records = "records",
        Arrays = "arrays",
        Rows = "rows",
        Images = "images",
    }
}

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tar,
    Zip,
    Npy,
    Npz,
    SafeTensors,
    Idx,
    Text,
    Csv,
    Tsv,
    JsonLines,
    MsgPack,
    Parquet,
    Arrow,
    TfRecord,
    RecordIo,
    Image,
    Other,
}

impl Kind {
    /// Returns the kind by the first bytes if the format has a magic, else by the ending of the
    /// name; for a compressed file, by its content.
    pub fn of(name: &str, head: &[u8]) -> Kind {
        let bare = Codec::of_name(name).map(|(_, bare)| bare);
        let packed = Codec::of_magic(head).is_some();
        let by_name = Kind::of_name(bare.as_deref().unwrap_or(name));
        let by_magic = if packed { None } else { Kind::of_magic(head) };
        match (by_magic, by_name) {
            // An `.npz` is a zip archive.
            (Some(Kind::Zip), Some(Kind::Npz)) => Kind::Npz,
            // Indexes of records have this ending, too.
            (None, Some(Kind::Idx))
                if !packed && !head.is_empty() && !head.starts_with(&[0, 0]) =>
            {
                Kind::Other
            }
            (Some(kind), _) | (None, Some(kind)) => kind,
            (None, None) => Kind::Other,
        }
    }

    /// Returns true if the name is ambiguous and the content is compressed.
    pub fn is_hidden(name: &str, head: &[u8]) -> bool {
        Codec::of_magic(head).is_some() && Kind::of(name, head) == Kind::Other
    }

    fn of_magic(head: &[u8]) -> Option<Kind> {
        Some(match head {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Kind::Npy,
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Kind::Zip,
            [b'P', b'A', b'R', b'1', ..] => Kind::Parquet,
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Kind::Arrow,
            [0x0a, 0x23, 0xd7, 0xce, ..] => Kind::RecordIo,
            _ if datapipes_image::ImageFormat::of(head).is_some() => Kind::Image,
            _ if head.get(257..262) == Some(b"ustar") => Kind::Tar,
            _ => return None,
        })
    }

    fn of_name(name: &str) -> Option<Kind> {
        let base = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        // `train-images-idx3-ubyte`, a name of MNIST's files, has no ending.
        if base.contains("idx") && base.ends_with("-ubyte") {
            return Some(Kind::Idx);
        }
        let ending = base.rsplit_once('.').map(|(_, ending)| ending)?;
        // TensorFlow numbers its shards after the ending: `train.tfrecord-00000-of-00010`.
        let ending = ending.split_once("-0").map_or(ending, |(ending, _)| ending);
        Some(match ending {
            "tar" => Kind::Tar,
            "zip" => Kind::Zip,
            "npy" => Kind::Npy,
            "npz" => Kind::Npz,
            "safetensors" => Kind::SafeTensors,
            "idx" => Kind::Idx,
            "txt" | "text" | "log" | "md" => Kind::Text,
            "csv" => Kind::Csv,
            "tsv" => Kind::Tsv,
            "jsonl" | "ndjson" => Kind::JsonLines,
            "msgpack" | "mp" => Kind::MsgPack,
            "parquet" => Kind::Parquet,
            "arrow" | "arrows" | "feather" | "ipc" => Kind::Arrow,
            "tfrecord" | "tfrecords" | "tfrec" => Kind::TfRecord,
            "rec" | "recordio" => Kind::RecordIo,
            ending
                if datapipes_image::EXTENSIONS
                    .split(' ')
                    .any(|known| known == ending) =>
            {
                Kind::Image
            }
            _ => return None,
        })
    }

    /// Returns the default view.
    pub fn usual(self) -> As {
        match self {
            Kind::Tar | Kind::Zip => As::Members,
            Kind::Npy | Kind::Npz | Kind::SafeTensors | Kind::Idx => As::Arrays,
            Kind::Text => As::Lines,
            Kind::Csv
            | Kind::Tsv
            | Kind::JsonLines
            | Kind::MsgPack
            | Kind::Parquet
            | Kind::Arrow => As::Rows,
            Kind::TfRecord | Kind::RecordIo => As::Records,
            Kind::Image => As::Images,
            Kind::Other => As::Bytes,
        }
    }
}
