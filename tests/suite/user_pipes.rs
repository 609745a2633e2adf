//! Pipes as users write them, with what is public alone: they have the rights of those that are built in.

use datapipes::{Context, DataLoader, Facts, Graph, Item, Items, Order, Pipe, Result, Role};

/// Batches, and says nothing of which items are in them.
struct Silent(usize);

impl Pipe<u64> for Silent {
    type Out = Vec<u64>;

    fn apply(&self, mut input: Items<u64>, cx: &Context) -> Items<Vec<u64>> {
        let (cx, size) = (cx.clone(), self.0);
        Items::generate(async move |out| {
            let (mut waiting, mut batches) = (Vec::new(), cx.kept().ok().flatten().unwrap_or(0u64));
            loop {
                if waiting.is_empty() {
                    out.keep(&cx, || batches);
                }
                let next = out.next_from(&mut input).await;
                let ended = next.is_none();
                waiting.extend(next);
                if waiting.len() == size || (ended && !waiting.is_empty()) {
                    out.emit(Ok(Item::gather(std::mem::take(&mut waiting), batches))).await;
                    batches += 1;
                }
                if ended {
                    return;
                }
            }
        })
    }
    fn is_resumable(&self) -> bool {
        true
    }
    fn facts(&self) -> Facts {
        Facts::any_order().with_buffered(self.0).with_role(Role::Batch(self.0))
    }
}

/// What an epoch gives that is stopped after some batches and goes on.
fn stopped_after(graph: Graph<Vec<u64>>, order: Order, stop: usize) -> Result<Vec<u64>> {
    let loader = DataLoader::builder(graph).workers(2).order(order).resumable().build().expect("a sound graph");
    let mut epoch = loader.epoch(0).blocking();
    let mut seen = epoch.by_ref().take(stop).collect::<Result<Vec<_>>>()?;
    let state = epoch.state()?;
    drop(epoch);
    seen.extend(loader.resume(&state)?.blocking().collect::<Result<Vec<_>>>()?);
    let mut seen = seen.concat();
    seen.sort_unstable();
    Ok(seen)
}

#[test]
fn a_pipe_with_a_role_that_does_not_say_what_it_gave_makes_what_is_above_it_strict() {
    for order in [Order::Strict, Order::Bounded(16), Order::Arrival] {
        let graph = Graph::range(0..400).map(|n| n).concurrency(8).pipe(Silent(8));
        assert_eq!(stopped_after(graph, order, 10).unwrap(), Vec::from_iter(0..400), "{order}");
    }
}
