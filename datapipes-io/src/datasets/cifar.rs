//! CIFAR-10 and CIFAR-100 in their binary version.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{Context, DType, Error, ErrorKind, Result, Tensor};

use super::{Labelled, Subset, first_of, read};
use crate::File;
use crate::formats::{FileEntries, FileEntry, Format};

/// Size of an image in bytes: three planes of 32 rows.
const IMAGE: usize = 3 * 32 * 32;

/// Choice between the two labels of a CIFAR-100 image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CifarLabels {
    /// One of 100 classes.
    Fine,
    /// One of 20 superclasses.
    Coarse,
}

/// Opens CIFAR-10 in its binary version: images of `u8`, `[3, 32, 32]`, planes of red, green and
/// blue, each with its label.
///
/// The files `data_batch_1.bin` to `data_batch_5.bin`, or `test_batch.bin`, are searched in the
/// folder, and in `cifar-10-batches-bin` below it. The function reads them whole (154 MB for the
/// training part), so it blocks; images are slices of the buffer. Classes are named by
/// `batches.meta.txt`, if it exists.
///
/// Use the format [`Cifar`] for other files in this layout, or for other places.
///
/// # Errors
/// `NotFound` naming the file; `Truncated` and `Corrupt` for a file without exactly 10,000 images,
/// and for an invalid label.
pub fn cifar10(folder: impl AsRef<Path>, split: Subset) -> Result<Labelled<Tensor, u8>> {
    let names: &[&str] = match split {
        Subset::Train => &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
        ],
        Subset::Test => &["test_batch.bin"],
    };
    let places = Places {
        folder: folder.as_ref(),
        below: "cifar-10-batches-bin",
        classes: "batches.meta.txt",
    };
    places.load(Cifar::ten(), names, 10_000)
}

/// Opens CIFAR-100 in its binary version, with fine or coarse labels; otherwise like [`cifar10`].
///
/// The files are `train.bin` or `test.bin`, in the folder or in `cifar-100-binary` below it.
/// Classes are named by `fine_label_names.txt` or `coarse_label_names.txt`, if they exist.
///
/// # Errors
/// The errors of [`cifar10`], with 50,000 images for training.
pub fn cifar100(
    folder: impl AsRef<Path>,
    split: Subset,
    labels: CifarLabels,
) -> Result<Labelled<Tensor, u8>> {
    let classes = match labels {
        CifarLabels::Fine => "fine_label_names.txt",
        CifarLabels::Coarse => "coarse_label_names.txt",
    };
    let (name, count) = match split {
        Subset::Train => ("train.bin", 50_000),
        Subset::Test => ("test.bin", 10_000),
    };
    let places = Places {
        folder: folder.as_ref(),
        below: "cifar-100-binary",
        classes,
    };
    places.load(Cifar::hundred(labels), &[name], count)
}

/// Reads files in the binary layout of CIFAR: images with their labels, any number in a file.
///
/// A record is a byte for the label (two in CIFAR-100: coarse, fine) and 3072 for the image: planes
/// of red, green and blue, of 32 rows (<https://www.cs.toronto.edu/~kriz/cifar.html>). Images are
/// `u8` tensors `[3, 32, 32]`, slices of the file.
///
/// # Errors
/// `Corrupt` in place of a record whose label is out of range; the next record follows. `Truncated`
/// after the last whole record, and for an empty file.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_io::{File, datasets::Cifar, prelude::*};
/// let files = Graph::from_vec(vec![File::new("data_batch_1.bin", vec![7; 2 * 3073])]);
/// let images = files.read_as(Cifar::ten()).collect()?;
/// assert_eq!((images[1].0.shape(), images[1].1), (&[3, 32, 32][..], 7));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cifar {
    /// Number of bytes before the image.
    head: usize,
    /// Index of the label among these bytes.
    label: usize,
    classes: u8,
}

impl Cifar {
    /// Returns CIFAR-10's layout.
    pub fn ten() -> Self {
        Cifar {
            head: 1,
            label: 0,
            classes: 10,
        }
    }

    /// Returns CIFAR-100's layout.
    pub fn hundred(labels: CifarLabels) -> Self {
        match labels {
            CifarLabels::Fine => Cifar {
                head: 2,
                label: 1,
                classes: 100,
            },
            CifarLabels::Coarse => Cifar {
                head: 2,
                label: 0,
                classes: 20,
            },
        }
    }

    /// Returns the size of a record in bytes.
    fn size(&self) -> usize {
        self.head + IMAGE
    }

