//! The ranks of this process in a new communicator, and what they share besides its memory.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::memory::world_memory::WorldMemory;
use super::memory::{SharedMemory, SharedMemorySize};
use super::process_monitor::{ProcessMonitor, RankProcess};
use super::protocol::abort_domain::AbortDomain;
use super::protocol::segment::Segment;
use crate::error::Result;
use crate::rank::Rank;

/// What the ranks of this process have in common, from which their backends are made.
pub(crate) struct World {
    pub(crate) root: Arc<Segment>,
    pub(crate) memory: Arc<WorldMemory>,
    /// `None` where all ranks are threads of this process.
    pub(crate) monitor: Option<Arc<ProcessMonitor>>,
}

impl World {
    /// All ranks are threads of this process.
    pub(crate) fn in_process(world_size: u32) -> Result<Self> {
        let root = Arc::new(Segment::in_process(world_size)?);
        Ok(Self::of_one_process(root))
    }

    /// The ranks of `root` are all in this process.
    pub(crate) fn of_one_process(root: Arc<Segment>) -> Self {
        World { root, memory: Arc::new(WorldMemory::of_one_process()), monitor: None }
    }

    /// How much memory the first communicator of a world needs.
    pub(crate) fn memory_size(world_size: u32, spans_processes: bool) -> SharedMemorySize {
        Segment::memory_size(AbortDomain::byte_len(world_size), world_size as usize, spans_processes)
    }

    /// `first` is memory of the length of [`memory_size`](Self::memory_size), which each of
    /// `processes` has mapped. See [`ProcessMonitor::start`] for the others.
    pub(crate) fn between_processes(
        memory: WorldMemory,
        first: SharedMemory,
        processes: Vec<RankProcess>,
        own: usize,
        connections: Vec<Option<UnixStream>>,
        pids_are_ours: bool,
    ) -> Result<Self> {
        let first = Arc::new(first);
        let world_size = processes.iter().map(|process| process.rank_count).sum();
        let domain = Arc::new(AbortDomain::new(&first, world_size, processes[own].ranks()));
        let members = (0..world_size).map(Rank).collect();
        let offset = AbortDomain::byte_len(world_size);
        let root = Segment::new(Arc::clone(&domain), 0, members, first, offset, processes.len() > 1);
        let monitor = ProcessMonitor::start(processes, own, connections, domain, pids_are_ours)?;
        Ok(World { root: Arc::new(root), memory: Arc::new(memory), monitor: Some(Arc::new(monitor)) })
    }
}
