//! Packing that is decided by the lengths of documents alone.

#[cfg(test)]
mod tests;
mod token_batches;

pub use self::token_batches::{PlannedBatch, TokenBatches};

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use datapipes::index::Permutation;
use datapipes::{Context, Error, Graph, Hints, Item, Items, Result, Rng, Source, opaque_debug};

use crate::pack::Row;
use crate::{Overflow, Packed, RowLayout, TokenStore, Tokens};

/// Packs the documents of a [`TokenStore`] into rows before any of them is read: a plan is made of
/// their lengths, which are in the index.
///
/// - Documents come in a random order of seed and epoch. A [window](PackPlan::window) of them is
///   packed by best-fit decreasing. Each document comes once; one that is longer than a row is cut,
///   unless an [overflow](PackPlan::overflow) is set.
/// - The rows of a window that cost about the same are in one [step](PackPlan::step), and the steps
///   come in a random order. Ranks share the rows of a step, so each has as much to do as the
///   others, and none waits. Rows of equal cost are dealt at random, so that those of one long
///   document are in many steps.
/// - The plan depends on seed and epoch alone. Each rank makes all of it, some hundred nanoseconds
///   for a document, and reads its own rows. The steps of all ranks together are therefore the same
///   for any number of ranks that divides the rows of a step, also if another number of ranks
///   resumes an epoch.
/// - Memory is that of a [window](PackPlan::window), whatever the number of documents. A checkpoint
///   has three numbers.
///
/// # Examples
/// ```
/// use datapipes::{DataLoader, Uneven};
/// use datapipes_text::{PackPlan, TokenStore, TokenWidth, TokenWriter};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("corpus");
/// # let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
/// # for document in 0..1000u32 {
/// #     writer.push(&vec![document; 1 + document as usize * 7919 % 150])?;
/// # }
/// # writer.finish()?;
/// let plan = PackPlan::new(TokenStore::megatron(&path)?, 128)
///     .step(16)                                        // rows of all ranks
///     .balance(|length| 1000 * length + length * length); // as a transformer's step costs
/// let report = plan.report(4)?;
/// assert!(report.padding < 0.03 && report.waiting < 0.05, "{report}");
///
/// let (rank, world) = (0, 4);
/// let rows = plan.graph()
///     .sharding_filter()
///     .try_map(|row| row.read())                       // on the CPU workers, this rank's rows alone
///     .batch(16 / world)
///     .collate();
/// let loader = DataLoader::builder(rows).rank(rank, world).uneven(Uneven::Drop).resumable().build()?;
/// assert_eq!(loader.epoch(0).blocking().count() as u64, report.steps);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct PackPlan {
    store: TokenStore,
    layout: Arc<RowLayout>,
    overflow: Overflow,
    step: usize,
    window: Option<u64>,
    cost: Arc<dyn Fn(u64) -> u64 + Send + Sync>,
}

/// Documents of a window, and rows that they may fill, unless set.
const WINDOW: u64 = 1 << 16;
/// About how many bytes a plan takes for each document of a window, and for each row.
const DOCUMENT_BYTES: u64 = 60;
const ROW_BYTES: u64 = 200;

impl PackPlan {
    /// Plans rows of `length` tokens. It may be a [`RowLayout`], which has the length and what else
    /// decides about rows.
    pub fn new(store: TokenStore, length: impl Into<RowLayout>) -> Self {
        PackPlan {
            store,
            layout: Arc::new(length.into()),
            overflow: Overflow::Split,
            step: 64,
            window: None,
            cost: Arc::new(|length| length),
        }
    }

