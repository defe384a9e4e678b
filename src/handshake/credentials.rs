//! Which user is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{Result, bail};

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

/// Checks that this process can tell its own user's processes from others.
///
/// # Errors
///
/// Its user is the overflow user, and its user namespace does not map all users.
pub(crate) fn check_own_user() -> Result<()> {
    let own = own_user();
    if overflow_user() == Some(own) {
        bail!(
            System,
            "this process's user reads as {own}, as does each user that its user namespace does not map; so it cannot tell \
             its own user's processes from others; run it as another user (in a container, with another `runAsUser`)"
        );
    }
    Ok(())
}

/// Several users may read as the overflow user, so it is never the same user.
fn is_same_user(peer: u32, own: u32, overflow: Option<u32>) -> bool {
    peer == own && Some(own) != overflow
}

/// The user as which this process sees all users that its user namespace does not map; `None` if it
/// maps all.
fn overflow_user() -> Option<u32> {
    const DEFAULT: u32 = 65534;
    if std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map)) {
        return None;
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    Some(text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT))
}

/// Whether a user namespace maps all users. A line of its map has the first user, its number in the
/// namespace above, and how many users follow. The last number is no user's.
fn maps_all(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() == u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_user_is_not_trusted() {
        for (peer, own, is_same) in [(0, 0, true), (1000, 1000, true), (1000, 1001, false), (0, 1000, false)] {
            assert_eq!(is_same_user(peer, own, Some(65534)), is_same, "{peer} {own}");
        }
        for (peer, own) in [(65534, 65534), (65534, 0), (0, 65534)] {
            assert!(!is_same_user(peer, own, Some(65534)), "{peer} {own}");
        }
        assert!(is_same_user(65534, 65534, None) && !is_same_user(65534, 0, None));
    }

    #[test]
    fn a_map_is_of_all_users_or_not() {
        let all = ["         0          0 4294967295\n", "0 1000 1\n1 100000 4294967294\n"];
        let some = ["", "0 1000 1\n", "0 100000 65536\n", "65534 65534 1\n", "0 0 4294967294\n"];
        assert!(all.into_iter().all(maps_all) && !some.into_iter().any(maps_all));
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let peer = Peer::of(&near).expect("a Unix socket");
        assert_eq!((peer.pid as u32, peer.uid), (std::process::id(), own_user()));
    }
}
