//! The page of a report.

use super::panels::{TICKS, batches, moment, plot};
use super::sampler::{Batch, Recorded};
use super::svg::{Picture, STYLE, bytes, count, cut, escape, number, percent, time};
use super::timeline::{Join, Panel};
use super::{Facts, Stats};
use crate::Work;
use crate::loader::json::quote;

const TEMPLATE: &str = include_str!("page.html");

/// Greatest number of skipped items in the table, and of nodes.
const SKIPPED: usize = 50;
const NODES: usize = 2000;
/// Longest error, name or plan, in letters.
const LONG: usize = 300;
const PLAN: usize = 200_000;

/// Pictures of a report.
pub(super) struct Pictures {
    pub graph: Picture,
    pub cpu: Picture,
    pub latency: Vec<Picture>,
    pub heat: Option<Picture>,
}

/// Returns the page.
pub(super) fn page(
    facts: &Facts,
    recorded: &Recorded,
    stats: &Stats,
    panels: &[Panel],
    pictures: &Pictures,
) -> String {
    let latency: String = pictures.latency.iter().map(Picture::inline).collect();
    let value = |key: &str| match key {
        "title" => escape(&format!("Report of {}", cut(&facts.program, 100))),
        "picture_style" => STYLE.to_owned(),
        "style" => include_str!("page.css").to_owned(),
        "script" => include_str!("page.js").to_owned(),
        "about" => about(facts, recorded),
        "verdict" => verdict(recorded, stats),
        "panels" => shown_panels(panels, recorded),
        // A narrow graph leaves room beside it.
        "columns" if pictures.graph.width < 500.0 => "two".to_owned(),
        "columns" => "one".to_owned(),
        "graph" => pictures.graph.inline(),
        "cpu" => pictures.cpu.inline(),
        "cpu_title" => escape(&pictures.cpu.title),
        "latency" if latency.is_empty() => "<p class=\"about\">Nothing was timed.</p>".to_owned(),
        "latency" => latency.clone(),
        "segments" => segments(stats),
        "heat" => pictures.heat.as_ref().map_or(String::new(), heat),
        "skips" => skips(stats),
        "processes" => processes(stats),
        "epochs" => epochs(recorded),
        "nodes" => nodes(stats),
        "plan" => escape(&cut(&facts.plan, PLAN)),
        "data" => data(recorded, panels),
        _ => String::new(),
    };
    // Values are not searched for placeholders, since a user's text may contain `{{`.
    let mut page = String::new();
    let mut rest = TEMPLATE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (key, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(before);
        page.push_str(&value(key));
        rest = after;
    }
    page + rest
}

fn heat(picture: &Picture) -> String {
    format!(
        "<section><h2>{}</h2><div class=\"wide\" id=\"heat\">{}</div></section>",
        escape(&picture.title),
        picture.inline()
    )
}

fn about(facts: &Facts, recorded: &Recorded) -> String {
    let mut said = format!(
        "{} · {} long · {} · seed {} · {} workers · {} order",
        utc(facts.begun),
        moment(recorded.seconds, recorded.seconds),
        match recorded.number {
            1 => "1 epoch".to_owned(),
            number => format!("{} epochs", count(number)),
        },
        facts.seed,
        facts.workers,
        facts.order
    );
    let (rank, world) = facts.rank;
    if world > 1 {
        said += &format!(" · rank {rank} of {world}");
    }
    if facts.untold > 0 {
        said += &format!(" · {} epochs began too fast to be recorded", facts.untold);
    }
    escape(&said)
}

