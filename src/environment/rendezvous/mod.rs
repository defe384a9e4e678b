//! The rendezvous of a job's ranks across machines: what has to reach every rank before there is a communicator, by way of
//! rank 0, over TCP.
//!
//! Rank 0 listens, at a host and port that every rank was given, or on a port of the system's
//! choice that it writes into a file. The others connect to it. In the handshake both ends prove
//! that they know the job's text, the secret where there is one, and the file's nonce where there
//! is a file. Rank 0 refuses a peer that cannot, and goes on waiting.
//!
//! What is authenticated: the handshake, and after it every message in both directions, by a tag
//! under a key of that connection and direction (see [`protocol`]). A peer in the middle that
//! alters, repeats, reorders or leaves out a message ends the rendezvous with an error; nothing
//! that it altered is accepted. What is not: nothing is encrypted, and rank 0's answer that a peer
//! has a wrong secret has no proof, since the two share no key.
//!
//! A peer that proves the key and contradicts rank 0 (another world size, a rank that is there
//! already) ends the rendezvous for every rank that has come. A peer that does not prove it cannot:
//! rank 0 counts it, and names the number at the deadline.
//!
//! Without a secret, a process that reaches the port and guesses the job's text can take part. A
//! network that is not trusted needs a secret (`DCL_SECRET`), and a long random one: somebody who
//! listens there can try guesses at leisure.

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

use crate::error::{Error, Result, bail, error};
use crate::util::text::list_ranks;
use line::{Frame, Line, frame, wait};
use protocol::{Key, LONGEST_OF_MEMBER, Message, random_text};

/// The longest part that a rank may give, in bytes.
pub(crate) const LONGEST_PART: usize = 64 << 10;

/// The most ranks of a rendezvous. Rank 0 holds a connection, and so a file descriptor, for each of
/// the others; Linux gives a process no more than 2^20 of them unless the administrator raises
/// that, and 1024 unless the user does.
pub(crate) const MAX_RANKS: u32 = 1 << 16;

/// How many random bytes name a meeting.
const NONCE_BYTES: usize = 16;

/// Where the processes of a job find rank 0.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Rank 0 listens at this host and port.
    Tcp { host: String, port: u16 },
    /// Rank 0 listens at every address of its machine, on a port that the system chooses, and
    /// writes into this file where. The file has to be absent or empty before, or left by a process
    /// of this machine that has ended; it is gone afterwards. All ranks have to be the same user.
    /// One file is for one job: rank 0 of a second one fails while it is there.
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
    pub(crate) secret: Option<&'a [u8]>,
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
/// A rank that is not one of the world; a world of more than [`MAX_RANKS`]; on rank 0 a port that
/// is in use, a file that has content; a file that is not as it has to be; ranks that do not come
/// before the deadline; ranks that have different world sizes or secrets, or are there twice; a
/// message with a wrong tag.
pub(crate) fn meet(place: &Place, terms: &Terms<'_>) -> Result<Meeting> {
    if terms.rank >= terms.world_size {
        bail!(InvalidArgument, "rank {} is not one of {}", terms.rank, terms.world_size);
    }
    if terms.world_size > MAX_RANKS {
        bail!(
            InvalidArgument,
            "world_size is {}; ranks that meet over TCP or through a file are at most {MAX_RANKS}",
            terms.world_size
        );
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
    let mut lines = match place {
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
    let result = send_to_all(&mut lines, &[frame(&Message::Complete)?], terms.deadline);
    if let Err(error) = &result {
        tell(&mut lines, error);
    }
    result.map(|()| lines)
}

impl Meeting {
    /// A text that is the same on all ranks and on no other meeting's.
    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Gives every rank every rank's part, in the order of ranks. Collective. A rank returns when
    /// rank 0 has told it that all ranks have received all parts, so that an error of one is an
    /// error of all, unless it concerns that last message only. After an error the meeting is over,
    /// and further calls return that error.
    ///
    /// # Errors
    ///
    /// A part that is too long; a message with a wrong tag; a rank that does not come before the
    /// deadline, or is lost: all ranks are told which.
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
            match &mut self.star {
                Star::Center(lines) => tell(lines, error),
                Star::Ray { line, .. } => {
                    tell(std::slice::from_mut(line), error);
                    line.hang_up();
                }
            }
            self.end = Some(error.clone());
        }
        parts
    }
}

