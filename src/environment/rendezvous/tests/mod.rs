//! Ranks are threads here. Each file has strangers, mistakes or deaths of its own kind.

mod by_file;
mod exchanging;
mod handshaking;
mod in_the_middle;
mod interrupts;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, getpeername, getsockname, socket, sockopt};
use serde::Serialize;

use super::exchange::{LONGEST_OF_MEMBER, LONGEST_PART};
use super::*;
use crate::error::ErrorKind;
use crate::handshake::{
    Answer, Cause, Challenge, Claim, Handshake, Instance, LONGEST_HELLO, PROTOCOL, Sender, Statement, TAG_BYTES, random,
};
use crate::util::wait::Wait;

/// A port that is this test's own: it is bound here too, but no process listens on it.
struct Port {
    endpoint: Endpoint,
    number: u16,
    _held: OwnedFd,
}

impl Port {
    fn free() -> Self {
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&held, true).expect("an option");
        bind(&held, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let number = SocketAddr::try_from(getsockname(&held).expect("bound")).expect("an address").port();
        Port { endpoint: Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: number }, number, _held: held }
    }

    /// Connects as soon as a process listens.
    fn connect(&self) -> TcpStream {
        let stream = patiently(|| TcpStream::connect((Ipv4Addr::LOCALHOST, self.number)).ok());
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream
    }

    /// Connects, and reads rank 0's greeting.
    fn greeted(&self) -> (Channel, Challenge) {
        patiently(|| {
            let mut channel = Channel::tcp(self.connect()).ok()?;
            match channel.receive(LONGEST_HELLO, &mut Wait::until(soon())) {
                Ok(WireMessage::Step(Handshake::Greeting { protocol, challenge })) if protocol == PROTOCOL => {
                    Some((channel, challenge))
                }
                _ => None,
            }
        })
    }

    /// Says hello by hand.
    fn hello(&self, participant: &Participant<'_>, rank: u32) -> (Channel, Answer) {
        self.hello_of(random().expect("random numbers"), participant, rank)
    }

    /// Says hello by hand, as this process.
    fn hello_of(&self, instance: Instance, participant: &Participant<'_>, rank: u32) -> (Channel, Answer) {
        let (mut channel, challenge) = self.greeted();
        let key = Key::new(participant, None).expect("a key");
        let challenge_of_peer = random().expect("random numbers");
        let claim = Claim {
            world_size: participant.world_size,
            first_rank: rank,
            rank_count: participant.rank_count,
            instance,
            challenge: challenge_of_peer,
        };
        let proof = key.prove(&Statement::Claim(&challenge, &claim)).expect("a proof");
        let job = key.prove_job(&challenge, &claim).expect("a statement");
        send(&mut channel, Handshake::Hello { protocol: PROTOCOL.to_owned(), claim, job, proof });
        match channel.receive(LONGEST_HELLO, &mut Wait::until(soon())) {
            Ok(WireMessage::Step(Handshake::Answer { answer, proof })) => {
                assert!(key.accepts(&Statement::Answer(&challenge, &claim, &answer), &proof).expect("a statement"));
                channel.begin_session(key.session(Sender::Peer, &challenge, &claim, &answer).expect("a session"));
                (channel, answer)
            }
            _ => panic!("no answer to a hello"),
        }
    }
}

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("dcl-rendezvous-{}", random_text::<8>().expect("random numbers")));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    fn endpoint(&self) -> (PathBuf, Endpoint) {
        let path = self.0.join("rendezvous");
        (path.clone(), Endpoint::File(path))
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("a folder").next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

fn patiently<T>(attempt: impl Fn() -> Option<T>) -> T {
    let end = soon();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(Instant::now() < end, "it takes too long");
        sleep(Duration::from_millis(2));
    }
}

fn participant(rank: u32, world_size: u32) -> Participant<'static> {
    Participant { secret: Some(b"a secret"), ..Participant::new("a job", rank, world_size, soon()) }
}

