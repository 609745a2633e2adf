//! The timeline as pictures. `page.js` draws them again for a part of the time, by the same rules.

use std::fmt::Write as _;

use super::sampler::{Batch, Recorded};
use super::svg::{Picture, cut, number, percent, rect, text};
use super::timeline::{Panel, Sample, resample};

/// Size of the coordinates of a plot, which is stretched to its place.
const ACROSS: f64 = 1000.0;
const HIGH: f64 = 100.0;
/// Number of names on the axis of time.
pub(super) const TICKS: usize = 6;

/// A panel that is drawn: its elements, and the value at its upper edge.
pub(super) struct Plot {
    pub elements: String,
    pub top: f64,
    /// Text at the upper edge; none where a line shows the limit.
    pub label: String,
}

/// Draws a panel over the whole time.
pub(super) fn plot(panel: &Panel, recorded: &Recorded) -> Plot {
    let samples = recorded.timeline.samples();
    let stretches = stretches(samples);
    let lines: Vec<Vec<f64>> = panel
        .lines
        .iter()
        .map(|line| resample(samples, line, (0.0, recorded.seconds), stretches))
        .collect();
    let sums = (0..stretches).map(|at| match panel.stacked {
        true => lines.iter().map(|line| line[at]).sum(),
        false => lines.iter().map(|line| line[at]).fold(0.0, f64::max),
    });
    let top = top(sums.fold(0.0, f64::max), panel);
    let y = |value: f64| HIGH - HIGH * (value / top).min(1.0);
    let step = ACROSS / stretches as f64;
    let mut elements = format!("<path class=\"grid\" d=\"M0 {0}H{ACROSS}\"/>", HIGH / 2.0);
    let mut below = vec![0.0; stretches];
    for (line, values) in panel.lines.iter().zip(&lines) {
        let mut path = String::new();
        let mut draw = |place: usize, value: f64| {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            path += &format!("{letter}{:.1} {:.1}", step * place as f64, y(value));
        };
        let base = if panel.stacked {
            below.clone()
        } else {
            vec![0.0; stretches]
        };
        for at in 0..stretches {
            let value = base[at] + values[at];
            draw(at, value);
            draw(at + 1, value);
        }
        if panel.stacked {
            for at in (0..stretches).rev() {
                draw(at + 1, base[at]);
                draw(at, base[at]);
            }
            below
                .iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum += value);
        }
        let class = match panel.stacked {
            true => format!("f{}", line.color),
            false => format!("line s{}", line.color),
        };
        elements += &format!("<path data-line=\"\" class=\"{class}\" d=\"{path}\"/>");
    }
    if let Some((limit, name)) = &panel.limit
        && !name.is_empty()
    {
        let path = match *limit < top {
            true => format!("M0 {:.1}H{ACROSS}", y(*limit)),
            false => String::new(),
        };
        elements += &format!("<path class=\"limit\" d=\"{path}\"/>");
    }
    let label = match &panel.limit {
        Some((limit, name)) if *limit < top && !name.is_empty() => String::new(),
        _ => label(top, panel),
    };
    Plot {
        elements,
        top,
        label,
    }
}

/// Returns a value of a panel with its unit.
fn label(value: f64, panel: &Panel) -> String {
    match &panel.limit {
        Some((_, name)) if name.is_empty() => percent(value),
        _ => format!("{} {}", number(value), panel.unit),
    }
}

/// Height of the row of batches, in a plot.
const ROW: (f64, f64) = (15.0, 85.0);

/// Draws the last batches over the whole time: the waits for them and their uses, each in two shades
/// by turns, so that neighbours are told apart.
pub(super) fn batches(recorded: &Recorded) -> String {
    let mut paths = [const { String::new() }; 4];
    let x = |at: f64| ACROSS * (at / recorded.seconds.max(1e-9)).min(1.0);
    for (place, batch) in recorded.batches.iter().enumerate() {
        let Batch { asked, ready, used } = *batch;
        for (kind, from, to) in [(0, asked, ready), (2, ready, used)] {
            let kind = kind + place % 2;
            if to > from {
                let (top, bottom) = ROW;
                let (from, to) = (x(from), x(to));
                let _ = write!(paths[kind], "M{from:.2} {top}H{to:.2}V{bottom}H{from:.2}Z");
            }
        }
    }
    let classes = ["f1", "f1 other", "f2", "f2 other"].iter().zip(&paths);
    let path = |(class, path)| format!("<path class=\"{class}\" d=\"{path}\"/>");
    classes.map(path).collect()
}

