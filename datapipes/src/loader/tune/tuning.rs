//! The result of a tuning: table, picture and settings file.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::search::Space;
use super::{Point, Trial};
use crate::Result;
use crate::loader::checkpoint::SavedNode;
use crate::loader::report::svg::{self, Picture};
use crate::loader::settings_file::{self, SavedSettings};
use crate::run::Requests;
use crate::settings::TunedSettings;

/// Result of a [`Tuner`](super::Tuner). Prints as a table of times.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Tuning {
    /// `grid` or `search`.
    pub method: &'static str,
    /// The best settings.
    pub best: Point,
    /// All runs, in the order of time, without the first, which does not count.
    pub trials: Vec<Trial>,
    /// Standard deviation of a run's time, as a share of the time, if runs were repeated.
    pub noise: Option<f64>,
    /// Number of batches of each run.
    pub batches: u64,
    /// Seconds that all runs took together.
    pub seconds: f64,
    #[serde(skip)]
    pub(super) space: Space,
    /// Requests in flight that the last run with the best settings found.
    #[serde(skip)]
    pub(super) requests: Vec<Requests>,
    #[serde(skip)]
    pub(super) nodes: Vec<SavedNode>,
}

/// Result of the runs of a point.
#[derive(Clone, Copy)]
enum Cell {
    /// Mean seconds for a batch.
    Time(f64),
    OverMemory,
    NotRun,
}

/// Edges of a cell of the heat map, and the space around the cells.
const CELL: (f64, f64) = (64.0, 30.0);
const LEFT: f64 = 84.0;
const TOP: f64 = 56.0;

impl Tuning {
    /// Returns the number of points that the settings have, run or not.
    pub fn points(&self) -> usize {
        self.space.points()
    }

    /// Returns the mean seconds for a batch with these settings, if they were run within the bound
    /// of memory.
    pub fn seconds_at(&self, point: Point) -> Option<f64> {
        match self.cell(point) {
            Cell::Time(seconds) => Some(seconds),
            Cell::OverMemory | Cell::NotRun => None,
        }
    }

    fn cell(&self, point: Point) -> Cell {
        let runs = self.trials.iter().filter(|trial| trial.point == point);
        let times: Option<Vec<f64>> = runs.map(|trial| trial.seconds).collect();
        match times {
            None => Cell::OverMemory,
            Some(times) if times.is_empty() => Cell::NotRun,
            Some(times) => Cell::Time(times.iter().sum::<f64>() / times.len() as f64),
        }
    }

    /// Saves the best settings, and the number of requests in flight that was found with them, to a file for
    /// [`Builder::settings_from`](crate::loader::Builder::settings_from): JSON, with a version and the
    /// nodes of the graph.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such folder,
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the file cannot be written; with the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let Point { workers, prefetch } = self.best;
        let kept = SavedSettings {
            workers: Some(workers),
            prefetch: Some(prefetch),
            found: TunedSettings::default(),
            requests: self.requests.clone(),
        };
        settings_file::save(path.as_ref(), &self.nodes, kept)
    }

    /// Returns an SVG picture of the times: a column for each number of workers, a row for each
    /// length of the queue, the slower the darker, the best with a frame. It has a background of
    /// its own, for light and dark pages.
    pub fn heat_map(&self) -> String {
        self.picture().file()
    }

    /// Draws the picture of the times.
    pub(in crate::loader) fn picture(&self) -> Picture {
        let Space { workers, prefetch } = &self.space;
        let (width, height) = CELL;
        let times = || {
            let points = self.trials.iter().map(|trial| trial.point);
            points.filter_map(|point| self.seconds_at(point))
        };
        let (least, most) = (
            times().fold(f64::MAX, f64::min),
            times().fold(0.0, f64::max),
        );
        let mut elements = String::new();
        svg::text(&mut elements, "strong", (12.0, 22.0), "Time of a batch");
        svg::text(
            &mut elements,
            "muted end",
            (LEFT - 10.0, TOP - 8.0),
            "workers",
        );
        for (column, &workers) in workers.iter().enumerate() {
            let x = LEFT + column as f64 * width;
            let place = (x + width / 2.0, TOP - 8.0);
            svg::text(&mut elements, "muted middle", place, &workers.to_string());
            for (row, &prefetch) in prefetch.iter().enumerate() {
                let y = TOP + row as f64 * height;
                if column == 0 {
                    let text = format!("prefetch {prefetch}");
                    svg::text(&mut elements, "muted end", (LEFT - 10.0, y + 19.0), &text);
                }
                let point = Point { workers, prefetch };
                let (class, opacity, label) = match self.cell(point) {
                    Cell::Time(seconds) => {
                        // By ratio, as the times of 1, 2, 4 and 8 workers differ.
                        let share = (seconds / least).ln() / (most / least).ln().max(1e-9);
                        let time = svg::time(Duration::from_secs_f64(seconds));
                        ("f0", 0.08 + 0.52 * share, time)
                    }
                    Cell::OverMemory => ("track", 1.0, "memory".to_owned()),
                    Cell::NotRun => ("box", 1.0, String::new()),
                };
                let area = (x + 1.0, y + 1.0, width - 2.0, height - 2.0);
                elements.push_str(&format!("<g fill-opacity=\"{opacity:.2}\">"));
                svg::rect(&mut elements, class, area);
                elements.push_str("</g>");
                if point == self.best {
                    elements.push_str("<g fill-opacity=\"0\">");
                    svg::rect(&mut elements, "hot", area);
                    elements.push_str("</g>");
                }
                let place = (x + width / 2.0, y + 19.0);
                svg::text(&mut elements, "middle", place, &label);
            }
        }
        let bottom = TOP + prefetch.len() as f64 * height;
        let below = format!(
            "best: {}; {} runs of {} batches",
            self.best,
            self.trials.len(),
            self.batches
        );
        svg::text(&mut elements, "muted", (12.0, bottom + 22.0), &below);
        Picture {
            name: "heat".to_owned(),
            title: "Time of a batch by workers and prefetch".to_owned(),
            width: (LEFT + workers.len() as f64 * width + 12.0).max(340.0),
            height: bottom + 34.0,
            elements,
        }
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ms a batch  prefetch")?;
        for prefetch in &self.space.prefetch {
            write!(f, " {prefetch:>9}")?;
        }
        for &workers in &self.space.workers {
            write!(f, "\n{workers:>12} workers")?;
            for &prefetch in &self.space.prefetch {
                let point = Point { workers, prefetch };
                let mark = if point == self.best { "*" } else { "" };
                let text = match self.cell(point) {
                    Cell::Time(seconds) => format!("{mark}{:.3}", seconds * 1e3),
                    Cell::OverMemory => "memory".to_owned(),
                    Cell::NotRun => "-".to_owned(),
                };
                write!(f, " {text:>9}")?;
            }
        }
        let best = self.seconds_at(self.best).unwrap_or_default();
        write!(
            f,
            "\nbest by {}: {}, {:.1?} a batch; {} runs of {} batches for {} points, in {:.1?}",
            self.method,
            self.best,
            Duration::from_secs_f64(best),
            self.trials.len(),
            self.batches,
            self.points(),
            Duration::from_secs_f64(self.seconds)
        )?;
        match self.noise {
            Some(noise) => write!(f, "; equal runs differ by {}", svg::percent(noise)),
            None => Ok(()),
        }
    }
}
