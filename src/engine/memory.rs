//! The memory plan: where each tensor lies. Memory is reused after the last layer that reads a
//! tensor.

use serde::Serialize;

use super::analysis::Analysis;
use crate::error::{Result, error};
use crate::network::{LayerBody, LayerId, Network, Source, TensorId};

/// The alignment of tensors in a region, in bytes.
const ALIGN: usize = 256;

/// Memory of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Region {
    /// Memory that the communicator owns: operands of collectives.
    Communicator,
    /// Memory that only this rank uses.
    Private,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the memory that the caller binds as this input.
    Input(usize),
    /// In the memory that the caller binds as this output.
    Output(usize),
    /// In the engine, with the constant layer.
    Constant(LayerId),
    /// In a region of the context.
    Region(Place),
}

/// A range of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: Region,
    pub(crate) offset: usize,
    pub(crate) byte_len: usize,
}

/// The plan. It depends on the network alone, not on the rank.
#[derive(Debug)]
pub(crate) struct MemoryPlan {
    /// Where each tensor lies.
    pub(crate) locations: Vec<Location>,
    /// For each tensor that lies elsewhere and is an output too, the number of that output, to copy
    /// it to.
    pub(crate) copy_out: Vec<Option<usize>>,
    /// For each layer that needs room of its own while it runs.
    pub(crate) scratch: Vec<Option<Place>>,
    pub(crate) communicator_bytes: usize,
    pub(crate) private_bytes: usize,
}

/// Memory that one or several tensors use one after the other, in place.
struct Allocation {
    byte_len: usize,
    region: Region,
    /// The first and last step of the schedule at which it is in use.
    first: usize,
    last: usize,
    offset: usize,
}

/// Plans the memory of an analyzed network.
pub(crate) fn plan(network: &Network, analysis: &Analysis) -> Result<MemoryPlan> {
    let tensor_count = network.tensors.len();
    let output_of = |tensor: TensorId| network.outputs.iter().position(|t| *t == tensor);
    let mut position = vec![0; network.layers.len()];
    // Layers of one step may go on at the same time, so what they use is in use at the same time.
    for (step, layers) in analysis.steps.iter().enumerate() {
        analysis.schedule[layers.clone()].iter().for_each(|id| position[id.index()] = step);
    }
    let last_use =
        |tensor: TensorId| analysis.readers[tensor.index()].iter().map(|reader| position[reader.index()]).max();

    let mut allocations: Vec<Allocation> = Vec::new();
    let mut allocation_of: Vec<Option<usize>> = vec![None; tensor_count];
    let mut locations = vec![Location::Input(0); tensor_count];
    let mut copy_out = vec![None; tensor_count];
    let mut scratch_allocation = vec![None; network.layers.len()];
    for (number, input) in network.inputs.iter().enumerate() {
        locations[input.index()] = Location::Input(number);
    }
    for &id in &analysis.schedule {
        let step = position[id.index()];
        let layer = &network.layers[id.index()];
        for &tensor in &layer.outputs {
            let output = output_of(tensor);
            if let LayerBody::Constant(_) = layer.body {
                locations[tensor.index()] = Location::Constant(id);
                copy_out[tensor.index()] = output;
                continue;
            }
            let unwritten = analysis.collectives[id.index()].as_ref().is_some_and(|c| c.may_leave_output_unwritten());
            let is_read = !analysis.readers[tensor.index()].is_empty();
            match output {
                // On a rank that does not write it, the caller's buffer keeps its bytes and readers
                // see zeros. So it needs memory of its own.
                Some(output) if unwritten && is_read => copy_out[tensor.index()] = Some(output),
                Some(output) => {
                    locations[tensor.index()] = Location::Output(output);
                    continue;
                }
                None => {}
            }
            let last = last_use(tensor).unwrap_or(step);
            let byte_len = largest(analysis, tensor);
            let allocation = match in_place_with(network, analysis, &allocation_of, &position, id) {
                Some(allocation) => {
                    allocations[allocation].last = last;
                    allocation
                }
                None => {
                    allocations.push(Allocation { byte_len, region: Region::Private, first: step, last, offset: 0 });
                    allocations.len() - 1
                }
            };
            allocation_of[tensor.index()] = Some(allocation);
        }
        if let LayerBody::Shuffle(shuffle) = &layer.body
            && shuffle.shuffle.transposes_twice()
        {
            let byte_len = largest(analysis, layer.outputs[0]);
            scratch_allocation[id.index()] = Some(allocations.len());
            allocations.push(Allocation { byte_len, region: Region::Private, first: step, last: step, offset: 0 });
        }
        if analysis.collectives[id.index()].as_ref().is_some_and(|c| !c.is_identity()) {
            for tensor in layer.inputs.iter().chain(&layer.outputs) {
                if let Some(allocation) = allocation_of[tensor.index()] {
                    allocations[allocation].region = Region::Communicator;
                }
            }
        }
    }

    let place = |allocations: &mut [Allocation], region| {
        place(allocations, region).ok_or_else(|| {
            error!(InvalidNetwork, "the tensors inside the network need more memory than an address space has")
        })
    };
    let communicator_bytes = place(&mut allocations, Region::Communicator)?;
    let private_bytes = place(&mut allocations, Region::Private)?;
    let place_of = |number: usize| {
        let Allocation { region, offset, byte_len, .. } = allocations[number];
        Place { region, offset, byte_len }
    };
    for (location, allocation) in locations.iter_mut().zip(&allocation_of) {
        if let Some(allocation) = *allocation {
            *location = Location::Region(place_of(allocation));
        }
    }
    let scratch = scratch_allocation.into_iter().map(|allocation| allocation.map(place_of)).collect();
    Ok(MemoryPlan { locations, copy_out, scratch, communicator_bytes, private_bytes })
}

