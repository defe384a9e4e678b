//! A send or a receive whose caller waits for its end.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::cycle::{self, Awaited};
use super::operation::Stage;
use super::{Advance, Messenger};
use crate::comm::host::protocol::segment::is_lost;
use crate::comm::host::protocol::waiter::{WaitError, Waiter};
use crate::comm::message::{Delivery, Direction, MessageRequest};
use crate::error::{Error, ErrorKind, Result, error};
use crate::rank::{GroupRank, Rank};
use crate::util::deadline_after;
use crate::util::log::event;
use crate::util::wait::{Stopped, Wait};

/// After how long a rank publishes whom it waits for. The model has to do the same in each run,
/// however long it takes, so there a rank never does.
const PUBLISH_AFTER: Duration = if cfg!(loom) { Duration::MAX } else { Duration::from_millis(20) };

/// How often a rank that waits looks for a cycle. A unit test sees what happens between two looks.
const CYCLE_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 1 });

impl Messenger {
    /// Sends or receives one message.
    ///
    /// # Safety
    ///
    /// Until this returns the buffer is valid for the bytes that the request says, and used by no
    /// other code.
    pub(in crate::comm::host) unsafe fn run(&self, request: &MessageRequest, deadline: Instant) -> Result<Delivery> {
        self.own.check()?;
        self.own.compare_calls_once()?;
        self.check_receiver(request)?;
        let mut mailbox = self.lock();
        let number = mailbox.add(*request, deadline, None);
        // Made before anything can fail: its drop takes the operation back.
        let mut call = BlockingCall {
            messenger: self,
            request,
            deadline,
            number,
            ended: Cell::new(None),
            is_published: false,
            has_warned: false,
        };
        let matched = mailbox.match_arrived(&self.own, number).map_err(|error| self.end(error));
        drop(mailbox);
        matched?;
        call.wait()
    }
}

struct BlockingCall<'a> {
    messenger: &'a Messenger,
    request: &'a MessageRequest,
    deadline: Instant,
    number: u64,
    ended: Cell<Option<Delivery>>,
    /// Whether the rank has published whom it waits for.
    is_published: bool,
    /// Whether it has warned of ranks that wait for each other.
    has_warned: bool,
}

impl Drop for BlockingCall<'_> {
    /// After an error or a panic, waits until no peer touches the buffer (invariants 9 and 25).
    fn drop(&mut self) {
        let own = &self.messenger.own;
        if self.ended.get().is_none() {
            // After an error the communicator is aborted already, and keeps the first reason.
            own.segment.domain.abort(ErrorKind::Aborted, own.name(), "a panic while a message was under way");
            self.messenger.lock().remove(self.number);
            own.segment.wait_for_accesses(own.rank);
        }
        if self.is_published {
            own.segment.domain.set_awaited(own.member(), 0);
        }
    }
}

