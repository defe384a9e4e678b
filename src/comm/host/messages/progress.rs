//! The progress thread of a rank, which moves asynchronous messages along while the program does
//! something else.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::mailbox::{Mailbox, ProgressThread};
use super::{Advance, Messenger, report};
use crate::comm::host::protocol::segment::is_lost;
use crate::comm::host::protocol::waiter::{WaitError, Waiter};
use crate::comm::message::{MessageRequest, OnEnd};
use crate::error::{Error, Result, error};
use crate::util::interrupt;
use crate::util::wait::{Stopped, Wait};

impl Messenger {
    /// Begins messages. Each goes on by itself, and ends with a call of its [`OnEnd`], which may
    /// come before this returns.
    ///
    /// # Safety
    ///
    /// Until that call, the buffers are valid for the bytes that the requests say, and used by no
    /// other code.
    ///
    /// # Errors
    ///
    /// The communicator has ended, or there is no thread. Nothing has begun.
    pub(in crate::comm::host) unsafe fn start(
        self: &Arc<Self>,
        messages: Vec<(MessageRequest, OnEnd)>,
        deadline: Instant,
    ) -> Result<()> {
        self.own.check()?;
        self.own.compare_calls_once()?;
        messages.iter().try_for_each(|(request, _)| self.check_receiver(request))?;
        let mut mailbox = self.lock();
        self.start_thread(&mut mailbox)?;
        let mut matched = Ok(());
        for (request, on_end) in messages {
            let number = mailbox.add(request, deadline, Some(on_end));
            if matched.is_ok() {
                matched = mailbox.match_arrived(&self.own, number).map_err(|error| self.end(error));
            }
        }
        drop(mailbox);
        // After an error the progress thread ends all of them.
        let _ = matched.and_then(|()| self.advance(None));
        self.changed.notify_all();
        // It may sleep already, for a message with a later deadline.
        self.own.wake(self.own.rank);
        Ok(())
    }

    /// Starts the thread, if there is none.
    fn start_thread(self: &Arc<Self>, mailbox: &mut Mailbox) -> Result<()> {
        if mailbox.thread != ProgressThread::Absent {
            return Ok(());
        }
        let messenger = Arc::clone(self);
        let thread = std::thread::Builder::new().name("dcl-messages".to_owned());
        thread
            .spawn(move || messenger.run_thread())
            .map_err(|e| error!(System, "no thread for messages").with_source(e))?;
        mailbox.thread = ProgressThread::Running;
        Ok(())
    }

    fn run_thread(&self) {
        let _mask = interrupt::mask();
        while self.wait_for_messages() {
            if let Err(error) = self.move_asynchronous() {
                self.fail_asynchronous(&error);
            }
        }
    }

    /// Waits until there is an asynchronous message. Returns whether there is one: not after the
    /// end.
    fn wait_for_messages(&self) -> bool {
        let mut mailbox = self.lock();
        loop {
            if mailbox.first_deadline().is_some() {
                return true;
            }
            if mailbox.thread == ProgressThread::Closed {
                return false;
            }
            mailbox = self.changed.wait(mailbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Moves messages along until no asynchronous one is left.
    fn move_asynchronous(&self) -> Result<()> {
        let first = || self.lock().first_deadline();
        let Some((_, deadline)) = first() else { return Ok(()) };
        // Without a warning: a receive may wait for as long as it likes.
        let wait = Wait::until(deadline);
        let mut waiter = Waiter::new(&self.own.segment.domain, self.own.member(), wait);
        while let Some((number, deadline)) = first() {
            if matches!(self.advance(None)?, Advance::Moved) {
                continue;
            }
            waiter.set_deadline(deadline);
            let has_moved = || !matches!(self.advance(None), Ok(Advance::Idle));
            let waited = waiter.wait_until(
                || has_moved() || first() != Some((number, deadline)),
                || is_lost(|| self.lost_asynchronous().is_some(), has_moved),
            );
            waited.map_err(|error| self.end(self.error_of(error, number)))?;
        }
        Ok(())
    }

    fn error_of(&self, error: WaitError, number: u64) -> Error {
        match error {
            WaitError::Aborted(reason) | WaitError::Stopped(Stopped::Interrupted(reason)) => reason,
            WaitError::Stopped(Stopped::Late) => {
                error!(DeadlineExceeded, "{} before the deadline", self.problem(number))
            }
            WaitError::PeerLost => self.lost_peer(self.lost_asynchronous().unwrap_or(number)),
        }
    }

    /// An asynchronous message whose peer is gone.
    fn lost_asynchronous(&self) -> Option<u64> {
        self.find_lost(|operation| operation.on_end.is_some())
    }

    /// Ends all asynchronous messages of a communicator that has ended, when no peer touches their
    /// buffers any more (invariant 25).
    fn fail_asynchronous(&self, error: &Error) {
        let ends = self.lock().take_asynchronous();
        self.own.segment.wait_for_accesses(self.own.rank);
        ends.into_iter().for_each(|on_end| report(on_end, Err(error.clone())));
    }
}
