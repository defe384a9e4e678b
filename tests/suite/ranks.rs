//! Ranks to test with. Every run of several ranks has a deadline.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use distcollective::Communicator;

/// The deadline of a test with several ranks.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Runs `body` on `n` ranks that are threads, and gives what each returns, in rank order.
///
/// # Panics
///
/// A rank panicked, or they did not all finish within the deadline.
pub fn on_ranks<T: Send + 'static>(n: u32, body: impl Fn(Communicator) -> T + Clone + Send + 'static) -> Vec<T> {
    on_ranks_within(DEADLINE, n, body)
}

/// [`on_ranks`] with another deadline.
pub fn on_ranks_within<T: Send + 'static>(
    deadline: Duration,
    n: u32,
    body: impl Fn(Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let (sender, results) = mpsc::channel();
    let threads: Vec<_> = Communicator::in_process(n)
        .expect("n is not zero")
        .into_iter()
        .map(|communicator| {
            let (sender, body) = (sender.clone(), body.clone());
            let rank = communicator.rank().index();
            std::thread::spawn(move || {
                let result = body(communicator.with_timeout(deadline));
                let _ = sender.send((rank, result));
            })
        })
        .collect();
    drop(sender);
    let end = Instant::now() + deadline;
    let mut all: Vec<Option<T>> = (0..n).map(|_| None).collect();
    loop {
        match results.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok((rank, result)) => all[rank] = Some(result),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let late: Vec<usize> = (0..all.len()).filter(|&r| all[r].is_none()).collect();
                panic!("ranks {late:?} of {n} did not finish within {deadline:?}");
            }
        }
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    all.into_iter().map(|result| result.expect("every thread sent its result")).collect()
}
