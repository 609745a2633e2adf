//! scratch
use datapipes::*;
fn main() {
    for _ in 0..10 {
    let g = Graph::range(0..10_000_000).map(|v| v + 1).filter(|v| v % 2 == 0).shuffle(1000).batch(100);
    let l = DataLoader::builder(g).workers(0).build().unwrap();
    let (mut k, mut s) = (0, 0);
    for b in l.epoch(0).blocking() { let b = b.unwrap(); k += b.len() as u64; s += b.iter().sum::<u64>(); }
    println!("{k} {s}");
    }
}
