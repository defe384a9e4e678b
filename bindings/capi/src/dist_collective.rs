//! `dcl_dist_collective_*`: the attributes of DistCollective layers, and what an engine with its
//! own graph asks about them.

use dcl::collective::{GroupRank, InPlace};
use dcl::{DistCollectiveLayer, Groups, Rank, ReduceOperation, Root, WireType};

use super::arguments::{
    CDims, CheckedOut, ConstVoidPointer, InPointer, OutPointer, data_type, determinism, operation, reduce_op, unsigned,
    wire_type,
};
use super::copy_out::{ByteBuffer, ByteDestination};
use super::handle::Handle;
use super::network_objects::CLayer;
use super::status::{CallError, Result, Status, call};

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_new(
    operation: i32,
    reduce_op: i32,
    root: i64,
    groups: InPointer<i64>,
    group_size: i64,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let layer = layer.check("layer")?;
        let (operation, reduce_op) = (self::operation(operation)?, self::reduce_op(reduce_op)?);
        let groups = groups.array("groups", group_size)?;
        layer.set(Handle::new(CLayer::without_network(DistCollectiveLayer::new(operation, reduce_op, root, &groups)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_clone(layer: Handle<CLayer>, clone: OutPointer<Handle<CLayer>>) -> Status {
    call(|| {
        let (layer, clone) = (layer.get()?, clone.check("clone")?);
        let copy = layer.read_collective(|layer| Ok(layer.clone()))?;
        clone.set(Handle::new(CLayer::without_network(copy)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_serialize(
    layer: Handle<CLayer>,
    buffer: ByteBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let bytes = layer.get()?.read_collective(|layer| Ok(layer.serialize()?))?;
        ByteDestination { buffer, capacity, length }.write(&bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_deserialize(
    bytes: ConstVoidPointer,
    byte_len: usize,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let layer = layer.check("layer")?;
        let read = DistCollectiveLayer::deserialize(bytes.get("bytes", byte_len)?)?;
        layer.set(Handle::new(CLayer::without_network(read)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_check_type(layer: Handle<CLayer>, data_type: i32) -> Status {
    call(|| {
        let (layer, data_type) = (layer.get()?, self::data_type(data_type)?);
        layer.read_collective(|layer| Ok(layer.check_type(data_type)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_output_dims(
    layer: Handle<CLayer>,
    input: InPointer<CDims>,
    output: OutPointer<CDims>,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (input, output) = (input.get("input")?.to_dims()?, output.check("output")?);
        output.set(layer.read_collective(|layer| Ok(layer.output_dims(&input)?))?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_in_place(
    layer: Handle<CLayer>,
    group_rank: i32,
    input: InPointer<CDims>,
    in_place: OutPointer<i32>,
    element_offset: OutPointer<usize>,
) -> Status {
    call(|| {
        let (layer, rank) = (layer.get()?, GroupRank(unsigned("group_rank", group_rank)?));
        let (input, in_place) = (input.get("input")?.to_shape()?, in_place.check("in_place")?);
        let rule = layer.read_collective(|layer| Ok(layer.in_place(rank, input.as_slice())?))?;
        write_in_place(rule, in_place, element_offset);
        Ok(())
    })
}

/// Writes an in-place rule as `dcl_in_place_t`.
pub(super) fn write_in_place(rule: InPlace, in_place: CheckedOut<i32>, element_offset: OutPointer<usize>) {
    let (rule, offset) = match rule {
        InPlace::Never => (0, 0),
        InPlace::SameAddress => (1, 0),
        InPlace::InputAt { element_offset } => (2, element_offset),
        InPlace::OutputAt { element_offset } => (3, element_offset),
        InPlace::Unused => (4, 0),
    };
    in_place.set(rule);
    if let Some(element_offset) = element_offset.optional() {
        element_offset.set(offset);
    }
}

/// A copy of the layer as it is now, for binding.
pub(super) fn clone_collective(layer: Handle<CLayer>) -> Result<DistCollectiveLayer> {
    layer.get()?.read_collective(|layer| Ok(layer.clone()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_collective_operation(
    layer: Handle<CLayer>,
    operation: OutPointer<i32>,
) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, operation.check("operation")?);
        operation.set(layer.read_collective(|layer| Ok(layer.collective_operation().number()))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_collective_operation(layer: Handle<CLayer>, operation: i32) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, self::operation(operation)?);
        layer.change_collective(|layer| {
            layer.set_collective_operation(operation);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_reduce_op(layer: Handle<CLayer>, reduce_op: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, reduce_op) = (layer.get()?, reduce_op.check("reduce_op")?);
        let found = layer.read_collective(|layer| Ok(layer.reduce_op()))?;
        reduce_op.set(found.map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_determinism(layer: Handle<CLayer>, determinism: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, determinism) = (layer.get()?, determinism.check("determinism")?);
        determinism.set(layer.read_collective(|layer| Ok(layer.determinism().number()))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_determinism(layer: Handle<CLayer>, determinism: i32) -> Status {
    call(|| {
        let (layer, determinism) = (layer.get()?, self::determinism(determinism)?);
        layer.change_collective(|layer| {
            layer.set_determinism(determinism);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_wire_type(layer: Handle<CLayer>, wire_type: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, wire_type) = (layer.get()?, wire_type.check("wire_type")?);
        let found = layer.read_collective(|layer| Ok(layer.wire_type()))?;
        wire_type.set(found.map_or(WireType::NONE_NUMBER, WireType::number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_wire_type(layer: Handle<CLayer>, wire_type: i32) -> Status {
    call(|| {
        let (layer, wire_type) = (layer.get()?, self::wire_type(wire_type)?);
        layer.change_collective(|layer| {
            layer.set_wire_type(wire_type);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_reduce_op(layer: Handle<CLayer>, reduce_op: i32) -> Status {
    call(|| {
        let (layer, reduce_op) = (layer.get()?, self::reduce_op(reduce_op)?);
        layer.change_collective(|layer| {
            layer.set_reduce_op(reduce_op);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_root(layer: Handle<CLayer>, root: OutPointer<i64>) -> Status {
    call(|| {
        let (layer, root) = (layer.get()?, root.check("root")?);
        let found = layer.read_collective(|layer| Ok(layer.root()))?;
        root.set(found.map_or(-1, |root| i64::from(root.number())));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_root(layer: Handle<CLayer>, root: i64) -> Status {
    call(|| {
        let layer = layer.get()?;
        let root = if root == -1 { None } else { Some(unsigned("root (-1 is none)", root)?) };
        layer.change_collective(|layer| {
            layer.set_root(root.map(|root| root_of(root, layer.groups())));
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_groups(
    layer: Handle<CLayer>,
    groups: OutPointer<i64>,
    capacity: usize,
    nb_groups: OutPointer<i64>,
    group_size: OutPointer<i64>,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (nb_groups, group_size) = (nb_groups.check("nb_groups")?, group_size.check("group_size")?);
        let lists: Vec<Vec<Rank>> = layer.read_collective(|layer| {
            Ok(match layer.groups() {
                Groups::All => Vec::new(),
                Groups::Group(group) => vec![group.clone()],
                Groups::Partition(partition) => partition.groups().to_vec(),
            })
        })?;
        let ranks: Vec<i64> = lists.iter().flatten().map(|rank| i64::from(rank.0)).collect();
        if let Some(groups) = groups.optional() {
            if capacity < ranks.len() {
                let message = format!("groups has room for {capacity} ranks, and there are {}", ranks.len());
                return Err(CallError::new(Status::BUFFER_TOO_SMALL, message));
            }
            groups.set_array(ranks);
        }
        nb_groups.set(lists.len() as i64);
        group_size.set(lists.first().map_or(0, Vec::len) as i64);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_groups(layer: Handle<CLayer>, groups: InPointer<i64>, group_size: i64) -> Status {
    call(|| {
        let layer = layer.get()?;
        let groups = Groups::from_ranks(&groups.array("groups", group_size)?)?;
        layer.change_collective(|layer| set_groups(layer, groups))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_partition(
    layer: Handle<CLayer>,
    groups: InPointer<i64>,
    nb_groups: i64,
    group_size: i64,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        if nb_groups < 1 || group_size < 1 {
            let message = format!("a partition has 1 group or more of 1 rank or more, not {nb_groups} of {group_size}");
            return Err(CallError::invalid_argument(message));
        }
        let ranks = groups.array("groups", nb_groups.saturating_mul(group_size))?;
        let groups = Groups::from_partition(&ranks, group_size as usize)?;
        layer.change_collective(|layer| set_groups(layer, groups))
    })
}

/// Sets the participants. C's root is a plain number. The participants say whether it is a
/// communicator rank or a group rank.
fn set_groups(layer: &mut DistCollectiveLayer, groups: Groups) -> Result<()> {
    let root = layer.root().map(|root| root_of(root.number(), &groups));
    layer.set_groups(groups)?;
    layer.set_root(root);
    Ok(())
}

fn root_of(number: u32, groups: &Groups) -> Root {
    match groups {
        Groups::Partition(_) => Root::GroupRank(GroupRank(number)),
        Groups::All | Groups::Group(_) => Root::Rank(Rank(number)),
    }
}
