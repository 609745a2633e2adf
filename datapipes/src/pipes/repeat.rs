//! Runs everything upstream again and again.

use crate::{Context, Graph, Hints, Item, Items, Rerun, Upstream};

/// Runs everything upstream again and again; see [`Graph::repeat`] and [`Graph::cycle`].
#[derive(Clone, Debug)]
pub struct Repeat {
    rounds: Option<u64>,
}

impl Repeat {
    /// Runs this many rounds.
    pub fn new(rounds: u64) -> Self {
        Repeat {
            rounds: Some(rounds),
        }
    }

    /// Runs without end.
    pub fn forever() -> Self {
        Repeat { rounds: None }
    }
}

impl<T: Send + 'static> Rerun<T> for Repeat {
    type Out = T;

    fn rerun(&self, upstream: Upstream<T>, cx: &Context) -> Items<T> {
        let rounds = self.rounds.unwrap_or(u64::MAX);
        run_rounds(upstream, cx, rounds, |item| item, |_| None)
    }
    fn name(&self) -> String {
        self.rounds.map_or("cycle", |_| "repeat").to_owned()
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        Some(input.saturating_mul(self.rounds.unwrap_or(u64::MAX)))
    }
    fn hints(&self) -> Hints {
        let settings = self
            .rounds
            .map_or("without end".to_owned(), |rounds| rounds.to_string());
        Hints::any_order()
            .is_resumable(true)
            .selects(true)
            .settings(settings)
            .problem((self.rounds == Some(0)).then_some("a repeat of zero rounds"))
    }
}

/// Runs everything upstream up to `rounds` times; `pass` makes an output of each item, and `after`
/// an item that comes after a round. A round without items is the last.
pub(super) fn run_rounds<T: Send + 'static, U: Send + 'static>(
    mut upstream: Upstream<T>,
    cx: &Context,
    rounds: u64,
    pass: impl Fn(Item<T>) -> Item<U> + Send + 'static,
    after: impl Fn(u64) -> Option<Item<U>> + Send + 'static,
) -> Items<U> {
    let (first, mut nothing) = or_fail!(cx.restored()).unwrap_or((0, true));
    let cx = cx.clone();
    Items::generate(async move |out| {
        for round in first..rounds {
            let mut input = upstream(round);
            loop {
                out.snapshot(&cx, || (round, nothing));
                let Some(item) = out.next_from(&mut input).await else {
                    break;
                };
                nothing = false;
                out.emit(Ok(pass(item))).await;
            }
            // A round without items will be empty for ever.
            if nothing || cx.is_cancelled() {
                return;
            }
            nothing = true;
            if let Some(item) = after(round) {
                out.emit(Ok(item)).await;
            }
        }
    })
}

impl<T: Send + 'static> Graph<T> {
    /// Runs everything upstream `rounds` times within one epoch, one round after another.
    ///
    /// Each round starts the upstream part of the graph from the beginning, with other random
    /// numbers, so an upstream shuffle gives another order and augmentation other crops. Rounds do
    /// not mix: shuffle downstream for that. The items of a later round are children of their
    /// origins, numbered by round. A round without items is the last. Several epochs of the loader
    /// are mostly the better choice.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(datapipes::Graph::range(0..2).repeat(3).collect().unwrap(), [0, 1, 0, 1, 0, 1]);
    /// ```
    pub fn repeat(self, rounds: u64) -> Graph<T> {
        self.rerun(Repeat::new(rounds))
    }

    /// Runs everything upstream without end, as [`repeat`](Graph::repeat) does, until a round has
    /// no items.
    ///
    /// # Examples
    /// ```
    /// let graph = datapipes::Graph::range(0..2).cycle().take(5);
    /// assert_eq!(graph.collect().unwrap(), [0, 1, 0, 1, 0]);
    /// ```
    pub fn cycle(self) -> Graph<T> {
        self.rerun(Repeat::forever())
    }
}

#[cfg(test)]
mod tests {
    use crate::{DataLoader, Graph, OnError};

    #[test]
    fn nothing_does_not_spin_for_ever() {
        assert_eq!(Graph::range(0..0).cycle().collect().unwrap(), [0u64; 0]);
        let failing = Graph::range(0..3)
            .try_map(|n| if n < 9 { Err("no") } else { Ok(n) })
            .cycle();
        let loader = DataLoader::builder(failing)
            .workers(0)
            .on_error(OnError::skip(1000))
            .build()
            .unwrap();
        assert_eq!(loader.epoch(0).blocking().count(), 0);
    }

    #[test]
    fn rounds_differ_and_repeat_exactly() {
        let random = |n, rng: &mut crate::Rng| (n, rng.next_u64());
        let graph = Graph::range(0..50).map_with_rng(random).repeat(2);
        let twice = graph.clone().collect().unwrap();
        assert_eq!(twice, graph.collect().unwrap());
        let (first, second) = twice.split_at(50);
        assert!(
            first
                .iter()
                .zip(second)
                .all(|(a, b)| a.0 == b.0 && a.1 != b.1)
        );
    }
}
