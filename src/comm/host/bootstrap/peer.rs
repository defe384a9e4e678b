//! A process without rank 0: connects to rank 0's process and receives the memory.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::{LONGEST_START, Start, connect_to, held_by_another_user};
use crate::comm::host::memory::world_memory::{FIRST, WorldFile, WorldMemory};
use crate::comm::host::process_monitor::RankProcess;
use crate::comm::host::protocol::segment::Segment;
use crate::comm::host::system::process_namespace;
use crate::comm::host::wire;
use crate::comm::host::world::World;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::handshake::{
    Channel, EndReason, Instance, Key, Obstacle, Participant, WireMessage, introduce, random, send_end,
};
use crate::util::wait::{RETRY, Stopped, Wait};
use crate::util::{caused_by, interrupt};

/// What may be the reason if rank 0 does not come.
const NAMESPACES: &str = ". Ranks in different network namespaces (containers) cannot meet over abstract sockets";

pub(super) fn connect(participant: &Participant<'_>) -> Result<Arc<World>> {
    let instance = random()?;
    let mut stream = connect_to_rank_0(participant, participant.deadline)?;
    loop {
        match receive_start(participant, instance, stream) {
            // Rank 0 closes the connection of a process that was stopped for a while; the process
            // connects again. If rank 0's process has ended, that fails.
            Err(error) if error.kind() == ErrorKind::PeerLost && Instant::now() < participant.deadline => {
                std::thread::sleep(RETRY);
                stream = connect_to_rank_0(participant, Instant::now()).map_err(|_| error)?;
            }
            done => return done,
        }
    }
}

/// Connects as soon as rank 0 listens, if it does so before `deadline`.
pub(super) fn connect_to_rank_0(participant: &Participant<'_>, deadline: Instant) -> Result<UnixStream> {
    let Participant { job, first_rank, .. } = *participant;
    let warning =
        |seconds| format!("job {job:?}: rank {first_rank} has waited for {seconds} s: rank 0 has not come{NAMESPACES}");
    let mut waiting = Wait::until(deadline).warning(&warning);
    loop {
        let e = match connect_to(job) {
            Ok(stream) => return Ok(stream),
            Err(e) => e,
        };
        // If the listener's queue is full, rank 0 listens.
        waiting.set_deadline(if e == Errno::AGAIN { participant.deadline } else { deadline });
        waiting.sleep(RETRY).map_err(|stopped| {
            let is_late = matches!(stopped, Stopped::Late);
            let error = stopped.error("while rank 0 had not come", "rank 0 did not come before the deadline");
            if is_late { caused_by(error, "connect", e).followed_by(NAMESPACES) } else { error }
        })?;
    }
}

/// Introduces this process to rank 0, and waits until all ranks have come.
pub(super) fn receive_start(
    participant: &Participant<'_>,
    instance: Instance,
    stream: UnixStream,
) -> Result<Arc<World>> {
    let refused = |e| held_by_another_user(&e).unwrap_or_else(|| caused_by(lost(), "getsockopt(SO_PEERCRED)", e));
    let mut channel = Channel::unix(stream).map_err(refused)?;
    let Participant { job, first_rank, .. } = *participant;
    let warning =
        |seconds| format!("job {job:?}: rank {first_rank} has waited for {seconds} s: not all ranks have come");
    let mut waiting = Wait::until(participant.deadline).warning(&warning);
    let start = introduce_to_rank_0(&mut channel, participant, instance, &mut waiting).and_then(|()| {
        match channel.receive(LONGEST_START, &mut waiting).map_err(|e| not_received("read", e))? {
            WireMessage::Step(start) => Ok(start),
            WireMessage::End(end) => Err(ended(end)),
        }
    });
    // Rank 0 tells the others. If it had welcomed this process, it would wait for another one.
    let Start { processes, process_namespace: namespace } = start.inspect_err(|error| {
        if error.kind() == ErrorKind::Interrupted {
            send_end([&mut channel], error);
        }
    })?;
    let Some(file) = wire::receive_file(&channel, &mut waiting).map_err(|e| not_received("recvmsg", e))? else {
        bail!(System, "rank 0's welcome came without memory; perhaps this process has no file descriptor left")
    };
    let own = own_index(participant, &processes)?;
    let file = WorldFile::open(file)?;
    let first = file.map(FIRST, Segment::root_size(participant.world_size, true).byte_len)?;
    let pids_are_valid = namespace.is_some() && namespace == process_namespace();
    let connections = vec![(0, channel.into())];
    let names = participant.names();
    World::between_processes(WorldMemory::Processes(file), first, processes, own, connections, pids_are_valid, names)
}

/// The handshake with rank 0's process, whose user has been checked.
pub(super) fn introduce_to_rank_0(
    channel: &mut Channel,
    participant: &Participant<'_>,
    instance: Instance,
    waiting: &mut Wait<'_>,
) -> Result<()> {
    let key = Key::new(participant, None)?;
    introduce(channel, participant, &key, instance, waiting).map(drop).map_err(|obstacle| match obstacle {
        Obstacle::Connection(e) => not_received("read", e),
        Obstacle::Failed(error) => error,
        Obstacle::Refused(reason) => error!(Disagreement, "{reason}"),
        Obstacle::Ended(end) => ended(end),
        Obstacle::OtherProtocol | Obstacle::OtherJob | Obstacle::WrongSecret | Obstacle::NoProof => another(),
    })
}

fn another() -> Error {
    error!(Disagreement, "the process that holds the name of this job is of another version, or means another job")
}

fn lost() -> Error {
    error!(PeerLost, "rank 0 left during the bootstrap")
}

fn not_received(call: &str, e: io::Error) -> Error {
    if let Some(interrupted) = interrupt::of_io(&e) {
        return interrupt::ended(&interrupted, "while not all ranks had come");
    }
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            error!(DeadlineExceeded, "the other ranks did not come before the deadline").with_source(e)
        }
        // A system call's error can be of this kind too.
        io::ErrorKind::Unsupported if e.raw_os_error().is_none() => another().with_source(e),
        _ => caused_by(lost(), call, e),
    }
}

/// The error of a process that rank 0 told that it ends the bootstrap.
fn ended(end: EndReason) -> Error {
    match end.cause.kind(ErrorKind::Aborted) {
        ErrorKind::Aborted => error!(Aborted, "rank 0 ended the bootstrap: {}", end.reason),
        kind => Error::new(kind, end.reason),
    }
}

/// The index of this process in rank 0's list of processes, which has each rank once, in order.
pub(super) fn own_index(participant: &Participant<'_>, processes: &[RankProcess]) -> Result<usize> {
    let Participant { world_size, first_rank, rank_count, .. } = *participant;
    let end = processes.iter().try_fold(0u32, |next, process| {
        let fits = process.first_rank == next && process.rank_count > 0;
        next.checked_add(process.rank_count).filter(|_| fits)
    });
    let is_own = |process: &RankProcess| (process.first_rank, process.rank_count) == (first_rank, rank_count);
    match processes.iter().position(is_own).filter(|_| end == Some(world_size)) {
        Some(own) => Ok(own),
        None => bail!(System, "rank 0's list of processes does not have each rank of {world_size} once"),
    }
}
