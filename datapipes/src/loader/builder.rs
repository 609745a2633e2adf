//! The builder of a loader.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::autosave::Saver;
use super::epoch_source::EpochSource;
use super::latest::Latest;
#[cfg(feature = "metrics")]
use super::metrics;
#[cfg(feature = "monitor")]
use super::monitor;
use super::online::OnlineTuner;
#[cfg(feature = "tune")]
use super::settings_file::SavedSettings;
use super::{DataLoader, Every, OnError};
use crate::graph::{BuildError, Flow, check};
use crate::plan::Plan;
use crate::run::Engine;
use crate::settings::{Order, Settings};
use crate::whole_file::check_regular;
use crate::{Graph, Processes, Rank, Uneven};

/// The builder of a [`DataLoader`].
#[must_use = "call `build`"]
pub struct Builder<T> {
    graph: Graph<T>,
    settings: Settings,
    on_error: OnError,
    autosave: Option<(Arc<Path>, Every)>,
    /// Requests in flight that an earlier run found.
    #[cfg(feature = "tune")]
    requests: Vec<crate::run::Requests>,
    #[cfg(feature = "metrics")]
    metrics: Option<Arc<str>>,
    #[cfg(feature = "monitor")]
    monitor: bool,
    out: PhantomData<fn() -> T>,
}

opaque_debug!(Builder<T> { graph, settings });

