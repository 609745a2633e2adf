//! Assignment of units to parts.

/// Returns the part of each unit; `None` is left out. `units` are lists of samples, in an order
/// that is random but fixed; `classes` has the class of each sample. There are at least as many
/// units as parts.
pub(super) fn assign(
    units: &[Vec<usize>],
    classes: &[usize],
    class_count: usize,
    fractions: &[f64],
    balanced: bool,
) -> Vec<Option<usize>> {
    // The samples left out are a part, too, which may be empty.
    let mut shares = fractions.to_vec();
    shares.push((1.0 - fractions.iter().sum::<f64>()).max(0.0));
    let mut part_of = if units.iter().all(|unit| unit.len() == 1) {
        singles(units, classes, class_count, &shares, balanced)
    } else {
        Placing::new(units, classes, class_count, &shares, balanced).place()
    };
    fill(units, &mut part_of, fractions.len());
    part_of
        .into_iter()
        .map(|part| (part < fractions.len()).then_some(part))
        .collect()
}

/// Assigns units of one sample each: every class (or all samples as one class) is cut by the
/// fractions. The remainder of the rounding goes to the part that lacks most so far, so that the
/// sizes are right even with many small classes.
fn singles(
    units: &[Vec<usize>],
    classes: &[usize],
    class_count: usize,
    shares: &[f64],
    balanced: bool,
) -> Vec<usize> {
    let mut of_class: Vec<Vec<usize>> = vec![Vec::new(); if balanced { class_count } else { 1 }];
    for (at, unit) in units.iter().enumerate() {
        of_class[if balanced { classes[unit[0]] } else { 0 }].push(at);
    }
    let mut part_of = vec![0; units.len()];
    let mut lacking = vec![0.0; shares.len()];
    for class in of_class {
        let wanted: Vec<f64> = shares
            .iter()
            .map(|share| share * class.len() as f64)
            .collect();
        // A value that is a whole number but for rounding errors counts as whole.
        let mut counts: Vec<usize> = wanted
            .iter()
            .map(|wanted| (wanted + 1e-9).floor() as usize)
            .collect();
        let mut open: Vec<usize> = (0..shares.len())
            .filter(|&part| wanted[part] > counts[part] as f64)
            .collect();
        for part in 0..shares.len() {
            lacking[part] += wanted[part] - counts[part] as f64;
        }
        for _ in counts.iter().sum::<usize>()..class.len() {
            let most = |a: &usize, b: &usize| lacking[*a].total_cmp(&lacking[*b]).then(b.cmp(a));
            let part = open.iter().copied().max_by(most).unwrap_or(0);
            open.retain(|other| *other != part);
            counts[part] += 1;
            lacking[part] -= 1.0;
        }
        let parts = counts
            .iter()
            .enumerate()
            .flat_map(|(part, &count)| std::iter::repeat_n(part, count));
        class
            .into_iter()
            .zip(parts)
            .for_each(|(unit, part)| part_of[unit] = part);
    }
    part_of
}

/// Entities of several samples while they are placed into parts.
struct Placing {
    /// Classes of each unit with their counts; a single class if classes do not matter.
    counts: Vec<Vec<(usize, f64)>>,
    sizes: Vec<f64>,
    /// Surplus of samples of each part.
    over: Vec<f64>,
    /// Surplus of samples of each part, class by class.
    over_class: Vec<Vec<f64>>,
    /// Weight of a class's squared deviation, relative to that of the size of a part. A deviation
    /// counts by its share of the class, and all classes together count as much as the size.
    weight_class: Vec<f64>,
}

/// Maximum number of times that all units are checked for a better place. A few suffice.
const ROUNDS: usize = 100;
/// Maximum number of units for which every two are also tried in each other's place: few entities
/// are hard to balance.
const SWAPPED: usize = 500;
/// Least gain of a move, so that rounding cannot cause endless moves.
const LEAST_GAIN: f64 = 1e-3;

impl Placing {
    fn new(
        units: &[Vec<usize>],
        classes: &[usize],
        class_count: usize,
        shares: &[f64],
        balanced: bool,
    ) -> Self {
        let mut totals = vec![0.0; class_count];
        let mut counts = Vec::with_capacity(units.len());
        for unit in units {
            let mut of_unit: Vec<usize> = unit.iter().map(|&at| classes[at]).collect();
            of_unit.sort_unstable();
            let runs = of_unit
                .chunk_by(|a, b| a == b)
                .map(|run| (run[0], run.len() as f64));
            let of_unit: Vec<(usize, f64)> = runs.collect();
            of_unit
                .iter()
                .for_each(|(class, count)| totals[*class] += count);
            counts.push(if balanced { of_unit } else { Vec::new() });
        }
        let all: f64 = totals.iter().sum();
        let there = totals.iter().filter(|total| **total > 0.0).count().max(1) as f64;
        let weigh = |total: &f64| {
            if *total > 0.0 {
                (all / total) * (all / total) / there
            } else {
                0.0
            }
        };
        Placing {
            counts,
            sizes: units.iter().map(|unit| unit.len() as f64).collect(),
            over: shares.iter().map(|share| -share * all).collect(),
            over_class: shares
                .iter()
                .map(|share| totals.iter().map(|total| -share * total).collect())
                .collect(),
            weight_class: totals.iter().map(weigh).collect(),
        }
    }

