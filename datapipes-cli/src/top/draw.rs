//! Draws a view: as lines, which fill a terminal or are printed as a page.

use std::time::Duration;

use datapipes::Work;
use datapipes::loader::{NodeStats, SegmentStats, Stats};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};

use super::format::{bytes, clean, clock, count, rate, time};
use super::view::{Contact, Sort, View};

/// Columns of a page that is no terminal.
const PAGE: u16 = 100;
/// Maximum number of kinds of skipped items that are shown.
const SKIPS: usize = 3;
const KEYS: &str = " q quit  p pause  s sort  r reset  e epoch  l last 10 s  ↑↓ scroll";

/// Draws on a terminal.
pub fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let area = frame.area();
    fill(view, area, frame.buffer_mut());
}

/// Returns the page as a text.
pub fn page(view: &View) -> String {
    let parts = Parts::of(view, usize::from(PAGE));
    let all = parts.top.iter().chain(&parts.nodes).chain(&parts.bottom);
    let mut text = String::new();
    for line in all {
        text.push_str(line.to_string().trim_end());
        text.push('\n');
    }
    text
}

fn fill(view: &mut View, area: Rect, to: &mut Buffer) {
    let parts = Parts::of(view, usize::from(area.width));
    let Parts {
        mut top,
        nodes,
        mut bottom,
        keys,
    } = parts;
    let height = usize::from(area.height).saturating_sub(1);
    // Without room for all, there are no blank lines; then the nodes scroll, and their last line says
    // how many are hidden.
    if top.len() + nodes.len() + bottom.len() > height {
        top.retain(|line| line.width() > 0);
        bottom.retain(|line| line.width() > 0);
    }
    let room = height.saturating_sub(top.len() + bottom.len());
    let hidden = nodes.len().saturating_sub(room);
    view.scrolled = view.scrolled.min(hidden);
    let mut shown: Vec<Line<'_>> = top.clone();
    shown.extend(nodes.iter().skip(view.scrolled).take(room).cloned());
    if view.scrolled < hidden
        && room > 0
        && let Some(last) = shown.last_mut()
    {
        let (above, below) = (view.scrolled, hidden - view.scrolled);
        *last = Line::from(format!("  … {above} nodes above, {} below", below + 1)).dim();
    }
    shown.extend(bottom);
    shown.resize(height, Line::default());
    shown.push(keys);
    for (line, y) in shown.iter().zip(area.top()..area.bottom()) {
        to.set_line(area.left(), y, line, area.width);
    }
    if let Some(title) = top.first()
        && area.height > 0
    {
        let row = Rect { height: 1, ..area };
        to.set_style(row, title.style);
    }
}

/// The lines of a view. Those of the nodes scroll.
struct Parts<'a> {
    top: Vec<Line<'a>>,
    nodes: Vec<Line<'a>>,
    bottom: Vec<Line<'a>>,
    keys: Line<'a>,
}

impl Parts<'_> {
    fn of(view: &View, width: usize) -> Parts<'static> {
        let figures = view.figures();
        let mut parts = Parts {
            top: vec![title(view, figures.as_ref().map(|(_, since)| &**since))],
            nodes: Vec::new(),
            bottom: Vec::new(),
            keys: Line::default(),
        };
        match &view.contact {
            Contact::Answers => {}
            Contact::Silent(time) => {
                let text = format!(" the loader has not answered for {}", clock(*time));
                parts.top.push(Line::from(text).red().bold());
            }
            Contact::Lost(why) => {
                let text = format!(" no more figures from the loader: {}", clean(why));
                parts.top.push(Line::from(text).red().bold());
            }
        }
        match figures {
            Some((stats, _)) => {
                parts.top.extend(summary(view, &stats, width));
                parts
                    .top
                    .extend([Line::default(), nodes_head(view, &stats, width)]);
                parts.nodes = nodes(view, &stats, width);
                parts.bottom.push(Line::default());
                parts.bottom.extend(segments(&stats));
                parts.bottom.extend(skips(&stats));
                parts.bottom.push(Line::default());
                parts.bottom.extend(advice(&stats, width));
            }
            None => {
                let what = match view.latest {
                    Some(_) => " no epoch has begun",
                    None => " waiting for the first figures",
                };
                parts.top.extend([Line::default(), Line::from(what)]);
                let plan = view.description.as_ref().map(|about| &*about.explain);
                parts.nodes.push(Line::default());
                for line in plan.unwrap_or_default().lines() {
                    parts.nodes.push(Line::from(format!(" {}", clean(line))));
                }
            }
        }
        let next = match view.loaders {
            0 | 1 => "",
            _ => "  Tab loader",
        };
        parts.keys = Line::from(format!("{KEYS}{next}")).dim();
        parts
    }
}

