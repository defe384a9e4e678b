//! Types and shapes of all tensors, from those of the inputs.

use std::collections::BTreeMap;

use crate::data_type::DataType;
use crate::dist_collective::ResolvedLayer;
use crate::error::{Error, Result, bail, error};
use crate::network::{LayerId, Network, NetworkInput, check_layer_type};
use crate::shape::{Dims, Shape};
use crate::util::text::count_of;

/// The points of a profile, in the order in which shapes are kept.
pub(super) const POINTS: [&str; 3] = ["min", "opt", "max"];

/// What a tensor may be at all points of all profiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShapeRange {
    /// The smallest and the largest value of each dimension. Together, the largest ones need not
    /// fit memory.
    pub(crate) min: Dims,
    pub(crate) max: Dims,
    /// The most elements.
    pub(crate) element_count: usize,
}

impl ShapeRange {
    pub(super) fn of(shape: &Shape) -> Self {
        ShapeRange { min: shape.to_dims(), max: shape.to_dims(), element_count: shape.element_count() }
    }

    pub(super) fn include(&mut self, shape: &Shape) {
        let dims = shape.to_dims();
        self.min = combined(&self.min, &dims, i64::min);
        self.max = combined(&self.max, &dims, i64::max);
        self.element_count = self.element_count.max(shape.element_count());
    }

    /// The dimensions: -1 where they differ.
    pub(crate) fn dims(&self) -> Dims {
        combined(&self.min, &self.max, |min, max| if min == max { min } else { -1 })
    }
}

/// Combines the dimensions of two tensors one by one, as far as both have them.
fn combined(a: &Dims, b: &Dims, combine: impl Fn(i64, i64) -> i64) -> Dims {
    let dims = a.as_slice().iter().zip(b.as_slice()).map(|(&a, &b)| combine(a, b));
    Dims::new(&dims.collect::<Vec<i64>>()).unwrap_or(*b)
}

impl NetworkInput {
    /// The shapes at min, opt and max of a profile, if it has some for the input.
    pub(crate) fn points(&self, profile: usize) -> Result<Option<[Shape; 3]>> {
        match self.profiles.get(profile) {
            Some(Some(shapes)) => {
                let [min, opt, max] = shapes.each_ref().map(Dims::to_shape);
                Ok(Some([min?, opt?, max?]))
            }
            _ if self.dims.is_dynamic() => Ok(None),
            _ => self.dims.to_shape().map(|shape| Some([shape; 3])),
        }
    }

    /// Checks that every profile has shapes for the input.
    fn check_coverage(&self, network: &Network) -> Result<()> {
        if network.profile_count == 0 && self.dims.is_dynamic() {
            bail!(
                InvalidNetwork,
                "{} has a dimension of -1 and no optimization profile says between which values it lies",
                self.dims
            );
        }
        for profile in 0..network.implied_profile_count() {
            if self.points(profile)?.is_none() {
                bail!(
                    InvalidNetwork,
                    "{} has a dimension of -1 and optimization profile {profile} has no shapes for it",
                    self.dims
                );
            }
        }
        Ok(())
    }
}

/// The type of each tensor. A tensor that depends on a mistake gets none.
pub(super) fn infer_types(network: &Network, schedule: &[LayerId], mistakes: &mut Vec<Error>) -> Vec<Option<DataType>> {
    let mut types = vec![None; network.tensors.len()];
    for input in &network.inputs {
        let tensor = &network.tensors[input.index()];
        match check_layer_type(tensor.data_type) {
            Ok(()) => types[input.index()] = Some(tensor.data_type),
            Err(error) => mistakes.push(error.about(|| format!("input {:?}", tensor.name))),
        }
    }
    network.types_from(schedule, types, |error| mistakes.push(error))
}

/// The mistake of a layer at the points of the profiles.
struct PointMistake {
    /// The first point, counted over all profiles.
    first: usize,
    error: Error,
    /// At how many points it is the same.
    count: usize,
}

