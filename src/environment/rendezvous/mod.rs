//! The rendezvous of a job's ranks: what has to reach every rank before there is a communicator
//! goes through rank 0, over TCP or MPI.
//!
//! Over MPI those take part that the launcher has started. Over TCP, rank 0 listens at a host and
//! port that every rank was given, or on a port of the system's choice that it writes into a file.
//! The others connect to it. The [handshake](crate::handshake) lets in processes that know the
//! job's text, the secret where there is one, and the file's nonce where there is a file. After it
//! every message has a tag, and one with a wrong tag ends the rendezvous.
//!
//! Without a secret, a process that reaches the port and guesses the job's text can take part. A
//! network that is not trusted needs a secret (`DCL_SECRET`), and a long random one: an attacker
//! who listens there can try guesses offline.

mod exchange;
mod file;
mod peer;
mod tcp;
#[cfg(test)]
mod tests;

use std::time::Instant;

use exchange::RendezvousMessage;

use super::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::handshake::{
    Channel, EndReason, Frame, Key, Listener, Participant, PeerGathering, WireMessage, random_text, send_end,
};
use crate::mpi::{self, Launched, Meeting, MpiCommunicator};
use crate::util::interrupt;

/// The most ranks of a rendezvous. Rank 0 holds a connection, and so a file descriptor, for each of
/// the others; Linux gives a process no more than 2^20 of them unless the administrator raises
/// that, and 1024 unless the user does.
pub(super) const MAX_RANKS: u32 = 1 << 16;

/// How many random bytes name a rendezvous.
const NONCE_BYTES: usize = 16;

/// All ranks of a job. Every process has one rank.
pub(super) struct Rendezvous {
    rank: u32,
    world_size: u32,
    nonce: String,
    connections: Connections,
}

enum Connections {
    /// On rank 0 those to all others, in order; on another rank that to rank 0.
    Tcp(Vec<Channel>),
    Mpi(Meeting),
}

impl Rendezvous {
    /// Connects the ranks of the job. Collective. Besides ranks that do not come or contradict each
    /// other, rank 0's port or file may be taken, and a message may have a wrong tag.
    pub(super) fn join(endpoint: &Endpoint, participant: &Participant<'_>) -> Result<Self> {
        let Participant { first_rank: rank, world_size, .. } = *participant;
        if rank >= world_size {
            bail!(InvalidArgument, "rank {rank} is not one of {world_size}");
        }
        if world_size > MAX_RANKS {
            bail!(
                InvalidArgument,
                "world_size is {world_size}; ranks that meet over TCP or through a file are at most {MAX_RANKS}"
            );
        }
        if let Endpoint::Mpi(launcher) = endpoint {
            let launched = Launched { rank, world_size, launcher };
            return Self::over_mpi(launched, participant.deadline);
        }
        let (channels, nonce) = if rank == 0 {
            let nonce = random_text::<NONCE_BYTES>()?;
            (gather_peers(endpoint, participant, &nonce)?, nonce)
        } else {
            let (channel, nonce) = peer::connect(endpoint, participant)?;
            (vec![channel], nonce)
        };
        Ok(Rendezvous { rank, world_size, nonce, connections: Connections::Tcp(channels) })
    }

    fn over_mpi(launched: Launched<'_>, deadline: Instant) -> Result<Self> {
        let Launched { rank, world_size, .. } = launched;
        let instead = |error: Error| error.followed_by("; with MASTER_ADDR and MASTER_PORT set, ranks meet over TCP");
        let world = mpi::check().and_then(|()| MpiCommunicator::world(Some(launched), deadline));
        let mut meeting = Meeting::new(world.map_err(instead)?);
        let nonces = meeting.exchange(random_text::<NONCE_BYTES>()?.as_bytes(), deadline)?;
        let nonce = String::from_utf8_lossy(&nonces[0]).into_owned();
        Ok(Rendezvous { rank, world_size, nonce, connections: Connections::Mpi(meeting) })
    }

    /// MPI's communicator of these ranks: that over which they have met, or a new one. Collective.
    pub(super) fn into_mpi(self, launched: Launched<'_>, deadline: Instant) -> Result<MpiCommunicator> {
        let meeting = match self.connections {
            Connections::Tcp(_) => Meeting::new(MpiCommunicator::world(Some(launched), deadline)?),
            Connections::Mpi(meeting) => meeting,
        };
        Ok(meeting.into_communicator())
    }

    /// The connections over TCP, on which nothing more is to come from the meeting: on rank 0 those
    /// with all others, in order; on another rank that with rank 0.
    pub(super) fn into_channels(self) -> Result<Vec<Channel>> {
        match self.connections {
            Connections::Tcp(channels) => Ok(channels),
            Connections::Mpi(_) => bail!(System, "ranks that meet over MPI have no connections over TCP"),
        }
    }

