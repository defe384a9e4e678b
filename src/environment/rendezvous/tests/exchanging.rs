//! Exchanges in which a rank dies, says nothing, or sends what it must not send.

use super::*;

/// Ranks of a world of four meet; each then does what the function says.
fn four_ranks<T: Send>(act: impl Fn(u32, Rendezvous) -> T + Sync) -> Vec<T> {
    let port = Port::free();
    scope(|scope| {
        let rank = |rank| {
            let (port, act) = (&port, &act);
            scope.spawn(move || {
                act(rank, Rendezvous::join(&port.endpoint, &participant(rank, 4)).expect("a rendezvous"))
            })
        };
        let ranks = [0, 1, 2, 3].map(rank);
        ranks.map(|rank| rank.join().expect("no panic")).into()
    })
}

#[test]
fn a_death_ends_the_exchange_for_all() {
    for dying in [2, 0] {
        let begin = Instant::now();
        let results = four_ranks(|rank, mut rendezvous| {
            rendezvous.exchange(&[1], soon()).expect("all are alive");
            if rank == dying {
                return None;
            }
            Some(error_of(rendezvous.exchange(&vec![1; LONGEST_PART], soon())))
        });
        assert!(begin.elapsed() < Duration::from_secs(8), "no rank waits for the deadline");
        for (kind, message) in results.into_iter().flatten() {
            assert_eq!(kind, ErrorKind::PeerLost);
            assert!(message.starts_with(&format!("rank {dying} was lost: ")), "{message}");
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
            let rank_0 = scope.spawn(|| {
                let mut rendezvous = Rendezvous::join(&port.endpoint, &participant(0, 2)).expect("a rendezvous");
                error_of(rendezvous.exchange(&[], soon()))
            });
            let (mut channel, _) = port.hello(&participant(0, 2), 1);
            assert!(matches!(
                channel.receive(LONGEST_OF_MEMBER, &mut Wait::until(soon())),
                Ok(WireMessage::Step(RendezvousMessage::Complete))
            ));
            match bytes.as_slice() {
                [] => send(&mut channel, RendezvousMessage::Complete),
                bytes => channel.send_bytes(bytes, soon()).expect("rank 0 listens"),
            }
            assert_eq!(rank_0.join().expect("no panic"), (ErrorKind::PeerLost, expected.to_owned()));
            let told = channel.receive(LONGEST_OF_MEMBER, &mut Wait::until(soon())).expect("an end");
            assert!(
                matches!(told, WireMessage::<RendezvousMessage>::End(end) if end.cause == Cause::Failed && end.reason == expected)
            );
        });
    }
}

#[test]
fn ranks_that_give_no_part_are_named() {
    let done = Mutex::new(0);
    let results = four_ranks(|rank, mut rendezvous| {
        let result = match rank {
            0 => Some(error_of(rendezvous.exchange(&[], shortly()))),
            1 => Some(error_of(rendezvous.exchange(&[], soon()))),
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
