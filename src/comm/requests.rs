//! Requests: what ranks do for one request of a server. The ranks agree on which one is next, so
//! that threads may take requests in any order, and on how it has ended.

use std::cell::Cell;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use super::{Communicator, Request};
use crate::collective::{Call, Collective, Purpose};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, error};
use crate::issue_order::Extent;
use crate::memory::Address;
use crate::rank::GroupRank;
use crate::util::wait::{LOOK, Stopped, Wait};
use crate::util::{interrupt, lock, thread_number};

/// The requests of one rank on one communicator.
#[derive(Default)]
pub(super) struct Requests {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    turn: Turn,
    /// How often the turn has changed.
    changes: u64,
}

#[derive(Clone, Copy, Default)]
enum Turn {
    /// No request is open.
    #[default]
    Free,
    /// A thread asks rank 0 which request is next.
    Asked,
    /// Rank 0 has said that this one is next, and no thread has come with it.
    Next(u64),
    /// This request is open. The thread with this number has begun it.
    Open(u64, usize),
    /// This request is about to end.
    Ending(u64),
}

/// # Requests
impl Communicator {
    /// Runs what this rank does for the request with this id, so that a failure of one rank is one
    /// of all, in the same request. Every rank makes this call for each request, each from any
    /// number of threads. Requests run one after the other, in the order in which rank 0 begins
    /// them: a thread with another id waits. So a rank has a thread for each request that it may
    /// take before the one that rank 0 begins. What `run` enqueues, it waits for.
    ///
    /// If `run` is an error on one rank, that rank leaves the request. The others get a
    /// [`RunRefused`](ErrorKind::RunRefused) with the reason, from their next call on the
    /// communicator or from `request`, and all go on to the next request. On the host, each
    /// collective on this communicator waits for all ranks meanwhile, also one of another thread.
    /// Collectives in a request are on this communicator, or on groups that were split from it.
    ///
    /// A failed request ends the communicator in three cases: on GPUs; if a rank has begun a
    /// message in it; if a rank has a group that was split from this communicator, as layers with
    /// groups make them. Collective.
    ///
    /// ```
    /// use distcollective::{Communicator, Error, ErrorKind, ReduceOperation};
    ///
    /// Communicator::spawn(2, |communicator| {
    ///     let answer = |id: u64, fails: bool| {
    ///         communicator.request(id, || {
    ///             if fails {
    ///                 return Err(Error::new(ErrorKind::InvalidArgument, "no image"));
    ///             }
    ///             let mut sum = [id as i64];
    ///             communicator.all_reduce(&mut sum, ReduceOperation::Sum)?;
    ///             Ok(sum[0])
    ///         })
    ///     };
    ///     let error = answer(1, communicator.rank().0 == 1).unwrap_err();
    ///     match communicator.rank().0 {
    ///         0 => assert_eq!(error.kind(), ErrorKind::RunRefused),
    ///         _ => assert_eq!(error.kind(), ErrorKind::InvalidArgument),
    ///     }
    ///     assert_eq!(answer(2, false)?, 4);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - This rank's own, from `run`.
    /// - `RunRefused`: another rank failed, or `run` has gone on after an error that made this rank
    ///   leave. The communicator still works.
    /// - `DeadlineExceeded`: rank 0 did not begin the request, or a rank did not begin the one that
    ///   rank 0 has begun. The timeout counts for each step of the requests before this one.
    /// - `InvalidArgument`: this thread has begun another request, which is open.
    ///
    /// All others are those of [`barrier`](Self::barrier).
    pub fn request<T>(&self, id: u64, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.begin_request(id)?;
        let in_panic = OnDrop(|| drop(self.end_request(Some("it panicked"))));
        let result = run();
        std::mem::forget(in_panic);
        match result {
            Ok(result) => self.end_request(None).map(|()| result),
            Err(error) => {
                // If this rank cannot tell the others, the communicator has ended.
                let _cannot_tell = self.end_request(Some(&error.to_string()));
                let is_refused = error.kind() == ErrorKind::RunRefused;
                Err(self.check().err().filter(|_| is_refused).unwrap_or(error))
            }
        }
    }

