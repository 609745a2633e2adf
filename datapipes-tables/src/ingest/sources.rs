//! Sources of samples for an ingest: folders of classes, and archives.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use datapipes::{Error, Graph, Result};
use datapipes_io::{File, FileGraphExt, FileRef, Sample, list_files};

use super::{Ingest, Written};
use crate::{ColumnType, Label, NewRow, Row, Schema, Table, Value, key};

/// Pattern of the image files in a folder.
const IMAGES: &str = "*/**/*.{jpg,jpeg,png,JPG,JPEG,PNG}";

impl Ingest {
    /// Returns the metadata columns of [`folder`](Ingest::folder): `class`, `path` and `size`.
    pub fn folder_schema() -> Schema {
        Schema::new([
            ("class", ColumnType::Text),
            ("path", ColumnType::Text),
            ("size", ColumnType::Int),
        ])
    }

    /// Writes a folder with a folder of images for each class: `class/name.jpg`, at any depth. The
    /// label is the number of the class in the order of the names' bytes; the key is that of the
    /// namespace and the path below `folder`.
    ///
    /// The table's columns `class`, `path` and `size` get these values, other columns get none.
    /// Files with known keys are not read. The classes are listed at once, which blocks; the files
    /// are listed when the graph runs.
    ///
    /// # Errors
    /// Errors of reading the folder; `NotFound` if there is no folder in it. When the graph runs,
    /// the errors of [`list_files`], [`load_files`](FileGraphExt::load_files) and
    /// [`rows`](Ingest::rows), each naming its file.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use datapipes_tables::prelude::*;
    /// use datapipes_tables::{Ingest, Sqlite, col};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let (folder, path) = (dir.path().join("pets"), dir.path().join("pets.db"));
    /// # for file in ["cat/1.jpg", "dog/1.jpg", "dog/2.jpg"] {
    /// #     std::fs::create_dir_all(folder.join(file).parent().unwrap())?;
    /// #     std::fs::write(folder.join(file), file)?;
    /// # }
    /// let table = Sqlite::create(&path, "pets", &Ingest::folder_schema())?;
    /// Ingest::new(table.clone()).folder("pets", &folder)?.collect()?;
    ///
    /// let dogs = futures::executor::block_on(table.select(&["path"]).filter(col("class").eq("dog")).all())?;
    /// assert_eq!((dogs.len(), dogs[0].class), (2, Some(1)));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn folder(&self, namespace: &str, folder: impl AsRef<Path>) -> Result<Graph<Written>> {
        let folder = folder.as_ref();
        let classes = Arc::new(classes(folder).map_err(|error| error.within(folder.display()))?);
        let namespace: Arc<str> = namespace.into();
        let key_of = {
            let namespace = namespace.clone();
            move |file: &FileRef| key(&namespace, file.name().as_bytes())
        };
        let files = self
            .unknown(list_files(folder, IMAGES), key_of)
            .load_files();
        let columns: Arc<[_]> = self.table.schema().columns.clone().into();
        let rows = files.map(move |file: File| {
            let class = file.name.split('/').next().unwrap_or_default();
            let value = |(column, _): &(String, ColumnType)| match &**column {
                "class" => class.into(),
                "path" => (&*file.name).into(),
                "size" => (file.data.len() as i64).into(),
                _ => Value::Null,
            };
            let values = columns.iter().map(value).collect();
            let label = classes
                .get(class)
                .map_or(Label::None, |class| Label::Class(*class));
            NewRow {
                row: Row {
                    key: key(&namespace, file.name.as_bytes()),
                    label,
                    data: file.data,
                },
                values,
            }
        });
        Ok(self.rows(rows.named("row").weighed(weigh)))
    }

    /// Writes the samples of archives. The data are the first of the `data` fields that a sample
    /// has, such as `["jpg", "png"]`. The label is the number in its field `cls`, if there is one.
    /// The key is made of the namespace and the sample's key.
    ///
    /// The table's columns `name` and `size` get the sample's key and the length of its data; other
    /// columns get the values of their names in its field `json`, or none. The archives are read
    /// again each time.
    ///
    /// # Errors
    /// When the graph runs: `NotFound` for a sample without data, `Corrupt` for a field that is no
    /// number or no JSON object, `Shape` for a JSON value that does not match its column; the
    /// errors of [`rows`](Ingest::rows).
    pub fn samples(
        &self,
        namespace: &str,
        samples: Graph<Sample>,
        data: &[&str],
    ) -> Graph<Written> {
        let (namespace, table): (Arc<str>, _) = (namespace.into(), self.table.clone());
        let data: Arc<[String]> = data.iter().map(|field| (*field).to_owned()).collect();
        let rows =
            samples.try_map(move |sample| row_of(&namespace, &sample, &data, table.schema()));
        self.rows(rows.named("row").weighed(weigh))
    }
}

fn weigh(new: &NewRow) -> usize {
    new.row.weight() + new.values.len() * size_of::<Value>()
}

/// Returns the subfolders of a folder, numbered in the order of their names' bytes.
fn classes(folder: &Path) -> Result<BTreeMap<String, i64>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().is_dir() {
            names.push(FileRef::new(entry.file_name()).name().into_owned());
        }
    }
    if names.is_empty() {
        return Err(Error::not_found("no folder of a class in it"));
    }
    names.sort();
    Ok(names.into_iter().zip(0..).collect())
}

fn row_of(namespace: &str, sample: &Sample, data: &[String], schema: &Schema) -> Result<NewRow> {
    let field = data.iter().find(|field| sample.has(field));
    let content = sample
        .get(field.or(data.first()).map_or("", |field| field))?
        .clone();
    let label = if sample.has("cls") {
        Label::Class(sample.parse("cls")?)
    } else {
        Label::None
    };
    let json: serde_json::Value = match sample.has("json") {
        true => serde_json::from_slice(sample.get("json")?).map_err(|error| {
            Error::corrupt(format!("sample {:?}: its json", sample.key())).with_source(error)
        })?,
        false => serde_json::Value::Null,
    };
    let value = |(column, kind): &(String, ColumnType)| match &**column {
        "name" => Ok(sample.key().into()),
        "size" => Ok((content.len() as i64).into()),
        _ => from_json(&json[column], *kind).ok_or_else(|| {
            Error::shape(format!(
                "sample {:?}: {column:?} in its json is not of {kind}",
                sample.key()
            ))
        }),
    };
    let values = schema.columns.iter().map(value).collect::<Result<_>>()?;
    Ok(NewRow {
        row: Row {
            key: key(namespace, sample.key()),
            label,
            data: content,
        },
        values,
    })
}

fn from_json(value: &serde_json::Value, kind: ColumnType) -> Option<Value> {
    match (value, kind) {
        (serde_json::Value::Null, _) => Some(Value::Null),
        (_, ColumnType::Int) => value.as_i64().map(Value::Int),
        (_, ColumnType::Float) => value.as_f64().map(Value::Float),
        (_, ColumnType::Text) => value.as_str().map(Value::from),
        (_, ColumnType::Bool) => value.as_bool().map(Value::Bool),
    }
}
