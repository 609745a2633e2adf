//! The quality of a shuffle whose buffer is smaller than its data.
//!
//! Each of the `BUFFER` items in the buffer leaves with the same probability, and the next input
//! item takes its place. At the end the remaining items come in random order. The distance that an
//! item moves therefore has a geometric distribution, and each of the first `BUFFER` items is
//! equally likely to be the first output. Seeds are fixed, so that the tests are deterministic.

use std::sync::OnceLock;

use datapipes::{DataLoader, Graph};

const ITEMS: usize = 48;
const BUFFER: usize = 8;
const ROUNDS: u64 = 6000;

/// Number of times that each item was at each place.
type Counts = Vec<[u32; ITEMS]>;

/// The item first, then the place.
fn counts() -> &'static Counts {
    static COUNTS: OnceLock<Counts> = OnceLock::new();
    COUNTS.get_or_init(|| {
        let graph = Graph::range(0..ITEMS as u64).shuffle(BUFFER);
        let loader = DataLoader::builder(graph)
            .seed(125)
            .workers(0)
            .build()
            .unwrap();
        let mut counts = vec![[0; ITEMS]; ITEMS];
        for epoch in 0..ROUNDS {
            for (place, item) in loader.epoch(epoch).blocking().enumerate() {
                counts[item.unwrap() as usize][place] += 1;
            }
        }
        counts
    })
}

/// The chance of an item to be at a place.
fn chance(item: usize, place: usize) -> f64 {
    let (stays, steps) = (1.0 - 1.0 / BUFFER as f64, ITEMS - BUFFER);
    // It is in the buffer from this step on.
    let since = item.saturating_sub(BUFFER - 1);
    match place {
        _ if place < since => 0.0,
        _ if place < steps => stays.powi((place - since) as i32) / BUFFER as f64,
        _ => stays.powi((steps - since) as i32) / BUFFER as f64,
    }
}

/// Checks that the numbers seen agree with the chances in `ROUNDS` tries. The test is chi-square
/// over the places with an expectation of at least ten, and one cell for the rest; the limit is the
/// 99.99 % point.
fn check(what: &str, seen: impl Iterator<Item = u32>, chances: impl Iterator<Item = f64>) {
    let (mut chi, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    let mut add = |seen: f64, expected: f64| {
        chi += (seen - expected).powi(2) / expected;
        cells += 1;
    };
    for (seen, chance) in seen.zip(chances) {
        let (seen, expected) = (f64::from(seen), chance * ROUNDS as f64);
        assert!(
            expected > 0.0 || seen == 0.0,
            "{what}: {seen} where it cannot be"
        );
        if expected >= 10.0 {
            add(seen, expected);
        } else {
            rest = (rest.0 + seen, rest.1 + expected);
        }
    }
    if rest.1 > 1.0 {
        add(rest.0, rest.1);
    }
    // Wilson and Hilferty, Proceedings of the National Academy of Sciences 17 (1931).
    let freedom = f64::from(cells - 1);
    let point =
        freedom * (1.0 - 2.0 / (9.0 * freedom) + 3.719 * (2.0 / (9.0 * freedom)).sqrt()).powi(3);
    assert!(
        chi < point,
        "{what}: {chi:.1} of {point:.1}, {cells} places"
    );
}

#[test]
fn row_125_each_item_of_the_first_buffer_is_equally_likely_to_be_first() {
    let first = counts().iter().map(|places| places[0]);
    let chances = (0..ITEMS).map(|item| {
        if item < BUFFER {
            1.0 / BUFFER as f64
        } else {
            0.0
        }
    });
    check("the first place", first, chances);
}

#[test]
fn row_125_an_item_moves_as_far_as_a_buffer_lets_it() {
    for item in 0..ITEMS {
        check(
            &format!("item {item}"),
            counts()[item].iter().copied(),
            (0..ITEMS).map(|place| chance(item, place)),
        );
    }
}

#[test]
fn row_125_every_place_has_the_items_that_a_buffer_lets_there() {
    for place in 0..ITEMS {
        let seen = counts().iter().map(|places| places[place]);
        check(
            &format!("place {place}"),
            seen,
            (0..ITEMS).map(|item| chance(item, place)),
        );
    }
}

/// The second is drawn as the first, whatever that was: of the seven that are left, and the one
/// that came in its stead.
#[test]
fn row_125_what_comes_next_does_not_depend_on_what_came() {
    let graph = Graph::range(0..ITEMS as u64).shuffle(BUFFER);
    let loader = DataLoader::builder(graph)
        .seed(1250)
        .workers(0)
        .build()
        .unwrap();
    let mut pairs = [[0u32; BUFFER + 1]; BUFFER];
    for epoch in 0..ROUNDS {
        let items: Vec<u64> = loader
            .epoch(epoch)
            .blocking()
            .take(2)
            .map(Result::unwrap)
            .collect();
        pairs[items[0] as usize][items[1] as usize] += 1;
    }
    let alike = 1.0 / (BUFFER * BUFFER) as f64;
    let chances = (0..BUFFER)
        .flat_map(|first| (0..=BUFFER).map(move |next| if next == first { 0.0 } else { alike }));
    check("the first two", pairs.into_iter().flatten(), chances);
}