    /// The beginning of a [`request`](Self::request), for programs that cannot give a closure.
    /// [`end_request`](Self::end_request) follows, on any thread. A thread begins its next request
    /// when the one that it began has ended. Collective.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub fn begin_request(&self, id: u64) -> Result<()> {
        let begun = self.check_process().and_then(|()| interrupt::check_may_wait());
        begun.and_then(|()| self.take_turn(id)).map_err(|error| self.about_request(id, error))
    }

    /// Ends the request that is open on this rank. Without a failure it waits until all ranks have
    /// ended it; with one it tells them the reason. Collective.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: no request is open.
    /// - As [`request`](Self::request).
    pub fn end_request(&self, failure: Option<&str>) -> Result<()> {
        let mut state = lock(&self.requests.state);
        let open @ Turn::Open(id, _) = state.turn else {
            return Err(error!(InvalidArgument, "no request is open").on_rank(self.origin_rank()));
        };
        state.turn = Turn::Ending(id);
        drop(state);
        let (deadline, mut has_acted) = (self.deadline(), false);
        let ended = self.in_turn(Extent::WithGroups, &"request", deadline, || {
            has_acted = true;
            self.end_open_request(id, failure, deadline)
        });
        // A call that may not wait changes nothing.
        self.set_turn(if has_acted || self.check().is_err() { Turn::Free } else { open });
        ended.map_err(|error| self.about_request(id, error))
    }

    fn end_open_request(&self, id: u64, failure: Option<&str>, deadline: Instant) -> Result<()> {
        // A message that one rank has sent and another one has not received would come in a later
        // request. In a group, nothing tells how far a rank has come in a request.
        let ends = self.backend.has_messages_in_request() || self.order.has_descendants();
        if ends && (failure.is_some() || self.backend.has_left_request()) {
            self.abort_request(id, failure);
            return if failure.is_some() { Ok(()) } else { self.backend.check() };
        }
        match self.backend.end_request(failure, deadline) {
            Ok(true) => Ok(()),
            Ok(false) if failure.is_some() => {
                self.abort_request(id, failure);
                Ok(())
            }
            // SAFETY: without elements no buffer is used.
            Ok(false) => unsafe { self.run(Request::barrier(Purpose::END_OF_REQUEST, deadline)) },
            Err(_) if ends => {
                self.abort_request(id, failure);
                self.backend.check()
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the communicator, because all ranks cannot go on to the next request.
    fn abort_request(&self, id: u64, failure: Option<&str>) {
        let reason = failure.unwrap_or("another rank left it");
        self.backend.abort(ErrorKind::Aborted, &format!("request {id}: {reason}"));
    }

    fn about_request(&self, id: u64, error: Error) -> Error {
        self.about(&format_args!("request {id}"), error)
    }

    /// Whether a request is open on this rank.
    pub(crate) fn is_in_request(&self) -> bool {
        matches!(lock(&self.requests.state).turn, Turn::Open(..) | Turn::Ending(_))
    }

    /// Whether this rank cannot leave a request that is open without ending the communicator.
    pub(super) fn has_groups_in_request(&self) -> bool {
        self.is_in_request() && self.order.has_descendants()
    }

    /// Waits until this request is the next one, and opens it.
    fn take_turn(&self, id: u64) -> Result<()> {
        let open = Turn::Open(id, thread_number());
        loop {
            let asks = self.wait_for_turn(id, open)?;
            let next = if asks { self.ask_for_next(id) } else { Ok(id) };
            self.set_turn(match &next {
                Ok(next) if *next == id => open,
                Ok(next) => Turn::Next(*next),
                Err(_) => Turn::Free,
            });
            if next? == id {
                return Ok(());
            }
        }
    }

    /// Waits until no request is open. Returns whether this thread asks which one is next; if not,
    /// it is this one.
    fn wait_for_turn(&self, id: u64, open: Turn) -> Result<bool> {
        let Requests { state, changed } = &*self.requests;
        let changes = Cell::new(0);
        let look = |state: &mut State| {
            changes.set(state.changes);
            let (turn, found) = match (state.turn, open) {
                (Turn::Free, _) => (Turn::Asked, Ok(true)),
                (Turn::Next(next), _) if next == id => (open, Ok(false)),
                (Turn::Open(outer, thread), Turn::Open(_, this)) if thread == this => {
                    let text = format!("this thread has begun request {outer}, which is open");
                    (state.turn, Err(Error::new(ErrorKind::InvalidArgument, text)))
                }
                _ => return None,
            };
            state.turn = turn;
            Some(found)
        };
        let warning = |seconds: u64| {
            format!("rank {}: request {id} has waited for {seconds} s: {}", self.origin_rank(), self.holdup())
        };
        let mut wait = Wait::until(self.deadline()).warning(&warning);
        let (mut deadline, mut seen) = (self.deadline(), 0);
        loop {
            // A thread that waits for another one to come sees nothing of an abort.
            wait.set_deadline(deadline.min(Instant::now() + LOOK));
            let stopped = match wait.on(state, changed, look) {
                Ok(found) => return found,
                Err(stopped) => stopped,
            };
            self.check()?;
            if std::mem::replace(&mut seen, changes.get()) != changes.get() {
                // Each request before this one may take as long as it may.
                deadline = self.deadline();
            }
            if matches!(stopped, Stopped::Late) && Instant::now() < deadline {
                continue;
            }
            // This rank leaves out a request, so the others must not wait for it.
            let late = format!("it did not begin before the deadline: {}", self.holdup());
            let error = stopped.error("while it waited to begin", late);
            return Err(self.backend.fail(self.about_request(id, error)));
        }
    }

    /// Why a request of this rank waits.
    fn holdup(&self) -> String {
        match lock(&self.requests.state).turn {
            Turn::Next(next) => format!("request {next} is next, and no thread of this rank has come with it"),
            Turn::Asked => "the ranks have not come to the next one".to_owned(),
            Turn::Open(open, _) | Turn::Ending(open) => format!("request {open} is open on this rank"),
            Turn::Free => "the last one has just ended".to_owned(),
        }
    }

    fn set_turn(&self, turn: Turn) {
        let mut state = lock(&self.requests.state);
        *state = State { turn, changes: state.changes + 1 };
        drop(state);
        self.requests.changed.notify_all();
    }

    /// Begins the next request, whose id rank 0 says.
    fn ask_for_next(&self, id: u64) -> Result<u64> {
        let (mut next, deadline) = (id as i64, self.deadline());
        let call = Call::of_blocks(Collective::Broadcast { root: GroupRank(0) }, DataType::Int64, 1);
        let side = Address::host((&raw mut next).cast());
        let request = Request::new(call.for_purpose(Purpose::REQUEST), [side; 2], deadline);
        // SAFETY: the buffer holds one element, and is a local.
        let run = || unsafe { self.run(request) };
        self.in_turn(Extent::Communicator, &"request", deadline, run)?;
        Ok(next as u64)
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
