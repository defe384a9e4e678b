//! A connection on which every message has a length, a limit and a deadline, and after the
//! handshake a tag.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::{Digest, Message, Session, TAG_BYTES, digest};

/// How many bytes say how long a message is.
const LENGTH_BYTES: usize = size_of::<u32>();

/// One end of a connection. It never blocks but in [`wait`].
pub(super) struct Line {
    stream: TcpStream,
    /// What has come of the next message, its length first.
    inbox: Vec<u8>,
    /// Since the handshake is over.
    session: Option<Box<Session>>,
}

/// A message's bytes as they are sent, but for the tag.
pub(super) struct Frame {
    /// The length, then the message.
    bytes: Vec<u8>,
    digest: Digest,
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Line { stream, inbox: Vec::new(), session: None })
    }

    /// From now on every message has a tag, in both directions.
    pub(super) fn begin_session(&mut self, session: Session) {
        self.session = Some(Box::new(session));
    }

    /// Sends messages. If that fails, nothing can be sent any more, since a message may have gone
    /// in part.
    pub(super) fn send(&mut self, frames: &[Frame], deadline: Instant) -> io::Result<()> {
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend_from_slice(&frame.bytes);
            if let Some(session) = &mut self.session {
                bytes.extend(session.tag(&frame.digest));
            }
        }
        self.send_bytes(&bytes, deadline)
    }

    /// Sends bytes as they are.
    pub(super) fn send_bytes(&self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let sent = self.write_all(bytes, deadline);
        if sent.is_err() {
            // It fails where the connection has ended, which is as good.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        sent
    }

    fn write_all(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&self.stream).write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                Err(_) if Instant::now() >= deadline => return Err(late()),
                Err(_) => wait(&mut [PollFd::new(self, PollFlags::OUT)], deadline)?,
            }
        }
        Ok(())
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self, longest: usize, deadline: Instant) -> io::Result<Message> {
        loop {
            if let Some(message) = self.pull(longest)? {
                return Ok(message);
            }
            if Instant::now() >= deadline {
                return Err(late());
            }
            wait(&mut [PollFd::new(self, PollFlags::IN)], deadline)?;
        }
    }

    /// The next message, if all of it has come.
    pub(super) fn pull(&mut self, longest: usize) -> io::Result<Option<Message>> {
        loop {
            let (have, wanted) = (self.inbox.len(), self.wanted(longest)?);
            if have == wanted {
                return self.take_message().map(Some);
            }
            self.inbox.resize(wanted, 0);
            let read = self.stream.read(&mut self.inbox[have..]);
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
    fn take_message(&mut self) -> io::Result<Message> {
        let bytes = std::mem::take(&mut self.inbox);
        let mut message = &bytes[LENGTH_BYTES..];
        if let Some(session) = &mut self.session {
            let (body, tag) = message.split_at(message.len() - TAG_BYTES);
            if !session.accepts(&digest(body), tag) {
                return Err(io::Error::new(ErrorKind::InvalidData, "a message came with a wrong tag"));
            }
            message = body;
        }
        postcard::from_bytes(message).map_err(|_| io::Error::other("a message came that cannot be understood"))
    }

    /// How many bytes to have: those of the length, and once they are there those of the message
    /// and its tag too.
    fn wanted(&self, longest: usize) -> io::Result<usize> {
        let Some(length) = self.inbox.first_chunk() else { return Ok(LENGTH_BYTES) };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > longest {
            return Err(io::Error::other(format!("a message of {length} bytes came, and 1 to {longest} are allowed")));
        }
        let tag = if self.session.is_some() { TAG_BYTES } else { 0 };
        Ok(LENGTH_BYTES + length + tag)
    }

    /// Whether something has come, or the other end has closed.
    pub(super) fn has_news(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        wait(&mut fds, Instant::now())?;
        Ok(!fds[0].revents().is_empty())
    }

    /// Ends the connection.
    pub(super) fn hang_up(&self) {
        // It fails where the connection has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Makes a message ready to be sent, on one connection or on several.
pub(super) fn frame(message: &Message) -> crate::error::Result<Frame> {
    let body = super::protocol::encode(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    Ok(Frame { bytes, digest: digest(&body) })
}

/// Sleeps until one of the connections is ready or the deadline has come, or for no reason at all. The caller looks again.
pub(super) fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "nothing came before the deadline")
}
