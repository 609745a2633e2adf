//! A folder of images, with a folder for each class.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::index::{Indexed, MapPipe};
use datapipes::{Error, Result};

use super::Labelled;
use crate::File;
use crate::file::readable;
use crate::stores::Store;
use crate::stores::local::{Local, is_absent};

/// File extensions of images for [`image_folder`], as in torchvision.
pub const IMAGE_EXTENSIONS: &[&str] = &[
    "jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp",
];

/// Opens a folder of images, with a folder for each class: `root/cat/1.jpg`, `root/dog/a/b.png`. A
/// sample is a file with its content, and the number of its class. Numbers and order are those of
/// torchvision's `ImageFolder`:
///
/// - Classes are the folders in `root`, numbered in the order of their names' bytes; hidden folders
///   count, too.
/// - Images are the files below at any depth whose names end in one of [`IMAGE_EXTENSIONS`], in any
///   case. The images of one folder come together, in the order of their names, and folders in the
///   order of their paths.
/// - A class without an image is an error. Files in `root` itself are left out.
/// - Links are followed; a link that leads back to an enclosing folder is not entered again. A
///   broken one whose name is that of an image is a sample that cannot be read; others are left out.
///
/// The function lists the names of all files, so it blocks; the names stay in memory, and the files
/// are read when they are requested. A sample's file is named by its path below `root`. The steps of
/// `datapipes-image` take its bytes: `.map(|(file, class)| (file.data, class)).image_rows(rows)`.
///
/// # Errors
/// `NotFound` if there is no such folder, no class in it, or a class without an image;
/// `Unsupported` for a name that is not UTF-8; those of reading a folder, and of a link that is not
/// broken and cannot be followed. For a sample: the errors of reading its file.
///
/// # Examples
/// ```
/// use datapipes_io::datasets::image_folder;
/// # let dir = tempfile::tempdir()?;
/// # let root = dir.path();
/// for (class, name) in [("dog", "1.jpg"), ("cat", "2.JPG"), ("cat", "notes.txt")] {
///     std::fs::create_dir_all(root.join(class))?;
///     std::fs::write(root.join(class).join(name), name)?;
/// }
/// let images = image_folder(root)?;
/// assert_eq!((&images.classes[..], &images.labels[..]), (&["cat".to_owned(), "dog".to_owned()][..], &[0, 1][..]));
/// let (file, class) = images.samples.fetch().collect()?.remove(0);
/// assert_eq!((&*file.name, class), ("cat/2.JPG", 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn image_folder(root: impl AsRef<Path>) -> Result<Labelled<File, u32>> {
    image_folder_of(root, IMAGE_EXTENSIONS)
}

