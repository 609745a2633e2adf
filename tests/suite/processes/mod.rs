//! Parts of graphs in processes of their own.

mod crimes;
mod faults;
mod parents;
mod rows;
mod shapes;
mod soak;

use datapipes::{DataLoader, Graph};

#[test]
fn squares() {
    let graph = Graph::range(0..1000).in_processes(2, |numbers| numbers.map(|n| n * n)).batch(10);
    let loader = DataLoader::builder(graph).build().unwrap();
    for epoch in 0..3 {
        let batches = loader.epoch(epoch).blocking().collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(batches.concat(), (0..1000u64).map(|n| n * n).collect::<Vec<_>>());
    }
    println!("{}\n{}", loader.explain(), loader.stats().unwrap());
}
