//! A job of several ranks, each a process: parts that are disjoint and complete, equally many steps
//! on each, a stop, and the rest of the epoch on another number of ranks.
//!
//! `cargo run --example ranks` starts itself as 4 ranks, stops them after step 5, merges their
//! checkpoints, and starts itself as 2 ranks that resume. It does so with two graphs:
//!
//! - images, of which each step has 24 over all ranks: every step equals that of one process,
//!   whatever the number of ranks;
//! - members of archives, shuffled by each rank: two ranks read the rest of four, a batch of each
//!   in turn.
//!
//! Each process finds its rank in `RANK` and `WORLD_SIZE`, as under torchrun; under SLURM, Open MPI
//! or in an indexed job of Kubernetes the variables are found as well.
//!
//! Options: `--then N`, `--now N` (numbers of ranks that divide 24; for archives `now` has to
//! divide `then`), `--items N`, `--stop STEP`.

mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use datapipes::pipes::Digest;
use datapipes::{BoxError, Checkpoint, DataLoader, Graph, Rank, Uneven};
use support::args::Args;

const USAGE: &str = "ranks [--then N] [--now N] [--items N] [--stop STEP]";

/// Number of items in a step, over all ranks.
const GLOBAL: usize = 24;

fn main() -> ExitCode {
    let role = std::env::var("RANKS_EXAMPLE");
    match if role.is_ok() { rank() } else { job() } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Number of items in an archive.
const MEMBERS: u64 = 12;

/// Returns a loader of made-up file names, in a shuffled order that all ranks share; each rank
/// takes its part and "reads" it.
fn loader(
    kind: &str,
    items: u64,
    rank: Rank,
    digest: &Digest,
) -> Result<DataLoader<Vec<String>>, BoxError> {
    let graph = if kind == "pictures" {
        let names = Graph::range(0..items).map(|n| format!("{n:05}.jpg"));
        let names = names
            .digest(digest, |name| name.clone())
            .shuffle(100)
            .sharding_filter();
        names
            .map(|name| format!("picture of {name}"))
            .batch(GLOBAL / rank.world)
    } else {
        let names = Graph::range(0..items / MEMBERS).map(|n| format!("{n:03}.tar"));
        let names = names
            .digest(digest, |name| name.clone())
            .shuffle(100)
            .sharding_filter();
        let members = names.flat_map(|name| (0..MEMBERS).map(move |n| format!("{name}/{n:02}")));
        members.shuffle(40).batch(6)
    };
    let loader = DataLoader::builder(graph)
        .seed(42)
        .rank(rank.index, rank.world)
        .uneven(Uneven::Drop);
    // Archives may have different numbers of members, so the ranks agree before each step.
    Ok(loader.ranks_agree().resumable().build()?)
}

/// Runs as one of the ranks: reads its part up to a step, writes the batches and its checkpoint to
/// files, and stops when all agree that one of them has no more.
fn rank() -> Result<(), BoxError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, items, folder, stop, state] = &words[..] else {
        return Err("started by hand".into());
    };
    let (rank, digest) = (Rank::from_env()?, Digest::new());
    let loader = loader(kind, items.parse()?, rank, &digest)?;
    let epoch = match &state[..] {
        "" => loader.epoch(0),
        file => loader.resume(&Checkpoint::from_bytes(&std::fs::read(file)?)?)?,
    };
    // Replaces a collective of the training framework: all ranks tell if they have a batch.
    let (mut answers, mut out) = (std::io::stdin().lines(), std::io::stdout());
    let agree = move |mine: bool| {
        writeln!(out, "{mine}")?;
        out.flush()?;
        Ok(answers.next().transpose()?.as_deref() == Some("true"))
    };
    let mut epoch = epoch.blocking().agreed(agree);
    let mut text = String::new();
    for batch in epoch.by_ref().take(stop.parse()?) {
        writeln!(text, "{}", batch?.join(","))?;
    }
    let file =
        |kind: &str| Path::new(folder).join(format!("{kind}-{}-of-{}", rank.index, rank.world));
    std::fs::write(file("steps"), text)?;
    std::fs::write(file("state"), epoch.checkpoint()?.to_bytes())?;
    // Hints that all ranks share: the graph and its settings, the number of steps, and, after the
    // end, the list.
    let list = if epoch.checkpoint()?.is_finished() {
        digest.value(0)
    } else {
        0
    };
    let facts = format!(
        "graph {:016x}, list {list:016x}, steps {:?}",
        loader.fingerprint(),
        loader.steps()
    );
    std::fs::write(file("facts"), facts)?;
    Ok(())
}