fn title(view: &View, since: Option<&str>) -> Line<'static> {
    let mut parts = vec![format!(" datapipes top  {}", view.name)];
    if view.is_paused {
        parts.push("PAUSED".to_owned());
    }
    if let Some(latest) = &view.latest {
        parts[0] += &format!(" {}", clean(&latest.program));
        if let Some(epoch) = latest.epoch {
            let state = if latest.running { "" } else { ", ended" };
            parts.push(format!("epoch {epoch}{state}"));
        }
        if let Some(stats) = &latest.stats {
            parts.push(clock(stats.wall));
        }
    }
    parts.extend(since.map(|since| format!("figures: {since}")));
    Line::from(parts.join("  │  ")).reversed().bold()
}

/// The lines about the consumer and the memory.
fn summary(view: &View, stats: &Stats, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let latest = view.latest.as_ref();
    let delivered = latest.and_then(|latest| latest.stats.as_ref());
    let delivered = delivered.map_or(0, |stats| stats.delivered);
    let pace = stats.items_per_second();
    let length = view.description.as_ref().and_then(|about| about.length);
    let is_running = latest.is_some_and(|latest| latest.running);
    let mut progress = vec![label("progress")];
    match length.filter(|&length| length > 0) {
        Some(length) => {
            let share = delivered as f64 / length as f64;
            progress.push(bar(
                share,
                width.saturating_sub(64).clamp(8, 40),
                Color::Cyan,
            ));
            let text = format!(" {} of {} items", count(delivered), count(length));
            progress.push(Span::raw(text));
            let left = length.saturating_sub(delivered) as f64 / pace;
            if is_running && left.is_finite() && left < 1e7 {
                let left = clock(Duration::from_secs_f64(left));
                progress.push(Span::raw(format!(", {left} left")));
            }
        }
        None => progress.push(Span::raw(format!("{} items", count(delivered)))),
    }
    lines.push(Line::from(progress));

    let waited = stats.consumer_waited();
    let mut consumer = vec![
        label("consumer"),
        Span::from(format!("{}/s", rate(pace))).bold(),
        Span::raw("   waits "),
        colored(format!("{:.1} %", waited * 100.0), waited > 0.05),
    ];
    if !stats.waits.is_empty() {
        let [p50, p99] = [0.5, 0.99].map(|share| time(stats.waits.quantile(share)));
        consumer.push(Span::raw(format!(" (p50 {p50}, p99 {p99})")));
    }
    let ready = format!("   ready {:.1} %", stats.readiness() * 100.0);
    consumer.push(Span::raw(ready));
    lines.push(Line::from(consumer));

    let mut memory = vec![label("memory")];
    match stats.memory.limit {
        Some(limit) if limit > 0 => {
            let share = stats.memory.bytes as f64 / limit as f64;
            memory.push(bar(share, 8, Color::Cyan));
            let [now, most, limit] = [stats.memory.bytes, stats.memory.most, limit].map(bytes);
            memory.push(Span::raw(format!(" {now} of {limit}, most {most}")));
        }
        _ => memory.push(Span::raw(bytes(stats.memory.bytes))),
    }
    match &stats.queue {
        Some(queue) => {
            let text = format!("   queue {:.1} of {}", queue.occupancy, queue.depth);
            memory.push(Span::raw(text));
        }
        None => memory.push(Span::raw("   no queue")),
    }
    if let Some(device) = &stats.device {
        let busy = share_of(device.busy, stats.wall);
        memory.push(Span::raw(format!(
            "   device {} ahead, busy {busy}",
            device.depth
        )));
    }
    lines.push(Line::from(memory));
    lines
}

/// Widths of the columns of the nodes, beside the name.
struct Columns {
    name: usize,
    bar: usize,
    has_dropped: bool,
    has_errors: bool,
}

impl Columns {
    fn of(stats: &Stats, width: usize) -> Columns {
        let has_dropped = stats.nodes.iter().any(|node| node.dropped > 0);
        let has_errors = stats
            .nodes
            .iter()
            .any(|node| node.errors + node.retried > 0);
        // Marker, letter, rate, two times, time at work.
        let fixed = 2 + 4 + 10 + 10 + 10 + 8;
        let fixed = fixed + 10 * usize::from(has_dropped) + 10 * usize::from(has_errors);
        let bar = if width >= fixed + 12 + 16 { 12 } else { 0 };
        Columns {
            name: width.saturating_sub(fixed + bar).clamp(8, 60),
            bar,
            has_dropped,
            has_errors,
        }
    }
}

