//! Tables in Apache Cassandra or ScyllaDB, many requests in flight over many connections.

mod fault;
mod layout;
mod options;
mod scan;
mod session;

pub use options::{CassandraOptions, Compression, Consistency, Replication};

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use datapipes::{Error, Result, lock};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use scylla::client::session::Session;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::unprepared::Statement;
use tokio::runtime::{Handle, Id};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use uuid::Uuid;

use self::layout::Layout;
use crate::{Label, Metadata, NewRow, Row, Schema, Table, Value};

/// A data set in Apache Cassandra or ScyllaDB.
///
/// # Layout
/// The layout has two tables, after Versaci and Busonera (2024):
///
/// ```cql
/// CREATE TABLE keyspace.table_data     (key uuid PRIMARY KEY, class bigint, label blob, data blob);
/// CREATE TABLE keyspace.table_metadata (key uuid PRIMARY KEY, label bigint, …a column for each of the schema…);
/// ```
///
/// A sample is written to both tables by one logged batch. Both have the same key and keyspace, so
/// a node handles the batch as one mutation. A mutation needs no batch log, and the limit on the
/// size of batches does not apply to it. It must stay below half a segment of the commit log (16 MB
/// by default). Label and data are read by one query. A row with a class and a label in bytes has
/// [`Label::Blob`].
///
/// # Requests
/// Each key is a request of its own, sent to a node that has the row; many requests are in flight
/// over each connection, and are answered in any order. At most
/// [`requests`](CassandraOptions::requests) are in flight, others wait.
/// [`get_many`](Table::get_many) restores the order of the answers. Data and label of a row are
/// slices of the answer, not copied. If a node does not answer, another is asked; use
/// [`RetryTable`](crate::RetryTable) to retry transient errors.
///
/// # Runtimes
/// The driver's connections belong to the async runtime in which they were made, and end with it. A
/// handle therefore connects once in each runtime in which it is used, at the first use there;
/// clones share the connections. In an epoch of a loader outside of a multi-threaded runtime, the
/// handle connects once more, in the loader's own runtime. It keeps the connections of the last
/// four runtimes.
///
/// # Cancellation
/// The server still answers a request whose future was dropped, and the answer is discarded. The
/// limit on requests in flight ensures that a dropped epoch does not make the driver close a
/// connection.
///
/// # Examples
/// ```no_run
/// use datapipes_tables::Table;
/// use datapipes_tables::cassandra::Cassandra;
///
/// # async fn example(keys: &[uuid::Uuid]) -> datapipes::Result<()> {
/// let table = Cassandra::connect("cassandra://reader:secret@node1,node2/images.train?tls=true&ca=ca.pem").await?;
/// for row in table.get_many(keys).await {
///     println!("{:?}", row?.label);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cassandra(Arc<Inner>);

struct Inner {
    options: CassandraOptions,
    layout: Layout,
    permits: Semaphore,
    sessions: Mutex<Vec<(Id, Place)>>,
}

/// Slot for the session of a runtime.
type Place = Arc<OnceCell<Arc<Connected>>>;

/// Maximum number of sessions.
const SESSIONS: usize = 4;

/// Session and prepared statements for requests.
struct Connected {
    session: Session,
    read: PreparedStatement,
    write: OnceCell<Batch>,
    known: OnceCell<PreparedStatement>,
}

impl Cassandra {
    /// Connects to an existing data set:
    /// `cassandra://user:password@host1,host2:9042/keyspace.table?option=value&…`.
    ///
    /// The named nodes are contacted to find the others. User and password are percent-encoded;
    /// they may be left out, or be set by [`CassandraOptions::credentials`]. The options are `tls`
    /// (true or false), `ca` (a PEM file; implies TLS), `dc`, `connections`, `requests`, `timeout`
    /// and `connect_timeout` (seconds), `consistency` and `write_consistency` (`one`, `local_one`,
    /// `quorum`, `local_quorum`, `all`), `compression` (`lz4`, `snappy`), `speculate` (seconds) and
    /// `page`; see [`CassandraOptions`] for their meaning and their defaults.
    ///
    /// # Errors
    /// `Config` if the URL is invalid, or the function is not called in a tokio runtime; `NotFound`
    /// if keyspace or table are missing; `Shape` if the tables have another layout; `Denied` if
    /// user, password or certificate are not accepted; `Unavailable`, transient unless a host name
    /// is unknown, if no node answers.
    pub async fn connect(url: &str) -> Result<Self> {
        CassandraOptions::from_url(url)?.connect().await
    }