    datapipes::setters! {
        /// Sets what happens to a document that is longer than a row; `Split` unless set. The error of
        /// [`Overflow::Error`] is that of reading its row. Each rank counts all documents that
        /// [`Overflow::Drop`] leaves out, since it makes all of the plan.
        overflow(overflow: Overflow) => overflow = overflow;

        /// Sets the number of rows in a step of all ranks together. Defaults to 64. The rows of a
        /// window are a multiple of it: what is missing is made by dividing rows, so a window should
        /// have many steps.
        step(rows: usize) => step = rows;

        /// Sets the maximum number of documents that are packed together; all windows have about as
        /// many. Defaults to 65,536, or to as many as fill 65,536 rows where documents are longer than a
        /// row in the mean. More of them have less padding. Memory is about 60 bytes for each document of
        /// a window, and 200 for each row.
        window(documents: u64) => window = Some(documents);

        /// Sets the cost of a piece of a document, by its length. Defaults to the length itself. For
        /// attention within documents, `a * length + b * length * length`.
        ///
        /// A checkpoint has the costs of 1 token and of a quarter, a half and all of a row: an epoch is not
        /// resumed with a function that gives others, since the rows would be in other steps.
        balance(cost: impl Fn(u64) -> u64 + Send + Sync + 'static) => cost = Arc::new(cost);
    }

    /// Returns the rows of all ranks, in order, as a source of a graph.
    ///
    /// # Errors
    /// An error of the store's index ends the epoch's rows, with file and byte. `Corrupt` for an
    /// index that names tokens many times, so that the documents of a window have more tokens than
    /// the store.
    pub fn graph(&self) -> Graph<PlannedRow> {
        Graph::source(self.clone())
    }

    /// Makes the plan of one order of the documents, and returns its figures if `world` ranks deal
    /// the rows of each step among them. Other orders differ little.
    ///
    /// A plan of a loader (`explain`) does not have them: they need all lengths of the index, and the
    /// settings that it prints are those that a checkpoint compares.
    ///
    /// # Errors
    /// Errors of the store's index; `Config` if the settings are wrong, or `world` does not divide
    /// the rows of a step.
    pub fn report(&self, world: usize) -> Result<PackReport> {
        let problem = self
            .problem()
            .or((world == 0 || !self.step.is_multiple_of(world))
                .then_some("a number of ranks that does not divide the rows of a step"));
        if let Some(problem) = problem {
            return Err(Error::config(problem));
        }
        let mut report = PackReport {
            rows: 0,
            steps: 0,
            tokens: 0,
            padding: 0.0,
            waiting: 0.0,
            worst_rank: 1.0,
        };
        let (mut means, mut mosts) = (0.0, 0.0);
        let order = Permutation::new(self.store.document_count(), 0);
        for window in 0..self.windows() {
            let (rows, _) = self.rows(window, &order, &mut Rng::from_key([window, 0, 0, 0]))?;
            report.rows += rows.len() as u64;
            for step in rows.chunks(self.step) {
                report.steps += 1;
                let mut ranks = vec![0u64; world];
                for (at, row) in step.iter().enumerate() {
                    ranks[at % world] += row.cost;
                    report.tokens += row.tokens();
                }
                let mean = ranks.iter().sum::<u64>() as f64 / world as f64;
                let most = ranks.into_iter().max().unwrap_or(0) as f64;
                (means, mosts) = (means + mean, mosts + most);
                report.worst_rank = report.worst_rank.max(most / mean.max(1.0));
            }
        }
        let room = (report.rows * self.layout.length as u64).max(1);
        report.padding = 1.0 - report.tokens as f64 / room as f64;
        report.waiting = 1.0 - means / f64::max(mosts, 1.0);
        Ok(report)
    }

    /// Describes all that decides about the rows: of the store what it has and not where it is, and of
    /// the cost some values.
    fn settings(&self) -> String {
        let length = self.layout.length as u64;
        let costs = [1, length / 4, length / 2, length].map(|length| (self.cost)(length.max(1)));
        let overflow = match self.overflow {
            Overflow::Split => String::new(),
            other => format!(", overflow {other:?}"),
        };
        format!(
            "{length} of {}, step {}, window {}, costs {costs:?}{}{overflow}",
            self.store.contents(),
            self.step,
            self.window_documents(),
            self.layout.settings()
        )
    }

    fn problem(&self) -> Option<&'static str> {
        let none = self.step == 0 || self.window == Some(0);
        self.layout
            .problem()
            .or(none.then_some("steps of no rows, or windows of no documents"))
    }

    /// Returns the number of documents that a window has at most.
    fn window_documents(&self) -> u64 {
        self.window.unwrap_or_else(|| {
            let fill = self.documents_of(u128::from(WINDOW));
            fill.clamp(1, WINDOW)
        })
    }

    /// Returns the number of documents that have as many tokens as some rows, in the mean.
    fn documents_of(&self, rows: u128) -> u64 {
        let tokens = u128::from(self.store.len()).max(1);
        let documents = rows * self.layout.length as u128 * u128::from(self.store.document_count());
        u64::try_from(documents / tokens).unwrap_or(u64::MAX)
    }

    /// Returns about how many bytes a window takes.
    fn window_bytes(&self) -> u64 {
        let count = self.store.document_count();
        let documents = self.window_documents().min(count);
        let tokens =
            u128::from(documents) * u128::from(self.store.len()) / u128::from(count.max(1));
        let rows = tokens / self.layout.length.max(1) as u128;
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        let of_rows = rows.saturating_mul(ROW_BYTES);
        documents
            .saturating_mul(DOCUMENT_BYTES)
            .saturating_add(of_rows)
    }

    fn windows(&self) -> u64 {
        self.store
            .document_count()
            .div_ceil(self.window_documents())
    }

