//! Somebody between rank 0 and a peer, who relays the handshake and then changes what is said.

use std::net::Shutdown;

use super::*;

/// What the one in the middle does to a message after the handshake.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    /// Flips a bit in this byte, counted from the message's first one, or from the tag's last one
    /// backwards.
    Flip(isize),
    Repeat,
    /// Leaves it out.
    Drop,
    /// Sends it to where it came from instead.
    Reflect,
}

/// Relays one direction, and does the deed to the message of this number after the handshake.
fn relay(mut from: TcpStream, mut to: TcpStream, mut handshake: u32, deed: Option<(u32, Deed)>) {
    let mut number = 0;
    let mut next = || -> io::Result<()> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let tag = if handshake == 0 { TAG_BYTES } else { 0 };
        let mut message = vec![0; u32::from_le_bytes(length) as usize + tag];
        from.read_exact(&mut message)?;
        let deed = deed.filter(|(at, _)| handshake == 0 && *at == number).map(|(_, deed)| deed);
        match handshake {
            0 => number += 1,
            _ => handshake -= 1,
        }
        if let Some(Deed::Flip(at)) = deed {
            let at = at.rem_euclid(message.len() as isize);
            message[at as usize] ^= 4;
        }
        let bytes = [&length[..], &message].concat();
        match deed {
            Some(Deed::Drop) => Ok(()),
            Some(Deed::Reflect) => from.write_all(&bytes),
            Some(Deed::Repeat) => to.write_all(&[&bytes[..], &bytes].concat()),
            Some(Deed::Flip(_)) | None => to.write_all(&bytes),
        }
    };
    while next().is_ok() {}
    let _ = to.shutdown(Shutdown::Write);
}

const PARTS: [&[u8]; 2] = [b"the seed", b"what rank 1 says"];

/// A rank's two exchanges. What it gets is what was given, whatever happens on the way.
fn rank(endpoint: &Endpoint, rank: u32, until: Instant) -> Result<()> {
    let mut rendezvous = Rendezvous::join(endpoint, &Participant { deadline: until, ..participant(rank, 2) })?;
    for _ in 0..2 {
        assert_eq!(rendezvous.exchange(PARTS[rank as usize], until)?, PARTS);
    }
    Ok(())
}

/// Lets two ranks meet with somebody in the middle, who does a deed to a message that
/// `is_from_rank_0`, or to none.
fn with_deed(deed: Option<(bool, u32, Deed)>, until: Instant) -> [Result<()>; 2] {
    let (port, other_port) = (Port::free(), Port::free());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, other_port.number)).expect("the port is this test's");
    scope(|scope| {
        let host = scope.spawn(|| rank(&port.endpoint, 0, until));
        let to_rank_0 = port.connect();
        let peer = scope.spawn(|| rank(&other_port.endpoint, 1, until));
        let to_peer = listener.accept().expect("the peer comes").0;
        to_peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let copies = [&to_rank_0, &to_peer].map(|stream| stream.try_clone().expect("a handle"));
        let [deed_down, deed_up] =
            [true, false].map(|down| deed.filter(|deed| deed.0 == down).map(|(_, at, deed)| (at, deed)));
        // Rank 0 greets and answers; the peer says hello.
        scope.spawn(move || relay(to_rank_0, to_peer, 2, deed_down));
        let [to_rank_0, to_peer] = copies;
        scope.spawn(move || relay(to_peer, to_rank_0, 1, deed_up));
        [host, peer].map(|rank| rank.join().expect("nothing altered is accepted"))
    })
}

#[test]
fn a_relay_that_changes_nothing_is_no_harm() {
    for result in with_deed(None, soon()) {
        result.expect("a rendezvous and two exchanges");
    }
}

/// From rank 0 come: complete; two parts and complete, twice. From the peer: a part and the
/// receipt, twice.
#[test]
fn what_is_changed_on_the_way_ends_the_rendezvous_on_both_ends() {
    let deeds = [Deed::Flip(0), Deed::Flip(1), Deed::Flip(-1), Deed::Flip(-33), Deed::Repeat];
    for (is_from_rank_0, count) in [(true, 7), (false, 4)] {
        for at in 0..count {
            for deed in deeds {
                let is_last = at + 1 == count;
                // Nobody reads what follows the last message.
                if is_last && deed == Deed::Repeat {
                    continue;
                }
                let results = with_deed(Some((is_from_rank_0, at, deed)), soon());
                for (rank, result) in results.into_iter().enumerate() {
                    // Rank 0 waits for nothing after its last message. One that repeats the last
                    // but one is read in its place.
                    let is_in_endpoint_of_last = is_last || deed == Deed::Repeat && at + 2 == count;
                    if is_from_rank_0 && is_in_endpoint_of_last && rank == 0 {
                        continue;
                    }
                    let (kind, message) = error_of(result);
                    assert_eq!(kind, ErrorKind::PeerLost);
                    assert!(message.contains("has a wrong tag"), "{deed:?} {at} on rank {rank}: {message}");
                }
            }
        }
    }
}

/// The next message then has a wrong tag; where there is none, the deadline or the connection's end
/// ends the wait.
#[test]
fn a_message_that_is_left_out_or_sent_back_is_missed() {
    for deed in [Deed::Drop, Deed::Reflect] {
        scope(|scope| {
            let cases: Vec<_> = [(true, 7), (false, 4)]
                .into_iter()
                .flat_map(|(is_from_rank_0, count)| (0..count).map(move |at| (is_from_rank_0, at, deed)))
                .map(|case| (case, scope.spawn(move || with_deed(Some(case), shortly()))))
                .collect();
            for (case, results) in cases {
                for (rank, result) in results.join().expect("no panic").into_iter().enumerate() {
                    if case.0 && case.1 == 6 && rank == 0 {
                        continue;
                    }
                    let (kind, message) = error_of(result);
                    let expected = [ErrorKind::PeerLost, ErrorKind::DeadlineExceeded].contains(&kind);
                    assert!(expected, "{case:?} on rank {rank}: {message}");
                }
            }
        });
    }
}
