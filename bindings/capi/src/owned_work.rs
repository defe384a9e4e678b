//! Work that hands its operands back: a run its bindings, a broadcast its dictionary.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dcl::context::Bindings;
use dcl::stream::EnqueueError;
use dcl::{TensorDict, Work};

use super::status::{Result, lock};

/// Bindings, each with the version of the addresses that it is bound to.
pub(super) type FreeBindings = Mutex<Vec<(u64, Bindings)>>;

/// A run, and the list that receives its bindings when it is done.
pub(super) struct RunWork {
    pub(super) work: Work<Bindings>,
    pub(super) version: u64,
    pub(super) free: Arc<FreeBindings>,
}

impl RunWork {
    /// Waits for the run, and gives its result; or the run itself if it goes on.
    pub(super) fn wait(self, timeout: Duration) -> Result<Result<()>, Box<Self>> {
        let RunWork { work, version, free } = self;
        let (bindings, result) = match work.wait_timeout(timeout) {
            Ok(Ok(bindings)) => (bindings, Ok(())),
            Ok(Err(EnqueueError { error, operands })) => (*operands, Err(error.into())),
            Err(work) => return Err(Box::new(RunWork { work, version, free })),
        };
        lock(&free).push((version, bindings));
        Ok(result)
    }
}

/// A broadcast on a stream. The handles of the work and of the dictionary share it, so the
/// dictionary comes back when the broadcast has ended, whichever handle is freed first.
pub(super) struct BroadcastWork(Mutex<State>);

enum State {
    Pending(Work<TensorDict>),
    /// A call waits for it, without the lock.
    Awaited,
    Ended {
        result: Result<()>,
        /// Until the dictionary's handle takes it.
        dict: Option<TensorDict>,
    },
}

impl State {
    /// The state after a wait for the work.
    fn after(work: Work<TensorDict>, timeout: Duration) -> Self {
        match work.wait_timeout(timeout) {
            Ok(Ok(dict)) => State::Ended { result: Ok(()), dict: Some(dict) },
            Ok(Err(EnqueueError { error, operands })) => {
                State::Ended { result: Err(error.into()), dict: Some(*operands) }
            }
            Err(work) => State::Pending(work),
        }
    }

    /// The result; `None` if the broadcast goes on.
    fn result(&self) -> Option<Result<()>> {
        match self {
            State::Ended { result, .. } => Some(result.clone()),
            _ => None,
        }
    }
}

impl BroadcastWork {
    pub(super) fn new(work: Work<TensorDict>) -> Self {
        BroadcastWork(Mutex::new(State::Pending(work)))
    }

    pub(super) fn is_done(&self) -> bool {
        match &*lock(&self.0) {
            State::Pending(work) => work.is_done(),
            State::Awaited => false,
            State::Ended { .. } => true,
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        match &*lock(&self.0) {
            State::Pending(work) => work.is_settled(),
            State::Awaited => false,
            State::Ended { .. } => true,
        }
    }

    pub(super) fn check_wait(&self) -> Result<()> {
        match &*lock(&self.0) {
            State::Pending(work) => Ok(work.check_wait()?),
            _ => Ok(()),
        }
    }

    /// Waits for the broadcast, and gives its result; `None` if it goes on. One call waits at a
    /// time: the owner of the work's handle, or the stream.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Result<()>> {
        let before = std::mem::replace(&mut *lock(&self.0), State::Awaited);
        let after = match before {
            State::Pending(work) => State::after(work, timeout),
            other => other,
        };
        let result = after.result();
        *lock(&self.0) = after;
        result
    }

    /// Takes the dictionary of a broadcast that has ended; `None` if it goes on.
    pub(super) fn take_back(&self) -> Result<Option<TensorDict>> {
        let state = &mut *lock(&self.0);
        if let State::Pending(work) = state
            && work.is_done()
        {
            work.check_wait()?;
            if let State::Pending(work) = std::mem::replace(state, State::Awaited) {
                *state = State::after(work, Duration::ZERO);
            }
        }
        match state {
            State::Ended { dict, .. } => Ok(dict.take()),
            _ => Ok(None),
        }
    }
}
