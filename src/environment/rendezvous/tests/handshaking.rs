//! Strangers, contradictions and wrong secrets during the handshake.

use super::*;

#[test]
fn strangers_do_not_hold_up_peers() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| join_and_exchange(&port.endpoint, |rank| participant(rank, 3), &[0]));
        port.connect().write_all(&[0xff; 4096]).expect("rank 0 listens");
        let (garbage, _) = port.greeted();
        garbage.send_bytes(&[4, 0, 0, 0, 9, 9, 9, 9], soon()).expect("rank 0 listens");
        let _silent = port.connect();
        let mut trickle = port.connect();
        trickle.write_all(&[100, 0, 0, 0, 1]).expect("rank 0 listens");
        drop(port.connect());
        let (peer, answer) = port.hello(&participant(0, 3), 1);
        assert!(matches!(answer, Answer::Welcome(_)));
        drop(peer);
        for secret in [Some(&b"another secret"[..]), None] {
            let (kind, message) =
                error_of(Rendezvous::join(&port.endpoint, &Participant { secret, ..participant(1, 3) }));
            assert_eq!(kind, ErrorKind::Disagreement);
            assert!(message.contains("wrong secret"), "{message}");
        }
        let another = Participant { job: "another job", deadline: shortly(), ..participant(1, 3) };
        let (kind, message) = error_of(Rendezvous::join(&port.endpoint, &another));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.ends_with("the rank 0 that answers is one of another job"), "{message}");
        let crowd = [(); 70].map(|()| port.connect());
        join_and_exchange(&port.endpoint, |rank| participant(rank, 3), &[1, 2]);
        rank_0.join().expect("no panic");
        drop((crowd, trickle));
    });
}

#[test]
fn a_hello_does_not_work_twice() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| Rendezvous::join(&port.endpoint, &participant(0, 2)).map(drop));
        let key = Key::new(&participant(0, 2), None).expect("a key");
        let claim = Claim {
            world_size: 2,
            first_rank: 1,
            rank_count: 1,
            instance: [0; 16],
            challenge: random().expect("random numbers"),
        };
        let (_, other_challenge) = port.greeted();
        let proof = key.prove(&Statement::Claim(&other_challenge, &claim)).expect("a proof");
        let (mut channel, _) = port.greeted();
        let job = key.prove_job(&other_challenge, &claim).expect("a statement");
        send(&mut channel, Handshake::Hello { protocol: PROTOCOL.to_owned(), claim, job, proof });
        assert!(matches!(
            channel.receive(LONGEST_HELLO, &mut Wait::until(soon())),
            Ok(WireMessage::Step(Handshake::Refusal { same_job: false }))
        ));
        Rendezvous::join(&port.endpoint, &participant(1, 2)).map(drop).expect("a rendezvous");
        rank_0.join().expect("no panic").expect("a rendezvous");
    });
}

/// Writing a byte now and then does not stretch the time for a hello.
#[test]
fn a_trickle_comes_to_an_end() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| Rendezvous::join(&port.endpoint, &participant(0, 2)).map(drop));
        let mut trickle = port.connect();
        trickle.write_all(&[255, 0, 0, 0]).expect("rank 0 listens");
        patiently(|| (&trickle).write_all(&[1]).is_err().then_some(()));
        Rendezvous::join(&port.endpoint, &participant(1, 2)).map(drop).expect("a rendezvous");
        rank_0.join().expect("no panic").expect("a rendezvous");
    });
}

#[test]
fn a_false_rank_0_is_not_believed() {
    let port = Port::free();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number)).expect("the port is this test's");
    scope(|scope| {
        let false_rank_0 = |participant: Participant<'static>| {
            let (stream, _) = listener.accept().expect("a peer");
            let mut channel = Channel::tcp(stream).expect("a channel");
            let challenge = random().expect("random numbers");
            send(&mut channel, Handshake::Greeting { protocol: PROTOCOL.to_owned(), challenge });
            let Ok(WireMessage::Step(Handshake::Hello { claim, .. })) =
                channel.receive(LONGEST_HELLO, &mut Wait::until(soon()))
            else {
                panic!("no hello");
            };
            let answer = Answer::Welcome("0".repeat(32));
            let key = Key::new(&participant, None).expect("a key");
            let proof = key.prove(&Statement::Answer(&challenge, &claim, &answer)).expect("a proof");
            send(&mut channel, Handshake::Answer { answer, proof });
        };
        let peer = scope.spawn(|| Rendezvous::join(&port.endpoint, &participant(1, 2)).map(drop));
        false_rank_0(Participant { secret: Some(&b"another secret"[..]), ..participant(0, 2) });
        false_rank_0(Participant { job: "another job", ..participant(0, 2) });
        // Another service, and one that closes the connection.
        let (mut banner, _) = listener.accept().expect("a peer");
        banner.write_all(b"220 at your service\r\n").expect("a listener");
        drop(listener.accept().expect("a peer"));
        let old = listener.accept().expect("a peer").0;
        send(
            &mut Channel::tcp(old).expect("a channel"),
            Handshake::Greeting { protocol: "another".to_owned(), challenge: [0; 32] },
        );
        drop((listener, banner));
        // At last the right one.
        Rendezvous::join(&port.endpoint, &participant(0, 2)).map(drop).expect("a rendezvous");
        peer.join().expect("no panic").expect("a rendezvous");
    });
}

