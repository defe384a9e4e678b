//! Where rank 0 listens, and how the others connect to it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::environment::endpoint::{attempt_until, is_loopback, resolve, without_brackets};
use crate::error::{Result, error};
use crate::handshake::{Channel, wait};
use crate::util::wait::Wait;

/// Every address of this machine.
pub(super) const ANY: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];

/// Listens at the host's address if it is one of this machine. Otherwise (names of services,
/// address translation) it listens at every address of this machine of the same family. So it does
/// for a name that only this machine resolves to its loopback, as `/etc/hosts` often has it.
pub(super) fn listen(host: &str, port: u16, deadline: Instant) -> Result<TcpListener> {
    let found = match resolve(host, port, deadline) {
        Ok(found) => found,
        Err(error) if error.kind() == crate::error::ErrorKind::Interrupted => return Err(error),
        Err(error) => {
            crate::util::log::event!(WARN, "{error}; rank 0 listens at every address of this machine");
            Vec::new()
        }
    };
    let own = found.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback() || is_loopback(host));
    let only_v4 = !found.is_empty() && found.iter().all(SocketAddr::is_ipv4);
    let any = ANY.into_iter().filter(|ip| ip.is_ipv4() || !only_v4);
    listen_at_first(own.chain(any), port)
}

/// Whether a host is given by an address that this machine does not have.
pub(super) fn is_elsewhere(host: &str) -> bool {
    let address = without_brackets(host).parse::<IpAddr>();
    let bind = |address| TcpListener::bind((address, 0));
    address.is_ok_and(|address| bind(address).is_err_and(|e| e.kind() == ErrorKind::AddrNotAvailable))
}

pub(super) fn listen_at_first(addresses: impl IntoIterator<Item = IpAddr>, port: u16) -> Result<TcpListener> {
    let mut refusal = error!(System, "rank 0 has no address to listen at");
    for address in addresses {
        match TcpListener::bind((address, port)) {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                let error = error!(
                    System,
                    "port {port} of this machine is in use, and rank 0 has to listen there; DCL_RENDEZVOUS_PORT, the same \
                     on every rank, names another one"
                );
                return Err(error.with_source(e));
            }
            Err(e) => refusal = error!(System, "rank 0 cannot listen at {address}, port {port}: {e}").with_source(e),
        }
    }
    Err(refusal)
}

/// The hosts by which others may reach this machine, the most likely one first.
pub(super) fn own_hosts() -> Vec<String> {
    // These two addresses are reserved for documentation, so the default route leads to them.
    let outgoing = [(ANY[1], "192.0.2.1"), (ANY[0], "2001:db8::1")].map(|(any, far)| outgoing_address(any, far));
    let numbers = outgoing.into_iter().flatten().chain([IpAddr::V4(Ipv4Addr::LOCALHOST)]).map(|ip| ip.to_string());
    numbers.chain([rustix::system::uname().nodename().to_string_lossy().into_owned()]).collect()
}

/// The address from which this machine would send to `far`. Nothing is sent: connecting a UDP
/// socket only chooses its route.
fn outgoing_address(any: IpAddr, far: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Connects to an address of a host.
pub(super) fn connect(address: SocketAddr, deadline: Instant) -> std::io::Result<Channel> {
    let stream = connect_until(address, attempt_until(deadline))?;
    // If no process listens on a port that the system may give to outgoing connections, a
    // connection can get that port and reach itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Channel::tcp(stream)
}

/// [`TcpStream::connect_timeout`], with a wait that the interrupt hook can end.
fn connect_until(address: SocketAddr, until: Instant) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
    let mut waiting = Wait::until(until);
    while fds[0].revents().is_empty() {
        wait(&mut fds, &mut waiting).map_err(|e| match e.kind() {
            ErrorKind::TimedOut => std::io::Error::new(ErrorKind::TimedOut, "connection timed out"),
            _ => e,
        })?;
    }
    socket_error(&socket)??;
    Ok(TcpStream::from(socket))
}
