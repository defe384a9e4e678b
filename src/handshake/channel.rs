//! A connection on which every message has a length, a limit and a deadline, and over TCP, after
//! the handshake, a tag.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, send, shutdown,
    socket_with, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::WireMessage;
use super::credentials::Peer;
use super::frame::{LENGTH_BYTES, body_len, decode, encode_frame};
use super::key::{Digest, Session, TAG_BYTES, digest};
use crate::error::Result;
use crate::util::wait::Wait;

/// After how long without a message the kernel asks the other end's machine whether it is there,
/// and asks again; and how often it asks in vain.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COUNT: u32 = 3;

/// One end of a connection. It blocks only in [`wait`].
pub(crate) struct Channel {
    /// Non-blocking.
    socket: OwnedFd,
    is_local: bool,
    /// The bytes that have come of the next message, its length first.
    inbox: Vec<u8>,
    /// The keys of the tags, over TCP after the handshake.
    session: Option<Box<Session>>,
}

/// A message that is ready to be sent, on one connection or on several.
pub(crate) struct Frame {
    /// The length, then the message.
    bytes: Vec<u8>,
    digest: Digest,
}

impl Frame {
    /// Encodes a message.
    pub(crate) fn new<T: Serialize>(message: &WireMessage<T>) -> Result<Self> {
        let bytes = encode_frame(message)?;
        let digest = digest(&bytes[LENGTH_BYTES..]);
        Ok(Frame { bytes, digest })
    }
}

