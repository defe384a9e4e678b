//! Rank 0's process: gathers the others and sends them the memory.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::{Start, connect_to, held_by_another_user, listen_at, peer};
use crate::comm::host::memory::world_memory::{WorldFile, WorldMemory};
use crate::comm::host::memory::{SharedMemory, check_time};
use crate::comm::host::process_monitor::RankProcess;
use crate::comm::host::system::process_namespace;
use crate::comm::host::wire;
use crate::comm::host::world::World;
use crate::error::{Error, Result, error};
use crate::handshake::{
    Channel, EndReason, HELLO_TIMEOUT, Key, Listener, Member, Participant, Peer, PeerGathering, WireMessage, random,
};
use crate::util::caused_by;
use crate::util::text::list_ranks;
use crate::util::wait::Wait;

pub(super) fn connect(participant: &Participant<'_>) -> Result<World> {
    let refused = |e: io::Error| match e.kind() {
        io::ErrorKind::AddrInUse => name_is_taken(participant, e),
        _ => caused_by(error!(System, "no socket to meet on"), "bind", e),
    };
    let listener = listen_at(participant.job).map_err(refused)?;
    let failed = |e| caused_by(error!(System, "the socket to meet on failed"), "ioctl(FIONBIO)", e);
    let listener = Listener::unix(listener).map_err(failed)?;
    let gathering = PeerGathering {
        listener: &listener,
        participant,
        key: &Key::new(participant, None)?,
        // The socket's name is enough to tell one bootstrap from another.
        nonce: "",
        subject: format!("job {:?}: ", participant.job),
        destination: String::new(),
    };
    let members = gathering.run()?;
    // From here on the kernel refuses the connections of processes that come too late.
    drop(listener);
    start(participant, members)
}

/// The error of a rank 0 whose job's name is taken. If the holder is a rank 0 that waits for its
/// peers, it learns of this one.
fn name_is_taken(participant: &Participant<'_>, e: io::Error) -> Error {
    let mut channel = match connect_to(participant.job).map_err(io::Error::from).and_then(Channel::unix) {
        Ok(channel) => channel,
        Err(refusal) => {
            return match held_by_another_user(&refusal) {
                Some(error) => error.with_source(e),
                None => caused_by(error!(System, "the name under which this job's processes meet is taken"), "bind", e),
            };
        }
    };
    // The holder refuses the second rank 0 at once, if it still waits.
    if let Ok(instance) = random() {
        let deadline = participant.deadline.min(Instant::now() + HELLO_TIMEOUT);
        let _ = peer::introduce_to_rank_0(&mut channel, participant, instance, &mut Wait::until(deadline));
    }
    caused_by(error!(System, "another rank 0 of this user waits or runs under the same job name"), "bind", e)
}

/// Makes the memory and sends it to the processes that have come.
fn start(participant: &Participant<'_>, members: Vec<Member>) -> Result<World> {
    let own = RankProcess {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        first_rank: participant.first_rank,
        rank_count: participant.rank_count,
    };
    let others = members.into_iter().map(process_of).collect::<Result<Vec<_>>>()?;
    let processes: Vec<RankProcess> = std::iter::once(own).chain(others.iter().map(|(process, _)| *process)).collect();
    let spans_processes = processes.len() > 1;
    let size = World::memory_size(participant.world_size, spans_processes);
    if !spans_processes {
        let memory = WorldMemory::of_one_process();
        let first = SharedMemory::for_threads(size.byte_len)?;
        return World::between_processes(memory, first, processes, 0, vec![None], true);
    }
    let keep_going = || check_time(participant.deadline, "allocated");
    let file = WorldFile::create();
    let made = file.and_then(|file| Ok((file.allocate(size, processes.len(), &keep_going)?.1, file)));
    let (first, file) = made.inspect_err(|e| send_end(&others, e))?;
    let process_namespace = process_namespace();
    for (index, (process, stream)) in others.iter().enumerate() {
        let start = WireMessage::Step(Start { processes: processes.clone(), own: index as u32 + 1, process_namespace });
        wire::send(stream, &start, Some(file.as_fd()))
            .map_err(|e| caused_by(left_early(process), "sendmsg", e))
            .inspect_err(|e| send_end(&others[index + 1..], e))?;
    }
    let links = std::iter::once(None).chain(others.into_iter().map(|(_, stream)| Some(stream))).collect();
    World::between_processes(WorldMemory::Processes(file), first, processes, 0, links, true)
}

/// A process that has come, as the kernel and its claim have it, and the connection to it.
fn process_of(member: Member) -> Result<(RankProcess, UnixStream)> {
    let pid = Peer::of(&member.channel).map(|peer| peer.pid);
    let stream = member.channel.into_unix().and_then(|stream| {
        stream.set_write_timeout(Some(HELLO_TIMEOUT))?;
        Ok(stream)
    });
    let failed = |e| caused_by(error!(System, "a connection to another process failed"), "setsockopt", e);
    let pid = pid.map_err(failed)?;
    let process = RankProcess { pid, first_rank: member.claim.first_rank, rank_count: member.claim.rank_count };
    Ok((process, stream.map_err(failed)?))
}

fn left_early(process: &RankProcess) -> Error {
    error!(PeerLost, "{} left during the bootstrap", list_ranks(process.ranks()))
}

/// Tells processes that have come why the bootstrap ends.
fn send_end(others: &[(RankProcess, UnixStream)], error: &Error) {
    for (_, stream) in others {
        // A process that has ended needs no message.
        let _ = wire::send(stream, &WireMessage::<Start>::End(EndReason::from(error)), None);
    }
}
