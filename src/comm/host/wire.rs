//! Messages between processes of one machine, which may have a file descriptor with them. Their
//! bytes are the [handshake](crate::handshake)'s frames.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handshake::{LENGTH_BYTES, body_len, decode, encode_frame};

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
/// The message is longer than `longest` bytes, is not one of type `T`, or does not come within the
/// connection's read timeout.
pub(super) fn receive<T: DeserializeOwned>(
    mut stream: &UnixStream,
    longest: usize,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut len = [0; LENGTH_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(stream, &mut [IoSliceMut::new(&mut len)], &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    stream.read_exact(&mut len[received.bytes..])?;
    let mut body = vec![0; body_len(len, longest)?];
    stream.read_exact(&mut body)?;
    Ok(Some((decode(&body)?, file)))
}
