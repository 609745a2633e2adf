//! Language data, the whole way: makes a small corpus, trains a tokenizer, tokenizes it into a
//! store, packs the documents by a plan for all ranks, and trains a small transformer with candle on
//! the CPU. The training is killed in the middle, and two ranks go on instead of one: every step has
//! the tokens over all ranks that it has in a training that was never stopped.
//!
//! `cargo run --release --no-default-features --features text,candle --example train_text`
//!
//! Options: `--steps N`, `--small` (a few seconds, to see that it runs), `--trace FILE` (a timeline
//! for `ui.perfetto.dev` of the training that is never stopped). The killed training is a
//! process of its own, which this program starts as `train_text --in FOLDER`; the two ranks take
//! turns in one process and add their gradients, as an all-reduce does.

mod support;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{
    Embedding, Linear, Module, RmsNorm, VarBuilder, VarMap, embedding, linear_no_bias, ops,
    rms_norm,
};
use datapipes::{BoxError, Checkpoint, DataLoader, Graph, Rng, Uneven};
use datapipes_candle::{CandleLoader, IntoCandle};
use datapipes_io::formats::JsonLines;
use datapipes_io::list_files;
use datapipes_io::prelude::*;
use datapipes_text::{
    Attention, HfTokenizer, MaskForm, PackPlan, PackedBatch, TokenStore, TokenWidth, TokenWriter,
    Tokenize, Tokenizer, Tokens, prelude::*,
};
use serde_json::{Value, json};
use support::args::Args;
use support::texts;
use support::trace::Trace;

const USAGE: &str = "train_text [--steps N] [--small] [--trace FILE]";
/// Rows of a step, over all ranks.
const ROWS: usize = 8;
/// Steps from a save of the training to the next one.
const SAVE_EVERY: u64 = 10;
/// Width of an attention head.
const HEAD: usize = 32;
/// Learning rate.
const RATE: f64 = 3e-3;

fn main() -> ExitCode {
    support::exit_code(run())
}

fn run() -> std::result::Result<(), BoxError> {
    let args = Args::parse("small", "steps in trace", USAGE);
    let mut job = Job::new(args.has("small"));
    if let Some(steps) = args.get("steps") {
        job.steps = steps;
    }
    if let Some(folder) = args.get::<PathBuf>("in") {
        return job.be_killed(&folder);
    }
    if job.kill_at() <= SAVE_EVERY {
        return Err(format!("--steps {}: too few to be killed after a save", job.steps).into());
    }

    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    job.make_data(folder)?;
    println!("{}", job.plan(folder)?.report(2)?);

    // A training that is never stopped.
    let begun = Instant::now();
    let mut whole: Vec<Step> = Vec::new();
    job.trace = args.get("trace");
    job.train(folder, 1, false, |step, _| {
        whole.push(step);
        Ok(())
    })?;
    job.trace = None;
    let mean = |steps: &[Step]| steps.iter().map(|s| s.loss).sum::<f32>() / steps.len() as f32;
    let (first, last) = (mean(&whole[..5]), mean(&whole[whole.len() - 5..]));
    println!(
        "one rank, never stopped: {} steps in {:.1} s, loss {first:.2} to {last:.2}",
        whole.len(),
        begun.elapsed().as_secs_f64()
    );
    if last > 0.7 * first {
        return Err("the loss has not fallen".into());
    }

    // Another one, in a process that is killed.
    let mut child = Command::new(std::env::current_exe()?)
        .args(args.has("small").then_some("--small"))
        .args(["--steps", &job.steps.to_string(), "--in"])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut steps: Vec<Step> = Vec::new();
    let said = BufReader::new(child.stdout.take().expect("it is piped"));
    for line in said.lines().take(job.kill_at() as usize) {
        let line = line?;
        let (tokens, loss) = line.split_once(' ').ok_or("no step")?;
        let (tokens, loss) = (tokens.parse()?, loss.parse()?);
        steps.push(Step { tokens, loss });
    }
    child.kill()?;
    let status = child.wait()?;
    let saved = Checkpoint::load(folder.join("checkpoint"))?;
    println!("one rank, killed after step {} ({status})", steps.len());

    // Two ranks go on where it was saved; what came after the save is done once more.
    let mut resumed = Vec::new();
    job.train(folder, 2, false, |step, _| {
        resumed.push(step);
        Ok(())
    })?;
    let before = job.kill_at() / SAVE_EVERY * SAVE_EVERY;
    if resumed.len() as u64 != job.steps - before {
        let what = format!("{} steps after {before} that were saved", resumed.len());
        return Err(format!("{what}, of {}", job.steps).into());
    }
    steps.truncate(before as usize);
    println!(
        "two ranks, from epoch {} and {} batches on: the other {} steps, loss {:.2}",
        saved.epoch(),
        saved.delivered(),
        resumed.len(),
        mean(&resumed[resumed.len() - 5..])
    );
    steps.extend(resumed);
    for (number, (step, expected)) in steps.iter().zip(&whole).enumerate() {
        if step.tokens != expected.tokens {
            return Err(format!("step {number} has other tokens").into());
        }
    }
    let differ = steps
        .iter()
        .zip(&whole)
        .map(|(a, b)| (a.loss - b.loss).abs());
    println!(
        "all {} steps have the tokens of the training that was never stopped; losses differ by {:.1e} at most",
        steps.len(),
        differ.fold(0.0, f32::max)
    );
    Ok(())
}

