//! Collectives that do not depend on each other, in one group: NCCL launches them together.

use std::any::Any;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::super::backend::{Checked, MAX_GROUPED_CALLS};
use super::NcclBackend;
use super::access::{Stage, Stay};
use super::calls::Steps;
use super::handle::NcclHandle;
use super::sys::*;
use crate::error::{Result, bail};
use crate::stream::Watch;

/// Makes a call of NCCL's for each item, in one group of this thread, up to the first that fails. A
/// group that was begun is ended, whatever happened in it.
///
/// # Safety
///
/// The thread has the communicators of the calls, until the group has ended.
pub(super) unsafe fn in_group<T>(
    items: impl IntoIterator<Item = T>,
    mut call: impl FnMut(T) -> Result<ncclResult_t>,
) -> Result<ncclResult_t> {
    // SAFETY: the caller's promise.
    let mut result = Ok(unsafe { ncclGroupStart() });
    for item in items {
        if !result.as_ref().is_ok_and(|result| is_well(*result)) {
            break;
        }
        result = call(item);
    }
    // SAFETY: as above.
    let ended = unsafe { ncclGroupEnd() };
    result.map(|result| if is_well(result) { ended } else { result })
}

/// Whether a call has not failed.
pub(super) fn is_well(result: ncclResult_t) -> bool {
    result == ncclSuccess || result == ncclInProgress
}

/// Enqueues the calls of a group. An error ends their communicators.
///
/// # Safety
///
/// As [`Backend::run`](super::super::backend::Backend::run).
pub(super) unsafe fn run(group: &[Checked<'_>]) -> Result<()> {
    backends(group).try_for_each(|backend| backend.domain.check())?;
    // SAFETY: the caller's promise.
    unsafe { launch(group) }.map_err(|error| {
        let error = error.about(|| format!("a group of {} collectives", group.len()));
        backends(group).for_each(|backend| drop(backend.fail(error.clone())));
        error
    })
}

/// The communicators of a group, call by call.
fn backends<'a>(group: &'a [Checked<'_>]) -> impl Iterator<Item = &'a NcclBackend> {
    group.iter().filter_map(backend_of)
}

/// The communicators of a group have one origin, so they are all NCCL's.
fn backend_of<'a>(call: &Checked<'a>) -> Option<&'a NcclBackend> {
    let backend: &dyn Any = call.backend?;
    backend.downcast_ref()
}

/// Makes the calls between the group's start and its end, with no other thread inside any of the
/// communicators.
///
/// # Safety
///
/// As [`run`].
unsafe fn launch(group: &[Checked<'_>]) -> Result<()> {
    let Some(first) = backends(group).next() else { return Ok(()) };
    let mut held: [Option<MutexGuard<'_, Stage>>; MAX_GROUPED_CALLS] = Default::default();
    let mut stays: [Option<Stay<'_>>; MAX_GROUPED_CALLS] = Default::default();
    // NCCL takes all calls in together.
    let deadline = group.iter().map(|call| call.request.deadline).max().unwrap_or_else(Instant::now);
    let mut last = 0;
    for (place, stay) in held.iter_mut().zip(&mut stays) {
        // Each once, and in one order, so that two threads with groups do not wait for each other.
        let address = |handle: &Arc<NcclHandle>| Arc::as_ptr(handle).addr();
        let handles = backends(group).map(|backend| &backend.handle);
        let Some(next) = handles.filter(|handle| address(handle) > last).min_by_key(|handle| address(handle)) else {
            break;
        };
        last = address(next);
        *place = Some(next.hold(deadline)?);
        *stay = Some(next.stay(deadline));
    }
    let _current = first.handle.device.enter()?;
    // SAFETY: a group is the thread's own; the caller's promise.
    let result = unsafe { in_group(group, |call| call_in_group(call))? };
    drop(stays);
    // What NCCL still does, it does for each communicator by itself.
    group.iter().try_for_each(|call| {
        let Some(backend) = backend_of(call) else { return Ok(()) };
        let alive = || backend.domain.check();
        backend.handle.settle("ncclGroupEnd", result, call.request.deadline, &alive)
    })
}

/// Makes NCCL's call of one collective of a group.
///
/// # Safety
///
/// As [`run`]; the thread holds the communicator.
unsafe fn call_in_group(call: &Checked<'_>) -> Result<ncclResult_t> {
    let request = call.request;
    let (Some(backend), Some(stream)) = (backend_of(call), request.stream) else {
        bail!(System, "a group of NCCL's has a call that is not on a CUDA stream");
    };
    let sides = [request.input.pointer, request.output.pointer];
    // SAFETY: the caller's promise.
    unsafe { Steps { backend, call: &request.call, stream, deadline: request.deadline }.call_in_group(sides) }
}