/// Output of the ranks: the batches by step and rank, and the checkpoint of each rank.
struct Part {
    steps: Vec<Vec<Vec<String>>>,
    states: Vec<Checkpoint>,
}

fn job() -> Result<(), BoxError> {
    let args = Args::parse("", "then now items stop", USAGE);
    let [then, now] = [
        args.get("then").unwrap_or(4usize),
        args.get("now").unwrap_or(2usize),
    ];
    let (items, stop) = (
        args.get("items").unwrap_or(1000u64),
        args.get("stop").unwrap_or(5usize),
    );
    if [then, now]
        .iter()
        .any(|&world| world == 0 || !GLOBAL.is_multiple_of(world))
    {
        return Err(
            format!("{then} and {now} ranks have to divide {GLOBAL}, the items of a step").into(),
        );
    }
    pictures(then, now, items, stop)?;
    archives(then, now, items, stop)
}

/// Runs on one number of ranks, stops, and resumes on another.
fn stopped(
    kind: &str,
    [then, now]: [usize; 2],
    items: u64,
    stop: usize,
) -> Result<[Part; 2], BoxError> {
    let folder = tempfile::tempdir()?;
    let first = ranks(kind, then, items, stop, "", &folder.path().join("first"))?;
    println!(
        "{kind}: {then} ranks took {} steps each and stopped",
        first.steps.len()
    );

    let state = Checkpoint::merge(&first.states)?;
    let bytes = state.to_bytes();
    println!("their states, merged, are {} bytes", bytes.len());
    let file = folder.path().join("state");
    std::fs::write(&file, &bytes)?;

    let rest = ranks(
        kind,
        now,
        items,
        usize::MAX,
        &file.to_string_lossy(),
        &folder.path().join("rest"),
    )?;
    println!(
        "{now} ranks resumed and took {} steps each to the end",
        rest.steps.len()
    );
    Ok([first, rest])
}

/// Tests a graph whose global order does not depend on the number of ranks.
fn pictures(then: usize, now: usize, items: u64, stop: usize) -> Result<(), BoxError> {
    let [first, rest] = stopped("pictures", [then, now], items, stop)?;
    let mut seen: Vec<String> = Vec::new();
    let alone = loader("pictures", items, Rank::default(), &Digest::new())?;
    let whole = alone
        .epoch(0)
        .blocking()
        .collect::<datapipes::Result<Vec<_>>>()?;
    let steps: Vec<_> = first.steps.iter().chain(&rest.steps).collect();
    check(
        steps.len() <= whole.len(),
        format!(
            "{} steps, where one process has {}",
            steps.len(),
            whole.len()
        ),
    )?;
    for (step, (ranks, expected)) in steps.iter().zip(&whole).enumerate() {
        let all = ranks.concat();
        // If the last step is not full, fewer items than there are ranks may be left out.
        let missing = expected.iter().filter(|item| !all.contains(item)).count();
        let left_out = if expected.len() < GLOBAL { now } else { 1 };
        let same = missing < left_out && all.len() + missing == expected.len();
        check(
            same,
            format!("step {step} has the items that it has in one process"),
        )?;
        seen.extend(all);
    }
    let taken = seen.len();
    seen.sort();
    seen.dedup();
    check(seen.len() == taken, "no item came twice".into())?;
    // If the items do not divide among the ranks that ended the epoch, fewer items than ranks are
    // left out.
    check(
        items as usize - taken < now,
        format!("{taken} of {items} items came"),
    )?;
    println!(
        "all {} steps are those of one process; {taken} of {items} items, none twice",
        steps.len()
    );
    Ok(())
}

