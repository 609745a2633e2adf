//! Removal of documents that came before.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use datapipes::{Arity, Context, Error, Graph, Hints, Items, Pipe};

/// Leaves out documents that came before; see [`DistinctGraphExt::distinct`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Distinct<F> {
    most: usize,
    content: F,
}

impl<F> Distinct<F> {
    /// Compares what `content` returns; remembers at most `most` documents.
    pub fn new(most: usize, content: F) -> Self {
        Distinct { most, content }
    }
}

/// A hasher of numbers that are hashes.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, &byte| hash.rotate_left(8) ^ u64::from(byte));
    }
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

type Seen = HashSet<u128, BuildHasherDefault<AsIs>>;

impl<T, F> Pipe<T> for Distinct<F>
where
    T: Send + 'static,
    F: Fn(&T) -> &[u8] + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn apply(&self, input: Items<T>, cx: &Context) -> Items<T> {
        let (this, context) = (self.clone(), cx.clone());
        let mut seen = Seen::default();
        input.each(cx, move |item| {
            let hash = blake3::hash((this.content)(&item));
            let hash = u128::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"));
            if seen.contains(&hash) {
                context.count_dropped(1);
                return None;
            }
            if seen.len() >= this.most {
                let message = format!("a document after {} that are all different", this.most);
                return Some(Err(Error::limit(message).of(item.origin())));
            }
            seen.insert(hash);
            Some(Ok(item))
        })
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        // The number of others depends on their contents.
        (input == u64::MAX).then_some(input)
    }
    fn hints(&self) -> Hints {
        // Resumed from the beginning: without a snapshot everything is read again.
        Hints::default()
            .arity(Arity::AtMostOne)
            .is_resumable(true)
            .buffered_bytes(self.most.saturating_mul(40))
            .settings(self.most)
            .problem((self.most == 0).then_some("no room for a single document"))
    }
}

/// Exact deduplication, for a graph of documents. Import it with the [`prelude`](crate::prelude).
pub trait DistinctGraphExt<T>: crate::sealed::Sealed {
    /// Leaves out documents whose content came before in this epoch, and counts them as dropped.
    /// The first of equal documents stays, in its place.
    ///
    /// Contents are compared by 128 bits of their BLAKE3 hash: among a billion documents two
    /// different ones are taken for equal with a probability of 10⁻²¹. Memory is about 40 bytes for
    /// each document that is different, at most `most` of them.
    ///
    /// Runs in one place, in order. Put it before a
    /// [`sharding_filter`](datapipes::Graph::sharding_filter): after it, each rank sees its own
    /// part only. An epoch that is resumed reads its input again from the beginning, since what was
    /// seen is not in the checkpoint; for a large corpus, write what is left to a
    /// [`TokenStore`](crate::TokenStore) once.
    ///
    /// # Errors
    /// `Limit` in place of a further document, once `most` different ones came.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// use datapipes_text::prelude::*;
    /// let texts = Graph::from_vec(vec!["a", "b", "a", "c", "b"]);
    /// assert_eq!(texts.distinct(1000, |text| text.as_bytes()).collect()?, ["a", "b", "c"]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    fn distinct(
        self,
        most: usize,
        content: impl Fn(&T) -> &[u8] + Clone + Send + Sync + 'static,
    ) -> Graph<T>;
}

impl<T: Send + 'static> DistinctGraphExt<T> for Graph<T> {
    fn distinct(
        self,
        most: usize,
        content: impl Fn(&T) -> &[u8] + Clone + Send + Sync + 'static,
    ) -> Graph<T> {
        self.pipe(Distinct::new(most, content))
    }
}

#[cfg(test)]
mod tests {
    use datapipes::DataLoader;
    use datapipes::testing::check_pipe;

    use super::*;
    use datapipes::ErrorKind;

    fn content<'a>(text: &'a &'static str) -> &'a [u8] {
        text.as_bytes()
    }

    #[test]
    fn keeps_the_contract() {
        let texts = ["a", "b", "a", "", "c", "b", "d", "", "d", "e"];
        check_pipe(&Distinct::new(100, content), texts.to_vec());
        check_pipe(&Distinct::new(2, content), texts.to_vec());
    }

    #[test]
    fn what_came_before_is_counted_also_after_a_stop() {
        let texts = ["a", "b", "a", "", "c", "b", "", "d"];
        let graph = Graph::from_vec(texts.to_vec()).distinct(9, |text| text.as_bytes());
        let loader = DataLoader::builder(graph).resumable().build().unwrap();
        let mut epoch = loader.epoch(0).blocking();
        let first: Vec<&str> = epoch.by_ref().take(2).map(|text| text.unwrap()).collect();
        let rest = loader
            .resume(&epoch.checkpoint().unwrap())
            .unwrap()
            .blocking();
        let rest: Vec<&str> = rest.map(|text| text.unwrap()).collect();
        assert_eq!((first, rest), (vec!["a", "b"], vec!["", "c", "d"]));
        assert_eq!(loader.epoch(0).blocking().count(), 5);
        assert_eq!(loader.stats().unwrap().nodes[1].dropped, 3);
    }

    #[test]
    fn more_than_was_promised_is_an_error() {
        let graph = Graph::from_vec(vec!["a", "b", "a", "c"]).distinct(2, |text| text.as_bytes());
        let error = graph.collect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        let said = "distinct: 0:3: limit reached: a document after 2 that are all different";
        assert_eq!(error.to_string(), said);
        let none = Graph::from_vec(vec!["a"]).distinct(0, |text| text.as_bytes());
        let refused = DataLoader::builder(none).build().unwrap_err().to_string();
        assert!(
            refused.contains("no room for a single document"),
            "{refused}"
        );
    }
}