/// A step, over all ranks.
#[derive(Clone, Copy)]
struct Step {
    /// Hash of the token ids.
    tokens: u64,
    /// Mean over the tokens, before the step.
    loss: f32,
}

/// Sizes of data and model.
struct Job {
    documents: usize,
    vocab: usize,
    /// Tokens of a row.
    length: usize,
    width: usize,
    blocks: usize,
    steps: u64,
    /// File for a trace of the first rank.
    trace: Option<PathBuf>,
}

impl Job {
    fn new(small: bool) -> Job {
        Job {
            documents: if small { 400 } else { 4000 },
            vocab: 400,
            length: if small { 64 } else { 128 },
            width: if small { 32 } else { 64 },
            blocks: if small { 1 } else { 2 },
            steps: if small { 30 } else { 120 },
            trace: None,
        }
    }

    /// Returns the step after which the training is killed.
    fn kill_at(&self) -> u64 {
        self.steps / 2 + 3
    }

    /// Makes shards of texts, a tokenizer and a store of tokens in a folder.
    fn make_data(&self, folder: &Path) -> std::result::Result<(), BoxError> {
        let of_shard = self.documents / 4;
        for shard in 0..4 {
            let numbers = shard * of_shard..(shard + 1) * of_shard;
            let lines = numbers.map(|number| json!({ "text": texts::sentences(number) }));
            texts::write_lines(&folder.join(format!("texts-{shard}.jsonl.gz")), lines)?;
        }
        let read = || list_files(folder, "*.jsonl.gz").read_as(JsonLines::values());
        let texts = || {
            read().try_map(|line: Value| match &line["text"] {
                Value::String(text) => Ok(text.clone()),
                _ => Err("a line without text"),
            })
        };
        let json = folder.join("tokenizer.json");
        texts::train_bpe(texts().collect()?.into_iter(), self.vocab)?.save(&json, false)?;
        let tokenizer = HfTokenizer::from_file(&json)?;
        println!(
            "{} documents in 4 files, a vocabulary of {}",
            self.documents,
            tokenizer.vocab_size()
        );

        // As `datapipes tokenize FOLDER --tokenizer tokenizer.json --end '<|endoftext|>'` does.
        let tokens: Graph<Tokens> = texts().tokenize(Tokenize::new(tokenizer).end(texts::END));
        let mut writer = TokenWriter::megatron(folder.join("corpus"), TokenWidth::U16)?;
        for tokens in DataLoader::builder(tokens).build()?.epoch(0).blocking() {
            writer.push(&tokens?.ids)?;
        }
        writer.finish()?;
        Ok(())
    }

