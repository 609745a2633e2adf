//! The graph as a picture: its nodes from the sources down to the consumer.

use std::collections::HashSet;

use super::Stats;
use super::svg::{COLORS, Picture, bytes, count, cut, escape, number, percent, rect, text, time};
use crate::loader::{NodeStats, QueueStats};

const WIDTH: f64 = 370.0;
const HEIGHT: f64 = 48.0;
/// Distances between boxes.
const ACROSS: f64 = 24.0;
const DOWN: f64 = 24.0;
const MARGIN: f64 = 10.0;

pub(super) fn picture(stats: &Stats) -> Picture {
    let places = places(&stats.nodes);
    let rows = places.iter().map(|&(_, row)| row + 1).max().unwrap_or(0);
    let columns = places.iter().map(|&(column, _)| column + 1).max();
    let at = |(column, row): (usize, usize)| {
        (
            MARGIN + column as f64 * (WIDTH + ACROSS),
            MARGIN + 10.0 + row as f64 * (HEIGHT + DOWN),
        )
    };
    let slowest = stats.slowest_node();
    let busy: f64 = stats.nodes.iter().map(|n| n.busy.as_secs_f64()).sum();
    let (mut edges, mut boxes) = (String::new(), String::new());
    let mut edge = |from: (usize, usize), to: (usize, usize)| {
        let path = path(at(from), at(to), to.1 - from.1 > 1);
        edges += &format!("<path class=\"edge\" d=\"{path}\"/>");
    };
    for (place, node) in stats.nodes.iter().enumerate() {
        for &input in &node.inputs {
            edge(places[input], places[place]);
        }
        let share = node.busy.as_secs_f64() / busy.max(1e-9);
        let segment = stats.segments.iter();
        let segment = segment
            .map(|s| Some(s.letter))
            .position(|letter| letter == node.segment);
        let of_color = segment.map_or(COLORS - 1, |place| place % (COLORS - 1));
        let card = Card {
            name: &node.name,
            end: format!("{} of the work", percent(share)),
            figures: figures(stats, node),
            color: format!("f{of_color}"),
            share,
            sets_pace: slowest == Some(place),
            node: Some(node),
        };
        card.draw(&mut boxes, at(places[place]));
    }
    if let Some(&root) = places.last() {
        let consumer = (root.0, rows);
        edge(root, consumer);
        if let Some(queue) = &stats.queue {
            ready(&mut boxes, at(root), queue);
        }
        let waited = stats.consumer_waited();
        let card = Card {
            name: "consumer",
            end: format!("waited {}", percent(waited)),
            figures: consumer_figures(stats),
            color: "f1".to_owned(),
            share: waited,
            sets_pace: stats.delivered > 0 && waited < 0.05,
            node: None,
        };
        card.draw(&mut boxes, at(consumer));
    }
    let (right, bottom) = at((columns.unwrap_or(1), rows + 1));
    Picture {
        name: "graph".to_owned(),
        title: "The graph, with the figures of each node".to_owned(),
        width: right,
        height: bottom - DOWN + MARGIN,
        elements: edges + &boxes,
    }
}

/// Returns the path of an edge between two boxes, beside those that are between them if it is `long`.
fn path((x, y): (f64, f64), (end, bottom): (f64, f64), long: bool) -> String {
    let (x, y, end) = (x + WIDTH / 2.0, y + HEIGHT, end + WIDTH / 2.0);
    if long {
        let (lane, down, up) = (x + WIDTH / 2.0 + ACROSS / 2.0, y + DOWN, bottom - DOWN);
        format!(
            "M{x:.0} {y:.0}C{x:.0} {down:.0} {lane:.0} {y:.0} {lane:.0} {down:.0}V{up:.0}C{lane:.0} {bottom:.0} {end:.0} {up:.0} {end:.0} {bottom:.0}"
        )
    } else {
        let half = f64::midpoint(y, bottom);
        format!("M{x:.0} {y:.0}C{x:.0} {half:.0} {end:.0} {half:.0} {end:.0} {bottom:.0}")
    }
}

/// The box of a node, or of the consumer.
struct Card<'a> {
    name: &'a str,
    /// Text at the end of the line with the name.
    end: String,
    figures: String,
    color: String,
    /// Part of its bar that is filled.
    share: f64,
    sets_pace: bool,
    node: Option<&'a NodeStats>,
}

