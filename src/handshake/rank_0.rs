//! Rank 0's side: one loop over all connections, so that no process holds up another one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::channel::{Channel, Frame, Listener, poll_for, refused_user};
use super::key::{Key, Sender, Statement, random};
use super::{
    Answer, Challenge, Claim, EndReason, HELLO_TIMEOUT, Handshake, LONGEST_ANSWER, LONGEST_HELLO, PROTOCOL,
    Participant, WireMessage, send_end,
};
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::util::descriptors::{make_room_for_processes, resource_limits};
use crate::util::log;
use crate::util::text::{count_of, list_ranks};
use crate::util::wait::{RETRY, Wait};

/// The most accepted connections whose hello has not come yet. On a Unix socket rank 0 then accepts
/// no further one: those that it has are of this user, so they are likely to be peers. Over TCP it
/// closes the oldest for a further one, so that strangers cannot keep peers out; a peer connects
/// again.
const MOST_STRANGERS: usize = 64;

/// How long rank 0 goes on without a descriptor for a connection. Those of processes that send no
/// hello become free within this time.
const DESCRIPTOR_TIMEOUT: Duration = HELLO_TIMEOUT.saturating_add(Duration::from_secs(1));

/// What rank 0 needs to gather the other ranks.
pub(crate) struct PeerGathering<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) participant: &'a Participant<'a>,
    pub(crate) key: &'a Key,
    /// See [`Answer::Welcome`].
    pub(crate) nonce: &'a str,
    /// What warnings begin with: `job "a": `, or nothing.
    pub(crate) subject: String,
    /// Where the ranks come, in errors and warnings: ` to 10.0.0.1:29501`, or nothing.
    pub(crate) destination: String,
}

/// A process that has come and been welcomed.
pub(crate) struct Member {
    pub(crate) channel: Channel,
    pub(crate) claim: Claim,
}

impl PeerGathering<'_> {
    /// Waits until all other ranks have come. Gives their processes, ordered by rank. After an
    /// error every process that has come is told it.
    pub(crate) fn run(&self) -> Result<Vec<Member>> {
        let mut state = GatheringState::new(self);
        state.run().inspect_err(|error| state.end(error))?;
        Ok(state.members.into_values().collect())
    }
}

fn failed(e: std::io::Error) -> Error {
    error!(System, "rank 0 cannot wait for the others: {e}").with_source(e)
}

/// A connection whose hello has not come yet.
struct Stranger {
    channel: Channel,
    challenge: Challenge,
    deadline: Instant,
}

struct GatheringState<'a> {
    gathering: &'a PeerGathering<'a>,
    /// By their first rank.
    members: BTreeMap<u32, Member>,
    /// The ranks that have come and left. They may come again.
    left: BTreeSet<u32>,
    /// The oldest first.
    strangers: VecDeque<Stranger>,
    /// Since when there has been no descriptor for a connection.
    starved_since: Option<Instant>,
    /// How many descriptors this process needs for a world of this size.
    needed_descriptors: u64,
    /// How many connections were refused because their secret was wrong.
    wrong_secrets: usize,
    /// How many connections were refused because they were for another job.
    other_jobs: usize,
}

impl<'a> GatheringState<'a> {
    fn new(gathering: &'a PeerGathering<'a>) -> Self {
        let others = gathering.participant.world_size - gathering.participant.rank_count;
        GatheringState {
            gathering,
            members: BTreeMap::new(),
            left: BTreeSet::new(),
            strangers: VecDeque::new(),
            starved_since: None,
            needed_descriptors: make_room_for_processes(others as usize),
            wrong_secrets: 0,
            other_jobs: 0,
        }
    }

