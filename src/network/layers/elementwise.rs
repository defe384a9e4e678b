//! The ElementWise layer: TensorRT's `IElementWiseLayer`.

use serde::{Deserialize, Serialize};

use super::{Attributes, LayerBody, LayerOp, LayerRun, one_type};
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::element::ElementWiseOperation;
use crate::error::{Result, bail};
use crate::layout::Layout;
use crate::network::{Network, TensorId};
use crate::shape::{MAX_DIMS, Shape};

/// See [`Network::add_elementwise`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ElementWiseLayer {
    /// What the layer computes. Whether the inputs' type has the operation is checked at build.
    pub operation: ElementWiseOperation,
}

impl LayerOp for ElementWiseLayer {
    fn kind(&self) -> &str {
        "elementwise"
    }

    fn has_arity(&self, inputs: usize, outputs: usize) -> bool {
        (inputs, outputs) == (2, 1)
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        let data_type = one_type(inputs)?;
        if !self.operation.applies_to(data_type) {
            bail!(InvalidArgument, "bool has no {}; add_cast converts it to a number", self.operation);
        }
        Ok(vec![data_type])
    }

    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        broadcast(inputs[0], inputs[1]).map(|shape| vec![shape])
    }

    fn kernels(&self, inputs: &[DataType]) -> Result<Vec<Kernel>> {
        Ok(vec![Kernel::ElementWise(inputs[0], self.operation)])
    }

    fn attributes(&self) -> Attributes {
        let name = self.operation.name();
        Attributes::new([("operation", name.into())], name.to_owned())
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let (a, b, output) = (run.input(0), run.input(1), run.output());
        if output.byte_len == 0 {
            return Ok(());
        }
        let layout = Layout::broadcast(&a.shape.unwrap_or_default(), &b.shape.unwrap_or_default());
        let inputs = [a, b].map(|input| input.address.cast_const());
        // SAFETY: the caller's promise.
        unsafe { run.executor.element_wise(self.operation, a.data_type, &layout, inputs, output.address) }
    }
}

/// The shape to which both inputs are broadcast.
fn broadcast(a: &Shape, b: &Shape) -> Result<Shape> {
    let rank = a.dim_count();
    if b.dim_count() != rank {
        bail!(
            InvalidShape,
            "input 0 is {a} and input 1 is {b}; inputs have equally many dimensions, and a reshape by add_shuffle \
             adds dimensions of 1"
        );
    }
    let mut dims = [0; MAX_DIMS];
    for (dim, (&a_len, &b_len)) in a.as_slice().iter().zip(b.as_slice()).enumerate() {
        dims[dim] = match (a_len, b_len) {
            (1, len) | (len, 1) => len,
            _ if a_len == b_len => a_len,
            _ => bail!(
                InvalidShape,
                "dimension {dim} is {a_len} in input 0 and {b_len} in input 1, which is neither equal nor 1 in one \
                 of them; the inputs are {a} and {b}"
            ),
        };
    }
    Shape::new(&dims[..rank])
}

impl Network {
    /// Adds an ElementWise layer, which combines each element of `a` with the element of `b` at the
    /// same place: TensorRT's `addElementWise`.
    ///
    /// Both inputs have one type and equally many dimensions. A dimension that is 1 in one of them
    /// is broadcast: it is repeated as often as the other input's dimension says.
    ///
    /// The arithmetic is that of a reduction over two ranks. Floats are computed in float32 and
    /// rounded once; float8 saturates; maximum and minimum prefer a number to a NaN and order -0
    /// below +0; a NaN in the result is the positive quiet one. Floats divide as IEEE 754 says.
    /// Integers wrap and their division truncates; a division by 0 gives 0. Results have the same
    /// bits on the host and on GPUs. TensorRT computes sums to quotients of float32, float16,
    /// bfloat16, int64, int32 and int8; here float8, uint8 and bool have them too, but bool no
    /// difference and no quotient.
    ///
    /// ```
    /// use distcollective::network::ElementWiseOperation;
    /// use distcollective::{DataType, Network, inputs, outputs};
    ///
    /// let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Float32, [2, 3])?;
    /// let bias = network.add_constant(&[10.0f32, 20.0, 30.0], [1, 3])?;
    /// let y = network.add_elementwise(x, bias, ElementWiseOperation::Sum)?;
    /// network.mark_output(y, "y")?;
    ///
    /// let mut context = network.build()?.create_execution_context()?;
    /// let (x, mut y) = ([0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0f32; 6]);
    /// context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
    /// assert_eq!(y, [10.0, 21.0, 32.0, 13.0, 24.0, 35.0]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - The network does not have the tensor.
    /// - Inputs of two types.
    /// - A difference or a quotient of bool.
    pub fn add_elementwise(&mut self, a: TensorId, b: TensorId, operation: ElementWiseOperation) -> Result<TensorId> {
        self.add_layer(LayerBody::ElementWise(ElementWiseLayer { operation }), &[a, b])
    }
}
