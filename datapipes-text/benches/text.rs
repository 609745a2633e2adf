//! Packing, tokenizing and token stores, in tokens a second, beside a floor in the same run.
//!
//! `cargo bench -p datapipes-text --features tokenizers [-- --json] [-- pack|tokenize|store]`. One
//! line a case: tokens a second, those of the floor, the ratio and its goal (medians of rounds in
//! turn; the ratio is that of paired rounds). The text is synthetic, Zipf-like words of syllables,
//! and the tokenizer a byte-level BPE trained on it. Peers of the store run where `DATAPIPES_PEERS`
//! names a Python that has them.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes::index::Permutation;
use datapipes::{DataLoader, Graph, Indexed};
use datapipes_text::{
    HfTokenizer, Pack, PackPlan, PackedBatch, TokenStore, TokenWidth, TokenWriter, Tokenize,
    Tokenizer, prelude::*,
};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

const LENGTH: usize = 2048;
const BATCH: usize = 8;
const ROUNDS: usize = 7;
/// Bytes of the fields of a token.
const FIELDS: usize = 4 + 8 + 4 + 4;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let json = args.iter().any(|arg| arg == "--json");
    let parts: Vec<&str> = args
        .iter()
        .map(|arg| &**arg)
        .filter(|arg| *arg != "--json")
        .collect();
    let wants = |part| parts.is_empty() || parts.contains(&part);
    if !json {
        println!(
            "{:<52} {:>10} {:>10} {:>7} {:>6}",
            "million tokens/s", "", "floor", "ratio", "goal"
        );
    }
    if wants("pack") {
        pack(json)?;
    }
    if wants("tokenize") {
        tokenize(json)?;
    }
    if wants("store") {
        store(json)?;
    }
    Ok(())
}

/// A case: its name, what it runs, the case that it is compared with, and the goal of the ratio.
struct Case<'a> {
    name: String,
    run: Box<dyn FnMut() -> Duration + 'a>,
    floor: usize,
    goal: Option<f64>,
}

fn case<'a, R>(
    name: &str,
    floor: usize,
    goal: Option<f64>,
    mut run: impl FnMut() -> R + 'a,
) -> Case<'a> {
    let run = move || {
        let begun = Instant::now();
        black_box(run());
        begun.elapsed()
    };
    Case {
        name: name.to_owned(),
        run: Box::new(run),
        floor,
        goal,
    }
}

/// Makes a case of a peer of `benches/peers/tokens.py`, if `DATAPIPES_PEERS` names a Python that has
/// it. Its own words say why it does not run.
fn peer<'a>(
    name: &str,
    floor: usize,
    peer: &'a str,
    store: &'a Path,
    tokens: usize,
) -> Option<Case<'a>> {
    let python = std::env::var_os("DATAPIPES_PEERS")?;
    let run = move || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/peers/tokens.py");
        let mut command = Command::new(&python);
        command.args([script, peer]).arg(store);
        let command = command.arg(tokens.to_string()).stderr(Stdio::inherit());
        let said = command.output().ok()?.stdout;
        let seconds = String::from_utf8_lossy(&said).lines().last()?.parse();
        seconds.map(Duration::from_secs_f64).ok()
    };
    run()?;
    Some(Case {
        name: name.to_owned(),
        run: Box::new(move || run().expect("it has run before")),
        floor,
        goal: None,
    })
}

