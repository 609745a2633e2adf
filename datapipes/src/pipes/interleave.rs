//! Reads several inputs by turns, a limited number at a time.

use futures::StreamExt;

use super::concat::sum;
use crate::{Context, Error, Graph, Hints, Items, Join, Reader, Result, Role, Wire, Writer};

/// Reads several inputs by turns, a limited number at a time; see [`Graph::interleave`].
#[derive(Clone, Debug)]
pub struct Interleave {
    inputs: usize,
    cycle: usize,
    block: usize,
}

impl Interleave {
    /// Reads this many inputs, `cycle` of them at a time, `block` items from each by turns.
    pub fn new(inputs: usize, cycle: usize, block: usize) -> Self {
        Interleave {
            inputs,
            cycle,
            block,
        }
    }
}

impl<T: Send + 'static> Join<Vec<T>> for Interleave {
    type Out = T;

    fn join(&self, inputs: Vec<Items<T>>, cx: &Context) -> Items<T> {
        let Interleave { cycle, block, .. } = *self;
        let (count, places) = (inputs.len(), cycle.min(inputs.len()));
        let turns = match cx.restored() {
            Ok(Some(InterleaveState(state)))
                if state.2.len() != places || state.3 > count as u64 =>
            {
                return Items::fail(Error::config("a snapshot of another number of inputs"));
            }
            Ok(restored) => restored.unwrap_or(InterleaveState((0, 0, vec![None; places], 0))),
            Err(error) => return Items::fail(error),
        };
        let InterleaveState((mut turn, mut given, mut slots, mut begun)) = turns;
        let cx = cx.clone();
        // Inputs that wait, and inputs that are open.
        let mut inputs: Vec<Option<Items<T>>> = (0u64..)
            .zip(inputs)
            .map(|(number, input)| {
                (number >= begun || slots.contains(&Some(number))).then_some(input)
            })
            .collect();
        Items::generate(async move |out| {
            while begun < count as u64 || slots.iter().any(Option::is_some) {
                out.snapshot(&cx, || InterleaveState((turn, given, slots.clone(), begun)));
                turn %= places.max(1) as u64;
                let slot = &mut slots[turn as usize];
                if slot.is_none() && begun < count as u64 {
                    *slot = Some(begun);
                    begun += 1;
                }
                if let Some(number) = *slot {
                    let input = inputs.get_mut(number as usize).and_then(Option::as_mut);
                    let item = match input {
                        Some(input) => input.next().await,
                        None => None,
                    };
                    match item {
                        Some(item) => {
                            given += 1;
                            out.emit(item).await;
                            if given < block as u64 {
                                continue;
                            }
                        }
                        None => {
                            // Its place is filled when its turn comes again.
                            inputs[number as usize] = None;
                            *slot = None;
                        }
                    }
                }
                (turn, given) = (turn + 1, 0);
            }
        })
    }
    fn len_hint(&self, inputs: &[Option<u64>]) -> Option<u64> {
        sum(inputs)
    }
    fn hints(&self) -> Hints {
        let problem = match self {
            Interleave { inputs: 0, .. } => Some("no inputs"),
            Interleave { cycle: 0, .. } => Some("a cycle length of zero"),
            Interleave { block: 0, .. } => Some("a block length of zero"),
            _ => None,
        };
        let settings = format!("{} at a time, blocks of {}", self.cycle, self.block);
        Hints::any_order()
            .is_resumable(true)
            .selects(true)
            .role(Role::Scatter)
            .settings(settings)
            .problem(problem)
    }
}

/// The place whose turn it is, the number of items it has given in this turn, the input in each
/// place, and the number of inputs begun.
struct InterleaveState((u64, u64, Vec<Option<u64>>, u64));

impl Wire for InterleaveState {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        self.0.encode(to)
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let state: (u64, u64, Vec<Option<u64>>, u64) = Wire::decode(from)?;
        if state.2.iter().flatten().any(|&input| input >= state.3) {
            return Err(Error::config("an input that has not begun is open"));
        }
        Ok(InterleaveState(state))
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Reads graphs by turns: `block` items from each of the first `cycle`, again and again.
    ///
    /// An input that ends frees its place, and the next input takes the place at its turn; an input
    /// is not started before that. These two numbers alone fix the order, as in tf.data, however
    /// slow an input is. A cycle of 1 is [`concat`](Graph::concat); a cycle of all, in blocks of 1,
    /// is [`mux`](Graph::mux). Runs in one place and holds nothing.
    ///
    /// # Examples
    /// ```
    /// use datapipes::Graph;
    /// let inputs = [10, 20, 30].map(|n| Graph::range(n..n + 3));
    /// let graph = Graph::interleave(inputs, 2, 2);
    /// assert_eq!(graph.collect().unwrap(), [10, 11, 20, 21, 12, 22, 30, 31, 32]);
    /// ```
    pub fn interleave(
        inputs: impl IntoIterator<Item = Graph<T>>,
        cycle: usize,
        block: usize,
    ) -> Graph<T> {
        let inputs = Vec::from_iter(inputs);
        let interleave = Interleave::new(inputs.len(), cycle, block);
        Graph::join(inputs, interleave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tf.data's documented example: `range(1, 6)`, each repeated 6 times, a cycle of 2 and blocks
    /// of 4.
    #[test]
    fn gives_the_order_of_tf_data() {
        let inputs = (1..6).map(|n| Graph::range(0..6).map(move |_| n));
        let seen = Graph::interleave(inputs, 2, 4).collect().unwrap();
        let documented = [
            1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5,
            5,
        ];
        assert_eq!(seen, documented);
    }

    #[test]
    fn row_37_empty_inputs_and_wrong_settings() {
        let inputs = || [0, 2, 0, 1].map(|n| Graph::range(0..n));
        assert_eq!(
            Graph::interleave(inputs(), 2, 1).collect().unwrap(),
            [0, 1, 0]
        );
        assert_eq!(
            Graph::interleave(inputs(), 9, 9).collect().unwrap(),
            [0, 1, 0]
        );
        assert!(Graph::interleave(inputs(), 0, 1).collect().is_err());
        assert!(Graph::interleave(inputs(), 1, 0).collect().is_err());
        assert!(Graph::<u8>::interleave([], 1, 1).collect().is_err());
    }
}
