//! Documents with tokens that a model has to restore: BERT's masks and T5's spans.

use std::collections::BTreeSet;

use datapipes::{Arity, Context, Error, ErrorKind, Hints, Items, Pipe, Result, Rng, Weigh};

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

    /// Sets the probability that a token is chosen.
    pub fn rate(self, rate: f64) -> Self {
        MaskTokens { rate, ..self }
    }

    /// Sets tokens that are never chosen, such as those around a text.
    pub fn never(self, ids: impl IntoIterator<Item = u32>) -> Self {
        MaskTokens {
            never: ids.into_iter().collect(),
            ..self
        }
    }

    fn masked(&self, document: &impl Document, rng: &mut Rng) -> Result<Tokens> {
        let mut tokens = Tokens::from(document.ids().to_vec());
        let len = tokens.ids.len();
        let targets = document.labels();
        if let Some(targets) = targets.filter(|targets| targets.len() != len) {
            let message = format!("a document of {len} ids and {} labels", targets.len());
            return Err(Error::new(ErrorKind::Shape, message));
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

    /// Sets the number of sentinels that the tokenizer has. Defaults to 100, as T5's has. With the
    /// default density and length of spans they are enough for documents of 1,990 tokens.
    pub fn sentinels(self, sentinels: u32) -> Self {
        SpanCorruption { sentinels, ..self }
    }

    /// Sets the share of the tokens that are in spans.
    pub fn density(self, density: f64) -> Self {
        SpanCorruption { density, ..self }
    }

    /// Sets the mean length of a span.
    pub fn span(self, tokens: f64) -> Self {
        SpanCorruption {
            span: tokens,
            ..self
        }
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
            return Err(Error::new(ErrorKind::Limit, message));
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

#[cfg(test)]
mod tests {
    use datapipes::Graph;
    use datapipes::testing::check_pipe;

    use super::*;

    fn documents(lengths: impl IntoIterator<Item = u32>) -> Vec<Vec<u32>> {
        lengths
            .into_iter()
            .map(|len| (100..100 + len).collect())
            .collect()
    }

    #[test]
    fn keep_the_contract() {
        check_pipe(&MaskTokens::new(1, 99).rate(0.4), documents(0..9));
        check_pipe(&SpanCorruption::new(99).density(0.4), documents(0..9));
    }

    #[test]
    fn tokens_are_masked_by_berts_rule() {
        let mask = MaskTokens::new(1, 90).never([100, 101]);
        let all = Graph::from_vec(documents([500; 40]))
            .pipe(mask)
            .collect()
            .unwrap();
        let (mut masked, mut random, mut same) = (0, 0, 0);
        for tokens in &all {
            let labels = tokens.labels.as_ref().unwrap();
            assert_eq!(labels[..2], [-100, -100]);
            for ((id, label), was) in tokens.ids.iter().zip(labels).zip(100..) {
                match (*label >= 0, *id) {
                    (false, id) => assert_eq!(id, was),
                    (true, 1) => masked += 1,
                    (true, id) if id == was => same += 1,
                    (true, id) => random += u32::from(id < 90),
                }
                assert!(*label == -100 || *label == i64::from(was));
            }
        }
        // 3,000 of the 20,000 tokens are chosen.
        assert!(
            (2200..2600).contains(&masked) && (220..380).contains(&random),
            "{masked} {random}"
        );
        assert!((220..380).contains(&same), "{same}");
        assert_ne!(all[0], all[1]);
    }

    #[test]
    fn what_is_not_trained_is_not_masked() {
        let tokens = Tokens {
            ids: (100..1100).collect(),
            labels: Some(
                (100..1100)
                    .map(|id| if id < 600 { -100 } else { id })
                    .collect(),
            ),
            offsets: None,
        };
        let graph = Graph::from_vec(vec![tokens]).pipe(MaskTokens::new(1, 90).rate(0.5));
        let masked = graph.collect().unwrap().remove(0);
        let labels = masked.labels.unwrap();
        assert!(masked.ids[..500].iter().copied().eq(100..600));
        assert!(labels[..500].iter().all(|&label| label == -100));
        let chosen = labels[500..].iter().filter(|&&label| label >= 0).count();
        assert!((200..300).contains(&chosen), "{chosen}");
        let odd = Tokens {
            ids: vec![1, 2],
            labels: Some(vec![1]),
            offsets: None,
        };
        let error = Graph::from_vec(vec![odd])
            .pipe(MaskTokens::new(1, 90))
            .collect();
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.to_string().contains("2 ids and 1 labels"), "{error}");
    }

    #[test]
    fn spans_are_in_the_targets_and_everything_is_in_one_of_both() {
        let all = Graph::from_vec(documents(2..80)).pipe(SpanCorruption::new(99));
        for ((inputs, targets), len) in all.collect().unwrap().into_iter().zip(2..) {
            let (noise, expected) = SpanCorruption::new(99).counts(len as usize);
            let spans = inputs.iter().filter(|&&id| id < 100).count();
            assert_eq!(spans, expected);
            assert_eq!(inputs.len(), len as usize - noise + spans);
            assert_eq!(targets.len(), noise + spans + 1);
            assert_eq!(targets.last(), Some(&(99 - spans as u32)));
            // Each sentinel is replaced by its span.
            let mut whole = Vec::new();
            for &id in &inputs {
                if id >= 100 {
                    whole.push(id);
                    continue;
                }
                let at = targets.iter().position(|&target| target == id).unwrap();
                let span: Vec<u32> = targets[at + 1..]
                    .iter()
                    .copied()
                    .take_while(|&id| id >= 100)
                    .collect();
                assert!(!span.is_empty());
                whole.extend(span);
            }
            assert_eq!(whole, Vec::from_iter(100..100 + len));
        }
        let short = Graph::from_vec(documents([0, 1]))
            .pipe(SpanCorruption::new(99))
            .collect()
            .unwrap();
        assert_eq!(short, [(vec![], vec![99]), (vec![100], vec![99])]);
    }

    /// `make.py` in `tests/data` wrote the file, with T5's own functions.
    #[test]
    fn spans_are_those_of_t5() {
        let golden = include_bytes!("../tests/data/t5.json");
        let golden: serde_json::Value = serde_json::from_slice(golden).unwrap();
        let numbers = |list: &serde_json::Value| -> Vec<usize> {
            let list = list.as_array().unwrap().iter();
            list.map(|number| number.as_u64().unwrap() as usize)
                .collect()
        };
        for (len, counts) in (2..).zip(golden["counts"].as_array().unwrap()) {
            let (noise, spans) = SpanCorruption::new(32_099).counts(len);
            assert_eq!(vec![noise, spans], numbers(counts), "{len} tokens");
        }
        for case in golden["cases"].as_array().unwrap() {
            let spans = SpanCorruption::new(32_099)
                .density(case["density"].as_f64().unwrap())
                .span(case["span"].as_f64().unwrap());
            let (len, [kept, noise]) = (
                case["length"].as_u64().unwrap() as usize,
                ["kept", "noise"].map(|name| numbers(&case[name])),
            );
            let counts = (noise.iter().sum(), noise.len());
            assert_eq!(spans.counts(len), counts, "{case}");
            let ids: Vec<u32> = (100..100 + len as u32).collect();
            let (inputs, mut targets) = spans.replaced(&ids, &kept, &noise);
            // T5 has no sentinel at the end, as the figure of its paper does.
            assert_eq!(targets.pop(), Some(32_099 - noise.len() as u32));
            for (own, name) in [(inputs, "inputs"), (targets, "targets")] {
                let own = own.into_iter().map(|id| id as usize);
                assert!(own.eq(numbers(&case[name])), "{name}: {case}");
            }
        }
    }

    #[test]
    fn a_document_with_more_spans_than_sentinels_is_named() {
        let lengths = [10, 1990, 2048];
        let graph = Graph::from_vec(documents(lengths)).pipe(SpanCorruption::new(99));
        let error = graph.collect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        let said = "span_corruption: 0:2: limit reached: a document of 2048 tokens has 102 spans, which take 103 \
                    sentinels of 100; cut it, or set other spans";
        assert_eq!(error.to_string(), said);
        // The sentinel at the end is the last one, with the id 0.
        let spans = SpanCorruption::new(102).sentinels(103);
        let (inputs, targets) = Graph::from_vec(documents([2048]))
            .pipe(spans)
            .collect()
            .unwrap()
            .remove(0);
        assert_eq!((inputs.iter().min(), targets.last()), (Some(&1), Some(&0)));
    }

    #[test]
    fn wrong_settings_do_not_start() {
        let said = |graph: datapipes::Result<()>| graph.unwrap_err().to_string();
        let one = || Graph::from_vec(documents([1]));
        let mask = said(one().pipe(MaskTokens::new(1, 0)).collect().map(drop));
        assert!(mask.contains("no vocabulary"), "{mask}");
        let span = said(
            one()
                .pipe(SpanCorruption::new(99).span(f64::NAN))
                .collect()
                .map(drop),
        );
        assert!(span.contains("spans of less than a token"), "{span}");
        for spans in [SpanCorruption::new(98), SpanCorruption::new(9).sentinels(0)] {
            let none = said(one().pipe(spans).collect().map(drop));
            assert!(none.contains("more of them than ids"), "{none}");
        }
    }
}
