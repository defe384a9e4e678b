//! A rank other than 0: looks for rank 0 until the deadline, and makes sure that it is rank 0.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::exchange::{LONGEST_OF_MEMBER, RendezvousMessage, unexpected_of_rank_0};
use super::{AttemptError, file, tcp};
use crate::environment::endpoint::{Endpoint, attempt_until, resolve};
use crate::error::{ErrorKind, Result, bail, error};
use crate::handshake::{Channel, Instance, Key, Obstacle, Participant, WireMessage, introduce, random, send_end};
use crate::util::interrupt;
use crate::util::wait::{RETRY, Stopped, Wait};

/// The longest pause between two attempts. The first one is [`RETRY`], and each further one twice
/// as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Connects to rank 0, and waits until all ranks have come. Gives the connection and rank 0's
/// nonce.
pub(super) fn connect(endpoint: &Endpoint, participant: &Participant<'_>) -> Result<(Channel, String)> {
    let Participant { first_rank: rank, world_size, deadline, .. } = *participant;
    let (mut channel, nonce) = find(endpoint, participant).map_err(|error| match error.kind() {
        ErrorKind::Interrupted => interrupt::ended(&error, format_args!("while rank 0 was not found at {endpoint}")),
        _ => error,
    })?;
    let warning = |seconds| {
        format!("rank {rank} has waited for {seconds} s: rank 0 is at {endpoint}, but not all ranks have come there")
    };
    let error = match channel.receive(LONGEST_OF_MEMBER, &mut Wait::until(deadline).warning(&warning)) {
        Ok(WireMessage::Step(RendezvousMessage::Complete)) => return Ok((channel, nonce)),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => error!(
            DeadlineExceeded,
            "rank 0 is at {endpoint}, but not all of the other {} came there before the deadline",
            world_size - 1
        ),
        other => {
            let error = unexpected_of_rank_0(other);
            // Rank 0 may take the rendezvous for complete. Then it learns of the error when it next
            // reads.
            send_end([&mut channel], &error);
            error
        }
    };
    channel.shut_down();
    Err(error)
}

/// Tries to find rank 0 until the deadline.
fn find(endpoint: &Endpoint, participant: &Participant<'_>) -> Result<(Channel, String)> {
    let Participant { first_rank: rank, deadline, .. } = *participant;
    let instance = random()?;
    let mut pause = RETRY;
    let reason = RefCell::new(String::new());
    let not_found = || format!("rank 0 was not found at {endpoint}");
    let last_attempt = || format!("at the last attempt: {}", reason.borrow());
    let warning = |seconds| format!("rank {rank} has waited for {seconds} s: {}; {}", not_found(), last_attempt());
    let mut waiting = Wait::until(deadline).warning(&warning);
    loop {
        match attempt(endpoint, participant, instance) {
            Ok(found) => return Ok(found),
            Err(AttemptError::Final(error)) => return Err(error),
            // An attempt that the deadline has cut short says less than the one before.
            Err(AttemptError::Passing(now)) if reason.borrow().is_empty() || Instant::now() < deadline => {
                reason.replace(now);
            }
            Err(AttemptError::Passing(_)) => {}
        }
        match waiting.sleep(pause) {
            Ok(()) => pause = LONGEST_PAUSE.min(pause * 2),
            Err(Stopped::Interrupted(interrupted)) => return Err(interrupted),
            Err(Stopped::Late) => bail!(DeadlineExceeded, "{} before the deadline; {}", not_found(), last_attempt()),
        }
    }
}

fn attempt(
    endpoint: &Endpoint,
    participant: &Participant<'_>,
    instance: Instance,
) -> Result<(Channel, String), AttemptError> {
    let (hosts, port, file_nonce) = match endpoint {
        Endpoint::Tcp { host, port } => (vec![host.clone()], *port, None),
        Endpoint::Mpi(_) => (Vec::new(), 0, None),
        Endpoint::File(path) => {
            let found = file::read(path)?;
            (found.hosts, found.port, Some(found.nonce))
        }
    };
    let key = Key::new(participant, file_nonce.as_ref())?;
    let mut reasons = Vec::new();
    for host in &hosts {
        let addresses = match resolve(host, port, participant.deadline) {
            Ok(addresses) => addresses,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error.into()),
            Err(error) => {
                reasons.push(error.to_string());
                continue;
            }
        };
        for address in addresses {
            match introduce_at(address, participant, &key, instance) {
                Err(AttemptError::Passing(reason)) => reasons.push(format!("{address}: {reason}")),
                other => return other,
            }
        }
    }
    Err(AttemptError::Passing(reasons.join("; ")))
}

/// Introduces this process at an address.
fn introduce_at(
    address: SocketAddr,
    participant: &Participant<'_>,
    key: &Key,
    instance: Instance,
) -> Result<(Channel, String), AttemptError> {
    let deadline = participant.deadline;
    let mut channel = tcp::connect(address, deadline)?;
    // The attempt is short; `find` logs a long wait.
    let mut waiting = Wait::until(attempt_until(deadline));
    let passing = |reason: &str| AttemptError::Passing(reason.to_owned());
    let nonce = introduce(&mut channel, participant, key, instance, &mut waiting).inspect_err(|_| channel.shut_down());
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
