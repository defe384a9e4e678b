//! The dimensions of tensors while a network is described.

use super::analysis::{resolve_collectives, schedule};
use super::inference::{Extent, infer_shapes, infer_types};
use crate::error::{Error, Result, error};
use crate::network::{LayerId, Network, Source, TensorId};
use crate::shape::{Dims, Shape};

/// Two values of a dimension that is not known. Both are multiples of every number up to 10, so
/// that they can be divided among ranks and by reshapes.
const UNKNOWN: [i64; 2] = [5040, 10080];

impl Network {
    /// The dimensions of a tensor, as far as the description tells them: TensorRT's
    /// `ITensor::getDimensions`. Those that depend on dynamic dimensions of inputs are -1. It looks
    /// at every layer that the tensor depends on, each time.
    ///
    /// ```
    /// # use distcollective::{DataType, DistCollective, Network};
    /// let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Float32, [-1, 8])?;
    /// let y = network.add(DistCollective::all_gather().nb_rank(2), x)?;
    /// assert_eq!(network.tensor_dims(y)?.as_slice(), [-1, 8]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - A tensor that this network does not have.
    /// - A mistake of a layer that the tensor depends on. A layer that takes few values of a
    ///   dynamic dimension only, such as a reshape to dimensions without a -1, counts as one.
    pub fn tensor_dims(&self, tensor: TensorId) -> Result<Dims> {
        tensor.check(self.number, self.tensors.len())?;
        let mut mistakes = Vec::new();
        let layers = self.ancestors(tensor, schedule(self, &mut mistakes));
        let types = infer_types(self, &layers, &mut mistakes);
        let collectives = resolve_collectives(self, &mut mistakes);
        let mut extent: Option<Extent> = None;
        for unknown in UNKNOWN {
            let given = self.given_shapes(unknown)?;
            let mut first = None;
            let shapes = infer_shapes(self, &layers, &types, &collectives, given, |_, error| {
                first.get_or_insert(error);
            });
            match (shapes[tensor.index()], &mut extent) {
                (Some(shape), Some(extent)) => extent.include(&shape),
                (Some(shape), extent @ None) => *extent = Some(Extent::of(&shape)),
                (None, _) => return Err(first.unwrap_or_else(|| unknown_dims(self, tensor, mistakes))),
            }
        }
        extent.map(|extent| extent.dims()).ok_or_else(|| unknown_dims(self, tensor, mistakes))
    }

    /// The layers of a schedule that a tensor depends on.
    fn ancestors(&self, tensor: TensorId, mut schedule: Vec<LayerId>) -> Vec<LayerId> {
        let mut is_needed = vec![false; self.tensors.len()];
        is_needed[tensor.index()] = true;
        let mut keep = |layer: &LayerId| {
            let layer = &self.layers[layer.index()];
            let is_ancestor = layer.outputs.iter().any(|output| is_needed[output.index()]);
            if is_ancestor {
                layer.inputs.iter().for_each(|input| is_needed[input.index()] = true);
            }
            is_ancestor
        };
        schedule.reverse();
        schedule.retain(&mut keep);
        schedule.reverse();
        schedule
    }

    /// The shapes of the inputs, with this value in place of each dynamic dimension.
    fn given_shapes(&self, unknown: i64) -> Result<Vec<Option<Shape>>> {
        let given = self.tensors.iter().map(|tensor| match &tensor.source {
            Source::Input(input) => {
                let dims = input.dims.as_slice().iter().map(|&d| if d == -1 { unknown } else { d });
                Dims::new(&dims.collect::<Vec<i64>>())?.to_shape().map(Some)
            }
            Source::Layer { .. } => Ok(None),
        });
        given.collect()
    }
}