/// Runs the cases in turn, so that all see the same machine, and prints them.
fn compare(json: bool, tokens: usize, mut cases: Vec<Case<'_>>) {
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=ROUNDS {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            let time = (case.run)().as_secs_f64();
            if round > 0 {
                times.push(time);
            }
        }
    }
    for (case, own) in cases.iter().zip(&times) {
        let floors = &times[case.floor];
        let ratio = median(
            own.iter()
                .zip(floors)
                .map(|(own, floor)| floor / own)
                .collect(),
        );
        let rate = |times: &[f64]| tokens as f64 / median(times.to_vec()) / 1e6;
        print(json, &case.name, rate(own), rate(floors), ratio, case.goal);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(json: bool, name: &str, rate: f64, floor: f64, ratio: f64, goal: Option<f64>) {
    if json {
        let line = serde_json::json!({
            "bench": "text", "case": name, "million_tokens_per_s": rate, "floor": floor, "ratio": ratio, "goal": goal,
        });
        return println!("{line}");
    }
    let goal = goal.map_or(String::new(), |goal| format!("{goal:.2}"));
    println!("{name:<52} {rate:>10.2} {floor:>10.2} {ratio:>7.3} {goal:>6}");
}

/// Random numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Returns the length of a document, about 360 in the mean, with a long tail.
    fn length(&mut self) -> usize {
        let scale = 1 << self.below(7);
        (10 + self.below(40 * scale)) as usize
    }
}

fn epoch<T: Send + 'static>(loader: &DataLoader<T>, mut each: impl FnMut(T)) -> Result<(), Error> {
    for batch in loader.epoch(0).blocking() {
        each(black_box(batch?));
    }
    Ok(())
}

fn loader(documents: &[Arc<[u32]>], pack: Pack) -> Result<DataLoader<PackedBatch>, Error> {
    let rows = Graph::from_vec(documents.to_vec()).pack(pack);
    Ok(DataLoader::builder(rows.batch(BATCH).collate())
        .workers(0)
        .build()?)
}

fn pack(json: bool) -> Result<(), Error> {
    let mut numbers = Numbers(7);
    let mut documents: Vec<Arc<[u32]>> = Vec::new();
    let mut tokens = 0;
    while tokens < 20_000_000 {
        let length = numbers.length();
        documents.push((0..length as u32).collect());
        tokens += length;
    }
    let from = vec![1u8; tokens * FIELDS];
    let mut ring = vec![1u8; BATCH * LENGTH * FIELDS];
    let concat = loader(&documents, Pack::concat(LENGTH))?;
    let best = loader(&documents, Pack::best_fit(LENGTH, 64))?;
    let cases = vec![
        case("memcpy of as many bytes", 0, None, || {
            for part in from.chunks(ring.len()) {
                ring[..part.len()].copy_from_slice(part);
                black_box(&ring);
            }
        }),
        case("pack: a plain loop into batches", 0, None, || {
            plain(&documents)
        }),
        case(
            "pack: concat, batches, one core (goal 200)",
            1,
            None,
            || epoch(&concat, drop),
        ),
        case("pack: best fit of 64, the same (goal 200)", 1, None, || {
            epoch(&best, drop)
        }),
    ];
    compare(json, tokens, cases);
    pack_short(json)?;
    let lengths: Vec<usize> = documents.iter().map(|document| document.len()).collect();
    let decreasing = best_fit_decreasing(&lengths);
    for bins in [8, 64, 256, 1024] {
        let mut rows = 0;
        let graph = Graph::from_vec(documents.clone()).pack(Pack::best_fit(LENGTH, bins));
        epoch(&DataLoader::builder(graph).workers(0).build()?, |_| {
            rows += 1
        })?;
        let padding = |rows: usize| 1.0 - tokens as f64 / (rows * LENGTH) as f64;
        let (own, floor) = (padding(rows), padding(decreasing));
        if json {
            let line = serde_json::json!({
                "bench": "text", "case": "padding", "bins": bins, "padding": own, "best_fit_decreasing": floor,
            });
            println!("{line}");
        } else {
            let all = format!("padding: best fit of {bins}, offline best fit decreasing");
            println!("{all:<52} {:>9.3}% {:>9.3}%", 100.0 * own, 100.0 * floor);
        }
    }
    Ok(())
}

