//! Signals for a job that runs, from other threads.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use distcollective::Result;
use rustix::process::Signal;

use crate::events::wake;
use crate::lock;
use crate::rank_process::Target;

/// Sends signals to the ranks of a [`Job`](super::Job), from any thread.
#[derive(Clone, Debug)]
pub struct JobControl {
    pub(super) state: Arc<Mutex<ControlState>>,
}

/// What the threads share.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    /// The ranks of the present run. Their numbers stay theirs until the run has ended.
    pub(super) targets: Vec<Target>,
    /// The signal that ends the job, if it is to end.
    pub(super) end: Option<i32>,
    pub(super) calls_of_end: usize,
    /// Whether the job was asked to end, and the run has not noticed yet.
    pub(super) has_request: bool,
    /// Wakes the run.
    pub(super) news: Option<Arc<OwnedFd>>,
}

impl JobControl {
    /// Sends a signal, by its number, to every rank that has been started, and to its process group
    /// if it has its own. A real-time signal is not sent, nor a number that is no signal's.
    pub fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.lock().targets.iter().for_each(|target| target.send(signal));
        }
    }

    /// Ends the job: the ranks get this signal, SIGTERM after 2 s, SIGKILL after 4 s. A second
    /// call sends SIGKILL at once. The outcome is [`Ended`](super::Outcome::Ended), also of later
    /// runs of the same job.
    ///
    /// The ranks get SIGTERM instead of a signal that [`signal`](Self::signal) does not send.
    pub fn end(&self, signal: i32) {
        let mut state = self.lock();
        if state.calls_of_end == 0 {
            state.end = Some(signal);
        }
        state.calls_of_end += 1;
        state.request_end();
    }

    /// Ends the job as [`end`](Self::end) does, unless it is to end already. It never makes SIGKILL
    /// come sooner: neither this call after one of `end`, nor the first call of `end` after it.
    pub fn end_once(&self, signal: i32) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(signal);
            state.request_end();
        }
    }

    /// A run begins, which `news` wakes.
    pub(super) fn enter(&self, news: &Arc<OwnedFd>) -> Result<()> {
        let mut state = self.lock();
        if state.news.is_some() {
            return Err(error!(InvalidArgument, "the job runs already; a second run begins when the first has ended"));
        }
        state.news = Some(Arc::clone(news));
        state.has_request = state.end.is_some();
        Ok(())
    }

    /// The run is over: its ranks' numbers may become those of other processes.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.targets.clear();
        state.news = None;
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ControlState> {
        lock(&self.state)
    }
}

impl ControlState {
    /// Asks the run to end the job, and wakes it.
    fn request_end(&mut self) {
        self.has_request = true;
        self.news.iter().for_each(|news| wake(news));
    }
}
