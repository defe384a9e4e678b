//! What all of this library's calls of MPI share, and their end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::abi::HandleNumber;
use super::api::MpiRequest;
use super::library::MpiLibrary;
use crate::error::{Error, Result, error};
use crate::util::bytes::Bytes;
use crate::util::lock;

/// How long a program that finalizes MPI waits until messages are on their way.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// For how long MPI is called after it has taken the last message of a rank that leaves: it may
/// have buffered that.
pub(super) const SETTLE_TIME: Duration = Duration::from_millis(5);

/// A message that MPI has not sent yet, or one that it receives for no communicator.
pub(super) struct Pending {
    pub(super) library: &'static MpiLibrary,
    pub(super) request: MpiRequest,
    pub(super) bytes: Bytes,
    /// Of the communicator that sends it.
    pub(super) unsent: Arc<AtomicUsize>,
}

impl MpiEngine {
    /// Drops what has ended. Returns whether that is anything.
    pub(super) fn reap(&mut self) -> Result<bool> {
        let before = self.pending.len();
        let mut failed = Ok(());
        self.pending.retain_mut(|pending| {
            // SAFETY: the lock is held, MPI has not ended, and the bytes live.
            match unsafe { pending.library.api.has_ended(&mut pending.request) } {
                Ok(false) => true,
                Ok(true) => {
                    pending.unsent.fetch_sub(size_of_val(pending.bytes.words()), Ordering::Relaxed);
                    false
                }
                Err(error) => {
                    failed = Err(error);
                    true
                }
            }
        });
        failed.map(|()| self.pending.len() < before)
    }

    /// Begins to receive all that has come. Returns whether that is anything.
    pub(super) fn discard(&mut self) -> Result<bool> {
        let (library, before) = (MpiLibrary::find()?, self.pending.len());
        for handle in &self.duplicates {
            // SAFETY: the lock is held, and MPI has not ended. The words live until the request
            // has.
            while let Some(probed) = unsafe { library.api.probe(*handle)? } {
                let mut bytes = Bytes::of_words(probed.word_count)?;
                let unsent = Arc::new(AtomicUsize::new(size_of_val(bytes.words())));
                // SAFETY: as above.
                let request = unsafe { library.api.receive(&probed, bytes.words())? };
                self.pending.push(Pending { library, request, bytes, unsent });
            }
        }
        Ok(self.pending.len() > before)
    }
}

/// What all of this library's calls of MPI share. One thread at a time makes them.
pub(super) struct MpiEngine {
    /// What MPI has not sent yet, of all communicators, and what it receives for none.
    pub(super) pending: Vec<Pending>,
    /// All communicators.
    pub(super) duplicates: Vec<HandleNumber>,
}

static ENGINE: Mutex<MpiEngine> = Mutex::new(MpiEngine { pending: Vec::new(), duplicates: Vec::new() });

/// Whether MPI is being finalized.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// The right to call MPI. It fails after MPI has ended.
pub(super) fn enter() -> Result<MutexGuard<'static, MpiEngine>> {
    still_works(lock(&ENGINE))
}

/// [`enter`], unless another thread calls MPI now.
pub(super) fn try_enter() -> Option<Result<MutexGuard<'static, MpiEngine>>> {
    match ENGINE.try_lock() {
        Ok(engine) => Some(still_works(engine)),
        Err(TryLockError::Poisoned(poisoned)) => Some(still_works(poisoned.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The error of calls after the program has finalized MPI.
pub(crate) fn finalized() -> Error {
    error!(NotReady, "the program has finalized MPI, which moves the elements between machines")
}

fn still_works(engine: MutexGuard<'static, MpiEngine>) -> Result<MutexGuard<'static, MpiEngine>> {
    if HAS_ENDED.load(Ordering::Acquire) {
        return Err(finalized());
    }
    Ok(engine)
}

/// Ends the calls of MPI, whose `MPI_Finalize` has begun.
pub(super) fn end() {
    let end = Instant::now() + FLUSH_TIME;
    let mut idle_since = Instant::now();
    while let Ok(mut engine) = enter() {
        // What no communicator has received, so that MPI does not warn of it.
        let has_moved = engine.discard().and_then(|has_come| Ok(engine.reap()? || has_come));
        if has_moved.as_ref().is_ok_and(|has_moved| *has_moved) {
            idle_since = Instant::now();
        }
        let is_over = engine.pending.is_empty() && idle_since.elapsed() >= SETTLE_TIME;
        if is_over || has_moved.is_err() || Instant::now() >= end {
            HAS_ENDED.store(true, Ordering::Release);
            // MPI may still use their memory.
            std::mem::forget(std::mem::take(&mut engine.pending));
        }
        drop(engine);
        std::thread::yield_now();
    }
}