impl<T: Send + 'static> Builder<T> {
    pub(super) fn new(graph: Graph<T>) -> Self {
        let (settings, on_error) = (Settings::default(), OnError::default());
        Builder {
            graph,
            settings,
            on_error,
            autosave: None,
            #[cfg(feature = "tune")]
            requests: Vec::new(),
            #[cfg(feature = "metrics")]
            metrics: None,
            #[cfg(feature = "monitor")]
            monitor: false,
            out: PhantomData,
        }
    }

    /// Sets the seed of all randomness. Defaults to 0, so that a run is repeatable unless another
    /// seed is given.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the number of CPU workers. Defaults to one for each core.
    ///
    /// With 0 everything, including I/O, runs on the consumer's thread while the consumer waits,
    /// one request after the other, which is slow and easy to debug. This is also true if that
    /// thread belongs to an async runtime that polls the epoch as a stream. A request that is not
    /// answered at once continues on the async runtime, together with its upstream nodes, until it
    /// has its next item. It therefore holds up no other epoch while the consumer does something
    /// else.
    pub fn workers(mut self, workers: usize) -> Self {
        (self.settings.workers, self.settings.cpu_share) = (workers, None);
        self.settings.found.workers = None;
        self
    }

    /// Sets the number of CPU workers to this share of the cores, at least one: 0.5 leaves half of
    /// them to the training step. As many workers are active as [help](Self::tune), never more.
    /// Replaces [`workers`](Self::workers), and is replaced by it; the last call wins.
    ///
    /// # Errors
    /// [`build`](Self::build) refuses a share that is not above 0 and at most 1.
    pub fn cpu_share(mut self, share: f64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.settings.workers = ((share * cores as f64) as usize).clamp(1, cores);
        self.settings.cpu_share = Some(share);
        self
    }

    /// Sets if the loader tunes itself while its epochs run: with `true` its workers, its processes and
    /// its queue, with `false` none of them, by default its queue alone.
    ///
    /// It looks for the settings with which the consumer gets its batches fastest, its own step
    /// included: the number of active CPU workers, from one to those planned, which leaves cores to a
    /// step that needs them; the number of [processes](Graph::in_processes) of a part that get work, from
    /// one to those given (the others wait); and the smallest number of batches kept
    /// [ready](Self::prefetch), from 1 to 16. It tries one change at a time, for some
    /// windows of a quarter of a second or more, in turn with the settings before. It keeps what is
    /// faster, and what is equally fast with less. Only what can help is tried: more if the consumer
    /// waits, and then fewer workers, since they may hold each other up; less if it does not wait. [`DataLoader::stats`](super::DataLoader::stats) prints what was
    /// tried.
    ///
    /// Items and their order do not change. What was set by [`workers`](Self::workers) or
    /// [`prefetch`](Self::prefetch) stays as it is. The queue grows only while less than 80 % of
    /// [`memory`](Self::memory) is in use. Nothing is tried without workers, while several epochs of
    /// the loader run, and in epochs shorter than some windows. All workers and processes are active
    /// then, and at the start of each epoch. Of several parts none has more active processes than the
    /// number that is tried; workers of other machines are not tuned.
    pub fn tune(mut self, tune: bool) -> Self {
        self.settings.tune = Some(tune);
        self
    }

    /// Sets workers and prefetch as a [`Tuner`](super::tune::Tuner) found them, from the file that
    /// [`Tuning::save`](super::tune::Tuning::save) or [`DataLoader::save_settings`] wrote; feature
    /// `tune`. The first epoch begins with the requests in flight that the run before had found. What
    /// the loader of that run [tuned](Self::tune) by itself is where this one begins, and is tuned
    /// again; it stays as it is where nothing is tuned. Of workers there are never more than this
    /// machine has cores. As for all settings, the
    /// last call wins: [`workers`](Self::workers) and [`prefetch`](Self::prefetch) replace the
    /// values of the file if they are called after it, and are replaced if they are called before.
    /// Items and their order do not change.
    ///
    /// The file holds the nodes of the graph that was tuned: their names, kinds, settings and wiring
    /// must be those of this graph.
    ///
    /// # Errors
    /// With the path: [`NotFound`](crate::ErrorKind::NotFound) or [`Io`](crate::ErrorKind::Io) if
    /// the file cannot be read, [`Corrupt`](crate::ErrorKind::Corrupt) if it is not JSON,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if a newer version of the library wrote it,
    /// [`Config`](crate::ErrorKind::Config) if it is of another graph, with the differences, or if a
    /// value is out of range.
    #[cfg(feature = "tune")]
    pub fn settings_from(mut self, path: impl AsRef<Path>) -> crate::Result<Self> {
        let flow = Flow::new(&self.graph.root());
        let SavedSettings {
            workers,
            prefetch,
            found,
            requests,
        } = super::settings_file::load(path.as_ref(), &flow)?;
        self.requests = requests;
        if let Some(workers) = workers {
            self = self.workers(workers);
        } else if let Some(workers) = found.workers {
            if self.settings.cpu_share.is_none() {
                self = self.cpu_share(1.0);
            }
            self.settings.found.workers = Some(workers);
        }
        if let Some(prefetch) = prefetch {
            self = self.prefetch(prefetch);
        } else if found.prefetch.is_some() {
            (self.settings.prefetch, self.settings.found.prefetch) = (None, found.prefetch);
        }
        Ok(self)
    }

    /// Sets the order in which items arrive. Defaults to [`Order::Strict`], which `Bounded(0)` is as
    /// well.
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = match order {
            Order::Bounded(0) => Order::Strict,
            order => order,
        };
        self
    }

    /// Sets the number of finished items (usually batches) kept ready for the consumer. Defaults to
    /// 4, or to the items made in 4 ms if that is more. The queue fills up gradually: five items
    /// are requested for every four consumed. With 0 each item is made when it is asked for. A
    /// blocking iterator runs the graph on the consumer's thread, without a queue, as long as the
    /// graph never waits and the queue would cost more time than it saves: if the graph makes an
    /// item in some microseconds, or the consumer takes no time for it.
    pub fn prefetch(mut self, items: usize) -> Self {
        self.settings.prefetch = Some(items);
        self.settings.found.prefetch = None;
        self
    }

    setters! {
        /// Sets the number of requests that an I/O segment has in flight, from the first one on, instead of
        /// the number that it finds by itself. In strict order, results that wait for a slow earlier one
        /// count, too. The bytes of results are limited separately; see [`memory`](Builder::memory).
        ///
        /// If none is given, the executor first makes 8 requests. If none completes within 8 ms, the data is
        /// not near, and it makes those that the first output needs: the items of a batch, up to 512. It
        /// doubles their number after 16 ms and after 32 ms. The first answers show how large and how far the
        /// objects are, so that large ones get fewer. Then it measures throughput and round trip, and
        /// has in flight what fills the link and half as much again, up to 2048. Now and then a third of the
        /// number is tried for a moment, to see if it was too large. An epoch begins with the number that the
        /// previous epoch found. Up to 2048 results are held while they wait for a slow earlier one; of files
        /// that become many items, up to four times the number in flight.
        concurrency(morsels: usize) => settings.concurrency = Some(morsels);

        /// Sets the limit, in bytes, of all items together that wait between steps or are being made, in
        /// one epoch: several that are read at once have this limit each. Defaults to 1 GiB.
        ///
        /// Each edge, the way from one segment or queue of the plan to the next, has an equal share. Bytes
        /// are reserved before an item is made, according to the weight of earlier items, so that the
        /// number of items in flight follows their size. If the consumer waits for an item, that item
        /// passes whatever its size. The total is therefore at most the limit plus one item, and the items
        /// of which that one is made. The size of an item is known only once it is made, so the first
        /// large ones may exceed the limit by one item for each worker, as listed below; a limit of one or
        /// two items in [processes](Graph::in_processes) was exceeded by up to four.
        ///
        /// A request that has begun may be suspended for lack of bytes, if items turn out larger than
        /// they were when it began. If the suspended request holds a resource that the first request
        /// waits for (a permit, a connection), nothing moves. After one to two seconds in which the
        /// consumer waits and no item is made or used, one suspended request continues, and one more
        /// each second; each may exceed the limit by an item. If those do not help, work that has not
        /// begun starts in the same way every five seconds. A limit that is too small therefore makes
        /// an epoch slow, but never stops it. While the consumer does something else, the limit is not
        /// exceeded.
        ///
        /// The limit does not cover:
        ///
        /// - the first large items that several workers make at the same moment, one of each: 8 workers
        ///   that begin with items of 100 MB make 800 MB, whatever the limit. An item is large if it
        ///   exceeds an edge's share divided by twice the number of threads (in a part, by five times
        ///   the number of processes). Once one such item is known, as many are made at a time as fit.
        ///   [`largest_item`](Builder::largest_item) makes it known before;
        /// - what an item keeps alive besides its own bytes: a slice of a larger buffer, such as a member of
        ///   an uncompressed archive, keeps all of the buffer. If few members of each archive are kept for
        ///   long, as by a `filter` before a `shuffle`, copy those;
        /// - one item where a reader that waits for it is dropped, such as an output of a fork;
        /// - items that several workers make at the same moment, if they are more than a thousand times
        ///   as large as all earlier items;
        /// - the working memory of a step besides its items;
        /// - items whose weight is [unknown](crate::Weigh), which `explain` names;
        /// - up to 32 MiB of shared memory that each process of a part uses again;
        /// - items that pipes hold themselves (a shuffle buffer, a batch that is being filled, the parts of
        ///   a file that is read as it arrives), counted in items or bytes;
        /// - batches that [`prefetch_to_device`](super::DataLoader::prefetch_to_device) has uploaded.
        ///
        /// [`DataLoader::explain`] prints the limit and the buffers of pipes. Without workers nothing
        /// waits on any edge.
        memory(bytes: usize) => settings.memory = Some(bytes);

        /// States how many bytes the largest item of any step has, as it is
        /// [weighed](crate::Graph::weighed). [`memory`](Builder::memory) then holds from the first item
        /// on, also where several workers make large items at the same moment: no step begins an item
        /// without that many bytes for it, and for each item that it is made of. By default the weight of
        /// an item is learned from those before.
        ///
        /// The number of items in flight is that of the largest items that fit, also where most items are
        /// smaller. State it where sizes differ little, or where memory matters more than speed. An item
        /// that is larger than stated counts as it does without this setting.
        ///
        /// # Errors
        /// [`build`](Builder::build) refuses a largest item of more than the limit of bytes.
        ///
        /// # Examples
        /// ```
        /// use datapipes::{DataLoader, Graph};
        /// let frames = Graph::range(0..9).map(|n| vec![n as u8; 1 << 20]);
        /// let loader = DataLoader::builder(frames).memory(8 << 20).largest_item(2 << 20).build()?;
        /// assert_eq!(loader.epoch(0).blocking().count(), 9);
        /// # Ok::<(), datapipes::BoxError>(())
        /// ```
        largest_item(bytes: usize) => settings.largest_item = Some(bytes);
    }

    /// Declares that the graph is collected, and trains nothing.
    pub(super) fn collected(mut self) -> Self {
        self.settings.is_collected = true;
        self
    }

    /// Limits the size after decompression, in bytes, of a compressed file, a member of a zip
    /// archive, an array of an `.npz` archive (all arrays, where they are one item), a row group of a
    /// Parquet file and a record batch of an Arrow file or stream. The limits that a step or format
    /// has by itself hold, too. Data sets by index have only their own (`max_expansion`, `max_shard`).
    /// A decompressed item is in memory as a whole: on a machine with little memory, set the largest
    /// size that an item may have.
    ///
    /// # Errors
    /// A larger file, member or row group is an error of kind [`Limit`](crate::ErrorKind::Limit) in
    /// place of its item. It is found once that size is reached, or at once if the size is stated.
    pub fn max_inflated(mut self, bytes: u64) -> Self {
        self.settings.max_inflated = Some(bytes);
        self
    }

    /// Sets the rank of this process, and so its part of the data: rank `index` of `world`. The
    /// graph must have a [`sharding_filter`](Graph::sharding_filter) on each path from a source.
    pub fn rank(mut self, index: usize, world: usize) -> Self {
        self.settings.rank = Rank { index, world };
        self
    }

    /// Sets the rank that this process's launcher gave it by environment variables; see
    /// [`Rank::from_env`]. Nothing else in the library reads these variables.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), as [`Rank::from_env`] returns it.
    pub fn rank_from_env(mut self) -> crate::Result<Self> {
        self.settings.rank = Rank::from_env()?;
        Ok(self)
    }

    setters! {
        /// Sets the processes of pipes that [want processes of their
        /// own](field@crate::Hints::is_separate_process). Defaults to as many as there are workers, with
        /// nothing forbidden. Parts made by [`in_processes`](Graph::in_processes) have settings of
        /// their own.
        processes(processes: impl Into<Processes>) => settings.processes = Some(processes.into());

        /// Sets the policy for items that do not divide evenly among the ranks. Required if there is
        /// more than one rank. The policy covers the items dealt to the ranks, not the outputs that
        /// steps downstream [make of them](Builder::ranks_agree).
        uneven(uneven: Uneven) => settings.uneven = Some(uneven);

        /// Declares that the ranks agree before each step whether there is another step, by
        /// [`agreed`](crate::Blocking::agreed) on each epoch or in a way of their own. The declaration
        /// does not change the items.
        ///
        /// Several ranks are promised equally many items, unless [`Uneven::Allow`] is set. A rank with
        /// a batch less would leave the others in an all-reduce that never ends. Without this
        /// declaration, `build` therefore refuses a graph in which the promise does not hold to the
        /// end:
        ///
        /// - a step downstream of the sharding filter has a number of outputs that depends on the data
        ///   (a filter, the members of an archive);
        /// - items that fail are [skipped](OnError::skip).
        ///
        /// The alternatives are a number of steps that every rank has
        /// ([`max_steps`](Builder::max_steps); a rank that ends earlier ends with an error that says
        /// so), and [`Uneven::Allow`], for ranks that need not go in step.
        ///
        /// ```
        /// use datapipes::{DataLoader, Graph, Uneven};
        ///
        /// let graph = Graph::range(0..100).sharding_filter().filter(|n| n % 7 != 0).batch(8);
        /// let builder = || DataLoader::builder(graph.clone()).rank(0, 2).uneven(Uneven::Drop);
        /// let problem = builder().build().unwrap_err().to_string();
        /// assert!(problem.contains("filter: how many items come out depends on what is in the data"));
        ///
        /// let loader = builder().ranks_agree().build()?;
        /// let all_have = |mine: bool| Ok(mine); // an all-reduce of the minimum
        /// for batch in loader.epoch(0).blocking().agreed(all_have) {
        ///     assert!(batch?.len() <= 8);
        /// }
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ranks_agree() => settings.ranks_agree = true;

        /// Declares that [checkpoints](crate::Epoch::checkpoint) of an epoch will be taken, so that it
        /// can be [resumed](DataLoader::resume) in another process. Nodes then keep a log of their
        /// progress, which costs next to nothing (some thousand numbers, and less than a per cent of
        /// the time of items that cost 100 ns). `build` fails if a node cannot be resumed, and names
        /// it.
        ///
        /// In [bounded and arrival order](Order) a checkpoint costs more, since it has to record which
        /// items were delivered. In a resumable loader, segments that are not one-in-one-out (a filter,
        /// an archive and its members) keep strict order. Everything upstream of a pipe that is neither
        /// shuffle, batch nor prefetch, nor one-in-one-out, keeps strict order too. In strict order one
        /// slow item holds up more items than it otherwise would.
        resumable() => settings.resumable = true;
    }

    /// Saves a checkpoint of each running epoch to a file, for a loop that may be stopped at any
    /// moment. It is saved after a number of items (`autosave(path, 100)`) or a period of time
    /// (`autosave(path, Duration::from_secs(30))`), and at the end of the epoch, unless the epoch
    /// is dropped. Makes the loader [resumable](Builder::resumable).
    /// [`resume_or_start`](DataLoader::resume_or_start) resumes from the file.
    ///
    /// - A checkpoint is taken when the *next* item is asked for, so that it counts only items that
    ///   the loop has finished with. An item that is interrupted by a drop may have been half
    ///   processed: it is not counted as delivered, and is delivered again.
    /// - The file is whole at any moment, and holds the previous checkpoint or the new one
    ///   ([`Checkpoint::save`](super::Checkpoint::save)).
    /// - The step waits for the checkpoint only (some microseconds), not for the disk: a thread of
    ///   the loader writes it. A checkpoint that is taken while another is being written waits, and
    ///   is replaced if a newer one is taken meanwhile. The drop of the last handle (loader, clones
    ///   and epochs) waits for the last checkpoint, up to 2 s;
    ///   [`flush_autosave`](DataLoader::flush_autosave) waits as long as it takes.
    /// - All epochs of the loader and its clones write to the same file. Give each rank its own
    ///   file, and a loader for validation none.
    ///
    /// Autosave also covers whatever wraps the loader: batches on a
    /// [device](DataLoader::prefetch_to_device), ranks that [agree](crate::Blocking::agreed), the
    /// adapters to frameworks. If weights have to belong to exactly the saved step, let the
    /// training loop save both: first the weights, to a file named after the checkpoint (its
    /// [`epoch`](super::Checkpoint::epoch) and [`delivered`](super::Checkpoint::delivered)), then
    /// the [checkpoint](super::Checkpoint::save), which then identifies its weights.
    ///
    /// # Errors
    /// A checkpoint that cannot be made or written is an error of the epoch, once, in the place of
    /// the next item. The error does not end the epoch: the next call returns that item, and the
    /// next checkpoint is tried again. The log receives the error at once.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph, Checkpoint};
    /// # let folder = std::env::temp_dir().join(format!("datapipes-autosave-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    ///
    /// let path = folder.join("train.checkpoint");
    /// let loader = || {
    ///     let graph = Graph::range(0..100).shuffle(100).batch(8);
    ///     DataLoader::builder(graph).seed(7).autosave(&path, 5).build()
    /// };
    /// let first = loader()?;
    /// let mut seen: Vec<Vec<u64>> = first.resume_or_start(&path)?.blocking().take(7).collect::<Result<_, _>>()?;
    /// drop(first); // stopped after 7 batches: the file has the checkpoint after 5
    /// assert_eq!(Checkpoint::load(&path)?.delivered(), 5);
    ///
    /// seen.truncate(5);
    /// let again = loader()?;
    /// for batch in again.resume_or_start(&path)?.blocking() {
    ///     seen.push(batch?);
    /// }
    /// assert_eq!(seen, again.epoch(0).blocking().collect::<Result<Vec<_>, _>>()?);
    /// # drop(again);
    /// // It came to its end, so the next epoch is the next.
    /// assert_eq!(loader()?.resume_or_start(&path)?.number(), 1);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn autosave(mut self, path: impl AsRef<Path>, every: impl Into<Every>) -> Self {
        self.settings.resumable = true;
        self.autosave = Some((path.as_ref().into(), every.into()));
        self
    }

    /// Removes the path of autosave, so that a trial does not replace the checkpoint of a training.
    #[cfg(feature = "tune")]
    pub(super) fn without_autosave(mut self) -> Self {
        self.autosave = None;
        self
    }

    setters! {
        /// Ends an epoch after this many items (usually batches), even if there are more. This budget
        /// divides an endless stream ([`cycle`](Graph::cycle), a mix that cycles) into epochs. Items
        /// that fail and are skipped do not count.
        ///
        /// Epoch `n` remains a function of `n` alone: it begins anew, with other random numbers, and
        /// does not continue where epoch `n - 1` stopped. A training run over one endless stream is one
        /// epoch: either without a budget, with a [`checkpoint`](crate::Epoch::checkpoint) after every
        /// given number of steps and [`resume`](DataLoader::resume); or with the budget of the next
        /// stretch. A checkpoint at the budget [is finished](super::Checkpoint::is_finished) for this
        /// loader and for any loader whose budget is no larger; a loader with a larger budget, or
        /// without a budget, resumes from there.
        ///
        /// With several ranks that are not known to have equally many steps, a rank that ends before
        /// its budget ends with an error that says so, unless the ranks
        /// [agree](crate::Blocking::agreed).
        ///
        /// ```
        /// use datapipes::{DataLoader, Graph};
        ///
        /// let graph = || Graph::range(0..10).shuffle(10).cycle().batch(4);
        /// let loader = |steps| DataLoader::builder(graph()).max_steps(steps).resumable().build();
        /// assert_eq!(loader(5)?.len_hint(), Some(5));
        ///
        /// let mut first = loader(5)?.epoch(0).blocking();
        /// assert_eq!(first.by_ref().count(), 5);
        /// let checkpoint = first.checkpoint()?;
        /// assert!(checkpoint.is_finished());
        ///
        /// // Seven steps more of the same stream.
        /// assert_eq!(loader(12)?.resume(&checkpoint)?.blocking().count(), 7);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        max_steps(steps: u64) => settings.max_steps = Some(steps);

        /// Sets the policy for items that fail. By default the first error reaches the consumer and
        /// ends the epoch.
        on_error(on_error: OnError) => on_error = on_error;
    }

    /// Publishes the loader's figures through the facade `metrics`, for Prometheus and any other
    /// exporter that the program installs; feature `metrics`. The label `loader` of all figures is
    /// `name`: give each loader of a program its own.
    ///
    /// A thread of the loader reads the figures once a second, when an epoch begins, and when the
    /// loader is dropped, so an epoch is not slowed down. The program may install its recorder before
    /// or after; a recorder does not get figures from before its installation. The guide's page on
    /// performance lists the names. Each node has some ten figures, each segment some twelve.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// // An exporter is installed as it says; `metrics_exporter_prometheus::PrometheusBuilder` is one.
    /// let loader = DataLoader::builder(Graph::range(0..9)).metrics("train").build()?;
    /// # Ok::<(), datapipes::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// [`build`](Self::build) fails if the system starts no thread.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, name: impl Into<Arc<str>>) -> Self {
        self.metrics = Some(name.into());
        self
    }

    /// Shows the loader's figures to other processes of the same user: `datapipes top` prints them
    /// live. The environment variable `DATAPIPES_MONITOR=1` does the same for every loader of a
    /// process. Off by default; feature `monitor`.
    ///
    /// [`build`](Self::build) opens a Unix domain socket, named after the process and the loader, in
    /// `$XDG_RUNTIME_DIR/datapipes/`, or `datapipes-UID/` in the folder for temporary files, which
    /// only this user may enter. A thread of the loader answers on it, and sleeps while nobody asks.
    /// The socket goes with the loader and its last epoch. [`monitor`](super::monitor) describes the
    /// protocol, and has a client.
    ///
    /// Order and content of the data do not change, and no client holds up an epoch. A client that
    /// asks all the time gets 20 answers a second, and one that does not read is dropped. Eight
    /// clients are served at once. An answer for all takes some tens of microseconds for each node.
    /// Child processes of a loader have no socket.
    ///
    /// # Errors
    /// `build` fails if the folder can be used by others, the socket cannot be opened, or the system
    /// has no Unix domain sockets. If only the variable asks for it, there is a warning instead.
    #[cfg(feature = "monitor")]
    pub fn monitor(mut self) -> Self {
        self.monitor = true;
        self
    }

    /// Checks the graph and plans it. Nothing is read or started, but for the threads that
    /// `monitor` and `metrics` ask for.
    ///
    /// # Errors
    /// All problems of the graph and the settings that can be found without reading data, together,
    /// each with the name of its node.
    pub fn build(mut self) -> Result<DataLoader<T>, BuildError> {
        let settings = &mut self.settings;
        if let Some(workers) = settings.found.workers
            && settings.tune != Some(true)
        {
            settings.workers = workers.min(settings.workers);
        }
        let flow = Flow::new(&self.graph.root());
        check::check(&flow, &self.settings, self.on_error.most())?;
        if let Some((path, _)) = &self.autosave {
            let folder = path.parent().filter(|at| !at.as_os_str().is_empty());
            let problem = match folder.filter(|folder| !folder.is_dir()) {
                Some(at) => Some(format!(
                    "there is no folder {}; make it first",
                    at.display()
                )),
                None => check_regular(path).err().map(|error| error.to_string()),
            };
            if let Some(problem) = problem {
                return Err(BuildError::of(format!(
                    "autosave to {}: {problem}",
                    path.display()
                )));
            }
        }
        let plan = Plan::new(&flow, &self.settings);
        #[cfg(target_os = "linux")]
        if let Some(segment) = plan
            .segments
            .iter()
            .find(|segment| segment.processes.is_some())
            && !crate::run::child::is_ready()
        {
            let name = &flow.nodes[segment.nodes[0]].name;
            if crate::run::child::is_child() {
                return Err(BuildError::of(format!(
                    "{name}: runs in processes of its own, and this process is a child itself, which has none; with \
                     `workers(0)` it runs in this one"
                )));
            }
            return Err(BuildError::of(format!(
                "{name}: runs in processes of its own, which are this program started again; for them \
                 `datapipes::worker::init()` has to be the first line of `main` (in tests, whose `main` is not one's own, \
                 `datapipes::before_main!()` stands outside of functions)"
            )));
        }
        let engine = Engine::new(flow, plan, self.settings);
        #[cfg(feature = "tune")]
        engine.begin_with(&self.requests);
        let engine = Arc::new(engine);
        let tuner = OnlineTuner::of(&engine);
        let latest = Arc::<Latest>::default();
        #[cfg(feature = "metrics")]
        if let Some(name) = self.metrics {
            metrics::start(name, &engine, &latest)
                .map_err(|error| BuildError::of(error.to_string()))?;
        }
        #[cfg(feature = "monitor")]
        monitor::start(self.monitor, &engine, &latest)
            .map_err(|error| BuildError::of(error.to_string()))?;
        Ok(DataLoader {
            engine,
            tuner: tuner.map(|tuner| Arc::new(Mutex::new(tuner))),
            latest,
            on_error: self.on_error,
            saver: self
                .autosave
                .map(|(path, every)| Arc::new(Saver::new(path, every))),
            open: Arc::new(EpochSource::open),
            device_depth: 1,
        })
    }
}
