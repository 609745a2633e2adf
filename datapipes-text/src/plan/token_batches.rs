//! Batches of a number of tokens, decided by the lengths of documents alone.

use datapipes::index::Permutation;
use datapipes::{Context, Error, Graph, Hints, Items, Result, Rng, Source};

use super::{deal, open_windows, places};
use crate::{TokenStore, Tokens};

/// Groups the documents of a [`TokenStore`] into batches of a number of tokens before any of them is
/// read; made by [`TokenStore::token_batches`].
///
/// - Documents come in a random order of seed and epoch. A [window](TokenBatches::window) of them is
///   sorted by length and cut into batches whose longest document times their number is at most the
///   budget. Each document comes once, whole.
/// - The batches of a window are a multiple of those of a [step](TokenBatches::step): what is missing
///   is made by dividing batches. Batches that cost about the same are in one step, and steps come in
///   a random order.
/// - The plan depends on seed and epoch alone. Ranks share the batches of a step, so all have the
///   same number of steps, and the steps of all ranks together are the same for any number of ranks
///   that divides the batches of a step, also if another number of ranks resumes an epoch.
/// - Memory is that of a window, whatever the number of documents. A checkpoint has three numbers.
///
/// For documents that are in no store use [`token_batch`](crate::TokenBatchGraphExt::token_batch),
/// with which each rank plans for itself.
///
/// # Examples
/// ```
/// use datapipes::{DataLoader, Uneven};
/// use datapipes_text::{TokenStore, TokenWidth, TokenWriter};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("corpus");
/// # let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
/// # for document in 0..1000u32 {
/// #     writer.push(&vec![document; 1 + document as usize * 7919 % 150])?;
/// # }
/// # writer.finish()?;
/// let batches = TokenStore::megatron(&path)?.token_batches(1024).step(4);
/// let (rank, world) = (0, 4);
/// let graph = batches.graph()
///     .sharding_filter()
///     .try_map(|batch| batch.read());                  // on the CPU workers, this rank's batches alone
/// let loader = DataLoader::builder(graph).rank(rank, world).uneven(Uneven::Error).resumable().build()?;
/// for documents in loader.epoch(0) {
///     let documents = documents?;
///     let longest = documents.iter().map(Vec::len).max().unwrap_or(0);
///     assert!(longest * documents.len() <= 1024);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TokenBatches {
    store: TokenStore,
    budget: u64,
    step: usize,
    window: u64,
    max_documents: usize,
}

impl TokenStore {
    /// Groups all documents into batches of at most `budget` tokens once padded, as a plan that is
    /// the same for all ranks.
    pub fn token_batches(&self, budget: u64) -> TokenBatches {
        TokenBatches {
            store: self.clone(),
            budget,
            step: 64,
            window: 1 << 16,
            max_documents: usize::MAX,
        }
    }
}

impl TokenBatches {
    datapipes::setters! {
        /// Sets the number of batches in a step of all ranks together. Defaults to 64. If a window has
        /// fewer documents than its last step has batches, the others are empty.
        step(batches: usize) => step = batches;

        /// Sets the maximum number of documents that are sorted together. Defaults to 65,536. All
        /// windows have about as many. More of them have less padding; each takes about 40 bytes.
        window(documents: u64) => window = documents;

        /// Sets the maximum number of documents in a batch. Defaults to no limit.
        max_documents(documents: usize) => max_documents = documents;
    }

    /// Returns the batches of all ranks, in order, as a source of a graph.
    ///
    /// # Errors
    /// An error of the store's index ends the epoch's batches, with file and byte.
    pub fn graph(&self) -> Graph<PlannedBatch> {
        Graph::source(self.clone())
    }

    fn windows(&self) -> u64 {
        self.store.document_count().div_ceil(self.window)
    }

    /// Returns the batches of a window, in their order; none is left out.
    fn batches(
        &self,
        window: u64,
        order: &Permutation,
        rng: &mut Rng,
    ) -> Result<(Vec<PlannedBatch>, u64)> {
        let places = places(window, self.windows(), order.len());
        let mut documents: Vec<(u64, u64)> = Vec::new();
        for document in places.map(|place| order.get(place)) {
            documents.push((self.store.document_len(document)?, document));
        }
        documents.sort_by_key(|&(len, _)| len);
        let mut batches: Vec<Vec<u64>> = Vec::new();
        for (len, document) in documents {
            // Lengths ascend, so this document is the longest. One without tokens counts as one.
            let has_room = |batch: &Vec<u64>| {
                batch.len() < self.max_documents
                    && len.max(1).saturating_mul(batch.len() as u64 + 1) <= self.budget
            };
            match batches.last_mut() {
                Some(batch) if has_room(batch) => batch.push(document),
                _ => batches.push(vec![document]),
            }
        }
        self.divide(&mut batches);
        let mut planned = Vec::with_capacity(batches.len());
        for documents in batches {
            let longest = documents
                .last()
                .map_or(Ok(0), |&last| self.store.document_len(last))?;
            planned.push(PlannedBatch {
                store: self.store.clone(),
                budget: self.budget,
                longest,
                documents,
            });
        }
        let batches = deal(planned, self.step, PlannedBatch::padded_tokens, rng);
        Ok((batches, 0))
    }

