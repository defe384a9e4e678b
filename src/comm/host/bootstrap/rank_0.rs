//! Rank 0's process: gathers the others and sends them the memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::{Start, connect_to, held_by_another_user, listen_at, peer};
use crate::comm::host::memory::check_time;
use crate::comm::host::memory::world_memory::{WorldFile, WorldMemory};
use crate::comm::host::process_monitor::RankProcess;
use crate::comm::host::protocol::segment::Segment;
use crate::comm::host::system::process_namespace;
use crate::comm::host::wire;
use crate::comm::host::world::World;
use crate::error::{Error, Result, error};
use crate::handshake::{
    Channel, Frame, HELLO_TIMEOUT, Key, Listener, Member, Participant, Peer, PeerGathering, WireMessage, random,
    send_end,
};
use crate::util::caused_by;
use crate::util::text::list_ranks;
use crate::util::wait::Wait;

pub(super) fn connect(participant: &Participant<'_>) -> Result<Arc<World>> {
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
        .followed_by("; a second job with the same MASTER_PORT needs a DCL_JOB_ID of its own")
}

/// Makes the memory and sends it to the processes that have come.
fn start(participant: &Participant<'_>, members: Vec<Member>) -> Result<Arc<World>> {
    let Participant { world_size, first_rank, rank_count, deadline, .. } = *participant;
    if members.is_empty() {
        return World::in_process(world_size, participant.names());
    }
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut processes = vec![RankProcess { pid, first_rank, rank_count }];
    for Member { channel, claim } in &members {
        let failed = |e| caused_by(error!(System, "a connection to another process failed"), "getsockopt", e);
        let pid = Peer::of(channel).map_err(failed)?.pid;
        processes.push(RankProcess { pid, first_rank: claim.first_rank, rank_count: claim.rank_count });
    }
    let mut channels: Vec<Channel> = members.into_iter().map(|member| member.channel).collect();
    let keep_going = || check_time(deadline, "allocated");
    let size = Segment::root_size(world_size, true);
    let made = WorldFile::create().and_then(|file| Ok((file.allocate(size, processes.len(), &keep_going)?.1, file)));
    let (first, file) = made.inspect_err(|e| send_end(&mut channels, e))?;
    let start = Start { processes: processes.clone(), process_namespace: process_namespace() };
    let frames = [Frame::new(&WireMessage::Step(start))?];
    for index in 1..processes.len() {
        let (channel, deadline) = (&mut channels[index - 1], Instant::now() + HELLO_TIMEOUT);
        let sent = channel.send(&frames, deadline).and_then(|()| wire::send_file(channel, file.as_fd(), deadline));
        let left = || error!(PeerLost, "{} left during the bootstrap", list_ranks(processes[index].ranks()));
        sent.map_err(|e| caused_by(left(), "sendmsg", e)).inspect_err(|e| send_end(&mut channels[index..], e))?;
    }
    let connections = channels.into_iter().map(OwnedFd::from);
    let connections = (1..).zip(connections).collect();
    World::between_processes(WorldMemory::Processes(file), first, processes, 0, connections, true, participant.names())
}