impl Channel {
    /// A connection over a network. Nothing is known of the other end.
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Channel { socket: stream.into(), is_local: false, inbox: Vec::new(), session: None })
    }

    /// A connection over a Unix socket. It is refused if the other end is a process of another
    /// user; see [`refused_user`].
    pub(crate) fn unix(stream: UnixStream) -> io::Result<Self> {
        let peer = Peer::of(&stream)?;
        if !peer.is_same_user() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, AnotherUser(peer.uid)));
        }
        stream.set_nonblocking(true)?;
        Ok(Channel { socket: stream.into(), is_local: true, inbox: Vec::new(), session: None })
    }

    /// Whether the kernel vouches for the other end: it is a process of this user, and no third
    /// process can write into the connection.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// From now on every message has a tag, in both directions; on a local channel it needs none.
    pub(crate) fn begin_session(&mut self, session: Session) {
        if !self.is_local {
            self.session = Some(Box::new(session));
        }
    }

    /// Sends messages. After an error nothing can be sent any more, since a message may have gone
    /// in part.
    pub(crate) fn send(&mut self, frames: &[Frame], deadline: Instant) -> io::Result<()> {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| self.tagged(frame)).collect();
        self.send_bytes(&bytes, deadline)
    }

    /// The bytes of the next message that is sent.
    pub(crate) fn tagged(&mut self, frame: &Frame) -> Vec<u8> {
        let mut bytes = frame.bytes.clone();
        if let Some(session) = &mut self.session {
            bytes.extend(session.tag(&frame.digest));
        }
        bytes
    }

    /// Sends as many of the bytes as there is room for, and says how many.
    pub(crate) fn try_send_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(&self.socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from) {
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => Ok(0),
            sent => sent,
        }
    }

    /// Sends bytes as they are.
    pub(crate) fn send_bytes(&self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.send_all(bytes, deadline).inspect_err(|_| {
            // This fails if the connection has ended already.
            let _ = shutdown(&self.socket, Shutdown::Write);
        })
    }

    fn send_all(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let mut waiting = Wait::until(deadline);
        while !bytes.is_empty() {
            match self.try_send_bytes(bytes)? {
                0 => wait(&mut [PollFd::new(self, PollFlags::OUT)], &mut waiting)?,
                count => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    /// Waits for the next message.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        longest: usize,
        waiting: &mut Wait<'_>,
    ) -> io::Result<WireMessage<T>> {
        loop {
            if let Some(message) = self.try_receive(longest)? {
                return Ok(message);
            }
            wait(&mut [PollFd::new(self, PollFlags::IN)], waiting)?;
        }
    }

    /// The next message, if all of it has come.
    pub(crate) fn try_receive<T: DeserializeOwned>(&mut self, longest: usize) -> io::Result<Option<WireMessage<T>>> {
        loop {
            let (have, needed) = (self.inbox.len(), self.needed_bytes(longest)?);
            if have == needed {
                return self.take_message().map(Some);
            }
            self.inbox.resize(needed, 0);
            let read = rustix::io::read(&self.socket, &mut self.inbox[have..]).map_err(io::Error::from);
            self.inbox.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// The message whose bytes have all come, if its tag is right.
    fn take_message<T: DeserializeOwned>(&mut self) -> io::Result<WireMessage<T>> {
        let bytes = std::mem::take(&mut self.inbox);
        let mut message = &bytes[LENGTH_BYTES..];
        if let Some(session) = &mut self.session {
            let (body, tag) = message.split_at(message.len() - TAG_BYTES);
            if !session.accepts(&digest(body), tag) {
                return Err(io::Error::new(ErrorKind::InvalidData, "a message came with a wrong tag"));
            }
            message = body;
        }
        decode(message)
    }

    /// How many bytes to read: first those of the length, and once these have come those of the
    /// message and its tag too.
    fn needed_bytes(&self, longest: usize) -> io::Result<usize> {
        let Some(length) = self.inbox.first_chunk() else { return Ok(LENGTH_BYTES) };
        let tag = if self.session.is_some() { TAG_BYTES } else { 0 };
        Ok(LENGTH_BYTES + body_len(*length, longest)? + tag)
    }

    /// Whether something has come, or the other end has closed.
    pub(crate) fn is_readable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        poll_for(&mut fds, Duration::ZERO)?;
        Ok(!fds[0].revents().is_empty())
    }

    /// Has the kernel end the connection when the other end's machine does not answer any more.
    pub(crate) fn keep_alive(&self) -> io::Result<()> {
        if self.is_local {
            return Ok(());
        }
        sockopt::set_socket_keepalive(&self.socket, true)?;
        sockopt::set_tcp_keepidle(&self.socket, KEEP_ALIVE_INTERVAL)?;
        sockopt::set_tcp_keepintvl(&self.socket, KEEP_ALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&self.socket, KEEP_ALIVE_COUNT)?;
        // It counts where bytes wait to be acknowledged.
        let longest = KEEP_ALIVE_INTERVAL * (1 + KEEP_ALIVE_COUNT);
        Ok(sockopt::set_tcp_user_timeout(&self.socket, longest.as_millis() as u32)?)
    }

    /// Ends the connection, even if a forked process has a copy of it.
    pub(crate) fn shut_down(&self) {
        // This fails if the connection has ended already.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.socket
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The error of [`Channel::unix`] if a process of another user is at the other end.
#[derive(Debug)]
struct AnotherUser(u32);

impl fmt::Display for AnotherUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a process of another user (uid {}) is at the other end", self.0)
    }
}

impl std::error::Error for AnotherUser {}

/// The other end's user, if the error is that it is not this process's user.
pub(crate) fn refused_user(error: &io::Error) -> Option<u32> {
    error.get_ref()?.downcast_ref::<AnotherUser>().map(|AnotherUser(uid)| *uid)
}

/// Connects to an abstract Unix socket, but does not wait for room in the listener's queue: a
/// process that is stopped would never make room.
pub(crate) fn connect_abstract(name: &str) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

/// Where rank 0 accepts connections. It does not block.
pub(crate) struct Listener {
    socket: OwnedFd,
    pub(super) is_local: bool,
}

impl Listener {
    pub(crate) fn tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Listener { socket: listener.into(), is_local: false })
    }

    pub(crate) fn unix(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Listener { socket: listener.into(), is_local: true })
    }

    /// The next connection; see [`Channel::tcp`] and [`Channel::unix`].
    pub(super) fn accept(&self) -> io::Result<Channel> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        if self.is_local { Channel::unix(socket.into()) } else { Channel::tcp(socket.into()) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sleeps until one of the connections is ready. It may return early, so the caller checks again.
/// For an interrupt see [`of_io`](crate::util::interrupt::of_io).
pub(crate) fn wait(fds: &mut [PollFd<'_>], waiting: &mut Wait<'_>) -> io::Result<()> {
    poll_for(fds, waiting.step()?)
}

/// Sleeps until one of the connections is ready or the time is over.
pub(crate) fn poll_for(fds: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    // A time that the kernel cannot express is endless.
    match poll(fds, Timespec::try_from(time).ok().as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
