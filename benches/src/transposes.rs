//! Transposes by a Shuffle layer, beside a copy of the same bytes. `benches/beside_torch.py` runs
//! it in alternation with numpy and torch.

use distcollective::network::Shuffle;
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, DataType, ExecutionContext, Network, Result};
use serde_json::json;

use crate::time::median_micros;

/// How often each is timed; the median counts.
const RUNS: u32 = 9;

/// Prints the median of each transpose and of a copy.
pub fn measure() -> Result<()> {
    for case in CASES {
        let mut transpose = Transpose::new(case)?;
        let copy = median_micros(RUNS, 1, || transpose.copy())?;
        let time = median_micros(RUNS, 1, || transpose.run())?;
        println!(
            "{}",
            json!({
                "benchmark": "transposes", "data_type": case.data_type.name(), "dims": case.dims,
                "permutation": case.permutation, "copy_us": copy, "ours_us": time,
            })
        );
    }
    Ok(())
}

/// A transpose to measure.
struct Case {
    /// The type of the elements.
    data_type: DataType,
    /// The dimensions of the input.
    dims: &'static [usize],
    /// Dimension `i` of the output is dimension `permutation[i]` of the input.
    permutation: &'static [u8],
}

/// Matrices of every length of element, heads of attention, and images.
const CASES: &[Case] = &[
    Case { data_type: DataType::Float32, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Uint8, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Float16, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Int64, dims: &[4096, 1024], permutation: &[1, 0] },
    Case { data_type: DataType::Float32, dims: &[512, 512], permutation: &[1, 0] },
    Case { data_type: DataType::Float32, dims: &[1000, 3001], permutation: &[1, 0] },
    Case { data_type: DataType::Float16, dims: &[2048, 32, 64], permutation: &[1, 0, 2] },
    Case { data_type: DataType::Float32, dims: &[8, 512, 16, 64], permutation: &[0, 2, 3, 1] },
    Case { data_type: DataType::Uint8, dims: &[16, 256, 256, 3], permutation: &[0, 3, 1, 2] },
    Case { data_type: DataType::Float32, dims: &[16, 3, 256, 256], permutation: &[0, 2, 3, 1] },
    Case { data_type: DataType::Float32, dims: &[64, 32, 48, 40], permutation: &[3, 2, 1, 0] },
];

/// A network with one transpose, and its tensors.
struct Transpose {
    context: ExecutionContext,
    input: Buffer,
    output: Buffer,
}

impl Transpose {
    /// A network for this case.
    fn new(case: &Case) -> Result<Self> {
        let dims: Vec<i64> = case.dims.iter().map(|&dim| dim as i64).collect();
        let mut network = Network::new();
        let x = network.add_input("x", case.data_type, dims.as_slice())?;
        let y = network.add_shuffle(x, Shuffle::transpose(case.permutation))?;
        network.mark_output(y, "y")?;
        let context = network.build()?.create_execution_context()?;
        let mut input = Buffer::zeroed(case.data_type, dims.as_slice())?;
        input.as_mut_bytes()?.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        let mut output = Buffer::zeroed(case.data_type, context.tensor_shape("y")?)?;
        output.as_mut_bytes()?.fill(1);
        Ok(Transpose { context, input, output })
    }

    /// Transposes once.
    fn run(&mut self) -> Result<()> {
        let inputs = [("x", Ok(TensorView::from(&self.input)))];
        self.context.execute(inputs, [("y", Ok(TensorViewMut::from(&mut self.output)))])
    }

    /// Copies the bytes of the input to the output as they are.
    fn copy(&mut self) -> Result<()> {
        self.output.as_mut_bytes()?.copy_from_slice(self.input.as_bytes()?);
        Ok(())
    }
}
