//! The Slice layer: TensorRT's `ISliceLayer`.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Attributes, LayerBody, LayerOp, LayerRun};
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::layout::Layout;
use crate::network::{Network, TensorId};
use crate::shape::{Dims, MAX_DIMS, Shape};

/// See [`Network::add_slice`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SliceLayer {
    start: Vec<i64>,
    size: Vec<i64>,
    stride: Vec<i64>,
}

impl SliceLayer {
    /// The index of the first element that the layer takes, in each dimension.
    pub fn start(&self) -> &[i64] {
        &self.start
    }

    /// The dimensions of the output.
    pub fn size(&self) -> &[i64] {
        &self.size
    }

    /// The distance between elements that the layer takes, in each dimension.
    pub fn stride(&self) -> &[i64] {
        &self.stride
    }

    /// Sets the start. Whether it fits size and stride, and the input, is checked at build.
    ///
    /// # Errors
    ///
    /// More than [`MAX_DIMS`] numbers, or one below 0.
    pub fn set_start(&mut self, start: &[i64]) -> Result<()> {
        self.change(|slice| slice.start = start.to_vec())
    }

    /// Sets the size. Whether it fits start and stride, and the input, is checked at build.
    ///
    /// # Errors
    ///
    /// More than [`MAX_DIMS`] numbers, or one below 0.
    pub fn set_size(&mut self, size: &[i64]) -> Result<()> {
        self.change(|slice| slice.size = size.to_vec())
    }

    /// Sets the stride. Whether it fits start and size, and the input, is checked at build.
    ///
    /// # Errors
    ///
    /// More than [`MAX_DIMS`] numbers.
    pub fn set_stride(&mut self, stride: &[i64]) -> Result<()> {
        self.change(|slice| slice.stride = stride.to_vec())
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) -> Result<()> {
        let mut changed = self.clone();
        change(&mut changed);
        changed.check_numbers()?;
        *self = changed;
        Ok(())
    }

    /// Checks each list by itself.
    fn check_numbers(&self) -> Result<()> {
        for (what, numbers, rule) in [
            ("start", &self.start, Some("an index is at least 0")),
            ("size", &self.size, Some("it is the output's shape, whose dimensions are at least 0 and not dynamic")),
            ("stride", &self.stride, None),
        ] {
            if numbers.len() > MAX_DIMS {
                let len = numbers.len();
                bail!(
                    InvalidArgument,
                    "{what} {numbers:?} has {len} numbers; a tensor has at most {MAX_DIMS} dimensions"
                );
            }
            if let Some(rule) = rule
                && let Some((dim, number)) = numbers.iter().enumerate().find(|(_, number)| **number < 0)
            {
                bail!(InvalidArgument, "{what} {numbers:?} is {number} in dimension {dim}; {rule}");
            }
        }
        Ok(())
    }

    fn check_dim_counts(&self) -> Result<()> {
        let SliceLayer { start, size, stride } = self;
        if start.len() != size.len() || size.len() != stride.len() {
            bail!(
                InvalidArgument,
                "start is {start:?}, size is {size:?} and stride is {stride:?}; they have a number for each dimension \
                 of the input"
            );
        }
        Ok(())
    }
}

impl LayerOp for SliceLayer {
    fn kind(&self) -> &str {
        "slice"
    }

    fn check(&self) -> Result<()> {
        self.check_numbers()?;
        self.check_dim_counts()
    }

    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        let input = inputs[0];
        let SliceLayer { start, size, stride } = self;
        self.check_dim_counts()?;
        if size.len() != input.dim_count() {
            bail!(InvalidShape, "start, size and stride have {} numbers, and the input is {input}", size.len());
        }
        for (dim, &len) in input.as_slice().iter().enumerate() {
            let (first, count, step) = (i128::from(start[dim]), i128::from(size[dim]), i128::from(stride[dim]));
            let last = first + (count - 1) * step;
            let inside = 0..len as i128;
            if count > 0 && !(inside.contains(&first) && inside.contains(&last)) {
                bail!(
                    InvalidShape,
                    "dimension {dim} has {len} elements, with indices from 0 on, and the slice takes {count} from \
                     index {first} to {last} (stride {step}); the input is {input}"
                );
            }
        }
        Ok(vec![Dims::new(size)?.to_shape()?])
    }

    fn largest_index(&self) -> Option<i64> {
        let SliceLayer { start, size, stride } = self;
        let ends = start.iter().zip(size).zip(stride).filter(|((_, size), _)| **size > 0);
        ends.map(|((start, size), stride)| start.saturating_add((size - 1).saturating_mul(*stride).max(0))).max()
    }

    fn kernels(&self, inputs: &[DataType]) -> Result<Vec<Kernel>> {
        Ok(Kernel::of_gather(inputs[0].byte_len()).collect())
    }

    fn attributes(&self) -> Attributes {
        let SliceLayer { start, size, stride } = self;
        let text = format!("from {start:?}, size {size:?}, stride {stride:?}");
        Attributes::new([("start", json!(start)), ("size", json!(size)), ("stride", json!(stride))], text)
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let (input, output) = (run.input(0), run.output());
        if output.byte_len == 0 {
            return Ok(());
        }
        let shape = input.shape.unwrap_or_default();
        let (layout, first) = Layout::sliced(&shape, &self.start, &self.size, &self.stride);
        let bytes = input.data_type.byte_len();
        // SAFETY: the caller's promise; the slice is inside the input.
        unsafe { run.executor.gather(input.address.add(first * bytes), output.address, &layout, bytes) }
    }
}

impl Network {
    /// Adds a Slice layer, which takes a part of a tensor: TensorRT's `addSlice` in its default
    /// mode, `kSTRICT_BOUNDS`.
    ///
    /// Along each dimension the output has `size` elements: those with the indices `start`,
    /// `start + stride`, `start + 2 * stride` and so on. A stride may be negative, or 0, which
    /// repeats one element. All indices have to be inside the input, at min, opt and max of every
    /// optimization profile and at every shape that is set later. A dimension of size 0 takes no
    /// element, so any `start` is right there.
    ///
    /// ```
    /// use distcollective::{DataType, Network, inputs, outputs};
    ///
    /// let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Int32, [2, 5])?;
    /// let y = network.add_slice(x, &[0, 4], &[2, 3], &[1, -2])?;
    /// network.mark_output(y, "y")?;
    ///
    /// let mut context = network.build()?.create_execution_context()?;
    /// let (x, mut y) = ([0, 1, 2, 3, 4, 10, 11, 12, 13, 14], [0i32; 6]);
    /// context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
    /// assert_eq!(y, [4, 2, 0, 14, 12, 10]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - The network does not have the tensor.
    /// - `start`, `size` and `stride` of different lengths, or longer than [`MAX_DIMS`].
    /// - A start or a size below 0.
    pub fn add_slice(&mut self, input: TensorId, start: &[i64], size: &[i64], stride: &[i64]) -> Result<TensorId> {
        let layer = SliceLayer { start: start.to_vec(), size: size.to_vec(), stride: stride.to_vec() };
        self.add_layer(LayerBody::Slice(layer), &[input])
    }
}
