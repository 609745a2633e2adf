//! The root of a graph moves to a thread ahead of the consumer, and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use futures::{FutureExt, StreamExt};

use crate::run::{RankShare, Running, block_on};
use crate::{DataLoader, Graph};

#[test]
fn a_graph_that_moves_to_a_thread_and_back_gives_every_item_once() {
    let graphs: [fn() -> Graph<u64>; 2] = [
        || Graph::range(0..5000).map(|n| n + 1).shuffle(50),
        || Graph::range(0..5000).map_async(|n| async move { Ok::<_, crate::Error>(n + 1) }),
    ];
    for graph in graphs {
        let loader = DataLoader::builder(graph()).workers(2).build().unwrap();
        let expected: Vec<u64> = loader.epoch(0).blocking().map(|n| n.unwrap()).collect();
        for every in [1, 7, 64] {
            let running =
                Running::<u64>::start(&loader.engine, 0, RankShare::default(), false, None);
            let (mut running, mut items, mut moves) = (running.unwrap(), Vec::new(), 0);
            loop {
                match items.len() % (2 * every) {
                    0 => moves += usize::from(running.move_to_thread()),
                    n if n == every => running.move_back(),
                    _ => {}
                }
                let Some(item) = block_on(running.items.next()) else {
                    break;
                };
                items.push(item.unwrap().into_inner());
            }
            assert_eq!(items, expected);
            assert!(moves > 1, "it came back {moves} times");
        }
    }
}

/// While the consumer waits, it has nothing else to do: a thread would only delay the first item.
#[test]
fn a_graph_moves_to_a_thread_when_the_consumer_has_what_it_waited_for() {
    let (send, sent) = futures::channel::oneshot::channel::<()>();
    let sent = sent.shared();
    let graph = Graph::range(0..100).map_async(move |n| {
        let sent = sent.clone();
        async move {
            let _ = sent.await;
            Ok::<_, crate::Error>(n)
        }
    });
    let (here, made) = (std::thread::current().id(), Arc::<AtomicUsize>::default());
    let counter = made.clone();
    let places = graph.scan((), move |(), _| {
        counter.fetch_add(1, Ordering::SeqCst);
        Some(std::thread::current().id() == here)
    });
    let loader = DataLoader::builder(places).workers(2).build().unwrap();
    let mut epoch = loader.epoch(0).blocking();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(epoch.0.poll_next_item(&mut cx).is_pending());
    send.send(()).unwrap();
    assert!(epoch.next().unwrap().unwrap());
    // The consumer does something else until the next ones are there.
    while made.load(Ordering::SeqCst) < 2 {
        std::thread::yield_now();
    }
    assert!(!epoch.next().unwrap().unwrap());
    assert_eq!(epoch.count(), 98);
}
