//! The link over the connections by which the ranks have met, for the short messages of control
//! communicators. Each rank has a connection with rank 0, which passes on what is for others.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use serde::{Deserialize, Serialize};

use super::{Bytes, Link, LinkMessage, Tag};
use crate::comm::backend_kind::BackendKind;
use crate::comm::rank_lock::try_enter;
use crate::error::{Result, bail, error};
use crate::handshake::{Channel, Frame, WireMessage};
use crate::rank::Rank;
use crate::util::lock;

/// The longest message, in bytes.
const LONGEST: usize = 64 << 10;

/// The longest message with what is around it: up to 5 bytes for each receiver.
const LONGEST_ON_WIRE: usize = LONGEST + (8 << 10);

/// The most messages that one look takes from a connection.
const MOST_AT_ONCE: usize = 64;

/// How long a rank that leaves waits until its last messages have arrived.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// For how long rank 0, when it leaves, waits for more to pass on.
const QUIET_TIME: Duration = Duration::from_millis(20);

/// A message on a connection with rank 0. The word is that of its tag, and has the sender.
#[derive(Serialize, Deserialize)]
struct ControlMessage {
    to: Vec<u32>,
    word: u64,
    bytes: Vec<u8>,
}

/// A connection, and what is to be sent on it.
struct Connection {
    channel: Channel,
    outbox: VecDeque<u8>,
}

struct LinkState {
    /// On rank 0 those with all others, in order; on another rank that with rank 0.
    all: Vec<Connection>,
    /// What has come while this rank waited for something else.
    arrivals: Vec<LinkMessage>,
}

pub(in crate::comm) struct RendezvousLink {
    own: Rank,
    state: Mutex<LinkState>,
    /// How many bytes are in outboxes.
    unsent: AtomicUsize,
    /// For each rank, whether its connection has ended.
    ended: Box<[AtomicBool]>,
    /// Says which connections have something to read.
    readable: OwnedFd,
    /// Whether this rank has left. Then nothing comes, and no rank has died.
    is_over: AtomicBool,
}

impl RendezvousLink {
    /// The channels are those of a rank on which the ranks have met, and on which no more is to
    /// come from the meeting.
    pub(in crate::comm) fn new(own: Rank, world_size: u32, channels: Vec<Channel>) -> Result<Self> {
        let refused = |e: rustix::io::Errno| error!(System, "no link between machines: {e}").with_source(e);
        let readable = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        for (channel, index) in channels.iter().zip(0..) {
            let data = epoll::EventData::new_u64(index);
            epoll::add(&readable, channel, data, epoll::EventFlags::IN).map_err(refused)?;
            // Without it a machine that is gone is found later.
            let _not_set = channel.keep_alive();
        }
        let connection = |channel| Connection { channel, outbox: VecDeque::new() };
        let all = channels.into_iter().map(connection).collect();
        Ok(RendezvousLink {
            own,
            state: Mutex::new(LinkState { all, arrivals: Vec::new() }),
            unsent: AtomicUsize::new(0),
            ended: (0..world_size).map(|_| AtomicBool::new(false)).collect(),
            readable,
            is_over: AtomicBool::new(false),
        })
    }

    /// The rank at the other end of a connection.
    fn rank_of(&self, connection: usize) -> Rank {
        if self.own == Rank(0) { Rank(connection as u32 + 1) } else { Rank(0) }
    }

    fn is_open(&self, connection: usize) -> bool {
        !self.has_died(self.rank_of(connection))
    }

    /// The connection by which messages for a rank go.
    fn connection_to(&self, to: Rank) -> usize {
        if self.own == Rank(0) { to.index() - 1 } else { 0 }
    }

    /// Adds a message to what is to be sent, unless the connection has ended.
    fn queue(&self, all: &mut [Connection], index: usize, message: &ControlMessage) -> Result<()> {
        if self.is_open(index) {
            let bytes = all[index].channel.tagged(&Frame::new(&WireMessage::Step(message))?);
            self.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
            all[index].outbox.extend(bytes);
        }
        Ok(())
    }

