//! Frames and hellos of hostile bytes, over both transports.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::*;
use crate::util::wait::Wait;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

/// A channel over each transport, and the other end of its connection.
fn channels() -> [(Channel, Box<dyn ReadWrite + Send>); 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let tcp = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
    tcp.set_nodelay(true).expect("an option");
    let (near, far) = UnixStream::pair().expect("sockets");
    [
        (Channel::tcp(listener.accept().expect("a connection").0).expect("a channel"), Box::new(tcp)),
        (Channel::unix(near).expect("a channel"), Box::new(far)),
    ]
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

const LONGEST: usize = 1 << 16;

/// A message that comes in two pieces, and two that come in one.
#[test]
fn messages_have_ends_of_their_own() {
    for (mut channel, mut sender) in channels() {
        let bytes = encode_frame(&WireMessage::Step(vec![1u8, 2, 3])).expect("bytes");
        let is_sent = |message: WireMessage<Vec<u8>>| matches!(message, WireMessage::Step(part) if part == [1, 2, 3]);
        for split in 0..bytes.len() {
            sender.write_all(&bytes[..split]).expect("a listener");
            assert!(channel.try_receive::<Vec<u8>>(LONGEST).expect("no error").is_none());
            sender.write_all(&bytes[split..]).expect("a listener");
            assert!(is_sent(channel.receive(LONGEST, &mut Wait::until(soon())).expect("a message")));
        }
        sender.write_all(&[&bytes[..], &bytes[..]].concat()).expect("a listener");
        assert!(is_sent(channel.receive(LONGEST, &mut Wait::until(soon())).expect("the first")));
        assert!(is_sent(channel.receive(LONGEST, &mut Wait::until(soon())).expect("the second")));
        let nothing = channel.receive::<()>(1, &mut Wait::until(shortly())).err();
        assert_eq!(nothing.map(|e| e.kind()), Some(ErrorKind::TimedOut));
        // The other end does not read. Sending ends at its deadline, and a message that went in
        // part is the last one.
        let part = [Frame::new(&WireMessage::Step(vec![0u8; LONGEST])).expect("bytes")];
        let sent = loop {
            if let Err(e) = channel.send(&part, shortly()) {
                break e;
            }
        };
        assert_eq!(sent.kind(), ErrorKind::TimedOut);
        assert!(channel.send(&part, soon()).is_err_and(|e| e.kind() == ErrorKind::BrokenPipe));
        sender.read_to_end(&mut Vec::new()).expect("an end");
    }
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let cases: [(&[u8], &str); 7] = [
        (&[0, 0, 0, 0], "a message of 0 bytes came, and 1 to 64 are allowed"),
        (&[65, 0, 0, 0], "a message of 65 bytes came, and 1 to 64 are allowed"),
        (&[0xff; 4], "a message of 4294967295 bytes came, and 1 to 64 are allowed"),
        (&[1, 0, 0, 0, 9], "a message came that cannot be understood"),
        // The length of a list that does not follow.
        (&[3, 0, 0, 0, 1, 0xff, 0x7f], "a message came that cannot be understood"),
        // A byte too many.
        (&[4, 0, 0, 0, 1, 1, 7, 7], "a message came that cannot be understood"),
        (&[], "the connection was closed"),
    ];
    for (bytes, expected) in cases {
        for (mut channel, mut sender) in channels() {
            sender.write_all(bytes).expect("a listener");
            if bytes.is_empty() {
                drop(sender);
            }
            let error = channel.receive::<Vec<u8>>(64, &mut Wait::until(soon())).err().expect("no message");
            assert_eq!(error.to_string(), expected, "{bytes:?}");
        }
    }
}

/// Every byte of a hello is covered by its proof or its framing: altered, it lets no process in.
#[test]
fn an_altered_hello_is_not_accepted() {
    let key = Key::new(&Participant::new("a job", 1, 2, soon()), None).expect("a key");
    let challenge = [3; 32];
    let claim = Claim { world_size: 2, first_rank: 1, rank_count: 1, instance: [1; 16], challenge: [2; 32] };
    let accepts = |message: WireMessage<Handshake>| match message {
        WireMessage::Step(Handshake::Hello { protocol, claim, proof, .. }) => {
            protocol == PROTOCOL && key.accepts(&Statement::Claim(&challenge, &claim), &proof).expect("a statement")
        }
        _ => false,
    };
    let hello = Handshake::Hello {
        protocol: PROTOCOL.to_owned(),
        claim,
        job: key.prove_job(&challenge, &claim).expect("a proof"),
        proof: key.prove(&Statement::Claim(&challenge, &claim)).expect("a proof"),
    };
    let frame = encode_frame(&WireMessage::Step(hello)).expect("bytes");
    let body = &frame[LENGTH_BYTES..];
    assert!(body.len() <= LONGEST_HELLO);
    assert!(decode(body).is_ok_and(accepts));
    // The proof by the job's text alone lets no process in, so its bytes do not count.
    let job_proof = body.len() - 2 * size_of::<Proof>()..body.len() - size_of::<Proof>();
    for at in (0..body.len()).filter(|at| !job_proof.contains(at)) {
        for flipped in [1, 0x80] {
            let mut altered = body.to_vec();
            altered[at] ^= flipped;
            assert!(!decode(&altered).is_ok_and(accepts), "byte {at}");
        }
        assert!(!decode(&body[..at]).is_ok_and(accepts), "{at} bytes");
    }
}

#[test]
fn a_claim_has_ranks_of_its_world() {
    let ranks = |world_size, first_rank, rank_count| {
        Claim { world_size, first_rank, rank_count, instance: [0; 16], challenge: [0; 32] }.ranks()
    };
    assert_eq!(ranks(4, 1, 3), Some(1..4));
    for (first_rank, rank_count) in [(0, 0), (4, 1), (1, 4), (u32::MAX, 1), (1, u32::MAX)] {
        assert_eq!(ranks(4, first_rank, rank_count), None);
    }
}

#[test]
fn a_long_reason_is_cut() {
    let error = crate::error::error!(DeadlineExceeded, "{}", "é".repeat(LONGEST_REASON));
    let end = EndReason::from(&error);
    assert!(end.reason.ends_with("é ...") && end.reason.len() <= LONGEST_REASON + 4);
    let frame = encode_frame(&WireMessage::<()>::End(end)).expect("bytes");
    assert!(frame.len() - LENGTH_BYTES <= LONGEST_ANSWER);
}

/// Bytes that come one at a time do not move the deadline.
#[test]
fn a_message_has_one_deadline_for_all_of_its_bytes() {
    for (mut channel, mut far) in channels() {
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let mut trickle = (1u32 << 16).to_le_bytes().into_iter().chain(std::iter::repeat(0));
                // Until the receiver closes its end.
                while far.write_all(&[trickle.next().expect("no end")]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let error = channel.receive::<Vec<u8>>(LONGEST, &mut Wait::until(shortly())).err();
            assert_eq!(error.map(|e| e.kind()), Some(ErrorKind::TimedOut));
            drop(channel);
            sender.join().expect("no panic");
        });
    }
}
