//! The Shuffle layer: TensorRT's `IShuffleLayer`.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Attributes, LayerBody, LayerOp, LayerRun};
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::layout::Layout;
use crate::network::{Network, TensorId};
use crate::shape::{Dims, MAX_DIMS, Shape};

/// A transpose, a reshape and a second transpose. Each is optional.
///
/// In the reshape, a dimension of 0 is the dimension with the same index after the first transpose.
/// One dimension may be -1: it follows from the number of elements.
///
/// ```
/// use distcollective::network::Shuffle;
/// use distcollective::{DataType, Network};
///
/// let mut network = Network::new();
/// let x = network.add_input("x", DataType::Float32, [64, 512])?;
/// // [64, 512] as 8 heads of [64, 64]
/// let heads = network.add_shuffle(x, Shuffle::reshape([0, 8, -1]).then_transpose([1, 0, 2]))?;
/// let merged = Shuffle::transpose([1, 0, 2]).then_reshape([0, -1]);
/// let x = network.add_shuffle(heads, merged)?; // and back
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a shuffle does nothing until it is added to a network"]
pub struct Shuffle {
    /// The first transpose.
    pub first_transpose: Option<Vec<u8>>,
    /// The dimensions of the reshape.
    pub reshape_dims: Option<Vec<i64>>,
    /// The second transpose.
    pub second_transpose: Option<Vec<u8>>,
}

impl Shuffle {
    /// A transpose: dimension `i` of the output is dimension `permutation[i]` of the input.
    pub fn transpose(permutation: impl Into<Vec<u8>>) -> Self {
        Shuffle { first_transpose: Some(permutation.into()), ..Shuffle::default() }
    }

    /// A reshape.
    pub fn reshape(dims: impl Into<Vec<i64>>) -> Self {
        Shuffle { reshape_dims: Some(dims.into()), ..Shuffle::default() }
    }

    /// Reshapes after the first transpose.
    pub fn then_reshape(mut self, dims: impl Into<Vec<i64>>) -> Self {
        self.reshape_dims = Some(dims.into());
        self
    }

    /// Transposes after the reshape.
    pub fn then_transpose(mut self, permutation: impl Into<Vec<u8>>) -> Self {
        self.second_transpose = Some(permutation.into());
        self
    }

    /// Checks what needs no input. Adding the layer and building the network do it too.
    ///
    /// # Errors
    ///
    /// A transpose that is not a permutation; a reshape with more than one -1.
    pub fn check(&self) -> Result<()> {
        for permutation in [&self.first_transpose, &self.second_transpose].into_iter().flatten() {
            let len = permutation.len();
            if !(0..len).all(|d| permutation.contains(&(d as u8))) || len > MAX_DIMS {
                bail!(InvalidArgument, "{permutation:?} is not a permutation of 0 to {}", len.saturating_sub(1));
            }
        }
        if let Some(dims) = &self.reshape_dims {
            Dims::new(dims)?;
            if dims.iter().filter(|&&d| d == -1).count() > 1 {
                bail!(InvalidArgument, "reshape {dims:?} has more than one -1; one dimension can be inferred");
            }
        }
        Ok(())
    }

    /// For an input of this shape, those transposes that move elements, and the output.
    fn steps(&self, input: &Shape) -> Result<([Option<Layout<1>>; 2], Shape)> {
        let [first, second] = [&self.first_transpose, &self.second_transpose].map(Option::as_deref);
        let transposed = permuted(input, first)?;
        let reshaped = match &self.reshape_dims {
            None => transposed,
            Some(dims) => reshaped(&transposed, dims)?,
        };
        let output = permuted(&reshaped, second)?;
        Ok(([moving(first, input), moving(second, &reshaped)], output))
    }

    /// Whether each transpose moves dimensions.
    fn transposes(&self) -> [bool; 2] {
        let moves =
            |p: &Option<Vec<u8>>| p.as_ref().is_some_and(|p| p.iter().enumerate().any(|(i, &d)| i != usize::from(d)));
        [moves(&self.first_transpose), moves(&self.second_transpose)]
    }
}

/// The transpose of a shape, unless the elements keep their order: moving a dimension of 1 moves
/// none.
fn moving(permutation: Option<&[u8]>, shape: &Shape) -> Option<Layout<1>> {
    let permutation = permutation?;
    let wide = permutation.iter().filter(|&&d| shape.as_slice()[usize::from(d)] != 1);
    (!wide.is_sorted()).then(|| Layout::transposed(shape, permutation))
}