    /// A text that is the same on all ranks and different in every other rendezvous.
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Gives every rank every rank's part, in the order of ranks. Collective. A rank returns when
    /// rank 0 has told it that all ranks have received all parts. So an error on one rank is an
    /// error on all, unless it concerns only that last message. After an error the rendezvous has
    /// ended.
    pub(super) fn exchange(&mut self, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let channels = match &mut self.connections {
            Connections::Tcp(channels) => channels,
            Connections::Mpi(meeting) => return meeting.exchange(part, deadline),
        };
        let exchanged = match self.rank {
            0 => exchange::on_rank_0(channels, part, deadline),
            _ => exchange::on_peer(&mut channels[0], self.world_size, part, deadline),
        };
        exchanged.inspect_err(|error| {
            send_end(&mut *channels, error);
            if self.rank != 0 {
                channels.iter().for_each(Channel::shut_down);
            }
        })
    }
}

/// Rank 0's part of [`Rendezvous::join`]. Over TCP a world of one opens no socket.
fn gather_peers(endpoint: &Endpoint, participant: &Participant<'_>, nonce: &str) -> Result<Vec<Channel>> {
    let (listener, announcement) = match endpoint {
        Endpoint::Tcp { .. } if participant.world_size == 1 => return Ok(Vec::new()),
        Endpoint::Tcp { host, port } => (tcp::listen(host, *port, participant.deadline)?, None),
        Endpoint::Mpi(_) => bail!(System, "no rank listens for those that meet over MPI"),
        Endpoint::File(path) => {
            let listener = tcp::listen_at_first(tcp::ANY, 0)?;
            let address =
                listener.local_addr().map_err(|e| error!(System, "a socket without address").with_source(e))?;
            (listener, Some(file::announce(path, address.port())?))
        }
    };
    let listener = Listener::tcp(listener).map_err(|e| error!(System, "rank 0 cannot listen: {e}").with_source(e))?;
    let gathering = PeerGathering {
        listener: &listener,
        participant,
        key: &Key::new(participant, announcement.as_ref().map(|file| &file.nonce))?,
        nonce,
        subject: String::new(),
        destination: format!(" to {endpoint}"),
    };
    let gathered = gathering.run().map_err(|error| match endpoint {
        Endpoint::Tcp { host, .. } if error.kind() == ErrorKind::DeadlineExceeded && tcp::is_elsewhere(host) => {
            error.followed_by(&format!("; {host} is no address of this machine, where rank 0 is"))
        }
        _ => error,
    });
    let mut channels: Vec<Channel> = gathered?.into_iter().map(|member| member.channel).collect();
    // From here on the kernel refuses connections of processes that come too late, and the file is
    // gone.
    drop((listener, announcement));
    exchange::send_to_all(
        &mut channels,
        &[Frame::new(&WireMessage::Step(RendezvousMessage::Complete))?],
        participant.deadline,
    )
    .inspect_err(|error| send_end(&mut channels, error))?;
    Ok(channels)
}

/// Why an attempt did not lead to rank 0.
enum AttemptError {
    /// Another attempt may succeed.
    Passing(String),
    Final(Error),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        AttemptError::Final(error)
    }
}

impl From<std::io::Error> for AttemptError {
    fn from(error: std::io::Error) -> Self {
        interrupt::of_io(&error).map_or_else(|| AttemptError::Passing(error.to_string()), AttemptError::Final)
    }
}

/// The error of a rank that `rank` told that it ends the rendezvous.
fn ended(end: EndReason, rank: u32) -> Error {
    let kind = end.cause.kind(ErrorKind::PeerLost);
    match rank {
        // Rank 0 says on which rank the error was.
        0 => Error::new(kind, end.reason),
        _ => Error::new(kind, format!("rank {rank} ended the rendezvous: {}", end.reason)),
    }
}

/// The error of a rank that gets nothing more from rank `rank`.
fn lost(rank: u32, e: std::io::Error) -> Error {
    if let Some(interrupted) = interrupt::of_io(&e) {
        return interrupt::ended(&interrupted, format_args!("while it waited for rank {rank}"));
    }
    let error = match e.kind() {
        std::io::ErrorKind::InvalidData => error!(
            PeerLost,
            "a message from rank {rank} has a wrong tag: messages were altered, repeated or left out on the way"
        ),
        _ => error!(PeerLost, "rank {rank} was lost: {e}"),
    };
    error.with_source(e)
}

fn out_of_turn() -> std::io::Error {
    std::io::Error::other("it sent a message out of turn")
}