/// Returns a time since 1970, in seconds, as date and time of day.
fn utc(seconds: u64) -> String {
    // Days are counted from the first of March of the year 0, so that a leap day is the last of its
    // year: the algorithm `civil_from_days` of Howard Hinnant.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (year, day) = (era * 400 + year, day - (153 * month + 2) / 5 + 1);
    let (year, month) = match month < 10 {
        true => (year, month + 3),
        false => (year + 1, month - 9),
    };
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

fn verdict(recorded: &Recorded, stats: &Stats) -> String {
    let advice: Vec<String> = stats.advice().iter().map(|said| code(said)).collect();
    let (pace, others) = advice.split_first().expect("something is always said");
    let others: String = others
        .iter()
        .map(|said| format!("<li>{said}</li>"))
        .collect();
    let mut said = format!(
        "<p class=\"pace\">{pace}</p>{}<ul>{others}</ul><div class=\"tiles\">",
        share(recorded, stats)
    );
    let busy: f64 = stats.nodes.iter().map(|node| node.busy.as_secs_f64()).sum();
    let mut tile = |figure: String, name: &str| {
        said += &format!(
            "<div class=\"tile\"><b>{}</b><span>{name}</span></div>",
            escape(&figure)
        );
    };
    tile(number(stats.items_per_second()), "batches per second");
    tile(count(stats.delivered), "batches taken");
    tile(percent(stats.readiness()), "ready when asked for");
    tile(time(stats.waits.quantile(0.99)), "p99 of the waits");
    tile(format!("{} s", number(busy)), "of work in the graph");
    match stats.memory.limit {
        Some(limit) => {
            let name = format!("held or reserved at most, of {}", bytes(limit));
            tile(bytes(stats.memory.most), &name);
        }
        None => tile(bytes(stats.memory.most), "held or reserved at most"),
    }
    tile(count(stats.skipped), "items skipped");
    said + "</div>"
}

/// Returns the bar that shows what the consumer did.
fn share(recorded: &Recorded, stats: &Stats) -> String {
    let whole = recorded.seconds.max(stats.wall.as_secs_f64()).max(1e-9);
    let waited = (stats.waited.as_secs_f64() / whole).min(1.0);
    let uses = (stats.wall.as_secs_f64() / whole - waited).clamp(0.0, 1.0);
    let parts = [
        ("waits", waited, "waits for data"),
        ("uses", uses, "uses data"),
        ("rest", 1.0 - waited - uses, "no epoch runs"),
    ];
    let mut said = "<div class=\"share\">".to_owned();
    for (class, share, name) in parts.into_iter().filter(|(_, share, _)| *share >= 0.005) {
        let said_here = format!("{} {name}", percent(share));
        let shown = if share < 0.12 { "" } else { &said_here };
        said += &format!(
            "<span class=\"{class}\" style=\"flex:{share:.4}\" title=\"{said_here}\">{shown}</span>"
        );
    }
    said + "</div>"
}

/// Returns a sentence in which names between backquotes are set as code.
fn code(sentence: &str) -> String {
    let parts: Vec<String> = sentence.split('`').map(escape).collect();
    let shown = parts.iter().enumerate().map(|(place, part)| {
        match place % 2 == 1 && place + 1 < parts.len() {
            true => format!("<b>{part}</b>"),
            false => part.clone(),
        }
    });
    shown.collect()
}

fn shown_panels(panels: &[Panel], recorded: &Recorded) -> String {
    let mut said = String::new();
    for panel in panels {
        said += &format!("<figure class=\"panel\"><figcaption><b>{}</b>", panel.title);
        for line in &panel.lines {
            said += &format!(
                "<span class=\"key\"><i class=\"k{}\"></i>{}<output></output></span>",
                line.color,
                escape(&cut(&line.name, 60))
            );
        }
        if let Some((_, name)) = panel.limit.as_ref().filter(|(_, name)| !name.is_empty()) {
            said += &format!("<span class=\"key\">┄ {}</span>", escape(name));
        }
        let shown = plot(panel, recorded);
        said += &format!(
            "</figcaption><div class=\"plot\"><svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" \
             role=\"img\" aria-label=\"{}\">{}</svg><span class=\"top\">{}</span><div class=\"mark\"></div></div></figure>",
            panel.title, shown.elements, shown.label
        );
    }
    if !recorded.batches.is_empty() {
        said += &format!(
            "<figure class=\"panel\"><figcaption><b>The last {} batches</b>\
             <span class=\"key\"><i class=\"k1\"></i>waits for it</span>\
             <span class=\"key\"><i class=\"k2\"></i>uses it</span><span class=\"key\"><output></output></span>\
             </figcaption><div class=\"plot batches\"><svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" \
             role=\"img\" aria-label=\"The last batches\">{}</svg><div class=\"mark\"></div></div></figure>",
            recorded.batches.len(),
            batches(recorded)
        );
    }
    said.push_str("<div class=\"axis\">");
    for tick in 0..TICKS {
        let at = recorded.seconds * tick as f64 / (TICKS - 1) as f64;
        said += &format!("<span>{}</span>", moment(at, recorded.seconds));
    }
    said + "</div><div class=\"about at\"></div>"
}

/// Returns a table; the first columns, as many as are `texts`, are texts.
fn table(texts: usize, head: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |column: usize| match column < texts {
        true => " class=\"text\"",
        false => "",
    };
    let mut said = "<div class=\"wide\"><table><tr>".to_owned();
    for (column, name) in head.split(" | ").enumerate() {
        said += &format!("<th{}>{name}</th>", class(column));
    }
    said.push_str("</tr>");
    for row in rows {
        said.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let class = match cell.chars().count() {
                0..48 => class(column),
                _ => " class=\"long\"",
            };
            said += &format!("<td{class}>{}</td>", escape(cell));
        }
        said.push_str("</tr>");
    }
    said + "</table></div>"
}

