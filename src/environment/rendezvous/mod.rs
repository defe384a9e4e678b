//! The rendezvous of a job's ranks across machines: what has to reach every rank before there is a communicator, by way of
//! rank 0, over TCP.
//!
//! Rank 0 listens, at a host and port that every rank was given, or on a port of the system's choice that it writes into a
//! file. The others connect to it. Both ends prove that they know the job's text, the secret where there is one, and the
//! file's nonce where there is a file; whoever cannot is sent away, and the meeting goes on.
//!
//! The proofs keep other jobs and strangers out. Nothing is encrypted, and what is said after the proofs is not protected.
//! Without a secret, whoever reaches the port and guesses the job's text can take part; so a network that is not trusted needs
//! one (`DCL_SECRET`), and a long random one, for whoever listens there can try guesses at leisure.

mod file;
mod guest;
mod host;
mod line;
mod protocol;
mod tcp;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::rank::list_ranks;
use line::{Line, frame, wait};
use protocol::{Key, LONGEST_OF_MEMBER, Message, random_text};

/// The longest part that a rank may give, in bytes.
pub(crate) const LONGEST_PART: usize = 64 << 10;

/// How many random bytes name a meeting.
const NONCE_BYTES: usize = 16;

/// Where the processes of a job find rank 0.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Rank 0 listens at this host and port.
    Tcp { host: String, port: u16 },
    /// Rank 0 listens at every address of its machine, on a port that the system chooses, and writes into this file where. The
    /// file has to be absent or empty before, and is gone afterwards; all ranks have to be the same user. One file is for one
    /// job: rank 0 of a second one fails while it is there.
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { host, port } => write!(f, "{host}:{port}"),
            Place::File(path) => write!(f, "the meeting of file {path:?}"),
        }
    }
}

/// Who comes.
#[derive(Clone)]
pub(crate) struct Terms<'a> {
    /// The same text on every rank of the job, and on no other job's.
    pub(crate) job: &'a str,
    /// What only ranks of the job know.
    pub(crate) secret: Option<&'a str>,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) deadline: Instant,
}

/// All ranks of a job, connected in a star around rank 0.
pub(crate) struct Meeting {
    rank: u32,
    nonce: String,
    star: Star,
    /// What ended the meeting; nothing can be exchanged after that.
    end: Option<Error>,
}

/// This rank's connections.
enum Star {
    /// Those of rank 0 to all others, in order.
    Center(Vec<Line>),
    /// That of another rank to rank 0.
    Ray { line: Line, world_size: u32 },
}

/// The rendezvous's port where none is set: the one after MASTER_PORT, or before it where there is none after. MASTER_PORT
/// itself belongs to the launcher: torchrun's store listens there.
pub(crate) fn default_port(master_port: u16) -> u16 {
    master_port.checked_add(1).unwrap_or(u16::MAX - 1)
}

/// Meets the other ranks of the job.
///
/// # Errors
///
/// A rank that is not one of the world; on rank 0 a port that is in use, a file that has content; a file that is not as it has
/// to be; ranks that do not come before the deadline; a refusal by rank 0, which is not of this rank's world size or has this
/// rank already.
pub(crate) fn meet(place: &Place, terms: &Terms<'_>) -> Result<Meeting> {
    if terms.rank >= terms.world_size {
        bail!(InvalidArgument, "rank {} is not one of {}", terms.rank, terms.world_size);
    }
    let (star, nonce) = if terms.rank == 0 {
        let nonce = random_text::<NONCE_BYTES>()?;
        (Star::Center(receive_guests(place, terms, &nonce)?), nonce)
    } else {
        let (line, nonce) = guest::visit(place, terms)?;
        (Star::Ray { line, world_size: terms.world_size }, nonce)
    };
    Ok(Meeting { rank: terms.rank, nonce, star, end: None })
}

/// Rank 0's part. A world of one opens no socket.
fn receive_guests(place: &Place, terms: &Terms<'_>, nonce: &str) -> Result<Vec<Line>> {
    let gather =
        |listener: &TcpListener, file_nonce| host::gather(listener, place, terms, &Key::new(terms, file_nonce)?, nonce);
    let lines = match place {
        Place::Tcp { .. } if terms.world_size == 1 => Vec::new(),
        Place::Tcp { host, port } => gather(&tcp::listen(host, *port, terms.deadline)?, None)?,
        Place::File(path) => {
            file::check_unused(path)?;
            if terms.world_size == 1 {
                return Ok(Vec::new());
            }
            let listener = tcp::listen_anywhere()?;
            let port =
                listener.local_addr().map_err(|e| error!(System, "a socket without address").with_source(e))?.port();
            let announcement = file::announce(path, port)?;
            gather(&listener, Some(announcement.nonce()))?
        }
    };
    // From here on the kernel refuses latecomers, and the file is gone.
    let result = send_to_all(&lines, &frame(&Message::Complete)?, terms.deadline);
    if let Err(error) = &result {
        tell(&lines, error);
    }
    result.map(|()| lines)
}