/// Tests a graph whose order depends on it: fewer ranks read the rest of the others in turn.
fn archives(then: usize, now: usize, items: u64, stop: usize) -> Result<(), BoxError> {
    if !then.is_multiple_of(now) {
        println!("archives: {now} ranks cannot share what {then} have left to read");
        return Ok(());
    }
    let parts = stopped("archives", [then, now], items, stop)?;
    let mut seen: Vec<String> = parts
        .into_iter()
        .flat_map(|part| part.steps.concat().concat())
        .collect();
    let taken = seen.len();
    seen.sort();
    seen.dedup();
    check(seen.len() == taken, "no member came twice".into())?;
    let archives = items / MEMBERS / then as u64 * then as u64;
    check(
        taken as u64 == archives * MEMBERS,
        format!("{taken} of {} members came", archives * MEMBERS),
    )?;
    println!("{taken} members of {archives} archives, each once");
    Ok(())
}

/// Starts ranks, provides the collective by which they agree, and reads their output.
fn ranks(
    kind: &str,
    world: usize,
    items: u64,
    stop: usize,
    state: &str,
    folder: &Path,
) -> Result<Part, BoxError> {
    std::fs::create_dir(folder)?;
    let start = |rank: usize| -> Result<Child, BoxError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            kind,
            &*items.to_string(),
            &*folder.to_string_lossy(),
            &*stop.to_string(),
            state,
        ]);
        command
            .env("RANKS_EXAMPLE", "rank")
            .env("RANK", rank.to_string());
        command
            .env("WORLD_SIZE", world.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(command.spawn()?)
    };
    let mut children = (0..world).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut says: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().expect("piped")).lines())
        .collect();
    let mut hears: Vec<_> = children
        .iter_mut()
        .map(|child| child.stdin.take().expect("piped"))
        .collect();
    loop {
        let said = says
            .iter_mut()
            .map(|lines| lines.next().transpose())
            .collect::<Result<Vec<_>, _>>()?;
        // A rank that has stopped sends nothing any more; the others should stop as well.
        if said.iter().any(Option::is_none) {
            break;
        }
        let all = said.iter().all(|have| have.as_deref() == Some("true"));
        for hear in &mut hears {
            writeln!(hear, "{all}")?;
        }
    }
    drop(hears);
    for (rank, child) in children.iter_mut().enumerate() {
        check(child.wait()?.success(), format!("rank {rank} ended well"))?;
    }
    let read = |kind: &str, rank| std::fs::read(folder.join(format!("{kind}-{rank}-of-{world}")));
    let mut part = Part {
        steps: Vec::new(),
        states: Vec::new(),
    };
    let (mut facts, mut counts) = (Vec::new(), Vec::new());
    for rank in 0..world {
        let text = String::from_utf8(read("steps", rank)?)?;
        counts.push(text.lines().count());
        for (step, line) in text.lines().enumerate() {
            if part.steps.len() <= step {
                part.steps.push(Vec::new());
            }
            part.steps[step].push(line.split(',').map(str::to_owned).collect());
        }
        part.states
            .push(Checkpoint::from_bytes(&read("state", rank)?)?);
        facts.push(String::from_utf8(read("facts", rank)?)?);
    }
    check(
        counts.iter().all(|&count| count == counts[0]),
        format!("steps are equal: {counts:?}"),
    )?;
    check(
        facts.iter().all(|fact| *fact == facts[0]),
        format!("ranks have one graph and one epoch: {facts:?}"),
    )?;
    Ok(part)
}

fn check(right: bool, what: String) -> Result<(), BoxError> {
    if right {
        Ok(())
    } else {
        Err(format!("not so: {what}").into())
    }
}