    /// Divides the batches of most documents until there is a multiple of the batches of a step.
    fn divide(&self, batches: &mut Vec<Vec<u64>>) {
        let wanted = batches.len().next_multiple_of(self.step);
        while batches.len() < wanted {
            let most = batches.iter_mut().max_by_key(|batch| batch.len());
            let half = match most {
                Some(batch) if batch.len() > 1 => batch.split_off(batch.len() / 2),
                // Nothing can be divided: batches of nothing.
                _ => Vec::new(),
            };
            batches.push(half);
        }
    }

    fn problem(&self) -> Option<&'static str> {
        if self.budget == 0 || self.max_documents == 0 {
            Some("no room for a single document")
        } else if self.step == 0 || self.window == 0 {
            Some("steps of no batches, or windows of no documents")
        } else {
            None
        }
    }
}

impl Source for TokenBatches {
    type Out = PlannedBatch;

    fn open(&self, cx: &Context) -> Items<PlannedBatch> {
        let this = self.clone();
        let count = self.store.document_count();
        open_windows(cx, count, self.windows(), move |window, order, rng| {
            this.batches(window, order, rng)
        })
    }
    fn hints(&self) -> Hints {
        let mut settings = format!(
            "budget {} of {}, step {}, window {}",
            self.budget,
            self.store.contents(),
            self.step,
            self.window
        );
        if self.max_documents < usize::MAX {
            settings += &format!(", at most {} documents", self.max_documents);
        }
        Hints::any_order()
            .is_resumable(true)
            .buffered_bytes(usize::try_from(self.window.saturating_mul(40)).unwrap_or(usize::MAX))
            .settings(settings)
            .problem(self.problem())
    }
}

/// A batch of [`TokenBatches`]: names of documents, until it is read.
#[derive(Clone)]
pub struct PlannedBatch {
    store: TokenStore,
    budget: u64,
    longest: u64,
    documents: Vec<u64>,
}

impl PlannedBatch {
    /// Returns the numbers of its documents, from the shortest to the longest.
    pub fn documents(&self) -> &[u64] {
        &self.documents
    }

    /// Returns the number of tokens once padded: the longest document times their number.
    pub fn padded_tokens(&self) -> u64 {
        self.longest.saturating_mul(self.documents.len() as u64)
    }

    /// Reads the ids of the documents.
    ///
    /// # Errors
    /// `Limit` for a document that is longer than the budget, which is in a batch of its own; errors
    /// of [`TokenStore::document`].
    pub fn read(&self) -> Result<Vec<Vec<u32>>> {
        let documents = self.read_labelled()?.into_iter();
        Ok(documents.map(|tokens| tokens.ids).collect())
    }

    /// Reads the documents, with labels if the store has a [mask](TokenStore::loss).
    ///
    /// # Errors
    /// Those of [`read`](PlannedBatch::read), and of [`TokenStore::labelled_document`].
    pub fn read_labelled(&self) -> Result<Vec<Tokens>> {
        if self.longest > self.budget {
            return Err(Error::limit(format!(
                "document {} has {} tokens, more than a batch's budget of {}",
                self.documents[0], self.longest, self.budget
            )));
        }
        let documents = self.documents.iter();
        documents
            .map(|&document| self.store.labelled_document(document))
            .collect()
    }
}

impl PartialEq for PlannedBatch {
    fn eq(&self, other: &Self) -> bool {
        self.documents == other.documents
    }
}

datapipes::opaque_debug!(PlannedBatch { documents, padded_tokens = self.padded_tokens() });

#[cfg(test)]
mod tests {
    use datapipes::testing::check_source;
    use datapipes::{Checkpoint, DataLoader, Uneven};

    use super::super::tests::{lengths, store};
    use super::*;
    use datapipes::ErrorKind;

    type Step = Vec<Vec<u32>>;

    fn loader(batches: &TokenBatches, rank: usize, world: usize) -> DataLoader<Step> {
        let graph = batches
            .graph()
            .sharding_filter()
            .try_map(|batch| batch.read());
        let loader = DataLoader::builder(graph)
            .seed(9)
            .uneven(Uneven::Error)
            .resumable();
        loader.rank(rank, world).build().unwrap()
    }

    fn all(epoch: datapipes::Epoch<Step>) -> Vec<Step> {
        epoch.blocking().collect::<Result<_>>().unwrap()
    }

