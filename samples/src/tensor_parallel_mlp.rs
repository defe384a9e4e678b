//! A tensor-parallel MLP, as in the serving of large models: the first matrix is split by columns,
//! the second by rows, and one all_reduce adds the partial results. Each rank's network has its own
//! weights. The result is compared with that of the unsplit model.
//!
//! ```text
//! x [-1, MODEL] -> "mlp.up" x·A_r, gelu -> [-1, HIDDEN / n]
//!               -> "mlp.down" ·B_r      -> [-1, MODEL] -> all_reduce -> y
//! ```
//!
//! Run it with `cargo run --release --bin tensor_parallel_mlp [RANKS]`.

use distcollective::network::{Plugin, PluginCall};
use distcollective::tensor::Shape;
use distcollective::{
    Communicator, DataType, DistCollective, Error, ErrorKind, Network, ReduceOperation, Result, inputs, outputs,
};
use ndarray::{Array2, Ix2, s};

const MODEL: usize = 64;
const HIDDEN: usize = 240;

/// A plugin layer: multiplies by a matrix, and applies an activation if it has one.
#[derive(Debug)]
struct Linear {
    weights: Array2<f32>,
    activation: Option<fn(f32) -> f32>,
}

impl Plugin for Linear {
    fn type_name(&self) -> &str {
        "linear"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        match inputs {
            [DataType::Float32] => Ok(vec![DataType::Float32]),
            _ => Err(Error::new(ErrorKind::Unsupported, format!("it takes one float32 tensor, not {inputs:?}"))),
        }
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        match *inputs[0].as_slice() {
            [rows, columns] if columns == self.weights.nrows() => Ok(vec![Shape::new(&[rows, self.weights.ncols()])?]),
            _ => {
                let text = format!("it takes [rows, {}], not {}", self.weights.nrows(), inputs[0]);
                Err(Error::new(ErrorKind::InvalidShape, text))
            }
        }
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let matrix = |e| Error::new(ErrorKind::Plugin, "the tensor is no matrix").with_source(e);
        let x = call.input(0)?.as_array::<f32>()?.into_dimensionality::<Ix2>().map_err(matrix)?;
        let mut output = call.output(0)?;
        let mut y = output.as_array_mut::<f32>()?.into_dimensionality::<Ix2>().map_err(matrix)?;
        ndarray::linalg::general_mat_mul(1.0, &x, &self.weights, 0.0, &mut y);
        if let Some(activation) = self.activation {
            y.mapv_inplace(activation);
        }
        Ok(())
    }
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
}

/// A matrix of pseudorandom numbers between -1/2 and 1/2.
fn matrix(rows: usize, columns: usize, seed: u32) -> Array2<f32> {
    Array2::from_shape_fn((rows, columns), |(i, j)| {
        let x = (i as u32).wrapping_mul(2_654_435_761) ^ (j as u32).wrapping_mul(2_246_822_519) ^ seed;
        let x = (x ^ (x >> 15)).wrapping_mul(739_982_445);
        (x ^ (x >> 12)) as f32 / u32::MAX as f32 - 0.5
    })
}

/// The part of one rank: its share of the columns of A and of the rows of B.
fn run_rank(communicator: &Communicator, batches: &[usize]) -> Result<Vec<Array2<f32>>> {
    let (rank, n) = (communicator.rank().index(), communicator.world_size() as usize);
    let share = rank * HIDDEN / n..(rank + 1) * HIDDEN / n;
    let up = matrix(MODEL, HIDDEN, 1).slice(s![.., share.clone()]).to_owned();
    let down = matrix(HIDDEN, MODEL, 2).slice(s![share, ..]).to_owned();

    let mut network = Network::new();
    // It has this rank's weights.
    network.for_rank(communicator.rank(), communicator.world_size())?;
    let x = network.add_input("x", DataType::Float32, [-1, MODEL as i64])?;
    network.set_optimization_profile(x, [1, MODEL as i64], [8, MODEL as i64], [32, MODEL as i64])?;
    let h = network.add_plugin("mlp.up", Linear { weights: up, activation: Some(gelu) }, &[x])?;
    let h = network.add_plugin("mlp.down", Linear { weights: down, activation: None }, &[h])?;
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size()).named("mlp.sum");
    let y = network.add(sum, h)?;
    network.mark_output(y, "y")?;
    let engine = network.build()?;

    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;
    let mut results = Vec::new();
    for &batch in batches {
        let x = matrix(batch, MODEL, 3);
        let mut y = Array2::zeros((batch, MODEL));
        context.set_input_shape("x", [batch as i64, MODEL as i64])?;
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
        results.push(y);
    }
    Ok(results)
}

/// The result of the unsplit model.
fn expected(batch: usize) -> Array2<f32> {
    matrix(batch, MODEL, 3).dot(&matrix(MODEL, HIDDEN, 1)).mapv(gelu).dot(&matrix(HIDDEN, MODEL, 2))
}

fn main() -> Result<()> {
    let ranks = std::env::args().nth(1).map_or(2, |ranks| ranks.parse().expect("a number of ranks"));
    let batches = [1, 8, 32];
    let results = Communicator::spawn(ranks, |communicator| run_rank(&communicator, &batches))?;
    for (rank, results) in results.into_iter().enumerate() {
        for (y, batch) in results.iter().zip(batches) {
            let difference = (y - &expected(batch)).iter().fold(0f32, |most, d| most.max(d.abs()));
            assert!(difference < 1e-4, "rank {rank}, batch {batch}: {difference}");
            println!(
                "Rank {rank} - batch {batch:2}: differs from the unsharded MLP by at most {difference:.1e} PASSED"
            );
        }
    }
    Ok(())
}
