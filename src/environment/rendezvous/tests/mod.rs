//! Ranks are threads here. Each test of a meeting has strangers, mistakes or deaths of its own kind.

mod by_file;
mod in_the_middle;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

use super::protocol::{
    Answer, Challenge, Claim, Instance, LONGEST_OF_STRANGER, Message, PROTOCOL, Sender, Statement, TAG_BYTES, Why,
    encode, random,
};
use super::*;
use crate::error::ErrorKind;

/// A port that is this test's own: it is bound here too, but nobody listens on it.
struct Port {
    place: Place,
    number: u16,
    _held: OwnedFd,
}

impl Port {
    fn free() -> Self {
        let held = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&held, true).expect("an option");
        bind(&held, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let number = SocketAddr::try_from(getsockname(&held).expect("bound")).expect("an address").port();
        Port { place: Place::Tcp { host: "127.0.0.1".to_owned(), port: number }, number, _held: held }
    }

    /// Connects as soon as somebody listens.
    fn connect(&self) -> TcpStream {
        let stream = patiently(|| TcpStream::connect((Ipv4Addr::LOCALHOST, self.number)).ok());
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream
    }

    /// Connects, and reads rank 0's greeting.
    fn greeted(&self) -> (Line, Challenge) {
        patiently(|| {
            let mut line = Line::new(self.connect()).ok()?;
            match line.receive(LONGEST_OF_STRANGER, soon()) {
                Ok(Message::Greeting { protocol, challenge }) if protocol == PROTOCOL => Some((line, challenge)),
                _ => None,
            }
        })
    }

    /// Says hello by hand.
    fn hello(&self, terms: &Terms<'_>, rank: u32) -> (Line, Answer) {
        self.hello_of(random().expect("random numbers"), terms, rank)
    }

