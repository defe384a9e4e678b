//! The ranks of this process in a new communicator, and what they share besides its memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memory::SharedMemory;
use super::memory::world_memory::WorldMemory;
use super::process_monitor::{ProcessMonitor, RankProcess};
use super::protocol::segment::Segment;
use crate::error::Result;
use crate::rank::Rank;

/// What the ranks of this process have in common, from which their backends are made.
pub(crate) struct World {
    pub(crate) root: Arc<Segment>,
    pub(crate) memory: WorldMemory,
    /// Kept so that the monitor thread runs as long as this process has a handle. `None` where all
    /// ranks are threads of this process.
    _monitor: Option<ProcessMonitor>,
}

impl World {
    /// All ranks are threads of this process.
    pub(crate) fn in_process(world_size: u32, names: Option<Box<[Rank]>>) -> Result<Arc<Self>> {
        Ok(Self::of_one_process(Segment::in_process(world_size, names)?))
    }

    /// The ranks of `root` are all in this process.
    pub(crate) fn of_one_process(root: Segment) -> Arc<Self> {
        Arc::new(World { root: Arc::new(root), memory: WorldMemory::of_one_process(), _monitor: None })
    }

    /// `first` is memory of the length of [`Segment::root_size`], which each of `processes` has
    /// mapped. See [`ProcessMonitor::start`] for the others.
    pub(crate) fn between_processes(
        memory: WorldMemory,
        first: SharedMemory,
        processes: Vec<RankProcess>,
        own: usize,
        connections: Vec<(usize, OwnedFd)>,
        pids_are_ours: bool,
        names: Option<Box<[Rank]>>,
    ) -> Result<Arc<Self>> {
        let world_size = processes.iter().map(|process| process.rank_count).sum();
        let root = Arc::new(Segment::root(first, world_size, processes[own].ranks(), true, names));
        let monitor = ProcessMonitor::start(processes, own, connections, Arc::clone(&root.domain), pids_are_ours)?;
        Ok(Arc::new(World { root, memory, _monitor: Some(monitor) }))
    }
}