    fn run(&mut self) -> Result<()> {
        let PeerGathering { subject, destination, .. } = self.gathering;
        let Participant { world_size, deadline, .. } = *self.gathering.participant;
        let mut waiting = Wait::until(deadline);
        while !self.is_complete() {
            let warning = |seconds| {
                let (missing, refusals) = (self.missing(), self.refusals());
                let verb = if missing.len() == 1 { "has" } else { "have" };
                let missing = list_ranks(missing);
                format!("{subject}rank 0 has waited for {seconds} s: {missing} {verb} not come{destination}{refusals}")
            };
            let sleep = waiting.step_with(Some(&warning)).map_err(|stopped| {
                let missing = list_ranks(self.missing());
                let meanwhile = format_args!("while {missing} of {world_size} had not come{destination}");
                stopped.error(meanwhile, format_args!("{}{}", self.absence(), self.refusals()))
            })?;
            self.step(Instant::now() + sleep)?;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        let others: u64 = self.members.values().map(|member| u64::from(member.claim.rank_count)).sum();
        let Participant { world_size, rank_count, .. } = *self.gathering.participant;
        u64::from(rank_count) + others == u64::from(world_size)
    }

    fn missing(&self) -> Vec<u32> {
        (0..self.gathering.participant.world_size).filter(|&rank| !self.is_present(rank)).collect()
    }

    /// What a deadline error says of the missing ranks. One that came and left may have had an
    /// earlier deadline, so those that never came are the likelier cause.
    fn absence(&self) -> String {
        let (left, never): (Vec<u32>, Vec<u32>) = self.missing().into_iter().partition(|rank| self.left.contains(rank));
        let PeerGathering { destination, participant, .. } = self.gathering;
        let before = format!("of {} did not come{destination} before the deadline", participant.world_size);
        match (never.is_empty(), left.is_empty()) {
            (false, true) => format!("{} {before}", list_ranks(never)),
            (false, false) => format!("{} {before}; {} came, and left again", list_ranks(never), list_ranks(left)),
            (true, _) => format!("{} came{destination}, and left again before all ranks had come", list_ranks(left)),
        }
    }

    fn is_present(&self, rank: u32) -> bool {
        rank < self.gathering.participant.rank_count || self.member_of(rank).is_some()
    }

    /// The first rank of the member that has this one.
    fn member_of(&self, rank: u32) -> Option<u32> {
        let (first_rank, member) = self.members.range(..=rank).next_back()?;
        member.claim.ranks().is_some_and(|ranks| ranks.contains(&rank)).then_some(*first_rank)
    }

    /// Waits until something happens, but not beyond `latest`. Forgets members that have left,
    /// reads the hellos of strangers, and accepts one connection.
    fn step(&mut self, latest: Instant) -> Result<()> {
        let members = self.members.values().map(|member| &member.channel);
        let channels = members.chain(self.strangers.iter().map(|stranger| &stranger.channel));
        let may_accept = !self.gathering.listener.is_local || self.strangers.len() < MOST_STRANGERS;
        let listener_events = if may_accept { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(self.gathering.listener, listener_events)];
        fds.extend(channels.map(|channel| PollFd::new(channel, PollFlags::IN)));
        let until = self.strangers.front().map_or(latest, |stranger| stranger.deadline);
        poll_for(&mut fds, until.min(latest).saturating_duration_since(Instant::now())).map_err(failed)?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ready = ready.into_iter();
        let has_connection = ready.next() == Some(true) && may_accept;
        // Until the gathering is complete, a member sends nothing but its end. So if there is
        // something to read, it has ended the gathering or closed the connection.
        let mut end = None;
        self.members.retain(|_, member| {
            if ready.next() != Some(true) {
                return true;
            }
            match member.channel.try_receive::<()>(LONGEST_ANSWER) {
                Ok(None) => return true,
                Ok(Some(WireMessage::End(reason))) => end = Some((member.claim, reason)),
                Ok(Some(WireMessage::Step(()))) | Err(_) => {
                    warn_of_leaving(&member.claim);
                    self.left.extend(member.claim.ranks().into_iter().flatten());
                }
            }
            false
        });
        if let Some((claim, end)) = end {
            return Err(ended(&claim, end));
        }
        let mut strangers = std::mem::take(&mut self.strangers);
        while let Some(mut stranger) = strangers.pop_front() {
            match stranger.channel.try_receive(LONGEST_HELLO) {
                Ok(Some(message)) => {
                    if let Err(error) = self.admit(stranger, message) {
                        // The strangers that are left have to be told the error too.
                        self.strangers.append(&mut strangers);
                        return Err(error);
                    }
                }
                Ok(None) if Instant::now() < stranger.deadline => self.strangers.push_back(stranger),
                Ok(None) => log::event!(WARN, "a process connected and sent no hello in time"),
                Err(e) => log::event!(WARN, "a process connected and sent no hello: {e}"),
            }
        }
        if has_connection { self.accept() } else { Ok(()) }
    }

    /// Accepts one connection and greets it.
    fn accept(&mut self) -> Result<()> {
        let mut channel = match self.gathering.listener.accept() {
            Ok(channel) => channel,
            Err(e) if refused_user(&e).is_some() => {
                log::event!(WARN, "a connection was refused: {e}");
                return Ok(());
            }
            Err(e) => {
                // The peer has left, or this process has no descriptor for it.
                let is_starved = matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                let since = self.starved_since.filter(|_| is_starved).unwrap_or_else(Instant::now);
                self.starved_since = is_starved.then_some(since);
                if since.elapsed() >= DESCRIPTOR_TIMEOUT {
                    return Err(self.starved(e));
                }
                std::thread::sleep(RETRY);
                return Ok(());
            }
        };
        self.starved_since = None;
        let challenge = random()?;
        let now = Instant::now();
        let greeting = Handshake::Greeting { protocol: PROTOCOL.to_owned(), challenge };
        if channel.send(&[Frame::new(&WireMessage::Step(greeting))?], now).is_ok() {
            if self.strangers.len() == MOST_STRANGERS {
                self.strangers.pop_front();
            }
            self.strangers.push_back(Stranger { channel, challenge, deadline: now + HELLO_TIMEOUT });
        }
        Ok(())
    }

    fn starved(&self, e: std::io::Error) -> Error {
        let [soft, hard] = resource_limits(libc::RLIMIT_NOFILE).unwrap_or_default();
        let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        error!(
            System,
            "rank 0's process has no file descriptor left for the processes that come: RLIMIT_NOFILE is {} (hard limit {}), \
             and a world of {} needs about {} there (see `ulimit -n`): accept: {e}",
            number(soft),
            number(hard),
            count_of(self.gathering.participant.world_size as usize, "rank"),
            self.needed_descriptors
        )
        .with_source(e)
    }

    /// What a deadline error says of refused connections: one of them may be a missing rank.
    fn refusals(&self) -> String {
        let refused = [(self.wrong_secrets, "with a wrong secret"), (self.other_jobs, "for another job")];
        let refused = refused.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> =
            refused.map(|(count, what)| format!("{} {what}", count_of(*count, "connection"))).collect();
        if parts.is_empty() { String::new() } else { format!("; rank 0 refused {}", parts.join(" and ")) }
    }

    /// Makes a stranger a member, or refuses it. One that knows the key and contradicts rank 0 is
    /// an error.
    fn admit(&mut self, stranger: Stranger, message: WireMessage<Handshake>) -> Result<()> {
        let PeerGathering { key, nonce, .. } = *self.gathering;
        let Stranger { mut channel, challenge, .. } = stranger;
        let WireMessage::Step(Handshake::Hello { protocol, claim, job, proof }) = message else {
            log::event!(WARN, "a connection was refused: it sent a message out of turn");
            return Ok(());
        };
        // A process that has ended does not stand in the way of the one that was started in its
        // place, whichever hello is read first.
        if channel.is_readable().map_err(failed)? {
            return Ok(());
        }
        if protocol != PROTOCOL || !key.accepts(&Statement::Claim(&challenge, &claim), &proof)? {
            let same_job = protocol == PROTOCOL && key.prove_job(&challenge, &claim)? == job;
            let (count, reason) = match same_job {
                true => (&mut self.wrong_secrets, "a wrong secret"),
                false => (&mut self.other_jobs, "another job"),
            };
            *count += 1;
            log::event!(WARN, "a connection was refused: {reason}");
            return reply(&mut channel, Handshake::Refusal { same_job });
        }
        let objection = self.objection(&claim)?;
        let answer = match &objection {
            None => Answer::Welcome((*nonce).to_owned()),
            Some(reason) => Answer::Refused(reason.clone()),
        };
        let proof = key.prove(&Statement::Answer(&challenge, &claim, &answer))?;
        let session = key.session(Sender::Rank0, &challenge, &claim, &answer)?;
        reply(&mut channel, Handshake::Answer { answer, proof })?;
        if let Some(reason) = objection {
            bail!(Disagreement, "{reason}");
        }
        channel.begin_session(session);
        let PeerGathering { subject, destination, .. } = self.gathering;
        log::event!(DEBUG, "{subject}{} came{destination}", list_ranks(claim.ranks().into_iter().flatten()));
        self.members.insert(claim.first_rank, Member { channel, claim });
        Ok(())
    }

    /// Why a process of the job cannot take part.
    fn objection(&mut self, claim: &Claim) -> Result<Option<String>> {
        let Claim { world_size, first_rank, .. } = *claim;
        let expected = self.gathering.participant.world_size;
        if world_size != expected {
            return Ok(Some(format!(
                "ranks have to be given the same world size: rank {first_rank} has {world_size}, and rank 0 has {expected}"
            )));
        }
        if !self.gathering.listener.is_local && claim.rank_count != 1 {
            return Ok(Some(format!(
                "a process that comes over TCP has one rank, and the process of rank {first_rank} has {}",
                claim.rank_count
            )));
        }
        let Some(ranks) = claim.ranks() else {
            let last = u64::from(first_rank) + u64::from(claim.rank_count.saturating_sub(1));
            return Ok(Some(format!("rank {last} is not one of {world_size}")));
        };
        for rank in ranks {
            let Some(first_rank) = self.member_of(rank) else {
                if self.is_present(rank) {
                    return Ok(Some(two_processes(rank)));
                }
                continue;
            };
            // The member may have left just now. Or it comes again, and the end of its first
            // connection was lost on the way.
            let member = &self.members[&first_rank];
            let is_replaced =
                member.claim.instance == claim.instance || member.channel.is_readable().map_err(failed)?;
            if !is_replaced {
                return Ok(Some(two_processes(rank)));
            }
            warn_of_leaving(&member.claim);
            self.members.remove(&first_rank);
        }
        Ok(None)
    }

    /// Tells the processes that have come why the gathering ends. On a Unix socket those are also
    /// the ones whose hello has not come and those whose connections have not been accepted. Over
    /// TCP rank 0 could prove nothing to these.
    fn end(&mut self, error: &Error) {
        send_end(self.members.values_mut().map(|member| &mut member.channel), error);
        if self.gathering.listener.is_local {
            send_end(self.strangers.iter_mut().map(|stranger| &mut stranger.channel), error);
            // Processes that connect again and again do not keep rank 0 here.
            let until = Instant::now() + HELLO_TIMEOUT;
            while Instant::now() < until {
                match self.gathering.listener.accept() {
                    Ok(mut channel) => send_end([&mut channel], error),
                    Err(e) if refused_user(&e).is_some() => {}
                    Err(_) => break,
                }
            }
        }
    }
}

fn two_processes(rank: u32) -> String {
    format!("two processes say that they are rank {rank}")
}

fn warn_of_leaving(claim: &Claim) {
    log::event!(WARN, "{} left before all ranks had come", list_ranks(claim.ranks().into_iter().flatten()));
}

/// The error of a member that ends the gathering.
fn ended(claim: &Claim, end: EndReason) -> Error {
    let who = list_ranks(claim.ranks().into_iter().flatten());
    let kind = end.cause.kind(ErrorKind::Aborted);
    Error::new(kind, format!("{who} ended the start of the job: {}", end.reason))
}

/// Replies to a hello. A peer that does not take the reply has left, which the next step sees.
fn reply(channel: &mut Channel, message: Handshake) -> Result<()> {
    let _ = channel.send(&[Frame::new(&WireMessage::Step(message))?], Instant::now());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::super::{Cause, LONGEST_ANSWER};
    use super::*;

    const WORLD_SIZE: u32 = 100;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn participant() -> Participant<'static> {
        Participant::new("a job", 0, WORLD_SIZE, soon())
    }

