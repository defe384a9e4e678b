//! Ranks are threads here. Each test has strangers, mistakes or deaths of its own kind.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::peer::{connect_to_rank_0, introduce_to_rank_0, own_index, receive_start};
use super::*;
use crate::error::ErrorKind;
use crate::handshake::{
    Answer, Channel, Claim, Frame, Handshake, Key, LONGEST_ANSWER, PROTOCOL, Statement, WireMessage, random,
};
use crate::util::wait::Wait;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn participant(job: &str, rank: u32) -> Participant<'_> {
    Participant::new(job, rank, 2, soon())
}

fn new_job(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Connects as soon as rank 0 listens.
fn stream_of(participant: &Participant<'_>) -> UnixStream {
    connect_to_rank_0(participant, participant.deadline).expect("rank 0 listens")
}

/// One stranger writes garbage, one nothing, one a byte at a time, one leaves at once.
#[test]
fn strangers_hold_nobody_up() {
    let job = new_job("strangers");
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| connect(&participant(&job, 0)).map(drop));
        let stranger = || stream_of(&participant(&job, 1));
        let mut garbage = stranger();
        garbage.write_all(&[0xff; 4096]).expect("rank 0 listens");
        let _silent = stranger();
        let mut trickle = stranger();
        trickle.write_all(&[100, 0, 0]).expect("rank 0 listens");
        drop(stranger());
        let peer = scope.spawn(|| connect(&participant(&job, 1)).map(drop));
        peer.join().expect("no panic").expect("a bootstrap");
        rank_0.join().expect("no panic").expect("a bootstrap");
    });
}

/// A process that is welcomed and dies makes room for the one that is started in its place.
#[test]
fn a_process_that_has_left_can_be_replaced() {
    let job = new_job("replaced");
    let participant = |rank| Participant { world_size: 3, ..participant(&job, rank) };
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| connect(&participant(0)).map(drop));
        for _ in 0..3 {
            let mut dying = Channel::unix(stream_of(&participant(1))).expect("a channel");
            let instance = random().expect("random numbers");
            introduce_to_rank_0(&mut dying, &participant(1), instance, &mut Wait::until(soon())).expect("a welcome");
        }
        let peers = [1, 2].map(|rank| scope.spawn(move || connect(&participant(rank)).map(drop)));
        peers.into_iter().for_each(|peer| peer.join().expect("no panic").expect("a bootstrap"));
        rank_0.join().expect("no panic").expect("a bootstrap");
    });
}

/// Only root can be another user; elsewhere there is nothing to try.
#[test]
fn another_user_is_sent_away() {
    use rustix::thread::set_thread_res_uid;
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let job = new_job("another-user");
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| connect(&participant(&job, 0)).map(drop));
        let address = SocketAddr::from_abstract_name(name_of(&job)).expect("a name");
        let stranger = scope.spawn(move || {
            let nobody = rustix::process::Uid::from_raw(65534);
            // Only this thread becomes another user, and only before it connects.
            set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            let end = Instant::now() + Duration::from_secs(5);
            let mut stream = loop {
                match UnixStream::connect_addr(&address) {
                    Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                    stream => break stream.expect("rank 0 listens"),
                }
            };
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            // It is not even greeted.
            let greeting = stream.read(&mut [0; 64]);
            let reset = io::ErrorKind::ConnectionReset;
            assert!(matches!(greeting, Ok(0)) || greeting.is_err_and(|e| e.kind() == reset));
        });
        stranger.join().expect("sent away");
        let peer = scope.spawn(|| connect(&participant(&job, 1)).map(drop));
        peer.join().expect("no panic").expect("a bootstrap");
        rank_0.join().expect("no panic").expect("a bootstrap");
    });
}

/// A process of this job that contradicts rank 0 ends the bootstrap: for itself, for rank 0, and
/// for each process that has come.
#[test]
fn a_contradiction_ends_the_bootstrap_for_all() {
    let cases = [
        (5, 1, 1, "ranks have to be given the same world size: rank 1 has 5, and rank 0 has 4"),
        (4, 2, 1, "two processes say that they are rank 2"),
        (4, 1, 2, "two processes say that they are rank 2"),
        (4, 0, 1, "two processes say that they are rank 0"),
    ];
    for (number, (world_size, first_rank, rank_count, reason)) in cases.into_iter().enumerate() {
        let job = new_job(&format!("contradiction-{number}"));
        let early = Participant { world_size: 4, ..participant(&job, 2) };
        std::thread::scope(|scope| {
            let rank_0 = scope.spawn(|| connect(&Participant { world_size: 4, ..participant(&job, 0) }).map(drop));
            let stream = stream_of(&early);
            let waiting = scope.spawn(move || receive_start(&early, [7; 16], stream).map(drop));
            let error = connect(&Participant { world_size, rank_count, ..participant(&job, first_rank) }).map(drop);
            let error = error.expect_err("it contradicts rank 0").to_string();
            if first_rank > 0 {
                // Of two that have one rank, the one whose hello is read last is refused.
                assert_eq!(error, format!("job {job:?}: {reason}"));
            } else {
                assert!(error.contains("another rank 0 of this user waits or runs"), "{error}");
            }
            for told in [rank_0, waiting] {
                let error = told.join().expect("no panic").expect_err("the job cannot start");
                assert_eq!(error.kind(), ErrorKind::Disagreement);
                assert!(error.to_string().ends_with(reason), "{error}");
            }
        });
    }
}

