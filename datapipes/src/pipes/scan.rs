//! Carries a state from item to item.

use crate::{Arity, Context, Emitter, Graph, Hints, Item, Items, Pipe, Wire};

/// Carries a state from item to item; see [`Graph::scan`].
#[derive(Clone, Debug)]
pub struct Scan<S, F> {
    initial: S,
    f: F,
}

impl<S, F> Scan<S, F> {
    /// Applies `f` to the state, which starts as `initial`, and each item.
    pub fn new(initial: S, f: F) -> Self {
        Scan { initial, f }
    }
}

impl<In, Out, S, F> Pipe<In> for Scan<S, F>
where
    In: Send + 'static,
    Out: Send + 'static,
    S: Clone + Send + Sync + 'static,
    F: Fn(&mut S, In) -> Option<Out> + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        scan(input, self.initial.clone(), &self.f, cx, |_, _, _| {})
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::AtMostOne)
            .weighs_by_type(true)
            .instead("`scan_resumable` does, whose state is `Wire`")
    }
}

fn scan<In, Out, S, F>(
    mut input: Items<In>,
    mut state: S,
    f: &F,
    cx: &Context,
    snapshot: fn(&S, &Emitter<Out>, &Context),
) -> Items<Out>
where
    In: Send + 'static,
    Out: Send + 'static,
    S: Send + 'static,
    F: Fn(&mut S, In) -> Option<Out> + Clone + Send + 'static,
{
    let (f, cx) = (f.clone(), cx.clone());
    Items::generate(async move |out| {
        loop {
            snapshot(&state, &out, &cx);
            let Some(item) = out.next_from(&mut input).await else {
                return;
            };
            let (value, origin) = item.into_parts();
            let Some(value) = f(&mut state, value) else {
                cx.count_dropped(1);
                return;
            };
            out.emit(Ok(Item::new(value, origin))).await;
        }
    })
}

/// Carries a state from item to item, and takes snapshots of it if an epoch may be resumed; see
/// [`Graph::scan_resumable`].
#[derive(Clone, Debug)]
pub struct ScanResumable<S, F>(Scan<S, F>);

impl<S, F> Scan<S, F> {
    /// Returns the pipe with a state that is part of snapshots, for epochs that are resumed.
    pub fn resumable(self) -> ScanResumable<S, F>
    where
        S: Wire,
    {
        ScanResumable(self)
    }
}

impl<In, Out, S, F> Pipe<In> for ScanResumable<S, F>
where
    In: Send + 'static,
    Out: Send + 'static,
    S: Wire + Clone + Send + Sync + 'static,
    F: Fn(&mut S, In) -> Option<Out> + Clone + Send + Sync + 'static,
{
    type Out = Out;

    fn apply(&self, input: Items<In>, cx: &Context) -> Items<Out> {
        let state = or_fail!(cx.restored()).unwrap_or_else(|| self.0.initial.clone());
        scan(input, state, &self.0.f, cx, |state, out, cx| {
            out.snapshot(cx, || state.clone())
        })
    }
    fn name(&self) -> String {
        "scan".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::default()
            .arity(Arity::AtMostOne)
            .is_resumable(true)
            .weighs_by_type(true)
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Carries a state from item to item: `f` gets the state and the item, and returns the output.
    ///
    /// As in the standard library's `Iterator::scan`, `None` ends the stream; everything upstream
    /// is then dropped, and the item for which the stream ended is counted as dropped. The state
    /// starts as `initial` in each epoch. Runs in one place, in order; nothing is held but the
    /// state. An epoch cannot be resumed in its middle, since the state may be of any type: for
    /// that there is [`scan_resumable`](Graph::scan_resumable). If no state is needed, use
    /// [`map`](Graph::map), which runs on many items at once.
    ///
    /// # Panics
    /// A panic of the function becomes an error that names the node, and ends the stream, since the
    /// state may be broken.
    ///
    /// # Examples
    /// ```
    /// let sums = datapipes::Graph::range(1..10).scan(0, |sum, n| {
    ///     *sum += n;
    ///     (*sum < 20).then_some(*sum)
    /// });
    /// assert_eq!(sums.collect().unwrap(), [1, 3, 6, 10, 15]);
    /// ```
    pub fn scan<S, U, F>(self, initial: S, f: F) -> Graph<U>
    where
        S: Clone + Send + Sync + 'static,
        U: Send + 'static,
        F: Fn(&mut S, T) -> Option<U> + Clone + Send + Sync + 'static,
    {
        self.pipe(Scan::new(initial, f))
    }

    /// Does the same as [`scan`](Graph::scan), in a loader that can be
    /// [resumed](crate::loader::Builder::resumable): the state is part of the epoch's checkpoint,
    /// so it must be [`Wire`], and should be small.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    /// let sums = Graph::range(1..6).scan_resumable(0, |sum, n| {
    ///     *sum += n;
    ///     Some(*sum)
    /// });
    /// let loader = DataLoader::builder(sums).resumable().build()?;
    /// let mut epoch = loader.epoch(0).blocking();
    /// assert_eq!(epoch.by_ref().take(3).collect::<datapipes::Result<Vec<u64>>>()?, [1, 3, 6]);
    /// let rest = loader.resume(&epoch.checkpoint()?)?.blocking();
    /// assert_eq!(rest.collect::<datapipes::Result<Vec<u64>>>()?, [10, 15]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan_resumable<S, U, F>(self, initial: S, f: F) -> Graph<U>
    where
        S: Wire + Clone + Send + Sync + 'static,
        U: Send + 'static,
        F: Fn(&mut S, T) -> Option<U> + Clone + Send + Sync + 'static,
    {
        self.pipe(Scan::new(initial, f).resumable())
    }
}

#[cfg(test)]
mod tests {
    use crate::{DataLoader, Graph};

    #[test]
    fn the_state_is_fresh_in_each_epoch_and_errors_pass() {
        let graph = Graph::range(0..4)
            .try_map(|n| if n == 1 { Err("one") } else { Ok(n) })
            .scan(0, |sum, n| {
                *sum += n;
                Some(*sum)
            });
        let loader = DataLoader::builder(graph)
            .workers(0)
            .on_error(crate::OnError::skip(9))
            .build()
            .unwrap();
        for epoch in 0..2 {
            let sums: Vec<u64> = loader.epoch(epoch).blocking().map(Result::unwrap).collect();
            assert_eq!(sums, [0, 2, 5]);
        }
    }

    #[test]
    fn a_panic_arrives_with_the_node() {
        let graph =
            Graph::range(0..4).scan((), |_, n| if n == 2 { panic!("two") } else { Some(n) });
        assert_eq!(
            graph.collect().unwrap_err().to_string(),
            "scan: panicked: two"
        );
    }
}
