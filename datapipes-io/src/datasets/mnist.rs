//! MNIST, and data sets in the same files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{DType, Error, Result, Tensor};

use super::{Labelled, Subset, first_of, read};
use crate::formats::Idx;

/// Opens MNIST, or Fashion-MNIST, KMNIST and others with the same names of files: images of `u8`,
/// `[28, 28]`, each with its label.
///
/// The files are `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or `t10k-…`, optionally
/// with `.gz` at the end, or a dot before `idx`. They are searched in the folder, and in `raw` and
/// `MNIST/raw` below it, where torchvision puts them. The function reads both whole (47 MB for the
/// training part), so it blocks; images are slices of the buffer.
///
/// Use [`mnist_files`] for files with other names, such as EMNIST's.
///
/// # Errors
/// `NotFound` naming the file and the searched places; `Shape` if the numbers of images and labels
/// differ; else the errors of [`Idx`], naming the file.
pub fn mnist(folder: impl AsRef<Path>, split: Subset) -> Result<Labelled<Tensor, u8>> {
    let folder = folder.as_ref();
    let part = match split {
        Subset::Train => "train",
        Subset::Test => "t10k",
    };
    let find = |kind: &str, axes: u8| {
        let plain = format!("{part}-{kind}-idx{axes}-ubyte");
        let dotted = format!("{part}-{kind}.idx{axes}-ubyte");
        let folders = [
            folder.to_owned(),
            folder.join("raw"),
            folder.join("MNIST").join("raw"),
        ];
        let places: Vec<PathBuf> = folders
            .iter()
            .flat_map(|folder| {
                let names = [
                    plain.clone(),
                    format!("{plain}.gz"),
                    dotted.clone(),
                    format!("{dotted}.gz"),
                ];
                names.map(|name| folder.join(name))
            })
            .collect();
        first_of("MNIST", &places).map_err(|_| {
            Error::not_found(format!(
                "MNIST: no {plain}, nor {plain}.gz, in {}, nor in raw or MNIST/raw below it",
                folder.display()
            ))
        })
    };
    mnist_files(find("images", 3)?, find("labels", 1)?)
}

/// Opens images and labels of two IDX files with any names: the elements along the first axis of
/// one, each with the byte of the other. Otherwise like [`mnist`].
///
/// # Errors
/// The errors of [`mnist`]; `Shape` if the labels are no list of bytes.
///
/// # Examples
/// ```
/// use datapipes_io::datasets::mnist_files;
/// # let dir = tempfile::tempdir()?;
/// # let (images, labels) = (dir.path().join("images"), dir.path().join("labels"));
/// std::fs::write(&images, b"\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02abcd")?;
/// std::fs::write(&labels, b"\0\0\x08\x01\0\0\0\x02\x07\x01")?;
/// let letters = mnist_files(&images, &labels)?;
/// assert_eq!(letters.labels, [7, 1]);
/// assert_eq!(letters.samples.fetch().collect()?[1].0.as_slice::<u8>()?, b"cd");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn mnist_files(
    images: impl AsRef<Path>,
    labels: impl AsRef<Path>,
) -> Result<Labelled<Tensor, u8>> {
    let (images_at, labels_at) = (images.as_ref(), labels.as_ref());
    let array = |path: &Path| Idx::parse(read(path)?).map_err(|error| error.within(path.display()));
    let (images, labels) = (array(images_at)?.into_shared(), array(labels_at)?);
    if labels.rank() != 1 || labels.dtype() != DType::U8 {
        return Err(Error::shape(format!(
            "{}: {} of shape {:?}, not a list of bytes",
            labels_at.display(),
            labels.dtype(),
            labels.shape()
        )));
    }
    let labels = labels.into_vec::<u8>()?;
    if images.shape()[0] != labels.len() {
        return Err(Error::shape(format!(
            "{} images in {}, {} labels in {}",
            images.shape()[0],
            images_at.display(),
            labels.len(),
            labels_at.display()
        )));
    }
    let samples = Indexed::new(Rows {
        path: images_at.to_owned(),
        images,
        labels: labels.clone(),
    });
    Ok(Labelled {
        samples,
        labels,
        classes: Vec::new(),
        names: Default::default(),
    })
}

