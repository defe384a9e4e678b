//! The memory plan: where each tensor lies. Memory is reused after the last layer that reads a
//! tensor.

use serde::Serialize;

use super::analysis::Analysis;
use super::placement::{Lifetime, Placement, place};
use crate::collective;
use crate::error::{Result, error};
use crate::network::{LayerId, Network, TensorId, TensorSource};

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
    /// What collectives in exact mode or with a transport type, one after the other, use between
    /// their steps on GPUs. On other communicators a context does not allocate it.
    pub(crate) step_scratch_bytes: usize,
}

/// Memory that one or several tensors use one after the other, in place.
struct Allocation {
    region: Region,
    lifetime: Lifetime,
    offset: usize,
}

impl Allocation {
    fn new(byte_len: usize, first: usize, last: usize) -> Self {
        Allocation { region: Region::Private, lifetime: Lifetime { byte_len, first, last }, offset: 0 }
    }
}

/// Plans the memory of an analyzed network.
pub(crate) fn plan(network: &Network, analysis: &Analysis) -> Result<MemoryPlan> {
    let tensor_count = network.tensors.len();
    let mut position = vec![0; network.layers.len()];
    // Layers of one step may go on at the same time, so what they use is in use at the same time.
    for (step, layers) in analysis.steps.iter().enumerate() {
        analysis.schedule[layers.clone()].iter().for_each(|id| position[id.index()] = step);
    }
    let readers = &analysis.readers;
    let last_use = |tensor: TensorId| readers.of(tensor).last().map(|reader| position[reader.index()]);

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
        let op = layer.body.op();
        for &tensor in &layer.outputs {
            let output = network.tensors[tensor.index()].output.map(|number| number as usize);
            if op.constant().is_some() {
                locations[tensor.index()] = Location::Constant(id);
                copy_out[tensor.index()] = output;
                continue;
            }
            let unwritten = analysis.collectives[id.index()].as_ref().is_some_and(|c| c.may_leave_output_unwritten());
            let is_read = !readers.of(tensor).is_empty();
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
            let byte_len = analysis.max_byte_len(tensor);
            let allocation = match in_place_with(network, analysis, &allocation_of, &position, id) {
                Some(allocation) => {
                    allocations[allocation].lifetime.last = last;
                    allocation
                }
                None => {
                    allocations.push(Allocation::new(byte_len, step, last));
                    allocations.len() - 1
                }
            };
            allocation_of[tensor.index()] = Some(allocation);
        }
        if op.needs_scratch() {
            let byte_len = analysis.max_byte_len(layer.outputs[0]);
            scratch_allocation[id.index()] = Some(allocations.len());
            allocations.push(Allocation::new(byte_len, step, step));
        }
        if analysis.collectives[id.index()].as_ref().is_some_and(|c| !c.is_identity()) {
            for tensor in layer.inputs.iter().chain(&layer.outputs) {
                if let Some(allocation) = allocation_of[tensor.index()] {
                    allocations[allocation].region = Region::Communicator;
                }
            }
        }
    }

    let communicator_bytes = place_region(&mut allocations, Region::Communicator)?;
    let private_bytes = place_region(&mut allocations, Region::Private)?;
    let place_of = |number: usize| {
        let Allocation { region, offset, lifetime } = allocations[number];
        Place { region, offset, byte_len: lifetime.byte_len }
    };
    for (location, allocation) in locations.iter_mut().zip(&allocation_of) {
        if let Some(allocation) = *allocation {
            *location = Location::Region(place_of(allocation));
        }
    }
    let scratch = scratch_allocation.into_iter().map(|allocation| allocation.map(place_of)).collect();
    let step_scratch_bytes = step_scratch_bytes(network, analysis);
    Ok(MemoryPlan { locations, copy_out, scratch, communicator_bytes, private_bytes, step_scratch_bytes })
}

/// The longest scratch memory of a collective in exact mode or with a transport type, at the
/// largest shapes.
fn step_scratch_bytes(network: &Network, analysis: &Analysis) -> usize {
    let bytes = analysis.schedule.iter().filter_map(|id| {
        let rank_count = analysis.collectives[id.index()].as_ref()?.nb_rank as usize;
        Some(collective::step_scratch_bytes(&analysis.largest_call(network, *id)?, rank_count))
    });
    bytes.max().unwrap_or(0)
}

/// The memory of the layer's input, if the layer may write its output over it: no later layer reads
/// the input, and the layer can work in place.
fn in_place_with(
    network: &Network,
    analysis: &Analysis,
    allocation_of: &[Option<usize>],
    position: &[usize],
    id: LayerId,
) -> Option<usize> {
    let layer = &network.layers[id.index()];
    let [input] = layer.inputs[..] else { return None };
    // The readers are in the order of the schedule. No other reads the input at this step or later,
    // and this layer reads it once.
    let is_last_reader = match analysis.readers.of(input) {
        [last] => *last == id,
        [.., before, last] => *last == id && position[before.index()] < position[id.index()],
        [] => false,
    };
    let computed = matches!(network.tensors[input.index()].source, TensorSource::Layer { .. });
    let able = layer.body.op().works_in_place(analysis.types[input.index()]);
    if able && is_last_reader && computed { allocation_of[input.index()] } else { None }
}

/// Gives each allocation of a region its offset. Returns the region's length.
fn place_region(allocations: &mut [Allocation], region: Region) -> Result<usize> {
    let mut members: Vec<&mut Allocation> = allocations.iter_mut().filter(|a| a.region == region).collect();
    let lifetimes: Vec<Lifetime> = members.iter().map(|allocation| allocation.lifetime).collect();
    let Placement { offsets, byte_len } = place(&lifetimes).ok_or_else(|| {
        error!(InvalidNetwork, "the tensors inside the network need more memory than an address space has")
    })?;
    members.iter_mut().zip(offsets).for_each(|(allocation, offset)| allocation.offset = offset);
    Ok(byte_len)
}