/// Packs short documents into many open rows, of which each has many documents.
fn pack_short(json: bool) -> Result<(), Error> {
    let mut numbers = Numbers(3);
    let mut documents: Vec<Arc<[u32]>> = Vec::new();
    let mut tokens = 0;
    while tokens < 5_000_000 {
        let length = 1 + numbers.below(30) as usize;
        documents.push((0..length as u32).collect());
        tokens += length;
    }
    let rows = || Graph::from_vec(documents.clone()).pack(Pack::best_fit(LENGTH, 256));
    let loader = |graph| DataLoader::builder(graph).workers(0);
    let plain = loader(rows()).build()?;
    let resumable = loader(rows()).resumable().build()?;
    let cases = vec![
        case("pack: best fit of 256, short documents", 0, None, || {
            epoch(&plain, drop)
        }),
        case("pack: the same, resumable", 0, None, || {
            epoch(&resumable, drop)
        }),
    ];
    compare(json, tokens, cases);
    Ok(())
}

/// Packs as one would write it by hand, into new memory for each batch.
fn plain(documents: &[Arc<[u32]>]) {
    let room = BATCH * LENGTH;
    let new = || {
        (
            Vec::with_capacity(room),
            Vec::with_capacity(room),
            Vec::with_capacity(room),
            Vec::with_capacity(room),
        )
    };
    let (mut ids, mut labels, mut positions, mut numbers): (
        Vec<u32>,
        Vec<i64>,
        Vec<u32>,
        Vec<u32>,
    ) = new();
    let mut number = 0;
    for document in documents {
        let mut rest = &document[..];
        while !rest.is_empty() {
            let left = LENGTH - ids.len() % LENGTH;
            let piece = &rest[..left.min(rest.len())];
            if ids.len().is_multiple_of(LENGTH) {
                number = 0;
            }
            number += 1;
            ids.extend_from_slice(piece);
            let next = rest[1..].iter().take(piece.len());
            labels.extend(next.map(|&id| i64::from(id)));
            labels.resize(ids.len(), -100);
            positions.extend(0..piece.len() as u32);
            numbers.resize(ids.len(), number);
            rest = &rest[piece.len()..];
            if ids.len() == room {
                black_box((ids, labels, positions, numbers));
                (ids, labels, positions, numbers) = new();
            }
        }
    }
    black_box((ids, labels, positions, numbers));
}

/// Writes all fields of windows as one would by hand: tokens and ends of documents are in vectors,
/// nothing is checked, and all batches have the same memory.
fn plain_rows(tokens: &[u8], ends: &[usize], windows: impl Iterator<Item = u64>) {
    let room = BATCH * LENGTH;
    let (mut ids, mut labels) = (Vec::<u32>::with_capacity(room), Vec::with_capacity(room));
    let (mut positions, mut numbers) = (Vec::with_capacity(room), Vec::with_capacity(room));
    let tokens = tokens.as_chunks().0;
    for window in windows {
        let start = window as usize * LENGTH;
        let end = start + LENGTH;
        let begin = ids.len();
        ids.extend(
            tokens[start..end]
                .iter()
                .map(|&id| u32::from(u16::from_le_bytes(id))),
        );
        let next = tokens[start + 1..].iter().take(LENGTH);
        labels.extend(next.map(|&id| i64::from(u16::from_le_bytes(id))));
        labels.resize(ids.len(), -100);
        let mut document = ends.partition_point(|&end| end <= start);
        let (mut at, mut number) = (start, 1);
        while at < end {
            let piece = ends[document].min(end) - at;
            at += piece;
            if ends[document] == at {
                labels[begin + at - start - 1] = -100;
            }
            positions.extend(0..piece as u32);
            numbers.resize(begin + at - start, number);
            (document, number) = (document + 1, number + 1);
        }
        if ids.len() == room {
            black_box((&ids, &labels, &positions, &numbers));
            ids.clear();
            labels.clear();
            positions.clear();
            numbers.clear();
        }
    }
}

