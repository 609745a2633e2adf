//! Writes samples into a table: many at once, repeatable until all are written.

#[cfg(feature = "files")]
mod sources;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use datapipes::{
    Context, Error, Graph, Hints, Item, Items, Origin, Pipe, Result, Wire, Work, lock,
};
use tokio::sync::Notify;
use uuid::Uuid;

use super::{NewRow, Table};

/// A writer of samples into a table, from any graph.
///
/// - It makes a graph like any other. A `DataLoader` runs it, with many reads and writes in flight.
///   The loader's `OnError` decides if a sample that cannot be read or written ends the epoch, or
///   is skipped, counted and listed.
/// - The graph yields the progress, batch by batch: for a progress bar. [`report`](Ingest::report)
///   returns the sums.
/// - Rows whose keys exist already are not written again, unless [`overwrite`](Ingest::overwrite)
///   is set. With keys made of names ([`key`](super::key)) an ingest may therefore be stopped, or
///   crash, and be run again; no row is ever half written. Of several rows of one key the first is
///   written, in a batch and of batches: a batch waits while another with one of its keys is
///   being written. Of batches that are in flight at the same time, any may be the first.
/// - A batch that cannot be written is tried row by row, so that an error is about one sample. If
///   the error of the table is transient, the batch is one error; `graph.retry(3, ingest)` in place
///   of `graph.pipe(ingest)` retries it.
///
/// Clones share the report.
///
/// # Examples
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use datapipes::{DataLoader, Graph};
/// use datapipes_tables::{Ingest, Label, NewRow, Row, Schema, Sqlite, key};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("numbers.db");
/// let ingest = Ingest::new(Sqlite::create(&path, "numbers", &Schema::default())?);
/// let rows = Graph::range(0..1000).map(|n| {
///     let row = Row { key: key("numbers", n.to_string()), label: Label::Class(n as i64 % 2), data: vec![n as u8].into() };
///     NewRow { row, values: vec![] }
/// });
/// for written in DataLoader::builder(ingest.rows(rows.clone())).build()?.epoch(0).blocking() {
///     println!("{} rows more", written?.written);
/// }
/// assert_eq!(ingest.report().written, 1000);
///
/// ingest.rows(rows).collect()?; // again, here on this thread
/// assert_eq!((ingest.report().written, ingest.report().known), (1000, 1000));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Ingest {
    table: Arc<dyn Table>,
    overwrite: bool,
    counts: Arc<Counts>,
    in_flight: Arc<InFlight>,
}

/// The keys of all batches that are being written.
#[derive(Debug, Default)]
struct InFlight {
    keys: Mutex<HashSet<Uuid>>,
    /// Notified when a batch has been written.
    done: Notify,
}

impl InFlight {
    fn keys(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        lock(&self.keys)
    }

    /// Waits until no other batch with one of these keys is being written. All keys are taken at
    /// once, so that no two batches wait for each other.
    async fn enter(&self, keys: HashSet<Uuid>) -> Writing<'_> {
        loop {
            // Created before the keys are compared, it misses no notification.
            let done = self.done.notified();
            {
                let mut all = self.keys();
                if all.is_disjoint(&keys) {
                    all.extend(&keys);
                    return Writing(self, keys);
                }
            }
            done.await;
        }
    }
}

/// A batch that is being written, with its keys.
struct Writing<'a>(&'a InFlight, HashSet<Uuid>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let Writing(in_flight, keys) = self;
        let mut all = in_flight.keys();
        all.retain(|key| !keys.contains(key));
        drop(all);
        in_flight.done.notify_waiters();
    }
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    known: AtomicU64,
    bytes: AtomicU64,
}

/// Counts of an ingest: of a batch, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Wire)]
pub struct Written {
    /// Number of rows that were written.
    pub written: u64,
    /// Number of rows that existed already and were not changed.
    pub known: u64,
    /// Number of bytes of data that were written.
    pub bytes: u64,
}

/// Number of rows written together, unless a graph of batches sets another.
const TOGETHER: usize = 64;
/// Number of keys looked up together.
const KEYS: usize = 512;

impl Ingest {
    /// Returns an ingest into this table.
    pub fn new(table: impl Table) -> Self {
        Ingest {
            table: Arc::new(table),
            overwrite: false,
            counts: Arc::default(),
            in_flight: Arc::default(),
        }
    }

    /// Overwrites existing rows.
    pub fn overwrite(mut self) -> Self {
        self.overwrite = true;
        self
    }

    /// Returns the counts so far, of all graphs of this value and its clones.
    pub fn report(&self) -> Written {
        let Counts {
            written,
            known,
            bytes,
        } = &*self.counts;
        let [written, known, bytes] =
            [written, known, bytes].map(|count| count.load(Ordering::Relaxed));
        Written {
            written,
            known,
            bytes,
        }
    }

    /// Writes the rows of a graph, in batches of 64. For another number use
    /// `rows.batch(n).pipe(ingest)`.
    ///
    /// # Errors
    /// `Shape` for a row that does not match the schema, in its place; the errors of the table.
    pub fn rows(&self, rows: Graph<NewRow>) -> Graph<Written> {
        rows.batch(TOGETHER).named("batch rows").pipe(self.clone())
    }