    /// Creates missing keyspace and tables, and connects. The URL is as in
    /// [`connect`](Cassandra::connect).
    ///
    /// # Errors
    /// The errors of [`connect`](Cassandra::connect); `Shape` if the tables exist with other
    /// columns, or the name of a column is not allowed; `Denied` if the user may not create them.
    pub async fn create(url: &str, schema: &Schema, replication: &Replication) -> Result<Self> {
        CassandraOptions::from_url(url)?
            .create(schema, replication)
            .await
    }

    /// Opens a table; with a schema, it is made if it is not there.
    async fn open(options: CassandraOptions, new: Option<(&Schema, &Replication)>) -> Result<Self> {
        let here = runtime(&options)?;
        let session = session::connect(&options).await?;
        let layout = match new {
            None => layout::read(&session, &options).await?,
            Some((schema, copies)) => layout::create(&session, &options, schema, copies).await?,
        };
        let connected = Connected::new(session, &options).await?;
        let place = Arc::new(OnceCell::new_with(Some(Arc::new(connected))));
        let permits = Semaphore::new(options.concurrency());
        let sessions = Mutex::new(vec![(here, place)]);
        Ok(Cassandra(Arc::new(Inner {
            options,
            layout,
            permits,
            sessions,
        })))
    }

    /// Returns the session of the current runtime; makes one if necessary.
    async fn connected(&self) -> Result<Arc<Connected>> {
        let inner = &*self.0;
        let here = runtime(&inner.options)?;
        let place = {
            let mut sessions = lock(&inner.sessions);
            match sessions.iter().position(|(id, _)| *id == here) {
                Some(at) => sessions[at].1.clone(),
                None => {
                    let old = sessions.len().saturating_sub(SESSIONS - 1);
                    sessions.drain(..old);
                    sessions.push((here, Place::default()));
                    sessions[sessions.len() - 1].1.clone()
                }
            }
        };
        if let Some(connected) = place.get() {
            return Ok(connected.clone());
        }
        let make = place.get_or_try_init(|| async {
            let session = session::connect(&inner.options).await?;
            Connected::new(session, &inner.options).await.map(Arc::new)
        });
        // If many requests wait and each tries to connect in turn, none waits for all attempts.
        match tokio::time::timeout(inner.options.timeout, make).await {
            Ok(connected) => connected.cloned(),
            Err(_) => {
                let what = format!(
                    "{}: no connection in {:?}",
                    inner.options.url, inner.options.timeout
                );
                Err(Error::unavailable(what).transient())
            }
        }
    }