    fn plan(&self, folder: &Path) -> std::result::Result<PackPlan, BoxError> {
        let store = TokenStore::megatron(folder.join("corpus"))?.vocab(self.vocab as u32);
        Ok(PackPlan::new(store, self.length)
            .step(ROWS)
            .balance(|length| 1000 * length + length * length))
    }

    /// Returns the loader of a rank, which moves its batches to candle.
    fn loader(
        &self,
        folder: &Path,
        (rank, world): (usize, usize),
    ) -> std::result::Result<CandleLoader<Feed>, BoxError> {
        let batches = self
            .plan(folder)?
            .graph()
            .sharding_filter()
            .try_map(|row| row.read())
            .batch(ROWS / world)
            .collate();
        let loader = DataLoader::builder(batches)
            .seed(42)
            .rank(rank, world)
            .uneven(Uneven::Drop)
            .resumable()
            .build()?;
        Ok(CandleLoader::with(&loader, &Device::Cpu, Feed::new))
    }

    /// Trains until all steps are done, from what is saved in the folder, or from the beginning.
    /// `after` is called with each step and its number, from 1.
    fn train(
        &self,
        folder: &Path,
        world: usize,
        save: bool,
        mut after: impl FnMut(Step, u64) -> std::result::Result<(), BoxError>,
    ) -> std::result::Result<(), BoxError> {
        let loaders = (0..world).map(|rank| self.loader(folder, (rank, world)));
        let loaders = loaders.collect::<std::result::Result<Vec<_>, _>>()?;
        let trace = Trace::begin(self.trace.clone(), loaders[0].loader())?;
        // Weights are saved first, under a name with the place in the data; the checkpoint after
        // them marks the pair as complete.
        let path = folder.join("checkpoint");
        let weights = |checkpoint: &Checkpoint| {
            folder.join(format!(
                "weights-{}-{}.safetensors",
                checkpoint.epoch(),
                checkpoint.delivered()
            ))
        };
        let mut learner = Learner::new(self)?;
        if path.exists() {
            learner.variables.load(weights(&Checkpoint::load(&path)?))?;
        }
        let begin = |loader: &CandleLoader<Feed>| Ok(loader.resume_or_start(&path)?.blocking());
        let mut ranks = loaders.iter().map(begin).collect::<Result<Vec<_>>>()?;
        let mut number = learner.steps_done()?;
        while number < self.steps {
            let next = ranks.iter_mut().map(|rank| rank.next().transpose());
            let Some(feeds) = next.collect::<Result<Option<Vec<Feed>>>>()? else {
                let epoch = ranks[0].number() + 1;
                ranks = loaders
                    .iter()
                    .map(|loader| loader.epoch(epoch).blocking())
                    .collect();
                continue;
            };
            let step = learner.step(&feeds)?;
            number += 1;
            if save && number.is_multiple_of(SAVE_EVERY) {
                let checkpoint = ranks[0].checkpoint()?;
                learner.variables.save(weights(&checkpoint))?;
                checkpoint.save(&path)?;
            }
            after(step, number)?;
        }
        trace.finish()?;
        Ok(())
    }

    /// Trains, prints each step, and waits in the middle for the end.
    fn be_killed(&self, folder: &Path) -> std::result::Result<(), BoxError> {
        self.train(folder, 1, true, |step, number| {
            println!("{} {}", step.tokens, step.loss);
            if number == self.kill_at() {
                // Ends if the other program does, too.
                std::io::stdin().read_to_end(&mut Vec::new())?;
                return Err("nobody killed it".into());
            }
            Ok(())
        })
    }
}

/// Batch of a rank, in candle.
struct Feed {
    /// Token ids, positions and labels, `[rows, length]`.
    ids: Tensor,
    positions: Tensor,
    labels: Tensor,
    /// Attention mask of the documents in each row, `[rows, length, length]`.
    mask: Tensor,
}

