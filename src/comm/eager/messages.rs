//! Messages from one rank to another, in the manner of torch.distributed's send and recv: calls
//! that wait for their end.

use std::time::Instant;

use crate::comm::Communicator;
use crate::comm::message::{Delivery, Direction, MAX_TAG, MessageRequest};
use crate::error::{Error, Result, bail};
use crate::issue_order::Extent;
use crate::memory::{RawTensor, TensorView, TensorViewMut};
use crate::rank::Rank;
use crate::util::interrupt;

/// From which rank a message is received.
///
/// A rank or its number converts to it, and so does an `Option`: `None` is any rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This rank.
    Rank(Rank),
    /// Any rank. A message that has arrived is taken, or else the first that arrives.
    Any,
}

impl From<u32> for Source {
    fn from(number: u32) -> Self {
        Source::Rank(Rank(number))
    }
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Self {
        Source::Rank(rank)
    }
}

impl From<Option<Rank>> for Source {
    fn from(rank: Option<Rank>) -> Self {
        rank.map_or(Source::Any, Source::Rank)
    }
}

/// What a receive has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The rank that sent it.
    pub source: Rank,
    /// How many elements it has: as many as the buffer, or fewer.
    pub element_count: usize,
}

impl Received {
    pub(super) fn of(delivery: Delivery) -> Self {
        Received { source: Rank(delivery.source.0), element_count: delivery.element_count }
    }
}

/// # Messages
///
/// A message goes from one rank to another. A receive takes the first message of its communicator
/// with its tag, in the order in which the sender sent them; messages with other tags may be
/// received before or later. A message may be shorter than the receive's buffer. Any buffer fits
/// that a collective takes; see [Collectives](#collectives).
///
/// ```
/// use distcollective::comm::{MAX_TAG, Source};
/// use distcollective::Communicator;
///
/// let received = Communicator::spawn(2, |communicator| {
///     if communicator.rank().0 == 0 {
///         communicator.send(&[1.0f32, 2.0], 1, MAX_TAG)?;
///         return Ok(0);
///     }
///     let mut buffer = [0.0f32; 4];
///     let received = communicator.recv(&mut buffer, Source::Any, MAX_TAG)?;
///     assert_eq!((received.source.0, received.element_count), (0, 2));
///     assert_eq!(buffer, [1.0, 2.0, 0.0, 0.0]);
///     Ok(received.element_count)
/// })?;
/// assert_eq!(received, [0, 2]);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// Messages are not collective. On the host they are not ordered against collectives either, and
/// several threads of a rank may send and receive at the same time.
///
/// # Room
///
/// On the host a send does not wait for its receiver while there is room. A sender has room for 16
/// messages to each rank of a communicator that have not been received, of up to 4040 bytes each:
/// more than 64 ranks have less, 1992 bytes among 128 and 200 bytes among 1024. A longer message,
/// or one for which there is no room, waits until its receiver takes it. So ranks that send to each
/// other before they receive wait for each other, if their messages are long:
/// [`batch_isend_irecv`](Self::batch_isend_irecv) is for that. After a second a warning in the log
/// names the ranks of such a cycle, and the error at the deadline does too. While
/// a receive that a peer may serve, or a long send to it, has not ended, the peer's other messages
/// move to private memory. That has no limit, and the peer does not wait.
///
/// A rank that drops its last handle logs how many messages it has not received.
///
/// # On GPUs
///
/// NCCL has neither tags nor receives from any rank: the tag is 0, and the source a rank. Sender
/// and receiver give the same type and length. It orders messages and collectives by issue, so
/// ranks that send to each other put their messages into one
/// [`batch_isend_irecv`](Self::batch_isend_irecv).
impl Communicator {
    /// Sends a message to rank `dst`, with a tag from 0 to [`MAX_TAG`]. Returns when the buffer may
    /// be changed; the message may not have been received by then.
    #[doc = include_str!("message_errors.md")]
    pub fn send<'a>(
        &self,
        buffer: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        dst: impl Into<Rank>,
        tag: u32,
    ) -> Result<()> {
        let view = buffer.try_into().map_err(|error| self.about(&"send", error.into()))?;
        let message = self.message(Some(dst.into()), Source::Any, tag, *view.raw());
        // SAFETY: the view borrows the bytes during the call.
        unsafe { self.run_message("send", message) }.map(drop)
    }

    /// Receives a message with a tag from 0 to [`MAX_TAG`] into the beginning of a buffer. `src` is
    /// a rank, or `None` for any.
    #[doc = include_str!("message_errors.md")]
    pub fn recv<'a>(
        &self,
        buffer: impl TryInto<TensorViewMut<'a>, Error: Into<Error>>,
        src: impl Into<Source>,
        tag: u32,
    ) -> Result<Received> {
        let mut view = buffer.try_into().map_err(|error| self.about(&"recv", error.into()))?;
        let message = self.message(None, src.into(), tag, *view.raw());
        // SAFETY: the view borrows the bytes during the call.
        unsafe { self.run_message("recv", message) }
    }

    /// The message that a backend gets: to `dst` if there is one, else from `src`. Checks what the
    /// arguments show.
    pub(super) fn message(&self, dst: Option<Rank>, src: Source, tag: u32, raw: RawTensor) -> Result<MessageRequest> {
        let direction = match (dst, src) {
            (Some(dst), _) => Direction::Send(self.check_rank("dst", dst)?),
            (None, Source::Rank(src)) => Direction::Receive(Some(self.check_rank("src", src)?)),
            (None, Source::Any) => Direction::Receive(None),
        };
        let Some(tag) = u16::try_from(tag).ok().filter(|tag| u32::from(*tag) <= MAX_TAG) else {
            bail!(InvalidArgument, "tag {tag} is not from 0 to {MAX_TAG}")
        };
        let (data_type, element_count) = (raw.data_type.into(), raw.element_count());
        let message = MessageRequest { direction, tag, data_type, element_count, address: raw.located() };
        self.backend.check_message(&message)?;
        Ok(message)
    }

    /// Sends or receives a message, unless its arguments are wrong.
    ///
    /// # Safety
    ///
    /// As [`Backend::run_message`](crate::comm::backend::Backend::run_message).
    pub(super) unsafe fn run_message(&self, name: &str, message: Result<MessageRequest>) -> Result<Received> {
        let delivery = message.and_then(|message| {
            self.check_message_space(&message, true)?;
            let deadline: Instant = self.deadline();
            // SAFETY: the caller's promise.
            let run = || unsafe { self.backend.run_message(&message, deadline) };
            if self.backend.default_stream().is_some() {
                return self.in_turn(Extent::Communicator, &name, deadline, run);
            }
            self.check_process()?;
            interrupt::check_may_wait()?;
            run()
        });
        delivery.map(Received::of).map_err(|error| self.about(&name, error))
    }

    /// Checks that the backend reaches the buffer of a message; if the call waits, it may copy host
    /// memory to the GPU.
    pub(super) fn check_message_space(&self, message: &MessageRequest, is_blocking: bool) -> Result<()> {
        let (own, space) = (self.space(), message.address.space);
        let is_staged = is_blocking && space == crate::memory::MemorySpace::Host;
        if message.element_count == 0 || space == own || is_staged {
            return Ok(());
        }
        bail!(InvalidBuffer, "the buffer is in {space}, and the communicator on {own}")
    }
}
