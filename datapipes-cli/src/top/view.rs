//! The state of the view: what is known of a loader, and what is to be shown of that.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use datapipes::loader::monitor::{Description, Figures};
use datapipes::loader::{NodeStats, Stats};

use super::find::stem;
use super::format::clean;

/// The time that is shown unless the user says otherwise.
const RECENT: Duration = Duration::from_secs(10);

/// A loader, as it is shown.
pub struct View {
    /// Name of its socket.
    pub name: String,
    pub latest: Option<Figures>,
    pub description: Option<Description>,
    /// Figures of the last [`RECENT`] of the epoch.
    recent: VecDeque<Stats>,
    pub base: Base,
    pub sort: Sort,
    pub is_paused: bool,
    /// Number of rows above the first row that is shown.
    pub scrolled: usize,
    pub contact: Contact,
    /// Number of loaders in the process.
    pub loaders: usize,
}

/// The moment that differences begin at.
pub enum Base {
    /// A moment ago.
    Recent,
    /// The moment at which the user asked for it, in this epoch.
    Reset(Box<Stats>),
    Epoch,
}

/// The order of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Graph,
    Busy,
    Time,
    Rate,
}

/// The state of the connection.
pub enum Contact {
    Answers,
    /// Silence for so long.
    Silent(Duration),
    /// The reason why there will be no more answers.
    Lost(String),
}

impl View {
    /// Makes a view from the first figures. Figures are those of the epoch, as there are no others.
    pub fn new(socket: &Path, figures: Option<Figures>, loaders: usize) -> Self {
        let mut view = View {
            name: clean(stem(socket)),
            latest: None,
            description: None,
            recent: VecDeque::new(),
            base: Base::Recent,
            sort: Sort::Graph,
            is_paused: false,
            scrolled: 0,
            contact: Contact::Answers,
            loaders,
        };
        if let Some(figures) = figures {
            view.update(figures);
        }
        view
    }

    /// Takes new figures, unless the view is paused.
    pub fn update(&mut self, figures: Figures) {
        self.contact = Contact::Answers;
        if let Some(description) = &figures.description {
            self.description = Some(description.clone());
        }
        if self.is_paused {
            return;
        }
        let before = self.latest.as_ref().map(|latest| latest.epoch);
        if let Some(stats) = &figures.stats {
            let went_back = (self.recent.back()).is_some_and(|last| last.wall > stats.wall);
            if before != Some(figures.epoch) || went_back {
                self.recent.clear();
                if let Base::Reset(_) = self.base {
                    self.base = Base::Epoch;
                }
            }
            self.recent.push_back(stats.clone());
            // The first is the last one that is older than what is shown.
            let is_old = |stats: &Stats, now: &Stats| stats.wall + RECENT <= now.wall;
            while self
                .recent
                .get(1)
                .is_some_and(|second| is_old(second, stats))
            {
                self.recent.pop_front();
            }
        }
        self.latest = Some(figures);
    }

    /// Counts from now on.
    pub fn reset(&mut self) {
        if let Some(stats) = self.latest.as_ref().and_then(|latest| latest.stats.clone()) {
            self.base = Base::Reset(Box::new(stats));
        }
    }

    /// Returns the figures to be shown, and in words since when.
    pub fn figures(&self) -> Option<(Stats, String)> {
        let latest = self.latest.as_ref()?;
        let stats = latest.stats.as_ref()?;
        let whole = || Some((stats.clone(), "whole epoch".to_owned()));
        let base = match &self.base {
            Base::Reset(base) => base,
            Base::Recent if latest.running => match self.recent.front() {
                Some(base) if base.wall < stats.wall => base,
                _ => return whole(),
            },
            _ => return whole(),
        };
        let since = stats.since(base);
        let time = format!("last {:.0} s", since.wall.as_secs_f64());
        Some((since, time))
    }

    /// Returns the places of the nodes in the order of the view.
    pub fn order(&self, nodes: &[NodeStats]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        let by =
            |key: fn(&NodeStats) -> u128| move |&at: &usize| std::cmp::Reverse(key(&nodes[at]));
        match self.sort {
            Sort::Graph => {}
            Sort::Busy => order.sort_by_key(by(|node| node.busy.as_nanos())),
            Sort::Time => order.sort_by_key(by(|node| node.item_time.quantile(0.99).as_nanos())),
            Sort::Rate => order.sort_by_key(by(|node| node.items.into())),
        }
        order
    }
}

impl Sort {
    pub fn next(self) -> Self {
        match self {
            Sort::Graph => Sort::Busy,
            Sort::Busy => Sort::Time,
            Sort::Time => Sort::Rate,
            Sort::Rate => Sort::Graph,
        }
    }
}
