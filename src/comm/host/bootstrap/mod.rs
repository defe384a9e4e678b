//! How the processes of a job on one machine become a communicator. Rank 0's process listens on an
//! abstract Unix socket whose name comes from the job; nothing is in the file system. After the
//! [handshake](crate::handshake) it makes the memory of the root segment and sends every process
//! that memory and the list of all processes.

mod peer;
mod rank_0;
#[cfg(test)]
mod tests;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::process_monitor::RankProcess;
use super::world::World;
use crate::error::{Error, Result, bail, error};
use crate::handshake::{Participant, check_own_user, connect_abstract, own_user, refused_user};
use crate::util::text::count_of;

/// The longest message, in bytes, that a peer reads from rank 0 after the handshake. A list of 1024
/// processes has about 10 KiB.
const LONGEST_START: usize = 1 << 20;

/// Rank 0's message when all ranks have come. The memory comes after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Start {
    /// All processes, in the order of their ranks.
    processes: Vec<RankProcess>,
    /// The PID namespace in which the process ids are valid, if rank 0 knows it.
    process_namespace: Option<u64>,
}

/// Connects this process with the other processes of the job. Collective.
///
/// # Errors
///
/// - The process's ranks do not fit the world.
/// - There are other processes, and the process's user may read as another one.
/// - Another user, or another rank 0, has the job's socket.
/// - Processes do not come before the deadline, or contradict rank 0.
/// - There is no memory or no descriptor.
pub(super) fn connect(participant: &Participant<'_>) -> Result<Arc<World>> {
    let Participant { job, world_size, first_rank, rank_count, .. } = *participant;
    if rank_count == 0 || u64::from(first_rank) + u64::from(rank_count) > u64::from(world_size) {
        bail!(
            InvalidArgument,
            "a process with {} from {first_rank} does not fit a world of {world_size}",
            count_of(rank_count as usize, "rank")
        );
    }
    let about = |e: Error| e.about(|| format!("job {job:?}"));
    if rank_count < world_size {
        check_own_user().map_err(about)?;
    }
    let connect = if first_rank == 0 { rank_0::connect } else { peer::connect };
    connect(participant).map_err(about)
}

/// The name of a job's socket: the user, and a hash of the job's text, which may be longer than a
/// socket's name.
fn name_of(job: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(job.as_bytes()).into();
    let hash: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("distcollective-{}-{hash}", own_user())
}

/// Listens at the job's socket.
fn listen_at(job: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name_of(job))?)
}

/// See [`connect_abstract`].
fn connect_to(job: &str) -> rustix::io::Result<UnixStream> {
    connect_abstract(&name_of(job))
}

/// The error of a channel to the job's socket, if a process of another user has taken the name.
fn held_by_another_user(e: &io::Error) -> Option<Error> {
    let uid = refused_user(e)?;
    Some(error!(System, "another user (uid {uid}) holds the name under which this job's processes meet"))
}
