//! `dcl_bound_layer_*`, and binding a layer to a communicator.

use dcl::dist_collective::BoundLayer;

use super::arguments::{CDims, ConstVoidPointer, InPointer, OutPointer, TextPointer, VoidPointer, data_type};
use super::communicator::CCommunicator;
use super::dist_collective::{clone_collective, write_in_place};
use super::handle::{Handle, Object};
use super::network_objects::CLayer;
use super::status::{CallError, Status, call};
use super::stream::{AnyWork, CStream, CWork, enqueue};

/// `dcl_bound_layer_t`.
pub(super) struct CBoundLayer {
    bound: BoundLayer,
}

impl Object for CBoundLayer {
    const TYPE: &'static str = "dcl_bound_layer_t";
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_bind(
    layer: Handle<CLayer>,
    communicator: Handle<CCommunicator>,
    data_type: i32,
    bound: OutPointer<Handle<CBoundLayer>>,
) -> Status {
    call(|| {
        let (layer, communicator) = (clone_collective(layer)?, communicator.get()?);
        let (data_type, output) = (self::data_type(data_type)?, bound.check("bound")?);
        let bound = layer.bind(&communicator.communicator, data_type)?;
        output.set(Handle::new(CBoundLayer { bound }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bound_layer_free(bound: Handle<CBoundLayer>) -> Status {
    call(|| bound.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bound_layer_get_output_dims(
    bound: Handle<CBoundLayer>,
    input: InPointer<CDims>,
    output: OutPointer<CDims>,
) -> Status {
    call(|| {
        let bound = bound.get()?;
        let (input, output) = (input.get("input")?.to_shape()?, output.check("output")?);
        output.set(bound.bound.output_shape(input.as_slice())?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bound_layer_get_in_place(
    bound: Handle<CBoundLayer>,
    input: InPointer<CDims>,
    in_place: OutPointer<i32>,
    element_offset: OutPointer<usize>,
) -> Status {
    call(|| {
        let bound = bound.get()?;
        let (input, in_place) = (input.get("input")?.to_shape()?, in_place.check("in_place")?);
        write_in_place(bound.bound.in_place(input.as_slice())?, in_place, element_offset);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bound_layer_get_uses(
    bound: Handle<CBoundLayer>,
    reads_input: OutPointer<i32>,
    writes_output: OutPointer<i32>,
) -> Status {
    call(|| {
        let bound = bound.get()?;
        if let Some(reads_input) = reads_input.optional() {
            reads_input.set(bound.bound.reads_input().into());
        }
        if let Some(writes_output) = writes_output.optional() {
            writes_output.set(bound.bound.writes_output().into());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bound_layer_refuse_run(bound: Handle<CBoundLayer>, reason: TextPointer) -> Status {
    call(|| {
        bound.get()?.bound.refuse_run(reason.get("reason")?)?;
        Ok(())
    })
}

/// The error of a run that cannot begin. The other ranks learn of it.
fn refuse(bound: &BoundLayer, error: CallError) -> CallError {
    // If this rank cannot tell them, its communicator has ended.
    let _cannot_tell = bound.refuse_run(&error.to_string());
    error
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bound_layer_enqueue(
    bound: Handle<CBoundLayer>,
    input: ConstVoidPointer,
    output: VoidPointer,
    dims: InPointer<CDims>,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let bound = bound.get()?;
        let shape = dims.get("dims").and_then(|dims| dims.to_shape()).map_err(|error| refuse(&bound.bound, error))?;
        enqueue(stream, work, |stream| {
            let (input, output) = (input.address(), output.address().cast());
            // SAFETY: the header requires memory that is long enough, and that the caller leaves
            // alone until the run ends.
            let work = unsafe { bound.bound.enqueue(input, output, shape.as_slice(), stream)? };
            Ok(AnyWork::Collective(work))
        })
    })
}