    /// Sends what there is room for. Reading tells why a connection has ended.
    fn push_out(&self, all: &mut [Connection]) {
        for Connection { channel, outbox } in all.iter_mut().filter(|_| self.unsent() > 0) {
            while !outbox.is_empty() {
                let sent = match channel.try_send_bytes(outbox.as_slices().0) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(_) => outbox.len(),
                };
                outbox.drain(..sent);
                self.unsent.fetch_sub(sent, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a connection has ended.
    fn close(&self, rank: Rank, Connection { channel, outbox }: &mut Connection) {
        self.ended[rank.index()].store(true, Ordering::Release);
        self.unsent.fetch_sub(outbox.len(), Ordering::Relaxed);
        outbox.clear();
        let _removed = epoll::delete(&self.readable, channel);
    }

    /// Takes a message that has come. Rank 0 passes it on.
    fn take(&self, state: &mut LinkState, ControlMessage { to, word, bytes }: ControlMessage) -> Result<()> {
        let Some((from, tag)) = Tag::from_word(word).filter(|(from, _)| from.index() < self.ended.len()) else {
            bail!(System, "a message has tag {word:x}")
        };
        if to.contains(&self.own.0) {
            state.arrivals.push(LinkMessage { from, tag, bytes: Bytes::copy_of(&bytes) });
        }
        let others = 1..if self.own == Rank(0) { self.ended.len() as u32 } else { 0 };
        for other in to.into_iter().filter(|other| others.contains(other)) {
            let message = ControlMessage { to: vec![other], word, bytes: bytes.clone() };
            self.queue(&mut state.all, self.connection_to(Rank(other)), &message)?;
        }
        Ok(())
    }

    /// Reads from a connection. Returns whether it has given anything.
    fn read(&self, state: &mut LinkState, index: usize) -> Result<bool> {
        for count in 0..MOST_AT_ONCE {
            match state.all[index].channel.try_receive(LONGEST_ON_WIRE) {
                Ok(None) => return Ok(count > 0),
                Ok(Some(WireMessage::Step(message))) => self.take(state, message)?,
                Ok(Some(WireMessage::End(_))) | Err(_) => {
                    self.close(self.rank_of(index), &mut state.all[index]);
                    break;
                }
            }
        }
        Ok(true)
    }

    fn move_along(&self, state: &mut LinkState) -> Result<bool> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 32];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.readable, &mut events, Some(&now)).unwrap_or(0);
        let mut has_moved = false;
        if self.is_over.load(Ordering::Acquire) {
            return Ok(false);
        }
        for event in &events[..count] {
            let index = event.data.u64() as usize;
            has_moved |= self.is_open(index) && self.read(state, index)?;
        }
        self.push_out(&mut state.all);
        Ok(has_moved)
    }

