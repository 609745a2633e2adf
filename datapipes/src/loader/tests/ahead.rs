//! The root of a graph moves to a thread ahead of the consumer, and back.

use futures::StreamExt;

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
