//! `dcl_communicator_*` and `dcl_nccl_id_new`.

use std::sync::OnceLock;

use dcl::comm::NcclId;
use dcl::tensor::MemorySpace;
use dcl::{Communicator, Rank, Stream, WireType};
use distcollective_onnxruntime::SessionCommunicator;

use super::arguments::{
    CheckedOut, InPointer, OutPointer, SizedStruct, TextPointer, VoidPointer, count, determinism, positive, timeout,
    timeout_or_default, unsigned, wire_type, zero,
};
use super::copy_out::{RanksDestination, TextBuffer, TextDestination};
use super::handle::{Handle, Object};
use super::status::{CallError, Result, Status, call};
use super::stream::{AnyWork, CStream, CWork, enqueue};

/// `dcl_communicator_t`.
pub(super) struct CCommunicator {
    pub(super) communicator: Communicator,
    /// Since `dcl_communicator_session_value`.
    for_sessions: OnceLock<SessionCommunicator>,
}

impl Object for CCommunicator {
    const TYPE: &'static str = "dcl_communicator_t";
}

impl CCommunicator {
    pub(super) fn handle(communicator: Communicator) -> Handle<Self> {
        Handle::new(CCommunicator { communicator, for_sessions: OnceLock::new() })
    }
}

/// Writes a handle for each rank of this process.
fn write_handles(communicators: Vec<Communicator>, handles: CheckedOut<Handle<CCommunicator>>) {
    handles.set_array(communicators.into_iter().map(CCommunicator::handle));
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_new_in_process(
    backend: TextPointer,
    world_size: i32,
    timeout_ms: i64,
    communicators: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (backend, world_size) = (backend.optional("backend")?, positive("world_size", world_size)?);
        let handles = communicators.check("communicators")?;
        let timeout = timeout_or_default(timeout_ms)?;
        let builder = Communicator::builder().backend(backend.unwrap_or("auto").parse()?).timeout(timeout);
        write_handles(builder.in_process(world_size)?, handles);
        Ok(())
    })
}

/// `dcl_bootstrap_config_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CBootstrapConfig {
    struct_size: usize,
    job: TextPointer,
    world_size: i32,
    rank: i32,
    local_ranks: i32,
    reserved: i32,
    timeout_ms: i64,
}

