//! Documents with tokens that a model has to restore: BERT's masks and T5's spans.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result, Rng, Weigh};

use crate::{Document, Tokens};

/// Masks tokens at random, for a masked-language model: each token with probability `rate`. Of
/// these, 80 % become the mask token, 10 % a random token and 10 % stay (BERT's rule); their labels
/// are what they were, and those of all others −100. A token whose label is negative, as a prompt's,
/// is not trained, and never masked.
///
/// A pipe for documents, to be packed with [`Labels::Same`](crate::Labels::Same). Runs on the CPU
/// workers; order is kept. What is masked depends on seed, epoch and item alone, so that each epoch
/// masks other tokens.
///
/// # Errors
/// `Shape` in place of a document with another number of labels than of ids.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_text::{Labels, MaskTokens, Pack, prelude::*};
///
/// let documents = Graph::from_vec(vec![(10..30u32).collect::<Vec<_>>()]);
/// let masked = documents.pipe(MaskTokens::new(3, 1000).rate(0.5)).pack(Pack::concat(20).labels(Labels::Same));
/// let row = masked.collect()?.remove(0);
/// for (at, label) in row.labels.iter().enumerate() {
///     assert!(*label == 10 + at as i64 || (*label == -100 && row.ids[at] == 10 + at as u32));
/// }
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MaskTokens {
    mask: u32,
    vocab: u32,
    rate: f64,
    never: BTreeSet<u32>,
}

impl MaskTokens {
    /// Masks by this token; random tokens are below `vocab`. The rate defaults to 0.15.
    pub fn new(mask: u32, vocab: u32) -> Self {
        MaskTokens {
            mask,
            vocab,
            rate: 0.15,
            never: BTreeSet::new(),
        }
    }

    datapipes::setters! {
        /// Sets the probability that a token is chosen.
        rate(rate: f64) => rate = rate;

        /// Sets tokens that are never chosen, such as those around a text.
        never(ids: impl IntoIterator<Item = u32>) => never = ids.into_iter().collect();
    }

    fn masked(&self, document: &impl Document, rng: &mut Rng) -> Result<Tokens> {
        let mut tokens = Tokens::from(document.ids().to_vec());
        let len = tokens.ids.len();
        let targets = document.labels();
        if let Some(targets) = targets.filter(|targets| targets.len() != len) {
            let message = format!("a document of {len} ids and {} labels", targets.len());
            return Err(Error::shape(message));
        }
        let mut labels = vec![-100; len];
        for (at, (id, label)) in tokens.ids.iter_mut().zip(&mut labels).enumerate() {
            let target = targets.map_or(i64::from(*id), |targets| targets[at]);
            if target < 0 || self.never.contains(id) || !rng.chance(self.rate) {
                continue;
            }
            *label = target;
            match rng.below(10) {
                0 => *id = rng.below(self.vocab.into()) as u32,
                1 => {}
                _ => *id = self.mask,
            }
        }
        tokens.labels = Some(labels);
        Ok(tokens)
    }
}

impl<T: Document> Pipe<T> for MaskTokens {
    type Out = Tokens;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Tokens> {
        let (this, context) = (self.clone(), cx.clone());
        input.each(cx, move |item| {
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|document| this.masked(&document, &mut rng)))
        })
    }
    fn hints(&self) -> Hints {
        let MaskTokens {
            mask,
            vocab,
            rate,
            never,
        } = self;
        let wrong = !(0.0..=1.0).contains(rate) || *vocab == 0;
        Hints::shardable()
            .arity(Arity::One)
            .settings(format_args!(
                "{mask} of {vocab}, rate {rate}, never {never:?}"
            ))
            .problem(wrong.then_some("a rate that is not between 0 and 1, or no vocabulary"))
    }
    fn weigh(&self, tokens: &Tokens) -> Option<usize> {
        Some(tokens.weigh())
    }
}

/// Replaces spans of tokens by sentinels, for an encoder and a decoder: T5's span corruption. Gives
/// pairs `(inputs, targets)` of ids, for [`padded_batch`](datapipes::Graph::padded_batch).
///
/// Spans take `n * density` of a document's `n` tokens, rounded as in T5, at least one and not all,
/// and have `span` tokens in the mean. The lengths of the spans, and of the stretches between them, are random
/// partitions. The document begins with tokens that stay. In the inputs a sentinel stands for each
/// span; the targets have each sentinel and its span, and one sentinel more at the end. Sentinels
/// count down from the first one, as T5's `<extra_id_0>` and those after it. A document of fewer
/// than two tokens stays, with one sentinel as its targets.
///
/// Runs on the CPU workers; order is kept. The spans depend on seed, epoch and item alone.
///
/// # Errors
/// `Limit` in place of a document with more spans than there are [sentinels](SpanCorruption::sentinels)
/// for, of which one more is needed at the end of its targets: the ids below are other tokens.
///
/// # Examples
/// ```
/// use datapipes::Graph;
/// use datapipes_text::SpanCorruption;
///
/// let documents = Graph::from_vec(vec![(0..20u32).collect::<Vec<_>>()]);
/// let (inputs, targets) = documents.pipe(SpanCorruption::new(32_099)).collect()?.remove(0);
/// assert_eq!(inputs.len(), 20 - 3 + 1);        // three tokens in one span
/// assert_eq!((targets.len(), targets[0], targets[4]), (5, 32_099, 32_098));
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SpanCorruption {
    first: u32,
    sentinels: u32,
    density: f64,
    span: f64,
}

