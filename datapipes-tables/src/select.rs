//! Queries of the metadata of a table.

use datapipes::Result;
use datapipes::index::split::{SplitSample, Splits, Splitter};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use uuid::Uuid;

use super::{Filter, Metadata, Table, Value};

/// Methods of every table, in addition to those of [`Table`].
pub trait TableExt: Table {
    /// Queries some metadata columns of all samples, or of the samples that match a filter.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use datapipes_tables::{ColumnType, NewRow, Row, Schema, Sqlite, Table, TableExt, Value, col, key};
    ///
    /// # futures::executor::block_on(async {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("a.db");
    /// let schema = Schema::new([("age", ColumnType::Int), ("sex", ColumnType::Text)]);
    /// let table = Sqlite::create(&path, "people", &schema)?;
    /// let person = |age: i64, sex: &str| NewRow {
    ///     row: Row { key: key("people", &format!("{age} {sex}")), label: Default::default(), data: "x".into() },
    ///     values: vec![age.into(), sex.into()],
    /// };
    /// table.put(vec![person(20, "f"), person(40, "f"), person(60, "m")]).await?;
    ///
    /// let ages = table.select(&["age"]).filter(col("age").gt(30).and(col("sex").eq("f"))).all().await?;
    /// assert_eq!(ages[0].values, [Value::Int(40)]);
    /// assert_eq!(table.select(&[]).filter("age > 30".parse()?).keys().await?.len(), 2);
    /// # datapipes::Ok(()) }).unwrap();
    /// # }
    /// ```
    fn select<'a>(&'a self, columns: &'a [&'a str]) -> Select<'a, Self> {
        Select {
            table: self,
            columns,
            filter: Filter::all(),
        }
    }
}

impl<T: Table + ?Sized> TableExt for T {}

/// A query of metadata; see [`TableExt::select`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Select<'a, T: ?Sized> {
    table: &'a T,
    columns: &'a [&'a str],
    filter: Filter,
}

impl<T: Table + ?Sized> Select<'_, T> {
    /// Restricts the query to samples that match the filter, in addition to earlier filters. Its
    /// columns are those of the [`Schema`](super::Schema), and `label`, the class of a sample.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = self.filter.and(filter);
        self
    }

    /// Returns the results as they come, page by page, in an order that is the same while nothing
    /// is written.
    ///
    /// # Errors
    /// The errors of [`Filter::check`] and [`Schema::places`](super::Schema::places), and of the
    /// database. An error ends the stream.
    pub fn stream(self) -> BoxStream<'static, Result<Metadata>> {
        if self.filter == Filter::all() {
            return self.table.scan(self.columns);
        }
        self.table.find(self.columns, &self.filter)
    }

    /// Returns all results.
    ///
    /// # Errors
    /// The errors of [`stream`](Select::stream).
    pub async fn all(self) -> Result<Vec<Metadata>> {
        self.stream().try_collect().await
    }

    /// Returns only the keys; the columns are not read.
    ///
    /// # Errors
    /// The errors of [`stream`](Select::stream).
    pub async fn keys(self) -> Result<Vec<Uuid>> {
        Select {
            columns: &[],
            ..self
        }
        .stream()
        .map(|found| found.map(|found| found.key))
        .try_collect()
        .await
    }

    /// Splits the samples into parts. Classes and entities are the columns that the splitter names;
    /// the columns of this query are not read. Holds the keys, classes and entities of all samples.
    ///
    /// # Errors
    /// The errors of [`stream`](Select::stream), and those of [`Splitter::split`].
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "sqlite")] {
    /// use datapipes::index::split::Splitter;
    /// use datapipes_tables::{ColumnType, Label, NewRow, Row, Schema, Sqlite, Table, TableExt, key};
    ///
    /// # futures::executor::block_on(async {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("a.db");
    /// let table = Sqlite::create(&path, "scans", &Schema::new([("patient", ColumnType::Text)]))?;
    /// let scan = |n: i64| NewRow {
    ///     row: Row { key: key("scans", n.to_string()), label: Label::Class(n % 2), data: "x".into() },
    ///     values: vec![format!("patient {}", n / 4).into()],
    /// };
    /// table.put((0..400).map(scan).collect()).await?;
    ///
    /// let splitter = Splitter::fractions([("train", 0.8), ("test", 0.2)]).balance_classes().group_by("patient");
    /// let splits = table.select(&[]).filter("patient != \"patient 0\"".parse()?).split(&splitter).await?;
    /// assert_eq!((splits.parts()[1].entities, splits.keys("test")?.len()), (20, 80));
    /// # datapipes::Ok(()) }).unwrap();
    /// # }
    /// ```
    pub async fn split(self, splitter: &Splitter) -> Result<Splits<Uuid>> {
        let (class, entity) = splitter.columns();
        let class = Some(class).filter(|class| *class != super::filter::LABEL);
        let columns: Vec<&str> = class.into_iter().chain(entity).collect();
        let sample = |found: Metadata| {
            let number = found.class.map(|class| class.to_string());
            let mut values = found.values.into_iter().map(in_words);
            SplitSample {
                key: found.key,
                class: if class.is_some() {
                    values.next().flatten()
                } else {
                    number
                },
                entity: values.next().flatten(),
            }
        };
        let asked = Select {
            table: self.table,
            columns: &columns,
            filter: self.filter,
        };
        let samples: Vec<_> = asked.stream().map_ok(sample).try_collect().await?;
        splitter
            .split(samples)
            .map_err(|error| error.within(self.table.url()))
    }
}

/// Converts a value to the name of a class or entity.
fn in_words(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Text(text) => Some(text),
        other => Some(other.to_string()),
    }
}