    /// Returns the batches of ranks as those of one, which deals them in turn.
    fn dealt(ranks: Vec<Vec<Step>>) -> Vec<Step> {
        let steps = 0..ranks[0].len();
        assert!(ranks.iter().all(|rank| rank.len() == steps.len()));
        steps
            .flat_map(|step| ranks.iter().map(move |rank| rank[step].clone()))
            .collect()
    }

    #[test]
    fn keeps_the_contract() {
        let (_dir, store) = store(&lengths(40));
        check_source(&store.token_batches(50).step(4).window(12));
        check_source(&store.token_batches(50).step(2).max_documents(3));
    }

    #[test]
    fn ranks_have_the_same_number_of_steps_and_every_document_comes_once() {
        let lengths = lengths(301);
        let (_dir, store) = store(&lengths);
        for window in [1000, 64] {
            let batches = store.token_batches(90).step(4).window(window);
            let whole = all(loader(&batches, 0, 1).epoch(0));
            let mut counts = vec![0; lengths.len()];
            for batch in &whole {
                let longest = batch.iter().map(Vec::len).max().unwrap();
                assert!(longest * batch.len() <= 90);
                batch
                    .iter()
                    .flatten()
                    .for_each(|&id| counts[id as usize - 1] += 1);
            }
            assert_eq!(counts, lengths);
            assert!(whole.len().is_multiple_of(4));
            for world in [2, 4] {
                let ranks = (0..world).map(|rank| all(loader(&batches, rank, world).epoch(0)));
                assert_eq!(dealt(ranks.collect()), whole, "{world} ranks");
            }
        }
        let batches = store.token_batches(90).step(4);
        let order = |epoch| all(loader(&batches, 0, 1).epoch(epoch));
        assert_ne!(order(0), order(1));
    }

    #[test]
    fn another_number_of_ranks_goes_on_with_the_same_steps() {
        let (_dir, store) = store(&lengths(200));
        let batches = store.token_batches(70).step(4).window(60);
        let whole = all(loader(&batches, 0, 1).epoch(0));
        for stop in [0, 3, whole.len() / 4 - 1] {
            let states = [0, 1, 2, 3].map(|rank| {
                let mut epoch = loader(&batches, rank, 4).epoch(0).blocking();
                assert_eq!(epoch.by_ref().take(stop).count(), stop);
                epoch.checkpoint().unwrap()
            });
            let state = Checkpoint::merge(&states).unwrap();
            let rest = |rank, world| all(loader(&batches, rank, world).resume(&state).unwrap());
            assert_eq!(rest(0, 1), whole[4 * stop..]);
            assert_eq!(dealt(vec![rest(0, 2), rest(1, 2)]), whole[4 * stop..]);
        }
    }

    #[test]
    fn batches_of_a_step_cost_about_the_same() {
        let lengths: Vec<usize> = (0..4000).map(|n| 1 + n * 7919 % 97).collect();
        let (_dir, store) = store(&lengths);
        let batches = store.token_batches(400).step(8).graph().collect().unwrap();
        let (mut padded, mut most) = (0, 0);
        for step in batches.chunks(8) {
            let costs = step.iter().map(PlannedBatch::padded_tokens);
            padded += costs.clone().sum::<u64>();
            most += 8 * costs.max().unwrap();
        }
        let tokens = lengths.iter().sum::<usize>() as f64;
        assert!(padded as f64 / tokens < 1.02 && most as f64 / (padded as f64) < 1.02);
    }

    #[test]
    fn steps_are_whole_also_where_documents_are_few() {
        for (count, step) in [(900, 64), (8, 8), (130, 64), (3, 8), (0, 8)] {
            let (_dir, store) = store(&vec![27; count]);
            let planned = store.token_batches(8192).step(step).graph();
            let batches = planned.collect().unwrap();
            assert!(
                batches.len().is_multiple_of(step),
                "{count}: {}",
                batches.len()
            );
            let read = batches.iter().flat_map(|batch| batch.read().unwrap());
            assert_eq!(read.count(), count);
        }
    }

    #[test]
    fn what_has_no_room_is_named() {
        let (_dir, store) = store(&[3, 9, 4]);
        let graph = store.token_batches(8).step(1).graph();
        let read: Vec<_> = graph
            .collect()
            .unwrap()
            .iter()
            .map(PlannedBatch::read)
            .collect();
        assert_eq!(read.iter().filter(|batch| batch.is_ok()).count(), 1);
        let error = read.into_iter().find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Limit);
        let said = "limit reached: document 1 has 9 tokens, more than a batch's budget of 8";
        assert_eq!(error.to_string(), said);
        for (batches, said) in [
            (store.token_batches(0), "no room for a single document"),
            (store.token_batches(8).step(0), "steps of no batches"),
        ] {
            let error = batches.graph().collect().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