/// Opens a folder as [`image_folder`] does, for files with other extensions: `&["npy"]`.
///
/// # Errors
/// The errors of [`image_folder`].
pub fn image_folder_of(root: impl AsRef<Path>, extensions: &[&str]) -> Result<Labelled<File, u32>> {
    let root = root.as_ref();
    let endings: Vec<String> = extensions
        .iter()
        .map(|end| format!(".{}", end.to_lowercase()))
        .collect();
    let missing = |what: String| Error::not_found(format!("{}: {what}", root.display()));
    let classes: Vec<String> = Folder::read(root)?.folders.into_keys().collect();
    if classes.is_empty() {
        return Err(missing(
            "no folder in it, as there should be one for each class".to_owned(),
        ));
    }
    let (mut names, mut labels, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for (label, class) in classes.iter().enumerate() {
        let before = names.len();
        let mut folders = Vec::new();
        walk(
            root.join(class),
            class.clone(),
            &mut Vec::new(),
            &mut folders,
        )?;
        folders.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (folder, files) in folders {
            let is_image = |name: &&String| {
                let name = name.to_lowercase();
                endings.iter().any(|end| name.ends_with(end))
            };
            names.extend(
                files
                    .iter()
                    .filter(is_image)
                    .map(|name| format!("{folder}/{name}")),
            );
        }
        labels.resize(names.len(), label as u32);
        if names.len() == before {
            empty.push(class.as_str());
        }
    }
    if !empty.is_empty() {
        let what = format!(
            "no file that ends in {} for the classes {}",
            endings.join(", "),
            empty.join(", ")
        );
        return Err(missing(what));
    }
    let names: Arc<[String]> = names.into();
    let samples = Indexed::new(Images {
        store: Local::new(root),
        names: names.clone(),
        labels: labels.clone().into(),
    });
    Ok(Labelled {
        samples,
        labels,
        classes,
        names,
    })
}

/// Content of a folder, sorted.
struct Folder {
    folders: BTreeMap<String, PathBuf>,
    files: Vec<String>,
}

impl Folder {
    fn read(path: &Path) -> Result<Folder> {
        let failed = |error: std::io::Error| Error::io(error).within(path.display());
        let mut folder = Folder {
            folders: BTreeMap::new(),
            files: Vec::new(),
        };
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let mut kind = entry.file_type().map_err(failed)?;
            if kind.is_symlink() {
                match fs::metadata(entry.path()) {
                    Ok(there) => kind = there.file_type(),
                    // If it should be an image, its sample is an error.
                    Err(error) if is_broken(&error) => {}
                    Err(error) => return Err(Error::io(error).within(entry.path().display())),
                }
            }
            let name = entry.file_name().into_string().map_err(|name| {
                let what = format!(
                    "the name {} is not UTF-8",
                    readable(name.as_encoded_bytes())
                );
                Error::unsupported(format!("{}: {what}", path.display()))
            })?;
            if kind.is_dir() {
                folder.folders.insert(name, entry.path());
            } else if kind.is_file() || kind.is_symlink() {
                folder.files.push(name);
            }
        }
        folder.files.sort_unstable();
        Ok(folder)
    }
}

/// Returns true if a link leads nowhere: to nothing, through a file, or to itself.
fn is_broken(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    let leads_back = error.raw_os_error() == Some(libc::ELOOP);
    #[cfg(not(unix))]
    let leads_back = false;
    leads_back || is_absent(error)
}

/// Adds the files of a folder and of its subfolders, each with the path below the root. `above` are
/// the enclosing folders, with links resolved.
fn walk(
    path: PathBuf,
    name: String,
    above: &mut Vec<PathBuf>,
    found: &mut Vec<(String, Vec<String>)>,
) -> Result<()> {
    let real = path
        .canonicalize()
        .map_err(|error| Error::io(error).within(path.display()))?;
    if above.contains(&real) {
        return Ok(());
    }
    above.push(real);
    let folder = Folder::read(&path)?;
    for (below, path) in folder.folders {
        walk(path, format!("{name}/{below}"), above, found)?;
    }
    above.pop();
    found.push((name, folder.files));
    Ok(())
}

/// Files of a folder, with their classes.
struct Images {
    store: Local,
    names: Arc<[String]>,
    labels: Arc<[u32]>,
}

#[async_trait]
impl MapPipe for Images {
    type Out = (File, u32);

    fn len(&self) -> u64 {
        self.names.len() as u64
    }
    async fn get(&self, index: u64) -> Result<(File, u32)> {
        let index = index as usize;
        let name = &*self.names[index];
        Ok((
            File::new(name, self.store.read(name).await?),
            self.labels[index],
        ))
    }
    fn name(&self) -> String {
        "image_folder".to_owned()
    }
    fn seldom_waits(&self) -> bool {
        true
    }
    fn sample_name(&self, index: u64) -> Option<Arc<str>> {
        Some(self.names.get(index as usize)?.as_str().into())
    }
    fn weigh(&self, (file, _): &(File, u32)) -> Option<usize> {
        Some(file.weight() + size_of::<u32>())
    }
}

#[cfg(test)]
mod tests;
