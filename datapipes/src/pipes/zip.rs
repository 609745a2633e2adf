//! Pairs the items of several inputs by position.

use std::slice::from_ref;

use futures::StreamExt;

use super::hash_join::{pair_weigher, weighed_by_parts};
use crate::{Context, Error, Graph, Hints, Item, Items, Join, Origin};

/// Pairs the items of two or three inputs; see [`Graph::zip`].
///
/// # Examples
/// Inputs that must be of one length:
/// ```
/// use datapipes::{Graph, pipes::Zip};
/// let inputs = (Graph::range(0..3), Graph::range(0..4));
/// let error = Graph::join(inputs, Zip::new().strict()).collect().unwrap_err();
/// assert_eq!(error.to_string(), "zip: shape mismatch: input 0 ended after 3 items, input 1 has more");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Zip {
    strict: bool,
}

impl Zip {
    /// Ends with the shortest input.
    pub fn new() -> Self {
        Zip { strict: false }
    }

    /// Yields a [fatal](Error::fatal) error at the end if an input is longer than another.
    pub fn strict(self) -> Self {
        Zip { strict: true }
    }

    fn own_hints(&self) -> Hints {
        Hints::default()
            .is_resumable(true)
            .pairs(true)
            .settings(if self.strict { "strict" } else { "" })
    }
}

/// Returns true if an error is none of those that came in the same place before. A fork gives a copy
/// of an error, with the same node and item, to each side, and one pair is lost.
fn is_new(error: &Error, before: &mut Vec<(String, Origin)>) -> bool {
    let (Some(node), Some(item)) = (error.node(), error.item()) else {
        return true;
    };
    let of = (node.to_owned(), item.clone());
    let is_new = !before.contains(&of);
    before.push(of);
    is_new
}

macro_rules! zip {
    ($($type:ident $name:ident $place:tt),*) => {
        impl<$($type: Send + 'static),*> Join<($($type,)*)> for Zip {
            type Out = ($($type,)*);

            fn join(&self, mut inputs: ($(Items<$type>,)*), cx: &Context) -> Items<Self::Out> {
                let first: u64 = or_fail!(cx.restored()).unwrap_or(0);
                let (strict, cx) = (self.strict, cx.clone());
                Items::generate(async move |out| {
                    for index in first.. {
                        out.snapshot(&cx, || index);
                        let mut ended = None;
                        $(
                            let mut $name = None;
                            if ended.is_none() || strict {
                                $name = inputs.$place.next().await;
                                if $name.is_none() {
                                    ended.get_or_insert($place);
                                }
                            }
                        )*
                        if let Some(ended) = ended {
                            let (mut longer, mut errors) = (None, Vec::new());
                            $(
                                longer = longer.or($name.as_ref().map(|_| $place));
                                match $name {
                                    Some(Err(error)) if is_new(&error, &mut errors) => {
                                        out.emit(Err(error)).await;
                                    }
                                    Some(Ok(_)) => cx.count_dropped(1),
                                    Some(Err(_)) | None => {}
                                }
                            )*
                            if strict && let Some(longer) = longer {
                                let message = format!("input {ended} ended after {index} items, input {longer} has more");
                                // The rest of the longer input is lost, however much it is.
                                out.emit(Err(Error::shape(message).fatal())).await;
                            }
                            return;
                        }
                        let ($(Some($name),)*) = ($($name,)*) else { unreachable!("none has ended") };
                        match ($($name,)*) {
                            ($(Ok($name),)*) => {
                                $(let $name = $name.into_parts();)*
                                let origin = Origin::joined(vec![$($name.1),*], index);
                                out.emit(Ok(Item::new(($($name.0,)*), origin))).await;
                            }
                            // An error takes an item's place: the item that would be its partner is
                            // left out.
                            ($($name,)*) => {
                                let mut errors = Vec::new();
                                $(
                                    match $name {
                                        Err(error) if is_new(&error, &mut errors) => {
                                            out.emit(Err(error)).await;
                                        }
                                        Err(_) => {}
                                        Ok(_) => cx.count_dropped(1),
                                    }
                                )*
                            }
                        }
                    }
                })
            }
            fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
                // If another length is an error, that comes after the pairs.
                inputs.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().min()
            }
            fn hints(&self) -> Hints {
                self.own_hints()
            }
        }
    };
}

zip!(A a 0, B b 1);
zip!(A a 0, B b 1, C c 2);