fn nodes(stats: &Stats) -> String {
    let head =
        "node | segment | items | left out | errors | again | work | mean | p50 | p90 | p99 | max";
    let rows = stats.nodes.iter().take(NODES).map(|node| {
        let times = &node.item_time;
        let shown = |duration| match times.is_empty() {
            true => String::new(),
            false => time(duration),
        };
        vec![
            cut(&node.name, LONG),
            node.segment
                .map_or(String::new(), |letter| letter.to_string()),
            count(node.items),
            count(node.dropped),
            count(node.errors),
            count(node.retried),
            time(node.busy),
            shown(times.mean()),
            shown(times.quantile(0.5)),
            shown(times.quantile(0.9)),
            shown(times.quantile(0.99)),
            shown(times.max()),
        ]
    });
    table(2, head, rows)
}

fn segments(stats: &Stats) -> String {
    if stats.segments.is_empty() {
        return String::new();
    }
    let head =
        "segment | work | in flight | of | blocked on input | full | p50 | p99 | held at most";
    let rows = stats.segments.iter().map(|segment| {
        let work = match (segment.inline, segment.work, &segment.processes) {
            (true, ..) => "inline",
            (_, _, Some(_)) => "processes",
            (_, Work::Cpu, _) => "CPU",
            (_, Work::Io, _) => "I/O",
        };
        vec![
            segment.letter.to_string(),
            work.to_owned(),
            number(segment.occupancy),
            count(segment.concurrency),
            time(segment.starved),
            time(segment.full),
            time(segment.morsel_time.quantile(0.5)),
            time(segment.morsel_time.quantile(0.99)),
            bytes(segment.memory.most),
        ]
    });
    format!(
        "<h2>Segments</h2><p class=\"about\">Neighbouring steps that run as one; times are of morsels, \
         the pieces in which they work.</p>{}",
        table(2, head, rows)
    )
}

fn skips(stats: &Stats) -> String {
    if stats.skips.is_empty() {
        return String::new();
    }
    let head = "node | kind | first error | last error | items";
    let rows = stats.skips.iter().take(SKIPPED).map(|skips| {
        vec![
            cut(&skips.node, LONG),
            skips.kind.to_string(),
            cut(&skips.first, LONG),
            cut(&skips.last, LONG),
            count(skips.items),
        ]
    });
    let mut said = format!(
        "<section><h2>What was skipped, and why</h2>{}",
        table(4, head, rows)
    );
    let head = "node | item | kind | error";
    let rows = stats.skipped_items.iter().take(SKIPPED).map(|skipped| {
        let item = skipped.item.as_ref().map(ToString::to_string);
        vec![
            cut(&skipped.node, LONG),
            cut(&item.unwrap_or_default(), LONG),
            skipped.kind.to_string(),
            cut(&skipped.error, LONG),
        ]
    });
    let shown = stats.skipped_items.len().min(SKIPPED);
    said += &format!(
        "<details><summary>The first {shown} items</summary>{}</details></section>",
        table(4, head, rows)
    );
    said
}