    async fn permit(&self) -> SemaphorePermit<'_> {
        self.0.permits.acquire().await.expect("nobody closes it")
    }

    fn at(&self, key: Uuid) -> String {
        format!("{}: {key}", self.0.options.url)
    }

    async fn read(self, key: Uuid) -> Result<Row> {
        let connected = self.connected().await?;
        let permit = self.permit().await;
        let answer = connected
            .session
            .execute_unpaged(&connected.read, (key,))
            .await;
        drop(permit);
        let answer =
            answer.map_err(|error| fault::execution(&error).error(self.at(key), &error))?;
        let odd = |error: &dyn fmt::Display| Error::shape(format!("{}: {error}", self.at(key)));
        let rows = answer.into_rows_result().map_err(|error| odd(&error))?;
        // `Bytes` are slices of the answer, which holds only this row.
        let row = rows.maybe_first_row::<(Option<i64>, Option<Bytes>, Option<Bytes>)>();
        let (class, label, data) = row
            .map_err(|error| odd(&error))?
            .ok_or_else(|| Error::not_found(format!("{}: there is no such row", self.at(key))))?;
        let data =
            data.ok_or_else(|| Error::corrupt(format!("{}: the row has no data", self.at(key))))?;
        let label = match (class, label) {
            (_, Some(label)) => Label::Blob(label),
            (Some(class), None) => Label::Class(class),
            (None, None) => Label::None,
        };
        Ok(Row { key, label, data })
    }

    async fn write(&self, connected: &Connected, row: NewRow) -> Result<()> {
        let NewRow { row, values } = row;
        let (class, label) = match row.label {
            Label::None => (None, None),
            Label::Class(class) => (Some(class), None),
            Label::Blob(label) => (None, Some(label)),
        };
        let mut metadata = Vec::with_capacity(2 + values.len());
        metadata.push(Some(scylla::value::CqlValue::Uuid(row.key)));
        metadata.push(class.map(scylla::value::CqlValue::BigInt));
        for (native, value) in self.0.layout.natives.iter().zip(&values) {
            metadata.push(
                native
                    .cql(value)
                    .ok_or_else(|| self.unfit(row.key, value))?,
            );
        }
        let batch = connected
            .write
            .get_or_try_init(|| connected.writing(&self.0))
            .await?;
        let permit = self.permit().await;
        let done = connected
            .session
            .batch(batch, ((row.key, class, label, row.data), metadata))
            .await;
        drop(permit);
        done.map(drop)
            .map_err(|error| fault::execution(&error).error(self.at(row.key), &error))
    }

    /// Returns the error of a value that matches the schema, but not the narrower column.
    fn unfit(&self, key: Uuid, value: &Value) -> Error {
        Error::shape(format!("{}: {value} does not fit its column", self.at(key)))
    }

    /// Makes a request for each key, many at once; returns the answers in the order of the keys.
    async fn each<T, F: Future<Output = T>>(
        &self,
        keys: &[Uuid],
        ask: impl Fn(Uuid) -> F,
    ) -> Vec<T> {
        let requests = keys
            .iter()
            .copied()
            .enumerate()
            .map(|(at, key)| ask(key).map(move |answer| (at, answer)));
        let requests = stream::iter(requests).buffer_unordered(self.0.options.concurrency());
        let mut answers: Vec<_> = requests.collect().await;
        answers.sort_unstable_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn knows(self, key: Uuid) -> Result<bool> {
        let connected = self.connected().await?;
        let statement = connected
            .known
            .get_or_try_init(|| connected.knowing(&self.0.options))
            .await?;
        let permit = self.permit().await;
        let answer = connected.session.execute_unpaged(statement, (key,)).await;
        drop(permit);
        let answer =
            answer.map_err(|error| fault::execution(&error).error(self.at(key), &error))?;
        let rows = answer.into_rows_result();
        let odd = |error| Error::protocol(self.at(key)).with_source(error);
        Ok(rows.map_err(odd)?.rows_num() > 0)
    }
}

impl Connected {
    async fn new(session: Session, options: &CassandraOptions) -> Result<Self> {
        let cql = format!(
            "SELECT class, label, data FROM {} WHERE key = ?",
            layout::data(options)
        );
        Ok(Connected {
            read: prepare(&session, options, cql).await?,
            session,
            write: OnceCell::new(),
            known: OnceCell::new(),
        })
    }

    /// Returns the statement that checks for a row.
    async fn knowing(&self, options: &CassandraOptions) -> Result<PreparedStatement> {
        let cql = format!("SELECT key FROM {} WHERE key = ?", layout::data(options));
        prepare(&self.session, options, cql).await
    }

