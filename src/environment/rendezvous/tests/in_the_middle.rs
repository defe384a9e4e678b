//! A process between rank 0 and a peer that relays the handshake and then changes messages.

use std::net::Shutdown;

use super::*;

/// What the relay does to a message after the handshake.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// Flips a bit in this byte. Negative numbers count backwards from the tag's last byte.
    Flip(isize),
    Repeat,
    /// Leaves it out.
    Drop,
    /// Sends it back to where it came from.
    Reflect,
}

/// Relays one direction, and changes the message of this number after the handshake.
fn relay(mut from: TcpStream, mut to: TcpStream, mut handshake: u32, change: Option<(u32, Change)>) {
    let mut number = 0;
    let mut next = || -> io::Result<()> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let tag = if handshake == 0 { TAG_BYTES } else { 0 };
        let mut message = vec![0; u32::from_le_bytes(length) as usize + tag];
        from.read_exact(&mut message)?;
        let change = change.filter(|(at, _)| handshake == 0 && *at == number).map(|(_, change)| change);
        match handshake {
            0 => number += 1,
            _ => handshake -= 1,
        }
        if let Some(Change::Flip(at)) = change {
            let at = at.rem_euclid(message.len() as isize);
            message[at as usize] ^= 4;
        }
        let bytes = [&length[..], &message].concat();
        match change {
            Some(Change::Drop) => Ok(()),
            Some(Change::Reflect) => from.write_all(&bytes),
            Some(Change::Repeat) => to.write_all(&[&bytes[..], &bytes].concat()),
            Some(Change::Flip(_)) | None => to.write_all(&bytes),
        }
    };
    while next().is_ok() {}
    let _ = to.shutdown(Shutdown::Write);
}

const PARTS: [&[u8]; 2] = [b"the seed", b"what rank 1 says"];

/// A rank's two exchanges. If they succeed, the parts are those that were given.
fn rank(endpoint: &Endpoint, rank: u32, until: Instant) -> Result<()> {
    let mut rendezvous = Rendezvous::join(endpoint, &Participant { deadline: until, ..participant(rank, 2) })?;
    for _ in 0..2 {
        assert_eq!(rendezvous.exchange(PARTS[rank as usize], until)?, PARTS);
    }
    Ok(())
}

/// Lets two ranks meet with a relay between them. `change` says whether the message that it changes
/// is from rank 0, its number, and the change.
fn with_change(change: Option<(bool, u32, Change)>, until: Instant) -> [Result<()>; 2] {
    let (port, other_port) = (Port::free(), Port::free());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, other_port.number)).expect("the port is this test's");
    scope(|scope| {
        let rank_0 = scope.spawn(|| rank(&port.endpoint, 0, until));
        let to_rank_0 = port.connect();
        let peer = scope.spawn(|| rank(&other_port.endpoint, 1, until));
        let to_peer = listener.accept().expect("the peer comes").0;
        to_peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let copies = [&to_rank_0, &to_peer].map(|stream| stream.try_clone().expect("a handle"));
        let [change_down, change_up] =
            [true, false].map(|down| change.filter(|change| change.0 == down).map(|(_, at, change)| (at, change)));
        // Rank 0 greets and answers; the peer says hello.
        scope.spawn(move || relay(to_rank_0, to_peer, 2, change_down));
        let [to_rank_0, to_peer] = copies;
        scope.spawn(move || relay(to_peer, to_rank_0, 1, change_up));
        [rank_0, peer].map(|rank| rank.join().expect("nothing altered is accepted"))
    })
}

#[test]
fn a_relay_that_changes_nothing_is_no_harm() {
    for result in with_change(None, soon()) {
        result.expect("a rendezvous and two exchanges");
    }
}

/// From rank 0 come: complete; two parts and complete, twice. From the peer: a part and the
/// receipt, twice.
#[test]
fn what_is_changed_on_the_way_ends_the_rendezvous_on_both_ends() {
    let changes = [Change::Flip(0), Change::Flip(1), Change::Flip(-1), Change::Flip(-33), Change::Repeat];
    for (is_from_rank_0, count) in [(true, 7), (false, 4)] {
        for at in 0..count {
            for change in changes {
                let is_last = at + 1 == count;
                // No rank reads what follows the last message.
                if is_last && change == Change::Repeat {
                    continue;
                }
                let results = with_change(Some((is_from_rank_0, at, change)), soon());
                for (rank, result) in results.into_iter().enumerate() {
                    // Rank 0 waits for nothing after its last message. One that repeats the last
                    // but one is read in its place.
                    let is_in_endpoint_of_last = is_last || change == Change::Repeat && at + 2 == count;
                    if is_from_rank_0 && is_in_endpoint_of_last && rank == 0 {
                        continue;
                    }
                    let (kind, message) = error_of(result);
                    assert_eq!(kind, ErrorKind::PeerLost);
                    assert!(message.contains("has a wrong tag"), "{change:?} {at} on rank {rank}: {message}");
                }
            }
        }
    }
}

/// The next message then has a wrong tag. If there is none, the deadline or the connection's end
/// ends the wait.
#[test]
fn a_message_that_is_left_out_or_sent_back_is_missed() {
    for change in [Change::Drop, Change::Reflect] {
        scope(|scope| {
            let cases: Vec<_> = [(true, 7), (false, 4)]
                .into_iter()
                .flat_map(|(is_from_rank_0, count)| (0..count).map(move |at| (is_from_rank_0, at, change)))
                .map(|case| (case, scope.spawn(move || with_change(Some(case), shortly()))))
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
