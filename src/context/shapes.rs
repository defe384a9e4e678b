//! The shapes of all tensors for given input shapes, and the calls that follow.

use crate::collective::Call;
use crate::engine::{EngineInner, Location, Place};
use crate::error::{Result, error};
use crate::shape::Shape;

/// The shapes of all tensors for given input shapes, and the calls that follow.
pub(super) struct Shapes {
    pub(super) inputs: Vec<Option<Shape>>,
    /// The shape of every tensor; empty until all inputs have theirs.
    pub(super) all: Vec<Shape>,
    /// The call of each DistCollective layer.
    pub(super) calls: Vec<Option<Call>>,
}

impl Shapes {
    /// The shapes of the inputs that have only one.
    pub(super) fn of_static_inputs(engine: &EngineInner) -> Result<Self> {
        // A dynamic input's dimensions are no shape.
        let fixed = engine.network.described_inputs().map(|(_, input)| input.dims.to_shape().ok());
        Shapes::infer(engine, fixed.collect())
    }

    /// Works out every shape, once all inputs have theirs.
    pub(super) fn infer(engine: &EngineInner, inputs: Vec<Option<Shape>>) -> Result<Self> {
        let EngineInner { network, analysis, .. } = engine;
        let mut shapes = Shapes { inputs, all: Vec::new(), calls: Vec::new() };
        if shapes.inputs.iter().any(Option::is_none) {
            return Ok(shapes);
        }
        let mut given = vec![None; network.tensors.len()];
        for (tensor, shape) in network.inputs.iter().zip(&shapes.inputs) {
            given[tensor.index()] = *shape;
        }
        shapes.all = engine.infer_shapes(given)?;
        shapes.check_room(engine)?;
        shapes.calls = (network.layers.iter().zip(&analysis.collectives))
            .map(|(layer, resolved)| {
                let resolved = resolved.as_ref()?;
                let input = layer.inputs[0].index();
                let elements = shapes.all[input].element_count();
                Some(resolved.call(analysis.types[input], elements, resolved.nb_rank as usize))
            })
            .collect();
        Ok(shapes)
    }

    /// Checks that every tensor fits its place in the memory plan. A plugin may make larger outputs
    /// between the points of a profile than at any of them.
    fn check_room(&self, engine: &EngineInner) -> Result<()> {
        let EngineInner { network, analysis, memory, .. } = engine;
        let check = |tensor: usize, place: &Place| {
            let byte_len = self.all[tensor].byte_len(analysis.types[tensor]);
            if byte_len <= place.byte_len {
                return Ok(());
            }
            let error = error!(
                InvalidShape,
                "{} {} is larger than at any point of the profile ({byte_len} bytes, {} planned)",
                analysis.types[tensor],
                self.all[tensor],
                place.byte_len
            );
            Err(error.about(|| format!("tensor {:?}", network.tensors[tensor].name)))
        };
        for (tensor, location) in memory.locations.iter().enumerate() {
            if let Location::Region(place) = location {
                check(tensor, place)?;
            }
        }
        for (layer, place) in network.layers.iter().zip(&memory.scratch) {
            if let Some(place) = place {
                check(layer.outputs[0].index(), place)?;
            }
        }
        Ok(())
    }

    /// The shape of every tensor.
    pub(super) fn tensors(&self, engine: &EngineInner) -> Result<&[Shape]> {
        if let Some(missing) = self.inputs.iter().position(Option::is_none) {
            let io = &engine.io[missing];
            let error =
                error!(NotReady, "its shape is not set; it is {} {}; call set_input_shape", io.data_type, io.dims);
            return Err(error.about(|| format!("input {:?}", io.name)));
        }
        Ok(&self.all)
    }
}