/// The extent of each tensor. A tensor that depends on a mistake gets none.
pub(super) fn infer_extents(
    network: &Network,
    schedule: &[LayerId],
    types: &[Option<DataType>],
    collectives: &[Option<ResolvedLayer>],
    mistakes: &mut Vec<Error>,
) -> Vec<Option<ShapeRange>> {
    for (id, input) in network.described_inputs() {
        if let Err(error) = input.check_coverage(network) {
            mistakes.push(error.about(|| format!("input {:?}", network.tensors[id.index()].name)));
        }
    }
    let mut extents: Vec<Option<ShapeRange>> = vec![None; network.tensors.len()];
    let mut found: BTreeMap<usize, PointMistake> = BTreeMap::new();
    // Inputs that are not dynamic have the same shapes at all points.
    let is_dynamic = network.described_inputs().any(|(_, input)| input.dims.is_dynamic());
    let point_count = if is_dynamic { network.implied_profile_count() * POINTS.len() } else { 1 };
    for point in 0..point_count {
        let given = input_shapes(network, point / POINTS.len(), point % POINTS.len());
        let shapes = infer_shapes(network, schedule, types, collectives, given, |position, error| {
            match found.get_mut(&position) {
                None => drop(found.insert(position, PointMistake { first: point, error, count: 1 })),
                Some(known) => known.count += usize::from(known.error.to_string() == error.to_string()),
            }
        });
        for (extent, shape) in extents.iter_mut().zip(&shapes) {
            match (extent, shape) {
                (Some(extent), Some(shape)) => extent.include(shape),
                (none @ None, Some(shape)) if point == 0 => *none = Some(ShapeRange::of(shape)),
                (extent, _) => *extent = None,
            }
        }
    }
    for PointMistake { first, error, count } in found.into_values() {
        let (profile, point) = (first / POINTS.len(), POINTS[first % POINTS.len()]);
        mistakes.push(match network.profile_count {
            _ if count == point_count => error,
            1 => error.followed_by(&format!(" (at {point} of the profile)")),
            _ => error.followed_by(&format!(" (at {point} of profile {profile})")),
        });
    }
    extents
}

/// The shapes of the inputs at a point of a profile, and none of the other tensors.
pub(super) fn input_shapes(network: &Network, profile: usize, point: usize) -> Vec<Option<Shape>> {
    let mut shapes = vec![None; network.tensors.len()];
    for (id, input) in network.described_inputs() {
        shapes[id.index()] = input.points(profile).ok().flatten().map(|points| points[point]);
    }
    shapes
}

/// Infers the shape of every tensor from those of the inputs. A tensor that depends on a mistake
/// gets none. `report` gets each mistake with its position in the schedule.
pub(crate) fn infer_shapes(
    network: &Network,
    schedule: &[LayerId],
    types: &[Option<DataType>],
    collectives: &[Option<ResolvedLayer>],
    mut shapes: Vec<Option<Shape>>,
    mut report: impl FnMut(usize, Error),
) -> Vec<Option<Shape>> {
    for (position, &id) in schedule.iter().enumerate() {
        let layer = &network.layers[id.index()];
        if layer.inputs.iter().any(|input| shapes[input.index()].is_none()) {
            continue;
        }
        // References: a plan may name one tensor very often.
        let inputs: Vec<&Shape> = layer.inputs.iter().filter_map(|input| shapes[input.index()].as_ref()).collect();
        let data_type = layer.inputs.first().and_then(|input| types[input.index()]);
        let is_collective = layer.collective().is_some();
        let op = layer.body.op();
        if op.check().is_err() || is_collective && (collectives[id.index()].is_none() || data_type.is_none()) {
            // Its mistake is known.
            continue;
        }
        match op.output_shapes(&inputs) {
            Ok(outputs) if outputs.len() == layer.outputs.len() => {
                for (tensor, shape) in layer.outputs.iter().zip(outputs) {
                    shapes[tensor.index()] = Some(shape);
                }
            }
            Ok(outputs) => {
                let (given, wanted) = (count_of(outputs.len(), "shape"), count_of(layer.outputs.len(), "output"));
                let error = error!(InvalidShape, "the plugin gave {given} for {wanted}");
                report(position, error.about(|| layer.subject()));
            }
            Err(error) => {
                let input = match data_type.filter(|_| is_collective) {
                    Some(data_type) => format!("; input is {data_type} {}", inputs[0]),
                    None => String::new(),
                };
                report(position, error.followed_by(&input).about(|| layer.subject()));
            }
        }
    }
    shapes
}
