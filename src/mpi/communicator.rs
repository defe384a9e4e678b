//! A communicator of MPI that is this library's own: a duplicate. Messages are words, so that one
//! of 16 GiB has a count that fits an `int`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::abi::HandleNumber;
use super::api::{MpiPhase, MpiRequest};
use super::engine::{Pending, SETTLE_TIME, enter, try_enter};
use super::library::MpiLibrary;
use super::start::{Launched, initialized};
use crate::error::{Result, bail};
use crate::util::bytes::Bytes;
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::wait::Wait;

/// The bits of a message's first word that say how many bytes of the last word do not count.
const PADDING_BITS: u32 = 3;

/// A message that comes, or has come.
struct IncomingMessage {
    from: u32,
    bytes: Bytes,
    /// `None` when it is whole.
    request: Option<MpiRequest>,
}

/// A message that has come whole.
pub(crate) struct MpiArrival {
    pub(crate) from: u32,
    pub(crate) label: u64,
    pub(crate) bytes: Bytes,
}

/// One rank of a communicator of MPI. It is never freed, since another rank's last message may come
/// at any time, and MPI would give it to the next communicator that has the same number.
pub(crate) struct MpiCommunicator {
    library: &'static MpiLibrary,
    handle: HandleNumber,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// How many bytes MPI has not sent yet.
    unsent: Arc<AtomicUsize>,
    incoming: Mutex<VecDeque<IncomingMessage>>,
    /// What came before it was wanted.
    early: Mutex<Vec<MpiArrival>>,
    process: ProcessGuard,
}

impl MpiCommunicator {
    /// A duplicate of `MPI_COMM_WORLD`, in which the ranks have to be those of the launcher.
    /// Collective.
    pub(crate) fn world(launched: Option<Launched<'_>>, deadline: Instant) -> Result<Self> {
        let library = initialized(deadline)?;
        let world = library.api.world();
        if let Some(Launched { rank, world_size, launcher }) = launched {
            let _engine = enter()?;
            // SAFETY: MPI is initialized, and with the lock held it does not end.
            let (own, size) = unsafe { library.api.rank_and_size(world)? };
            if (own, size) != (rank, world_size) {
                bail!(
                    Unsupported,
                    "by {} ({}) this is rank {own} of {size}, and by the launcher ({launcher}) rank {rank} of {world_size}: an \
                     MPI has the ranks that its own mpirun starts, or srun with a --mpi that it knows; use the launcher of \
                     that MPI, or have the lib folder of the launcher's MPI in LD_LIBRARY_PATH",
                    library.file,
                    library.version
                );
            }
        }
        // SAFETY: it is a communicator of every process.
        unsafe { Self::duplicate(library, world, deadline) }
    }

    /// A duplicate of the caller's communicator. Collective.
    ///
    /// # Safety
    ///
    /// It is a communicator of the MPI that the process has loaded.
    pub(crate) unsafe fn of_raw(handle: HandleNumber, deadline: Instant) -> Result<Self> {
        if !MpiLibrary::is_loaded() || MpiLibrary::find()?.api.phase() == MpiPhase::New {
            bail!(NotReady, "MPI is not initialized in this process, and has no communicators before");
        }
        let library = initialized(deadline)?;
        if library.api.is_null(handle) {
            bail!(InvalidArgument, "the communicator of MPI is MPI_COMM_NULL");
        }
        // SAFETY: the caller's promise.
        unsafe { Self::duplicate(library, handle, deadline) }
    }

    /// # Safety
    ///
    /// It is a communicator of this library.
    unsafe fn duplicate(library: &'static MpiLibrary, handle: HandleNumber, deadline: Instant) -> Result<Self> {
        // If the duplication does not end, MPI may write it later.
        let copy: *mut HandleNumber = Box::leak(Box::new(0));
        drop(enter()?);
        // SAFETY: MPI is initialized, and the caller's promise. The lock is not held: MPI may call
        // what the program has attached to its communicator.
        let ((rank, size), mut request) =
            unsafe { (library.api.rank_and_size(handle)?, library.api.duplicate(handle, copy)?) };
        let warning =
            |seconds| format!("rank {rank} has waited for {seconds} s until all duplicate MPI's communicator");
        let mut wait = Wait::until(deadline).warning(&warning);
        loop {
            let engine = enter()?;
            // SAFETY: as above.
            if unsafe { library.api.has_ended(&mut request)? } {
                break;
            }
            drop(engine);
            wait.pause().map_err(|stopped| {
                let late = "not all ranks came to duplicate MPI's communicator before the deadline";
                stopped.error("while not all ranks had come to duplicate MPI's communicator", late)
            })?;
        }
        let mut engine = enter()?;
        // SAFETY: as above; MPI has written the handle, and does not use the memory any more.
        let handle = unsafe {
            let handle = library.api.duplicated(copy)?;
            drop(Box::from_raw(copy));
            handle
        };
        engine.duplicates.push(handle);
        Ok(MpiCommunicator {
            library,
            handle,
            rank,
            size,
            unsent: Arc::default(),
            incoming: Mutex::default(),
            early: Mutex::default(),
            process: ProcessGuard::current(),
        })
    }