    /// Says hello by hand, as this process.
    fn hello_of(&self, instance: Instance, terms: &Terms<'_>, rank: u32) -> (Line, Answer) {
        let (mut line, challenge) = self.greeted();
        let key = Key::new(terms, None).expect("a key");
        let challenge_of_peer = random().expect("random numbers");
        let claim = Claim { world_size: terms.world_size, rank, instance, challenge: challenge_of_peer };
        let proof = key.prove(&Statement::Claim(&challenge, &claim)).expect("a proof");
        let job = key.name_job(&challenge, &claim).expect("a statement");
        send(&mut line, &Message::Hello { protocol: PROTOCOL.to_owned(), claim, job, proof });
        match line.receive(LONGEST_OF_STRANGER, soon()) {
            Ok(Message::Answer { answer, proof }) => {
                assert!(key.accepts(&Statement::Answer(&challenge, &claim, &answer), &proof).expect("a statement"));
                line.begin_session(key.session(Sender::Peer, &challenge, &claim, &answer).expect("a session"));
                (line, answer)
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

    fn place(&self) -> (PathBuf, Place) {
        let path = self.0.join("meeting");
        (path.clone(), Place::File(path))
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

fn terms(rank: u32, world_size: u32) -> Terms<'static> {
    Terms { job: "a job", secret: Some(b"a secret"), rank, world_size, deadline: soon() }
}

fn send(line: &mut Line, message: &Message) {
    line.send(&[frame(message).expect("bytes")], soon()).expect("a listener");
}

fn error_of<T>(result: Result<T>) -> (ErrorKind, String) {
    let error = result.err().expect("something is wrong");
    (error.kind(), error.to_string())
}

/// Lets the ranks exchange parts of several lengths.
fn exchange_some(meeting: &mut Meeting, rank: u32, world_size: u32) {
    for round in 0..5 {
        let part = |rank: u32| match round {
            0 => Vec::new(),
            1 => vec![7; LONGEST_PART],
            round => vec![round + rank as u8; (rank as usize * 1000) % 2500],
        };
        let parts = meeting.exchange(&part(rank), soon()).expect("an exchange");
        assert_eq!(parts, (0..world_size).map(part).collect::<Vec<_>>());
    }
}

/// Lets these ranks meet and exchange; gives the meeting's nonce.
fn meet_and_exchange(place: &Place, terms: impl Fn(u32) -> Terms<'static> + Sync, ranks: &[u32]) -> String {
    let nonces = Mutex::new(Vec::new());
    scope(|scope| {
        for &rank in ranks {
            let (terms, nonces) = (&terms, &nonces);
            scope.spawn(move || {
                let terms = terms(rank);
                let mut meeting = meet(place, &terms).unwrap_or_else(|e| panic!("rank {rank}: {e}"));
                exchange_some(&mut meeting, rank, terms.world_size);
                nonces.lock().expect("no panic").push(meeting.nonce().to_owned());
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
        for place in [&port.place, &folder.place().1] {
            // Twice: what is left of a meeting is not in the way of the next.
            for _ in 0..2 {
                nonces.insert(meet_and_exchange(place, |rank| terms(rank, world_size), &ranks));
            }
        }
        assert!(folder.is_empty());
    }
    assert_eq!(nonces.len(), 12, "every meeting has a nonce of its own");
}

#[test]
fn a_job_without_secret_meets_too_and_by_name() {
    let place = Place::Tcp { host: "localhost".to_owned(), port: Port::free().number };
    meet_and_exchange(&place, |rank| Terms { secret: None, ..terms(rank, 2) }, &[0, 1]);
}

#[test]
fn who_is_missing_is_named() {
    let port = Port::free();
    let expected = format!("ranks 1 and 3 of 4 did not come to 127.0.0.1:{} before the deadline", port.number);
    scope(|scope| {
        let host = scope.spawn(|| error_of(meet(&port.place, &Terms { deadline: shortly(), ..terms(0, 4) })));
        // Its own deadline is later; rank 0 tells it.
        let guest = scope.spawn(|| error_of(meet(&port.place, &terms(2, 4))));
        for rank in [host, guest] {
            assert_eq!(rank.join().expect("no panic"), (ErrorKind::DeadlineExceeded, expected.clone()));
        }
    });
    let (kind, message) = error_of(meet(&port.place, &Terms { deadline: shortly(), ..terms(1, 4) }));
    assert_eq!(kind, ErrorKind::DeadlineExceeded);
    let begin = format!("rank 0 was not found at 127.0.0.1:{} before the deadline; at the last attempt: ", port.number);
    assert!(message.starts_with(&begin) && message.contains("refused"), "{message}");
}

#[test]
fn a_guest_whose_deadline_is_first_says_so() {
    let port = Port::free();
    scope(|scope| {
        let host = scope.spawn(|| meet(&port.place, &terms(0, 3)).map(drop));
        let (kind, message) = error_of(meet(&port.place, &Terms { deadline: shortly(), ..terms(1, 3) }));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.contains("not all of the other 2 came there before the deadline"), "{message}");
        // Its place is free again.
        let again = scope.spawn(|| meet(&port.place, &terms(1, 3)).map(drop));
        meet(&port.place, &terms(2, 3)).map(drop).expect("a meeting");
        again.join().expect("no panic").expect("a meeting");
        host.join().expect("no panic").expect("a meeting");
    });
}

/// A peer that knows the key and contradicts rank 0 ends the rendezvous for every rank that has
/// come, at once.
#[test]
fn a_contradiction_ends_the_rendezvous_for_all() {
    let port = Port::free();
    let (kind, message) = error_of(meet(&port.place, &terms(1, 1)));
    assert_eq!((kind, message.as_str()), (ErrorKind::InvalidArgument, "rank 1 is not one of 1"));
    let cases = [
        (2, 1, "ranks have to be given the same world size: rank 1 has 2, and rank 0 has 3"),
        (3, 2, "two processes say that they are rank 2"),
        (3, 0, "two processes say that they are rank 0"),
        (3, 7, "rank 7 is not one of 3"),
    ];
    for (world_size, rank, reason) in cases {
        scope(|scope| {
            let host = scope.spawn(|| error_of(meet(&port.place, &terms(0, 3))));
            let (mut member, answer) = port.hello(&terms(0, 3), 2);
            assert!(matches!(answer, Answer::Welcome { .. }));
            let (_line, answer) = port.hello(&terms(0, world_size), rank);
            assert!(matches!(answer, Answer::Refused { reason: told } if told == reason));
            let told = member.receive(LONGEST_OF_MEMBER, soon()).expect("an end");
            assert!(matches!(told, Message::End { why: Why::Disagreement, reason: told } if told == reason));
            assert_eq!(host.join().expect("no panic"), (ErrorKind::Disagreement, reason.to_owned()));
        });
    }
    // The same with ranks as they are; one of the twins is the first.
    scope(|scope| {
        let place = &port.place;
        let ranks = [0, 1, 1].map(|rank| scope.spawn(move || error_of(meet(place, &terms(rank, 3)))));
        for rank in ranks {
            let expected = (ErrorKind::Disagreement, "two processes say that they are rank 1".to_owned());
            assert_eq!(rank.join().expect("no panic"), expected);
        }
    });
}

/// A wrong secret is no proof, so it ends nothing but its own rank's attempt; rank 0 says at its
/// deadline how many there were.
#[test]
fn a_wrong_secret_is_told_at_once_and_counted() {
    let port = Port::free();
    let late = Instant::now() + Duration::from_secs(3);
    scope(|scope| {
        let host = scope.spawn(|| error_of(meet(&port.place, &Terms { deadline: late, ..terms(0, 2) })));
        for secret in [Some(&b"another secret"[..]), None] {
            let (kind, message) = error_of(meet(&port.place, &Terms { secret, ..terms(1, 2) }));
            assert_eq!(kind, ErrorKind::Disagreement);
            assert!(message.contains("refuses this rank for a wrong secret: DCL_SECRET"), "{message}");
        }
        let other = Terms { job: "another job", deadline: shortly(), ..terms(1, 2) };
        let (kind, message) = error_of(meet(&port.place, &other));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.contains("the rank 0 that answers is one of another job"), "{message}");
        let (kind, message) = host.join().expect("no panic");
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        let begin = format!(
            "rank 1 of 2 did not come to 127.0.0.1:{} before the deadline; rank 0 refused 2 connections with a wrong secret and ",
            port.number
        );
        // The rank of the other job tries again and again.
        assert!(message.starts_with(&begin) && message.ends_with(" for another job"), "{message}");
    });
}

/// A world that no process can hold is refused before anything is allocated for it.
#[test]
fn a_world_has_a_limit() {
    let (port, folder) = (Port::free(), Folder::new());
    for place in [&port.place, &folder.place().1] {
        for (rank, world_size) in [(0, u32::MAX), (1, MAX_RANKS + 1)] {
            let (kind, message) = error_of(meet(place, &terms(rank, world_size)));
            assert_eq!(kind, ErrorKind::InvalidArgument);
            let expected =
                format!("world_size is {world_size}; ranks that meet over TCP or through a file are at most 65536");
            assert_eq!(message, expected);
        }
    }
}

#[test]
fn strangers_hold_nobody_up() {
    let port = Port::free();
    scope(|scope| {
        let host = scope.spawn(|| meet_and_exchange(&port.place, |rank| terms(rank, 3), &[0]));
        port.connect().write_all(&[0xff; 4096]).expect("the host listens");
        let (garbage, _) = port.greeted();
        garbage.send_bytes(&[4, 0, 0, 0, 9, 9, 9, 9], soon()).expect("the host listens");
        let _silent = port.connect();
        let mut trickle = port.connect();
        trickle.write_all(&[100, 0, 0, 0, 1]).expect("the host listens");
        drop(port.connect());
        let (guest, answer) = port.hello(&terms(0, 3), 1);
        assert!(matches!(answer, Answer::Welcome { .. }));
        drop(guest);
        for secret in [Some(&b"another secret"[..]), None] {
            let (kind, message) = error_of(meet(&port.place, &Terms { secret, ..terms(1, 3) }));
            assert_eq!(kind, ErrorKind::Disagreement);
            assert!(message.contains("wrong secret"), "{message}");
        }
        let another = Terms { job: "another job", deadline: shortly(), ..terms(1, 3) };
        let (kind, message) = error_of(meet(&port.place, &another));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.ends_with("the rank 0 that answers is one of another job"), "{message}");
        let crowd = [(); 70].map(|()| port.connect());
        meet_and_exchange(&port.place, |rank| terms(rank, 3), &[1, 2]);
        host.join().expect("no panic");
        drop((crowd, trickle));
    });
}

#[test]
fn a_hello_does_not_work_twice() {
    let port = Port::free();
    scope(|scope| {
        let host = scope.spawn(|| meet(&port.place, &terms(0, 2)).map(drop));
        let key = Key::new(&terms(0, 2), None).expect("a key");
        let claim = Claim { world_size: 2, rank: 1, instance: [0; 16], challenge: random().expect("random numbers") };
        let (_, other_challenge) = port.greeted();
        let proof = key.prove(&Statement::Claim(&other_challenge, &claim)).expect("a proof");
        let (mut line, _) = port.greeted();
        let job = key.name_job(&other_challenge, &claim).expect("a statement");
        send(&mut line, &Message::Hello { protocol: PROTOCOL.to_owned(), claim, job, proof });
        assert!(matches!(line.receive(LONGEST_OF_STRANGER, soon()), Ok(Message::Refusal { same_job: false })));
        meet(&port.place, &terms(1, 2)).map(drop).expect("a meeting");
        host.join().expect("no panic").expect("a meeting");
    });
}

/// Writing a byte now and then does not stretch the time for a hello.
#[test]
fn a_trickle_comes_to_an_end() {
    let port = Port::free();
    scope(|scope| {
        let host = scope.spawn(|| meet(&port.place, &terms(0, 2)).map(drop));
        let mut trickle = port.connect();
        trickle.write_all(&[255, 0, 0, 0]).expect("the host listens");
        patiently(|| (&trickle).write_all(&[1]).is_err().then_some(()));
        meet(&port.place, &terms(1, 2)).map(drop).expect("a meeting");
        host.join().expect("no panic").expect("a meeting");
    });
}

#[test]
fn a_false_rank_0_is_not_believed() {
    let port = Port::free();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number)).expect("the port is this test's");
    scope(|scope| {
        let false_host = |terms: Terms<'static>| {
            let (stream, _) = listener.accept().expect("a guest");
            let mut line = Line::new(stream).expect("a line");
            let challenge = random().expect("random numbers");
            send(&mut line, &Message::Greeting { protocol: PROTOCOL.to_owned(), challenge });
            let Ok(Message::Hello { claim, .. }) = line.receive(LONGEST_OF_STRANGER, soon()) else {
                panic!("no hello");
            };
            let answer = Answer::Welcome { nonce: "0".repeat(32) };
            let key = Key::new(&terms, None).expect("a key");
            let proof = key.prove(&Statement::Answer(&challenge, &claim, &answer)).expect("a proof");
            send(&mut line, &Message::Answer { answer, proof });
        };
        let guest = scope.spawn(|| meet(&port.place, &terms(1, 2)).map(drop));
        false_host(Terms { secret: Some(&b"another secret"[..]), ..terms(0, 2) });
        false_host(Terms { job: "another job", ..terms(0, 2) });
        // Somebody else's service, and one that hangs up.
        let (mut banner, _) = listener.accept().expect("a guest");
        banner.write_all(b"220 at your service\r\n").expect("a listener");
        drop(listener.accept().expect("a guest"));
        let old = listener.accept().expect("a guest").0;
        send(
            &mut Line::new(old).expect("a line"),
            &Message::Greeting { protocol: "another".to_owned(), challenge: [0; 32] },
        );
        drop((listener, banner));
        // At last the right one.
        meet(&port.place, &terms(0, 2)).map(drop).expect("a meeting");
        guest.join().expect("no panic").expect("a meeting");
    });
}

#[test]
fn a_member_that_hangs_up_can_come_again() {
    let port = Port::free();
    scope(|scope| {
        let host = scope.spawn(|| meet_and_exchange(&port.place, |rank| terms(rank, 3), &[0]));
        for _ in 0..20 {
            let (line, answer) = port.hello(&terms(0, 3), 1);
            assert!(matches!(answer, Answer::Welcome { .. }));
            drop(line);
        }
        meet_and_exchange(&port.place, |rank| terms(rank, 3), &[1, 2]);
        host.join().expect("no panic");
    });
}

/// A process that gave up its first connection may come again before rank 0 sees the end of that.
#[test]
fn one_process_may_come_twice() {
    let port = Port::free();
    scope(|scope| {
        let host = scope.spawn(|| meet_and_exchange(&port.place, |rank| terms(rank, 3), &[0]));
        let (mut first, answer) = port.hello_of([7; 16], &terms(0, 3), 1);
        assert!(matches!(answer, Answer::Welcome { .. }));
        let (second, answer) = port.hello_of([7; 16], &terms(0, 3), 1);
        assert!(matches!(answer, Answer::Welcome { .. }));
        let ended = first.receive(LONGEST_OF_MEMBER, soon()).err();
        assert_eq!(ended.map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        drop(second);
        meet_and_exchange(&port.place, |rank| terms(rank, 3), &[1, 2]);
        host.join().expect("no panic");
    });
}

/// Ranks of a world of four meet; each then does what the function says.
fn four_ranks<T: Send>(act: impl Fn(u32, Meeting) -> T + Sync) -> Vec<T> {
    let port = Port::free();
    scope(|scope| {
        let rank = |rank| {
            let (port, act) = (&port, &act);
            scope.spawn(move || act(rank, meet(&port.place, &terms(rank, 4)).expect("a meeting")))
        };
        let ranks = [0, 1, 2, 3].map(rank);
        ranks.map(|rank| rank.join().expect("no panic")).into()
    })
}

#[test]
fn a_death_ends_the_exchange_for_all() {
    for dying in [2, 0] {
        let begin = Instant::now();
        let results = four_ranks(|rank, mut meeting| {
            meeting.exchange(&[1], soon()).expect("all are alive");
            if rank == dying {
                return None;
            }
            let error = error_of(meeting.exchange(&vec![1; LONGEST_PART], soon()));
            assert_eq!(error_of(meeting.exchange(&[], soon())), error, "it stays so");
            Some(error)
        });
        assert!(begin.elapsed() < Duration::from_secs(8), "nobody waits for the deadline");
        for (kind, message) in results.into_iter().flatten() {
            assert_eq!(kind, ErrorKind::PeerLost);
            assert!(message.starts_with(&format!("rank {dying} was lost: ")), "{message}");
        }
    }
}

#[test]
fn a_part_that_is_too_long_ends_the_exchange() {
    for talker in [2, 0] {
        let results = four_ranks(|rank, mut meeting| {
            let len = if rank == talker { LONGEST_PART + 1 } else { 1 };
            error_of(meeting.exchange(&vec![1; len], soon()))
        });
        for (rank, (kind, message)) in (0..).zip(results) {
            if rank == talker || talker == 0 {
                assert!(message.starts_with(&format!("rank {talker} ")), "{message}");
                assert!(message.contains("gave a part of 65537 bytes, and at most 65536 are allowed"), "{message}");
            } else {
                assert!(message.starts_with("rank 2 ended the rendezvous: rank 2 gave a part of 65537 "), "{message}");
            }
            assert_eq!(kind, if rank == talker { ErrorKind::InvalidArgument } else { ErrorKind::PeerLost });
        }
    }
}

#[test]
fn a_member_cannot_make_rank_0_read_more() {
    let port = Port::free();
    let without_tag = [&[1, 0, 0, 0, 99][..], &[0; TAG_BYTES]].concat();
    for (bytes, expected) in [
        (
            70_000_u32.to_le_bytes().to_vec(),
            "rank 1 was lost: a message of 70000 bytes came, and 1 to 65544 are allowed",
        ),
        (0_u32.to_le_bytes().to_vec(), "rank 1 was lost: a message of 0 bytes came, and 1 to 65544 are allowed"),
        (Vec::new(), "rank 1 was lost: it sent a message out of turn"),
        (without_tag, "a message from rank 1 has a wrong tag: messages were altered, repeated or left out on the way"),
    ] {
        scope(|scope| {
            let host = scope.spawn(|| {
                let mut meeting = meet(&port.place, &terms(0, 2)).expect("a meeting");
                error_of(meeting.exchange(&[], soon()))
            });
            let (mut line, _) = port.hello(&terms(0, 2), 1);
            assert!(matches!(line.receive(LONGEST_OF_MEMBER, soon()), Ok(Message::Complete)));
            match bytes.as_slice() {
                [] => send(&mut line, &Message::Complete),
                bytes => line.send_bytes(bytes, soon()).expect("the host listens"),
            }
            assert_eq!(host.join().expect("no panic"), (ErrorKind::PeerLost, expected.to_owned()));
            let told = line.receive(LONGEST_OF_MEMBER, soon()).expect("an end");
            assert!(matches!(told, Message::End { why: Why::Lost, reason } if reason == expected));
        });
    }
}

#[test]
fn who_gives_no_part_is_named() {
    let done = Mutex::new(0);
    let results = four_ranks(|rank, mut meeting| {
        let result = match rank {
            0 => Some(error_of(meeting.exchange(&[], shortly()))),
            1 => Some(error_of(meeting.exchange(&[], soon()))),
            _ => None,
        };
        *done.lock().expect("no panic") += 1;
        // The others stay until rank 0 has given up.
        patiently(|| (*done.lock().expect("no panic") == 4).then_some(()));
        result
    });
    let expected = "ranks 2 and 3 of 4 gave no part before the deadline";
    for (kind, message) in results.into_iter().flatten() {
        assert_eq!((kind, message.as_str()), (ErrorKind::DeadlineExceeded, expected));
    }
}

#[test]
fn the_longest_part_fits_its_message() {
    let message = encode(&Message::Part(vec![0; LONGEST_PART])).expect("bytes");
    assert!((LONGEST_PART + 1..=LONGEST_OF_MEMBER).contains(&message.len()));
}

#[test]
fn a_port_in_use_is_named() {
    let port = Port::free();
    let _other = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number)).expect("the port is this test's");
    let (kind, message) = error_of(meet(&port.place, &terms(0, 2)));
    assert_eq!(kind, ErrorKind::System);
    let expected = format!("port {} of this machine is in use", port.number);
    assert!(message.starts_with(&expected) && message.contains("DCL_RENDEZVOUS_PORT"), "{message}");
}

#[test]
fn the_port_is_beside_the_launchers() {
    assert_eq!([29500, 0, 65534, 65535].map(default_port), [29501, 1, 65535, 65534]);
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
    let places = [ports[0].place.clone(), ports[1].place.clone(), folders[0].place().1, folders[1].place().1];
    scope(|scope| {
        let jobs = places.each_ref().map(|place| {
            scope.spawn(move || meet_and_exchange(place, |rank| Terms { secret: None, ..terms(rank, 3) }, &[0, 1, 2]))
        });
        let nonces: std::collections::HashSet<String> =
            jobs.into_iter().map(|job| job.join().expect("no panic")).collect();
        assert_eq!(nonces.len(), 4);
    });
}

/// A message that comes in two pieces, and two that come in one.
#[test]
fn messages_have_ends_of_their_own() {
    let port = Port::free();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number)).expect("the port is this test's");
    let mut sender = port.connect();
    let mut line = Line::new(listener.accept().expect("a caller").0).expect("a line");
    let body = encode(&Message::Part(vec![1, 2, 3])).expect("bytes");
    let bytes = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
    let is_part = |message: Message| matches!(message, Message::Part(part) if part == [1, 2, 3]);
    for split in 0..bytes.len() {
        sender.write_all(&bytes[..split]).expect("a listener");
        assert!(line.pull(LONGEST_OF_MEMBER).expect("no error").is_none());
        sender.write_all(&bytes[split..]).expect("a listener");
        assert!(is_part(line.receive(LONGEST_OF_MEMBER, soon()).expect("a message")));
    }
    sender.write_all(&[&bytes[..], &bytes[..]].concat()).expect("a listener");
    assert!(is_part(line.receive(LONGEST_OF_MEMBER, soon()).expect("the first")));
    assert!(is_part(line.receive(LONGEST_OF_MEMBER, soon()).expect("the second")));
    assert_eq!(line.receive(1, shortly()).err().map(|e| e.kind()), Some(io::ErrorKind::TimedOut));
    // Nobody reads: a sender gives up at its deadline, and what went in part is the last that went.
    let part = [frame(&Message::Part(vec![0; LONGEST_PART])).expect("bytes")];
    let sent = loop {
        if let Err(e) = line.send(&part, shortly()) {
            break e;
        }
    };
    assert_eq!(sent.kind(), io::ErrorKind::TimedOut);
    assert!(line.send(&part, soon()).is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe));
    sender.read_to_end(&mut Vec::new()).expect("an end");
}
