//! Messages between processes of one machine: a length, a value, and perhaps a file descriptor.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// Sends a value; a file goes along with its first byte.
pub(super) fn send(mut stream: &UnixStream, value: &impl Serialize, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let body = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let mut message = (body.len() as u32).to_le_bytes().to_vec();
    message.extend(body);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let sent = retry_on_intr(|| sendmsg(stream, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL))?;
    stream.write_all(&message[sent..])
}

/// Receives a value and the file that came with it; `None` where the connection has ended.
pub(super) fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut len = [0; 4];
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
    let body_len = u32::from_le_bytes(len) as usize;
    if body_len > LONGEST {
        return Err(io::Error::other(format!("a message of {body_len} bytes is longer than {LONGEST}")));
    }
    let mut body = vec![0; body_len];
    stream.read_exact(&mut body)?;
    Ok(Some((postcard::from_bytes(&body).map_err(io::Error::other)?, file)))
}

/// The process and the user at the other end, as the kernel knows them. The process is 0 where it is not visible from here.
pub(super) fn peer(stream: &UnixStream) -> io::Result<(i32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let target: *mut libc::ucred = &mut credentials;
    // SAFETY: the option writes at most `len` bytes of a `ucred`, all of whose bit patterns are values. (rustix has this call
    // too, with a process number that may not be 0, as the kernel says it may.)
    let result =
        unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, target.cast(), &mut len) };
    if result == 0 { Ok((credentials.pid, credentials.uid)) } else { Err(io::Error::last_os_error()) }
}