/// The error of a tensor whose layers have mistakes that are not about shapes.
fn unknown_dims(network: &Network, tensor: TensorId, mistakes: Vec<Error>) -> Error {
    match mistakes.is_empty() {
        true => error!(InvalidNetwork, "its dimensions cannot be told")
            .about(|| format!("tensor {:?}", network.tensors[tensor.index()].name)),
        false => Error::from_mistakes(mistakes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_type::DataType;
    use crate::dist_collective::DistCollective;
    use crate::error::ErrorKind;
    use crate::network::Shuffle;

    fn dims(network: &Network, tensor: TensorId) -> Vec<i64> {
        network.tensor_dims(tensor).expect("dimensions").as_slice().to_vec()
    }

    #[test]
    fn dims_follow_from_the_layers_before() -> Result<()> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [-1, 4, 6])?;
        let gathered = network.add(DistCollective::all_gather().nb_rank(2), x)?;
        let rows = network.add_shuffle(gathered, Shuffle::reshape([-1, 12]))?;
        let turned = network.add_shuffle(rows, Shuffle::transpose([1, 0]))?;
        let parts = network.add(DistCollective::scatter(0u32).nb_rank(3), turned)?;
        for (tensor, expected) in [(x, &[-1, 4, 6][..]), (rows, &[-1, 12]), (turned, &[12, -1]), (parts, &[4, -1])] {
            assert_eq!(dims(&network, tensor), expected);
        }
        // A change of a layer counts at once.
        network.layer_of_mut(gathered)?.set_nb_rank(1)?;
        network.layer_of_mut(parts)?.set_nb_rank(2)?;
        assert_eq!(dims(&network, parts), [6, -1]);
        Ok(())
    }

    #[test]
    fn what_does_not_depend_on_the_dynamic_dimension_is_known() -> Result<()> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [2, 3])?;
        let dynamic = network.add_input("dynamic", DataType::Float32, [-1])?;
        let fixed = network.add(DistCollective::all_gather().nb_rank(4), x)?;
        assert_eq!(dims(&network, fixed), [8, 3]);
        assert_eq!(dims(&network, dynamic), [-1]);
        Ok(())
    }

    #[test]
    fn mistakes_of_the_layers_before_are_the_error() -> Result<()> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [5, 3])?;
        let other = network.add_shuffle(x, Shuffle::transpose([0]))?;
        let divided = network.add(DistCollective::scatter(0u32).nb_rank(2).named("divide"), x)?;
        let after = network.add_cast(divided, DataType::Float16)?;
        let error = network.tensor_dims(after).expect_err("5 is odd");
        assert_eq!(error.subject(), Some("layer \"divide\" (scatter)"));
        // A tensor that does not depend on the mistake has its dimensions.
        let fine = network.add_cast(x, DataType::Float16)?;
        assert_eq!(dims(&network, fine), [5, 3]);
        assert!(network.tensor_dims(other).is_err());
        let foreign = Network::new().tensor_dims(x).expect_err("another network");
        assert_eq!(foreign.kind(), ErrorKind::InvalidArgument);
        // Layers in a cycle have no dimensions.
        let (first, second) = (network.add_cast(fine, DataType::Int8)?, network.add_cast(fine, DataType::Int8)?);
        for (from, to) in [(first, second), (second, first)] {
            let layer = network.producer(to)?.expect("a layer");
            network.set_input(layer, 0, from)?;
        }
        let cycle = network.tensor_dims(first).expect_err("a cycle");
        assert!(cycle.to_string().contains("cycle"), "{cycle}");
        Ok(())
    }

    #[test]
    fn the_engine_has_the_dims_that_the_network_tells() -> Result<()> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [-1, 8])?;
        network.set_optimization_profile(x, [2, 8], [4, 8], [64, 8])?;
        let y = network.add(DistCollective::all_to_all().nb_rank(2), x)?;
        let y = network.add_shuffle(y, Shuffle::reshape([2, -1, 8]))?;
        network.mark_output(y, "y")?;
        let told = network.tensor_dims(y)?;
        assert_eq!(crate::Engine::new(network)?.io_tensor("y")?.dims, told);
        Ok(())
    }
}
