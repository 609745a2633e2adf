//! Three sources mixed by weight, with a curriculum: exact shares at every point, a stop and a
//! resume, changed weights in the middle, and the replay of one sample.
//!
//! `cargo run --no-default-features --example mix`. Exits with an error if any check fails. `-- --trace
//! FILE` also writes a timeline of the first loader's epochs, for `ui.perfetto.dev`.

mod support;

use std::process::ExitCode;

use datapipes::pipes::{Schedule, Stop};
use datapipes::{BoxError, Checkpoint, DataLoader, Edited, Graph};
use support::args::Args;
use support::trace::Trace;

const NAMES: [&str; 3] = ["web", "books", "code"];
const BATCH: usize = 8;
const BATCHES: usize = 60;

/// A sample: number of its source, number in the source, and a random number of this epoch.
type Sample = (usize, u64, u64);

/// Returns the weights: at first the web alone; books begin at step 64, code at step 160.
fn curriculum() -> Schedule {
    Schedule::new([1.0, 0.0, 0.0])
        .then(64, [3.0, 1.0, 0.0])
        .then(160, [2.0, 1.0, 1.0])
}

fn sources() -> [Graph<Sample>; 3] {
    [(0, 500), (1, 90), (2, 120)].map(|(source, samples)| {
        let graph = Graph::range(0..samples)
            .shuffle(32)
            .named(format!("shuffle-{}", NAMES[source]));
        graph
            .map_with_rng(move |n, rng| (source, n, rng.next_u64()))
            .named(NAMES[source])
    })
}

fn loader(schedule: Schedule) -> Result<DataLoader<Vec<Sample>>, BoxError> {
    let mixed = Graph::mix_scheduled(Stop::CycleForever, sources(), schedule).batch(BATCH);
    Ok(DataLoader::builder(mixed)
        .seed(42)
        .max_steps(BATCHES as u64)
        .resumable()
        .build()?)
}

fn counts<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> [usize; 3] {
    let mut counts = [0; 3];
    samples.into_iter().for_each(|sample| counts[sample.0] += 1);
    counts
}

/// Checks that the share of each source matches the weights, to within one sample.
fn check_shares(samples: &[Sample], weights: &[f64]) -> Result<(), BoxError> {
    let total: f64 = weights.iter().sum();
    for end in 1..=samples.len() {
        for (count, weight) in counts(&samples[..end]).into_iter().zip(weights) {
            let due = end as f64 * weight / total;
            if (count as f64 - due).abs() >= 3.0 {
                return Err(
                    format!("{count} samples after {end} steps, and {due} were due").into(),
                );
            }
        }
    }
    Ok(())
}

fn check(is_so: bool, what: &str) -> Result<(), BoxError> {
    if is_so {
        Ok(())
    } else {
        Err(format!("not so: {what}").into())
    }
}

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> Result<(), BoxError> {
    // An epoch of an endless mix, with a budget of steps.
    let args = Args::parse("", "trace", "mix [--trace FILE]");
    let loader = loader(curriculum())?;
    let trace = Trace::begin(args.get("trace"), &loader)?;
    let whole: Vec<Vec<Sample>> = loader
        .epoch(0)
        .blocking()
        .collect::<datapipes::Result<_>>()?;
    check(
        whole.len() == BATCHES,
        "an epoch has as many batches as its budget",
    )?;
    let samples = whole.concat();
    println!("{:>9}  {:>22}  {}", "steps", "weights", NAMES.join(" / "));
    for (from, until) in [(0, 64), (64, 160), (160, samples.len())] {
        let schedule = curriculum();
        let weights = schedule.weights(from as u64);
        check_shares(&samples[from..until], weights)?;
        println!(
            "{from:>4}..{until:<4} {:>22}  {:?}",
            format!("{weights:?}"),
            counts(&samples[from..until])
        );
    }

    // Stopped after 25 batches, and resumed as another process would.
    let mut epoch = loader.epoch(0).blocking();
    let first: Vec<_> = epoch.by_ref().take(25).collect::<datapipes::Result<_>>()?;
    let bytes = epoch.checkpoint()?.to_bytes();
    drop(epoch);
    let state = Checkpoint::from_bytes(&bytes)?;
    let rest: Vec<_> = self::loader(curriculum())?
        .resume(&state)?
        .blocking()
        .collect::<datapipes::Result<_>>()?;
    check(
        [first.clone(), rest].concat() == whole,
        "what is resumed is what would have come",
    )?;
    println!(
        "\nstopped after 25 batches ({} bytes of state) and resumed: the same {BATCHES} batches",
        bytes.len()
    );

    // From here on mostly code, on explicit request.
    let code = self::loader(Schedule::new([1.0, 1.0, 6.0]))?;
    check(
        code.resume(&state).is_err(),
        "other weights are refused unless they are asked for",
    )?;
    let rest: Vec<_> = code
        .resume_edited(&state, Edited::Weights)?
        .blocking()
        .collect::<datapipes::Result<_>>()?;
    let before = counts(&first.concat());
    let after = rest.concat();
    // Each source resumes at its position: no sample of its first round comes twice.
    for source in 0..3 {
        let own = |samples: &[Sample]| -> Vec<Sample> {
            samples
                .iter()
                .copied()
                .filter(|sample| sample.0 == source)
                .collect()
        };
        let (now, then) = ([own(&first.concat()), own(&after)].concat(), own(&samples));
        let both = now.len().min(then.len());
        check(
            now[..both] == then[..both],
            "each source goes on where it stood",
        )?;
    }
    // Items that had been mixed ahead of the batches are unchanged; the last steps come after all
    // of them.
    let shares = counts(&after[after.len() - 80..]);
    check(
        shares == [10, 10, 60],
        "the shares of the new weights are exact",
    )?;
    println!("resumed with weights 1 : 1 : 6: {before:?} before, {shares:?} in the last 80 steps");

    // Replays one sample of the last batch, node by node.
    let mut batches = loader.epoch(0).blocking().items();
    let batch = batches
        .by_ref()
        .nth(BATCHES - 1)
        .ok_or("the last batch")??;
    trace.finish()?;
    let (sample, origin) = (batch[3], &batch.origin().parts()[3]);
    let replay = loader.replay(0, origin)?;
    println!("\n{replay}");
    let again = replay.items::<Sample>();
    check(
        again.len() == 1 && *again[0] == sample,
        "a sample that is replayed is what it was",
    )
}
