//! Collectives that do not depend on each other, in one group: NCCL launches them together.

use std::any::Any;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::super::backend::{Checked, MAX_GROUPED_CALLS};
use super::NcclBackend;
use super::access::{Stage, Stay};
use super::calls::{Steps, in_group};
use super::handle::NcclHandle;
use super::sys::*;
use crate::error::{Result, bail};
use crate::stream::Watch;

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
    if group.len() > MAX_GROUPED_CALLS {
        bail!(System, "a group has at most {MAX_GROUPED_CALLS} collectives");
    }
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
    unsafe { Steps { backend, request, call: &request.call, stream }.call_in_group(sides) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Call, Collective};
    use crate::comm::backend::Request;
    use crate::data_type::DataType;
    use crate::memory::Address;

    #[test]
    fn a_group_that_is_too_long_is_an_error() {
        let call = Call::of_blocks(Collective::AllGather, DataType::Int8, 0);
        let sides = [Address::host(std::ptr::null()); 2];
        let request = Request::new(call, sides, Instant::now());
        let group = [Checked { backend: None, request: &request }; MAX_GROUPED_CALLS + 1];
        // SAFETY: the calls have no elements.
        let error = unsafe { run(&group) }.expect_err("the group is too long");
        assert_eq!(error.to_string(), "a group of 9 collectives: a group has at most 8 collectives");
        // SAFETY: as above.
        unsafe { run(&group[1..]) }.expect("the group has no call of NCCL's");
    }
}
