//! The grid of DPT (Park and Synn, "Dataloader Parameter Tuner"), and a search that needs fewer runs:
//! pure functions of what a point costs.

use super::{Point, Trial};
use crate::Result;

/// Difference of times that is not worth more workers or a longer queue.
const SAME: f64 = 0.02;
/// Most runs of a point in one comparison.
const ROUNDS: usize = 4;
/// Noise of a run that is assumed before there are repeats: 3 %, with the weight of one.
const ASSUMED: Noise = Noise {
    squares: 0.03 * 0.03,
    degrees: 1.0,
};
/// Most points that are compared all at once, instead of one axis after the other.
const FEW: usize = 12;
/// Least difference of the logarithms of two values on an axis that are compared.
const STEP: f64 = 0.04;
/// Most times that each axis is searched.
const CYCLES: usize = 3;

/// Values of the settings, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Space {
    pub workers: Vec<usize>,
    pub prefetch: Vec<usize>,
}

impl Space {
    /// Returns the values of the paper's two loops.
    pub fn new(cores: usize, gpus: usize, most_prefetch: usize) -> Space {
        Space {
            // The loop adds the GPUs while it is below the cores, so its last step may pass them.
            workers: (1..=cores.div_ceil(gpus)).map(|step| step * gpus).collect(),
            prefetch: (1..=most_prefetch).collect(),
        }
    }

    /// Returns the number of points.
    pub fn points(&self) -> usize {
        self.workers.len() * self.prefetch.len()
    }
}

/// Result of a grid or search.
#[derive(Debug)]
pub(super) struct Outcome {
    /// `None` if all runs passed the memory bound.
    pub best: Option<Point>,
    pub trials: Vec<Trial>,
    /// Standard deviation of a run's time, as a share of it, if runs were repeated.
    pub noise: Option<f64>,
}

/// Runs every point, except for those with a longer queue than one that passed the memory bound.
pub(super) fn grid(
    space: &Space,
    mut measure: impl FnMut(Point) -> Result<Trial>,
) -> Result<Outcome> {
    let mut trials = Vec::new();
    for &workers in &space.workers {
        for &prefetch in &space.prefetch {
            let trial = measure(Point { workers, prefetch })?;
            trials.push(trial);
            if trial.seconds.is_none() {
                break;
            }
        }
    }
    Ok(Outcome {
        best: quickest(&trials),
        trials,
        noise: None,
    })
}

/// Returns the first of the quickest trials.
fn quickest(trials: &[Trial]) -> Option<Point> {
    let timed = trials
        .iter()
        .filter_map(|trial| Some((trial.point, trial.seconds?)));
    timed
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(point, _)| point)
}

/// Searches for the quickest point, and of points that are equally quick for the one with fewer
/// workers and a shorter queue.
///
/// Each axis in turn: values that double are compared, then those halfway to the neighbours of the
/// best one, until there are none between. In a comparison the points run in turn, again and again,
/// until the difference is clear or does not matter.
pub(super) fn search(
    space: &Space,
    measure: impl FnMut(Point) -> Result<Trial>,
) -> Result<Outcome> {
    let mut search = Search {
        measure,
        trials: Vec::new(),
        noise: ASSUMED,
    };
    let best = search.best(space)?;
    let trials = search.trials;
    // A later run of the best may have passed the bound.
    let fits = |point: Point| {
        let mut runs = trials.iter().filter(|trial| trial.point == point);
        runs.all(|trial| trial.seconds.is_some())
    };
    let best = best.filter(|&best| fits(best)).or_else(|| {
        let fitting = trials.iter().filter(|trial| fits(trial.point));
        quickest(&fitting.copied().collect::<Vec<_>>())
    });
    let repeats = search.noise.degrees - ASSUMED.degrees;
    let variance = (search.noise.squares - ASSUMED.squares) / repeats;
    Ok(Outcome {
        best,
        trials,
        noise: (repeats > 0.0).then(|| variance.max(0.0).sqrt()),
    })
}

struct Search<M> {
    measure: M,
    trials: Vec<Trial>,
    noise: Noise,
}

/// Variance of the logarithm of a run's time, pooled over all repeats.
#[derive(Clone, Copy)]
struct Noise {
    squares: f64,
    degrees: f64,
}

/// A point of a comparison, with the logarithms of its times.
struct Racer {
    point: Point,
    times: Vec<f64>,
}

impl Racer {
    fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len() as f64
    }
}

impl<M: FnMut(Point) -> Result<Trial>> Search<M> {
    fn best(&mut self, space: &Space) -> Result<Option<Point>> {
        let point = |workers: usize, prefetch: usize| Point {
            workers: space.workers[workers],
            prefetch: space.prefetch[prefetch],
        };
        if space.points() <= FEW {
            let all = (0..space.workers.len()).flat_map(|workers| {
                (0..space.prefetch.len()).map(move |prefetch| point(workers, prefetch))
            });
            return self.race(all.collect());
        }
        let (mut workers, mut prefetch) = (None, 0);
        for cycle in 0..CYCLES {
            let before = (workers, prefetch);
            let Some(found) =
                self.line(workers, &space.workers, |workers| point(workers, prefetch))?
            else {
                return Ok(None);
            };
            workers = Some(found);
            if cycle > 0 && workers == before.0 {
                break;
            }
            let known = (cycle > 0).then_some(prefetch);
            let Some(found_prefetch) =
                self.line(known, &space.prefetch, |prefetch| point(found, prefetch))?
            else {
                return Ok(None);
            };
            prefetch = found_prefetch;
            if prefetch == before.1 {
                break;
            }
        }
        Ok(workers.map(|workers| point(workers, prefetch)))
    }

