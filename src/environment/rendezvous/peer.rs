//! A rank other than 0: looks for rank 0 until the deadline, and makes sure that it is rank 0.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::candidates::{Candidates, Failure};
use super::exchange::{LONGEST_OF_MEMBER, Step, unexpected_of_rank_0};
use super::{file, tcp};
use crate::environment::endpoint::{Endpoint, attempt_until, resolve};
use crate::error::{ErrorKind, Result, bail, error};
use crate::handshake::{Channel, Introduction, Key, Message, Obstacle, Participant, introduce, random, send_end};
use crate::util::interrupt;
use crate::util::slow_warning::SlowWarning;

/// How long to wait before the second attempt. Each further wait is twice as long as the one
/// before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Connects to rank 0, and waits until all ranks have come. Gives the connection and rank 0's
/// nonce.
pub(super) fn connect(endpoint: &Endpoint, participant: &Participant<'_>) -> Result<(Channel, String)> {
    let Participant { first_rank: rank, world_size, deadline, .. } = *participant;
    let mut slow = SlowWarning::new();
    let (mut channel, nonce) = find(endpoint, participant, &mut slow).map_err(|error| match error.kind() {
        ErrorKind::Interrupted => interrupt::ended(&error, format_args!("while rank 0 was not found at {endpoint}")),
        _ => error,
    })?;
    let received = channel.receive_with_warning(LONGEST_OF_MEMBER, deadline, &mut slow, &|seconds| {
        format!("rank {rank} has waited for {seconds} s: rank 0 is at {endpoint}, but not all ranks have come there")
    });
    match received {
        Ok(Message::Step(Step::Complete)) => Ok((channel, nonce)),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => bail!(
            DeadlineExceeded,
            "rank 0 is at {endpoint}, but not all of the other {} came there before the deadline",
            world_size - 1
        ),
        other => {
            let error = unexpected_of_rank_0(other);
            // Rank 0 may take the rendezvous for complete. Then it learns of the error when it next
            // reads.
            send_end([&mut channel], &error);
            Err(error)
        }
    }
}

/// Tries to find rank 0 until the deadline.
fn find(endpoint: &Endpoint, participant: &Participant<'_>, slow: &mut SlowWarning) -> Result<(Channel, String)> {
    let Participant { first_rank: rank, deadline, .. } = *participant;
    let instance = random()?;
    let mut pause = FIRST_PAUSE;
    let mut reason = String::new();
    loop {
        match attempt(endpoint, participant, instance) {
            Ok(found) => return Ok(found),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(now)) if reason.is_empty() || Instant::now() < deadline => reason = now,
            // An attempt that the deadline has cut short says less than the one before.
            Err(Failure::Passing(_)) => {}
        }
        slow.look(|seconds| {
            format!(
                "rank {rank} has waited for {seconds} s: rank 0 was not found at {endpoint}; at the last attempt: {reason}"
            )
        });
        interrupt::sleep(pause.min(deadline.saturating_duration_since(Instant::now())))?;
        pause = LONGEST_PAUSE.min(pause * 2);
        if Instant::now() >= deadline {
            bail!(
                DeadlineExceeded,
                "rank 0 was not found at {endpoint} before the deadline; at the last attempt: {reason}"
            );
        }
    }
}

fn attempt(
    endpoint: &Endpoint,
    participant: &Participant<'_>,
    instance: crate::handshake::Instance,
) -> Result<(Channel, String), Failure> {
    let candidates = match endpoint {
        Endpoint::Tcp { host, port } => Candidates { hosts: vec![(host.clone(), *port)], file_nonce: None },
        Endpoint::File(path) => file::read(path)?,
    };
    let key = Key::new(participant, candidates.file_nonce.as_deref())?;
    let introduction = Introduction { participant, key: &key, instance };
    let mut reasons = Vec::new();
    for (host, port) in &candidates.hosts {
        let addresses = match resolve(host, *port, participant.deadline) {
            Ok(addresses) => addresses,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error.into()),
            Err(error) => {
                reasons.push(error.to_string());
                continue;
            }
        };
        for address in addresses {
            match introduce_at(address, &introduction) {
                Err(Failure::Passing(reason)) => reasons.push(format!("{address}: {reason}")),
                other => return other,
            }
        }
    }
    Err(Failure::Passing(reasons.join("; ")))
}

/// Introduces this process at an address.
fn introduce_at(address: SocketAddr, introduction: &Introduction<'_>) -> Result<(Channel, String), Failure> {
    let deadline = introduction.participant.deadline;
    let mut channel = tcp::connect(address, deadline)?;
    // The attempt is short; `find` logs a long wait.
    let mut slow = SlowWarning::never();
    let until = attempt_until(deadline);
    let passing = |reason: &str| Failure::Passing(reason.to_owned());
    let nonce = introduce(&mut channel, introduction, until, &mut slow, &|_| String::new());
    let nonce = nonce.map_err(|obstacle| match obstacle {
        Obstacle::Connection(e) => e.into(),
        Obstacle::Failed(error) => error.into(),
        Obstacle::OtherProtocol => passing("the process that answers is no rank 0 of this version"),
        Obstacle::OtherJob => passing("the rank 0 that answers is one of another job"),
        Obstacle::NoProof | Obstacle::Ended(_) => passing("the process that answers does not know this job"),
        Obstacle::Refused(reason) => error!(Disagreement, "{reason}").into(),
        // Nothing proves this. An attacker on the way could use it to keep this rank out, and can
        // do that anyway.
        Obstacle::WrongSecret => error!(
            Disagreement,
            "rank 0 at {address} refuses this rank for a wrong secret: DCL_SECRET, or the secret that the caller gives, has \
             to be the same on every rank"
        )
        .into(),
    })?;
    Ok((channel, nonce))
}
