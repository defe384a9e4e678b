//! What the ends say to each other, and how each proves to the other that it belongs to the job.
//!
//! Rank 0 greets every connection with a random challenge. The peer answers with its claim (its
//! rank, its world size, a challenge of its own) and a proof; rank 0 answers with a welcome or a
//! refusal, and its own proof. Proofs are HMACs over both challenges and all that is claimed, so
//! none is of use on another connection.
//!
//! After a welcome both ends derive two session keys from the handshake, one for each direction.
//! Every later message ends with a tag: an HMAC over the message and its sequence number. A message
//! that was altered, repeated, moved, or follows one that was left out has a wrong tag. Nothing is
//! encrypted.

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Terms;
use crate::error::{Error, ErrorKind, Result, bail, error};

/// The first words of both ends, and of the file. Another version has others.
pub(super) const PROTOCOL: &str = "distcollective rendezvous 2";

/// The longest message, in bytes, of an end that has not proved yet that it belongs to the job.
pub(super) const LONGEST_OF_STRANGER: usize = 256;

/// The longest message, in bytes, of a member: a part with what is around it.
pub(super) const LONGEST_OF_MEMBER: usize = super::LONGEST_PART + 8;

/// The longest reason, in bytes, that one end gives the other.
const LONGEST_REASON: usize = 4096;

/// How many bytes the tag of a message has.
pub(super) const TAG_BYTES: usize = size_of::<Proof>();

pub(super) type Challenge = [u8; 32];
pub(super) type Proof = [u8; 32];
pub(super) type Instance = [u8; 16];
/// SHA-256 of a message.
pub(super) type Digest = [u8; 32];

#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    /// Rank 0's first, to whoever connects.
    Greeting { protocol: String, challenge: Challenge },
    /// The peer's answer. `job` is a proof by the job's text alone; see [`Key::name_job`].
    Hello { protocol: String, claim: Claim, job: Proof, proof: Proof },
    /// Rank 0's answer to a peer whose proof is right.
    Answer { answer: Answer, proof: Proof },
    /// Rank 0's answer to a peer whose proof is wrong: the two share no key, so there is nothing to
    /// prove.
    Refusal { same_job: bool },
    /// Rank 0 to all: every rank has come, or every rank has received all parts.
    Complete,
    /// What one rank gives to all.
    Part(Vec<u8>),
    /// This rank has received all parts.
    Received,
    /// The sender ends the rendezvous.
    End { why: Why, reason: String },
}

/// What kind of error ends a rendezvous.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum Why {
    /// Ranks did not come, or said nothing, before the deadline.
    Late,
    /// A rank was lost, or the sender itself failed.
    Lost,
    /// Ranks contradict each other.
    Disagreement,
}

impl Message {
    /// What tells the other end of an error of this one.
    pub(super) fn end(error: &Error) -> Self {
        let why = match error.kind() {
            ErrorKind::DeadlineExceeded => Why::Late,
            ErrorKind::Disagreement => Why::Disagreement,
            _ => Why::Lost,
        };
        let mut reason = error.to_string();
        if reason.len() > LONGEST_REASON {
            let end = (0..=LONGEST_REASON).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
            reason.truncate(end);
            reason.push_str(" ...");
        }
        Message::End { why, reason }
    }
}

impl Why {
    /// The error of the end that is told.
    pub(super) fn error(self, reason: impl Into<String>) -> Error {
        let kind = match self {
            Why::Late => ErrorKind::DeadlineExceeded,
            Why::Lost => ErrorKind::PeerLost,
            Why::Disagreement => ErrorKind::Disagreement,
        };
        Error::new(kind, reason)
    }
}

/// Who a peer says it is.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) world_size: u32,
    pub(super) rank: u32,
    /// The same in all attempts of one process, and another one in every other process.
    pub(super) instance: Instance,
    pub(super) challenge: Challenge,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome { nonce: String },
    Refused { reason: String },
}

