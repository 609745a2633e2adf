//! Retries of transient errors of a table.

use async_trait::async_trait;
use datapipes::{Backoff, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use uuid::Uuid;

use super::{Filter, Metadata, NewRow, Row, Schema, Table, failing};

/// A table whose transient errors are retried.
///
/// Each sample of [`get_many`](Table::get_many) counts its own attempts; samples that were read are
/// not requested again. [`put`](Table::put) is retried as a whole, since writing a sample again
/// changes nothing. A [`scan`](Table::scan) is restarted only before its first row: after it, only
/// the order of rows could tell the position.
///
/// # Examples
/// ```
/// use datapipes::Backoff;
/// use datapipes_tables::{RetryTable, Table};
///
/// fn patient(table: impl Table + Clone) -> impl Table {
///     RetryTable::new(table, Backoff { tries: 5, ..Backoff::default() })
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RetryTable<T> {
    table: T,
    policy: Backoff,
}

impl<T: Table + Clone> RetryTable<T> {
    /// Wraps a table; an `Arc` of a table works as well.
    pub fn new(table: T, policy: Backoff) -> Self {
        RetryTable { table, policy }
    }

    /// Returns the table.
    pub fn into_inner(self) -> T {
        self.table
    }

    /// Returns the rows of a scan, which is restarted while it fails before its first row.
    fn begun_again(
        &self,
        columns: &[&str],
        scan: impl Fn(&T, &[&str]) -> BoxStream<'static, Result<Metadata>> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<Metadata>> {
        let RetryTable { table, policy } = self.clone();
        let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
        let begin = async move {
            let attempt = || async {
                let mut rows = {
                    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
                    scan(&table, &columns)
                };
                let first = rows.next().await.transpose()?;
                datapipes::Ok(stream::iter(first.map(Ok)).chain(rows))
            };
            match policy.run(attempt).await {
                Ok(rows) => rows.boxed(),
                Err(error) => failing(error),
            }
        };
        stream::once(begin).flatten().boxed()
    }
}

#[async_trait]
#[deny(
    clippy::missing_trait_methods,
    reason = "a wrapper passes on all of it"
)]
impl<T: Table + Clone> Table for RetryTable<T> {
    fn url(&self) -> &str {
        self.table.url()
    }

    fn schema(&self) -> &Schema {
        self.table.schema()
    }