    /// Returns the rows of a window, in their order, and the number of documents that are left out.
    fn rows(
        &self,
        window: u64,
        order: &Permutation,
        rng: &mut Rng,
    ) -> Result<(Vec<PlannedRow>, u64)> {
        let places = places(window, self.windows(), order.len());
        let mut rows: Vec<Vec<Piece>> = Vec::new();
        let mut rest: Vec<Piece> = Vec::new();
        let length = self.layout.length as u64;
        let (mut dropped, mut all) = (0, 0u64);
        for document in places.map(|place| order.get(place)) {
            let tokens = self.store.document_len(document)?;
            all = all.saturating_add(tokens);
            if all > self.store.len() {
                return Err(self.store.overlap());
            }
            let full = tokens / length;
            let piece = |start, len| Piece {
                document,
                start,
                len: len as u32,
            };
            match self.overflow {
                Overflow::Drop if tokens > length => {
                    dropped += 1;
                    continue;
                }
                // Its row is the error, or its beginning.
                Overflow::Error | Overflow::Truncate if tokens > length => {
                    rows.push(vec![piece(0, length)]);
                    continue;
                }
                _ => rows.extend((0..full).map(|row| vec![piece(row * length, length)])),
            }
            if tokens % length > 0 {
                rest.push(piece(full * length, tokens % length));
            }
        }
        rest.sort_by_key(|piece| std::cmp::Reverse(piece.len));
        // Rows by the room that is left in them.
        let mut open: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for piece in rest {
            let (row, room) = match open.range_mut(piece.len..).next() {
                Some((&room, with_room)) => {
                    let row = with_room.pop().expect("a room without rows is removed");
                    if with_room.is_empty() {
                        open.remove(&room);
                    }
                    (row, room)
                }
                None => {
                    rows.push(Vec::new());
                    (rows.len() - 1, self.layout.length as u32)
                }
            };
            rows[row].push(piece);
            // The next piece begins at a multiple, and a row ends at one.
            let room = room - piece.len.next_multiple_of(self.layout.align as u32);
            if room > 0 && rows[row].len() < self.layout.most_documents {
                open.entry(room).or_default().push(row);
            }
        }
        self.divide(&mut rows);
        // Those of a long document follow each other, and cost the same.
        rng.shuffle(&mut rows);
        let planned = |pieces: Vec<Piece>| PlannedRow {
            store: self.store.clone(),
            layout: self.layout.clone(),
            overflow: self.overflow,
            cost: pieces
                .iter()
                .map(|piece| (self.cost)(piece.len.into()))
                .sum(),
            pieces,
        };
        let rows = rows.into_iter().map(planned).collect();
        Ok((deal(rows, self.step, |row| row.cost, rng), dropped))
    }

    /// Divides rows of several pieces until there is a multiple of the rows of a step.
    fn divide(&self, rows: &mut Vec<Vec<Piece>>) {
        let wanted = rows.len().next_multiple_of(self.step);
        let mut at = 0;
        while rows.len() < wanted {
            match rows.get_mut(at) {
                Some(row) if row.len() > 1 => {
                    let half = row.split_off(row.len() / 2);
                    rows.push(half);
                }
                Some(_) => {}
                // Nothing can be divided: rows of padding.
                None => rows.push(Vec::new()),
            }
            at += 1;
        }
    }
}

impl Source for PackPlan {
    type Out = PlannedRow;

    fn open(&self, cx: &Context) -> Items<PlannedRow> {
        let this = self.clone();
        let count = self.store.document_count();
        open_windows(cx, count, self.windows(), move |window, order, rng| {
            this.rows(window, order, rng)
        })
    }
    fn hints(&self) -> Hints {
        Hints::any_order()
            .is_resumable(true)
            .buffered_bytes(usize::try_from(self.window_bytes()).unwrap_or(usize::MAX))
            .settings(self.settings())
            .problem(self.problem())
    }
}

/// Returns the places of a window among the documents: windows have about the same size, so that the
/// last one has whole steps, too.
fn places(window: u64, windows: u64, documents: u64) -> Range<u64> {
    let begin =
        |window: u64| (u128::from(window) * u128::from(documents) / u128::from(windows)) as u64;
    begin(window)..begin(window + 1)
}

/// Orders the rows of a window: those that cost about the same are in one step, and steps come in a
/// random order.
fn deal<R>(mut rows: Vec<R>, step: usize, cost: impl Fn(&R) -> u64, rng: &mut Rng) -> Vec<R> {
    rows.sort_by_key(cost);
    let mut steps: Vec<Vec<R>> = Vec::new();
    while !rows.is_empty() {
        steps.push(rows.split_off(rows.len().saturating_sub(step)));
    }
    rng.shuffle(&mut steps);
    // Neighbours by cost go to different ranks, and no rank has the most in all steps.
    for rows in &mut steps {
        let offset = rng.below(step as u64) as usize % rows.len();
        rows.rotate_left(offset);
    }
    steps.into_iter().flatten().collect()
}

