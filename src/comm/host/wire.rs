//! Messages between processes of one machine, which may have a file descriptor with them. Their
//! bytes are the [handshake](crate::handshake)'s frames.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handshake::{LENGTH_BYTES, body_len, decode, encode_frame, wait};
use crate::util::wait::Wait;

/// Sends a message. The file goes with its first byte.
///
/// # Errors
///
/// The connection has ended, or takes no more bytes within its write timeout. The message may have
/// gone in part, so that nothing can be sent any more.
pub(super) fn send(mut stream: &UnixStream, value: &impl Serialize, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let message = encode_frame(value).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let sent = retry_on_intr(|| sendmsg(stream, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL))?;
    stream.write_all(&message[sent..])
}

/// Receives a message and the file that came with it; `None` if the connection has ended.
///
/// # Errors
///
/// The message is longer than `longest` bytes, is not one of type `T`, or has not come as a whole
/// before the deadline.
pub(super) fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
    longest: usize,
    deadline: Instant,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut len = [0; LENGTH_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received =
        before(deadline, stream, || recvmsg(stream, &mut [IoSliceMut::new(&mut len)], &mut ancillary, flags))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    receive_all(stream, &mut len[received.bytes..], deadline)?;
    let mut body = vec![0; body_len(len, longest)?];
    receive_all(stream, &mut body, deadline)?;
    Ok(Some((decode(&body)?, file)))
}

fn receive_all(stream: &UnixStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let (count, _) = before(deadline, stream, || recv(stream, &mut *bytes, RecvFlags::DONTWAIT))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[count..];
    }
    Ok(())
}

/// Repeats an attempt to receive until something has come, or the deadline is over.
fn before<T>(
    deadline: Instant,
    stream: &UnixStream,
    mut attempt: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    let mut waiting = Wait::until(deadline);
    loop {
        match attempt() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(&mut [PollFd::new(stream, PollFlags::IN)], &mut waiting)?,
            done => return Ok(done?),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Bytes that come one at a time do not move the deadline.
    #[test]
    fn a_message_has_one_deadline_for_all_of_its_bytes() {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let mut trickle = (1u32 << 16).to_le_bytes().into_iter().chain(std::iter::repeat(0));
                // Until the receiver closes its end.
                while far.write_all(&[trickle.next().expect("no end")]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let deadline = Instant::now() + Duration::from_millis(200);
            let error = receive::<Vec<u8>>(&near, 1 << 16, deadline).expect_err("it is not whole");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(near);
            sender.join().expect("no panic");
        });
    }
}