const _: () = assert!(size_of::<CBootstrapConfig>() == CBootstrapConfig::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first.
unsafe impl SizedStruct for CBootstrapConfig {
    const FIRST_BYTE_LEN: usize = 40;
    const INITIAL: Self = CBootstrapConfig {
        struct_size: size_of::<Self>(),
        job: TextPointer::NULL,
        world_size: 1,
        rank: 0,
        local_ranks: 1,
        reserved: 0,
        timeout_ms: -1,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_bootstrap_config_init(config: OutPointer<CBootstrapConfig>, struct_size: usize) -> Status {
    call(|| config.initialize("config", struct_size))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_bootstrap(
    config: InPointer<CBootstrapConfig>,
    communicators: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let config = config.required("config")?;
        zero("reserved of config", config.reserved)?;
        let local_ranks = positive("local_ranks", config.local_ranks)?;
        let handles = communicators.check("communicators")?;
        let builder = Communicator::builder()
            .job(config.job.get("job")?)
            .world_size(positive("world_size", config.world_size)?)
            .rank(unsigned("rank", config.rank)?)
            .timeout(timeout_or_default(config.timeout_ms)?);
        write_handles(builder.connect_ranks(local_ranks)?, handles);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_nccl_id_new(id: OutPointer<u8>) -> Status {
    call(|| {
        let id = id.check("id")?;
        id.set_array(NcclId::new()?.as_bytes().iter().copied());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_new_nccl(
    id: InPointer<u8>,
    rank: i32,
    world_size: i32,
    device: i32,
    timeout_ms: i64,
    communicator: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let communicator = communicator.check("communicator")?;
        let id = NcclId::from_bytes(&id.array("id", NcclId::BYTE_LEN)?)?;
        let (rank, world_size) = (unsigned("rank", rank)?, positive("world_size", world_size)?);
        let (device, timeout) = (unsigned("device", device)?, timeout_or_default(timeout_ms)?);
        let builder = Communicator::builder().nccl(&id).rank(rank).world_size(world_size).device(device);
        communicator.set(CCommunicator::handle(builder.timeout(timeout).connect()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_from_nccl(
    nccl_comm: VoidPointer,
    timeout_ms: i64,
    communicator: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, timeout) = (communicator.check("communicator")?, timeout_or_default(timeout_ms)?);
        if nccl_comm.address().is_null() {
            return Err(CallError::invalid_argument("nccl_comm is NULL"));
        }
        // SAFETY: the header requires an ncclComm_t of this process's NCCL. It outlives the handle,
        // and the caller does not use it during calls.
        let borrowed = unsafe { Communicator::from_raw_nccl(nccl_comm.address(), timeout)? };
        communicator.set(CCommunicator::handle(borrowed));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_from_mpi(
    mpi_comm: u64,
    timeout_ms: i64,
    communicator: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, timeout) = (communicator.check("communicator")?, timeout_or_default(timeout_ms)?);
        // SAFETY: the header requires an MPI_Comm of this process's MPI.
        let duplicated = unsafe { Communicator::from_raw_mpi(mpi_comm as usize, timeout)? };
        communicator.set(CCommunicator::handle(duplicated));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_free(communicator: Handle<CCommunicator>) -> Status {
    call(|| communicator.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_finalize(communicator: Handle<CCommunicator>) -> Status {
    call(|| {
        let communicator = communicator.take()?;
        Ok(communicator.communicator.clone().finalize()?)
    })
}

/// Writes a number that belongs to a communicator.
fn number(
    communicator: Handle<CCommunicator>,
    output: OutPointer<i32>,
    name: &str,
    of: impl FnOnce(&Communicator) -> u32,
) -> Result<()> {
    let (communicator, output) = (communicator.get()?, output.check(name)?);
    output.set(count(of(&communicator.communicator) as usize));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_rank(communicator: Handle<CCommunicator>, rank: OutPointer<i32>) -> Status {
    call(|| number(communicator, rank, "rank", |communicator| communicator.rank().0))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_world_size(
    communicator: Handle<CCommunicator>,
    world_size: OutPointer<i32>,
) -> Status {
    call(|| number(communicator, world_size, "world_size", Communicator::world_size))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_backend(
    communicator: Handle<CCommunicator>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| TextDestination { buffer, capacity, length }.write(communicator.get()?.communicator.backend().name()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_device(communicator: Handle<CCommunicator>, device: OutPointer<i32>) -> Status {
    call(|| {
        let (communicator, device) = (communicator.get()?, device.check("device")?);
        device.set(match communicator.communicator.space() {
            MemorySpace::Host => -1,
            MemorySpace::Cuda(ordinal) => count(ordinal as usize),
            other => return Err(CallError::new(Status::UNSUPPORTED, format!("{other} has no number for C"))),
        });
        Ok(())
    })
}

/// `dcl_communicator_options_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CCommunicatorOptions {
    struct_size: usize,
    timeout_ms: i64,
    determinism: i32,
    wire_type: i32,
}

const _: () = assert!(size_of::<CCommunicatorOptions>() == CCommunicatorOptions::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers; the size comes first.
unsafe impl SizedStruct for CCommunicatorOptions {
    const FIRST_BYTE_LEN: usize = 24;
    const INITIAL: Self = CCommunicatorOptions {
        struct_size: size_of::<Self>(),
        timeout_ms: -1,
        determinism: 0,
        wire_type: WireType::NONE_NUMBER,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_options(
    communicator: Handle<CCommunicator>,
    options: OutPointer<CCommunicatorOptions>,
) -> Status {
    call(|| {
        let (communicator, options) = (communicator.get()?, options.structure("options")?);
        let communicator = &communicator.communicator;
        options.set(CCommunicatorOptions {
            timeout_ms: i64::try_from(communicator.timeout().as_millis()).unwrap_or(i64::MAX),
            determinism: communicator.determinism().number(),
            wire_type: communicator.wire_type().map_or(WireType::NONE_NUMBER, WireType::number),
            ..CCommunicatorOptions::INITIAL
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_with_options(
    communicator: Handle<CCommunicator>,
    options: InPointer<CCommunicatorOptions>,
    other: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, options) = (communicator.get()?, options.required("options")?);
        let (communicator, other) = (&communicator.communicator, other.check("other")?);
        let made = communicator
            .with_timeout(timeout(options.timeout_ms)?.unwrap_or(communicator.timeout()))
            .with_determinism(determinism(options.determinism)?)
            .with_wire_type(wire_type(options.wire_type)?);
        other.set(CCommunicator::handle(made));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_session_value(
    communicator: Handle<CCommunicator>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let communicator = communicator.get()?;
        let for_sessions =
            communicator.for_sessions.get_or_init(|| SessionCommunicator::new(&communicator.communicator));
        TextDestination { buffer, capacity, length }.write(&for_sessions.value())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_check(communicator: Handle<CCommunicator>) -> Status {
    call(|| Ok(communicator.get()?.communicator.check()?))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_abort(communicator: Handle<CCommunicator>, reason: TextPointer) -> Status {
    call(|| {
        let (communicator, reason) = (communicator.get()?, reason.get("reason")?);
        Ok(communicator.communicator.abort(reason)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_begin_request(communicator: Handle<CCommunicator>, id: u64) -> Status {
    call(|| Ok(communicator.get()?.communicator.begin_request(id)?))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_end_request(communicator: Handle<CCommunicator>, failure: TextPointer) -> Status {
    call(|| {
        let (communicator, failure) = (communicator.get()?, failure.optional("failure")?);
        Ok(communicator.communicator.end_request(failure)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_barrier(communicator: Handle<CCommunicator>) -> Status {
    call(|| Ok(communicator.get()?.communicator.barrier()?))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_monitored_barrier(communicator: Handle<CCommunicator>, timeout_ms: i64) -> Status {
    call(|| {
        let communicator = communicator.get()?;
        let communicator = &communicator.communicator;
        Ok(communicator.monitored_barrier(timeout(timeout_ms)?.unwrap_or(communicator.timeout()))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_enqueue_barrier(
    communicator: Handle<CCommunicator>,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let communicator = communicator.get()?;
        let barrier = |stream: &Stream| Ok(AnyWork::Collective(communicator.communicator.enqueue_barrier(stream)?));
        enqueue(stream, work, barrier)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_stream(
    communicator: Handle<CCommunicator>,
    stream: OutPointer<Handle<CStream>>,
) -> Status {
    call(|| {
        let (communicator, stream) = (communicator.get()?, stream.check("stream")?);
        stream.set(CStream::handle(communicator.communicator.stream()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_global_ranks(
    communicator: Handle<CCommunicator>,
    ranks: OutPointer<i64>,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let global_ranks = communicator.get()?.communicator.global_ranks();
        RanksDestination { ranks, capacity, length }.write(&global_ranks)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_global_rank(
    communicator: Handle<CCommunicator>,
    rank: i32,
    global_rank: OutPointer<i32>,
) -> Status {
    call(|| {
        let (communicator, global_rank) = (communicator.get()?, global_rank.check("global_rank")?);
        let global = communicator.communicator.global_rank(unsigned("rank", rank)?)?;
        global_rank.set(count(global.index()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_group_rank(
    communicator: Handle<CCommunicator>,
    global_rank: i32,
    rank: OutPointer<i32>,
) -> Status {
    call(|| {
        let (communicator, rank) = (communicator.get()?, rank.check("rank")?);
        let own = communicator.communicator.group_rank(unsigned("global_rank", global_rank)?)?;
        rank.set(count(own.index()));
        Ok(())
    })
}

/// This rank's handle of the group, or NULL if the rank is not in it.
pub(super) fn group_handle(group: Option<Communicator>) -> Handle<CCommunicator> {
    group.map_or(Handle::NULL, CCommunicator::handle)
}

/// The ranks of a list.
pub(super) fn ranks_of(ranks: &InPointer<i64>, nb_ranks: i64) -> Result<Vec<Rank>> {
    ranks.array("ranks", nb_ranks)?.into_iter().map(|rank| Ok(Rank(unsigned("a rank", rank)?))).collect()
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_split(
    communicator: Handle<CCommunicator>,
    color: i32,
    key: i32,
    group: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, group) = (communicator.get()?, group.check("group")?);
        let color = if color == -1 { None } else { Some(unsigned("color", color)?) };
        group.set(group_handle(communicator.communicator.split(color, key)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_new_group(
    communicator: Handle<CCommunicator>,
    ranks: InPointer<i64>,
    nb_ranks: i64,
    group: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, group) = (communicator.get()?, group.check("group")?);
        let ranks = ranks_of(&ranks, nb_ranks)?;
        group.set(group_handle(communicator.communicator.new_group(&ranks)?));
        Ok(())
    })
}
