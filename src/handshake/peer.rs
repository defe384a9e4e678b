//! The side of a process that connects to rank 0's.

use std::io;

use super::channel::{Channel, Frame};
use super::key::{Key, Sender, Statement, random};
use super::{Answer, Claim, EndReason, Handshake, Instance, LONGEST_ANSWER, PROTOCOL, Participant, WireMessage};
use crate::error::Error;
use crate::util::wait::Wait;

/// Why rank 0 did not welcome a process.
pub(crate) enum Obstacle {
    /// The connection failed, or a message came that is not one of the protocol.
    Connection(io::Error),
    /// The other end does not speak this version of the protocol.
    OtherProtocol,
    /// The other end is rank 0 of another job. Nothing proves that.
    OtherJob,
    /// Rank 0 is of the same job and has another secret. Nothing proves that.
    WrongSecret,
    /// The other end does not know the job.
    NoProof,
    /// Rank 0 has proved that it is rank 0, and refuses this process.
    Refused(String),
    /// Rank 0 ends the bootstrap. Only a local channel yields this.
    Ended(EndReason),
    /// This process itself failed.
    Failed(Error),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Self {
        Obstacle::Connection(error)
    }
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Obstacle::Failed(error)
    }
}

/// Introduces this process to rank 0. `instance` is made once in a process for all of its attempts.
/// Gives the nonce of rank 0's welcome; see [`Answer::Welcome`].
pub(crate) fn introduce(
    channel: &mut Channel,
    participant: &Participant<'_>,
    key: &Key,
    instance: Instance,
    waiting: &mut Wait<'_>,
) -> Result<String, Obstacle> {
    let challenge = match receive(channel, waiting)? {
        Handshake::Greeting { protocol, challenge } if protocol == PROTOCOL => challenge,
        _ => return Err(Obstacle::OtherProtocol),
    };
    let Participant { world_size, first_rank, rank_count, .. } = *participant;
    let claim = Claim { world_size, first_rank, rank_count, instance, challenge: random()? };
    let proof = key.prove(&Statement::Claim(&challenge, &claim))?;
    let job = key.prove_job(&challenge, &claim)?;
    let hello = Handshake::Hello { protocol: PROTOCOL.to_owned(), claim, job, proof };
    // If this fails, reading tells why: rank 0 may have sent its end before it closed the
    // connection.
    let _ = channel.send(&[Frame::new(&WireMessage::Step(hello))?], waiting.deadline());
    match receive(channel, waiting)? {
        Handshake::Answer { answer, proof }
            if key.accepts(&Statement::Answer(&challenge, &claim, &answer), &proof)? =>
        {
            channel.begin_session(key.session(Sender::Peer, &challenge, &claim, &answer)?);
            match answer {
                Answer::Welcome(nonce) => Ok(nonce),
                Answer::Refused(reason) => Err(Obstacle::Refused(reason)),
            }
        }
        Handshake::Refusal { same_job: true } => Err(Obstacle::WrongSecret),
        Handshake::Refusal { same_job: false } => Err(Obstacle::OtherJob),
        _ => Err(Obstacle::NoProof),
    }
}

fn receive(channel: &mut Channel, waiting: &mut Wait<'_>) -> Result<Handshake, Obstacle> {
    match channel.receive(LONGEST_ANSWER, waiting)? {
        WireMessage::Step(message) => Ok(message),
        WireMessage::End(end) if channel.is_local() => Err(Obstacle::Ended(end)),
        WireMessage::End(_) => Err(Obstacle::NoProof),
    }
}
