//! Takes one item from each input by turns.

use futures::StreamExt;

use super::concat::sum;
use crate::{Context, Error, Graph, Hints, Items, Join, Role};

/// Takes one item from each input by turns; see [`Graph::mux`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Mux {
    inputs: usize,
    stop_at_first: bool,
}

impl Mux {
    /// Reads this many inputs, until all are exhausted.
    pub fn new(inputs: usize) -> Self {
        Mux {
            inputs,
            stop_at_first: false,
        }
    }

    /// Ends when the turn comes to an input that is exhausted, as torchdata's `mux`.
    pub fn stop_at_first(mut self) -> Self {
        self.stop_at_first = true;
        self
    }
}

impl<T: Send + 'static> Join<Vec<T>> for Mux {
    type Out = T;

    fn join(&self, inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        by_turns(inputs, cx, self.stop_at_first)
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        if !self.stop_at_first {
            return sum(inputs);
        }
        let lengths = inputs.iter().copied().collect::<Option<Vec<u64>>>()?;
        let shortest = lengths.iter().copied().min()?;
        // All inputs have given equally many, and those before it one more.
        let before = lengths.iter().position(|&len| len == shortest)? as u64;
        Some(
            shortest
                .saturating_mul(lengths.len() as u64)
                .saturating_add(before),
        )
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .ignores_order(!self.stop_at_first)
            .is_resumable(true)
            .selects(true)
            .role(Role::Scatter)
            .settings(if self.stop_at_first {
                "stop at first"
            } else {
                ""
            })
            .problem((self.inputs == 0).then_some("no inputs"))
    }
}

/// Takes one item from each input by turns.
pub(super) fn by_turns<T: Send + 'static>(
    inputs: Vec<Items<T>>,
    cx: &Context,
    stop_at_first: bool,
) -> Items<T> {
    // The input whose turn it is, and the exhausted inputs.
    let (mut turn, mut ended) = match cx.restored::<(u64, Vec<bool>)>() {
        Ok(Some((turn, ended))) if ended.len() == inputs.len() => (turn as usize, ended),
        Ok(Some(_)) => {
            return Items::fail(Error::config("a snapshot of another number of inputs"));
        }
        Ok(None) => (0, vec![false; inputs.len()]),
        Err(error) => return Items::fail(error),
    };
    let mut inputs: Vec<_> = inputs
        .into_iter()
        .zip(&ended)
        .map(|(input, ended)| (!ended).then_some(input))
        .collect();
    let cx = cx.clone();
    Items::generate(async move |out| {
        while ended.contains(&false) {
            out.snapshot(&cx, || (turn as u64, ended.clone()));
            turn %= inputs.len();
            if let Some(input) = &mut inputs[turn] {
                match input.next().await {
                    Some(item) => out.emit(item).await,
                    None if stop_at_first => return,
                    None => {
                        inputs[turn] = None;
                        ended[turn] = true;
                    }
                }
            }
            turn += 1;
        }
    })
}

impl<T: Send + 'static> Graph<T> {
    /// Takes one item from each graph by turns; exhausted graphs are left out, until all are
    /// exhausted (torchdata's `mux_longest`).
    ///
    /// With `Graph::join(inputs, Mux::new(n).stop_at_first())` it ends with the first. An item that
    /// fails uses up its turn. Runs in one place and holds nothing. For unequal shares see
    /// [`mix`](Graph::mix); to take from the graph that is ready first,
    /// [`greedy_join`](Graph::greedy_join).
    ///
    /// # Examples
    /// ```
    /// use datapipes::{Graph, pipes::Mux};
    /// let inputs = || vec![Graph::range(0..3), Graph::range(10..11), Graph::range(20..22)];
    /// assert_eq!(Graph::mux(inputs()).collect()?, [0, 10, 20, 1, 21, 2]);
    /// assert_eq!(Graph::join(inputs(), Mux::new(3).stop_at_first()).collect()?, [0, 10, 20, 1]);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn mux(inputs: impl IntoIterator<Item = Graph<T>>) -> Graph<T> {
        let inputs = Vec::from_iter(inputs);
        let mux = Mux::new(inputs.len());
        Graph::join(inputs, mux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_37_one_empty_one_failing_one_endless() {
        let endless = Graph::from_iter_with(|| 100..);
        let failing = Graph::range(0..2).try_map(|n| if n == 0 { Err("zero") } else { Ok(n) });
        let graph = Graph::mux([Graph::range(0..0), failing, endless]).take(3);
        let loader = crate::DataLoader::builder(graph)
            .workers(0)
            .on_error(crate::OnError::skip(1))
            .build()
            .unwrap();
        let seen: Vec<u64> = loader.epoch(0).blocking().map(Result::unwrap).collect();
        assert_eq!(seen, [100, 1, 101]);
        assert!(Graph::<u64>::mux([]).collect().is_err());
    }
}