/// Returns the number of stretches in which samples are shown: a few batches in each, so that a rate
/// is one.
fn stretches(samples: &[Sample]) -> usize {
    let batches: f64 = samples.iter().map(|sample| sample.delivered).sum();
    ((batches / 3.0) as usize)
        .clamp(24, 240)
        .min(samples.len())
        .max(1)
}

/// Returns the value at the upper edge of a panel: the limit, unless the values are far below it.
fn top(most: f64, panel: &Panel) -> f64 {
    match &panel.limit {
        Some((limit, name)) if name.is_empty() => *limit,
        Some((limit, _)) if *limit <= 4.0 * most => most.max(*limit) * 1.1,
        _ => round_up(most),
    }
}

/// Returns the next number of the form 1, 2 or 5 with zeros.
fn round_up(value: f64) -> f64 {
    let value = value.max(1e-3);
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= value * 0.999);
    step.unwrap_or(10.0) * power
}

/// Returns a moment as text, for a report that shows this many seconds.
pub(super) fn moment(seconds: f64, shown: f64) -> String {
    let whole = seconds.round() as u64;
    match shown {
        shown if shown < 0.2 => format!("{:.1} ms", seconds * 1e3),
        shown if shown < 2.0 => format!("{seconds:.2} s"),
        shown if shown < 20.0 => format!("{seconds:.1} s"),
        shown if shown < 120.0 => format!("{whole} s"),
        shown if shown < 7200.0 => format!("{}:{:02} min", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole / 60 % 60),
    }
}

/// Returns the whole timeline as one picture.
pub(super) fn picture(panels: &[Panel], recorded: &Recorded) -> Picture {
    const WIDTH: f64 = 900.0;
    const LEFT: f64 = 84.0;
    const ROW: f64 = 124.0;
    const PLOT: f64 = 84.0;
    let mut elements = String::new();
    for (row, panel) in panels.iter().enumerate() {
        let y = row as f64 * ROW;
        let Plot {
            elements: plot,
            top,
            ..
        } = plot(panel, recorded);
        text(&mut elements, "strong", (LEFT, y + 18.0), panel.title);
        // Letters of this size are some 6 wide.
        let mut x = LEFT + 20.0 + 7.5 * panel.title.len() as f64;
        for line in &panel.lines {
            let name = cut(&line.name, 22);
            rect(
                &mut elements,
                &format!("f{}", line.color),
                (x, y + 9.0, 10.0, 10.0),
            );
            text(&mut elements, "muted", (x + 14.0, y + 18.0), &name);
            x += 28.0 + 6.0 * name.chars().count() as f64;
        }
        let limit = panel.limit.as_ref().map(|(limit, _)| *limit);
        let mark = limit.filter(|limit| *limit <= top).unwrap_or(top);
        for value in [mark, mark / 2.0] {
            let at = y + 28.0 + PLOT * (1.0 - value / top) + 4.0;
            let said = label(value, panel);
            text(
                &mut elements,
                "muted end",
                (LEFT - 6.0, at),
                said.trim_end(),
            );
        }
        elements += &format!(
            "<svg x=\"{LEFT}\" y=\"{:.0}\" width=\"{}\" height=\"{PLOT}\" viewBox=\"0 0 {ACROSS} {HIGH}\" \
             preserveAspectRatio=\"none\"><path class=\"grid\" d=\"M0 0H{ACROSS}V{HIGH}H0Z\"/>{plot}</svg>",
            y + 28.0,
            WIDTH - LEFT - 16.0
        );
    }
    let bottom = panels.len() as f64 * ROW;
    for tick in 0..TICKS {
        let share = tick as f64 / (TICKS - 1) as f64;
        let class = match tick {
            0 => "muted",
            tick if tick == TICKS - 1 => "muted end",
            _ => "muted middle",
        };
        let at = (LEFT + (WIDTH - LEFT - 16.0) * share, bottom + 4.0);
        let name = moment(recorded.seconds * share, recorded.seconds);
        text(&mut elements, class, at, &name);
    }
    Picture {
        name: "timeline".to_owned(),
        title: "The run over time".to_owned(),
        width: WIDTH,
        height: bottom + 14.0,
        elements,
    }
}
