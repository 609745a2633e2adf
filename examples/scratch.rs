//! scratch
use datapipes::*;
use std::time::Instant;
fn hand(n: u64) -> (u64, u64) {
    let mut rng = Rng::from_key([0, 0, 1, 2]);
    let mut buf: Vec<u64> = Vec::new();
    let (mut k, mut s) = (0, 0);
    let mut batch = Vec::with_capacity(100);
    let mut eat = |b: &mut Vec<u64>| { k += b.len() as u64; s += b.iter().sum::<u64>(); *b = Vec::with_capacity(100); };
    for v in 0..n {
        let mut v = v + 1;
        if v % 2 != 0 { continue; }
        if buf.len() < 1000 { buf.push(v); continue; }
        let i = rng.below(1000) as usize;
        std::mem::swap(&mut v, &mut buf[i]);
        batch.push(v);
        if batch.len() == 100 { eat(&mut batch); }
    }
    rng.shuffle(&mut buf);
    for v in buf { batch.push(v); if batch.len() == 100 { eat(&mut batch); } }
    if !batch.is_empty() { eat(&mut batch); }
    (k, s)
}
fn main() {
    let n = 1_000_000;
    for _ in 0..3 {
        let t = Instant::now();
        let h = std::hint::black_box(hand(std::hint::black_box(n)));
        let th = t.elapsed();
        for workers in [0, 1, 2] {
            let g = Graph::range(0..n).map(|v| v + 1).filter(|v| v % 2 == 0).shuffle(1000).batch(100);
            let l = DataLoader::builder(g).workers(workers).build().unwrap();
            let t = Instant::now();
            let (mut k, mut s) = (0, 0);
            for b in l.epoch(0).blocking() { let b = b.unwrap(); k += b.len() as u64; s += b.iter().sum::<u64>(); }
            let tt = t.elapsed();
            assert_eq!((k, s), h);
            println!("hand {th:?} workers {workers}: {tt:?} ratio {:.2}", tt.as_secs_f64() / th.as_secs_f64());
            if workers == 2 { println!("{}", l.explain()); println!("{}", l.stats().unwrap()); }
        }
    }
    for workers in [0, 1, 2] {
        for order in [Order::Strict, Order::Arrival, Order::Bounded(16)] {
            let g = Graph::range(0..3000).map(|v| { let d = if v % 50 == 0 { 2000 } else { 100 }; let t = Instant::now(); while t.elapsed().as_micros() < d {} v }).batch(100);
            let l = DataLoader::builder(g).workers(workers).order(order).build().unwrap();
            let t = Instant::now();
            let n: usize = l.epoch(0).blocking().map(|b| b.unwrap().len()).sum();
            println!("cpu workers {workers} {order}: {:?} {n}", t.elapsed());
            if workers == 2 && order == Order::Strict { println!("{}", l.explain()); println!("{}", l.stats().unwrap()); }
        }
    }
}
