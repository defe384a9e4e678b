//! The port of a job, as long as its environment lives.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// A socket that has a port and does not listen. The system gives this port to no program that asks
/// for a free one. It gives it to a server that asks for it by its number and sets `SO_REUSEADDR`,
/// as torch's store does. A fork of the process holds the port too.
pub(super) struct HeldPort {
    _socket: OwnedFd,
}

impl HeldPort {
    /// `None` if the system refuses it. Then somebody else has the port: torchrun, for example.
    pub(super) fn new(port: u16) -> Option<Self> {
        // The first is of both families, on a machine that has IPv6.
        [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)].into_iter().find_map(|any| {
            let family = if any.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
            set_socket_reuseaddr(&socket, true).ok()?;
            bind(&socket, &SocketAddr::new(any, port)).ok()?;
            Some(HeldPort { _socket: socket })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_gets_the_port_and_a_search_does_not() {
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let port = listen(0).and_then(|found| found.local_addr()).expect("a port").port();
        let held = HeldPort::new(port).expect("a free port");
        // Without SO_REUSEADDR, as a search looks at each port.
        let search = || {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        assert_eq!(search(), Err(rustix::io::Errno::ADDRINUSE));
        // The standard library sets it.
        drop(listen(port).expect("the port of a server"));
        drop(held);
        assert_eq!(search(), Ok(()));
        assert!(HeldPort::new(0).is_some());
        let _server = listen(port).expect("a free port");
        assert!(HeldPort::new(port).is_none());
    }
}
