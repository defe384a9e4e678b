//! A send or a receive whose caller waits for its end.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::cycle::{self, Awaited};
use super::operation::Stage;
use super::{Messenger, Step, lost};
use crate::comm::host::protocol::segment::is_lost;
use crate::comm::host::protocol::waiter::{WaitError, Waiter};
use crate::comm::message::{Delivery, Direction, MessageRequest};
use crate::error::{Error, ErrorKind, Result, error};
use crate::rank::GroupRank;
use crate::util::interrupt;
use crate::util::log::event;

/// After how long a rank publishes whom it waits for.
const PUBLISH_AFTER: Duration = Duration::from_millis(20);

/// How often a rank that waits looks for a cycle.
const CYCLE_INTERVAL: Duration = Duration::from_secs(1);

impl Messenger {
    /// Sends or receives one message.
    ///
    /// # Safety
    ///
    /// Until this returns the buffer is valid for the bytes that the request says, and used by no
    /// other code.
    pub(in crate::comm::host) unsafe fn run(&self, request: &MessageRequest, deadline: Instant) -> Result<Delivery> {
        self.check()?;
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
            cycle: None,
        };
        let matched = mailbox.match_arrived(&self.place, number);
        drop(mailbox);
        matched.map_err(|error| self.end(error))?;
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
    /// The ranks that wait for each other, once a look has found them.
    cycle: Option<String>,
}

impl Drop for BlockingCall<'_> {
    /// After an error or a panic, waits until no peer touches the buffer (invariants 9 and 25).
    fn drop(&mut self) {
        let place = &self.messenger.place;
        if self.is_published {
            place.segment.domain.set_awaited(place.member(), 0);
        }
        if self.ended.get().is_some() {
            return;
        }
        // After an error the communicator is aborted already, and keeps the first reason.
        place.segment.domain.abort(ErrorKind::Aborted, place.member(), "a panic while a message was under way");
        self.messenger.lock().remove(self.number);
        place.segment.wait_for_accesses(place.rank);
    }
}

impl BlockingCall<'_> {
    fn wait(&mut self) -> Result<Delivery> {
        let place = &self.messenger.place;
        let mut waiter = Waiter::new(&place.segment.domain, place.member(), self.deadline);
        let mut next_look = Instant::now() + PUBLISH_AFTER;
        loop {
            match self.step()? {
                Step::Ended(delivery) => return Ok(delivery),
                Step::Moved => {
                    self.check_time()?;
                    continue;
                }
                Step::Idle => {}
            }
            waiter.set_deadline(next_look.min(self.deadline));
            let waited = waiter.wait_until(
                || self.has_moved(),
                || is_lost(|| self.has_lost_peer(), || self.has_moved()),
                |seconds| format!("rank {}: {} has waited for {seconds} s", place.member(), self.what()),
            );
            match waited {
                Ok(()) => {}
                Err(WaitError::DeadlineExceeded) if Instant::now() < self.deadline => {
                    next_look = Instant::now() + CYCLE_INTERVAL;
                    self.look_for_cycle();
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    fn step(&self) -> Result<Step> {
        if let Some(delivery) = self.ended.get() {
            return Ok(Step::Ended(delivery));
        }
        let step = self.messenger.advance(Some(self.number))?;
        if let Step::Ended(delivery) = step {
            self.ended.set(Some(delivery));
        }
        Ok(step)
    }

    /// Whether a step moved something, or failed, which the next step tells again.
    fn has_moved(&self) -> bool {
        !matches!(self.step(), Ok(Step::Idle))
    }

    fn has_lost_peer(&self) -> bool {
        let messenger = self.messenger;
        if !messenger.place.segment.has_gone() {
            return false;
        }
        let mailbox = messenger.lock();
        mailbox.index_of(self.number).is_some_and(|index| messenger.has_lost(&mailbox.operations[index]))
    }

    /// Checks the deadline and the interrupt hook of a message that moves.
    fn check_time(&self) -> Result<()> {
        match interrupt::check() {
            Err(interrupted) => Err(self.fail(WaitError::Interrupted(interrupted))),
            Ok(()) if Instant::now() >= self.deadline && self.ended.get().is_none() => {
                Err(self.fail(WaitError::DeadlineExceeded))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Publishes whom this rank waits for, and warns once of a cycle.
    fn look_for_cycle(&mut self) {
        let place = &self.messenger.place;
        let domain = &*place.segment.domain;
        let awaited = self.awaited();
        domain.set_awaited(place.member(), awaited.map_or(0, Awaited::to_word));
        // The first look is too early: a peer may be about to come.
        let is_first = !std::mem::replace(&mut self.is_published, true);
        if awaited.is_none() || is_first || self.cycle.is_some() {
            return;
        }
        self.cycle = cycle::describe(domain, place.member());
        if let Some(cycle) = &self.cycle {
            event!(WARN, "rank {}: {}: ranks wait for each other: {cycle}", place.member(), self.what());
        }
    }

    /// Whom this rank waits for, if it is one rank that has not answered.
    fn awaited(&self) -> Option<Awaited> {
        let place = &self.messenger.place;
        let mailbox = self.messenger.lock();
        let operation = &mailbox.operations[mailbox.index_of(self.number)?];
        let tag = operation.request.tag;
        let (peer, is_send) = match operation.awaited()? {
            Direction::Send(to) => (to, true),
            Direction::Receive(from) => (from?, false),
        };
        Some(Awaited { peer: place.segment.member(peer), is_send, tag })
    }

    /// The call, as errors describe it.
    fn what(&self) -> String {
        self.request.with_ranks(|rank| self.messenger.place.segment.member(rank))
    }

    /// Ends the communicator because the wait did not end well.
    fn fail(&self, error: WaitError) -> Error {
        let messenger = self.messenger;
        let error = match error {
            WaitError::Aborted(reason) => reason,
            WaitError::DeadlineExceeded => {
                // A peer that has just reached its own deadline waits no more.
                let now = || cycle::describe(&messenger.place.segment.domain, messenger.place.member());
                let cycle = self.cycle.clone().or_else(now);
                let cycle = cycle.map_or_else(String::new, |cycle| format!("; ranks wait for each other: {cycle}"));
                error!(DeadlineExceeded, "{} before the deadline{cycle}", messenger.problem(self.number))
            }
            WaitError::PeerLost => messenger.lost_peer(self.number),
            WaitError::Interrupted(interrupted) => {
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
        let what = operation.request.with_ranks(|rank| self.place.segment.member(rank));
        let name = |rank: Option<GroupRank>| match rank {
            Some(rank) => format!("rank {}", self.place.segment.member(rank)),
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
        let segment = &*self.place.segment;
        let mailbox = self.lock();
        let Some(operation) = mailbox.index_of(number).map(|index| &mailbox.operations[index]) else {
            return error!(PeerLost, "a peer died or left the communicator");
        };
        let gone = |peer: &GroupRank| *peer != self.place.rank && segment.is_gone(*peer);
        match operation.peer() {
            Some(peer) => lost(segment, &operation.request, &[peer]),
            None => lost(segment, &operation.request, &segment.ranks().filter(gone).collect::<Vec<_>>()),
        }
    }
}
