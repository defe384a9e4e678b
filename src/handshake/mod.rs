//! The handshake: how rank 0 and the other processes of a job find out that they belong together,
//! before there is a communicator. Two users build on it: the host backend's bootstrap (on an
//! abstract Unix socket of one machine) and the environment's rendezvous (over TCP).
//!
//! Rank 0's process listens, the others connect. docs/src/internals.md shows the messages.
//!
//! A proof is an HMAC over both challenges and all that is claimed, so it is of no use on another
//! connection. Its key is what only the job knows ([`Key`]). Rank 0 refuses a peer whose proof is
//! wrong and goes on waiting. A peer whose proof is right and whose claim contradicts rank 0
//! (another world size, a rank that has come already) ends the handshake for every process that has
//! come: the job cannot start.
//!
//! The transports differ in what the kernel guarantees:
//!
//! | | Unix socket | TCP |
//! |---|---|---|
//! | who can connect | processes of this user; both ends check (`SO_PEERCRED`) | any process that reaches the port |
//! | key | the job's text | the job's text, the secret, the nonce of the rendezvous file |
//! | messages after the handshake | plain, since no third process can write into the connection | each has a tag |
//! | an end before the proof | believed | not believed |
//!
//! A tag is an HMAC over the message and its sequence number, under a key that both ends derive
//! from the handshake for that connection and direction. A message that was altered, repeated,
//! moved, or follows one that was left out has a wrong tag. Nothing is encrypted.

mod channel;
mod credentials;
mod frame;
mod hmac;
mod key;
mod peer;
mod rank_0;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(crate) use channel::{Channel, Frame, Listener, connect_abstract, poll_for, refused_user, wait};
pub(crate) use credentials::{Peer, check_own_user, own_user};
#[cfg(test)]
pub(crate) use frame::{LENGTH_BYTES, decode, encode_frame};
pub(crate) use key::{Key, random, random_text};
#[cfg(test)]
pub(crate) use key::{Sender, Statement, TAG_BYTES};
pub(crate) use peer::{Obstacle, introduce};
pub(crate) use rank_0::{Member, PeerGathering};

use crate::error::{Error, ErrorKind};
use crate::rank::Rank;

/// The protocol and its version: what both ends say first, and what a rendezvous file is of.
pub(crate) const PROTOCOL: &str = "distcollective handshake 1";

/// How long a connection may take until its hello has come.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest message, in bytes, that rank 0 reads from a process before it has proved that it
/// belongs to the job.
pub(crate) const LONGEST_HELLO: usize = 256;

/// The longest message, in bytes, that a peer reads from rank 0 during the handshake.
pub(crate) const LONGEST_ANSWER: usize = LONGEST_REASON + 64;

/// The longest reason, in bytes, that one end gives the other.
const LONGEST_REASON: usize = 4096;

pub(crate) type Challenge = [u8; 32];
pub(crate) type Proof = [u8; 32];
pub(crate) type Instance = [u8; 16];

/// A process that takes part, and what it knows of its job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Participant<'a> {
    /// The same text in every process of the job, and in no other job's.
    pub(crate) job: &'a str,
    /// Bytes that only processes of the job know.
    pub(crate) secret: Option<&'a [u8]>,
    pub(crate) world_size: u32,
    /// The ranks of this process.
    pub(crate) first_rank: u32,
    pub(crate) rank_count: u32,
    /// How errors of the communicator name its ranks, if not by their numbers.
    pub(crate) names: Option<&'a [Rank]>,
    pub(crate) deadline: Instant,
}

impl<'a> Participant<'a> {
    /// One rank, without a secret.
    pub(crate) fn new(job: &'a str, first_rank: u32, world_size: u32, deadline: Instant) -> Self {
        Participant { job, secret: None, world_size, first_rank, rank_count: 1, names: None, deadline }
    }

    pub(crate) fn names(&self) -> Option<Box<[Rank]>> {
        self.names.map(Box::from)
    }
}

/// A message on a connection. The type of what it carries follows from the step.
#[derive(Serialize, Deserialize)]
pub(crate) enum WireMessage<T> {
    /// The sender ends the bootstrap or rendezvous.
    End(EndReason),
    Step(T),
}

/// A message of the handshake.
#[derive(Serialize, Deserialize)]
pub(crate) enum Handshake {
    /// Rank 0's first message to every connection.
    Greeting { protocol: String, challenge: Challenge },
    /// The peer's reply. `job` is a proof with the job's text alone; see [`Key::prove_job`].
    Hello { protocol: String, claim: Claim, job: Proof, proof: Proof },
    /// Rank 0's reply to a peer whose proof is right.
    Answer { answer: Answer, proof: Proof },
    /// Rank 0's reply to a peer whose proof is wrong. The two share no key, so rank 0 cannot prove
    /// anything either.
    Refusal { same_job: bool },
}

/// What a peer says that it is.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) world_size: u32,
    pub(crate) first_rank: u32,
    pub(crate) rank_count: u32,
    /// The same in all attempts of one process, and another one in every other process.
    pub(crate) instance: Instance,
    pub(crate) challenge: Challenge,
}

impl Claim {
    /// The peer's ranks, if they are ranks of its world.
    pub(crate) fn ranks(&self) -> Option<Range<u32>> {
        let end = self.first_rank.checked_add(self.rank_count)?;
        (self.rank_count > 0 && end <= self.world_size).then_some(self.first_rank..end)
    }
}

/// Rank 0's decision about a claim.
#[derive(Serialize, Deserialize)]
pub(crate) enum Answer {
    /// With a nonce that is the same for all ranks. Over TCP no other gathering has it. On a Unix
    /// socket it is empty.
    Welcome(String),
    /// With the reason.
    Refused(String),
}

/// Why the sender ends the bootstrap or rendezvous.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndReason {
    pub(crate) cause: Cause,
    pub(crate) reason: String,
}

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cause {
    /// Ranks did not come, or sent nothing, before the deadline.
    Late,
    /// Ranks contradict each other.
    Disagreement,
    /// A rank was lost, or the sender itself failed.
    Failed,
}

impl Cause {
    /// The kind of error that the receiver returns; `failed` is the kind for [`Cause::Failed`].
    pub(crate) fn kind(self, failed: ErrorKind) -> ErrorKind {
        match self {
            Cause::Late => ErrorKind::DeadlineExceeded,
            Cause::Disagreement => ErrorKind::Disagreement,
            Cause::Failed => failed,
        }
    }
}

impl From<&Error> for EndReason {
    fn from(error: &Error) -> Self {
        let cause = match error.kind() {
            ErrorKind::DeadlineExceeded => Cause::Late,
            ErrorKind::Disagreement => Cause::Disagreement,
            _ => Cause::Failed,
        };
        let mut reason = error.to_string();
        if reason.len() > LONGEST_REASON {
            let end = (0..=LONGEST_REASON).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
            reason.truncate(end);
            reason.push_str(" ...");
        }
        EndReason { cause, reason }
    }
}

/// Tells the other ends, as far as they listen, why this one ends the bootstrap or rendezvous.
pub(crate) fn send_end<'a>(channels: impl IntoIterator<Item = &'a mut Channel>, error: &Error) {
    if let Ok(frame) = Frame::new(&WireMessage::<()>::End(error.into())) {
        let frames = [frame];
        channels.into_iter().for_each(|channel| drop(channel.send(&frames, Instant::now())));
    }
}