/// Returns the number of rows of best-fit decreasing over all documents, those longer than a row
/// cut as `Overflow::Split` cuts them.
fn best_fit_decreasing(lengths: &[usize]) -> usize {
    let mut rows = 0;
    let mut rest: Vec<usize> = Vec::new();
    for &length in lengths {
        rows += length / LENGTH;
        rest.push(length % LENGTH);
    }
    rest.sort_unstable_by(|a, b| b.cmp(a));
    // Rows by room.
    let mut open = vec![0usize; LENGTH + 1];
    for length in rest.into_iter().filter(|&length| length > 0) {
        let room = (length..=LENGTH).find(|&room| open[room] > 0);
        match room {
            Some(room) => {
                open[room] -= 1;
                open[room - length] += 1;
            }
            None => {
                rows += 1;
                open[LENGTH - length] += 1;
            }
        }
    }
    rows
}

/// Returns texts of Zipf-like words.
fn texts(bytes: usize) -> Vec<String> {
    const SYLLABLES: [&str; 24] = [
        "ta", "ri", "mo", "ne", "sul", "ka", "pe", "lo", "vi", "dra", "en", "sto", "ba", "qui",
        "her", "mi", "on", "tra", "fe", "gu", "al", "ze", "ci", "nor",
    ];
    let mut numbers = Numbers(11);
    let words: Vec<String> = (0..20_000)
        .map(|_| {
            (0..1 + numbers.below(4))
                .map(|_| SYLLABLES[numbers.below(24) as usize])
                .collect()
        })
        .collect();
    let (mut texts, mut len) = (Vec::new(), 0);
    while len < bytes {
        let text: Vec<&str> = (0..numbers.length())
            .map(|_| {
                // The n-th word comes about 1/n as often as the first.
                let most = 1 << (1 + numbers.below(14));
                &*words[(numbers.below(most) as usize).min(words.len() - 1)]
            })
            .collect();
        let text = text.join(" ") + ".";
        len += text.len();
        texts.push(text);
    }
    texts
}

fn trained(texts: &[String]) -> Result<tokenizers::Tokenizer, Error> {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default()));
    let trainer = BpeTrainer::builder()
        .vocab_size(8_000)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![tokenizers::AddedToken::from("<eos>", true)])
        .build();
    let mut trainer = TrainerWrapper::BpeTrainer(trainer);
    tokenizer.train(&mut trainer, texts.iter())?;
    Ok(tokenizer)
}

fn tokenize(json: bool) -> Result<(), Error> {
    let texts = texts(6 << 20);
    let tokenizer = trained(&texts[..texts.len() / 4])?;
    let encode = |texts: &[String]| -> usize {
        let len = |text: &String| {
            tokenizer
                .encode_fast(&**text, false)
                .map_or(0, |tokens| tokens.len() + 1)
        };
        texts.iter().map(len).sum()
    };
    let tokens = encode(&texts);
    // As many threads as workers, each with every n-th text of 16.
    let in_threads = |threads: usize| {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (texts, encode) = (&texts, &encode);
                scope.spawn(move || {
                    let mine = texts.chunks(16).skip(thread).step_by(threads);
                    black_box(mine.map(encode).sum::<usize>())
                });
            }
        })
    };
    let loader = |workers| -> Result<DataLoader<PackedBatch>, Error> {
        let tokenize = Tokenize::new(HfTokenizer::new(tokenizer.clone())).end("<eos>");
        let rows = Graph::from_vec(texts.clone())
            .tokenize(tokenize)
            .pack(Pack::concat(LENGTH));
        Ok(DataLoader::builder(rows.batch(BATCH).collate())
            .workers(workers)
            .build()?)
    };
    let (none, one, two) = (loader(0)?, loader(1)?, loader(2)?);
    let ours = HfTokenizer::new(tokenizer.clone());
    let cases = vec![
        case("tokenizer alone, one thread", 0, None, || in_threads(1)),
        case("tokenizer alone, two threads", 0, Some(1.9), || {
            in_threads(2)
        }),
        case("HfTokenizer alone, one thread", 0, None, || {
            for text in &texts {
                black_box(ours.encode(text, false).expect("no errors"));
            }
        }),
        case(
            "tokenize and pack, on the consumer's thread",
            0,
            Some(0.95),
            || epoch(&none, drop),
        ),
        case("tokenize and pack, one worker", 0, Some(0.95), || {
            epoch(&one, drop)
        }),
        case("tokenize and pack, two workers", 1, Some(0.95), || {
            epoch(&two, drop)
        }),
    ];
    compare(json, tokens, cases);
    Ok(())
}