fn nodes_head(view: &View, stats: &Stats, width: usize) -> Line<'static> {
    let columns = Columns::of(stats, width);
    let title = |title: &str, is_sorted: bool| match is_sorted {
        true => format!("{title}▼"),
        false => title.to_owned(),
    };
    let mut text = format!(
        "  {}{:>4}{:>10}{:>10}{:>10}{:>8}",
        fit("node", columns.name),
        "",
        title("items/s", view.sort == Sort::Rate),
        "p50",
        title("p99", view.sort == Sort::Time),
        title("busy", view.sort == Sort::Busy),
    );
    text += &" ".repeat(columns.bar);
    if columns.has_dropped {
        text += &format!("{:>10}", "left out");
    }
    if columns.has_errors {
        text += &format!("{:>10}", "errors");
    }
    Line::from(text).bold().underlined()
}

fn nodes(view: &View, stats: &Stats, width: usize) -> Vec<Line<'static>> {
    let columns = Columns::of(stats, width);
    let all: Duration = stats.nodes.iter().map(|node| node.busy).sum();
    let slowest = stats.slowest_node();
    let mut lines = Vec::new();
    for at in view.order(&stats.nodes) {
        let node = &stats.nodes[at];
        let wall = stats.wall.as_secs_f64().max(1e-9);
        let [p50, p99] = match node.item_time.is_empty() {
            true => ["–".to_owned(), "–".to_owned()],
            false => [0.5, 0.99].map(|share| time(node.item_time.quantile(share))),
        };
        let name = match view.sort {
            Sort::Graph => clean(&node.name) + &inputs(view, &stats.nodes, at),
            _ => clean(&node.name),
        };
        let mut text = format!(
            "{} {}{:>4}{:>10}{p50:>10}{p99:>10}{:>8}",
            if slowest == Some(at) { '▶' } else { ' ' },
            fit(&name, columns.name),
            node.segment.map(String::from).unwrap_or_default(),
            rate(node.items as f64 / wall),
            share_of(node.busy, stats.wall),
        );
        let mut spans = Vec::new();
        let share = node.busy.as_secs_f64() / all.as_secs_f64().max(1e-9);
        let style = match slowest == Some(at) {
            true => Style::new().fg(Color::Red).bold(),
            false => Style::new(),
        };
        if columns.bar > 0 {
            spans.push(Span::styled(std::mem::take(&mut text) + "  ", style));
            let color = if slowest == Some(at) {
                Color::Red
            } else {
                Color::Cyan
            };
            spans.push(bar(share, columns.bar - 2, color));
        }
        if columns.has_dropped {
            text += &format!("{:>10}", nonzero(node.dropped));
        }
        if columns.has_errors {
            text += &format!("{:>10}", nonzero(own_errors(view, &stats.nodes, at)));
        }
        spans.push(Span::styled(text, style));
        lines.push(Line::from(spans));
    }
    lines
}

/// Returns which nodes a node reads, if it is not just the one above it.
fn inputs(view: &View, nodes: &[NodeStats], at: usize) -> String {
    let inputs = inputs_of(view, at);
    if inputs.is_empty() || inputs[..] == [at.wrapping_sub(1)] {
        return String::new();
    }
    let names = inputs.iter().filter_map(|&input| nodes.get(input));
    let names: Vec<String> = names.map(|node| clean(&node.name)).collect();
    format!(" ← {}", names.join(", "))
}

fn inputs_of(view: &View, at: usize) -> &[usize] {
    let described = view.description.as_ref();
    described
        .and_then(|about| about.inputs.get(at))
        .map_or(&[], Vec::as_slice)
}

/// Returns the errors that a node made, without those that it passed on.
fn own_errors(view: &View, nodes: &[NodeStats], at: usize) -> u64 {
    let inputs = inputs_of(view, at)
        .iter()
        .filter_map(|&input| nodes.get(input));
    let passed: u64 = inputs.map(|node| node.errors).sum();
    nodes[at].errors.saturating_sub(passed)
}