    /// Returns the increase of the sum of squared deviations if a unit enters a part (`sign` 1) or
    /// leaves it (-1).
    fn harm(&self, unit: usize, part: usize, sign: f64) -> f64 {
        let square = |over: f64, count: f64| count * (2.0 * sign * over + count);
        let classes = self.counts[unit].iter().map(|(class, count)| {
            square(self.over_class[part][*class], *count) * self.weight_class[*class]
        });
        square(self.over[part], self.sizes[unit]) + classes.sum::<f64>()
    }

    fn put(&mut self, unit: usize, part: usize, sign: f64) {
        self.over[part] += sign * self.sizes[unit];
        for (class, count) in &self.counts[unit] {
            self.over_class[part][*class] += sign * count;
        }
    }

    fn place(mut self) -> Vec<usize> {
        let parts = self.over.len();
        let mut order: Vec<usize> = (0..self.sizes.len()).collect();
        order.sort_by(|&a, &b| self.sizes[b].total_cmp(&self.sizes[a])); // stable: ties stay in their random order
        let mut part_of = vec![0; order.len()];
        for &unit in &order {
            let best = (0..parts).map(|part| (self.harm(unit, part, 1.0), part));
            let (_, best) = best
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .expect("there is a part at least");
            part_of[unit] = best;
            self.put(unit, best, 1.0);
        }
        // When no single move helps any more, no part is off by more than the largest unit (except
        // for classes).
        for _ in 0..ROUNDS {
            let mut better = self.move_units(&order, &mut part_of);
            if !better && order.len() <= SWAPPED {
                better = self.swap_units(&order, &mut part_of);
            }
            if !better {
                break;
            }
        }
        part_of
    }

    /// Moves every unit that fits better elsewhere; returns true if any was moved.
    fn move_units(&mut self, order: &[usize], part_of: &mut [usize]) -> bool {
        let parts = self.over.len();
        let mut moved = false;
        for &unit in order {
            let from = part_of[unit];
            let leaves = self.harm(unit, from, -1.0);
            let others = (0..parts).filter(|&part| part != from);
            let gain = others.map(|part| (leaves + self.harm(unit, part, 1.0), part));
            if let Some((gain, to)) = gain.min_by(|a, b| a.0.total_cmp(&b.0))
                && gain < -LEAST_GAIN
            {
                self.put(unit, from, -1.0);
                self.put(unit, to, 1.0);
                part_of[unit] = to;
                moved = true;
            }
        }
        moved
    }

    /// Swaps every two units if that is better; returns true if any were swapped.
    fn swap_units(&mut self, order: &[usize], part_of: &mut [usize]) -> bool {
        let mut swapped = false;
        for (at, &one) in order.iter().enumerate() {
            for &other in &order[at + 1..] {
                let (here, there) = (part_of[one], part_of[other]);
                if here == there {
                    continue;
                }
                let mut gain = 0.0;
                for (unit, part, sign) in [
                    (one, here, -1.0),
                    (other, there, -1.0),
                    (one, there, 1.0),
                    (other, here, 1.0),
                ] {
                    gain += self.harm(unit, part, sign);
                    self.put(unit, part, sign);
                }
                if gain < -LEAST_GAIN {
                    (part_of[one], part_of[other]) = (there, here);
                    swapped = true;
                } else {
                    for (unit, part, sign) in [
                        (one, there, -1.0),
                        (other, here, -1.0),
                        (one, here, 1.0),
                        (other, there, 1.0),
                    ] {
                        self.put(unit, part, sign);
                    }
                }
            }
        }
        swapped
    }
}

/// Gives each empty part the smallest unit of the largest part that has several units.
fn fill(units: &[Vec<usize>], part_of: &mut [usize], parts: usize) {
    let mut held = vec![(0usize, 0usize); parts + 1];
    for (unit, &part) in units.iter().zip(&*part_of) {
        held[part] = (held[part].0 + unit.len(), held[part].1 + 1);
    }
    while let Some(empty) = (0..parts).find(|&part| held[part].1 == 0) {
        // The part of the samples left out may become empty; other parts may not.
        let may_give = (0..=parts).filter(|&part| held[part].1 > usize::from(part < parts));
        let Some(giver) = may_give.max_by_key(|&part| held[part].0) else {
            return;
        };
        let of_giver = (0..units.len()).filter(|&unit| part_of[unit] == giver);
        let Some(unit) = of_giver.min_by_key(|&unit| units[unit].len()) else {
            return;
        };
        held[giver] = (held[giver].0 - units[unit].len(), held[giver].1 - 1);
        held[empty] = (units[unit].len(), 1);
        part_of[unit] = empty;
    }
}