impl BlockingCall<'_> {
    fn wait(&mut self) -> Result<Delivery> {
        let own = &self.messenger.own;
        let (messenger, request) = (self.messenger, self.request);
        let warning =
            |seconds| format!("rank {}: {} has waited for {seconds} s", own.name(), messenger.describe(request));
        let wait = Wait::until(self.deadline).warning(&warning);
        let mut waiter = Waiter::new(&own.segment.domain, own.member(), wait);
        let mut next_look = deadline_after(PUBLISH_AFTER);
        loop {
            match self.step()? {
                Advance::Ended(delivery) => return Ok(delivery),
                Advance::Moved => {
                    self.check_time()?;
                    continue;
                }
                Advance::Idle => {}
            }
            waiter.set_deadline(next_look.min(self.deadline));
            let has_lost_peer = || messenger.find_lost(|operation| operation.number == self.number).is_some();
            let waited = waiter.wait_until(|| self.has_moved(), || is_lost(has_lost_peer, || self.has_moved()));
            match waited {
                Ok(()) => {}
                Err(WaitError::Stopped(Stopped::Late)) if Instant::now() < self.deadline => {
                    next_look = Instant::now() + CYCLE_INTERVAL;
                    self.look_for_cycle();
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    fn step(&self) -> Result<Advance> {
        if let Some(delivery) = self.ended.get() {
            return Ok(Advance::Ended(delivery));
        }
        let step = self.messenger.advance(Some(self.number))?;
        match step {
            Advance::Ended(delivery) => self.ended.set(Some(delivery)),
            // The peer may have answered, and another thread of this rank may have seen it.
            _ if self.is_published => _ = self.publish(),
            _ => {}
        }
        Ok(step)
    }

    /// Whether a step moved something, or failed, which the next step tells again.
    fn has_moved(&self) -> bool {
        !matches!(self.step(), Ok(Advance::Idle))
    }

    /// Checks the deadline and the interrupt hook of a message that moves.
    fn check_time(&self) -> Result<()> {
        match Wait::until(self.deadline).step() {
            Ok(_) => Ok(()),
            Err(Stopped::Late) if self.ended.get().is_some() => Ok(()),
            Err(stopped) => Err(self.fail(WaitError::Stopped(stopped))),
        }
    }

    /// Publishes whom this rank waits for, and warns once of a cycle.
    fn look_for_cycle(&mut self) {
        // The first look is too early: a peer may be about to come.
        if !std::mem::replace(&mut self.is_published, true) {
            let _ = self.publish();
        } else if !self.has_warned
            && let Some(cycle) = self.cycle()
        {
            self.has_warned = true;
            event!(WARN, "rank {}: {}: ranks wait for each other: {cycle}", self.messenger.own.name(), self.what());
        }
    }

    /// The ranks that wait for each other now, this one among them.
    fn cycle(&self) -> Option<String> {
        self.publish()?;
        cycle::describe(&self.messenger.own.segment.domain, self.member())
    }

    /// Publishes whom this rank waits for, and returns it.
    fn publish(&self) -> Option<Awaited> {
        let awaited = self.awaited();
        let word = awaited.map_or(0, Awaited::to_word);
        self.messenger.own.segment.domain.set_awaited(self.member(), word);
        awaited
    }

    fn member(&self) -> Rank {
        self.messenger.own.member()
    }

    /// Whom this rank waits for, if it is one rank that has not answered.
    fn awaited(&self) -> Option<Awaited> {
        let own = &self.messenger.own;
        let mailbox = self.messenger.lock();
        let operation = &mailbox.operations[mailbox.index_of(self.number)?];
        if !matches!(operation.stage, Stage::Queued | Stage::Announced | Stage::Posted) {
            return None;
        }
        let tag = operation.request.tag;
        let (peer, is_send) = match operation.request.direction {
            Direction::Send(to) => (to, true),
            Direction::Receive(from) => (from?, false),
        };
        Some(Awaited { peer: own.segment.member(peer), is_send, tag })
    }

    /// The call, as errors describe it.
    fn what(&self) -> String {
        self.messenger.describe(self.request)
    }

    /// Ends the communicator because the wait did not end well.
    fn fail(&self, error: WaitError) -> Error {
        let messenger = self.messenger;
        let error = match error {
            WaitError::Aborted(reason) => reason,
            WaitError::Stopped(Stopped::Late) => match (self.cycle(), messenger.own.check()) {
                // A peer that has reached its own deadline waits no more, and its error names the
                // cycle.
                (None, Err(reason)) => reason,
                (cycle, _) => {
                    let advice = "give such messages to one batch_isend_irecv";
                    let cycle = cycle
                        .map_or_else(String::new, |cycle| format!("; ranks wait for each other: {cycle}; {advice}"));
                    error!(DeadlineExceeded, "{} before the deadline{cycle}", messenger.problem(self.number))
                }
            },
            WaitError::PeerLost => messenger.lost_peer(self.number),
            WaitError::Stopped(Stopped::Interrupted(interrupted)) => {
                error!(Interrupted, "{}: {interrupted} while it waited", self.what())
            }
        };
        messenger.end(error)
    }
}

impl Messenger {
    /// What has not happened to an operation that is late.
    pub(super) fn problem(&self, number: u64) -> String {
        let mailbox = self.lock();
        let Some(operation) = mailbox.index_of(number).map(|index| &mailbox.operations[index]) else {
            return "a message did not end".to_owned();
        };
        let what = self.describe(&operation.request);
        let name = |rank: Option<GroupRank>| match rank {
            Some(rank) => format!("rank {}", self.own.segment.name(rank)),
            None => "any rank".to_owned(),
        };
        let problem = match operation.stage {
            Stage::Queued => format!("{} did not receive the messages before it", name(operation.peer())),
            Stage::Announced => format!("{} did not receive it", name(operation.peer())),
            Stage::Posted => format!("no message came from {}", name(operation.peer())),
            _ => "not all of its bytes were moved".to_owned(),
        };
        format!("{what}: {problem}")
    }

    /// The error of an operation whose peer is gone.
    pub(super) fn lost_peer(&self, number: u64) -> Error {
        let segment = &*self.own.segment;
        let mailbox = self.lock();
        let Some(operation) = mailbox.index_of(number).map(|index| &mailbox.operations[index]) else {
            return error!(PeerLost, "a peer died or left the communicator");
        };
        let gone = |peer: &GroupRank| *peer != self.own.rank && segment.is_gone(*peer);
        match operation.peer() {
            Some(peer) => self.lost(&operation.request, &[peer]),
            None => self.lost(&operation.request, &segment.ranks().filter(gone).collect::<Vec<_>>()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::comm::backend::Backend;
    use crate::comm::host::in_process;
    use crate::comm::host::protocol::record::Record;
    use crate::data_type::DataType;
    use crate::memory::Address;

    /// Rank 1 says that it is ready for a long message, and reads nothing more. Rank 0's send goes
    /// on, and is no part of a cycle any more.
    #[test]
    fn a_send_that_is_answered_waits_for_no_rank() {
        const LEN: usize = 1 << 20;
        let ranks = in_process(2, None).expect("ranks");
        let (segment, sender, receiver) = (&*ranks[0].own.segment, GroupRank(0), GroupRank(1));
        let until = |is_published: bool| {
            let end = Instant::now() + Duration::from_secs(10);
            while (segment.domain.awaited(Rank(0)) != 0) != is_published {
                assert!(Instant::now() < end, "is published: {}", !is_published);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let bytes = vec![1u8; LEN];
                let (direction, address) = (Direction::Send(receiver), Address::host(bytes.as_ptr()));
                let request = MessageRequest {
                    direction,
                    tag: 0,
                    data_type: DataType::Uint8.into(),
                    element_count: LEN,
                    address,
                };
                // SAFETY: the bytes live until the call returns.
                unsafe { ranks[0].run_message(&request, Instant::now() + Duration::from_secs(3600)) }
            });
            until(true);
            // SAFETY: the record has no bytes.
            unsafe { segment.ring(receiver, sender).push(Record::Ready { id: 1 }, std::ptr::null()) };
            segment.slot(sender).doorbell().ring(receiver);
            segment.domain.wake(std::iter::once(Rank(0)));
            until(false);
            ranks[1].abort(ErrorKind::Aborted, "the test is over");
            sending.join().expect("no panic").expect_err("rank 1 aborts");
        });
    }
}
