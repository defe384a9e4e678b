//! An exchange: every rank gives a part, and every rank gets all parts. Rank 0 takes a part from
//! each rank, sends all parts to each, and waits until each has received them; then it tells all
//! that the exchange is complete.

use std::io;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use super::{ended, lost, out_of_turn};
use crate::error::{Error, Result, error};
use crate::handshake::{Channel, Frame, WireMessage, poll_for};
use crate::util::interrupt;
use crate::util::text::list_ranks;
use crate::util::wait::Wait;

/// The longest part that a rank may give, in bytes.
pub(super) const LONGEST_PART: usize = 64 << 10;

/// The longest message, in bytes, of a member: a part with what is around it.
pub(super) const LONGEST_OF_MEMBER: usize = LONGEST_PART + 8;

/// A message of the rendezvous after the handshake.
#[derive(Serialize, Deserialize)]
pub(super) enum RendezvousMessage {
    /// Rank 0 to all: every rank has come, or every rank has received all parts.
    Complete,
    /// What one rank gives to all.
    Part(Vec<u8>),
    /// This rank has received all parts.
    Received,
}

/// Rank 0's exchange.
pub(super) fn on_rank_0(channels: &mut [Channel], part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let parts = receive_from_all(channels, deadline, "gave no part", |step| match step {
        RendezvousMessage::Part(part) => Some(part),
        _ => None,
    })?;
    let parts: Vec<Vec<u8>> = std::iter::once(part.to_vec()).chain(parts).collect();
    let frames = parts.iter().map(|part| frame(RendezvousMessage::Part(part.clone()))).collect::<Result<Vec<_>>>()?;
    send_to_all(channels, &frames, deadline)?;
    receive_from_all(channels, deadline, "did not confirm the parts", |step| {
        matches!(step, RendezvousMessage::Received).then_some(())
    })?;
    send_to_all(channels, &[frame(RendezvousMessage::Complete)?], deadline)?;
    Ok(parts)
}

/// The exchange of another rank.
pub(super) fn on_peer(channel: &mut Channel, world_size: u32, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let receive = |channel: &mut Channel| match channel.receive(LONGEST_OF_MEMBER, &mut Wait::until(deadline)) {
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            Err(error!(DeadlineExceeded, "some rank gave no part, or rank 0 did not answer, before the deadline"))
        }
        other => Ok(other),
    };
    // If sending fails, reading tells why, since rank 0 sends its end before it stops reading.
    let send = |channel: &mut Channel, step| match channel.send(&[frame(step)?], deadline) {
        Err(e) if interrupt::of_io(&e).is_some() => Err(lost(0, e)),
        _ => Ok(()),
    };
    send(channel, RendezvousMessage::Part(part.to_vec()))?;
    let parts = (0..world_size)
        .map(|_| match receive(channel)? {
            Ok(WireMessage::Step(RendezvousMessage::Part(part))) => Ok(part),
            other => Err(unexpected_of_rank_0(other)),
        })
        .collect::<Result<_>>()?;
    send(channel, RendezvousMessage::Received)?;
    match receive(channel)? {
        Ok(WireMessage::Step(RendezvousMessage::Complete)) => Ok(parts),
        other => Err(unexpected_of_rank_0(other)),
    }
}

/// The error of a rank that received this from rank 0 and not what it waits for.
pub(super) fn unexpected_of_rank_0(received: io::Result<WireMessage<RendezvousMessage>>) -> Error {
    match received {
        Ok(WireMessage::End(end)) => ended(end, 0),
        Ok(WireMessage::Step(_)) => lost(0, out_of_turn()),
        Err(e) => lost(0, e),
    }
}

/// Sends messages to all other ranks.
pub(super) fn send_to_all(channels: &mut [Channel], frames: &[Frame], deadline: Instant) -> Result<()> {
    for (rank, channel) in (1..).zip(channels) {
        channel.send(frames, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => error!(DeadlineExceeded, "rank {rank} did not listen before the deadline"),
            _ => lost(rank, e),
        })?;
    }
    Ok(())
}

/// Receives one message from each of the other ranks. `expected` gives its content, if it is the
/// one that is waited for.
fn receive_from_all<T>(
    channels: &mut [Channel],
    deadline: Instant,
    otherwise: &str,
    expected: impl Fn(RendezvousMessage) -> Option<T>,
) -> Result<Vec<T>> {
    let mut waiting = Wait::until(deadline);
    let mut received: Vec<Option<T>> = channels.iter().map(|_| None).collect();
    loop {
        for (rank, (channel, received)) in (1..).zip(channels.iter_mut().zip(&mut received)) {
            match channel.try_receive(LONGEST_OF_MEMBER) {
                Ok(None) => {}
                Ok(Some(WireMessage::End(end))) => return Err(ended(end, rank)),
                Ok(Some(WireMessage::Step(step))) => match expected(step) {
                    Some(value) if received.is_none() => *received = Some(value),
                    _ => return Err(lost(rank, out_of_turn())),
                },
                Err(e) => return Err(lost(rank, e)),
            }
        }
        let missing: Vec<u32> =
            (1..).zip(&received).filter(|(_, value)| value.is_none()).map(|(rank, _)| rank).collect();
        if missing.is_empty() {
            return Ok(received.into_iter().flatten().collect());
        }
        let sleep = waiting.step().map_err(|stopped| {
            let (missing, world_size) = (list_ranks(missing), channels.len() + 1);
            let late = format_args!("{missing} of {world_size} {otherwise} before the deadline");
            stopped.error(format_args!("while it waited for {missing}"), late)
        })?;
        // The ranks whose message has come are watched too, so that rank 0 notices their end at
        // once.
        let mut fds: Vec<PollFd<'_>> = channels.iter().map(|channel| PollFd::new(channel, PollFlags::IN)).collect();
        poll_for(&mut fds, sleep)
            .map_err(|e| error!(System, "rank 0 cannot wait for the others: {e}").with_source(e))?;
    }
}

fn frame(step: RendezvousMessage) -> Result<Frame> {
    Frame::new(&WireMessage::Step(step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::{LENGTH_BYTES, encode_frame};

    #[test]
    fn the_longest_part_fits_its_message() {
        let frame = encode_frame(&WireMessage::Step(RendezvousMessage::Part(vec![0; LONGEST_PART]))).expect("bytes");
        assert!((LONGEST_PART + 1..=LONGEST_OF_MEMBER).contains(&(frame.len() - LENGTH_BYTES)));
    }
}