    /// Begins to send a message to another rank. `label` has at most 61 bits.
    pub(crate) fn send(&self, to: u32, label: u64, mut bytes: Bytes) -> Result<()> {
        bytes.words()[0] = label << PADDING_BITS | bytes.padding() as u64;
        let mut engine = enter()?;
        // SAFETY: MPI is initialized, and with the lock held it does not end. The words live until
        // the request has ended.
        let request = unsafe { self.library.api.send(bytes.words(), to, self.handle)? };
        self.unsent.fetch_add(size_of_val(bytes.words()), Ordering::Relaxed);
        engine.pending.push(Pending { library: self.library, request, bytes, unsent: Arc::clone(&self.unsent) });
        Ok(())
    }

    /// Moves messages along, and appends those that have come, each rank's in the order in which it
    /// sent them. Does nothing while another thread calls MPI. Returns whether anything has moved.
    pub(crate) fn progress(&self, arrivals: &mut Vec<MpiArrival>) -> Result<bool> {
        let Some(engine) = try_enter() else { return Ok(false) };
        let mut engine = engine?;
        let (api, before) = (&self.library.api, arrivals.len());
        arrivals.append(&mut lock(&self.early));
        let has_sent = engine.reap()?;
        let mut incoming = lock(&self.incoming);
        // SAFETY: MPI is initialized, and with the lock held it does not end. The words live until
        // the request has ended.
        unsafe {
            while let Some(probed) = api.probe(self.handle)? {
                let mut bytes = Bytes::of_words(probed.word_count)?;
                let request = Some(api.receive(&probed, bytes.words())?);
                incoming.push_back(IncomingMessage { from: probed.from, bytes, request });
            }
            for message in &mut *incoming {
                if let Some(request) = &mut message.request
                    && api.has_ended(request)?
                {
                    message.request = None;
                }
            }
        }
        drop(engine);
        let mut late: Vec<u32> = Vec::new();
        for IncomingMessage { from, mut bytes, request } in std::mem::take(&mut *incoming) {
            if request.is_some() || late.contains(&from) {
                late.push(from);
                incoming.push_back(IncomingMessage { from, bytes, request });
                continue;
            }
            let first = bytes.words()[0];
            bytes.shorten((first & ((1 << PADDING_BITS) - 1)) as usize);
            arrivals.push(MpiArrival { from, label: first >> PADDING_BITS, bytes });
        }
        Ok(has_sent || arrivals.len() > before)
    }

    /// Lets the next [`progress`](Self::progress) give these messages.
    pub(super) fn put_back(&self, arrivals: Vec<MpiArrival>) {
        lock(&self.early).extend(arrivals);
    }

    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Waits until MPI has sent all messages of this communicator, for a bounded time.
    pub(crate) fn flush(&self, time: Duration) {
        let begin = Instant::now();
        let mut sent = None;
        while begin.elapsed() < time && sent.is_none_or(|sent: Instant| sent.elapsed() < SETTLE_TIME) {
            let Ok(mut engine) = enter() else { return };
            // SAFETY: MPI is initialized, and with the lock held it does not end.
            let looked = unsafe { self.library.api.progress(self.handle) };
            if looked.is_err() || engine.reap().is_err() {
                return;
            }
            drop(engine);
            if self.unsent() == 0 {
                sent.get_or_insert_with(Instant::now);
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        // MPI may still write what has not come whole. In a fork, it belongs to the other process.
        let incoming = self.incoming.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(incoming));
        if self.process.is_current() && self.unsent() > 0 {
            // No thread calls MPI for them after this.
            self.flush(Duration::from_millis(100));
        }
    }
}