    /// Returns a record of a file that contains it.
    fn record(&self, data: &Bytes, record: usize) -> Result<(Tensor, u8)> {
        let at = record * self.size();
        let label = data[at + self.label];
        if label >= self.classes {
            return Err(Error::corrupt(format!(
                "byte {}: label {label} of {} classes",
                at + self.label,
                self.classes
            )));
        }
        let image = data.slice(at + self.head..at + self.size());
        Ok((Tensor::from_bytes(image, DType::U8, [3, 32, 32])?, label))
    }
}

impl Format for Cifar {
    type Item = (Tensor, u8);

    fn open(&self, file: File, _: &Context) -> Result<FileEntries<(Tensor, u8)>> {
        let (format, data) = (self.clone(), file.data);
        let (records, rest) = (data.len() / self.size(), data.len() % self.size());
        let cut = (rest > 0 || records == 0).then(|| {
            let what = format!("record {records} has {rest} of {} bytes", self.size());
            FileEntry::Broken(Error::truncated(what))
        });
        let records =
            (0..records).map(move |record| FileEntry::from_result(format.record(&data, record)));
        Ok(Box::new(records.chain(cut)))
    }
}

/// Candidate folders of the files.
struct Places<'a> {
    folder: &'a Path,
    below: &'a str,
    classes: &'a str,
}

impl Places<'_> {
    /// Reads files with this number of records each.
    fn load(self, format: Cifar, names: &[&str], count: usize) -> Result<Labelled<Tensor, u8>> {
        let (mut files, mut labels) = (Vec::new(), Vec::new());
        let both = |name: &str| {
            [
                self.folder.join(name),
                self.folder.join(self.below).join(name),
            ]
        };
        for name in names {
            let path = first_of("CIFAR", &both(name))?;
            let data = read(&path)?;
            let (there, want) = (data.len(), count * format.size());
            if there != want {
                let kind = if there < want {
                    ErrorKind::Truncated
                } else {
                    ErrorKind::Corrupt
                };
                let what = format!(
                    "{}: {there} bytes, {want} wanted for {count} images",
                    path.display()
                );
                return Err(Error::new(kind, what));
            }
            for record in 0..count {
                let (_, label) = format
                    .record(&data, record)
                    .map_err(|error| error.within(path.display()))?;
                labels.push(label);
            }
            files.push((path, data));
        }
        let classes = match first_of("CIFAR", &both(self.classes)) {
            Ok(path) => names_in(&path, usize::from(format.classes))?,
            Err(_) => Vec::new(),
        };
        Ok(Labelled {
            samples: Indexed::new(Records {
                format,
                files,
                count,
            }),
            labels,
            classes,
            names: Default::default(),
        })
    }
}

/// Reads the names of classes, one on each line.
fn names_in(path: &Path, want: usize) -> Result<Vec<String>> {
    let data = read(path)?;
    let wrong = |what: String| Error::corrupt(format!("{}: {what}", path.display()));
    let text = std::str::from_utf8(&data)
        .map_err(|error| wrong(format!("byte {} is not UTF-8", error.valid_up_to())))?;
    let names: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    match names.len() == want {
        true => Ok(names),
        false => Err(wrong(format!("{} names of {want} classes", names.len()))),
    }
}

/// The records of files with equally many records each.
struct Records {
    format: Cifar,
    files: Vec<(PathBuf, Bytes)>,
    count: usize,
}

#[async_trait]
impl MapPipe for Records {
    type Out = (Tensor, u8);

