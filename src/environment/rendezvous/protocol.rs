//! What the ends say to each other, and how each proves to the other that it belongs to the job.
//!
//! Rank 0 greets every connection with a random challenge. The other end answers with who it is, a challenge of its own and a
//! proof; rank 0 answers with a welcome or a refusal, and its own proof. Proofs are HMACs over both challenges and all that is
//! claimed, so none is of use on another connection.

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Terms;
use crate::error::{Result, bail, error};

/// The first words of both ends, and of the file. Another version has others.
pub(super) const PROTOCOL: &str = "distcollective rendezvous 1";

/// The longest message, in bytes, of an end that has not proved yet that it belongs to the job.
pub(super) const LONGEST_OF_STRANGER: usize = 256;

/// The longest message, in bytes, of a member: a part with what is around it.
pub(super) const LONGEST_OF_MEMBER: usize = super::LONGEST_PART + 8;

pub(super) type Challenge = [u8; 32];
pub(super) type Proof = [u8; 32];

#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    /// Rank 0's first, to whoever connects.
    Greeting { protocol: String, challenge: Challenge },
    /// The other end's answer.
    Hello { protocol: String, claim: Claim, proof: Proof },
    /// Rank 0's answer to that.
    Answer { answer: Answer, proof: Proof },
    /// Everybody has come.
    Complete,
    /// What one rank gives to all.
    Part(Vec<u8>),
    /// Rank 0 ends the meeting: ranks did not come, or said nothing, before the deadline.
    Late(String),
    /// Rank 0 ends the meeting: a rank was lost, or rank 0 itself failed.
    Lost(String),
}

/// Who somebody says he is.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) world_size: u32,
    pub(super) rank: u32,
    pub(super) challenge: Challenge,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome { nonce: String },
    Refused { reason: String },
}

/// What a proof is of. The challenge is rank 0's; that of the other end is in its claim.
#[derive(Serialize)]
pub(super) enum Statement<'a> {
    /// The other end is who it says.
    Claim(&'a Challenge, &'a Claim),
    /// This is rank 0's answer to that.
    Answer(&'a Challenge, &'a Claim, &'a Answer),
}

/// What only members of the job know: the job's text, the secret and the file's nonce.
pub(super) struct Key(Hmac<Sha256>);

impl Key {
    pub(super) fn new(terms: &Terms<'_>, file_nonce: Option<&str>) -> Result<Self> {
        let known = encode(&(PROTOCOL, terms.job, terms.secret, file_nonce))?;
        let key =
            Hmac::new_from_slice(&known).map_err(|e| error!(System, "no key for the rendezvous").with_source(e))?;
        Ok(Key(key))
    }

    /// What only one who knows the key can say about a statement.
    pub(super) fn prove(&self, statement: &Statement<'_>) -> Result<Proof> {
        Ok(self.over(statement)?.finalize().into_bytes().into())
    }

    /// Whether a proof is right; it takes as long for every wrong one.
    pub(super) fn accepts(&self, statement: &Statement<'_>, proof: &Proof) -> Result<bool> {
        Ok(self.over(statement)?.verify_slice(proof).is_ok())
    }

    fn over(&self, statement: &Statement<'_>) -> Result<Hmac<Sha256>> {
        Ok(self.0.clone().chain_update(encode(statement)?))
    }
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
