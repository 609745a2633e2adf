//! The order of samples of Megatron's `GPTDataset`.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datapipes::{Error, ErrorKind, Indexed, MapPipe, Result, Revision};

use super::TokenStore;
use super::numpy::RandomState;
use crate::pack::Row;
use crate::{Packed, RowLayout, Tokens};

/// The order in which Megatron-LM's `GPTDataset` has the samples of a token store, for
/// [`TokenStore::gpt`].
///
/// The sequences of the store (its documents, unless a document has several) are repeated for as
/// many epochs as the [samples](GptOrder::samples) need, shuffled, and joined. The joined tokens
/// are cut into samples of `length + 1` tokens, of which the last is also the first of the next
/// sample. Then the samples are shuffled. If less than 80 % of the last epoch is needed, its
/// sequences and samples are shuffled apart, and come after the others. Tokens that are left over
/// at the end are in no sample. Shuffles are those of `numpy.random.RandomState(seed)`, so sample
/// `i` is that of Megatron-LM with the same settings (`--seq-length`, `--seed`), bit by bit. Its
/// blends of data sets are not repeated.
#[derive(Clone, Debug)]
#[must_use]
pub struct GptOrder {
    layout: RowLayout,
    seed: u32,
    samples: Option<u64>,
    sequences: Option<Range<u64>>,
}

impl GptOrder {
    /// Orders samples of `length` tokens and one more, with the seed 1234, as Megatron-LM unless it is
    /// told another. `length` may be a [`RowLayout`], which has the length and what else decides about
    /// [rows](GptSample::row).
    pub fn new(length: impl Into<RowLayout>) -> GptOrder {
        GptOrder {
            layout: length.into(),
            seed: 1234,
            samples: None,
            sequences: None,
        }
    }

    /// Sets the seed (`--seed`). Defaults to 1234.
    pub fn seed(self, seed: u32) -> GptOrder {
        GptOrder { seed, ..self }
    }

    datapipes::setters! {
        /// Sets the number of samples that are needed: iterations times the global batch size. There
        /// are as many as whole epochs give, so at least this number. Defaults to one epoch.
        samples(count: u64) => samples = Some(count);

        /// Sets the sequences that are used, as `--split` divides them. Defaults to all.
        sequences(range: Range<u64>) => sequences = Some(range);
    }
}

impl TokenStore {
    /// Returns the samples of Megatron's `GPTDataset` by number, in its order. A step that shuffles
    /// is not needed, and would give another order.
    ///
    /// The order is made here: the length of every sequence is read from the index, and 4 bytes for
    /// each sequence of each epoch and 12 for each sample stay in memory. A sample is a position: it
    /// is read by [`GptSample::row`] or [`GptSample::ids`], in a step after `fetch`, which runs on the
    /// CPU workers.
    ///
    /// # Errors
    /// `Config` for a length of 0, a layout with gaps, or sequences that the store does not have or that have no tokens;
    /// `Limit` for more than 2³² − 1 samples, or sequences of all epochs; `Corrupt` or
    /// `Truncated` if the index contradicts itself or the tokens, with file and byte.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Uneven};
    /// use datapipes_text::{GptOrder, TokenStore, TokenWidth, TokenWriter};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("corpus");
    /// # let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
    /// # for document in 0..100u32 {
    /// #     writer.push(&vec![document; 1 + document as usize % 7])?;
    /// # }
    /// # writer.finish()?;
    /// let store = TokenStore::megatron(&path)?;
    /// let rows = store.gpt(&GptOrder::new(32).seed(42).samples(20))?
    ///     .shard()
    ///     .fetch()
    ///     .try_map(|sample| sample.row())              // ids, and the next tokens as labels
    ///     .batch(2)
    ///     .collate();
    /// let loader = DataLoader::builder(rows).rank(0, 2).uneven(Uneven::Drop).resumable().build()?;
    /// let batch = loader.epoch(0).blocking().next().expect("there are 20 samples")?;
    /// assert_eq!(batch.ids.shape(), [2, 32]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gpt(&self, order: &GptOrder) -> Result<Indexed<GptSample>> {
        let order = Order::new(self, order)?;
        self.read_at_random();
        Ok(Indexed::new(Samples(Arc::new(order))))
    }

    /// Returns the tokens of a sequence, all of which are there.
    fn sequence(&self, number: u64) -> Result<Range<u64>> {
        let range = self.0.bounds.piece(number, self.0.width.size())?;
        self.bytes(&range)?;
        Ok(range)
    }
}