/// Gives the rows of all windows of so many documents. Can be resumed at any row: the window is
/// planned again.
fn open_windows<R: Send + 'static>(
    cx: &Context,
    documents: u64,
    windows: u64,
    rows: impl Fn(u64, &Permutation, &mut Rng) -> Result<(Vec<R>, u64)> + Send + Sync + 'static,
) -> Items<R> {
    // The number of the window, of its rows that were given, and of all rows before it.
    let (mut window, mut given, mut before): (u64, u64, u64) =
        datapipes::or_fail!(cx.restored()).unwrap_or_default();
    let cx = cx.clone();
    Items::generate(async move |out| {
        let order = Permutation::new(documents, cx.node_rng().next_u64());
        while window < windows && !cx.is_cancelled() {
            // Each window has random numbers of its own, so that the plan can begin at any.
            let mut rng = cx.rng(&cx.origin(window));
            let (rows, dropped) = match rows(window, &order, &mut rng) {
                Ok(rows) => rows,
                // All rows of this window and the later ones are lost.
                Err(error) => return out.emit(Err(error.at(cx.node()).fatal())).await,
            };
            let count = rows.len() as u64;
            if given == 0 {
                cx.count_dropped(dropped);
            }
            for row in rows.into_iter().skip(given as usize) {
                out.snapshot(&cx, || (window, given, before));
                out.emit(Ok(Item::new(row, cx.origin(before + given))))
                    .await;
                given += 1;
            }
            (window, given, before) = (window + 1, 0, before + count);
        }
        out.snapshot(&cx, || (window, given, before));
    })
}

datapipes::opaque_debug!(PackPlan { store, layout, step, window = self.window_documents() });

/// Some tokens of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    document: u64,
    start: u64,
    len: u32,
}

/// A row of a [`PackPlan`]: names of documents, until it is read.
#[derive(Clone)]
pub struct PlannedRow {
    store: TokenStore,
    layout: Arc<RowLayout>,
    overflow: Overflow,
    cost: u64,
    pieces: Vec<Piece>,
}

impl PlannedRow {
    /// Returns the sum of the costs of its pieces; see [`PackPlan::balance`].
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the number of tokens that are no padding.
    pub fn tokens(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.len)).sum()
    }

    /// Reads the documents of the row, with all fields as [`Pack`](crate::Pack) makes them; labels are
    /// −100 where the store's [mask](TokenStore::loss) says that a token is not trained.
    ///
    /// # Errors
    /// `Limit` for a document that is longer than a row, with [`Overflow::Error`]; errors of
    /// [`TokenStore::document`].
    pub fn read(&self) -> Result<Packed> {
        let layout = &*self.layout;
        let mut row = Row::new(layout);
        for piece in &self.pieces {
            let len = piece.len as usize;
            // One more, as the label of the last.
            let part = self.store.part(piece.document, piece.start, len + 1)?;
            let Tokens { ids, labels, .. } = part;
            if ids.len() < len {
                let message = format!("document {} is shorter than planned", piece.document);
                return Err(Error::changed(message));
            }
            if self.overflow == Overflow::Error && ids.len() > len {
                let tokens = self.store.document_len(piece.document)?;
                let message = format!(
                    "document {} has {tokens} tokens, for rows of {len}; `PackPlan::overflow` can cut it or leave it out",
                    piece.document
                );
                return Err(Error::limit(message));
            }
            row.push(layout, &ids, labels.as_deref(), 0..len);
        }
        Ok(row.finish(layout))
    }
}

impl PartialEq for PlannedRow {
    fn eq(&self, other: &Self) -> bool {
        self.pieces == other.pieces
    }
}

opaque_debug!(PlannedRow { pieces, cost });

/// Figures of a [`PackPlan`].
#[derive(Clone, Debug, PartialEq)]
pub struct PackReport {
    /// Rows in an epoch, of all ranks.
    pub rows: u64,
    /// Steps in an epoch.
    pub steps: u64,
    /// Tokens in an epoch.
    pub tokens: u64,
    /// Share of the rows that is padding, 0 to 1.
    pub padding: f64,
    /// Share of the ranks' time in which they wait for the one with the most to do, 0 to 1.
    pub waiting: f64,
    /// Cost of the rank with the most to do in a step, over the mean of the ranks; the largest of
    /// all steps, 1 at best.
    pub worst_rank: f64,
}

impl fmt::Display for PackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PackReport {
            rows,
            steps,
            tokens,
            padding,
            waiting,
            worst_rank,
        } = self;
        write!(
            f,
            "{tokens} tokens in {rows} rows and {steps} steps: {:.2} % padding, ranks wait for {:.2} % of the time, the \
             worst at {worst_rank:.3} of the mean",
            100.0 * padding,
            100.0 * waiting
        )
    }
}
