//! Weights go from training to serving, as in reinforcement learning: one consumer trains a toy
//! model, and after each step broadcasts its weights to the producers, in the group "sync_group".
//! The producers check that they serve the new weights.
//!
//! ```text
//! consumer (rank 0):  train a step -> broadcast_tensor_dict -> what it predicts itself
//! producers:                          broadcast_tensor_dict -> predict, and compare
//! ```
//!
//! Run it with `cargo run --release --bin weight_sync`, where ranks are threads, or under a
//! launcher, where each is a process: `distcollective launch -n 3 -- weight_sync`.

use distcollective::tensor_dict::BroadcastOptions;
use distcollective::{Buffer, Communicator, Environment, Error, ErrorKind, Rank, Result, TensorDict};

/// The consumer and two producers, where no launcher says how many ranks there are.
const RANKS: u32 = 3;

const STEPS: u32 = 3;

/// The data: points of the line y = 2 x - 1.
const INPUTS: [f32; 4] = [-1.0, 0.0, 1.0, 2.0];
const TARGETS: [f32; 4] = [-3.0, -1.0, 1.0, 3.0];

/// The model: y = weight x + bias. Its weights are in a dictionary, as a framework's are.
struct Line {
    weights: TensorDict,
}

impl Line {
    /// The consumer's model before the first step.
    fn new() -> Self {
        let mut weights = TensorDict::new();
        for name in ["weight", "bias"] {
            weights.insert(name, Buffer::from(vec![0f32]));
        }
        Line { weights }
    }

    /// A producer's model, which gets its weights from the consumer.
    fn without_weights() -> Self {
        Line { weights: TensorDict::new() }
    }

    fn value(&self, name: &str) -> Result<f32> {
        let missing = || Error::new(ErrorKind::NotReady, format!("the model has no {name}"));
        Ok(self.weights.get(name).ok_or_else(missing)?.view()?.as_slice::<f32>()?[0])
    }

    fn predict(&self) -> Result<[f32; 4]> {
        let (weight, bias) = (self.value("weight")?, self.value("bias")?);
        Ok(INPUTS.map(|x| weight * x + bias))
    }

    /// One step of gradient descent. Gives the loss before it.
    fn train(&mut self) -> Result<f32> {
        const RATE: f32 = 0.1;
        let mut errors = self.predict()?;
        errors.iter_mut().zip(TARGETS).for_each(|(y, target)| *y -= target);
        let count = errors.len() as f32;
        let slopes = [
            ("weight", errors.iter().zip(INPUTS).map(|(error, x)| error * x).sum::<f32>()),
            ("bias", errors.iter().sum()),
        ];
        for (name, slope) in slopes {
            if let Some(tensor) = self.weights.get_mut(name) {
                tensor.view_mut()?.as_mut_slice::<f32>()?[0] -= RATE * 2.0 * slope / count;
            }
        }
        Ok(errors.iter().map(|error| error * error).sum::<f32>() / count)
    }
}

/// What one rank does.
fn run_rank(group: &Communicator) -> Result<()> {
    let rank = group.rank();
    let is_consumer = rank == Rank(0);
    let mut model = if is_consumer { Line::new() } else { Line::without_weights() };
    let mut served = None;
    for step in 1..=STEPS {
        if is_consumer {
            println!("Rank {rank} (consumer) step {step}: loss {:.4} before it", model.train()?);
        }
        group.broadcast_tensor_dict(&mut model.weights, &BroadcastOptions::new())?;
        let own = model.predict()?;
        // What the consumer predicts, to compare with.
        let mut expected = own;
        group.broadcast(&mut expected, 0)?;
        if own != expected || served == Some(own) {
            let text = format!("step {step}: rank {rank} serves {own:?}, and the consumer {expected:?}");
            return Err(Error::new(ErrorKind::Disagreement, text));
        }
        if !is_consumer {
            println!("Rank {rank} (producer) step {step}: serves the new weights, which predict {own:.4?}");
        }
        served = Some(own);
    }
    Ok(())
}

fn main() -> Result<()> {
    if Environment::detect_launcher().is_none() {
        return Communicator::spawn(RANKS, |communicator| run_rank(&communicator)).map(drop);
    }
    let environment = Environment::from_env()?;
    let group = environment.new_group("sync_group", 0..environment.world_size())?;
    run_rank(&group.expect("every rank is a member"))?;
    environment.finalize()
}