fn processes(stats: &Stats) -> String {
    let all: Vec<_> = stats
        .segments
        .iter()
        .filter_map(|segment| Some((segment.letter, segment.processes.as_ref()?)))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let head = "segment | started | died | replaced | items given up";
    let rows = all.iter().map(|(letter, figures)| {
        let numbers = [
            figures.started,
            figures.died,
            figures.replaced,
            figures.crashed,
        ];
        let mut row = vec![letter.to_string()];
        row.extend(numbers.map(count));
        row
    });
    let mut said = format!("<section><h2>Processes</h2>{}", table(1, head, rows));
    let children = all.iter().flat_map(|(letter, figures)| {
        figures.children.iter().map(move |child| {
            vec![
                letter.to_string(),
                child.place.to_string(),
                child.process.to_string(),
                count(child.items),
                bytes(child.memory),
            ]
        })
    });
    let head = "segment | place | process | items | memory";
    said.push_str(&table(1, head, children));
    said + "</section>"
}

fn epochs(recorded: &Recorded) -> String {
    if recorded.number < 2 {
        return String::new();
    }
    let head = "epoch | began | length | batches | per second | waited | ready | skipped";
    let rows = recorded.epochs.iter().map(|epoch| {
        vec![
            epoch
                .number
                .map_or("began before".to_owned(), |number| number.to_string()),
            moment(epoch.begun, recorded.seconds),
            moment(epoch.seconds, epoch.seconds),
            count(epoch.delivered),
            number(epoch.delivered as f64 / epoch.seconds.max(1e-9)),
            percent(epoch.waited),
            percent(epoch.readiness),
            count(epoch.skipped),
        ]
    });
    let mut said = format!("<section><h2>Epochs</h2>{}", table(1, head, rows));
    let left_out = recorded.number - recorded.epochs.len() as u64;
    if left_out > 0 {
        said += &format!(
            "<p class=\"about\">{} earlier ones are left out.</p>",
            count(left_out)
        );
    }
    said + "</section>"
}

/// Returns what the script draws the timeline of, as JSON that may stand inside of HTML.
fn data(recorded: &Recorded, panels: &[Panel]) -> String {
    let samples = recorded.timeline.samples();
    let panels = panels.iter().map(|panel| {
        let (limit, fixed) = match &panel.limit {
            Some((limit, name)) => (limit.to_string(), name.is_empty()),
            None => ("null".to_owned(), false),
        };
        let lines = panel.lines.iter().map(|line| {
            let values = list(line.values.iter().map(short));
            let most = line.join == Join::Most;
            format!("{{\"most\":{most},\"values\":{values}}}")
        });
        let mut unit = String::new();
        quote(panel.unit, &mut unit);
        format!(
            "{{\"unit\":{unit},\"stacked\":{},\"limit\":{limit},\"fixed\":{fixed},\"lines\":{}}}",
            panel.stacked,
            list(lines)
        )
    });
    let batches = recorded.batches.iter().map(|batch| {
        let Batch { asked, ready, used } = batch;
        format!("[{asked:.6},{ready:.6},{used:.6}]")
    });
    let until = samples
        .iter()
        .map(|sample| ((sample.until * 1e4).round() / 1e4).to_string());
    let said = format!(
        "{{\"until\":{},\"delivered\":{},\"panels\":{},\"batches\":{}}}",
        list(until),
        list(samples.iter().map(|sample| short(&sample.delivered))),
        list(panels),
        list(batches)
    );
    // A name with `</script>` would end the element of the script.
    said.replace('<', "\\u003c")
}

/// Returns a list in JSON.
fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

/// Returns a number in JSON: four digits that count; no infinity and the like, which JSON has not.
fn short(value: &f64) -> String {
    let value = if value.is_finite() { *value } else { 0.0 };
    let digits = (3 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 6) as usize;
    let shown = format!("{value:.digits$}");
    match shown.contains('.') {
        true => shown.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => shown,
    }
}
