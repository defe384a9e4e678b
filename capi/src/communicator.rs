//! Communicators.

use dcl::{Communicator, MemorySpace, NcclId, Rank};

use super::arguments::{
    Growing, In, Out, Place, Room, Text, count, positive, timeout, timeout_or_default, unsigned, zero,
};
use super::copy_out::{TextOut, TextRoom};
use super::handle::{Handle, Object};
use super::status::{Fault, Result, Status, call};

/// `dcl_communicator_t`.
pub(super) struct CCommunicator {
    pub(super) communicator: Communicator,
}

impl Object for CCommunicator {
    const TYPE: &'static str = "dcl_communicator_t";
}

impl CCommunicator {
    pub(super) fn handle(communicator: Communicator) -> Handle<Self> {
        Handle::new(CCommunicator { communicator })
    }
}

/// Hands over ranks of this process.
fn hand_over(communicators: Vec<Communicator>, places: Place<Handle<CCommunicator>>) {
    places.set_several(communicators.into_iter().map(CCommunicator::handle));
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_new_in_process(
    backend: Text,
    world_size: i32,
    timeout_ms: i64,
    communicators: Out<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (backend, world_size) = (backend.optional("backend")?, positive("world_size", world_size)?);
        let places = communicators.place("communicators")?;
        let timeout = timeout_or_default(timeout_ms)?;
        let builder = Communicator::builder().backend(backend.unwrap_or("auto").parse()?).timeout(timeout);
        hand_over(builder.in_process(world_size)?, places);
        Ok(())
    })
}

/// `dcl_meeting_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CMeeting {
    struct_size: usize,
    job: Text,
    world_size: i32,
    rank: i32,
    local_ranks: i32,
    reserved: i32,
    timeout_ms: i64,
}

const _: () = assert!(size_of::<CMeeting>() == CMeeting::FIRST_LEN);

