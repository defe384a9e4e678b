//! Messages from one rank to another.
//!
//! Between each two ranks of a communicator there is a ring of cells for each direction, which the
//! sender allocates with its first message. A message that fits a cell travels in it. The sender
//! announces a longer one, and keeps its bytes until the receiver has a buffer for them. If the
//! receiver reaches the sender's buffer (threads of one process, symmetric memory), it copies from
//! there and says so. Otherwise it says that it is ready, and the sender writes the bytes into the
//! ring, piece by piece.
//!
//! A rank's sends and receives are in its [`Mailbox`]. Whatever thread of the rank waits for a
//! message moves all of them along: the thread of a blocking call, and the progress thread, which
//! exists once the rank has begun an asynchronous message.
//!
//! | file | what is there |
//! |---|---|
//! | [`ring`], [`record`], [`doorbell`] | what ranks share |
//! | [`operation`], [`mailbox`] | what one rank has in hand, and how it moves along |
//! | [`blocking`], [`progress`] | who moves it along |
//! | [`cycle`] | ranks that wait for each other |

mod blocking;
mod cycle;
mod mailbox;
#[cfg(all(test, loom))]
mod model;
mod operation;
mod progress;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, PoisonError};

use self::mailbox::{Mailbox, ProgressThread};
use self::operation::{Operation, Stage};
use super::own_rank::OwnRank;
use crate::comm::message::{Delivery, Direction, MessageRequest, OnEnd};
use crate::error::{Error, Result, error};
use crate::rank::GroupRank;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::util::log::event;
use crate::util::text::{count_of, list_ranks};

/// The messages of one rank of a communicator.
pub(super) struct Messenger {
    own: OwnRank,
    mailbox: Mutex<Mailbox>,
    /// Notified when the first asynchronous message is begun after a pause, and at the end.
    changed: Condvar,
    /// Set when the rank has warned of messages that it has not received.
    has_warned: OnceLock<()>,
}

/// What came of one look at the messages.
enum Advance {
    /// The caller's own operation has ended.
    Ended(Delivery),
    /// Something has moved, and more may.
    Moved,
    /// Nothing moves before a peer does something.
    Idle,
}

impl Messenger {
    pub(super) fn new(own: OwnRank) -> Self {
        let mailbox = Mutex::new(Mailbox::new(own.segment.len()));
        Messenger { own, mailbox, changed: Condvar::new(), has_warned: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the communicator because of an error of this rank.
    fn end(&self, error: Error) -> Error {
        self.own.end(&error, &error.to_string()).clone()
    }

    /// Moves all messages along once. The operation `own` is the caller's, and is taken when it has
    /// ended. An error ends the communicator.
    ///
    /// It need not wake the threads that wait for the other operations: a peer that wrote, or that
    /// made room, wakes all threads of this rank (invariant 24), and a thread sleeps only if its
    /// operation could not move without a peer.
    fn advance(&self, own: Option<u64>) -> Result<Advance> {
        self.own.check()?;
        let mut mailbox = self.lock();
        // While the mailbox is locked: another thread would find that the message is gone, and if
        // its sender has left too, that would be the error.
        let has_moved = mailbox.advance(&self.own).map_err(|error| self.end(error));
        let own_end = own.and_then(|own| mailbox.take_end(own));
        let mut ends = Vec::new();
        // A receive may also end without a move, with a message that came before it.
        if has_moved.is_ok() {
            mailbox.take_asynchronous_ends(&mut ends);
        }
        drop(mailbox);
        ends.into_iter().for_each(|(on_end, delivery)| report(on_end, Ok(delivery)));
        match (has_moved?, own_end) {
            (_, Some(delivery)) => Ok(Advance::Ended(delivery)),
            (true, None) => Ok(Advance::Moved),
            (false, None) => self.own.compare_calls().map(|_| Advance::Idle),
        }
    }

    /// A message, as errors and warnings describe it.
    fn describe(&self, request: &MessageRequest) -> String {
        request.with_ranks(|rank| self.own.segment.name(rank))
    }

    /// Checks that the receiver of a send has not left or died.
    fn check_receiver(&self, request: &MessageRequest) -> Result<()> {
        let segment = &*self.own.segment;
        let Direction::Send(to) = request.direction else { return Ok(()) };
        if !segment.is_gone(to) {
            return Ok(());
        }
        // A rank that fails aborts before it leaves, and its reason is the better error.
        self.own.check()?;
        Err(self.end(self.lost(request, &[to])))
    }

    /// Whether an operation waits for a peer that is gone. A receive from any rank waits for every
    /// rank that has not left; a rank that has died may be the one that would have sent.
    fn has_lost(&self, operation: &Operation) -> bool {
        let segment = &*self.own.segment;
        match operation.peer() {
            _ if matches!(operation.stage, Stage::Ended(_)) => false,
            Some(peer) => segment.is_gone(peer),
            None => {
                let mut peers = segment.ranks().filter(|peer| *peer != self.own.rank);
                segment.ranks().any(|peer| segment.has_died(peer)) || peers.all(|peer| segment.is_gone(peer))
            }
        }
    }

    /// The number of the first of some operations whose peer is gone.
    fn find_lost(&self, is_one: impl Fn(&Operation) -> bool) -> Option<u64> {
        if !self.own.segment.has_gone() {
            return None;
        }
        let mailbox = self.lock();
        let lost = mailbox.operations.iter().find(|operation| is_one(operation) && self.has_lost(operation));
        lost.map(|operation| operation.number)
    }

    /// The error of a message whose peers are gone.
    fn lost(&self, request: &MessageRequest, peers: &[GroupRank]) -> Error {
        let (what, segment) = (self.describe(request), &*self.own.segment);
        let gone = list_ranks(peers.iter().map(|peer| segment.name(*peer).0));
        error!(PeerLost, "{what}: {gone} {}", segment.how_gone(peers))
    }

    /// Lets the thread end, and warns of messages that were not received.
    pub(super) fn close(&self) {
        self.lock().thread = ProgressThread::Closed;
        self.changed.notify_all();
        self.warn_of_unreceived();
    }

    /// Warns once of messages that this rank has not received.
    pub(super) fn warn_of_unreceived(&self) {
        if self.own.segment.domain.is_aborted() {
            return;
        }
        let count = self.lock().count_unreceived(&self.own);
        if count > 0 && self.has_warned.set(()).is_ok() {
            let (own, messages) = (self.own.name(), count_of(count, "message"));
            event!(WARN, "rank {own}: the communicator ends with {messages} that this rank did not receive");
        }
    }
}

/// Tells the owner of an asynchronous message that it has ended. The owner's code may panic; the
/// thread goes on.
fn report(on_end: OnEnd, result: Result<Delivery>) {
    let _ = catch_unwind(AssertUnwindSafe(|| on_end(result)));
}