/// A wrong secret is no proof, so it ends nothing but its own rank's attempt; rank 0 says at its
/// deadline how many there were.
#[test]
fn a_wrong_secret_is_told_at_once_and_counted() {
    let port = Port::free();
    let late = Instant::now() + Duration::from_secs(3);
    scope(|scope| {
        let rank_0 = scope
            .spawn(|| error_of(Rendezvous::join(&port.endpoint, &Participant { deadline: late, ..participant(0, 2) })));
        for secret in [Some(&b"another secret"[..]), None] {
            let (kind, message) =
                error_of(Rendezvous::join(&port.endpoint, &Participant { secret, ..participant(1, 2) }));
            assert_eq!(kind, ErrorKind::Disagreement);
            assert!(message.contains("refuses this rank for a wrong secret: DCL_SECRET"), "{message}");
        }
        let other = Participant { job: "another job", deadline: shortly(), ..participant(1, 2) };
        let (kind, message) = error_of(Rendezvous::join(&port.endpoint, &other));
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        assert!(message.contains("the rank 0 that answers is one of another job"), "{message}");
        let (kind, message) = rank_0.join().expect("no panic");
        assert_eq!(kind, ErrorKind::DeadlineExceeded);
        let begin = format!(
            "rank 1 of 2 did not come to 127.0.0.1:{} before the deadline; rank 0 refused 2 connections with a wrong secret and ",
            port.number
        );
        // The rank of the other job tries again and again.
        assert!(message.starts_with(&begin) && message.ends_with(" for another job"), "{message}");
    });
}

/// A peer that knows the key and contradicts rank 0 ends the rendezvous for every rank that has
/// come, at once.
#[test]
fn a_contradiction_ends_the_rendezvous_for_all() {
    let port = Port::free();
    let (kind, message) = error_of(Rendezvous::join(&port.endpoint, &participant(1, 1)));
    assert_eq!((kind, message.as_str()), (ErrorKind::InvalidArgument, "rank 1 is not one of 1"));
    let cases = [
        (2, 1, 1, "ranks have to be given the same world size: rank 1 has 2, and rank 0 has 3"),
        (3, 2, 1, "two processes say that they are rank 2"),
        (3, 0, 1, "two processes say that they are rank 0"),
        (3, 7, 1, "rank 7 is not one of 3"),
        (3, 1, 2, "a process that comes over TCP has one rank, and the process of rank 1 has 2"),
    ];
    for (world_size, rank, rank_count, reason) in cases {
        scope(|scope| {
            let rank_0 = scope.spawn(|| error_of(Rendezvous::join(&port.endpoint, &participant(0, 3))));
            let (mut member, answer) = port.hello(&participant(0, 3), 2);
            assert!(matches!(answer, Answer::Welcome(_)));
            let claimed = Participant { rank_count, ..participant(0, world_size) };
            let (_channel, answer) = port.hello(&claimed, rank);
            assert!(matches!(answer, Answer::Refused(told) if told == reason));
            let told = member.receive(LONGEST_OF_MEMBER, &mut Wait::until(soon())).expect("an end");
            assert!(
                matches!(told, WireMessage::<RendezvousMessage>::End(end) if end.cause == Cause::Disagreement && end.reason == reason)
            );
            assert_eq!(rank_0.join().expect("no panic"), (ErrorKind::Disagreement, reason.to_owned()));
        });
    }
    // The same with ranks as they are; one of the twins is the first.
    scope(|scope| {
        let endpoint = &port.endpoint;
        let ranks =
            [0, 1, 1].map(|rank| scope.spawn(move || error_of(Rendezvous::join(endpoint, &participant(rank, 3)))));
        for rank in ranks {
            let expected = (ErrorKind::Disagreement, "two processes say that they are rank 1".to_owned());
            assert_eq!(rank.join().expect("no panic"), expected);
        }
    });
}

/// A process that gave up its first connection may come again before rank 0 sees the end of that.
#[test]
fn one_process_may_come_twice() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| join_and_exchange(&port.endpoint, |rank| participant(rank, 3), &[0]));
        let (mut first, answer) = port.hello_of([7; 16], &participant(0, 3), 1);
        assert!(matches!(answer, Answer::Welcome(_)));
        let (second, answer) = port.hello_of([7; 16], &participant(0, 3), 1);
        assert!(matches!(answer, Answer::Welcome(_)));
        let ended = first.receive::<RendezvousMessage>(LONGEST_OF_MEMBER, &mut Wait::until(soon())).err();
        assert_eq!(ended.map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        drop(second);
        join_and_exchange(&port.endpoint, |rank| participant(rank, 3), &[1, 2]);
        rank_0.join().expect("no panic");
    });
}

#[test]
fn a_member_that_hangs_up_can_come_again() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| join_and_exchange(&port.endpoint, |rank| participant(rank, 3), &[0]));
        for _ in 0..20 {
            let (channel, answer) = port.hello(&participant(0, 3), 1);
            assert!(matches!(answer, Answer::Welcome(_)));
            drop(channel);
        }
        join_and_exchange(&port.endpoint, |rank| participant(rank, 3), &[1, 2]);
        rank_0.join().expect("no panic");
    });
}

/// A world that no process can hold is refused before anything is allocated for it.
#[test]
fn a_world_has_a_limit() {
    let (port, folder) = (Port::free(), Folder::new());
    for endpoint in [&port.endpoint, &folder.endpoint().1] {
        for (rank, world_size) in [(0, u32::MAX), (1, MAX_RANKS + 1)] {
            let (kind, message) = error_of(Rendezvous::join(endpoint, &participant(rank, world_size)));
            assert_eq!(kind, ErrorKind::InvalidArgument);
            let expected =
                format!("world_size is {world_size}; ranks that meet over TCP or through a file are at most 65536");
            assert_eq!(message, expected);
        }
    }
}
