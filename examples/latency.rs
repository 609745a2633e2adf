//! Reads the same images one by one over links of 0, 20 and 150 ms, in each order, with the
//! duration of each batch drawn over time as in figure 4 of *Hiding Latencies in Network-Based
//! Image Loading for Deep Learning* (Versaci and Busonera, 2024).
//!
//! `cargo run --release --features http --example latency [-- OPTIONS]`. The server runs on this
//! machine, and models the link: its round trip, its bandwidth, and every tenth connection ten
//! times slower.
//!
//! Options: `--images N` (1000), `--batch N` (32), `--cap MB/S` of the link in all (60; 0 for
//! none), `--slow PERCENT` of the connections (10), `--svg PATH` (`latency.svg`), `--trace FILE` (timeline of the
//! epoch in strict order at 150 ms, for `ui.perfetto.dev`).

mod support;

use std::fmt::Write as _;
use std::time::Instant;

use datapipes::{BoxError, DataLoader, Order};
use datapipes_io::prelude::*;
use datapipes_io::stores;
use support::args::Args;
use support::link::{self, Link};
use support::shards;
use support::trace::Trace;

const USAGE: &str =
    "latency [--images N] [--batch N] [--cap MB/S] [--slow PERCENT] [--svg PATH] [--trace FILE]";

fn main() -> Result<(), BoxError> {
    link::serve_if_asked();
    let args = Args::parse("", "images batch cap slow svg trace", USAGE);
    let images: u64 = args.get("images").unwrap_or(1000);
    let batch: usize = args.get("batch").unwrap_or(32);
    let (cap, slow) = (
        args.get("cap").unwrap_or(60.0),
        args.get("slow").unwrap_or(10u64),
    );
    let svg = args.get("svg").unwrap_or("latency.svg".to_owned());

    let folder = std::env::temp_dir().join(format!("datapipes-latency-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    println!("making {images} pictures");
    let names = datapipes::Graph::range(0..images).try_map({
        let folder = folder.clone();
        move |n| std::fs::write(folder.join(format!("{n:06}.jpg")), shards::photo(n, 1))
    });
    names.collect()?;
    let server = Link::folder(&folder);
    // The server holds the images in memory.
    std::fs::remove_dir_all(&folder)?;
    let server = server?;

    println!(
        "a link of {cap} MB/s in all, {slow} % of the connections ten times slower, batches of {batch}\n"
    );
    println!(
        "{:>7} {:>12} {:>10} {:>10} {:>12} {:>12}",
        "RTT", "order", "images/s", "MB/s", "median batch", "slowest"
    );
    let mut panels = Vec::new();
    for rtt in [0, 20, 150] {
        let mut curves = Vec::new();
        for (run, order) in [Order::Strict, Order::Bounded(4 * batch), Order::Arrival]
            .into_iter()
            .enumerate()
        {
            let store =
                stores::open(&server.url(&format!("rtt={rtt},cap={cap},slow={slow},run={run}")))?;
            let graph = store
                .list_files("*.jpg")
                .load_files()
                .map(|file| file.data.len())
                .batch(batch);
            let loader = DataLoader::builder(graph).order(order).build()?;
            let traced = (rtt, order) == (150, Order::Strict);
            let path = args.get("trace").filter(|_| traced);
            let trace = Trace::begin(path, &loader)?;
            let begun = Instant::now();
            let (mut bytes, mut curve) = (0, Vec::new());
            for batch in loader.epoch(0).blocking() {
                bytes += batch?.iter().sum::<usize>();
                curve.push(begun.elapsed().as_secs_f64());
            }
            let wall = begun.elapsed().as_secs_f64();
            trace.finish()?;
            let curve = Curve::new(order, &curve);
            println!(
                "{rtt:>4} ms {:>12} {:>10.0} {:>10.1} {:>9.1} ms {:>9.1} ms",
                order.to_string(),
                images as f64 / wall,
                bytes as f64 / 1e6 / wall,
                curve.median() * 1e3,
                curve.slowest() * 1e3
            );
            curves.push(curve);
        }
        panels.push((rtt, curves));
    }
    std::fs::write(&svg, draw(&panels))?;
    println!("\nthe time of each batch, over the epoch: {svg}");
    Ok(())
}

/// Time of each batch, and waiting time of the consumer for it, in seconds.
struct Curve {
    order: Order,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn new(order: Order, times: &[f64]) -> Curve {
        let before = std::iter::once(0.0).chain(times.iter().copied());
        Curve {
            order,
            points: times
                .iter()
                .zip(before)
                .map(|(&at, before)| (at, at - before))
                .collect(),
        }
    }

    fn median(&self) -> f64 {
        let mut waits: Vec<f64> = self.points.iter().map(|point| point.1).collect();
        waits.sort_by(f64::total_cmp);
        waits[waits.len() / 2]
    }

    /// Returns the longest wait without the first, which is a round trip in any order.
    fn slowest(&self) -> f64 {
        self.points
            .iter()
            .skip(1)
            .map(|point| point.1)
            .fold(0.0, f64::max)
    }
}

const COLOURS: [&str; 3] = ["#c0392b", "#2471a3", "#1e8449"];

/// Draws a panel for each link: time on the x axis, the wait for each batch on the y axis, a line
/// for each order.
fn draw(panels: &[(u64, Vec<Curve>)]) -> String {
    let (width, height, left, top) = (860.0, 190.0, 64.0, 40.0);
    let total = top + panels.len() as f64 * (height + 62.0);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {total}' font-family='sans-serif' font-size='13'>\n\
         <rect width='100%' height='100%' fill='white'/>\n",
        left + width + 24.0
    );
    for (number, (rtt, curves)) in panels.iter().enumerate() {
        let y0 = top + number as f64 * (height + 62.0);
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let end = points().map(|point| point.0).fold(0.1, f64::max);
        let most = points().map(|point| point.1).fold(0.001, f64::max);
        let digits = if end < 2.0 { 2 } else { 1 };
        let (x, y) = (
            |at: f64| left + at / end * width,
            |wait: f64| y0 + height - wait / most * height,
        );
        let _ = writeln!(
            svg,
            "<text x='{left}' y='{}' font-weight='bold'>{rtt} ms</text>",
            y0 - 10.0
        );
        for (place, curve) in curves.iter().enumerate() {
            let at = left + 80.0 + 150.0 * place as f64;
            let _ = writeln!(
                svg,
                "<text x='{at}' y='{}' fill='{}'>{}</text>",
                y0 - 10.0,
                COLOURS[place],
                curve.order
            );
        }
        for tick in 0..=4 {
            let (wait, at) = (most * f64::from(tick) / 4.0, end * f64::from(tick) / 4.0);
            let (level, across) = (y(wait), x(at));
            let _ = write!(
                svg,
                "<line x1='{left}' x2='{}' y1='{level:.1}' y2='{level:.1}' stroke='#ddd'/>\n\
                 <text x='{}' y='{:.1}' text-anchor='end' fill='#555'>{:.0} ms</text>\n\
                 <text x='{across:.1}' y='{}' text-anchor='middle' fill='#555'>{at:.digits$} s</text>\n",
                left + width,
                left - 6.0,
                level + 4.0,
                wait * 1e3,
                y0 + height + 18.0
            );
        }
        for (place, curve) in curves.iter().enumerate() {
            let line: Vec<String> = curve
                .points
                .iter()
                .map(|&(at, wait)| format!("{:.1},{:.1}", x(at), y(wait)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points='{}' fill='none' stroke='{}' stroke-width='1.5'/>",
                line.join(" "),
                COLOURS[place]
            );
        }
    }
    svg + "</svg>\n"
}