/// What a proof is of, or a key for. The challenge is rank 0's; that of the peer is in its claim.
#[derive(Serialize)]
pub(super) enum Statement<'a> {
    /// The peer is who it says.
    Claim(&'a Challenge, &'a Claim),
    /// This is rank 0's answer to that.
    Answer(&'a Challenge, &'a Claim, &'a Answer),
    /// Never sent: its proof is the session key of one direction.
    SessionKey(&'a Challenge, &'a Claim, &'a Answer, Sender),
}

/// Which end of a connection sends.
#[derive(Clone, Copy, Serialize)]
pub(super) enum Sender {
    Rank0,
    Peer,
}

/// What only members of the job know: the job's text, the secret and the file's nonce.
pub(super) struct Key {
    whole: Hmac<Sha256>,
    /// The same without the secret.
    job: Hmac<Sha256>,
}

impl Key {
    pub(super) fn new(terms: &Terms<'_>, file_nonce: Option<&str>) -> Result<Self> {
        let whole = hmac_of(&encode(&(PROTOCOL, terms.job, terms.secret, file_nonce))?)?;
        let job = hmac_of(&encode(&(PROTOCOL, "job", terms.job, file_nonce))?)?;
        Ok(Key { whole, job })
    }

    /// What only one who knows the key can say about a statement.
    pub(super) fn prove(&self, statement: &Statement<'_>) -> Result<Proof> {
        Ok(self.over(statement)?.finalize().into_bytes().into())
    }

    /// Whether a proof is right; it takes as long for every wrong one.
    pub(super) fn accepts(&self, statement: &Statement<'_>, proof: &Proof) -> Result<bool> {
        Ok(self.over(statement)?.verify_slice(proof).is_ok())
    }

    /// Says which job a claim is for, so that rank 0 can tell a wrong secret from another job. It
    /// keeps nobody out. It helps somebody who guesses the job's text no more than the proof of a
    /// job without secret does.
    pub(super) fn name_job(&self, challenge: &Challenge, claim: &Claim) -> Result<Proof> {
        let named = encode(&Statement::Claim(challenge, claim))?;
        Ok(self.job.clone().chain_update(named).finalize().into_bytes().into())
    }

    /// The keys of a session that begins with this handshake, for the end that is `own`.
    pub(super) fn session(
        &self,
        own: Sender,
        challenge: &Challenge,
        claim: &Claim,
        answer: &Answer,
    ) -> Result<Session> {
        let direction = |sender| -> Result<Direction> {
            let key = self.prove(&Statement::SessionKey(challenge, claim, answer, sender))?;
            Ok(Direction { key: hmac_of(&key)?, sequence_number: 0 })
        };
        let (from_rank_0, from_peer) = (direction(Sender::Rank0)?, direction(Sender::Peer)?);
        Ok(match own {
            Sender::Rank0 => Session { sent: from_rank_0, received: from_peer },
            Sender::Peer => Session { sent: from_peer, received: from_rank_0 },
        })
    }

    fn over(&self, statement: &Statement<'_>) -> Result<Hmac<Sha256>> {
        Ok(self.whole.clone().chain_update(encode(statement)?))
    }
}

fn hmac_of(key: &[u8]) -> Result<Hmac<Sha256>> {
    Hmac::new_from_slice(key).map_err(|e| error!(System, "no key for the rendezvous").with_source(e))
}

/// One end's keys of a connection after the handshake.
pub(super) struct Session {
    sent: Direction,
    received: Direction,
}

/// The messages of one direction.
struct Direction {
    key: Hmac<Sha256>,
    /// That of the next message.
    sequence_number: u64,
}

impl Direction {
    /// The HMAC over the next message and its number.
    fn next(&mut self, message: &Digest) -> Hmac<Sha256> {
        let number = self.sequence_number.to_le_bytes();
        // A connection does not live for 2^64 messages.
        self.sequence_number += 1;
        self.key.clone().chain_update(number).chain_update(message)
    }
}

impl Session {
    /// The tag of the next message that is sent.
    pub(super) fn tag(&mut self, message: &Digest) -> Proof {
        self.sent.next(message).finalize().into_bytes().into()
    }

    /// Whether the next message that was received has the right tag.
    pub(super) fn accepts(&mut self, message: &Digest, tag: &[u8]) -> bool {
        self.received.next(message).verify_slice(tag).is_ok()
    }
}

/// What stands for a message in its tag.
pub(super) fn digest(message: &[u8]) -> Digest {
    Sha256::digest(message).into()
}

/// A value's bytes; no two values of a type have one of which the other's is the beginning.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|e| error!(System, "a message of the rendezvous has no bytes").with_source(e))
}

/// Bytes that nobody can guess.
pub(super) fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    let filled = rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))
        .map_err(|e| error!(System, "no random numbers").with_source(std::io::Error::from(e)))?;
    if filled != LEN {
        bail!(System, "{LEN} random bytes are needed, and {filled} came");
    }
    Ok(bytes)
}

/// A text of two hexadecimal digits for each of `LEN` random bytes.
pub(super) fn random_text<const LEN: usize>() -> Result<String> {
    Ok(random::<LEN>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
