//! Which user is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// 0 where the process is not visible from this process's PID namespace.
    pub(crate) pid: i32,
    /// The effective user.
    pub(crate) uid: u32,
}

impl Peer {
    /// Asks the kernel.
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let target: *mut libc::ucred = &mut credentials;
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: the option writes at most `len` bytes to `target`, which is a `ucred`, all of
        // whose bit patterns are values. (rustix's form of this call has a process id that may not
        // be 0, and the kernel may say 0.)
        let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, target.cast(), &mut len) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Peer { pid: credentials.pid, uid: credentials.uid })
    }

    /// Whether the peer's user is this process's.
    pub(crate) fn is_same_user(&self) -> bool {
        is_same_user(self.uid, own_user(), overflow_user())
    }
}

/// This process's effective user, which the kernel tells the other end of a connection.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Several users may read as the overflow user, so it is never the same user.
fn is_same_user(peer: u32, own: u32, overflow: u32) -> bool {
    peer == own && own != overflow
}

/// The user as which a process sees all users that its user namespace does not map.
pub(crate) fn overflow_user() -> u32 {
    const DEFAULT: u32 = 65534;
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_user_is_not_trusted() {
        for (peer, own, is_same) in [(0, 0, true), (1000, 1000, true), (1000, 1001, false), (0, 1000, false)] {
            assert_eq!(is_same_user(peer, own, 65534), is_same, "{peer} {own}");
        }
        assert!(!is_same_user(65534, 65534, 65534) && !is_same_user(65534, 0, 65534) && !is_same_user(0, 65534, 65534));
        assert_eq!(overflow_user(), 65534);
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let peer = Peer::of(&near).expect("a Unix socket");
        assert_eq!((peer.pid as u32, peer.uid), (std::process::id(), own_user()));
    }
}