/// The most bytes that a tensor has at a point of the profile.
fn largest(analysis: &Analysis, tensor: TensorId) -> usize {
    let data_type = analysis.types[tensor.index()];
    analysis.shapes.iter().map(|shapes| shapes[tensor.index()].byte_len(data_type)).max().unwrap_or(0)
}

/// The memory of the layer's input, if the layer may write its output over it: no later layer reads
/// the input, and the layer can work in place. (all_gather can too, but at an offset that depends
/// on the rank. Plans do not depend on the rank.)
fn in_place_with(
    network: &Network,
    analysis: &Analysis,
    allocation_of: &[Option<usize>],
    position: &[usize],
    id: LayerId,
) -> Option<usize> {
    let layer = &network.layers[id.index()];
    let [input] = layer.inputs[..] else { return None };
    let data_type = analysis.types[input.index()];
    let able = match &layer.body {
        LayerBody::DistCollective(_) => analysis.collectives[id.index()]
            .as_ref()
            .is_some_and(|c| c.is_identity() || c.collective.operation().geometry().can_use_one_buffer()),
        LayerBody::Shuffle(shuffle) => shuffle.shuffle.only_reshapes(),
        LayerBody::Cast(cast) => cast.to.byte_len() == data_type.byte_len(),
        LayerBody::Constant(_) | LayerBody::Plugin(_) => false,
    };
    let dies = (analysis.readers[input.index()].iter())
        .all(|reader| *reader == id || position[reader.index()] < position[id.index()]);
    let read_once = analysis.readers[input.index()].iter().filter(|reader| **reader == id).count() == 1;
    let computed = matches!(network.tensors[input.index()].source, Source::Layer { .. });
    if able && dies && read_once && computed { allocation_of[input.index()] } else { None }
}

/// Gives each allocation of a region an offset: large ones first, each at the lowest offset that is
/// free while the allocation is in use. Returns the region's length, or `None` if no memory is that
/// long.
fn place(allocations: &mut [Allocation], region: Region) -> Option<usize> {
    let mut order: Vec<usize> = (0..allocations.len()).filter(|&a| allocations[a].region == region).collect();
    order.sort_by_key(|&a| std::cmp::Reverse(allocations[a].byte_len));
    let mut region_len = 0;
    for (i, &a) in order.iter().enumerate() {
        let lives_with = |b: &usize| {
            let (a, b) = (&allocations[a], &allocations[*b]);
            a.first <= b.last && b.first <= a.last
        };
        let mut taken: Vec<(usize, usize)> = order[..i]
            .iter()
            .filter(|b| lives_with(b))
            .map(|&b| (allocations[b].offset, padded(allocations[b].byte_len)))
            .collect();
        taken.sort_unstable();
        let len = padded(allocations[a].byte_len);
        let mut offset = 0usize;
        for (start, taken_len) in taken {
            if offset.checked_add(len)? <= start {
                break;
            }
            offset = offset.max(start + taken_len);
        }
        allocations[a].offset = offset;
        region_len = region_len.max(offset.checked_add(len)?);
    }
    isize::try_from(region_len).is_ok().then_some(region_len)
}

/// At least one byte, so that no two tensors in use have the same address.
fn padded(byte_len: usize) -> usize {
    byte_len.max(1).next_multiple_of(ALIGN)
}