impl Card<'_> {
    fn draw(&self, to: &mut String, (x, y): (f64, f64)) {
        if let Some(queue) = self.node.and_then(|node| node.queue.as_ref()) {
            ready(to, (x, y), queue);
        }
        frame(to, (x, y), self.sets_pace);
        *to += &format!("<g><title>{}</title>", escape(self.name));
        text(to, "strong", (x + 26.0, y + 18.0), &cut(self.name, 30));
        to.push_str("</g>");
        text(to, "end", (x + WIDTH - 10.0, y + 18.0), &self.end);
        text(to, "muted", (x + 26.0, y + 34.0), &self.figures);
        let full = WIDTH - 36.0;
        rect(to, "track", (x + 26.0, y + 40.0, full, 3.0));
        rect(
            to,
            &self.color,
            (x + 26.0, y + 40.0, full * self.share, 3.0),
        );
        if let Some(node) = self.node {
            rect(to, &self.color, (x, y, 5.0, HEIGHT));
            if let Some(letter) = node.segment {
                let letter = letter.to_string();
                text(to, "muted middle", (x + 15.0, y + 18.0), &letter);
            }
        }
    }
}

/// Draws the figures of the queue below a box.
fn ready(to: &mut String, (x, y): (f64, f64), queue: &QueueStats) {
    let (ready, depth) = (number(queue.occupancy), count(queue.depth));
    let wait = time(queue.item_wait.quantile(0.5));
    let (middle, y) = (x + WIDTH / 2.0, y + HEIGHT + 15.0);
    let said = format!("{ready} of {depth} ready for {wait}");
    text(to, "muted end", (middle - 7.0, y), &said);
    let said = format!("at most {}", bytes(queue.memory.most));
    text(to, "muted", (middle + 7.0, y), &said);
}

/// Draws the box of a node, and marks that of the part that sets the pace.
fn frame(to: &mut String, (x, y): (f64, f64), sets_pace: bool) {
    let class = if sets_pace { "hot" } else { "box" };
    rect(to, class, (x, y, WIDTH, HEIGHT));
    if sets_pace {
        text(to, "flag end", (x + WIDTH - 4.0, y - 5.0), "sets the pace");
    }
}

fn consumer_figures(stats: &Stats) -> String {
    let mut said = format!(
        "{} batches · {}/s · {} were ready",
        count(stats.delivered),
        number(stats.items_per_second()),
        percent(stats.readiness())
    );
    if let Some(device) = &stats.device {
        said += &format!(" · {} in uploads", time(device.busy));
    }
    said
}

fn figures(stats: &Stats, node: &NodeStats) -> String {
    let rate = node.items as f64 / stats.wall.as_secs_f64().max(1e-9);
    let mut said = format!("{} items · {}/s", count(node.items), number(rate));
    if !node.item_time.is_empty() {
        let [p50, p99] = [0.5, 0.99].map(|share| time(node.item_time.quantile(share)));
        said += &format!(" · p50 {p50} · p99 {p99}");
    }
    if node.errors > 0 {
        said += &format!(" · {} errors", count(node.errors));
    }
    said
}

/// Returns the column and row of each node: its row is above those of its readers, and its column
/// that of its first reader if it is free there.
pub(super) fn places(nodes: &[NodeStats]) -> Vec<(usize, usize)> {
    // Rows from the bottom: readers come after their inputs.
    let mut levels = vec![0; nodes.len()];
    for (place, node) in nodes.iter().enumerate().rev() {
        for &input in &node.inputs {
            levels[input] = levels[input].max(levels[place] + 1);
        }
    }
    let rows = levels.iter().max().map_or(0, |most| most + 1);
    let mut columns: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut used = HashSet::new();
    // A path is followed to its source before the next is begun.
    let mut open: Vec<(usize, usize)> = nodes
        .len()
        .checked_sub(1)
        .map(|root| (root, 0))
        .into_iter()
        .collect();
    while let Some((place, wanted)) = open.pop() {
        if columns[place].is_some() {
            continue;
        }
        let free = (wanted..).find(|&column| used.insert((column, levels[place])));
        columns[place] = free;
        let column = free.unwrap_or(wanted);
        open.extend(
            nodes[place]
                .inputs
                .iter()
                .rev()
                .map(|&input| (input, column)),
        );
    }
    let columns = columns.into_iter().map(Option::unwrap_or_default);
    columns
        .zip(levels)
        .map(|(column, level)| (column, rows - 1 - level))
        .collect()
}