    /// Lets a test run the steps of rank 0's gathering on a Unix socket, in the test's own thread.
    /// `test` also gets a function that connects a process.
    fn with_state(name: &str, test: impl FnOnce(&mut GatheringState<'_>, &Key, &dyn Fn() -> Channel)) {
        let name = format!("dcl-handshake-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("a socket");
        let listener = Listener::unix(listener).expect("a listener");
        let participant = participant();
        let key = Key::new(&participant, None).expect("a key");
        let gathering = PeerGathering {
            listener: &listener,
            participant: &participant,
            key: &key,
            nonce: "",
            subject: String::new(),
            destination: String::new(),
        };
        let connect = || Channel::unix(UnixStream::connect_addr(&address).expect("a listener")).expect("a channel");
        test(&mut GatheringState::new(&gathering), &key, &connect);
    }

    /// A process connects, and rank 0 greets it. Gives the process's channel and rank 0's
    /// challenge.
    fn greeted(state: &mut GatheringState<'_>, connect: &dyn Fn() -> Channel) -> (Channel, Challenge) {
        let mut channel = connect();
        state.step(Instant::now()).expect("a step");
        let greeting = channel.try_receive(LONGEST_ANSWER).expect("an open connection").expect("a greeting");
        let WireMessage::Step(Handshake::Greeting { challenge, .. }) = greeting else { panic!("no greeting") };
        // However slow the machine is, the time for the hello is not over.
        state.strangers.back_mut().expect("a stranger").deadline = soon();
        (channel, challenge)
    }

    /// Sends the hello of rank 1, which has been given this world size.
    fn send_hello(channel: &mut Channel, key: &Key, challenge: &Challenge, world_size: u32) {
        let claim = Claim { world_size, first_rank: 1, rank_count: 1, instance: [1; 16], challenge: [2; 32] };
        let hello = Handshake::Hello {
            protocol: PROTOCOL.to_owned(),
            claim,
            job: key.prove_job(challenge, &claim).expect("a proof"),
            proof: key.prove(&Statement::Claim(challenge, &claim)).expect("a proof"),
        };
        reply(channel, hello).expect("bytes");
    }

    /// The error is sent also to the processes whose hello rank 0 would have read after that of the
    /// process that contradicts it.
    #[test]
    fn a_contradiction_is_told_to_the_strangers_behind_it() {
        with_state("contradiction", |state, key, connect| {
            let [(mut first, challenge), (second, _), (third, _)] = [(); 3].map(|()| greeted(state, connect));
            send_hello(&mut first, key, &challenge, 5);
            let error = state.step(Instant::now()).expect_err("rank 1 contradicts rank 0");
            state.end(&error);
            let reason = "ranks have to be given the same world size: rank 1 has 5, and rank 0 has 100";
            assert_eq!(error.to_string(), reason);
            for mut stranger in [second, third] {
                let told = stranger.try_receive::<Handshake>(LONGEST_ANSWER).expect("an open connection");
                let Some(WireMessage::End(end)) = told else { panic!("no end") };
                assert_eq!((end.cause, end.reason.as_str()), (Cause::Disagreement, reason));
            }
        });
    }

    /// On a Unix socket no stranger makes room for another one, since both are likely to be peers.
    #[test]
    fn a_crowd_of_this_user_waits_in_the_listeners_queue() {
        with_state("crowd", |state, _, connect| {
            let mut crowd: Vec<Channel> = (0..MOST_STRANGERS).map(|_| greeted(state, connect).0).collect();
            let mut further = connect();
            let greeting = |channel: &mut Channel| channel.try_receive::<Handshake>(LONGEST_ANSWER);
            for _ in 0..3 {
                state.step(Instant::now()).expect("a step");
                assert!(greeting(&mut further).expect("an open connection").is_none(), "it waits");
                for stranger in &mut crowd {
                    assert!(greeting(stranger).expect("an open connection").is_none());
                }
            }
            // When one of the crowd leaves, the one that waits is greeted.
            crowd.pop();
            let mut comes = || {
                state.step(Instant::now()).expect("a step");
                greeting(&mut further).expect("an open connection").is_some()
            };
            assert!((0..2).any(|_| comes()));
            assert_eq!(state.strangers.len(), MOST_STRANGERS);
        });
    }

    /// A rank that came and left is told apart from one that never came.
    #[test]
    fn a_rank_that_left_again_is_not_said_to_have_never_come() {
        with_state("absence", |state, key, connect| {
            let expected =
                |first: u32| format!("{} of 100 did not come before the deadline", list_ranks(first..WORLD_SIZE));
            assert_eq!(state.absence(), expected(1));
            let (mut channel, challenge) = greeted(state, connect);
            send_hello(&mut channel, key, &challenge, WORLD_SIZE);
            state.step(Instant::now()).expect("a step");
            assert_eq!(state.absence(), expected(2));
            drop(channel);
            state.step(Instant::now()).expect("a step");
            assert_eq!(state.absence(), format!("{}; rank 1 came, and left again", expected(2)));
            state.left.extend(2..WORLD_SIZE);
            let all = list_ranks(1..WORLD_SIZE);
            assert_eq!(state.absence(), format!("{all} came, and left again before all ranks had come"));
        });
    }
}
