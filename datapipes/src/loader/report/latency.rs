//! Histograms of durations as pictures.

use std::time::Duration;

use super::Stats;
use super::svg::{Picture, count, cut, rect, text, time};
use crate::{Histogram, Work};

const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 140.0;
/// Area of the bars: left, top, width, height.
const AREA: (f64, f64, f64, f64) = (10.0, 48.0, 300.0, 66.0);
const BARS: usize = 50;
/// Greatest number of nodes that are shown, the busiest ones.
const NODES: usize = 24;

/// Returns the pictures: the consumer's waits, morsels of I/O, and items of the busiest nodes.
pub(super) fn pictures(stats: &Stats) -> Vec<Picture> {
    let mut shown = vec![("The consumer's waits".to_owned(), &stats.waits, 1)];
    for (place, segment) in stats.segments.iter().enumerate() {
        if segment.work == Work::Io {
            let name = format!("Requests of segment {}", segment.letter);
            shown.push((name, &segment.morsel_time, place));
        }
    }
    let mut nodes: Vec<_> = stats.nodes.iter().collect();
    nodes.sort_by_key(|node| std::cmp::Reverse(node.busy));
    for node in nodes.into_iter().take(NODES) {
        let segment = stats
            .segments
            .iter()
            .position(|s| Some(s.letter) == node.segment);
        let name = format!("Items of {}", node.name);
        shown.push((name, &node.item_time, segment.unwrap_or(7)));
    }
    shown
        .into_iter()
        .filter(|(_, histogram, _)| !histogram.is_empty())
        .enumerate()
        .map(|(place, (title, histogram, color))| picture(place + 1, title, histogram, color % 8))
        .collect()
}

fn picture(place: usize, title: String, histogram: &Histogram, color: usize) -> Picture {
    let mut elements = String::new();
    text(&mut elements, "strong", (10.0, 18.0), &cut(&title, 40));
    let [p50, p99] = [0.5, 0.99].map(|share| histogram.quantile(share));
    let said = format!(
        "{} · p50 {} · p99 {} · max {}",
        count(histogram.count()),
        time(p50),
        time(p99),
        time(histogram.max())
    );
    text(&mut elements, "muted", (10.0, 34.0), &said);
    let logarithm = |time: Duration| time.as_secs_f64().max(1e-9).log10();
    let ends = || histogram.buckets().map(|(upper, _)| logarithm(upper));
    let (least, most) = ends().fold((f64::MAX, f64::MIN), |(least, most), end| {
        (least.min(end), most.max(end))
    });
    // At least a factor of ten, and some room at both ends.
    let more = ((1.0 - (most - least)) / 2.0).max(0.05);
    let (from, to) = (least - more, most + more);
    let (x, y, width, height) = AREA;
    let place_of = |end: f64| (end - from) / (to - from);
    let mut bars = [0u64; BARS];
    for (upper, number) in histogram.buckets() {
        let bar = (place_of(logarithm(upper)) * BARS as f64) as usize;
        bars[bar.min(BARS - 1)] += number;
    }
    let highest = bars.iter().copied().max().unwrap_or(1).max(1) as f64;
    // Decades, and if they are few also their fifths and halves.
    let decades = || (from.floor() as i32..=to.ceil() as i32).map(|power| 10f64.powi(power));
    let ticks: Vec<f64> = match to - from {
        few if few < 2.2 => decades().flat_map(|d| [d, d * 2.0, d * 5.0]).collect(),
        _ => decades().collect(),
    };
    let every = (ticks.len() / 7).max(1);
    for tick in ticks.into_iter().step_by(every) {
        let at = x + width * place_of(tick.log10());
        if at < x - 1.0 || at > x + width + 1.0 {
            continue;
        }
        elements += &format!("<path class=\"grid\" d=\"M{at:.1} {y:.1}v{height:.1}\"/>");
        let class = match at {
            at if at < x + 14.0 => "muted",
            at if at > x + width - 14.0 => "muted end",
            _ => "muted middle",
        };
        let name = time(Duration::from_secs_f64(tick))
            .replace(".00", "")
            .replace(".0", "");
        text(&mut elements, class, (at, y + height + 15.0), &name);
    }
    let step = width / BARS as f64;
    for (bar, number) in bars.iter().enumerate().filter(|(_, number)| **number > 0) {
        let high = (height * *number as f64 / highest).max(1.0);
        let area = (x + step * bar as f64, y + height - high, step - 0.6, high);
        rect(&mut elements, &format!("f{color}"), area);
    }
    for quantile in [p50, p99] {
        let at = x + width * place_of(logarithm(quantile));
        elements += &format!(
            "<path class=\"limit\" d=\"M{at:.1} {:.1}v{:.1}\"/>",
            y - 4.0,
            height + 4.0
        );
    }
    Picture {
        name: format!("latency-{place}"),
        title: format!("{title}: {said}"),
        width: WIDTH,
        height: HEIGHT,
        elements,
    }
}