    async fn get(&self, key: Uuid) -> Result<Row> {
        self.policy.run(|| self.table.get(key)).await
    }

    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
        let mut rows = self.table.get_many(keys).await;
        let mut pauses = self.policy.begin();
        loop {
            // All failed samples are retried together, after the longest requested pause.
            let failed = |row: &Result<Row>| {
                row.as_ref()
                    .err()
                    .filter(|error| error.is_transient())
                    .is_some()
            };
            let missing: Vec<usize> = (0..rows.len()).filter(|&at| failed(&rows[at])).collect();
            let slowest = missing
                .iter()
                .filter_map(|&at| rows[at].as_ref().err())
                .max_by_key(|error| error.retry_after());
            let Some(pause) = slowest.and_then(|error| pauses.next(error)) else {
                return rows;
            };
            tokio::time::sleep(pause).await;
            let again: Vec<Uuid> = missing.iter().map(|&at| keys[at]).collect();
            for (at, row) in missing.into_iter().zip(self.table.get_many(&again).await) {
                rows[at] = row;
            }
        }
    }

    fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>> {
        self.begun_again(columns, |table, columns| table.scan(columns))
    }

    fn find(&self, columns: &[&str], filter: &Filter) -> BoxStream<'static, Result<Metadata>> {
        let filter = filter.clone();
        self.begun_again(columns, move |table, columns| table.find(columns, &filter))
    }

    async fn contains(&self, keys: &[Uuid]) -> Result<Vec<bool>> {
        self.policy.run(|| self.table.contains(keys)).await
    }

    async fn put(&self, rows: Vec<NewRow>) -> Result<()> {
        self.policy.run(|| self.table.put(rows.clone())).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Label;
    use bytes::Bytes;
    use datapipes::{Error, ErrorKind};

    /// A table that fails transiently some times for each key in turn, always for the largest key,
    /// and lacks the smallest.
    #[derive(Debug, Default)]
    struct Shaky {
        schema: Schema,
        asked: AtomicU32,
        every: u32,
    }

    impl Shaky {
        fn turn(&self) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed) % self.every != self.every - 1
        }
    }

    fn transient() -> Error {
        Error::unavailable("shaky").transient()
    }

    #[async_trait]
    impl Table for Arc<Shaky> {
        fn url(&self) -> &str {
            "shaky://"
        }
        fn schema(&self) -> &Schema {
            &self.schema
        }
        async fn get(&self, key: Uuid) -> Result<Row> {
            match key {
                key if key.is_nil() => Err(Error::not_found("nil")),
                key if key.is_max() || self.turn() => Err(transient()),
                key => Ok(Row {
                    key,
                    label: Label::None,
                    data: Bytes::new(),
                }),
            }
        }
        async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
            let mut rows = Vec::new();
            for &key in keys {
                rows.push(self.get(key).await);
            }
            rows
        }
        fn scan(&self, _: &[&str]) -> BoxStream<'static, Result<Metadata>> {
            let row = |n| {
                Ok(Metadata {
                    key: Uuid::from_u128(n),
                    class: None,
                    values: Vec::new(),
                })
            };
            match self.turn() {
                true => stream::iter(vec![Err(transient())]).boxed(),
                false => stream::iter(vec![row(1), row(2), Err(transient())]).boxed(),
            }
        }
        async fn put(&self, _: Vec<NewRow>) -> Result<()> {
            if self.turn() {
                Err(transient())
            } else {
                Ok(())
            }
        }
    }

    fn shaky(every: u32) -> (Arc<Shaky>, RetryTable<Arc<Shaky>>) {
        let shaky = Arc::new(Shaky {
            every,
            ..Shaky::default()
        });
        (
            shaky.clone(),
            RetryTable::new(
                shaky,
                Backoff {
                    tries: 4,
                    ..Backoff::default()
                },
            ),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_tried_again_and_what_does_not_is_not() {
        let (inner, table) = shaky(3);
        assert!(table.get(Uuid::from_u128(1)).await.is_ok());
        assert_eq!(inner.asked.load(Ordering::Relaxed), 3);
        assert_eq!(
            table.get(Uuid::nil()).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(inner.asked.load(Ordering::Relaxed), 3);
        assert!(table.put(Vec::new()).await.is_ok());
        let (inner, table) = shaky(5);
        assert!(
            table
                .get(Uuid::from_u128(1))
                .await
                .unwrap_err()
                .is_transient()
        );
        assert_eq!(inner.asked.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_only_those_that_failed_are_asked_again() {
        let (inner, table) = shaky(2);
        let keys = [1, 2, 3, 4, 5].map(Uuid::from_u128);
        let mixed = [
            keys[0],
            Uuid::nil(),
            keys[1],
            keys[2],
            Uuid::max(),
            keys[3],
            keys[4],
        ];
        let rows = table.get_many(&mixed).await;
        for (key, row) in mixed.iter().zip(&rows) {
            match row {
                Ok(row) => assert_eq!(row.key, *key),
                Err(error) if key.is_nil() => assert_eq!(error.kind(), ErrorKind::NotFound),
                Err(error) => assert!(key.is_max() && error.is_transient(), "{key}: {error}"),
            }
        }
        // Half of the remaining samples fail in each round: 5, 3, 1, and at the end one of them
        // again.
        assert!(inner.asked.load(Ordering::Relaxed) <= 11);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_is_begun_again_but_never_repeats_a_row() {
        let (_, table) = shaky(3);
        let rows: Vec<_> = table.scan(&[]).collect().await;
        assert_eq!(rows.len(), 3);
        assert!(rows[0].is_ok() && rows[1].is_ok() && rows[2].is_err());
    }
}
