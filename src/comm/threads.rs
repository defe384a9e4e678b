//! Ranks that are threads of one process: starting them, and joining them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Communicator, CommunicatorBuilder};
use crate::error::{Error, ErrorKind, Result, error};
use crate::rank::Rank;
use crate::util::panic_message;

impl Communicator {
    /// Runs `body` on `world_size` threads, one for each rank of a new communicator on the host,
    /// and gives what the ranks return, in rank order. [`CommunicatorBuilder::spawn`] does it with
    /// another backend or timeout.
    ///
    /// ```
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let sums = Communicator::spawn(3, |communicator| {
    ///     let mut x = [communicator.rank().0 as f32, 1.0];
    ///     communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
    ///     Ok(x)
    /// })?;
    /// assert_eq!(sums, [[3.0, 3.0]; 3]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: no rank, or more than 1024.
    /// - `System`: a thread cannot be started.
    /// - A rank returns an error or panics. That ends the communicator, so that the other ranks do
    ///   not wait. The error is that of the rank that failed first, not one that follows from it,
    ///   and names the rank; a panic is an [`ErrorKind::Aborted`].
    pub fn spawn<T: Send>(world_size: u32, body: impl Fn(Communicator) -> Result<T> + Sync) -> Result<Vec<T>> {
        Self::builder().spawn(world_size, body)
    }
}

impl CommunicatorBuilder {
    /// [`in_process`](Self::in_process), and runs `body` on a thread for each rank. Gives what the
    /// ranks return, in rank order.
    ///
    /// # Errors
    ///
    /// Those of [`in_process`](Self::in_process), and those of threads and ranks in
    /// [`Communicator::spawn`].
    pub fn spawn<T: Send>(self, world_size: u32, body: impl Fn(Communicator) -> Result<T> + Sync) -> Result<Vec<T>> {
        let (communicators, body) = (self.in_process(world_size)?, &body);
        let results: Vec<Result<T, Failure>> = std::thread::scope(|scope| {
            let start = |communicator: Communicator| {
                let rank = communicator.origin_rank();
                let builder = std::thread::Builder::new().name(format!("dcl-rank-{rank}"));
                (rank, builder.spawn_scoped(scope, move || run(communicator, body)))
            };
            let threads: Vec<_> = communicators.into_iter().map(start).collect();
            let join = |(rank, thread): (Rank, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| {
                let started = thread.map_err(|refused| error!(System, "no thread for the rank").with_source(refused));
                // `run` catches panics.
                let ended = started.and_then(|thread| thread.join().map_err(|panic| of_panic(panic.as_ref())));
                ended.unwrap_or_else(|error| Err(Failure { error: error.on_rank(rank), is_consequence: false }))
            };
            threads.into_iter().map(join).collect()
        });
        // The first rank whose error does not follow from another's; else the first of all.
        let failures = results.iter().filter_map(|result| result.as_ref().err());
        match failures.min_by_key(|failure| failure.is_consequence) {
            Some(failure) => Err(failure.error.clone()),
            None => Ok(results.into_iter().filter_map(Result::ok).collect()),
        }
    }
}

/// How a rank ended without a result.
struct Failure {
    error: Error,
    /// Whether another rank's failure is the likely cause.
    is_consequence: bool,
}

fn of_panic(panic: &(dyn std::any::Any + Send)) -> Error {
    error!(Aborted, "the rank panicked: {}", panic_message(panic))
}

fn run<T>(communicator: Communicator, body: impl Fn(Communicator) -> Result<T>) -> Result<T, Failure> {
    let (rank, handle) = (communicator.origin_rank(), communicator.clone());
    // A panic leaves nothing behind but the communicator.
    let (is_consequence, error) = match catch_unwind(AssertUnwindSafe(|| body(communicator))) {
        Ok(Ok(result)) => return Ok(result),
        Ok(Err(error)) => {
            let consequences = [ErrorKind::Aborted, ErrorKind::PeerLost, ErrorKind::RunRefused];
            (consequences.contains(&error.kind()), error)
        }
        Err(panic) => (false, of_panic(panic.as_ref())),
    };
    // On GPUs, peers would wait until their deadline for a rank that only drops its handles.
    handle.backend.abort(error.kind(), &error.to_string());
    Err(Failure { error: error.on_rank(rank), is_consequence })
}
