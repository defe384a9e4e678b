//! Rank 0: gathers the others, in one loop over all connections, so that no stranger holds anybody up.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::line::{Line, frame, wait};
use super::protocol::{
    Answer, Challenge, Claim, Instance, Key, LONGEST_OF_STRANGER, Message, PROTOCOL, Sender, Statement, random,
};
use super::{Place, Terms};
use crate::comm::host::make_room_for_processes;
use crate::error::{Error, Result, bail, error};
use crate::util::slow_warning::SlowWarning;
use crate::util::text::{count_of, list_ranks};

/// How long a connection may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The most connections that have not said hello yet; the oldest makes room for a further one.
const PENDING_HELLOS: usize = 64;

/// How much longer than a stranger may take rank 0 goes on without a descriptor.
const DESCRIPTOR_GRACE: Duration = Duration::from_secs(1);

/// How long to leave connections alone that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

/// A connection that has not said hello yet.
struct Stranger {
    line: Line,
    challenge: Challenge,
    until: Instant,
}

/// A rank that has come.
struct Member {
    line: Line,
    instance: Instance,
}

struct Gathering<'a> {
    terms: &'a Terms<'a>,
    key: &'a Key,
    nonce: &'a str,
    /// By rank; that of rank 0 itself stays empty.
    members: Vec<Option<Member>>,
    strangers: VecDeque<Stranger>,
    /// Since when there has been no descriptor for a peer that comes.
    starved_since: Option<Instant>,
    /// How many connections were refused because their secret was wrong.
    wrong_secrets: usize,
    /// How many connections were refused because they were for another job.
    other_jobs: usize,
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
    make_room_for_processes(terms.world_size as usize);
    let members = (0..terms.world_size).map(|_| None).collect();
    let mut gathering = Gathering {
        terms,
        key,
        nonce,
        members,
        strangers: VecDeque::new(),
        starved_since: None,
        wrong_secrets: 0,
        other_jobs: 0,
    };
    let gathered = gathering.run(listener, place);
    let mut members: Vec<Line> = gathering.members.into_iter().flatten().map(|member| member.line).collect();
    match gathered {
        Ok(()) => Ok(members),
        Err(error) => {
            super::tell(&mut members, &error);
            Err(error)
        }
    }
}

fn failed(e: std::io::Error) -> Error {
    error!(System, "rank 0 cannot wait for the others: {e}").with_source(e)
}