/// A process of another job or version, whose socket's name happens to be the same, is sent away,
/// and the bootstrap goes on.
#[test]
fn a_process_of_another_job_is_sent_away() {
    let job = new_job("another-job");
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| connect(&participant(&job, 0)).map(drop));
        for (key_of, protocol) in [("another", PROTOCOL), (job.as_str(), "distcollective handshake 2")] {
            let mut channel = Channel::unix(stream_of(&participant(&job, 1))).expect("a channel");
            let greeting = channel.receive(LONGEST_ANSWER, &mut Wait::until(soon())).expect("a greeting");
            let WireMessage::Step(Handshake::Greeting { challenge, .. }) = greeting else { panic!("no greeting") };
            let key = Key::new(&participant(key_of, 1), None).expect("a key");
            let claim = Claim { world_size: 9, first_rank: 1, rank_count: 1, instance: [0; 16], challenge: [0; 32] };
            let hello = Handshake::Hello {
                protocol: protocol.to_owned(),
                claim,
                job: key.prove_job(&challenge, &claim).expect("a proof"),
                proof: key.prove(&Statement::Claim(&challenge, &claim)).expect("a proof"),
            };
            channel.send(&[Frame::new(&WireMessage::Step(hello)).expect("bytes")], soon()).expect("rank 0 listens");
            let reply = channel.receive(LONGEST_ANSWER, &mut Wait::until(soon())).expect("a reply");
            assert!(matches!(reply, WireMessage::Step(Handshake::Refusal { same_job: false })));
        }
        let peer = scope.spawn(|| connect(&participant(&job, 1)).map(drop));
        peer.join().expect("no panic").expect("a bootstrap");
        rank_0.join().expect("no panic").expect("a bootstrap");
    });
}

/// A process of this user that has the job's socket and is not rank 0 of the job.
#[test]
fn a_false_rank_0_of_this_user_is_not_believed() {
    let job = new_job("false-rank-0");
    let listener = listen_at(&job).expect("a socket");
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| connect(&participant(&job, 1)).map(drop));
        let mut channel = Channel::unix(listener.accept().expect("a peer").0).expect("a channel");
        let challenge = random().expect("random numbers");
        let send = |channel: &mut Channel, message| {
            channel.send(&[Frame::new(&WireMessage::Step(message)).expect("bytes")], soon()).expect("a peer")
        };
        send(&mut channel, Handshake::Greeting { protocol: PROTOCOL.to_owned(), challenge });
        assert!(matches!(
            channel.receive(LONGEST_ANSWER, &mut Wait::until(soon())),
            Ok(WireMessage::Step(Handshake::Hello { .. }))
        ));
        let answer = Answer::Welcome(String::new());
        send(&mut channel, Handshake::Answer { answer, proof: [0; 32] });
        let error = peer.join().expect("no panic").expect_err("no rank 0");
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        assert!(error.to_string().ends_with("is of another version, or means another job"), "{error}");
    });
}

/// A peer does not connect again to a process whose messages it cannot understand.
#[test]
fn malformed_messages_end_the_bootstrap_at_once() {
    let too_long = [0xff; 4];
    let garbage = [4, 0, 0, 0, 9, 9, 9, 9];
    for (number, bytes) in [&too_long[..], &garbage].into_iter().enumerate() {
        let job = new_job(&format!("malformed-{number}"));
        let listener = listen_at(&job).expect("a socket");
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| connect(&participant(&job, 1)).map(drop));
            let (mut stream, _) = listener.accept().expect("a peer");
            stream.write_all(bytes).expect("a peer");
            let error = peer.join().expect("no panic").expect_err("no rank 0");
            assert_eq!(error.kind(), ErrorKind::Disagreement);
            assert!(error.to_string().ends_with("is of another version, or means another job"), "{error}");
        });
        listener.set_nonblocking(true).expect("an option");
        let again = listener.accept().map(drop).expect_err("the peer has ended");
        assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
    }
}

/// Only root can be another user; elsewhere there is nothing to try.
#[test]
fn a_name_that_another_user_holds_is_not_called_this_users() {
    use rustix::thread::set_thread_res_uid;
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let job = new_job("squatted");
    let name = name_of(&job);
    let squatter = std::thread::spawn(move || {
        let other = rustix::process::Uid::from_raw(12345);
        // Only this thread becomes another user.
        set_thread_res_uid(other, other, other).expect("root may");
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).expect("a name")).expect("a socket")
    });
    let _listener = squatter.join().expect("no panic");
    let held = "another user (uid 12345) holds the name under which this job's processes meet";
    for rank in [0, 1] {
        let error = connect(&participant(&job, rank)).map(drop).expect_err("it is taken");
        assert_eq!(error.to_string(), format!("job {job:?}: {held}"));
    }
}

#[test]
fn a_list_of_processes_has_each_rank_once() {
    let participant = Participant { world_size: 4, rank_count: 2, ..participant("list", 1) };
    let list = |ranks: &[(u32, u32)]| -> Vec<RankProcess> {
        ranks.iter().map(|&(first_rank, rank_count)| RankProcess { pid: 1, first_rank, rank_count }).collect()
    };
    assert_eq!(own_index(&participant, &list(&[(0, 1), (1, 2), (3, 1)])).expect("each rank once"), 1);
    for ranks in [
        &[(0, 1), (1, 2)][..],
        &[(0, 1), (1, 2), (3, 2)],
        &[(0, 1), (1, 2), (2, 2)],
        &[(0, 1), (1, 2), (3, u32::MAX)],
        &[(0, 1), (1, 2), (3, 1), (4, 0)],
        &[(0, 1), (1, 1), (2, 1), (3, 1)],
        &[(1, 2), (0, 1), (3, 1)],
        &[],
    ] {
        let error = own_index(&participant, &list(ranks)).expect_err("it does not fit");
        assert_eq!(error.to_string(), "rank 0's list of processes does not have each rank of 4 once");
    }
}