fn segments(stats: &Stats) -> Vec<Line<'static>> {
    if stats.segments.is_empty() {
        return vec![Line::from("  no segments: everything runs on one thread").dim()];
    }
    let head = format!(
        "  {:<10}{:>8}{:>14}{:>8}{:>10}{:>8}{:>10}{:>10}",
        "segment", "workers", "in flight", "busy", "no input", "full", "p99", "bytes"
    );
    let mut lines = vec![Line::from(head).bold().underlined()];
    for segment in &stats.segments {
        let SegmentStats {
            letter,
            workers,
            inline,
            occupancy,
            concurrency,
            ..
        } = segment;
        let work = match segment.work {
            _ if *inline => "inline",
            Work::Io => "I/O",
            _ => "CPU",
        };
        let in_flight = match inline {
            true => "–".to_owned(),
            false => format!("{occupancy:.1} of {concurrency}"),
        };
        let [busy, starved, full] =
            [segment.busy, segment.starved, segment.full].map(|spent| share_of(spent, stats.wall));
        let p99 = match segment.morsel_time.is_empty() {
            true => "–".to_owned(),
            false => time(segment.morsel_time.quantile(0.99)),
        };
        let held = bytes(segment.memory.bytes);
        let text = format!(
            "  {letter} {work:<8}{workers:>8}{in_flight:>14}{busy:>8}{starved:>10}{full:>8}{p99:>10}{held:>10}"
        );
        lines.push(Line::from(text));
        if let Some(processes) = &segment.processes {
            let held: u64 = processes.children.iter().map(|child| child.memory).sum();
            let running = processes.children.len();
            let word = if running == 1 { "process" } else { "processes" };
            let text = format!(
                "    {running} {word}, {}, {} died",
                bytes(held),
                processes.died
            );
            lines.push(Line::from(text));
        }
    }
    lines
}

fn skips(stats: &Stats) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if stats.skipped > 0 {
        lines.push(Line::default());
    }
    for skips in stats.skips.iter().take(SKIPS) {
        // The text of the error begins with the node.
        let text = format!("  skipped {}, the last: ", count(skips.items));
        let text = Span::from(text).fg(Color::Magenta);
        lines.push(Line::from(vec![text, Span::raw(clean(&skips.last))]));
    }
    let more = stats.skips.len().saturating_sub(SKIPS);
    if more > 0 {
        let all = count(stats.skipped);
        lines.push(Line::from(format!(
            "  and {more} other kinds; {all} skipped in all"
        )));
    }
    lines
}

/// The sentence about the bottleneck, in as many lines as it needs, up to three.
fn advice(stats: &Stats, width: usize) -> Vec<Line<'static>> {
    let text = format!("bottleneck: {}", clean(&stats.bottleneck));
    let mut lines = vec![String::from(" ")];
    for word in text.split(' ') {
        let rows = lines.len();
        let last = lines.last_mut().expect("begun with one");
        if last.chars().count() + 1 + word.chars().count() > width && rows < 3 {
            lines.push(format!("  {word}"));
        } else {
            last.push(' ');
            last.push_str(word);
        }
    }
    lines
        .into_iter()
        .map(|line| Line::from(line).bold())
        .collect()
}

fn label(text: &str) -> Span<'static> {
    Span::from(format!("  {text:<10}")).dim()
}

fn colored(text: String, is_bad: bool) -> Span<'static> {
    match is_bad {
        true => Span::from(text).fg(Color::Red).bold(),
        false => Span::from(text).fg(Color::Green),
    }
}

/// A bar with eighths of a column.
fn bar(share: f64, width: usize, color: Color) -> Span<'static> {
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let mut text = "█".repeat(eighths / 8);
    text.extend(
        [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉']
            .get(eighths % 8)
            .filter(|&&c| c != ' '),
    );
    let missing = width - text.chars().count();
    text.push_str(&"░".repeat(missing));
    Span::from(text).fg(color)
}

/// Returns a part of a time in per cent; of several threads it may be above 100.
fn share_of(part: Duration, whole: Duration) -> String {
    let share = part.as_secs_f64() / whole.as_secs_f64().max(1e-9);
    format!("{:.0} %", share * 100.0)
}

fn nonzero(number: u64) -> String {
    match number {
        0 => String::new(),
        number => count(number),
    }
}

/// Returns a text of exactly this width.
fn fit(text: &str, width: usize) -> String {
    let cut = Line::from(text).width() > width;
    let kept: String = match cut {
        true => text
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => text.to_owned(),
    };
    let missing = width.saturating_sub(Line::from(&*kept).width());
    kept + &" ".repeat(missing)
}