    /// Leaves out items that are in the table already, before they are read or made: `key` returns
    /// the key of the row that an item will become. Items that are left out are counted as known;
    /// nothing is left out if rows are [overwritten](Ingest::overwrite).
    ///
    /// Keys are looked up in groups of 512, and that many items wait for the result. The order is
    /// preserved.
    pub fn unknown<T, F>(&self, items: Graph<T>, key: F) -> Graph<T>
    where
        T: Send + 'static,
        F: Fn(&T) -> Uuid + Send + Sync + 'static,
    {
        if self.overwrite {
            return items;
        }
        items.batch(KEYS).named("batch keys").pipe(Unknown {
            ingest: self.clone(),
            key: Arc::new(key),
        })
    }

    /// Writes rows; returns the counts, and the rows that failed, by their position.
    async fn write(&self, rows: Vec<NewRow>) -> Result<(Written, Vec<(usize, Error)>)> {
        let keys: Vec<Uuid> = rows.iter().map(|new| new.row.key).collect();
        let _writing;
        let known = match self.overwrite {
            true => vec![false; rows.len()],
            false => {
                _writing = self.in_flight.enter(keys.iter().copied().collect()).await;
                self.table.contains(&keys).await?
            }
        };
        let mut done = Written::default();
        let mut failed = Vec::new();
        let mut fresh: Vec<(usize, NewRow)> = Vec::new();
        let mut keys = HashSet::new();
        for (place, (new, known)) in rows.into_iter().zip(known).enumerate() {
            match self.table.schema().accept(&new.values) {
                _ if known => done.known += 1,
                Ok(()) if self.overwrite || keys.insert(new.row.key) => fresh.push((place, new)),
                Ok(()) => done.known += 1,
                Err(error) => {
                    let what = format!("{}: {}", self.table.url(), new.row.key);
                    failed.push((place, error.within(what)));
                }
            }
        }
        let mut count = |new: &NewRow| {
            done.written += 1;
            done.bytes += new.row.data.len() as u64;
        };
        match self
            .table
            .put(fresh.iter().map(|(_, new)| new.clone()).collect())
            .await
        {
            Ok(()) => fresh.iter().for_each(|(_, new)| count(new)),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) if fresh.len() == 1 => failed.push((fresh[0].0, error)),
            Err(_) => {
                for (place, new) in fresh {
                    match self.table.put(vec![new.clone()]).await {
                        Ok(()) => count(&new),
                        Err(error) => failed.push((place, error)),
                    }
                }
            }
        }
        self.count(done);
        Ok((done, failed))
    }

    fn count(&self, done: Written) {
        self.counts
            .written
            .fetch_add(done.written, Ordering::Relaxed);
        self.counts.known.fetch_add(done.known, Ordering::Relaxed);
        self.counts.bytes.fetch_add(done.bytes, Ordering::Relaxed);
    }
}

impl Pipe<Vec<NewRow>> for Ingest {
    type Out = Written;

    fn apply(&self, mut input: Items<Vec<NewRow>>, cx: &Context) -> Items<Written> {
        let (this, cx) = (self.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(batch) = out.next_from(&mut input).await {
                if cx.is_cancelled() {
                    return;
                }
                let (rows, origin) = batch.into_parts();
                match this.write(rows).await {
                    Err(error) => out.emit(Err(error.of(&origin))).await,
                    Ok((done, failed)) => {
                        out.emit(Ok(Item::new(done, origin.clone()))).await;
                        for (place, error) in failed {
                            out.emit(Err(error.of(part(&origin, place)))).await;
                        }
                    }
                }
            }
        })
    }
    fn hints(&self) -> Hints {
        let again = if self.overwrite { ", overwrite" } else { "" };
        Hints::shardable()
            .work(Work::Io)
            .settings(format!("{}{again}", self.table.url()))
    }
}

/// Returns the origin of a row in a batch.
fn part(batch: &Origin, place: usize) -> &Origin {
    batch.parts().get(place).unwrap_or(batch)
}

/// A pipe that leaves out items that a table has already; see [`Ingest::unknown`].
struct Unknown<F> {
    ingest: Ingest,
    key: Arc<F>,
}

impl<T, F> Pipe<Vec<T>> for Unknown<F>
where
    T: Send + 'static,
    F: Fn(&T) -> Uuid + Send + Sync + 'static,
{
    type Out = T;

    fn apply(&self, mut input: Items<Vec<T>>, cx: &Context) -> Items<T> {
        let (ingest, key, cx) = (self.ingest.clone(), self.key.clone(), cx.clone());
        Items::generate(async move |out| {
            while let Some(batch) = out.next_from(&mut input).await {
                let (items, origin) = batch.into_parts();
                let keys: Vec<Uuid> = items.iter().map(|item| key(item)).collect();
                let known = match ingest.table.contains(&keys).await {
                    Ok(known) => known,
                    Err(error) => {
                        out.emit(Err(error.of(&origin))).await;
                        continue;
                    }
                };
                let count = known.iter().filter(|known| **known).count() as u64;
                ingest.count(Written {
                    known: count,
                    ..Written::default()
                });
                cx.count_dropped(count);
                for (place, item) in items.into_iter().enumerate() {
                    if !known[place] {
                        out.emit(Ok(Item::new(item, part(&origin, place).clone())))
                            .await;
                    }
                }
            }
        })
    }
    fn name(&self) -> String {
        "unknown".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .settings(self.ingest.table.url())
    }
}