/// Rank 0's exchange: takes a part from every rank, sends all to each, and waits until each has
/// received them.
fn collect(lines: &mut [Line], part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let parts = take_from_all(lines, deadline, "gave no part", |message| match message {
        Message::Part(part) => Some(part),
        _ => None,
    })?;
    let parts: Vec<Vec<u8>> = std::iter::once(part.to_vec()).chain(parts).collect();
    let frames = parts.iter().map(|part| frame(&Message::Part(part.clone()))).collect::<Result<Vec<_>>>()?;
    send_to_all(lines, &frames, deadline)?;
    take_from_all(lines, deadline, "did not confirm the parts", |message| {
        matches!(message, Message::Received).then_some(())
    })?;
    send_to_all(lines, &[frame(&Message::Complete)?], deadline)?;
    Ok(parts)
}

/// Takes one message from each of the other ranks, which `expected` understands.
fn take_from_all<T>(
    lines: &mut [Line],
    deadline: Instant,
    otherwise: &str,
    expected: impl Fn(Message) -> Option<T>,
) -> Result<Vec<T>> {
    let mut taken: Vec<Option<T>> = lines.iter().map(|_| None).collect();
    loop {
        for (rank, (line, taken)) in (1..).zip(lines.iter_mut().zip(&mut taken)) {
            match line.pull(LONGEST_OF_MEMBER) {
                Ok(None) => {}
                Ok(Some(Message::End { why, reason })) => {
                    return Err(why.error(format!("rank {rank} ended the rendezvous: {reason}")));
                }
                Ok(Some(message)) => match expected(message) {
                    Some(value) if taken.is_none() => *taken = Some(value),
                    _ => return Err(lost(rank, out_of_turn())),
                },
                Err(e) => return Err(lost(rank, e)),
            }
        }
        let missing: Vec<u32> = (1..).zip(&taken).filter(|(_, taken)| taken.is_none()).map(|(rank, _)| rank).collect();
        if missing.is_empty() {
            return Ok(taken.into_iter().flatten().collect());
        }
        if Instant::now() >= deadline {
            let world_size = lines.len() + 1;
            bail!(DeadlineExceeded, "{} of {world_size} {otherwise} before the deadline", list_ranks(missing));
        }
        // Those whose message has come are watched too, so that an end of theirs is noticed at
        // once.
        let mut fds: Vec<PollFd<'_>> = lines.iter().map(|line| PollFd::new(line, PollFlags::IN)).collect();
        wait(&mut fds, deadline)
            .map_err(|e| error!(System, "rank 0 cannot wait for the others: {e}").with_source(e))?;
    }
}

fn send_to_all(lines: &mut [Line], frames: &[Frame], deadline: Instant) -> Result<()> {
    for (rank, line) in (1..).zip(lines) {
        line.send(frames, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => error!(DeadlineExceeded, "rank {rank} did not listen before the deadline"),
            _ => lost(rank, e),
        })?;
    }
    Ok(())
}

/// The exchange of another rank.
fn contribute(line: &mut Line, world_size: u32, part: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
    let answer = |line: &mut Line| match line.receive(LONGEST_OF_MEMBER, deadline) {
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            Err(error!(DeadlineExceeded, "some rank gave no part, or rank 0 did not answer, before the deadline"))
        }
        other => Ok(other),
    };
    // Where sending fails, reading tells why, for rank 0 says it before it stops listening.
    let _ = line.send(&[frame(&Message::Part(part.to_vec()))?], deadline);
    let parts = (0..world_size)
        .map(|_| match answer(line)? {
            Ok(Message::Part(part)) => Ok(part),
            other => Err(ended_by_rank_0(other)),
        })
        .collect::<Result<_>>()?;
    let _ = line.send(&[frame(&Message::Received)?], deadline);
    match answer(line)? {
        Ok(Message::Complete) => Ok(parts),
        other => Err(ended_by_rank_0(other)),
    }
}

/// Tells the other ends, as far as they listen, why this one ends the rendezvous.
fn tell(lines: &mut [Line], error: &Error) {
    if let Ok(frame) = frame(&Message::end(error)) {
        let frames = [frame];
        lines.iter_mut().for_each(|line| drop(line.send(&frames, Instant::now())));
    }
}

/// What another rank makes of something that came from rank 0 instead of what it waits for.
fn ended_by_rank_0(came: io::Result<Message>) -> Error {
    match came {
        Ok(Message::End { why, reason }) => why.error(reason),
        Ok(_) => lost(0, out_of_turn()),
        Err(e) => lost(0, e),
    }
}

/// The error of an end that gets nothing more from rank `rank`.
fn lost(rank: u32, e: io::Error) -> Error {
    let error = match e.kind() {
        io::ErrorKind::InvalidData => error!(
            PeerLost,
            "a message from rank {rank} has a wrong tag: messages were altered, repeated or left out on the way"
        ),
        _ => error!(PeerLost, "rank {rank} was lost: {e}"),
    };
    error.with_source(e)
}

fn out_of_turn() -> io::Error {
    io::Error::other("it sent a message out of turn")
}