impl SpanCorruption {
    /// Uses this sentinel for the first span, and the ids below it for those that follow. The
    /// density defaults to 0.15 and the mean length of a span to 3.
    pub fn new(first_sentinel: u32) -> Self {
        SpanCorruption {
            first: first_sentinel,
            sentinels: 100,
            density: 0.15,
            span: 3.0,
        }
    }

    datapipes::setters! {
        /// Sets the number of sentinels that the tokenizer has. Defaults to 100, as T5's has. With the
        /// default density and length of spans they are enough for documents of 1,990 tokens.
        sentinels(sentinels: u32) => sentinels = sentinels;

        /// Sets the share of the tokens that are in spans.
        density(density: f64) => density = density;

        /// Sets the mean length of a span.
        span(tokens: f64) => span = tokens;
    }

    fn corrupted(&self, ids: &[u32], rng: &mut Rng) -> Result<(Vec<u32>, Vec<u32>)> {
        if ids.len() < 2 {
            return Ok((ids.to_vec(), vec![self.first]));
        }
        let (noise, spans) = self.counts(ids.len());
        if spans >= self.sentinels as usize {
            let message = format!(
                "a document of {} tokens has {spans} spans, which take {} sentinels of {}; cut it, or set other spans",
                ids.len(),
                spans + 1,
                self.sentinels
            );
            return Err(Error::limit(message));
        }
        let between = partition(ids.len() - noise, spans, rng);
        let within = partition(noise, spans, rng);
        Ok(self.replaced(ids, &between, &within))
    }

    /// Returns the number of tokens in spans, and of spans, of a document of two tokens at least. They
    /// are rounded as in T5: in single precision, and halves to the even number.
    fn counts(&self, len: usize) -> (usize, usize) {
        let noise = (len as f32 * self.density as f32).round_ties_even() as usize;
        let noise = noise.clamp(1, len - 1);
        let spans = (noise as f32 / self.span as f32).round_ties_even() as usize;
        (noise, spans.clamp(1, noise.min(len - noise)))
    }

    /// Replaces spans by sentinels: stretches of these lengths stay, with a span after each.
    fn replaced(&self, ids: &[u32], between: &[usize], within: &[usize]) -> (Vec<u32>, Vec<u32>) {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        let mut rest = ids;
        let mut sentinels = (0..=self.first).rev();
        let mut sentinel = || {
            sentinels
                .next()
                .expect("there are as many as spans, and one")
        };
        for (&between, &within) in between.iter().zip(within) {
            let (kept, span);
            (kept, rest) = rest.split_at(between);
            (span, rest) = rest.split_at(within);
            inputs.extend_from_slice(kept);
            let sentinel = sentinel();
            inputs.push(sentinel);
            targets.push(sentinel);
            targets.extend_from_slice(span);
        }
        targets.push(sentinel());
        (inputs, targets)
    }
}

/// Divides a number into positive parts, each division as likely as any other.
fn partition(number: usize, parts: usize, rng: &mut Rng) -> Vec<usize> {
    let mut begins = vec![false; number - 1];
    begins[..parts - 1].fill(true);
    rng.shuffle(&mut begins);
    let mut lengths = vec![1];
    for begins in begins {
        match lengths.last_mut() {
            Some(length) if !begins => *length += 1,
            _ => lengths.push(1),
        }
    }
    lengths
}

impl<T: Document> Pipe<T> for SpanCorruption {
    type Out = (Vec<u32>, Vec<u32>);

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<Self::Out> {
        let (this, context) = (self.clone(), cx.clone());
        input.each(cx, move |item| {
            let mut rng = context.rng(item.origin());
            Some(item.try_map(|document| this.corrupted(document.ids(), &mut rng)))
        })
    }
    fn hints(&self) -> Hints {
        let SpanCorruption {
            first,
            sentinels,
            density,
            span,
        } = self;
        let wrong = !(0.0..=1.0).contains(density) || span.is_nan() || *span < 1.0;
        let no_ids = *sentinels == 0 || *sentinels - 1 > *first;
        let mut settings = format!("from {first}, density {density}, span {span}");
        // Checkpoints of earlier versions have no number.
        if *sentinels != 100 {
            settings += &format!(", {sentinels} sentinels");
        }
        Hints::shardable()
            .arity(Arity::One)
            .settings(settings)
            .problem(
                no_ids.then_some("no sentinels, or more of them than ids from the first one down"),
            )
            .problem(
                wrong.then_some(
                    "a density that is not between 0 and 1, or spans of less than a token",
                ),
            )
    }
    fn weigh(&self, (inputs, targets): &Self::Out) -> Option<usize> {
        Some(inputs.weigh() + targets.weigh())
    }
}
