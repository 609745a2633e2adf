//! Picture of where CPU seconds went.

use super::Stats;
use super::svg::{COLORS, Picture, cut, number, percent, rect, text};
use crate::loader::NodeStats;

const WIDTH: f64 = 460.0;
const ROW: f64 = 22.0;
/// Greatest number of nodes that are shown.
const NODES: usize = 16;

pub(super) fn picture(stats: &Stats) -> Picture {
    let mut nodes: Vec<_> = stats.nodes.iter().collect();
    let seconds = |node: &NodeStats| node.busy.as_secs_f64() * of_cpu(stats, node);
    nodes.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    let sum: f64 = nodes.iter().copied().map(seconds).sum();
    let most = nodes.first().map_or(0.0, |node| seconds(node)).max(1e-9);
    let mut elements = String::new();
    let row = |to: &mut String, place: usize, name: &str, busy: f64, color: usize| {
        let y = place as f64 * ROW;
        text(to, "end", (140.0, y + 15.0), &cut(name, 22));
        rect(to, "track", (150.0, y + 5.0, 190.0, 12.0));
        let color = format!("f{color}");
        rect(
            to,
            &color,
            (150.0, y + 5.0, 190.0 * (busy / most).min(1.0), 12.0),
        );
        let said = format!("{} s · {}", number(busy), percent(busy / sum.max(1e-9)));
        text(to, "muted", (350.0, y + 15.0), &said);
    };
    let (shown, others) = nodes.split_at(nodes.len().min(NODES));
    for (place, node) in shown.iter().enumerate() {
        let segment = stats
            .segments
            .iter()
            .position(|s| Some(s.letter) == node.segment);
        let color = segment.map_or(COLORS - 1, |place| place % (COLORS - 1));
        row(&mut elements, place, &node.name, seconds(node), color);
    }
    let mut rows = shown.len();
    if !others.is_empty() {
        let busy = others.iter().copied().map(seconds).sum();
        let name = format!("{} others", others.len());
        row(&mut elements, rows, &name, busy, COLORS - 1);
        rows += 1;
    }
    Picture {
        name: "cpu".to_owned(),
        title: format!("Where {} CPU seconds went", number(sum)),
        width: WIDTH,
        height: rows as f64 * ROW + 6.0,
        elements,
    }
}

/// Returns the share of a node's time in which it had a core, where that is measured: on the
/// workers. Elsewhere it is 1, as on the thread ahead of the consumer.
fn of_cpu(stats: &Stats, node: &NodeStats) -> f64 {
    let mut segments = stats.segments.iter();
    let segment = segments.find(|segment| Some(segment.letter) == node.segment);
    match segment.filter(|segment| !segment.cpu.is_zero()) {
        Some(segment) => segment.cpu.div_duration_f64(segment.busy).min(1.0),
        None => 1.0,
    }
}