fn send<T: Serialize>(channel: &mut Channel, message: T) {
    channel.send(&[Frame::new(&WireMessage::Step(message)).expect("bytes")], soon()).expect("a listener");
}

fn error_of<T>(result: Result<T>) -> (ErrorKind, String) {
    let error = result.err().expect("something is wrong");
    (error.kind(), error.to_string())
}

/// Lets the ranks exchange parts of several lengths.
fn exchange_some(rendezvous: &mut Rendezvous, rank: u32, world_size: u32) {
    for round in 0..5 {
        let part = |rank: u32| match round {
            0 => Vec::new(),
            1 => vec![7; LONGEST_PART],
            round => vec![round + rank as u8; (rank as usize * 1000) % 2500],
        };
        let parts = rendezvous.exchange(&part(rank), soon()).expect("an exchange");
        assert_eq!(parts, (0..world_size).map(part).collect::<Vec<_>>());
    }
}

/// Lets these ranks meet and exchange; gives the rendezvous's nonce.
fn join_and_exchange(
    endpoint: &Endpoint,
    participant: impl Fn(u32) -> Participant<'static> + Sync,
    ranks: &[u32],
) -> String {
    let nonces = Mutex::new(Vec::new());
    scope(|scope| {
        for &rank in ranks {
            let (participant, nonces) = (&participant, &nonces);
            scope.spawn(move || {
                let participant = participant(rank);
                let mut rendezvous =
                    Rendezvous::join(endpoint, &participant).unwrap_or_else(|e| panic!("rank {rank}: {e}"));
                exchange_some(&mut rendezvous, rank, participant.world_size);
                nonces.lock().expect("no panic").push(rendezvous.nonce().to_owned());
            });
        }
    });
    let nonces = nonces.into_inner().expect("no panic");
    assert!(nonces.iter().all(|nonce| *nonce == nonces[0] && nonce.len() == 32), "{nonces:?}");
    nonces[0].clone()
}

#[test]
fn ranks_meet_at_a_port_and_by_a_file() {
    let mut nonces = std::collections::HashSet::new();
    for world_size in [1, 2, 5] {
        let ranks: Vec<u32> = (0..world_size).collect();
        let (port, folder) = (Port::free(), Folder::new());
        for endpoint in [&port.endpoint, &folder.endpoint().1] {
            // Twice: what is left of a rendezvous is not in the way of the next.
            for _ in 0..2 {
                nonces.insert(join_and_exchange(endpoint, |rank| participant(rank, world_size), &ranks));
            }
        }
        assert!(folder.is_empty());
    }
    assert_eq!(nonces.len(), 12, "every rendezvous has a nonce of its own");
}

#[test]
fn a_job_without_secret_meets_too_and_by_name() {
    let endpoint = Endpoint::Tcp { host: "localhost".to_owned(), port: Port::free().number };
    join_and_exchange(&endpoint, |rank| Participant { secret: None, ..participant(rank, 2) }, &[0, 1]);
}

#[test]
fn missing_ranks_are_named() {
    let port = Port::free();
    let expected = format!("ranks 1 and 3 of 4 did not come to 127.0.0.1:{} before the deadline", port.number);
    scope(|scope| {
        let rank_0 = scope.spawn(|| {
            error_of(Rendezvous::join(&port.endpoint, &Participant { deadline: shortly(), ..participant(0, 4) }))
        });
        // Its own deadline is later; rank 0 tells it.
        let peer = scope.spawn(|| error_of(Rendezvous::join(&port.endpoint, &participant(2, 4))));
        for rank in [rank_0, peer] {
            assert_eq!(rank.join().expect("no panic"), (ErrorKind::DeadlineExceeded, expected.clone()));
        }
    });
    let (kind, message) =
        error_of(Rendezvous::join(&port.endpoint, &Participant { deadline: shortly(), ..participant(1, 4) }));
    assert_eq!(kind, ErrorKind::DeadlineExceeded);
    let begin = format!("rank 0 was not found at 127.0.0.1:{} before the deadline; at the last attempt: ", port.number);
    assert!(message.starts_with(&begin) && message.contains("refused"), "{message}");
}