impl Gathering<'_> {
    fn run(&mut self, listener: &TcpListener, place: &Place) -> Result<()> {
        let mut slow = SlowWarning::new();
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
                    "{} of {world_size} did not come to {place} before the deadline{}",
                    list_ranks(missing),
                    self.refusals()
                );
            }
            slow.look(|seconds| {
                let verb = if missing.len() == 1 { "has" } else { "have" };
                let (missing, refusals) = (list_ranks(missing), self.refusals());
                format!("rank 0 has waited for {seconds} s: {missing} {verb} not come to {place}{refusals}")
            });
            self.turn(listener, slow.next_look(self.terms.deadline))?;
        }
    }

    /// Waits until something happens, but not beyond `latest`: forgets members that have left,
    /// reads the hellos of strangers, and accepts one connection.
    fn turn(&mut self, listener: &TcpListener, latest: Instant) -> Result<()> {
        let lines = self
            .members
            .iter()
            .flatten()
            .map(|member| &member.line)
            .chain(self.strangers.iter().map(|stranger| &stranger.line));
        let all = std::iter::once(listener.as_fd()).chain(lines.map(AsFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // The first of the strangers is the oldest.
        let until = self.strangers.front().map_or(latest, |stranger| stranger.until);
        wait(&mut fds, until.min(latest)).map_err(failed)?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ready = ready.into_iter();
        let someone_comes = ready.next() == Some(true);
        for (rank, member) in self.members.iter_mut().enumerate().filter(|(_, member)| member.is_some()) {
            // A member says nothing until the meeting is complete, so it has closed the connection.
            if ready.next() == Some(true) {
                crate::util::log::event!(WARN, "rank {rank} left before the meeting was complete");
                *member = None;
            }
        }
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.line.pull(LONGEST_OF_STRANGER) {
                Ok(Some(message)) => self.judge(stranger, message)?,
                Ok(None) if Instant::now() < stranger.until => self.strangers.push_back(stranger),
                Ok(None) => {
                    crate::util::log::event!(WARN, "a stranger came to the meeting and did not say hello in time")
                }
                Err(e) => crate::util::log::event!(WARN, "a stranger came to the meeting and did not say hello: {e}"),
            }
        }
        if someone_comes { self.accept(listener) } else { Ok(()) }
    }

    /// Lets one connection in and greets it.
    fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        let mut line = match listener.accept().and_then(|(stream, _)| Line::new(stream)) {
            Ok(line) => line,
            Err(e) => {
                // The peer has left, or this process has no descriptor for it. Those of strangers
                // come back in time.
                let is_starved = matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                let since = self.starved_since.filter(|_| is_starved).unwrap_or_else(Instant::now);
                self.starved_since = is_starved.then_some(since);
                if since.elapsed() >= HELLO_TIMEOUT + DESCRIPTOR_GRACE {
                    bail!(
                        System,
                        "rank 0's process has no file descriptor left for the ranks that come: accept: {e}; it needs about {}, \
                         which RLIMIT_NOFILE has to allow",
                        self.terms.world_size
                    );
                }
                std::thread::sleep(ACCEPT_PAUSE);
                return Ok(());
            }
        };
        self.starved_since = None;
        let challenge = random()?;
        let now = Instant::now();
        let greeting = frame(&Message::Greeting { protocol: PROTOCOL.to_owned(), challenge })?;
        if line.send(&[greeting], now).is_ok() {
            if self.strangers.len() == PENDING_HELLOS {
                self.strangers.pop_front();
            }
            self.strangers.push_back(Stranger { line, challenge, until: now + HELLO_TIMEOUT });
        }
        Ok(())
    }

    /// What a deadline error says of refused connections: one of them may be a missing rank.
    fn refusals(&self) -> String {
        let refused = [(self.wrong_secrets, "with a wrong secret"), (self.other_jobs, "for another job")];
        let refused = refused.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> =
            refused.map(|(count, what)| format!("{} {what}", count_of(*count, "connection"))).collect();
        if parts.is_empty() { String::new() } else { format!("; rank 0 refused {}", parts.join(" and ")) }
    }

    /// Makes a stranger a member, or refuses it. A peer that knows the key and contradicts rank 0
    /// ends the rendezvous.
    fn judge(&mut self, stranger: Stranger, message: Message) -> Result<()> {
        let Stranger { mut line, challenge, .. } = stranger;
        let Message::Hello { protocol, claim, job, proof } = message else {
            crate::util::log::event!(WARN, "a stranger was refused: it sent a message out of turn");
            return Ok(());
        };
        if protocol != PROTOCOL || !self.key.accepts(&Statement::Claim(&challenge, &claim), &proof)? {
            let same_job = protocol == PROTOCOL && self.key.name_job(&challenge, &claim)? == job;
            let (count, reason) = match same_job {
                true => (&mut self.wrong_secrets, "a wrong secret"),
                false => (&mut self.other_jobs, "another job"),
            };
            *count += 1;
            crate::util::log::event!(WARN, "a stranger was refused: {reason}");
            return answer(&mut line, &Message::Refusal { same_job });
        }
        let objection = self.objection(&claim)?;
        let verdict = match &objection {
            None => Answer::Welcome { nonce: self.nonce.to_owned() },
            Some(reason) => Answer::Refused { reason: reason.clone() },
        };
        let proof = self.key.prove(&Statement::Answer(&challenge, &claim, &verdict))?;
        let session = self.key.session(Sender::Rank0, &challenge, &claim, &verdict)?;
        answer(&mut line, &Message::Answer { answer: verdict, proof })?;
        if let Some(reason) = objection {
            bail!(Disagreement, "{reason}");
        }
        line.begin_session(session);
        self.members[claim.rank as usize] = Some(Member { line, instance: claim.instance });
        Ok(())
    }

    /// Why a rank of the job cannot take part.
    fn objection(&mut self, claim: &Claim) -> Result<Option<String>> {
        let Claim { world_size, rank, .. } = *claim;
        if world_size != self.terms.world_size {
            let expected = self.terms.world_size;
            return Ok(Some(format!(
                "ranks have to be given the same world size: rank {rank} has {world_size}, and rank 0 has {expected}"
            )));
        }
        let Some(place) = self.members.get_mut(rank as usize) else {
            return Ok(Some(format!("rank {rank} is not one of {world_size}")));
        };
        // It left just now; or it comes again, and the end of its first connection was lost on the
        // way.
        if let Some(member) = place
            && (member.instance == claim.instance || member.line.has_news().map_err(failed)?)
        {
            *place = None;
        }
        Ok((rank == 0 || place.is_some()).then(|| format!("two processes say that they are rank {rank}")))
    }
}

/// Answers a hello. A peer that does not take the answer has left, which shows soon.
fn answer(line: &mut Line, message: &Message) -> Result<()> {
    let _ = line.send(&[frame(message)?], Instant::now());
    Ok(())
}