impl Meeting {
    /// A text that is the same on all ranks and on no other meeting's.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Gives every rank every rank's part, in the order of ranks. Collective. After an error on any rank the meeting is over,
    /// and further calls return that error.
    ///
    /// # Errors
    ///
    /// A part that is too long; a rank that does not come before the deadline, or is lost: all ranks are told which.
    pub(crate) fn exchange(&mut self, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let parts = if part.len() > LONGEST_PART {
            let (rank, len) = (self.rank, part.len());
            Err(error!(
                InvalidArgument,
                "rank {rank} gave a part of {len} bytes, and at most {LONGEST_PART} are allowed"
            ))
        } else {
            match &mut self.star {
                Star::Center(lines) => collect(lines, part, deadline),
                Star::Ray { line, world_size } => contribute(line, *world_size, part, deadline),
            }
        };
        if let Err(error) = &parts {
            match &self.star {
                Star::Center(lines) => tell(lines, error),
                Star::Ray { line, .. } => line.hang_up(),
            }
            self.end = Some(error.clone());
        }
        parts
    }
}

/// Rank 0's exchange: takes a part from every rank, and sends all to each.
fn collect(lines: &mut [Line], part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let mut parts: Vec<Option<Vec<u8>>> = vec![None; lines.len()];
    loop {
        for (rank, (line, part)) in (1..).zip(lines.iter_mut().zip(&mut parts)) {
            match line.pull(LONGEST_OF_MEMBER) {
                Ok(None) => {}
                Ok(Some(Message::Part(bytes))) if part.is_none() => *part = Some(bytes),
                Ok(Some(_)) => return Err(lost(rank, out_of_turn())),
                Err(e) => return Err(lost(rank, e)),
            }
        }
        let missing: Vec<u32> = (1..).zip(&parts).filter(|(_, part)| part.is_none()).map(|(rank, _)| rank).collect();
        if missing.is_empty() {
            break;
        }
        if Instant::now() >= deadline {
            let world_size = lines.len() + 1;
            bail!(DeadlineExceeded, "{} of {world_size} gave no part before the deadline", list_ranks(missing));
        }
        // Those whose part has come are watched too, so that an end of theirs is noticed at once.
        let mut fds: Vec<PollFd<'_>> = lines.iter().map(|line| PollFd::new(line, PollFlags::IN)).collect();
        wait(&mut fds, deadline)
            .map_err(|e| error!(System, "rank 0 cannot wait for the others: {e}").with_source(e))?;
    }
    let parts: Vec<Vec<u8>> = std::iter::once(part.to_vec()).chain(parts.into_iter().flatten()).collect();
    let mut bytes = Vec::new();
    for part in &parts {
        bytes.extend(frame(&Message::Part(part.clone()))?);
    }
    send_to_all(lines, &bytes, deadline)?;
    Ok(parts)
}

fn send_to_all(lines: &[Line], bytes: &[u8], deadline: Instant) -> Result<()> {
    for (rank, line) in (1..).zip(lines) {
        line.send(bytes, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => error!(DeadlineExceeded, "rank {rank} did not listen before the deadline"),
            _ => lost(rank, e),
        })?;
    }
    Ok(())
}

/// The exchange of another rank.
fn contribute(line: &mut Line, world_size: u32, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    // Where this fails, reading tells why, for rank 0 says it before it stops listening.
    let _ = line.send(&frame(&Message::Part(part.to_vec()))?, deadline);
    (0..world_size)
        .map(|_| match line.receive(LONGEST_OF_MEMBER, deadline) {
            Ok(Message::Part(part)) => Ok(part),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                Err(error!(DeadlineExceeded, "some rank gave no part, or rank 0 did not answer, before the deadline"))
            }
            other => Err(ended_by_rank_0(other)),
        })
        .collect()
}

/// Tells the other ranks, as far as they listen, why rank 0 ends the meeting.
fn tell(lines: &[Line], error: &Error) {
    let reason = error.to_string();
    let is_late = error.kind() == ErrorKind::DeadlineExceeded;
    let message = if is_late { Message::Late(reason) } else { Message::Lost(reason) };
    if let Ok(bytes) = frame(&message) {
        lines.iter().for_each(|line| drop(line.send(&bytes, Instant::now())));
    }
}

/// What another rank makes of something that came from rank 0 instead of what it waits for.
fn ended_by_rank_0(came: io::Result<Message>) -> Error {
    match came {
        Ok(Message::Late(reason)) => error!(DeadlineExceeded, "{reason}"),
        Ok(Message::Lost(reason)) => error!(PeerLost, "{reason}"),
        Ok(_) => lost(0, out_of_turn()),
        Err(e) => lost(0, e),
    }
}

fn lost(rank: u32, e: io::Error) -> Error {
    error!(PeerLost, "rank {rank} was lost: {e}").with_source(e)
}

fn out_of_turn() -> io::Error {
    io::Error::other("it sent a message out of turn")
}