/// Reads random windows of a file that is not in memory, beside a plain loop of reads at places.
fn cold(json: bool, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes)?;
    // Nobody may have the file mapped.
    let evict = || {
        let mut dd = Command::new("dd");
        dd.arg(format!("of={}", path.display()))
            .stderr(Stdio::null());
        dd.args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0"]);
        assert!(dd.status().is_ok_and(|status| status.success()), "dd runs");
    };
    let count = (bytes.len() / 2 / LENGTH) as u64;
    let time = |run: &dyn Fn() -> Result<(), Error>| {
        evict();
        let begun = Instant::now();
        run().map(|()| begun.elapsed().as_secs_f64())
    };
    let (mut floors, mut own) = (Vec::new(), Vec::new());
    for seed in 0..3 {
        floors.push(time(&|| {
            let (file, mut window) = (File::open(path)?, vec![0u8; LENGTH * 2]);
            for number in Permutation::new(count, seed).iter() {
                file.read_exact_at(&mut window, number * LENGTH as u64 * 2)?;
                black_box(&window);
            }
            Ok(())
        })?);
        own.push(time(&|| {
            let store = TokenStore::flat(path, TokenWidth::U16, None)?;
            let ids = store.windows(LENGTH)?.shuffle().fetch();
            let ids = ids.try_map(|window| window.ids()).batch(BATCH).collate();
            epoch(&DataLoader::builder(ids).seed(seed).build()?, drop)
        })?);
    }
    let ratio = floors.iter().zip(&own).map(|(floor, own)| floor / own);
    let rate = |times: Vec<f64>| bytes.len() as f64 / 2e6 / median(times);
    let ratio = median(ratio.collect());
    print(
        json,
        "store: random windows, cold; floor: reads at places",
        rate(own),
        rate(floors),
        ratio,
        None,
    );
    Ok(())
}

