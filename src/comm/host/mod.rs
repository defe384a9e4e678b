//! The host backend: ranks of one machine, threads of one process or of several.
//!
//! A call of a rank comes in through [`backend`] and has these phases, which ARCHITECTURE.md
//! follows step by step:
//!
//! 1. *Room.* The rank waits until every peer has read the header that its new one replaces.
//! 2. *Header.* The rank posts a header: number, signature, and its input or where its buffers are.
//! 3. *Agreement.* The rank waits for those peers whose elements it takes, and compares headers.
//! 4. *Transfer.* The elements move in one of four ways.
//! 5. *End.* The rank waits until no peer touches its buffers any more.
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
//! docs/src/internals.md lists the invariants of the protocol by the numbers that comments cite.

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
use crate::rank::Rank;

pub(crate) use backend::HostBackend;
pub(crate) use system::{MAX_RANKS, most_processes};

/// The ranks of a new communicator, all of them threads of this process. `names` are for errors, if
/// they are not the ranks' numbers.
pub(crate) fn in_process(world_size: u32, names: Option<Box<[Rank]>>) -> Result<Vec<HostBackend>> {
    Ok(HostBackend::of_world(&world::World::in_process(world_size, names)?, 0..world_size))
}

/// This process's ranks of a communicator between processes.
pub(crate) fn between_processes(participant: &Participant<'_>) -> Result<Vec<HostBackend>> {
    let world = bootstrap::connect(participant)?;
    Ok(HostBackend::of_world(&world, participant.first_rank..participant.first_rank + participant.rank_count))
}
