//! Burn's learner, killed in the middle of an epoch, resumes with data and model of the same
//! moment.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::{InferenceStep, Learner, RegressionOutput, TrainOutput, TrainStep};
use datapipes::{DataLoader, Graph};
use datapipes_burn::{BurnLoader, resumable_training};

/// Set in the process that runs the learner; its value is the folder of checkpoints.
const ALONE: &str = "DATAPIPES_TEST_LEARNER";
/// Batches per epoch of the loader; below, batches per epoch of the learner, and the learner's
/// epochs.
const BATCHES: usize = 10;
const STEPS: usize = 3;
const EPOCHS: usize = 8;

type Batch = (Tensor<2>, Tensor<2>);

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
}

impl Net {
    fn judge(&self, (x, y): Batch) -> RegressionOutput {
        let output = self.linear.forward(x);
        let loss = MseLoss::new().forward(output.clone(), y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, y)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let sum = batch.0.clone().sum().into_scalar::<f32>();
        let output = self.judge(batch);
        let loss = output.loss.clone().into_scalar::<f32>();
        // For the process that started this one: the batch, and the loss of the net.
        println!("@step {:08x} {:08x}", sum.to_bits(), loss.to_bits());
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.judge(batch)
    }
}

fn loader(items: u64) -> BurnLoader<(datapipes::Tensor, datapipes::Tensor), Batch> {
    let graph = Graph::range(0..items)
        .shuffle(items as usize)
        .map_with_rng(|n, rng| ([n as f32, rng.f32()], [(n % 7) as f32]))
        .batch(4)
        .collate();
    let loader = DataLoader::builder(graph)
        .seed(5)
        .resumable()
        .build()
        .unwrap();
    BurnLoader::new(loader, &Device::flex())
}

#[test]
#[ignore = "started by the test below"]
fn trains() {
    let Some(folder) = std::env::var_os(ALONE) else {
        return;
    };
    let device = Device::flex();
    device.seed(1);
    let net = Net {
        linear: LinearConfig::new(2, 1).init(&device.clone().autodiff()),
    };
    let training = resumable_training::<Net, _, _>(
        &folder,
        loader(4 * BATCHES as u64).steps_per_epoch(STEPS as u64),
        Arc::new(loader(4)),
        KeepLastNCheckpoints::new(1),
    );
    let outcome = training
        .unwrap()
        .num_epochs(EPOCHS)
        .with_application_logger(None)
        .launch(Learner::new(net, AdamConfig::new().init(), 0.01));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    println!("trained");
}

/// Trains in a process until `most` steps have begun; returns its steps, and true if it finished.
fn train(folder: &Path, most: usize) -> (Vec<String>, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "killed::trains",
        "--ignored",
        "--test-threads=1",
        "--nocapture",
    ]);
    let mut child = command
        .env(ALONE, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut steps, mut has_ended) = (Vec::new(), false);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // Other output need not end its line.
        match line.find("@step ") {
            Some(at) => steps.push(line[at..].to_owned()),
            None => has_ended |= line.contains("trained"),
        }
        if steps.len() == most {
            break;
        }
    }
    // Kills it by SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
    (steps, has_ended)
}

#[test]
fn a_killed_learner_goes_on_in_the_middle_of_an_epoch() {
    let (whole, has_ended) = train(tempfile::tempdir().unwrap().path(), usize::MAX);
    assert!(has_ended && whole.len() == EPOCHS * STEPS);

    let folder = tempfile::tempdir().unwrap();
    let mut begins = Vec::new();
    for round in 0..EPOCHS {
        // Stops in the middle of an epoch of the learner, which is in the middle of one of the
        // loader. The second checkpoint begins once the first is written.
        let (steps, _) = train(folder.path(), 2 * STEPS + 1 + round % 3);
        let first = whole
            .iter()
            .position(|step| steps.first() == Some(step))
            .expect("a step of the whole");
        assert_eq!(
            steps,
            whole[first..][..steps.len()],
            "round {round}, from step {first} on"
        );
        begins.push(first);
        if first + steps.len() == whole.len() {
            break;
        }
    }
    assert!(
        begins.iter().all(|first| first % STEPS == 0) && begins.is_sorted_by(|a, b| a < b),
        "{begins:?}"
    );
    assert!(begins.iter().any(|first| first % BATCHES > 0), "{begins:?}");
    let files = std::fs::read_dir(folder.path().join("checkpoint")).unwrap();
    let checkpoints = files
        .filter(|entry| entry.as_ref().unwrap().path().extension() == Some("checkpoint".as_ref()));
    // The strategy keeps one checkpoint, and a second one until the next is complete; each kill may
    // leave one more.
    assert!(checkpoints.count() <= 2 + begins.len());
}