impl Feed {
    fn new(batch: PackedBatch, device: &Device) -> Result<Feed> {
        let mask = batch.mask(Attention::Causal, MaskForm::Add);
        let mask = mask
            .map_err(candle_core::Error::wrap)?
            .into_candle(device)?;
        let (ids, labels, positions, _, _) = batch.into_tuple().into_candle(device)?;
        Ok(Feed {
            ids,
            positions,
            labels,
            mask,
        })
    }
}

/// Returns a hash of the token ids of all ranks, row by row in the order of the plan: rank `r` of
/// `n` has rows `r`, `r + n`, and so on.
fn hash(feeds: &[Feed]) -> Result<u64> {
    let rows = feeds.iter().map(|feed| feed.ids.to_vec2::<u32>());
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let mut hasher = DefaultHasher::new();
    for row in 0..ROWS {
        rows[row % feeds.len()][row / feeds.len()].hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// A model and its optimizer. All that they remember is in the variables.
struct Learner {
    net: Net,
    variables: VarMap,
    /// The weights, each with its two moments.
    weights: Vec<[Var; 3]>,
    /// Number of steps that are done.
    steps: Var,
}

impl Learner {
    fn new(job: &Job) -> Result<Learner> {
        let mut variables = VarMap::new();
        let build = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        let net = Net::new(job, build.pp("net"))?;
        let named = variables.data().lock().expect("no thread panics").clone();
        let named: BTreeMap<String, Var> = named.into_iter().collect();
        // The same weights in each process: candle's own random numbers have no seed on the CPU.
        let mut rng = Rng::from_key([7, 0, 0, 0]);
        let mut weights = Vec::new();
        for (name, var) in named {
            if let [_, inputs] = *var.dims() {
                let scale = (3.0 / inputs as f64).sqrt();
                let values = (0..var.elem_count()).map(|_| rng.range(-scale, scale) as f32);
                let values = Tensor::from_iter(values, &Device::Cpu)?.reshape(var.dims())?;
                variables.set_one(&name, values)?;
            }
            let zeros = candle_nn::Init::Const(0.0);
            let moment = |which| -> Result<Var> {
                build.pp(which).get_with_hints(var.dims(), &name, zeros)?;
                Ok(
                    variables.data().lock().expect("no thread panics")[&format!("{which}.{name}")]
                        .clone(),
                )
            };
            weights.push([moment("mean")?, moment("square")?, var.clone()]);
        }
        build.get_with_hints((), "steps", candle_nn::Init::Const(0.0))?;
        let steps = variables.data().lock().expect("no thread panics")["steps"].clone();
        Ok(Learner {
            net,
            variables,
            weights,
            steps,
        })
    }

    fn steps_done(&self) -> Result<u64> {
        Ok(self.steps.to_scalar::<f32>()? as u64)
    }

    /// Takes a step of Adam by the batches of all ranks.
    fn step(&mut self, feeds: &[Feed]) -> Result<Step> {
        let trained = |feed: &Feed| -> Result<f64> {
            let trained = feed.labels.ge(0i64)?.to_dtype(DType::F32)?;
            Ok(f64::from(trained.sum_all()?.to_scalar::<f32>()?))
        };
        let tokens = feeds.iter().map(trained).sum::<Result<f64>>()?;
        // Each rank has its share of the mean over all tokens, so gradients add up.
        let (mut loss, mut gradients) = (0.0, Vec::<GradStore>::new());
        for feed in feeds {
            let part = (self.net.loss(feed)? / tokens)?;
            loss += part.to_scalar::<f32>()?;
            gradients.push(part.backward()?);
        }
        let number = self.steps_done()? as i32 + 1;
        for [mean, square, weight] in &self.weights {
            let of_ranks = gradients.iter().filter_map(|of_rank| of_rank.get(weight));
            let Some(gradient) = of_ranks.cloned().map(Ok).reduce(|a, b| a? + b?) else {
                continue;
            };
            let gradient = gradient?.detach();
            mean.set(&((mean.as_tensor() * 0.9)? + (&gradient * 0.1)?)?)?;
            square.set(&((square.as_tensor() * 0.99)? + (gradient.sqr()? * 0.01)?)?)?;
            let root = (square.as_tensor() / (1.0 - 0.99f64.powi(number)))?.sqrt()?;
            let change = ((mean.as_tensor() / (1.0 - 0.9f64.powi(number)))? / (root + 1e-8)?)?;
            weight.set(&(weight.as_tensor() - (change * RATE)?)?)?;
        }
        self.steps.set(&Tensor::new(number as f32, &Device::Cpu)?)?;
        let tokens = hash(feeds)?;
        Ok(Step { tokens, loss })
    }
}

/// A transformer that predicts the next token of a document.
struct Net {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
}

struct Block {
    norms: [RmsNorm; 2],
    attention: [Linear; 2],
    feed_forward: [Linear; 2],
}

impl Net {
    fn new(job: &Job, build: VarBuilder<'_>) -> Result<Net> {
        let width = job.width;
        let block = |number: usize| {
            let build = build.pp(number);
            let linear = |from: usize, to: usize, name| {
                linear_no_bias(from * width, to * width, build.pp(name))
            };
            let norm = |name| rms_norm(width, 1e-6, build.pp(name));
            Ok(Block {
                norms: [norm("norm1")?, norm("norm2")?],
                attention: [linear(1, 3, "qkv")?, linear(1, 1, "out")?],
                feed_forward: [linear(1, 4, "up")?, linear(4, 1, "down")?],
            })
        };
        Ok(Net {
            tokens: embedding(job.vocab, width, build.pp("tokens"))?,
            positions: embedding(job.length, width, build.pp("positions"))?,
            blocks: (0..job.blocks).map(block).collect::<Result<_>>()?,
            norm: rms_norm(width, 1e-6, build.pp("norm"))?,
            head: linear_no_bias(width, job.vocab, build.pp("head"))?,
        })
    }

    /// Returns the sum of the cross entropies of all tokens that have a label.
    fn loss(&self, feed: &Feed) -> Result<Tensor> {
        let mut x = (self.tokens.forward(&feed.ids)? + self.positions.forward(&feed.positions)?)?;
        for block in &self.blocks {
            x = block.forward(&x, &feed.mask)?;
        }
        let logits = self.head.forward(&self.norm.forward_diff(&x)?)?;
        let logarithms = ops::log_softmax(&logits, D::Minus1)?;
        // A label of −100 is not trained.
        let labels = feed
            .labels
            .maximum(&feed.labels.zeros_like()?)?
            .unsqueeze(2)?;
        let trained = feed.labels.ge(0i64)?.to_dtype(DType::F32)?;
        (logarithms.gather(&labels, 2)?.squeeze(2)? * trained)?
            .sum_all()?
            .neg()
    }
}

impl Block {
    /// Maps `[rows, length, width]` to the same shape.
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (rows, length, width) = x.dims3()?;
        let qkv = self.attention[0].forward(&self.norms[0].forward_diff(x)?)?;
        let part = |part: usize| {
            let part = qkv.narrow(2, part * width, width)?;
            part.reshape((rows, length, width / HEAD, HEAD))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? / (HEAD as f64).sqrt())?;
        let scores = ops::softmax(&scores.broadcast_add(&mask.unsqueeze(1)?)?, D::Minus1)?;
        let seen = scores
            .matmul(&v)?
            .transpose(1, 2)?
            .reshape((rows, length, width))?;
        let x = (x + self.attention[1].forward(&seen)?)?;
        let up = self.feed_forward[0]
            .forward(&self.norms[1].forward_diff(&x)?)?
            .gelu()?;
        x + self.feed_forward[1].forward(&up)?
    }
}