    /// Returns the batch that writes a sample; readers need none.
    async fn writing(&self, inner: &Inner) -> Result<Batch> {
        let (options, columns) = (&inner.options, &inner.layout.schema.columns);
        let names: String = columns
            .iter()
            .map(|(name, _)| format!(", \"{name}\""))
            .collect();
        let marks = ", ?".repeat(columns.len());
        let mut batch = Batch::new(BatchType::Logged);
        for cql in [
            format!(
                "INSERT INTO {} (key, class, label, data) VALUES (?, ?, ?, ?)",
                layout::data(options)
            ),
            format!(
                "INSERT INTO {} (key, label{names}) VALUES (?, ?{marks})",
                layout::metadata(options)
            ),
        ] {
            batch.append_statement(prepare(&self.session, options, cql).await?);
        }
        batch.set_is_idempotent(true);
        batch.set_consistency(session::level(options.write_consistency));
        Ok(batch)
    }
}

/// Prepares a statement that may be repeated.
async fn prepare(
    session: &Session,
    options: &CassandraOptions,
    statement: impl Into<Statement>,
) -> Result<PreparedStatement> {
    let prepared = session.prepare(statement).await;
    let mut prepared =
        prepared.map_err(|error| fault::prepare(&error).error(&options.url, &error))?;
    prepared.set_is_idempotent(true);
    Ok(prepared)
}

/// Returns the current runtime.
fn runtime(options: &CassandraOptions) -> Result<Id> {
    let here = Handle::try_current().map(|handle| handle.id());
    here.map_err(|_| Error::config(format!("{}: needs a tokio runtime", options.url)))
}

#[async_trait]
impl Table for Cassandra {
    fn url(&self) -> &str {
        &self.0.options.url
    }

    fn schema(&self) -> &Schema {
        &self.0.layout.schema
    }

    async fn get(&self, key: Uuid) -> Result<Row> {
        self.clone().read(key).await
    }

    async fn get_many(&self, keys: &[Uuid]) -> Vec<Result<Row>> {
        let table = self.clone();
        self.each(keys, move |key| table.clone().read(key)).await
    }

    async fn contains(&self, keys: &[Uuid]) -> Result<Vec<bool>> {
        let table = self.clone();
        self.each(keys, move |key| table.clone().knows(key))
            .await
            .into_iter()
            .collect()
    }

    /// Scans in the order of the tokens, which are hashes of the keys. A page with a transient
    /// error is read again some times.
    fn scan(&self, columns: &[&str]) -> BoxStream<'static, Result<Metadata>> {
        scan::rows(
            self.clone(),
            columns.iter().map(|&column| column.to_owned()).collect(),
        )
    }

    /// Writes each sample as a whole or not at all; after an error, any of the other samples may
    /// have been written.
    async fn put(&self, rows: Vec<NewRow>) -> Result<()> {
        let Layout { schema, natives } = &self.0.layout;
        for row in &rows {
            let key = row.row.key;
            schema
                .accept(&row.values)
                .map_err(|error| error.within(self.at(key)))?;
            let narrow = natives
                .iter()
                .zip(&row.values)
                .find(|(native, value)| native.cql(value).is_none());
            if let Some((_, value)) = narrow {
                return Err(self.unfit(key, value));
            }
        }
        let connected = self.connected().await?;
        let failed = AtomicBool::new(false);
        let wanted = rows
            .into_iter()
            .take_while(|_| !failed.load(Ordering::Relaxed));
        let writes = wanted.map(|row| {
            let (table, connected) = (self.clone(), connected.clone());
            async move { table.write(&connected, row).await }
        });
        // Waits for the requests in flight even after an error: nothing is written after this
        // function returns.
        let mut writes = pin!(stream::iter(writes).buffer_unordered(self.0.options.concurrency()));
        let mut outcome = Ok(());
        while let Some(done) = writes.next().await {
            failed.fetch_or(done.is_err(), Ordering::Relaxed);
            outcome = outcome.and(done);
        }
        outcome
    }
}

datapipes::opaque_debug!(Cassandra { url = self.0.options.url });