/// The order of samples.
struct Order {
    store: TokenStore,
    layout: RowLayout,
    /// The sequences of all epochs.
    sequences: Vec<u32>,
    /// The first tokens of samples, before they are shuffled: the place of a sequence, and a token of
    /// it.
    starts: Vec<(u32, u32)>,
    shuffled: Vec<u32>,
    /// Description of all that decides about the order.
    settings: String,
}

impl Order {
    fn new(store: &TokenStore, order: &GptOrder) -> Result<Order> {
        let wrong = |kind, what: String| Error::new(kind, what).within(&store.0.name);
        let config = |what: String| wrong(ErrorKind::Config, what);
        let (count, length) = (store.0.bounds.piece_count(), order.layout.length as u64);
        let range = order.sequences.clone().unwrap_or(0..count);
        if length == 0 || length >= u64::from(u32::MAX) {
            let what = format!(
                "samples of {length} tokens: 1 to {} are possible",
                u32::MAX - 1
            );
            return Err(config(what));
        }
        if order.layout.has_gaps() {
            return Err(config("samples have no gaps between documents".to_owned()));
        }
        if range.start > range.end || range.end > count {
            return Err(config(format!("sequences {range:?} of {count}")));
        }
        let too_many = |what: &str| wrong(ErrorKind::Limit, format!("more than 2³² − 1 {what}"));
        let sequences = u32::try_from(range.start)
            .and_then(|start| Ok(start..u32::try_from(range.end)?))
            .map_err(|_| too_many("sequences"))?;
        let mut tokens = 0u64;
        for number in range {
            let place = store.sequence(number)?;
            // An index may name the same tokens many times.
            tokens = tokens.saturating_add(place.end - place.start);
        }
        if tokens == 0 {
            let what = "the sequences have no tokens".to_owned();
            return Err(wrong(ErrorKind::Config, what));
        }

        let fit = |tokens: u64| tokens.saturating_sub(1) / length;
        let wanted = order.samples.unwrap_or(0);
        let needed = wanted
            .checked_mul(length)
            .and_then(|needed| needed.checked_add(1));
        let needed = needed.ok_or_else(|| too_many("samples"))?;
        let epochs = needed.div_ceil(tokens).max(1);
        let all = tokens.checked_mul(epochs).map(fit);
        let samples = all.and_then(|all| u32::try_from(all).ok());
        let samples = samples.ok_or_else(|| too_many("samples"))?;
        let repeated = epochs.saturating_mul(sequences.len() as u64);
        if repeated > u64::from(u32::MAX) {
            return Err(too_many("sequences of all epochs"));
        }

        let before = fit(tokens * (epochs - 1));
        let last = wanted.saturating_sub(before);
        // As in the original, with its rounding.
        let is_apart = epochs > 1 && last < (0.8 * fit(tokens) as f64) as u64;
        let mut random = RandomState::new(order.seed);
        let mut shuffle = |numbers: &mut [u32], before_last: u64| {
            let all = numbers.len();
            let first = if is_apart { before_last as usize } else { all };
            let (first, last) = numbers.split_at_mut(first);
            random.shuffle(first);
            random.shuffle(last);
        };
        let apart = if is_apart {
            ", the last epoch apart"
        } else {
            ""
        };
        let settings = format!(
            ", {samples} samples of {length} from sequences {sequences:?}, seed {}{apart}{}",
            order.seed,
            order.layout.settings()
        );
        let each = sequences.len() as u64;
        let mut sequences: Vec<u32> = (0..epochs).flat_map(|_| sequences.clone()).collect();
        shuffle(&mut sequences, each * (epochs - 1));
        let mut shuffled: Vec<u32> = (0..samples).collect();
        shuffle(&mut shuffled, before);

        let (mut starts, mut at) = (Vec::with_capacity(shuffled.len()), 0);
        for (place, &number) in sequences.iter().enumerate() {
            let tokens = store.sequence(number.into())?;
            let end = at + (tokens.end - tokens.start);
            let next = |starts: &Vec<_>| starts.len() as u64 * length;
            while starts.len() < shuffled.len() && next(&starts) < end {
                // A sequence of Megatron's has fewer than 2³¹ tokens, a file in a row may have more.
                let token = u32::try_from(next(&starts) - at)
                    .map_err(|_| too_many("tokens of a sequence"))?;
                starts.push((place as u32, token));
            }
            at = end;
        }
        Ok(Order {
            store: store.clone(),
            layout: order.layout.clone(),
            sequences,
            starts,
            shuffled,
            settings,
        })
    }