    /// Whether all that has been sent has arrived at the machines of open connections.
    fn has_arrived(&self, all: &[Connection]) -> bool {
        let in_flight = |connection: &Connection| {
            let mut bytes: libc::c_int = 0;
            // SAFETY: it writes one number.
            let asked = unsafe { libc::ioctl(connection.channel.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
            asked == 0 && bytes > 0
        };
        let open = all.iter().enumerate().filter(|(index, _)| self.is_open(*index));
        self.unsent() == 0 && !open.map(|(_, connection)| connection).any(in_flight)
    }
}

impl Link for RendezvousLink {
    fn kind(&self) -> BackendKind {
        BackendKind::Nccl
    }

    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()> {
        if self.has_died(to) {
            bail!(PeerLost, "rank {to} died");
        }
        self.check_reach(to)?;
        self.send_to_all(&[to], tag, &bytes)
    }

    fn send_to_all(&self, to: &[Rank], tag: Tag, bytes: &[u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        if bytes.len() > LONGEST {
            bail!(System, "a control message of {} bytes; it has at most {LONGEST}", bytes.len());
        }
        let mut state = lock(&self.state);
        let message = |to: &[Rank]| ControlMessage {
            to: to.iter().map(|rank| rank.0).collect(),
            word: tag.to_word(self.own),
            bytes: bytes.to_vec(),
        };
        match self.own {
            Rank(0) => to
                .iter()
                .try_for_each(|rank| self.queue(&mut state.all, self.connection_to(*rank), &message(&[*rank])))?,
            _ => self.queue(&mut state.all, 0, &message(to))?,
        }
        self.push_out(&mut state.all);
        Ok(())
    }

    fn progress(&self, arrivals: &mut Vec<LinkMessage>) -> Result<bool> {
        let Some(mut state) = try_enter(&self.state) else { return Ok(false) };
        let moved = self.move_along(&mut state);
        arrivals.append(&mut state.arrivals);
        Ok(moved? || !arrivals.is_empty())
    }

    fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    fn has_died(&self, rank: Rank) -> bool {
        self.ended[rank.index()].load(Ordering::Acquire)
    }

    fn check_reach(&self, rank: Rank) -> Result<()> {
        if self.own != Rank(0) && rank != Rank(0) && self.has_died(Rank(0)) {
            bail!(System, "rank 0, which passes on the messages of control communicators, has left");
        }
        Ok(())
    }

    fn flush(&self) {
        let quiet = if self.own == Rank(0) { QUIET_TIME } else { Duration::ZERO };
        let (deadline, mut last) = (Instant::now() + FLUSH_TIME, Instant::now());
        while Instant::now() < deadline {
            let mut state = lock(&self.state);
            if self.move_along(&mut state).is_ok_and(|has_moved| has_moved) {
                last = Instant::now();
            } else if self.has_arrived(&state.all) && last.elapsed() >= quiet {
                break;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
        let state = lock(&self.state);
        self.is_over.store(true, Ordering::Release);
        // A forked process may have copies of them.
        state.all.iter().for_each(|connection| connection.channel.shut_down());
    }

    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>> {
        (self.unsent() == 0).then(|| self.readable.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::MessageKind;
    use super::*;
    use crate::error::ErrorKind;

    fn links(count: u32) -> Vec<RendezvousLink> {
        let pairs = (1..count).map(|_| UnixStream::pair().expect("two sockets"));
        let (of_0, of_others): (Vec<_>, Vec<_>) = pairs.unzip();
        let channel = |stream| Channel::unix(stream).expect("this user's");
        let others = of_others.into_iter().map(|stream| vec![channel(stream)]);
        let channels = std::iter::once(of_0.into_iter().map(channel).collect()).chain(others);
        let link = |(rank, channels)| RendezvousLink::new(Rank(rank), count, channels).expect("a link");
        (0..).zip(channels).map(link).collect()
    }

    fn tag(number: u16) -> Tag {
        Tag { communicator: 3, kind: MessageKind::Headers, number }
    }

    /// All links move until so many messages have come to one.
    fn receive(links: &[RendezvousLink], at: usize, count: usize) -> Vec<LinkMessage> {
        let (end, mut arrivals) = (Instant::now() + Duration::from_secs(10), Vec::new());
        while arrivals.len() < count {
            assert!(Instant::now() < end, "{} messages of {count} have come", arrivals.len());
            for (index, link) in links.iter().enumerate() {
                let mut others = Vec::new();
                link.progress(if index == at { &mut arrivals } else { &mut others }).expect("no error");
                assert!(others.is_empty());
            }
        }
        arrivals
    }

    /// More than the sockets hold, in the order in which they were sent.
    #[test]
    fn rank_0_passes_messages_on() {
        let links = links(3);
        for number in 0..100 {
            links[1].send(Rank(2), tag(number), Bytes::copy_of(&vec![number as u8; LONGEST])).expect("a link");
        }
        assert!(links[1].unsent() > 0 && links[1].to_sleep_on().is_none());
        for (arrival, number) in receive(&links, 2, 100).into_iter().zip(0..) {
            assert_eq!((arrival.from, arrival.tag, arrival.bytes.len()), (Rank(1), tag(number), LONGEST));
            assert!(arrival.bytes.iter().all(|byte| *byte == number as u8));
        }
        assert!(links.iter().all(|link| link.unsent() == 0 && link.to_sleep_on().is_some()));
        links[0].send(Rank(1), tag(0), Bytes::default()).expect("a link");
        assert_eq!(receive(&links, 1, 1)[0].from, Rank(0));
        let long = links[2].send(Rank(0), tag(0), Bytes::of_len(LONGEST + 1)).expect_err("too long");
        assert_eq!(long.to_string(), "a control message of 65537 bytes; it has at most 65536");
    }

    /// Rank 0 learns that a rank has ended, after what that has sent before, and the others that
    /// rank 0 has.
    #[test]
    fn an_end_is_known_at_the_other_end() {
        let mut links = links(3);
        links[1].send(Rank(2), tag(1), Bytes::default()).expect("a link");
        drop(links.remove(1));
        assert_eq!(receive(&links, 1, 1)[0].tag, tag(1));
        let end = Instant::now() + Duration::from_secs(10);
        let wait_for = |link: &RendezvousLink, rank| {
            while !link.has_died(rank) {
                assert!(Instant::now() < end, "it does not know it");
                let _moved = link.progress(&mut Vec::new());
            }
        };
        wait_for(&links[0], Rank(1));
        let died = links[0].send(Rank(1), tag(2), Bytes::default()).expect_err("it died");
        assert_eq!(died.kind(), ErrorKind::PeerLost);
        links[1].check_reach(Rank(1)).expect("rank 0 is there");
        drop(links.remove(0));
        wait_for(&links[0], Rank(0));
        assert!(!links[0].has_died(Rank(1)));
        let text = "rank 0, which passes on the messages of control communicators, has left";
        assert_eq!(links[0].check_reach(Rank(1)).expect_err("by rank 0").to_string(), text);
    }
}