/// The rows of an array, with their labels.
struct Rows {
    /// File of the images.
    path: PathBuf,
    images: Tensor,
    labels: Vec<u8>,
}

#[async_trait]
impl MapPipe for Rows {
    type Out = (Tensor, u8);

    fn len(&self) -> u64 {
        self.labels.len() as u64
    }
    async fn get(&self, index: u64) -> Result<(Tensor, u8)> {
        let index = index as usize;
        Ok((self.images.row(index)?, self.labels[index]))
    }
    fn name(&self) -> String {
        "mnist".to_owned()
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(format!("{}/{index}", self.path.display()).into())
    }
    fn weigh(&self, (image, _): &(Tensor, u8)) -> Option<usize> {
        Some(size_of::<(Tensor, u8)>() + image.byte_len())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::gzip;
    use datapipes::ErrorKind;

    fn idx(shape: &[u32], numbers: &[u8]) -> Vec<u8> {
        let mut data = vec![0, 0, 8, shape.len() as u8];
        shape
            .iter()
            .for_each(|length| data.extend(length.to_be_bytes()));
        data.extend(numbers);
        data
    }

    #[test]
    fn plain_and_gzipped_files_are_found_where_tools_put_them() {
        let pixels: Vec<u8> = (0..3 * 28 * 28).map(|n| (n % 251) as u8).collect();
        let (images, labels) = (idx(&[3, 28, 28], &pixels), idx(&[3], &[5, 0, 9]));
        for (folder, dotted, packed) in [
            ("", false, false),
            ("raw", true, false),
            ("MNIST/raw", false, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join(folder);
            fs::create_dir_all(&at).unwrap();
            let dot = if dotted { "." } else { "-" };
            for part in ["train", "t10k"] {
                for (kind, axes, data) in [("images", 3, &images), ("labels", 1, &labels)] {
                    let name = format!("{part}-{kind}{dot}idx{axes}-ubyte");
                    match packed {
                        true => fs::write(at.join(name + ".gz"), gzip(data)).unwrap(),
                        false => fs::write(at.join(name), data).unwrap(),
                    }
                }
            }
            for split in [Subset::Train, Subset::Test] {
                let set = mnist(dir.path(), split).unwrap();
                assert_eq!((set.samples.len(), &set.labels[..]), (3, &[5, 0, 9][..]));
                let failing = set.samples.clone().subset(2..3).fetch();
                let failing = failing.try_map(|_| Err::<(), _>("bad"));
                let error = failing.collect().unwrap_err().to_string();
                assert!(
                    error.contains("-images") && error.ends_with("/2: bad"),
                    "{error}"
                );
                let read = set.samples.fetch().collect().unwrap();
                assert_eq!((read[2].0.shape(), read[2].1), (&[28, 28][..], 9));
                assert_eq!(read[2].0.as_bytes(), &pixels[2 * 28 * 28..]);
                assert!(read.iter().all(|(image, _)| image.is_shared()));
            }
        }
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let fails = || mnist(dir.path(), Subset::Train).unwrap_err();
        assert_eq!(fails().kind(), ErrorKind::NotFound);
        assert!(
            fails().to_string().contains("no train-images-idx3-ubyte"),
            "{}",
            fails()
        );
        fs::write(
            dir.path().join("train-images-idx3-ubyte"),
            idx(&[2, 1, 1], b"ab"),
        )
        .unwrap();
        assert!(
            fails().to_string().contains("no train-labels-idx1-ubyte"),
            "{}",
            fails()
        );
        let labels = dir.path().join("train-labels-idx1-ubyte");
        fs::write(&labels, idx(&[3], b"abc")).unwrap();
        assert_eq!(fails().kind(), ErrorKind::Shape);
        assert!(fails().to_string().contains("2 images in "), "{}", fails());
        fs::write(&labels, idx(&[2, 1], b"ab")).unwrap();
        assert!(
            fails().to_string().contains("not a list of bytes"),
            "{}",
            fails()
        );
        fs::write(&labels, &idx(&[2], b"ab")[..9]).unwrap();
        assert_eq!(fails().kind(), ErrorKind::Truncated);
        assert!(
            fails().to_string().contains("train-labels-idx1-ubyte: "),
            "{}",
            fails()
        );
    }
}