#[test]
fn rank_0_on_the_wrong_machine_is_told() {
    // An address that is reserved for documentation.
    let endpoint = Endpoint::Tcp { host: "192.0.2.1".to_owned(), port: Port::free().number };
    let (_, text) = error_of(Rendezvous::join(&endpoint, &Participant { deadline: shortly(), ..participant(0, 2) }));
    assert!(text.ends_with("before the deadline; 192.0.2.1 is no address of this machine, where rank 0 is"), "{text}");
}

/// Copies, as a forked process has them, of this process's connections to the port.
fn copies_of_connections_to(port: u16) -> Vec<OwnedFd> {
    let numbers = std::fs::read_dir("/proc/self/fd").expect("/proc");
    let numbers = numbers.filter_map(|entry| entry.expect("an entry").file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|number: i32| {
        // SAFETY: it makes a new descriptor, or fails if there is none of this number.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: the descriptor is new.
        (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
    });
    let is_to_port = |copy: &OwnedFd| {
        let address = getpeername(copy).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
        address.is_some_and(|address| address.port() == port)
    };
    copies.filter(is_to_port).collect()
}

#[test]
fn a_peer_whose_deadline_is_first_says_so() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| Rendezvous::join(&port.endpoint, &participant(0, 3)).map(drop));
        let early = scope.spawn(|| {
            error_of(Rendezvous::join(&port.endpoint, &Participant { deadline: shortly(), ..participant(1, 3) }))
        });
        let _copies = patiently(|| Some(copies_of_connections_to(port.number)).filter(|copies| !copies.is_empty()));
        let (kind, message) = early.join().expect("no panic");
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.contains("not all of the other 2 came there before the deadline"), "{message}");
        // Its place is free again.
        let again = scope.spawn(|| Rendezvous::join(&port.endpoint, &participant(1, 3)).map(drop));
        Rendezvous::join(&port.endpoint, &participant(2, 3)).map(drop).expect("a rendezvous");
        again.join().expect("no panic").expect("a rendezvous");
        rank_0.join().expect("no panic").expect("a rendezvous");
    });
}

#[test]
fn a_port_in_use_is_named() {
    let port = Port::free();
    let _other = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number)).expect("the port is this test's");
    let (kind, message) = error_of(Rendezvous::join(&port.endpoint, &participant(0, 2)));
    assert_eq!(kind, ErrorKind::System);
    let expected = format!("port {} of this machine is in use", port.number);
    assert!(message.starts_with(&expected) && message.contains("DCL_RENDEZVOUS_PORT"), "{message}");
}

#[test]
fn rank_0_listens_at_its_own_address_or_at_all() {
    let port = Port::free();
    let listening_at =
        |host| tcp::listen(host, port.number, soon()).expect("a free port").local_addr().expect("bound").ip();
    assert!(listening_at("127.0.0.1").is_loopback());
    // An address for documentation, which is no machine's.
    let everywhere = listening_at("203.0.113.1");
    assert!(everywhere.is_ipv4() && everywhere.is_unspecified());
}

#[test]
fn two_jobs_do_not_meet() {
    let (ports, folders) = ([Port::free(), Port::free()], [Folder::new(), Folder::new()]);
    let endpoints =
        [ports[0].endpoint.clone(), ports[1].endpoint.clone(), folders[0].endpoint().1, folders[1].endpoint().1];
    scope(|scope| {
        let jobs = endpoints.each_ref().map(|endpoint| {
            scope.spawn(move || {
                join_and_exchange(endpoint, |rank| Participant { secret: None, ..participant(rank, 3) }, &[0, 1, 2])
            })
        });
        let nonces: std::collections::HashSet<String> =
            jobs.into_iter().map(|job| job.join().expect("no panic")).collect();
        assert_eq!(nonces.len(), 4);
    });
}
