//! Deals items out to several outputs.

use crate::pipes::fork::{BUFFER, array, split_hints};
use crate::pipes::shared_input::{Deal, Queues, share};
use crate::{Context, Error, Graph, Hints, Item, Items, Result, Split};

/// Deals items out to several outputs; see [`Graph::demux`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Demux<F> {
    outputs: usize,
    buffer: usize,
    classify: F,
}

impl<F> Demux<F> {
    /// Deals to this many outputs, by the number that `classify` returns.
    pub fn new(outputs: usize, classify: F) -> Self {
        Demux {
            outputs,
            buffer: BUFFER,
            classify,
        }
    }

    /// Lets up to `items` items (by default 1000) wait for an output that is behind the others.
    pub fn buffer(mut self, items: usize) -> Self {
        self.buffer = items;
        self
    }
}

impl<T, F> Split<T> for Demux<F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Clone + Send + Sync + 'static,
{
    type Out = T;

    fn outputs(&self) -> usize {
        self.outputs
    }
    fn split(&self, input: Items<T>, cx: &Context) -> Vec<Items<T>> {
        let deal = ByClass {
            classify: self.classify.clone(),
            cx: cx.clone(),
        };
        share(input, self.outputs, self.buffer, deal, cx)
    }
    fn len_hint(&self, input: u64) -> Option<u64> {
        (input == u64::MAX).then_some(input)
    }
    fn hints(&self) -> Hints {
        split_hints(self.outputs, self.buffer)
    }
}

struct ByClass<F> {
    classify: F,
    cx: Context,
}

impl<T, F> Deal<T> for ByClass<F>
where
    T: Send + 'static,
    F: Fn(&T) -> usize + Send + 'static,
{
    fn goes_to_one(&self) -> bool {
        true
    }
    fn deal(&mut self, item: Item<T>, to: &mut Queues<T>) -> Result<()> {
        let (class, outputs) = ((self.classify)(&item), to.count());
        if class >= outputs {
            let message = format!("the classifier says {class}, and there are {outputs} outputs");
            return Err(self.cx.fail(&item, Error::user(message)));
        }
        if !to.open().any(|open| open == class) {
            self.cx.count_dropped(1);
        }
        to.push(class, item);
        Ok(())
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Deals items out to `N` graphs: each goes to the graph whose number `classify` returns. For a
    /// number known at run time: `graph.split(Demux::new(n, classify))`.
    ///
    /// The outputs share everything upstream: the output that is polled drives it, and items for
    /// the others wait, up to [`Demux::buffer`] each. Order is kept within an output. Items of an
    /// output that is read no more are counted as dropped.
    ///
    /// # Errors
    /// An item whose number is too large is an error. Errors from upstream go to every output,
    /// since it is unknown which output they belong to; a policy that skips counts them once.
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) as for [`fork`](Graph::fork).
    ///
    /// # Examples
    /// ```
    /// let [even, odd] = datapipes::Graph::range(0..6).demux(|n| (n % 2) as usize);
    /// assert_eq!(odd.zip(even).collect().unwrap(), [(1, 0), (3, 2), (5, 4)]);
    /// ```
    pub fn demux<const N: usize>(
        self,
        classify: impl Fn(&T) -> usize + Clone + Send + Sync + 'static,
    ) -> [Graph<T>; N] {
        array(self.split(Demux::new(N, classify)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, DataLoader, OnError};

    #[test]
    fn a_class_out_of_range_names_the_item() {
        let [a, b] = Graph::range(0..3).demux(|&n| n as usize);
        let error = Graph::concat([a, b]).collect().unwrap_err().to_string();
        assert_eq!(
            error,
            "demux: 0:2: the classifier says 2, and there are 2 outputs"
        );
    }

    #[test]
    fn all_for_the_other_is_an_error_and_no_deadlock() {
        let outputs = Graph::range(0..100).split(Demux::new(2, |_: &u64| 1).buffer(10));
        let error = Graph::concat(outputs).collect().unwrap_err().to_string();
        assert!(
            error.contains("output 0 ran 10 items ahead of output 1"),
            "{error}"
        );
    }

    #[test]
    fn a_failure_above_it_counts_once() {
        let failing =
            || Graph::range(0..9).try_map(|n| if n % 4 == 1 { Err("bad") } else { Ok(n) });
        let concat: fn([Graph<u64>; 3]) -> Graph<u64> = Graph::concat;
        let zip: fn([Graph<u64>; 3]) -> Graph<u64> = |[a, b, c]| a.zip3(b, c).map(|(a, ..)| a);
        for (join, items) in [(concat, 7), (zip, 0)] {
            let loader = |most| {
                let graph = join(failing().demux(|n| (n % 3) as usize));
                let loader = DataLoader::builder(graph).on_error(OnError::skip(most));
                loader.build().unwrap()
            };
            let enough = loader(2);
            let seen: Vec<u64> = enough.epoch(0).blocking().map(Result::unwrap).collect();
            assert_eq!(seen.len(), items);
            assert_eq!(enough.stats().unwrap().skipped, 2);
            let error = loader(1).epoch(0).blocking().last().unwrap().unwrap_err();
            assert!(
                error.to_string().contains("2 items failed where 1 may"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_failure_counts_if_one_copy_alone_is_read() {
        let failing = Graph::range(0..9).try_map(|n| if n % 4 == 1 { Err("bad") } else { Ok(n) });
        let [a, b] = failing.demux(|n| (n % 2) as usize);
        // The errors of the first output come after its end here.
        let graph = Graph::concat([b, a.take(1)]);
        let loader = DataLoader::builder(graph).on_error(OnError::skip(9));
        let loader = loader.build().unwrap();
        assert!(loader.epoch(0).blocking().all(|item| item.is_ok()));
        assert_eq!(loader.stats().unwrap().skipped, 2);
    }

    #[test]
    fn copies_from_before_a_stop_do_not_count() {
        let failing = |bad: u64| move |n| if n == bad { Err("bad") } else { Ok(n) };
        let loader = |most| {
            let [a, b] = Graph::range(0..9)
                .try_map(failing(1))
                .demux(|n| (n % 2) as usize);
            let b = b.try_map(failing(7));
            let loader = DataLoader::builder(Graph::concat([a, b])).on_error(OnError::skip(most));
            loader.resumable().build().unwrap()
        };
        // Two failures, of which the first has a copy in each output.
        for stop in 0..8 {
            let mut epoch = loader(2).epoch(0).blocking();
            assert!(epoch.by_ref().take(stop).all(|item| item.is_ok()));
            let checkpoint = epoch.checkpoint().unwrap();
            let checkpoint = Checkpoint::from_bytes(&checkpoint.to_bytes()).unwrap();
            let resumed = |most| loader(most).resume(&checkpoint).unwrap().blocking();
            assert_eq!(resumed(2).map(Result::unwrap).count(), 7 - stop, "{stop}");
            assert!(resumed(1).last().unwrap().is_err(), "{stop}");
        }
    }

    #[test]
    fn row_30_no_items_and_wrong_settings() {
        let [a, b] = Graph::range(0..0).demux(|_| 0);
        assert_eq!(Graph::concat([a, b]).collect().unwrap(), [0u64; 0]);
        let outputs = Graph::range(0..1).split(Demux::new(2, |_: &u64| 0).buffer(0));
        assert!(
            Graph::concat(outputs)
                .collect()
                .unwrap_err()
                .to_string()
                .contains("a buffer of zero")
        );
    }
}