// SAFETY: numbers and a pointer, of which the size comes first.
unsafe impl Growing for CMeeting {
    const FIRST_LEN: usize = 40;
    const INITIAL: Self = CMeeting {
        struct_size: size_of::<Self>(),
        job: Text::NULL,
        world_size: 1,
        rank: 0,
        local_ranks: 1,
        reserved: 0,
        timeout_ms: -1,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_meet(meeting: In<CMeeting>, communicators: Out<Handle<CCommunicator>>) -> Status {
    call(|| {
        let meeting = meeting.required("meeting")?;
        zero("reserved of meeting", meeting.reserved)?;
        let local_ranks = positive("local_ranks", meeting.local_ranks)?;
        let places = communicators.place("communicators")?;
        let builder = Communicator::builder()
            .job(meeting.job.get("job")?)
            .world_size(positive("world_size", meeting.world_size)?)
            .rank(unsigned("rank", meeting.rank)?)
            .timeout(timeout_or_default(meeting.timeout_ms)?);
        hand_over(builder.connect_ranks(local_ranks)?, places);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_nccl_id_new(id: Out<u8>) -> Status {
    call(|| {
        let id = id.place("id")?;
        id.set_several(NcclId::new()?.as_bytes().iter().copied());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_new_nccl(
    id: In<u8>,
    rank: i32,
    world_size: i32,
    device: i32,
    timeout_ms: i64,
    communicator: Out<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let communicator = communicator.place("communicator")?;
        let id = NcclId::from_bytes(&id.several("id", NcclId::BYTE_LEN)?)?;
        let (rank, world_size) = (unsigned("rank", rank)?, positive("world_size", world_size)?);
        let (device, timeout) = (unsigned("device", device)?, timeout_or_default(timeout_ms)?);
        let builder = Communicator::builder().nccl(&id).rank(rank).world_size(world_size).device(device);
        communicator.set(CCommunicator::handle(builder.timeout(timeout).connect()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_from_nccl(
    nccl_comm: Room,
    timeout_ms: i64,
    communicator: Out<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, timeout) = (communicator.place("communicator")?, timeout_or_default(timeout_ms)?);
        if nccl_comm.address().is_null() {
            return Err(Fault::invalid_argument("nccl_comm is NULL"));
        }
        // SAFETY: the header wants an ncclComm_t of this process's NCCL that outlives the handle and is not used during calls.
        let borrowed = unsafe { Communicator::from_raw_nccl(nccl_comm.address(), timeout)? };
        communicator.set(CCommunicator::handle(borrowed));
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

/// Writes a number of a communicator's.
fn number(
    communicator: Handle<CCommunicator>,
    place: Out<i32>,
    name: &str,
    of: impl FnOnce(&Communicator) -> u32,
) -> Result<()> {
    let (communicator, place) = (communicator.get()?, place.place(name)?);
    place.set(count(of(&communicator.communicator) as usize));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_rank(communicator: Handle<CCommunicator>, rank: Out<i32>) -> Status {
    call(|| number(communicator, rank, "rank", |communicator| communicator.rank().0))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_world_size(communicator: Handle<CCommunicator>, world_size: Out<i32>) -> Status {
    call(|| number(communicator, world_size, "world_size", Communicator::world_size))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_origin_rank(communicator: Handle<CCommunicator>, rank: Out<i32>) -> Status {
    call(|| number(communicator, rank, "rank", |communicator| communicator.origin_rank().0))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_backend(
    communicator: Handle<CCommunicator>,
    buffer: TextRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| TextOut { buffer, capacity, length }.write(communicator.get()?.communicator.backend().name()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_device(communicator: Handle<CCommunicator>, device: Out<i32>) -> Status {
    call(|| {
        let (communicator, device) = (communicator.get()?, device.place("device")?);
        device.set(match communicator.communicator.space() {
            MemorySpace::Host => -1,
            MemorySpace::Cuda(ordinal) => count(ordinal as usize),
            other => return Err(Fault::new(Status::UNSUPPORTED, format!("{other} has no number for C"))),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_get_timeout(communicator: Handle<CCommunicator>, timeout_ms: Out<i64>) -> Status {
    call(|| {
        let (communicator, timeout_ms) = (communicator.get()?, timeout_ms.place("timeout_ms")?);
        let milliseconds = communicator.communicator.timeout().as_millis();
        timeout_ms.set(i64::try_from(milliseconds).unwrap_or(i64::MAX));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_with_timeout(
    communicator: Handle<CCommunicator>,
    timeout_ms: i64,
    other: Out<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, other) = (communicator.get()?, other.place("other")?);
        let communicator = &communicator.communicator;
        let timeout = timeout(timeout_ms)?.unwrap_or(communicator.timeout());
        other.set(CCommunicator::handle(communicator.with_timeout(timeout)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_check(communicator: Handle<CCommunicator>) -> Status {
    call(|| Ok(communicator.get()?.communicator.check()?))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_abort(communicator: Handle<CCommunicator>, reason: Text) -> Status {
    call(|| {
        let (communicator, reason) = (communicator.get()?, reason.get("reason")?);
        Ok(communicator.communicator.abort(reason)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_barrier(communicator: Handle<CCommunicator>) -> Status {
    call(|| Ok(communicator.get()?.communicator.barrier()?))
}

/// The handle on this rank's end of a group, if it is in one.
fn member(group: Option<Communicator>) -> Handle<CCommunicator> {
    group.map_or(Handle::NULL, CCommunicator::handle)
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_split(
    communicator: Handle<CCommunicator>,
    color: i32,
    key: i32,
    group: Out<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, group) = (communicator.get()?, group.place("group")?);
        let color = if color == -1 { None } else { Some(unsigned("color", color)?) };
        group.set(member(communicator.communicator.split(color, key)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_new_group(
    communicator: Handle<CCommunicator>,
    ranks: In<i64>,
    nb_ranks: i64,
    group: Out<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (communicator, group) = (communicator.get()?, group.place("group")?);
        let ranks = ranks.several("ranks", nb_ranks)?;
        let ranks = ranks.iter().map(|&rank| Ok(Rank(unsigned("a rank", rank)?))).collect::<Result<Vec<_>>>()?;
        group.set(member(communicator.communicator.new_group(&ranks)?));
        Ok(())
    })
}
