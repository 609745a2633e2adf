//! COCO: images, and a JSON file with their objects, key points, captions.

mod mask;
mod parse;

use std::path::Path;

use async_trait::async_trait;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{Error, Result, wire_struct};

use super::read;
use crate::File;
use crate::stores::Store;
use crate::stores::local::Local;

pub use mask::{Counts, Rle, Segmentation};
pub use parse::{Annotation, Annotations, Category, Picture};

use std::sync::Arc;

/// Opens images in a folder and a file of annotations in COCO's format
/// (<https://cocodataset.org/#format-data>): instances, key points or captions. A sample is an
/// image's file with its content, and its annotations.
///
/// Samples come in the order of the images' ids, as in torchvision's `CocoDetection`; an image
/// without annotations is a sample, too. The function reads and sorts the annotations, so it blocks
/// (some seconds for the 450 MB of `instances_train2017.json`); the annotations stay in memory, and
/// images are read when they are requested.
///
/// # Errors
/// `NotFound` if the folder or the file does not exist; else the errors of [`Annotations::parse`],
/// naming the file. For a sample: the errors of reading its file; `Unsupported` for a name that
/// leaves the folder.
///
/// # Examples
/// ```
/// use datapipes_io::datasets::coco;
/// # let dir = tempfile::tempdir()?;
/// # let (images, annotations) = (dir.path().join("val2017"), dir.path().join("instances_val2017.json"));
/// # std::fs::create_dir(&images)?;
/// # std::fs::write(images.join("7.jpg"), "pixels")?;
/// std::fs::write(&annotations, r#"{
///     "images": [{"id": 7, "file_name": "7.jpg", "width": 4, "height": 2}],
///     "annotations": [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [1, 0, 2, 2], "area": 3, "iscrowd": 0,
///         "segmentation": {"size": [2, 4], "counts": [2, 3, 3]}}],
///     "categories": [{"id": 18, "name": "dog", "supercategory": "animal"}]
/// }"#)?;
/// let coco = coco(&images, &annotations)?;
/// assert_eq!(coco.categories[0].name, "dog");
/// let sample = coco.samples.fetch().collect()?.remove(0);
/// assert_eq!((&*sample.file.name, sample.picture.annotations[0].bbox), ("7.jpg", Some([1.0, 0.0, 2.0, 2.0])));
/// let mask = sample.picture.annotations[0].segmentation.as_ref().unwrap().rle().unwrap().mask()?;
/// assert_eq!(mask.as_slice::<u8>()?, [0, 1, 1, 0, 0, 1, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn coco(images: impl AsRef<Path>, annotations: impl AsRef<Path>) -> Result<Coco> {
    let (images, path) = (images.as_ref(), annotations.as_ref());
    if !images.is_dir() {
        return Err(Error::not_found(format!(
            "{}: no such folder, where COCO's images should be",
            images.display()
        )));
    }
    let Annotations {
        pictures,
        categories,
    } = Annotations::parse(&read(path)?).map_err(|error| error.within(path.display()))?;
    let pictures: Arc<[Arc<Picture>]> = pictures.into_iter().map(Arc::new).collect();
    let samples = Indexed::new(Images {
        store: Local::new(images),
        pictures: pictures.clone(),
    });
    Ok(Coco {
        samples,
        pictures,
        categories,
    })
}

/// A data set in COCO's format; see [`coco()`].
#[derive(Clone, Debug)]
pub struct Coco {
    /// Samples by index.
    pub samples: Indexed<CocoSample>,
    /// Annotations in the order of the samples, so that samples can be selected without reading
    /// images.
    pub pictures: Arc<[Arc<Picture>]>,
    /// Categories, in the order of the file.
    pub categories: Vec<Category>,
}

/// A COCO image with its annotations.
#[derive(Clone, Debug)]
pub struct CocoSample {
    /// File of the image.
    pub file: File,
    /// Annotations of the image.
    pub picture: Arc<Picture>,
}

wire_struct!(CocoSample { file, picture });

/// Images of a folder, with their annotations.
struct Images {
    store: Local,
    pictures: Arc<[Arc<Picture>]>,
}

#[async_trait]
impl MapPipe for Images {
    type Out = CocoSample;

    fn len(&self) -> u64 {
        self.pictures.len() as u64
    }
    async fn get(&self, index: u64) -> Result<CocoSample> {
        let picture = self.pictures[index as usize].clone();
        let data = self.store.read(&picture.file_name).await;
        let data = data.map_err(|error| error.within(format!("image {}", picture.id)))?;
        Ok(CocoSample {
            file: File::new(&*picture.file_name, data),
            picture,
        })
    }
    fn name(&self) -> String {
        "coco".to_owned()
    }
    fn seldom_waits(&self) -> bool {
        true
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        let picture = self.pictures.get(index as usize)?;
        Some(picture.file_name.as_str().into())
    }
    fn weigh(&self, sample: &CocoSample) -> Option<usize> {
        Some(sample.file.weight())
    }
}

#[cfg(test)]
mod tests;