    fn len(&self) -> u64 {
        (self.files.len() * self.count) as u64
    }
    async fn get(&self, index: u64) -> Result<(Tensor, u8)> {
        let index = index as usize;
        let (_, data) = &self.files[index / self.count];
        self.format.record(data, index % self.count)
    }
    fn name(&self) -> String {
        "cifar".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        let (path, _) = self.files.get(index as usize / self.count)?;
        let record = index as usize % self.count;
        Some(format!("{}/{record}", path.display()).into())
    }
    fn weigh(&self, _: &(Tensor, u8)) -> Option<usize> {
        Some(size_of::<(Tensor, u8)>() + IMAGE)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::{check_format, read_all};

    /// Returns records whose image and labels contain their number.
    fn records(from: u8, count: u8, head: usize) -> Vec<u8> {
        (from..from + count)
            .flat_map(|n| [vec![n % 10; head], vec![n; IMAGE]].concat())
            .collect()
    }

    #[test]
    fn files_of_ten_classes_are_one_behind_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("below");
        fs::create_dir(&at).unwrap();
        fs::write(at.join("a.bin"), records(0, 3, 1)).unwrap();
        fs::write(at.join("b.bin"), records(3, 3, 1)).unwrap();
        fs::write(at.join("names.txt"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n").unwrap();
        let places = || Places {
            folder: dir.path(),
            below: "below",
            classes: "names.txt",
        };
        let set = places().load(Cifar::ten(), &["a.bin", "b.bin"], 3).unwrap();
        assert_eq!(
            (set.labels, &*set.classes[9]),
            (vec![0, 1, 2, 3, 4, 5], "j")
        );
        let failing = set.samples.clone().subset(4..5).fetch();
        let failing = failing.try_map(|_| Err::<(), _>("bad"));
        let error = failing.collect().unwrap_err().to_string();
        assert!(error.ends_with("/below/b.bin/1: bad"), "{error}");
        let read = set.samples.subset(vec![4, 1]).fetch().collect().unwrap();
        assert_eq!((read[0].0.shape(), read[0].1), (&[3, 32, 32][..], 4));
        assert!(read[0].0.as_bytes() == [4; IMAGE] && read[1].0.as_bytes() == [1; IMAGE]);
        assert!(read[0].0.is_shared());

        fs::write(at.join("names.txt"), "a\nb").unwrap();
        let error = places().load(Cifar::ten(), &["a.bin"], 3).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("names.txt: 2 names of 10 classes"),
            "{error}"
        );
        fs::remove_file(at.join("names.txt")).unwrap();
        assert!(
            places()
                .load(Cifar::ten(), &["a.bin"], 3)
                .unwrap()
                .classes
                .is_empty()
        );
        let mut wrong = records(0, 3, 1);
        wrong[3073] = 10;
        fs::write(at.join("a.bin"), wrong).unwrap();
        let error = places().load(Cifar::ten(), &["a.bin"], 3).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("a.bin: byte 3073: label 10 of 10 classes"),
            "{error}"
        );
    }

    #[test]
    fn sizes_of_the_published_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let error = cifar10(dir.path(), Subset::Train).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("data_batch_1.bin"), "{error}");
        fs::write(dir.path().join("test_batch.bin"), records(0, 2, 1)).unwrap();
        let error = cifar10(dir.path(), Subset::Test).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated);
        assert!(
            error
                .to_string()
                .ends_with("6146 bytes, 30730000 wanted for 10000 images"),
            "{error}"
        );

        // A sparse file as large as the real one.
        let test = fs::File::create(dir.path().join("test.bin")).unwrap();
        test.set_len(10_000 * 3074).unwrap();
        let set = cifar100(dir.path(), Subset::Test, CifarLabels::Coarse).unwrap();
        assert_eq!((set.samples.len(), set.labels[9999]), (10_000, 0));
        test.set_len(10_000 * 3074 + 1).unwrap();
        let error = cifar100(dir.path(), Subset::Test, CifarLabels::Fine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn both_labels_of_a_hundred_are_read() {
        let mut file = records(0, 2, 2);
        (file[0], file[1]) = (19, 99);
        (file[3074], file[3075]) = (20, 100);
        let labels = |labels| read_all(Cifar::hundred(labels), file.clone());
        let (coarse, fine) = (labels(CifarLabels::Coarse), labels(CifarLabels::Fine));
        assert_eq!(
            (coarse[0].as_ref().unwrap().1, fine[0].as_ref().unwrap().1),
            (19, 99)
        );
        for (read, what) in [
            (coarse, "byte 3074: label 20 of 20"),
            (fine, "byte 3075: label 100 of 100"),
        ] {
            assert!(read[1].as_ref().unwrap_err().to_string().contains(what));
        }
    }

    #[test]
    fn row_105_cuts_are_errors_behind_the_last_whole_image() {
        for (cut, whole) in [(0, 0), (1, 0), (3072, 0), (3074, 1), (6145, 1), (6146, 2)] {
            let read = read_all(Cifar::ten(), records(0, 2, 1)[..cut].to_vec());
            let kinds: Vec<_> = read
                .iter()
                .map(|item| item.as_ref().err().map(Error::kind))
                .collect();
            let mut expected = vec![None; whole];
            expected.extend((cut != 6146).then_some(Some(ErrorKind::Truncated)));
            assert_eq!(kinds, expected, "{cut}");
        }
        assert_eq!(
            check_format(|| Cifar::hundred(CifarLabels::Fine), &records(0, 1, 2)),
            1
        );
    }
}