fn store(json: bool) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("corpus");
    let mut numbers = Numbers(5);
    let mut writer = TokenWriter::megatron(&path, TokenWidth::U16)?;
    while writer.len() < 40_000_000 {
        let length = numbers.length();
        let ids: Vec<u32> = (0..length).map(|_| numbers.below(32_000) as u32).collect();
        writer.push(&ids)?;
    }
    writer.finish()?;
    let store = TokenStore::megatron(&path)?;
    let mut ends = vec![0];
    for document in 0..store.document_count() {
        ends.push(ends[document as usize] + store.document_len(document)? as usize);
    }
    let tokens = store.len() as usize / LENGTH / BATCH * LENGTH * BATCH;
    let bytes = std::fs::read(path.with_extension("bin"))?;
    let mut copy = bytes.clone();
    let mut all = vec![1u8; BATCH * LENGTH * FIELDS];
    let windows = || -> Result<_, Error> { Ok(store.windows(LENGTH)?.shuffle().fetch()) };
    let ids = windows()?
        .try_map(|window| window.ids())
        .batch(BATCH)
        .collate();
    let rows = windows()?
        .try_map(|window| window.row())
        .batch(BATCH)
        .collate();
    let ids = DataLoader::builder(ids).workers(0).build()?;
    let rows = DataLoader::builder(rows).workers(0).build()?;
    let numbers = || {
        let numbers = Indexed::range(store.len() / LENGTH as u64).shuffle();
        numbers.fetch().batch(BATCH)
    };
    let batches = DataLoader::builder(numbers().window_batches(&store, LENGTH))
        .workers(0)
        .build()?;
    let row_batches = DataLoader::builder(numbers().row_batches(&store, LENGTH))
        .workers(0)
        .build()?;
    let order = Permutation::new(store.len() / LENGTH as u64, 7);
    let mut ring = vec![0u8; BATCH * LENGTH * 2];
    let mut cases = vec![
        case("memcpy of the ids, in one piece", 0, None, || {
            copy.copy_from_slice(&bytes)
        }),
        case("a plain loop that copies random windows", 0, None, || {
            for (place, window) in order.iter().enumerate() {
                let from = &bytes[window as usize * LENGTH * 2..][..LENGTH * 2];
                ring[place % BATCH * LENGTH * 2..][..LENGTH * 2].copy_from_slice(from);
                black_box(&ring);
            }
        }),
        case(
            "store: random windows, ids alone, by batches",
            0,
            Some(0.8),
            || epoch(&batches, drop),
        ),
        case("store: random windows, ids alone", 0, None, || {
            epoch(&ids, drop)
        }),
        case(
            "a plain loop that writes all fields of them",
            4,
            None,
            || plain_rows(&bytes, &ends, order.iter()),
        ),
        case(
            "the same loop, of one window again and again",
            4,
            None,
            || plain_rows(&bytes, &ends, order.iter().map(|_| 7)),
        ),
        case(
            "memset of as many bytes, in the second cache",
            4,
            None,
            || {
                for part in 0..tokens / LENGTH / BATCH {
                    all.fill(part as u8);
                    black_box(&all);
                }
            },
        ),
        case("store: random windows, all fields", 4, None, || {
            epoch(&rows, drop)
        }),
        case(
            "store: random windows, all fields, by batches",
            4,
            Some(0.8),
            || epoch(&row_batches, drop),
        ),
    ];
    for (name, floor, script) in [
        ("NumPy's memmap: random windows, ids copied", 0, "ids"),
        ("NumPy's memmap: random windows, all fields", 4, "fields"),
        ("LitData's TokensLoader: random windows, ids", 0, "litdata"),
    ] {
        cases.extend(peer(name, floor, script, &path, tokens));
    }
    compare(json, tokens, cases);
    cold(json, &dir.path().join("cold.bin"), &bytes)?;

    let plan =
        PackPlan::new(store.clone(), LENGTH).balance(|length| 12_000 * length + length * length);
    let begun = Instant::now();
    let report = plan.report(8)?;
    let nanoseconds = begun.elapsed().as_nanos() as f64 / store.document_count() as f64;
    if json {
        let line = serde_json::json!({
            "bench": "text", "case": "pack plan", "ns_a_document": nanoseconds, "padding": report.padding,
            "waiting": report.waiting, "worst_rank": report.worst_rank,
        });
        println!("{line}");
    } else {
        println!("pack plan, 8 ranks, {nanoseconds:.0} ns a document: {report}");
    }

    // As many windows as no memory holds, of zeros that are not on the disk.
    let path = dir.path().join("large.bin");
    File::create(&path)?.set_len(100_000_000 * 64 * 2)?;
    let mut times = Vec::new();
    for seed in 0..ROUNDS as u64 {
        let begun = Instant::now();
        let store = TokenStore::flat(&path, TokenWidth::U16, None)?;
        let graph = store
            .windows(64)?
            .shuffle()
            .fetch()
            .try_map(|window| window.ids());
        let loader = DataLoader::builder(graph.batch(BATCH).collate())
            .seed(seed)
            .build()?;
        black_box(
            loader
                .epoch(0)
                .blocking()
                .next()
                .ok_or("an empty epoch")??,
        );
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let first = median(times);
    if json {
        println!(
            "{}",
            serde_json::json!({"bench": "text", "case": "first batch of 1e8 windows", "ms": first, "goal": 20})
        );
    } else {
        println!(
            "{:<52} {first:>8.2}ms {:>25}",
            "store: first batch of 1e8 shuffled windows", "20 ms"
        );
    }
    Ok(())
}
