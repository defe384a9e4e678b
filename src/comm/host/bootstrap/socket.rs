//! The abstract Unix socket of a job.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use sha2::{Digest, Sha256};

use crate::error::{Error, error};
use crate::handshake::{connect_abstract, own_user, refused_user};

/// The name of a job's socket: the user, and a hash of the job's text, which may be longer than a
/// socket's name.
pub(super) fn name_of(job: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(job.as_bytes()).into();
    let hash: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("distcollective-{}-{hash}", own_user())
}

/// Listens at the job's socket.
pub(super) fn listen(job: &str) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name_of(job))?)
}

/// See [`connect_abstract`].
pub(super) fn connect(job: &str) -> rustix::io::Result<UnixStream> {
    connect_abstract(&name_of(job))
}

/// The error of a channel to the job's socket, if a process of another user has taken the name.
pub(super) fn held_by_another_user(e: &std::io::Error) -> Option<Error> {
    let uid = refused_user(e)?;
    Some(error!(System, "another user (uid {uid}) holds the name under which this job's processes meet"))
}
