//! Rank 0: gathers the others, in one loop over all connections, so that no stranger holds anybody up.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::line::{Line, frame, wait};
use super::protocol::{
    Answer, Challenge, Claim, Key, LONGEST_OF_STRANGER, Message, PROTOCOL, Proof, Statement, random,
};
use super::{Place, Terms};
use crate::error::{Error, Result, bail, error};
use crate::rank::list_ranks;

/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The most connections that have not said hello yet; the oldest makes room for a further one.
const PENDING_HELLOS: usize = 64;

/// How long to leave connections alone that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

/// A connection that has not said hello yet.
struct Stranger {
    line: Line,
    challenge: Challenge,
    until: Instant,
}

struct Gathering<'a> {
    terms: &'a Terms<'a>,
    key: &'a Key,
    nonce: &'a str,
    /// By rank; that of rank 0 itself stays empty.
    members: Vec<Option<Line>>,
    strangers: VecDeque<Stranger>,
}

/// Waits until all other ranks are there, and gives the connections to them, in order.
pub(super) fn gather(
    listener: &TcpListener,
    place: &Place,
    terms: &Terms<'_>,
    key: &Key,
    nonce: &str,
) -> Result<Vec<Line>> {
    listener.set_nonblocking(true).map_err(failed)?;
    let members = (0..terms.world_size).map(|_| None).collect();
    let mut gathering = Gathering { terms, key, nonce, members, strangers: VecDeque::new() };
    let gathered = gathering.run(listener, place);
    let members: Vec<Line> = gathering.members.into_iter().flatten().collect();
    match gathered {
        Ok(()) => Ok(members),
        Err(error) => {
            super::tell(&members, &error);
            Err(error)
        }
    }
}

fn failed(e: std::io::Error) -> Error {
    error!(System, "rank 0 cannot wait for the others: {e}").with_source(e)
}

impl Gathering<'_> {
    fn run(&mut self, listener: &TcpListener, place: &Place) -> Result<()> {
        loop {
            let missing: Vec<u32> =
                (1..self.terms.world_size).filter(|&rank| self.members[rank as usize].is_none()).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= self.terms.deadline {
                let world_size = self.terms.world_size;
                bail!(
                    DeadlineExceeded,
                    "{} of {world_size} did not come to {place} before the deadline",
                    list_ranks(missing)
                );
            }
            self.turn(listener)?;
        }
    }

    /// Waits for anything to happen, and sees to it: who has left, who says hello, and one who comes.
    fn turn(&mut self, listener: &TcpListener) -> Result<()> {
        let lines = self.members.iter().flatten().chain(self.strangers.iter().map(|stranger| &stranger.line));
        let all = std::iter::once(listener.as_fd()).chain(lines.map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // The first of the strangers is the oldest.
        let until = self.strangers.front().map_or(self.terms.deadline, |stranger| stranger.until);
        wait(&mut fds, until.min(self.terms.deadline)).map_err(failed)?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ready = ready.into_iter();
        let someone_comes = ready.next() == Some(true);
        for (rank, member) in self.members.iter_mut().enumerate().filter(|(_, member)| member.is_some()) {
            // A member says nothing until the meeting is complete, so it has closed the connection.
            if ready.next() == Some(true) {
                tracing::warn!("rank {rank} left before the meeting was complete");
                *member = None;
            }
        }
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.line.pull(LONGEST_OF_STRANGER) {
                Ok(Some(message)) => self.judge(stranger, message)?,
                Ok(None) if Instant::now() < stranger.until => self.strangers.push_back(stranger),
                Ok(None) => tracing::warn!("a stranger came to the meeting and did not say hello in time"),
                Err(e) => tracing::warn!("a stranger came to the meeting and did not say hello: {e}"),
            }
        }
        if someone_comes { self.accept(listener) } else { Ok(()) }
    }

    /// Lets one connection in and greets it.
    fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        let Ok(line) = listener.accept().and_then(|(stream, _)| Line::new(stream)) else {
            // The caller has left, or this process has no handle for it. The strangers' handles come back in time.
            std::thread::sleep(ACCEPT_PAUSE);
            return Ok(());
        };
        let challenge = random()?;
        let now = Instant::now();
        if line.send(&frame(&Message::Greeting { protocol: PROTOCOL.to_owned(), challenge })?, now).is_ok() {
            if self.strangers.len() == PENDING_HELLOS {
                self.strangers.pop_front();
            }
            self.strangers.push_back(Stranger { line, challenge, until: now + HELLO_TIMEOUT });
        }
        Ok(())
    }

    /// Makes a stranger a member, or says why not.
    fn judge(&mut self, stranger: Stranger, message: Message) -> Result<()> {
        let Stranger { line, challenge, .. } = stranger;
        let claim = match message {
            Message::Hello { protocol, claim, proof }
                if protocol == PROTOCOL && self.key.accepts(&Statement::Claim(&challenge, &claim), &proof)? =>
            {
                claim
            }
            _ => {
                let reason = "wrong secret or another job".to_owned();
                tracing::warn!("a stranger was refused: {reason}");
                // There is nothing to prove to a stranger.
                return answer(&line, Answer::Refused { reason }, Proof::default());
            }
        };
        let verdict = match self.objection(&claim)? {
            None => Answer::Welcome { nonce: self.nonce.to_owned() },
            Some(reason) => {
                tracing::warn!("a rank was refused: {reason}");
                Answer::Refused { reason }
            }
        };
        let proof = self.key.prove(&Statement::Answer(&challenge, &claim, &verdict))?;
        let is_welcome = matches!(verdict, Answer::Welcome { .. });
        answer(&line, verdict, proof)?;
        if is_welcome {
            self.members[claim.rank as usize] = Some(line);
        }
        Ok(())
    }

    /// Why a rank of the job cannot take part.
    fn objection(&mut self, claim: &Claim) -> Result<Option<String>> {
        let Claim { world_size, rank, .. } = *claim;
        if world_size != self.terms.world_size {
            let expected = self.terms.world_size;
            return Ok(Some(format!("it expects {world_size} ranks, and rank 0 expects {expected}")));
        }
        let Some(place) = self.members.get_mut(rank as usize) else {
            return Ok(Some(format!("rank {rank} is not one of {world_size}")));
        };
        if let Some(member) = place
            && member.has_news().map_err(failed)?
        {
            // It left just now.
            *place = None;
        }
        Ok((rank == 0 || place.is_some()).then(|| format!("rank {rank} is there already")))
    }
}

/// Answers a hello. Who does not take it has left, which shows soon.
fn answer(line: &Line, answer: Answer, proof: Proof) -> Result<()> {
    let _ = line.send(&frame(&Message::Answer { answer, proof })?, Instant::now());
    Ok(())
}
