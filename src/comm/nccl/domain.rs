//! What ends together: a communicator of NCCL's and everything that was split from it.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::super::backend::{Backend, SharedGraph};
use super::handle::NcclHandle;
use crate::cuda::{Graph, helper};
use crate::error::{Error, Result};
use crate::util::fork::ProcessGuard;
use crate::util::lock;

/// A communicator and everything that was split from it. An error of one ends all.
pub(super) struct NcclDomain {
    ended: OnceLock<Error>,
    handles: Mutex<Vec<Weak<NcclHandle>>>,
    /// Recorded runs of these communicators. NCCL does not destroy a communicator before its
    /// graphs.
    graphs: Mutex<Vec<Weak<Mutex<Option<Graph>>>>>,
    /// The control communicator: the same ranks on the host, if they are on one machine. NCCL does
    /// not tell a rank that a peer has failed or died; the control communicator does, at once.
    control: Option<Arc<dyn Backend>>,
    /// Whether this library made the first communicator, and did not borrow it.
    is_own: bool,
    process: ProcessGuard,
}

impl NcclDomain {
    pub(super) fn new(control: Option<Arc<dyn Backend>>, is_own: bool) -> Self {
        NcclDomain {
            ended: OnceLock::new(),
            handles: Mutex::default(),
            graphs: Mutex::default(),
            control,
            is_own,
            process: ProcessGuard::current(),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// The error that ended the domain, here or on a peer.
    pub(super) fn check(&self) -> Result<()> {
        // In a forked child, threads that do not exist there may hold NCCL's locks and ours.
        self.process.check("a communicator")?;
        if let Some(error) = self.ended.get() {
            return Err(error.clone());
        }
        self.control.as_ref().map_or(Ok(()), |control| control.check_peers())
    }

    /// The control communicator, if there is one.
    pub(super) fn control(&self) -> Option<&Arc<dyn Backend>> {
        self.control.as_ref()
    }

    /// The error that ended the domain on this rank.
    pub(super) fn ended(&self) -> Option<&Error> {
        self.ended.get()
    }

    /// The error that NCCL has met on any of the communicators.
    pub(super) fn asynchronous_error(&self) -> Result<()> {
        lock(&self.handles).iter().filter_map(Weak::upgrade).try_for_each(|handle| handle.asynchronous_error())
    }

    pub(super) fn add(&self, handle: &Arc<NcclHandle>) {
        let mut handles = lock(&self.handles);
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(handle));
    }

    /// Has a graph destroyed before the communicators are.
    pub(super) fn track_graph(&self, graph: &SharedGraph) {
        let mut graphs = lock(&self.graphs);
        graphs.retain(|graph| graph.strong_count() > 0);
        graphs.push(Arc::downgrade(graph));
    }

    /// Ends all communicators because of this error or an earlier one, and waits, for a bounded
    /// time, until they are aborted.
    pub(super) fn end(&self, error: Error) {
        let handles = self.begin_end(error);
        // Together: one abort may wait for what another communicator still does on the GPU.
        std::thread::scope(|scope| {
            for handle in &handles {
                // Without a thread, one after the other.
                let aborting = std::thread::Builder::new().spawn_scoped(scope, || handle.abort());
                aborting.map_or_else(|_| handle.abort(), drop);
            }
        });
    }

    /// [`end`](Self::end) for a drop: waits for nothing. Helper threads abort the communicators,
    /// and stay behind if an abort hangs. Memory that a communicator may still use is freed by the
    /// device's thread for deferred release, which waits for the GPU first.
    pub(super) fn abandon(&self, error: Error) {
        for handle in self.begin_end(error) {
            helper::detach("ncclCommAbort", move || handle.abort());
        }
    }

    /// Ends the domain on the other ranks and on this one, except for the communicators returned,
    /// which the caller has to abort.
    fn begin_end(&self, error: Error) -> Vec<Arc<NcclHandle>> {
        if let Some(control) = &self.control {
            control.abort(error.kind(), &error.to_string());
        }
        // A forked child has none of its parent's communicators and graphs.
        if self.ended.set(error).is_err() || !self.process.is_current() {
            return Vec::new();
        }
        for graph in lock(&self.graphs).drain(..).filter_map(|graph| graph.upgrade()) {
            // A graph that is being launched is destroyed with its context.
            if let Ok(mut graph) = graph.try_lock() {
                *graph = None;
            }
        }
        lock(&self.handles).iter().filter_map(Weak::upgrade).collect()
    }
}