impl<A: Send + 'static> Graph<A> {
    /// Pairs the items with those of another graph, first with first. Ends with the shorter.
    ///
    /// If one of a pair fails, the error comes in its place, and the other is left out and counted
    /// as dropped, so that later items keep their partners. If both are copies of one item that
    /// failed above a [`fork`](Graph::fork), there is one error. The remaining items of the longer input
    /// are not asked for; [`Zip::strict`] makes them an error. For three inputs see
    /// [`zip3`](Graph::zip3). Runs in one place, in order; both inputs are read one item at a time.
    ///
    /// Pairs are right only if both inputs give the same samples in the same sequence, as the
    /// outputs of a [`fork`](Graph::fork) do through one-in-one-out steps. If they come from
    /// different sources, or one was filtered or shuffled by itself,
    /// [`explain`](crate::DataLoader::explain) remarks on it; [`join_by_key`](Graph::join_by_key)
    /// pairs by key.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let pairs = Graph::range(0..3).zip(Graph::from_vec(vec!["a", "b"]));
    /// assert_eq!(pairs.collect().unwrap(), [(0, "a"), (1, "b")]);
    /// ```
    pub fn zip<B: Send + 'static>(self, other: Graph<B>) -> Graph<(A, B)> {
        let weigh = pair_weigher(&self, &other);
        let pairs = Graph::join((self, other), Zip::new());
        weighed_by_parts(pairs, move |(a, b)| weigh(a, Some(b)))
    }

    /// Joins the items with those of two other graphs, first with first; works as
    /// [`zip`](Graph::zip) does.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let three = Graph::range(0..9).zip3(Graph::from_vec(vec!["a", "b"]), Graph::range(5..9));
    /// assert_eq!(three.collect().unwrap(), [(0, "a", 5), (1, "b", 6)]);
    /// ```
    pub fn zip3<B: Send + 'static, C: Send + 'static>(
        self,
        b: Graph<B>,
        c: Graph<C>,
    ) -> Graph<(A, B, C)> {
        let (weigh, last) = (pair_weigher(&self, &b), c.weigher());
        let triples = Graph::join((self, b, c), Zip::new());
        weighed_by_parts(triples, move |(a, b, c)| {
            weigh(a, Some(b)) + last(from_ref(c))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, OnError};

    #[test]
    fn partners_stay_together_around_a_failure() {
        let fail = |bad: u64| {
            Graph::range(0..5).try_map(move |n| if n == bad { Err("bad") } else { Ok(n) })
        };
        let loader = DataLoader::builder(fail(1).zip(fail(3)))
            .workers(0)
            .on_error(OnError::skip(9));
        let loader = loader.build().unwrap();
        let pairs: Vec<_> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(pairs, [(0, 0), (2, 2), (4, 4)]);
    }

    #[test]
    fn a_failure_above_a_fork_is_one_of_a_pair() {
        let failing = Graph::range(0..9).try_map(|n| if n % 4 == 1 { Err("bad") } else { Ok(n) });
        let [a, b] = failing.fork();
        let loader = DataLoader::builder(a.zip(b)).on_error(OnError::skip(2));
        let loader = loader.build().unwrap();
        assert_eq!(loader.epoch(0).blocking().flatten().count(), 7);
        assert_eq!(loader.stats().unwrap().skipped, 2);
    }

    #[test]
    fn three_inputs() {
        let [a, b, c] = [3, 2, 4].map(|n| Graph::range(0..n));
        assert_eq!(a.zip3(b, c).collect().unwrap(), [(0, 0, 0), (1, 1, 1)]);
    }

    #[test]
    fn row_36_unequal_lengths() {
        let zip = |a, b| {
            let inputs = (Graph::range(0..a), Graph::range(0..b));
            Graph::join(inputs, Zip::new().strict()).collect()
        };
        // Nobody knows how many items are lost, so no policy skips them.
        let strict = Graph::join(
            (Graph::range(0..9), Graph::range(0..2)),
            Zip::new().strict(),
        );
        let loader = DataLoader::builder(strict).on_error(OnError::skip(1));
        let last = loader.build().unwrap().epoch(0).blocking().last().unwrap();
        assert!(!last.unwrap_err().is_about_an_item());
        assert_eq!(zip(2, 2).unwrap(), [(0, 0), (1, 1)]);
        assert_eq!(zip(0, 0).unwrap(), []);
        let error = zip(2, 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "zip: shape mismatch: input 1 ended after 1 items, input 0 has more"
        );
    }
}
