//! A file descriptor on a connection between processes of one machine.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::handshake::{Channel, wait};
use crate::util::wait::Wait;

/// Sends a file, which goes with a byte.
pub(super) fn send_file(channel: &Channel, file: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    when_ready(channel, PollFlags::OUT, &mut Wait::until(deadline), || {
        sendmsg(channel, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)
    })
    .map(drop)
}

/// Receives a file; `None` if its byte came without it.
pub(super) fn receive_file(channel: &Channel, waiting: &mut Wait<'_>) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = when_ready(channel, PollFlags::IN, waiting, || {
        recvmsg(channel, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    }))
}

/// Repeats an attempt until the connection is ready for it.
fn when_ready<T>(
    channel: &Channel,
    ready: PollFlags,
    waiting: &mut Wait<'_>,
    mut attempt: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    loop {
        match attempt() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(&mut [PollFd::new(channel, ready)], waiting)?,
            done => return Ok(done?),
        }
    }
}
