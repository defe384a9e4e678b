//! The host backend: ranks of one machine, threads of one process or of several.
//!
//! A call of a rank comes in through [`backend`] and has these phases:
//!
//! 1. *Room.* The rank's slot keeps the headers of its latest calls. The rank waits until every
//!    peer has read the header that the new one replaces.
//! 2. *Header.* The rank posts a header in its slot: number, signature, and its input if that is
//!    small, otherwise the locations of its buffers.
//! 3. *Agreement.* The rank waits for the headers of those peers whose elements it takes, and
//!    compares all headers that are there. A rank that only gives does not wait here.
//! 4. *Transfer.* Small inputs are in the headers, or in eager memory, which has a place for each
//!    header (`transfer/copies.rs`). Where peers reach each other's buffers they read and write
//!    them in place (`transfer/direct.rs`): threads of one process, and processes in symmetric
//!    memory. Other elements go through staging memory (`transfer/staged.rs`).
//! 5. *End.* After a direct transfer the rank waits until no peer touches its buffers any more. A
//!    rank that fails aborts all communicators of its abort domain, and waits for peers that are
//!    inside a copy.
//!
//! | folder or file | what is there |
//! |---|---|
//! | [`protocol`] | slots and headers, waiting, aborts, phases 1 to 3 and 5 |
//! | [`transfer`] | phase 4 |
//! | [`messages`] | sends and receives, which take none of these phases |
//! | [`memory`] | the world's memory, and symmetric blocks |
//! | `bootstrap`, `wire` | how processes find each other, and their messages |
//! | `world`, `process_monitor` | what a process's ranks share; peers' deaths |
//!
//! ARCHITECTURE.md lists the invariants of the protocol by the numbers that comments cite.

mod arena;
mod backend;
mod bootstrap;
mod memory;
mod messages;
mod own_rank;
mod process_monitor;
mod protocol;
mod system;
#[cfg(test)]
mod tests;
mod transfer;
mod wire;
mod world;

use crate::error::Result;
use crate::handshake::Participant;

pub(crate) use backend::HostBackend;
pub(crate) use system::{MAX_RANKS, most_processes};

/// The ranks of a new communicator, all of them threads of this process.
pub(crate) fn in_process(world_size: u32) -> Result<Vec<HostBackend>> {
    Ok(HostBackend::of_world(&world::World::in_process(world_size)?, 0..world_size))
}

/// This process's ranks of a communicator between processes.
pub(crate) fn between_processes(participant: &Participant<'_>) -> Result<Vec<HostBackend>> {
    let world = bootstrap::connect(participant)?;
    Ok(HostBackend::of_world(&world, participant.first_rank..participant.first_rank + participant.rank_count))
}
