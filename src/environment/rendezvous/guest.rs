//! A rank other than 0: looks for rank 0 until the deadline, and makes sure that it is rank 0.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::line::{Line, frame};
use super::protocol::{
    Answer, Claim, Instance, Key, LONGEST_OF_MEMBER, LONGEST_OF_STRANGER, Message, PROTOCOL, Sender, Statement, random,
};
use super::{Place, Terms, ended_by_rank_0, file, tcp};
use crate::error::{Error, Result, bail, error};
use crate::util::slow_warning::SlowWarning;

/// How long to wait before the second attempt; each further wait is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Why an attempt did not lead to rank 0.
pub(super) enum Obstacle {
    /// What may be otherwise later.
    Passing(String),
    Final(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Obstacle::Final(error)
    }
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Self {
        Obstacle::Passing(error.to_string())
    }
}

/// Hosts, each with a port, of which one is rank 0, and what to know there.
pub(super) struct Whereabouts {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) file_nonce: Option<String>,
}

/// Comes to the meeting, and waits until it is complete. Gives the connection to rank 0 and the meeting's nonce.
pub(super) fn visit(place: &Place, terms: &Terms<'_>) -> Result<(Line, String)> {
    let mut pause = FIRST_PAUSE;
    let mut slow = SlowWarning::new();
    let mut reason = String::new();
    let instance = random()?;
    let (mut line, nonce) = loop {
        match attempt(place, terms, instance) {
            Ok(found) => break found,
            Err(Obstacle::Final(error)) => return Err(error),
            Err(Obstacle::Passing(now)) if reason.is_empty() || Instant::now() < terms.deadline => reason = now,
            // An attempt that the deadline has cut short says less than the one before.
            Err(Obstacle::Passing(_)) => {}
        }
        slow.look(|seconds| {
            let rank = terms.rank;
            format!(
                "rank {rank} has waited for {seconds} s: rank 0 was not found at {place}; at the last attempt: {reason}"
            )
        });
        std::thread::sleep(pause.min(terms.deadline.saturating_duration_since(Instant::now())));
        pause = LONGEST_PAUSE.min(pause * 2);
        if Instant::now() >= terms.deadline {
            bail!(
                DeadlineExceeded,
                "rank 0 was not found at {place} before the deadline; at the last attempt: {reason}"
            );
        }
    };
    let came = loop {
        match line.receive(LONGEST_OF_MEMBER, slow.next_look(terms.deadline)) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut && Instant::now() < terms.deadline => slow.look(|seconds| {
                let rank = terms.rank;
                format!(
                    "rank {rank} has waited for {seconds} s: rank 0 is at {place}, but not all ranks have come there"
                )
            }),
            came => break came,
        }
    };
    let ended = match came {
        Ok(Message::Complete) => return Ok((line, nonce)),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => error!(
            DeadlineExceeded,
            "rank 0 is at {place}, but not all of the other {} came there before the deadline",
            terms.world_size - 1
        ),
        other => {
            let error = ended_by_rank_0(other);
            // Rank 0 may take the rendezvous for complete; then it learns of the error when it next
            // listens.
            super::tell(std::slice::from_mut(&mut line), &error);
            error
        }
    };
    Err(ended)
}

fn attempt(place: &Place, terms: &Terms<'_>, instance: Instance) -> Result<(Line, String), Obstacle> {
    let whereabouts = match place {
        Place::Tcp { host, port } => Whereabouts { hosts: vec![(host.clone(), *port)], file_nonce: None },
        Place::File(path) => file::read(path)?,
    };
    let key = Key::new(terms, whereabouts.file_nonce.as_deref())?;
    let mut reasons = Vec::new();
    for (host, port) in &whereabouts.hosts {
        let addresses = match tcp::resolve(host, *port, terms.deadline) {
            Ok(addresses) => addresses,
            Err(reason) => {
                reasons.push(reason);
                continue;
            }
        };
        for address in addresses {
            match introduce(address, terms, &key, instance) {
                Err(Obstacle::Passing(reason)) => reasons.push(format!("{address}: {reason}")),
                other => return other,
            }
        }
    }
    Err(Obstacle::Passing(reasons.join("; ")))
}

/// Says hello at an address, and believes an answer only from one who knows the key.
fn introduce(
    address: SocketAddr,
    terms: &Terms<'_>,
    key: &Key,
    instance: Instance,
) -> Result<(Line, String), Obstacle> {
    let mut line = tcp::connect(address, terms.deadline)?;
    let until = tcp::attempt_until(terms.deadline);
    let challenge = match line.receive(LONGEST_OF_STRANGER, until)? {
        Message::Greeting { protocol, challenge } if protocol == PROTOCOL => challenge,
        _ => return Err(Obstacle::Passing("the one who answers is no rank 0 of this version".to_owned())),
    };
    let claim = Claim { world_size: terms.world_size, rank: terms.rank, instance, challenge: random()? };
    let proof = key.prove(&Statement::Claim(&challenge, &claim))?;
    let job = key.name_job(&challenge, &claim)?;
    line.send(&[frame(&Message::Hello { protocol: PROTOCOL.to_owned(), claim, job, proof })?], until)?;
    match line.receive(LONGEST_OF_STRANGER, until)? {
        Message::Answer { answer, proof }
            if key.accepts(&Statement::Answer(&challenge, &claim, &answer), &proof)? =>
        {
            line.begin_session(key.session(Sender::Peer, &challenge, &claim, &answer)?);
            match answer {
                Answer::Welcome { nonce } => Ok((line, nonce)),
                Answer::Refused { reason } => Err(error!(Disagreement, "{reason}").into()),
            }
        }
        // Nothing proves this answer. To believe it lets somebody in the middle keep this rank out,
        // which he can do anyway.
        Message::Refusal { same_job: true } => Err(error!(
            Disagreement,
            "rank 0 at {address} refuses this rank for a wrong secret: DCL_SECRET, or the secret that the caller gives, has \
             to be the same on every rank"
        )
        .into()),
        Message::Refusal { same_job: false } => {
            Err(Obstacle::Passing("the rank 0 that answers is one of another job".to_owned()))
        }
        _ => Err(Obstacle::Passing("the process that answers does not know this job".to_owned())),
    }
}
