//! Makes a token store of a corpus of texts, on all cores; a run that was stopped is resumed by the
//! same command.

mod corpus;
mod document;
mod output;

use std::ffi::OsString;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes::loader::Stats;
use datapipes::{BoxError, DataLoader, Graph, OnError};
use datapipes_io::formats::{Lines, Parquet, ParquetRows};
use datapipes_io::prelude::*;
use datapipes_text::{Tokenize, Tokenizer, Tokens, prelude::*};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde_json::json;

use self::corpus::{Corpus, CorpusFile, Layout};
use self::document::TextField;
use self::output::{Format, Output, Settings};
use crate::args::{Args, refuse};
use crate::inspect::files;
use crate::inspect::shown::sha256;
use crate::lock::locked;

const USAGE: &str = "datapipes tokenize IN… --tokenizer tokenizer.json --out DIR [OPTIONS]

Makes one token store of all documents of a corpus, in the order of the files. The store is the same
for any number of workers. A run that was stopped is resumed by the same command, after the last
checkpoint, or from the beginning if there is none. The files must be the same: only their names and
sizes are compared. A repository of the hub (hf://) is read at the commit of the first run in DIR.

IN is a file, a folder, a pattern in quotes ('data/**/*.jsonl.zst') or a URL. Files hold JSON lines
(.jsonl, .ndjson: a document on each line), Parquet (.parquet: a document in each row) or plain text
(.txt, .text, .md, .log: a document each), compressed or not (gzip, zstd, xz, bzip2, lz4). Of a Parquet
file that is not compressed as a whole only the column of the text is read, row group by row group.
Of a folder only files with these names are read, also with --as; a pattern ('data/**/*.json.gz')
reads all files that it matches.

  --tokenizer FILE            a tokenizer.json of Hugging Face, also by its URL, such as
                              hf://openai-community/gpt2/tokenizer.json
  --tokenizer-name NAME       name of the tokenizer in the metadata of datatrove's format, such as that
                              of its repository [the path of its file]
  --out DIR                   folder of the store; it is made if it is not there
  --as jsonl|parquet|text     how documents lie in files that are named one by one or by a pattern;
                              of a folder, only the files whose names say so are read
  --field NAME                field of a JSON line, or column, with the text [text]
  --format megatron|datatrove
                              DIR/corpus.bin and .idx, or DIR/corpus.ds, .ds.index and .ds.metadata
                              [megatron]
  --begin TOKEN, --end TOKEN  special tokens before and after each document, such as '<|endoftext|>'
  --add-special-tokens        those that the tokenizer's own post-processor adds, as Python's encode
  --special-tokens-as-text    special tokens that are written in a document are ordinary text
  --max-bytes N               documents of more bytes are errors, before they are tokenized [4 GiB]
  --skip-errors               leaves out documents that cannot be read, and counts them; what is left
                              of a file that cannot be read or reached counts as one; the first 20
                              of this run are named at the end
  --workers N                 number of threads that parse and tokenize [one for each core]
  --checkpoint-every TOKENS   saves the progress after so many tokens [16000000]
  --locked LOCK               refuses files that are missing, new or changed since `datapipes lock`
                              wrote LOCK for the folder IN, or for the folder before its first *";

/// Size in bytes above which a file is cut into pieces for all workers.
const WHOLE: u64 = 256 << 10;
/// First bytes of some texts, which are no part of them.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// Number of skipped documents that are shown.
const SHOWN: usize = 20;
/// Help for an item that cannot be read.
const SKIP: &str =
    "the same command with --skip-errors goes on, and leaves out what cannot be read";
/// Time between two lines of progress where there is no terminal for a bar.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Runs the command with these arguments.
pub fn main(given: impl Iterator<Item = OsString>) -> Result<ExitCode, BoxError> {
    let flags = "add-special-tokens special-tokens-as-text skip-errors";
    let options = "tokenizer tokenizer-name max-bytes out as field format begin end workers checkpoint-every locked";
    let args = Args::of(given, flags, options, USAGE);
    if args.words.is_empty() {
        refuse("the files to tokenize are missing", USAGE);
    }
    let (tokenizer, folder) = (
        args.required("tokenizer", USAGE),
        args.required("out", USAGE),
    );
    run(&args, tokenizer, folder).map(|()| ExitCode::SUCCESS)
}

fn run(args: &Args, path: String, folder: String) -> Result<(), BoxError> {
    let layout = args.get("as");
    let format = args.get("format").unwrap_or(Format::Megatron);
    let workers = args.get("workers");
    let checkpoint_every = args
        .get("checkpoint-every")
        .map_or(16_000_000, NonZeroU64::get);
    let text = |key: &str| args.get::<String>(key);
    let (json, mut tokenizer) = files::tokenizer(&path)?;
    if args.has("add-special-tokens") {
        tokenizer = tokenizer.add_special_tokens();
    }
    if args.has("special-tokens-as-text") {
        tokenizer = tokenizer.special_tokens_as_text();
    }
    let vocab = tokenizer.vocab_size();
    let mut tokenize = Tokenize::new(tokenizer);
    if let Some(token) = text("begin") {
        tokenize = tokenize.begin(&token);
    }
    if let Some(token) = text("end") {
        tokenize = tokenize.end(&token);
    }
    let max_bytes: Option<u32> = args.get("max-bytes");
    if let Some(bytes) = max_bytes {
        tokenize = tokenize.max_bytes(bytes);
    }
    let before = output::revisions(Path::new(&folder));
    let corpus = Corpus::find(&args.words, layout, locked(args)?.as_ref(), &before)?;
    let corpus = Arc::new(corpus);
    let field = text("field").unwrap_or_else(|| "text".to_owned());

    let file = |file: &CorpusFile| match &file.revision {
        None => json!({ "name": file.name, "size": file.size }),
        Some(commit) => json!({ "name": file.name, "size": file.size, "revision": commit }),
    };
    let settings = json!({
        "tokenizer (SHA-256)": sha256(&json),
        "as": corpus.layout.to_string(),
        "field": (corpus.layout != Layout::Text).then_some(&field),
        "format": format.to_string(),
        "begin": text("begin"),
        "end": text("end"),
        "add-special-tokens": args.has("add-special-tokens"),
        "special-tokens-as-text": args.has("special-tokens-as-text"),
        "files": corpus.files.iter().map(file).collect::<Vec<_>>(),
    });
    let mut settings: Settings = serde_json::from_value(settings)?;
    // Runs without them have no settings of them.
    let name = text("tokenizer-name");
    let named = name.clone().map(|name| ("tokenizer-name", json!(name)));
    let limited = max_bytes.map(|bytes| ("max-bytes", json!(bytes)));
    for (option, value) in named.into_iter().chain(limited) {
        settings.insert(option.to_owned(), value);
    }

    let mut loader = DataLoader::builder(graph(&corpus, field, tokenize)).resumable();
    if args.has("skip-errors") {
        loader = loader.on_error(OnError::skip(u64::MAX));
    }
    if let Some(workers) = workers {
        loader = loader.workers(workers);
    }
    let loader = loader.build()?;
    let name = name.unwrap_or_else(|| files::shown(&path));
    let output = Output::open(Path::new(&folder), format, vocab, &name, &settings)?;
    if let Some(store) = output.finished()? {
        let (documents, tokens) = (store.document_count(), store.len());
        let what = "finished before";
        say(
            io::stdout(),
            format_args!("{folder}: {what}, {documents} documents, {tokens} tokens"),
        );
        return Ok(());
    }
    let skips = args.has("skip-errors");
    write(&loader, &output, &corpus, checkpoint_every, skips)
}

/// Returns the graph from the files of a corpus to tokens.
fn graph(corpus: &Arc<Corpus>, field: String, tokenize: Tokenize) -> Graph<Tokens> {
    let files = corpus
        .clone()
        .files(corpus.files.iter().map(|file| &*file.name));
    match corpus.layout {
        Layout::JsonLines => {
            let lines = files.stream_as(Lines::new().bytes(), WHOLE);
            lines.pipe(TextField::new(field)).tokenize(tokenize)
        }
        Layout::Parquet => {
            let rows = ParquetRows::new(Parquet::new().columns([&field]).by_row_group());
            let rows = files.stream_as(rows, WHOLE);
            rows.pipe(TextField::new(field)).tokenize(tokenize)
        }
        Layout::Text => {
            let texts = files.load_files().decompress().map(|file| {
                let marked = file.data.starts_with(BYTE_ORDER_MARK);
                file.data
                    .slice(if marked { BYTE_ORDER_MARK.len().. } else { 0.. })
            });
            texts.tokenize(tokenize)
        }
    }
}

/// Writes what the loader gives, from the last checkpoint on.
fn write(
    loader: &DataLoader<Tokens>,
    output: &Output,
    corpus: &Corpus,
    checkpoint_every: u64,
    skips: bool,
) -> Result<(), BoxError> {
    let before = output.checkpoint()?;
    let mut documents = before.as_ref().map_or(0, |state| state.delivered());
    let mut writer = output.writer(documents)?;
    let mut epoch = match &before {
        Some(state) => loader.resume(state)?,
        None => loader.epoch(0),
    }
    .blocking();
    let (begun, first) = (Instant::now(), writer.len());
    if documents > 0 {
        say(
            io::stderr(),
            format_args!("resumed after {documents} documents, {first} tokens"),
        );
    }
    let rate = |tokens: u64| (tokens - first) as f64 / begun.elapsed().as_secs_f64().max(1e-9);
    let bar = ProgressBar::new(corpus.bytes).with_style(ProgressStyle::with_template(
        "{wide_bar} {bytes} of {total_bytes}, {msg}, {eta} left",
    )?);
    let show = |documents: u64, tokens: u64| {
        let (per_second, documents) = (HumanCount(rate(tokens) as u64), HumanCount(documents));
        bar.set_position(corpus.read_up_to());
        bar.set_message(format!("{documents} documents, {per_second} tokens/s"));
    };
    show(documents, first);
    let mut saved = first;
    let mut said: Option<Instant> = None;
    while let Some(tokens) = epoch.next() {
        let tokens = tokens.map_err(|error| match skips || error.is_transient() {
            true => error.into(),
            false => BoxError::from(format!("{error}\n{SKIP}")),
        })?;
        writer.push(&tokens.ids)?;
        documents += 1;
        if documents.is_multiple_of(64) {
            show(documents, writer.len());
        }
        if writer.len() - saved >= checkpoint_every {
            saved = writer.len();
            output.save(&mut writer, &epoch.checkpoint()?)?;
        }
        let is_due = said.is_none_or(|said| said.elapsed() >= LINE_EVERY);
        if is_due && bar.is_hidden() && documents.is_multiple_of(64) {
            said = Some(Instant::now());
            let (read, bytes) = (corpus.read_up_to(), corpus.bytes);
            let tokens = writer.len();
            let per_second = rate(tokens);
            say(
                io::stderr(),
                format_args!(
                    "{documents} documents, {tokens} tokens, {per_second:.0} tokens/s, {read} of {bytes} bytes"
                ),
            );
        }
    }
    bar.finish_and_clear();
    let (tokens, skipped) = (writer.len(), epoch.checkpoint()?.skipped());
    if skipped > 0 {
        warn(skipped, epoch.stats());
    }
    if skipped > 0 && documents == 0 {
        return Err("no document could be read".into());
    }
    output.finish(writer)?;
    say(
        io::stdout(),
        format_args!(
            "{}: {documents} documents, {tokens} tokens, {:.0} tokens/s",
            output.store().display(),
            rate(tokens)
        ),
    );
    Ok(())
}

/// Tells which documents were left out.
fn warn(skipped: u64, stats: Option<Stats>) {
    let items = stats.map_or_else(Vec::new, |stats| stats.skipped_items);
    for item in items.iter().take(SHOWN) {
        say(io::stderr(), format_args!("skipped: {item}"));
    }
    let what = "could not be read and were skipped";
    say(io::stderr(), format_args!("{skipped} {what}"));
}

/// Writes a line. A reader that has gone is no reason to stop.
fn say(mut to: impl Write, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(to, "{line}");
}