    /// Reads the tokens of a sample, and the one after it.
    fn tokens(&self, start: (u32, u32)) -> Result<Tokens> {
        let (place, mut skipped) = (start.0 as usize, u64::from(start.1));
        let want = self.layout.length + 1;
        let mut read = Tokens::from(Vec::with_capacity(want));
        for &number in &self.sequences[place..] {
            let tokens = self.store.sequence(number.into())?;
            let begin = tokens.start + skipped;
            let end = tokens.end.min(begin + (want - read.ids.len()) as u64);
            self.store.read_labelled(begin..end, &mut read)?;
            skipped = 0;
            if read.ids.len() == want {
                return Ok(read);
            }
        }
        // Samples were within the sequences when the order was made.
        let what = "its index changed while it was mapped";
        Err(Error::changed(what).within(&self.store.0.name))
    }
}

/// A sample of Megatron's `GPTDataset`: a position, until it is read; made by [`TokenStore::gpt`].
#[derive(Clone)]
pub struct GptSample {
    order: Arc<Order>,
    start: (u32, u32),
}

impl GptSample {
    /// Returns the ids: those of the sample, and the one after it. All but the last are Megatron's
    /// `tokens`, all but the first its `labels`.
    ///
    /// # Errors
    /// `Corrupt` for an id that is not in the [vocabulary](TokenStore::vocab), if that was set, with
    /// file and byte.
    pub fn ids(&self) -> Result<Vec<u32>> {
        Ok(self.order.tokens(self.start)?.ids)
    }

    /// Returns the sample as a row with all fields. It is one segment, with the next token as the
    /// label also where a document ends, as Megatron has it unless it is told to reset positions and
    /// masks.
    ///
    /// # Errors
    /// Those of [`ids`](GptSample::ids).
    pub fn row(&self) -> Result<Packed> {
        let layout = &self.order.layout;
        let mut row = Row::new(layout);
        let Tokens { ids, labels, .. } = self.order.tokens(self.start)?;
        row.push(layout, &ids, labels.as_deref(), 0..layout.length);
        Ok(row.finish(layout))
    }
}

impl fmt::Debug for GptSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, token) = self.start;
        let sequence = self.order.sequences[place as usize];
        f.debug_struct("GptSample")
            .field("sequence", &sequence)
            .field("token", &token)
            .finish()
    }
}

/// Samples by number.
struct Samples(Arc<Order>);

#[async_trait]
impl MapPipe for Samples {
    type Out = GptSample;

    fn len(&self) -> u64 {
        self.0.shuffled.len() as u64
    }
    async fn get(&self, number: u64) -> Result<GptSample> {
        let place = usize::try_from(number)
            .ok()
            .and_then(|number| self.0.shuffled.get(number));
        let place = place.ok_or_else(|| {
            let what = format!("{}: sample {number} of {}", self.0.store.0.name, self.len());
            Error::not_found(what)
        })?;
        Ok(GptSample {
            order: self.0.clone(),
            start: self.0.starts[*place as usize],
        })
    }
    fn revision(&self) -> Revision {
        self.0.store.revision(&self.0.settings)
    }
    fn name(&self) -> String {
        "gpt_samples".to_owned()
    }
    fn sample_name(&self, number: u64) -> Option<Arc<str>> {
        Some(format!("{}/{number}", self.0.store.0.name).into())
    }
    fn weigh(&self, _: &GptSample) -> Option<usize> {
        Some(size_of::<GptSample>())
    }
}