    /// Returns the best place on an axis, which stays the one that was `known` before if its
    /// neighbours are no better.
    fn line(
        &mut self,
        known: Option<usize>,
        values: &[usize],
        point: impl Fn(usize) -> Point,
    ) -> Result<Option<usize>> {
        let mut tried = around(known, values.len());
        let mut places = tried.clone();
        loop {
            let points: Vec<Point> = places.iter().map(|&place| point(place)).collect();
            let Some(best) = self.race(points)? else {
                return Ok(None);
            };
            let best = places.into_iter().find(|&place| point(place) == best);
            let best = best.expect("the best is one of the points");
            let at = tried.partition_point(|&place| place < best);
            let halfway = |other: Option<usize>| {
                let between = (tried[other?] + best) / 2;
                let ratio = values[between] as f64 / values[best] as f64;
                let is_new = !tried.contains(&between) && known != Some(best);
                (is_new && ratio.ln().abs() >= STEP).then_some(between)
            };
            let below = halfway(at.checked_sub(1));
            let above = halfway((at + 1 < tried.len()).then_some(at + 1));
            if below.is_none() && above.is_none() {
                return Ok(Some(best));
            }
            places = below.into_iter().chain([best]).chain(above).collect();
            tried.extend(below.into_iter().chain(above));
            tried.sort_unstable();
        }
    }

    /// Returns the first of the points, cheapest first, than which none of the others is quicker by
    /// more than [`SAME`].
    fn race(&mut self, points: Vec<Point>) -> Result<Option<Point>> {
        let racer = |point| Racer {
            point,
            times: Vec::new(),
        };
        let mut racers: Vec<Racer> = points.into_iter().map(racer).collect();
        let before = self.noise;
        for round in 1..=ROUNDS {
            // Forth and back, so that a drift of the machine hits all alike.
            let mut turns: Vec<&mut Racer> = racers.iter_mut().collect();
            if round % 2 == 0 {
                turns.reverse();
            }
            for racer in turns {
                let trial = (self.measure)(racer.point)?;
                self.trials.push(trial);
                racer.times.extend(trial.seconds.map(f64::ln));
            }
            racers.retain(|racer| racer.times.len() == round);
            self.noise = before.with(&racers);
            if racers.len() < 2 {
                break;
            }
            let doubt = 2.0 * self.noise.of_a_run() * (2.0 / round as f64).sqrt();
            let means: Vec<f64> = racers.iter().map(Racer::mean).collect();
            let mut place = 0;
            racers.retain(|_| {
                let mean = means[place];
                let (cheaper, dearer) = (&means[..place], &means[place + 1..]);
                place += 1;
                let is_useless = cheaper.iter().any(|other| other - mean + doubt < SAME);
                let is_beaten = dearer.iter().any(|other| mean - other - doubt > SAME);
                !is_useless && !is_beaten
            });
            if racers.len() < 2 {
                break;
            }
        }
        let least = racers.iter().map(Racer::mean).fold(f64::MAX, f64::min);
        let best = racers.iter().find(|racer| racer.mean() - least <= SAME);
        Ok(best.map(|racer| racer.point))
    }
}

impl Noise {
    /// Adds the repeats of a comparison, less what all points of a round have in common.
    fn with(self, racers: &[Racer]) -> Noise {
        let rounds = racers.first().map_or(0, |racer| racer.times.len());
        if racers.len() < 2 || rounds < 2 {
            return self;
        }
        let means: Vec<f64> = racers.iter().map(Racer::mean).collect();
        let all = means.iter().sum::<f64>() / means.len() as f64;
        let mut squares = self.squares;
        for round in 0..rounds {
            let times = || racers.iter().map(|racer| racer.times[round]);
            let common = times().sum::<f64>() / racers.len() as f64 - all;
            let rest = times().zip(&means).map(|(time, mean)| time - mean - common);
            squares += rest.map(|rest| rest * rest).sum::<f64>();
        }
        let degrees = self.degrees + ((racers.len() - 1) * (rounds - 1)) as f64;
        Noise { squares, degrees }
    }

    /// Returns the standard deviation.
    fn of_a_run(self) -> f64 {
        (self.squares / self.degrees).sqrt()
    }
}

/// Returns the places on an axis that are compared first: 1st, 2nd, 4th, 8th … and last; or half a
/// place that was found before, the place and its double.
fn around(found: Option<usize>, len: usize) -> Vec<usize> {
    let mut places: Vec<usize> = match found {
        Some(place) => vec![place.div_ceil(2).saturating_sub(1), place, 2 * place + 1],
        None => (0..usize::BITS)
            .map(|power| (1usize << power) - 1)
            .take_while(|&place| place < len)
            .collect(),
    };
    if found.is_none() {
        places.push(len - 1);
    }
    places
        .iter_mut()
        .for_each(|place| *place = (*place).min(len - 1));
    places.dedup();
    places
}
