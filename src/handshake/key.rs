//! How each end proves that it belongs to the job, and the keys of the tags that follow.

use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::frame::encode;
use super::hmac::Hmac;
use super::{Answer, Challenge, Claim, PROTOCOL, Participant, Proof};
use crate::error::{Result, bail, error};

/// How many bytes the tag of a message has.
pub(crate) const TAG_BYTES: usize = size_of::<Proof>();

/// SHA-256 of a message.
pub(super) type Digest = [u8; 32];

/// What a proof is about, or what a session key is derived from. The challenge is rank 0's; the
/// peer's challenge is in its claim.
#[derive(Serialize)]
pub(crate) enum Statement<'a> {
    /// The peer is the process that it claims to be.
    Claim(&'a Challenge, &'a Claim),
    /// This is rank 0's answer to that claim.
    Answer(&'a Challenge, &'a Claim, &'a Answer),
    /// Never sent: its proof is the session key of one direction.
    SessionKey(&'a Challenge, &'a Claim, &'a Answer, Sender),
}

/// Which end of a connection sends.
#[derive(Clone, Copy, Serialize)]
pub(crate) enum Sender {
    Rank0,
    Peer,
}

/// What only processes of the job know: the job's text, the secret and the nonce of the rendezvous
/// file, as far as there are any.
pub(crate) struct Key {
    whole: Hmac,
    /// The same without the secret.
    job: Hmac,
}

impl Key {
    /// The key of a process that takes part; `file_nonce` is the nonce of a rendezvous file.
    pub(crate) fn new(participant: &Participant<'_>, file_nonce: Option<&[u8; 32]>) -> Result<Self> {
        let whole = Hmac::new(&encode(&(PROTOCOL, participant.job, participant.secret, file_nonce))?);
        let job = Hmac::new(&encode(&(PROTOCOL, "job", participant.job, file_nonce))?);
        Ok(Key { whole, job })
    }

    /// The proof of a statement, which only a process that knows the key can make.
    pub(crate) fn prove(&self, statement: &Statement<'_>) -> Result<Proof> {
        Ok(self.over(statement)?.finalize())
    }

    /// Whether a proof is right. It takes equally long for every wrong one.
    pub(crate) fn accepts(&self, statement: &Statement<'_>, proof: &Proof) -> Result<bool> {
        Ok(self.over(statement)?.accepts(proof))
    }

    /// A proof of a claim without the secret, by which rank 0 tells a wrong secret from another
    /// job. It lets no process in.
    pub(crate) fn prove_job(&self, challenge: &Challenge, claim: &Claim) -> Result<Proof> {
        let claim = encode(&Statement::Claim(challenge, claim))?;
        Ok(self.job.clone().chain_update(claim).finalize())
    }

    /// The keys of the connection after this handshake, for the end that is `own`.
    pub(crate) fn session(
        &self,
        own: Sender,
        challenge: &Challenge,
        claim: &Claim,
        answer: &Answer,
    ) -> Result<Session> {
        let direction = |sender| -> Result<TagSequence> {
            let key = self.prove(&Statement::SessionKey(challenge, claim, answer, sender))?;
            Ok(TagSequence { key: Hmac::new(&key), sequence_number: 0 })
        };
        let (from_rank_0, from_peer) = (direction(Sender::Rank0)?, direction(Sender::Peer)?);
        Ok(match own {
            Sender::Rank0 => Session { sent: from_rank_0, received: from_peer },
            Sender::Peer => Session { sent: from_peer, received: from_rank_0 },
        })
    }

    fn over(&self, statement: &Statement<'_>) -> Result<Hmac> {
        Ok(self.whole.clone().chain_update(encode(statement)?))
    }
}

/// One end's keys of a connection after the handshake.
pub(crate) struct Session {
    sent: TagSequence,
    received: TagSequence,
}

/// The messages of one direction.
struct TagSequence {
    key: Hmac,
    /// The number of the next message.
    sequence_number: u64,
}

impl TagSequence {
    /// The HMAC over the next message and its number.
    fn next(&mut self, message: &Digest) -> Hmac {
        let number = self.sequence_number.to_le_bytes();
        // No connection carries 2^64 messages.
        self.sequence_number += 1;
        self.key.clone().chain_update(number).chain_update(message)
    }
}

impl Session {
    /// The tag of the next message that is sent.
    pub(super) fn tag(&mut self, message: &Digest) -> Proof {
        self.sent.next(message).finalize()
    }

    /// Whether the next message that was received has the right tag.
    pub(super) fn accepts(&mut self, message: &Digest, tag: &[u8]) -> bool {
        self.received.next(message).accepts(tag)
    }
}

/// What stands for a message in its tag.
pub(super) fn digest(message: &[u8]) -> Digest {
    Sha256::digest(message).into()
}

/// Bytes that no other process can guess.
pub(crate) fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    let filled = rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))
        .map_err(|e| error!(System, "no random numbers").with_source(std::io::Error::from(e)))?;
    if filled != LEN {
        bail!(System, "{LEN} random bytes are needed, and {filled} came");
    }
    Ok(bytes)
}

/// A text of two hexadecimal digits for each of `LEN` random bytes.
pub(crate) fn random_text<const LEN: usize>() -> Result<String> {
    Ok(random::<LEN>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Each connection and each direction has a key of its own.
    #[test]
    fn keys_are_of_one_connection_and_direction() {
        let participant = Participant { secret: Some(b"a secret"), ..Participant::new("a job", 0, 2, Instant::now()) };
        let key = Key::new(&participant, None).expect("a key");
        let claim = |first: u8| Claim {
            world_size: 2,
            first_rank: 1,
            rank_count: 1,
            instance: [0; 16],
            challenge: [first; 32],
        };
        let welcome = Answer::Welcome("0".repeat(32));
        let tag = |own, challenge: u8, claimed: u8| {
            let session = key.session(own, &[challenge; 32], &claim(claimed), &welcome);
            session.expect("a session").tag(&[7; 32])
        };
        let tags =
            [tag(Sender::Rank0, 1, 1), tag(Sender::Peer, 1, 1), tag(Sender::Rank0, 2, 1), tag(Sender::Rank0, 1, 2)];
        assert!(tags.iter().enumerate().all(|(i, tag)| !tags[..i].contains(tag)));
    }
}
