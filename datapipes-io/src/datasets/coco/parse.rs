//! The JSON of COCO's annotations.

use std::collections::BTreeMap;
use std::fmt;

use datapipes::{Error, Result, wire_struct};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::Segmentation;
use crate::formats::json_offset;

/// Content of a file of annotations, by image.
///
/// # Examples
/// ```
/// use datapipes_io::datasets::coco::Annotations;
/// let json = br#"{"images": [{"id": 1, "file_name": "a.jpg", "width": 2, "height": 2}],
///                 "annotations": [{"id": 5, "image_id": 1, "caption": "a dog"}]}"#;
/// let read = Annotations::parse(json)?;
/// assert_eq!(read.pictures[0].annotations[0].caption.as_deref(), Some("a dog"));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Annotations {
    /// Images, by their ids.
    pub pictures: Vec<Picture>,
    /// Categories, in the order of the file.
    pub categories: Vec<Category>,
}

/// Metadata of an image.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Picture {
    /// Number of the image in the data set.
    pub id: i64,
    /// Path of its file, below the folder of images.
    pub file_name: String,
    /// Width in pixels, from the annotations.
    pub width: u32,
    /// Height in pixels, from the annotations.
    pub height: u32,
    /// Objects in the image, in the order of the file.
    #[serde(skip)]
    pub annotations: Vec<Annotation>,
}

wire_struct! { Picture { id, file_name, width, height, annotations } }

/// One object in an image, or one caption. A value that is not in the file is `None` or empty.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Annotation {
    /// Number of the annotation in the data set.
    pub id: i64,
    /// Number of the image.
    pub image_id: i64,
    /// Category of the object; see [`Category::id`].
    pub category_id: Option<i64>,
    /// Left, top, width and height of the bounding box, in pixels.
    pub bbox: Option<[f64; 4]>,
    /// Covered area in pixels.
    pub area: Option<f64>,
    /// True if the annotation is a group of objects, with an outline in runs.
    #[serde(default, deserialize_with = "flag")]
    pub iscrowd: bool,
    /// Outline of the object.
    pub segmentation: Option<Segmentation>,
    /// Key points as x, y, and visibility: 0 for unknown, 1 for hidden, 2 for visible.
    #[serde(default)]
    pub keypoints: Vec<f64>,
    /// Number of known key points.
    pub num_keypoints: Option<u32>,
    /// Caption of the image.
    pub caption: Option<String>,
}

wire_struct! {
    Annotation {
        id, image_id, category_id, bbox, area, iscrowd, segmentation, keypoints, num_keypoints, caption
    }
}

/// A category of objects.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Category {
    /// Number of the category in annotations. Not all numbers are used: COCO's 80 categories have
    /// numbers up to 90.
    pub id: i64,
    /// Name of the category.
    pub name: String,
    /// Name of the supercategory.
    #[serde(default)]
    pub supercategory: String,
    /// Names of the key points.
    #[serde(default)]
    pub keypoints: Vec<String>,
    /// Pairs of key points that are joined by a line, counted from 1.
    #[serde(default)]
    pub skeleton: Vec<[u32; 2]>,
}

wire_struct! { Category { id, name, supercategory, keypoints, skeleton } }

#[derive(Deserialize)]
struct Whole {
    images: Vec<Picture>,
    #[serde(default)]
    annotations: Vec<Annotation>,
    #[serde(default)]
    categories: Vec<Category>,
}

impl Annotations {
    /// Parses a file of annotations. Images are sorted by their ids; annotations keep their order
    /// within their image. Other content of the file (licenses, URLs) is ignored.
    ///
    /// # Errors
    /// `Corrupt` if the file is not JSON of this form, with the position; if an id of images,
    /// categories or annotations is there twice; if an annotation refers to an image or a category
    /// that does not exist. The last two name the ids.
    pub fn parse(json: &[u8]) -> Result<Annotations> {
        let json = json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json);
        let Whole {
            images,
            annotations,
            categories,
        } = serde_json::from_slice(json).map_err(|error| {
            let at = json_offset(json, &error);
            Error::corrupt(format!("byte {at}: no annotations in COCO's form")).with_source(error)
        })?;
        unique("images", images.iter().map(|image| image.id))?;
        unique(
            "annotations",
            annotations.iter().map(|annotation| annotation.id),
        )?;
        unique("categories", categories.iter().map(|category| category.id))?;
        let mut kinds: Vec<i64> = categories.iter().map(|category| category.id).collect();
        kinds.sort_unstable();
        let unknown = annotations
            .iter()
            .filter_map(|annotation| annotation.category_id);
        let unknown = Ids::of(unknown.filter(|id| kinds.binary_search(id).is_err()));
        if let Some(unknown) = unknown {
            return Err(Error::corrupt(format!(
                "annotations of categories that are not there: {unknown}"
            )));
        }
        let mut pictures: BTreeMap<i64, Picture> =
            images.into_iter().map(|image| (image.id, image)).collect();
        let mut unknown = Vec::new();
        for annotation in annotations {
            match pictures.get_mut(&annotation.image_id) {
                Some(picture) => picture.annotations.push(annotation),
                None => unknown.push(annotation.image_id),
            }
        }
        match Ids::of(unknown.into_iter()) {
            None => Ok(Annotations {
                pictures: pictures.into_values().collect(),
                categories,
            }),
            Some(unknown) => Err(Error::corrupt(format!(
                "annotations of images that are not there: {unknown}"
            ))),
        }
    }
}

fn unique(what: &str, ids: impl Iterator<Item = i64>) -> Result<()> {
    let mut ids: Vec<i64> = ids.collect();
    ids.sort_unstable();
    let twice = ids
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0]);
    match Ids::of(twice) {
        None => Ok(()),
        Some(twice) => Err(Error::corrupt(format!(
            "ids of {what} that are there twice: {twice}"
        ))),
    }
}

/// A list of ids; its text shows the first ones.
struct Ids(Vec<i64>);

impl Ids {
    fn of(ids: impl Iterator<Item = i64>) -> Option<Ids> {
        let mut ids: Vec<i64> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        (!ids.is_empty()).then_some(Ids(ids))
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<String> = self.0.iter().take(10).map(i64::to_string).collect();
        f.write_str(&first.join(", "))?;
        match self.0.len() - first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Parses 0 or 1, or `false` or `true`.
fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    struct Flag;

    impl Visitor<'_> for Flag {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("0 or 1")
        }
        fn visit_bool<E: de::Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
        fn visit_u64<E: de::Error>(self, value: u64) -> Result<bool, E> {
            match value {
                0 | 1 => Ok(value == 1),
                _ => Err(E::invalid_value(de::Unexpected::Unsigned(value), &self)),
            }
        }
    }

    from.deserialize_any(Flag)
}
