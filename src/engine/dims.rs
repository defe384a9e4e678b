//! The dimensions of tensors while a network is described.

use super::analysis::resolve_collectives;
use super::inference::{ShapeRange, infer_shapes, infer_types};
use crate::error::{Error, Result, error};
use crate::network::{LayerId, Network, TensorId, TensorSource};
use crate::shape::{Dims, Shape};

/// A multiple of every number up to 10, which reshapes can divide.
const DIVISIBLE: i64 = 5040;

/// The largest multiple of numbers of ranks that is tried.
const LARGEST_MULTIPLE: i64 = 1 << 20;

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
    /// - The network does not have the tensor.
    /// - A mistake of a layer that the tensor depends on. A layer that takes few values of a
    ///   dynamic dimension only, such as a reshape to dimensions without a -1, counts as one: a few
    ///   values are tried.
    pub fn tensor_dims(&self, tensor: TensorId) -> Result<Dims> {
        tensor.check(self.number, self.tensors.len())?;
        let mut mistakes = Vec::new();
        let (layers, is_needed) = self.ancestors(tensor, self.schedule(&mut mistakes));
        let types = infer_types(self, &layers, &mut mistakes);
        let collectives = resolve_collectives(self, &mut mistakes);
        let mut first = None;
        let mut shape_for = |unknown: i64| {
            let given =
                self.given_shapes(unknown, &is_needed).map_err(|error| first.get_or_insert(error).clone()).ok()?;
            let shapes = infer_shapes(self, &layers, &types, &collectives, given, |_, error| {
                first.get_or_insert(error);
            });
            shapes[tensor.index()]
        };
        let ranks = layers.iter().filter_map(|layer| collectives[layer.index()].as_ref());
        let ranks = ranks.map(|collective| i64::from(collective.nb_rank)).fold(1, product);
        for guess in [common_multiple(ranks, DIVISIBLE), ranks, 1] {
            // Slices take elements up to this one.
            let unknown = (self.longest_slice(&layers) + guess - 1) / guess * guess;
            if let (Some(one), Some(other)) = (shape_for(unknown), shape_for(2 * unknown)) {
                let mut extent = ShapeRange::of(&one);
                extent.include(&other);
                return Ok(extent.dims());
            }
        }
        Err(match first {
            Some(error) => error,
            None if !mistakes.is_empty() => Error::from_mistakes(mistakes),
            None => error!(InvalidNetwork, "its dimensions cannot be told")
                .about(|| format!("tensor {:?}", self.tensors[tensor.index()].name)),
        })
    }

    /// How many elements a dimension has at least from which these layers take slices; 1 without
    /// slices.
    fn longest_slice(&self, layers: &[LayerId]) -> i64 {
        let ends = layers.iter().filter_map(|layer| self.layers[layer.index()].body.op().largest_index());
        ends.max().map_or(1, |index| index.clamp(0, i64::from(u32::MAX)) + 1)
    }

    /// The layers of a schedule that a tensor depends on, and whether it depends on each tensor.
    fn ancestors(&self, tensor: TensorId, mut schedule: Vec<LayerId>) -> (Vec<LayerId>, Vec<bool>) {
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
        (schedule, is_needed)
    }

    /// The shapes of the inputs that are needed, with this value in place of each dynamic
    /// dimension.
    fn given_shapes(&self, unknown: i64, is_needed: &[bool]) -> Result<Vec<Option<Shape>>> {
        let given = self.tensors.iter().zip(is_needed).map(|(tensor, is_needed)| match &tensor.source {
            TensorSource::Input(input) if *is_needed => {
                let dims = input.dims.as_slice().iter().map(|&d| if d == -1 { unknown } else { d });
                Dims::new(&dims.collect::<Vec<i64>>())?.to_shape().map(Some)
            }
            _ => Ok(None),
        });
        given.collect()
    }
}

/// The product of two numbers above 0, so that one layer after the other divides it; their least
/// common multiple if that is too large.
fn product(a: i64, b: i64) -> i64 {
    a.checked_mul(b).filter(|product| *product <= LARGEST_MULTIPLE).unwrap_or_else(|| common_multiple(a, b))
}

/// The least common multiple of two numbers above 0, or the first of them if that is too large.
fn common_multiple(a: i64, b: i64) -> i64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a.checked_mul(b / divisor).filter(|multiple| *multiple <= LARGEST_MULTIPLE).unwrap_or(a)
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
    fn dimensions_that_many_ranks_and_long_slices_take_are_told() -> Result<()> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [-1, 8])?;
        let parts = network.add(DistCollective::scatter(0u32).nb_rank(44), x)?;
        let parts = network.add(DistCollective::scatter(0u32).nb_rank(64), parts)?;
        assert_eq!(dims(&network, parts), [-1, 8]);
        let part = network.add_slice(x, &[100_000, 0], &[8192, 8], &[2, 1])?;
        assert_eq!(dims(&network, part), [8192, 8]);
        let wide = network.add_input("wide", DataType::Float32, [-1; 5])?;
        let turned = network.add_shuffle(wide, Shuffle::transpose([4, 3, 2, 1, 0]))?;
        for tensor in [wide, turned] {
            assert_eq!(dims(&network, tensor), [-1; 5]);
        }
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