fn permuted(shape: &Shape, permutation: Option<&[u8]>) -> Result<Shape> {
    let Some(permutation) = permutation else { return Ok(*shape) };
    if permutation.len() != shape.dim_count() {
        bail!(
            InvalidShape,
            "transpose {permutation:?} is for {} dimensions, and the tensor is {shape}",
            permutation.len()
        );
    }
    let mut dims = [0; MAX_DIMS];
    for (to, &from) in dims.iter_mut().zip(permutation) {
        *to = shape.as_slice()[usize::from(from)];
    }
    Shape::new(&dims[..permutation.len()])
}

fn reshaped(shape: &Shape, dims: &[i64]) -> Result<Shape> {
    let mut known = [0; MAX_DIMS];
    let known = &mut known[..dims.len()];
    let mut inferred = None;
    for (i, &d) in dims.iter().enumerate() {
        known[i] = match d {
            -1 => {
                inferred = Some(i);
                1
            }
            0 => match shape.as_slice().get(i) {
                Some(&d) => d,
                None => bail!(InvalidShape, "reshape {dims:?} copies dimension {i}, and the tensor is {shape}"),
            },
            d => d as usize,
        };
    }
    let count = shape.element_count();
    if let Some(i) = inferred {
        let others = Shape::new(known)?.element_count();
        if others == 0 {
            bail!(
                InvalidShape,
                "reshape {dims:?} of {shape} has a dimension of 0 beside the -1, so nothing can be inferred"
            );
        }
        if !count.is_multiple_of(others) {
            bail!(InvalidShape, "reshape {dims:?}: the {count} elements of {shape} are not a multiple of {others}");
        }
        known[i] = count / others;
    }
    let output = Shape::new(known)?;
    if output.element_count() != count {
        bail!(InvalidShape, "reshape {dims:?} gives {} elements, and {shape} has {count}", output.element_count());
    }
    Ok(output)
}

impl LayerOp for Shuffle {
    fn kind(&self) -> &str {
        "shuffle"
    }

    fn check(&self) -> Result<()> {
        Shuffle::check(self)
    }

    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        self.steps(inputs[0]).map(|(_, output)| vec![output])
    }

    fn works_in_place(&self, _input: DataType) -> bool {
        self.transposes() == [false; 2]
    }

    fn needs_scratch(&self) -> bool {
        self.transposes() == [true; 2]
    }

    fn kernels(&self, inputs: &[DataType]) -> Result<Vec<Kernel>> {
        let moves = self.transposes() != [false; 2];
        Ok(Kernel::of_gather(inputs[0].byte_len()).filter(|_| moves).collect())
    }

    fn attributes(&self) -> Attributes {
        let [first, reshape, second] =
            [json!(self.first_transpose), json!(self.reshape_dims), json!(self.second_transpose)];
        let steps = [("first_transpose", first), ("reshape", reshape), ("second_transpose", second)];
        let given = steps.iter().filter(|(_, value)| !value.is_null());
        let text = given.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
        Attributes::new(steps, text)
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let (input, output, executor) = (run.input(0), run.output(), run.executor);
        let bytes = input.data_type.byte_len();
        if input.byte_len == 0 {
            return Ok(());
        }
        let (transposes, _) = self.steps(&input.shape.unwrap_or_default())?;
        // SAFETY: the caller's promise; for a mere reshape input and output may be the same.
        unsafe {
            match (transposes, run.scratch) {
                ([Some(first), Some(second)], Some(scratch)) => {
                    executor.gather(input.address, scratch, &first, bytes)?;
                    executor.gather(scratch, output.address, &second, bytes)
                }
                ([Some(only), _] | [None, Some(only)], _) => {
                    executor.gather(input.address, output.address, &only, bytes)
                }
                ([None, None], _) => executor.copy(input.located(), output.located(), input.byte_len, run.deadline),
            }
        }
    }
}

impl Network {
    /// Adds a [`Shuffle`] layer: transpose, reshape, transpose.
    ///
    /// # Errors
    ///
    /// - The network does not have the tensor.
    /// - A transpose that is not a permutation, or a reshape with more than one -1.
    pub fn add_shuffle(&mut self, input: TensorId, shuffle: Shuffle) -> Result<TensorId> {
        self.add_layer(LayerBody::Shuffle(shuffle), &[input])
    }
}
