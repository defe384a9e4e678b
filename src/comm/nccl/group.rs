//! Collectives that do not depend on each other, in one group: NCCL launches them together.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::super::backend::MAX_GROUPED_CALLS;
use super::NcclBackend;
use super::bindings::*;
use super::handle::Handle;
use super::library::function;
use super::route::Route;
use crate::collective::Call;
use crate::comm::{Communicator, Request};
use crate::cuda::CudaStream;
use crate::error::{Result, error};
use crate::stream::Watch;

/// Collectives on one stream, which are enqueued together.
#[derive(Default)]
pub(crate) struct Group<'a> {
    calls: [Option<Grouped<'a>>; MAX_GROUPED_CALLS],
    len: usize,
}

struct Grouped<'a> {
    backend: &'a NcclBackend,
    call: Call,
    sides: [*mut u8; 2],
}

impl NcclBackend {
    /// Whether a call among so many of these ranks is one of NCCL's and nothing else.
    pub(crate) fn is_direct(&self, call: &Call, rank_count: usize) -> bool {
        // NCCL does not put communicators that block and others into one group; a borrowed one may be either.
        let is_ours = self.family.is_ours;
        is_ours && call.block_elements > 0 && Route::of(call, rank_count, &self.features) == Route::Direct
    }
}

impl<'a> Group<'a> {
    /// Adds a call, which [is direct](NcclBackend::is_direct), on a communicator on GPUs.
    pub(crate) fn add(&mut self, communicator: &'a Communicator, request: &Request<'_>) -> Result<()> {
        communicator.check_request(request)?;
        let sides = [request.input.pointer, request.output.pointer];
        let (Some(backend), Some(place)) = (communicator.as_nccl(), self.calls.get_mut(self.len)) else {
            return Err(error!(System, "a group of collectives that do not fit it"));
        };
        backend.family.check()?;
        *place = Some(Grouped { backend, call: request.signature.call, sides });
        self.len += 1;
        Ok(())
    }

    fn calls(&self) -> impl Iterator<Item = &Grouped<'a>> {
        self.calls.iter().flatten()
    }

    /// Enqueues all of them. An error ends their communicators.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`](crate::comm::Backend::run), for each call.
    pub(crate) unsafe fn enqueue(&self, stream: &Arc<CudaStream>, deadline: Instant) -> Result<()> {
        let Some(first) = self.calls().next() else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe { self.launch(first.backend, stream, deadline) }.map_err(|error| {
            let error = error.about(|| format!("a group of {} collectives", self.len));
            self.calls().for_each(|grouped| drop(grouped.backend.give_up(error.clone())));
            error
        })
    }

    /// Makes the calls between the group's start and its end, with no other thread inside any of the communicators.
    ///
    /// # Safety
    ///
    /// As [`enqueue`](Self::enqueue).
    unsafe fn launch(&self, first: &NcclBackend, stream: &Arc<CudaStream>, deadline: Instant) -> Result<()> {
        let library = first.handle.library;
        let (start, end) = (function!(library, ncclGroupStart)?, function!(library, ncclGroupEnd)?);
        let mut held: [Option<MutexGuard<'_, bool>>; MAX_GROUPED_CALLS] = Default::default();
        let mut last = 0;
        for place in &mut held {
            // Each once, and in one order, so that threads with several groups do not wait for each other in a circle.
            let address = |handle: &Arc<Handle>| Arc::as_ptr(handle).addr();
            let handles = self.calls().map(|grouped| &grouped.backend.handle);
            let Some(next) = handles.filter(|handle| address(handle) > last).min_by_key(|handle| address(handle))
            else {
                break;
            };
            last = address(next);
            *place = Some(next.hold()?);
        }
        let _current = first.handle.device.enter()?;
        // SAFETY: a group is the thread's own; the caller's promise.
        let result = unsafe {
            let mut result = start();
            let mut failed = Ok(());
            for Grouped { backend, call, sides } in self.calls() {
                if result != ncclSuccess || failed.is_err() {
                    break;
                }
                match backend.call_in_group(call, *sides, stream) {
                    Ok(answer) if answer == ncclInProgress => {}
                    Ok(answer) => result = answer,
                    Err(error) => failed = Err(error),
                }
            }
            // A group that was begun is ended, whatever happened in it.
            let ended = end();
            failed?;
            if result == ncclSuccess { ended } else { result }
        };
        // What NCCL still does, it does for each communicator by itself.
        self.calls().try_for_each(|Grouped { backend, .. }| {
            backend.handle.settle("ncclGroupEnd", result, deadline, &|| backend.family.check())
        })
    }
}
