//! Messages under a model checker; see `protocol/model.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::thread;

use crate::collective::{Call, Collective};
use crate::comm::backend::{Backend, Request};
use crate::comm::host::HostBackend;
use crate::comm::host::protocol::access_guard::Accessor;
use crate::comm::host::protocol::model::{explore, on_ranks, ranks};
use crate::comm::host::protocol::ring::CELLS;
use crate::comm::message::{Delivery, Direction, MessageRequest};
use crate::data_type::DataType;
use crate::error::{ErrorKind, Result};
use crate::memory::Address;
use crate::rank::GroupRank;
use crate::sync::Tracked;

fn message(rank: &HostBackend, direction: Direction, tag: u16, bytes: *const u8, len: usize) -> Result<Delivery> {
    let address = Address::host(bytes);
    let request = MessageRequest { direction, tag, data_type: DataType::Uint8.into(), element_count: len, address };
    // SAFETY: each caller passes bytes that live during the call.
    unsafe { rank.run_message(&request, Instant::now() + Duration::from_secs(3600)) }
}

fn send(rank: &HostBackend, to: u32, tag: u16, bytes: &[u8]) -> Result<Delivery> {
    message(rank, Direction::Send(GroupRank(to)), tag, bytes.as_ptr(), bytes.len())
}

fn receive(rank: &HostBackend, from: u32, tag: u16, bytes: &mut [u8]) -> Result<Delivery> {
    message(rank, Direction::Receive(Some(GroupRank(from))), tag, bytes.as_mut_ptr(), bytes.len())
}

/// Gives a byte to the root of a gather.
fn gather(rank: &HostBackend, root: u32) -> Result<()> {
    let call = Call::of_blocks(Collective::Gather { root: GroupRank(root) }, DataType::Uint8, 1);
    let sides = [Address::host([1u8].as_ptr()), Address::host(std::ptr::null::<u8>())];
    let request = Request::new(call, sides, Instant::now() + Duration::from_secs(3600));
    // SAFETY: the input lives during the call, and only the root has an output.
    unsafe { rank.run_request(&request) }
}

/// One more than the ring has cells, so that one is replaced.
#[test]
fn a_sender_that_runs_ahead_overwrites_nothing() {
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            for number in 1..=CELLS as u8 + 1 {
                if rank.own.rank == GroupRank(0) {
                    send(rank, 1, 0, &[number]).expect("a send");
                } else {
                    let mut byte = [0];
                    receive(rank, 0, 0, &mut byte).expect("a message");
                    assert_eq!(byte, [number]);
                }
            }
        });
    });
}

/// The message of tag 1 is behind that of tag 0.
#[test]
fn ranks_exchange_messages_out_of_order() {
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            let other = 1 - rank.own.rank.0;
            for tag in [0, 1] {
                send(rank, other, tag, &[tag as u8]).expect("a send");
            }
            for tag in [1, 0] {
                let mut byte = [9];
                receive(rank, other, tag, &mut byte).expect("a message");
                assert_eq!(byte, [tag as u8]);
            }
        });
    });
}

/// A message that does not fit a cell: copied from the sender's buffer, which the sender changes
/// when its call has returned, or in more pieces than the ring has cells.
#[test]
fn a_long_message_arrives_whole() {
    for spans_processes in [false, true] {
        const LEN: usize = 8 * CELLS as usize + 1;
        explore(1, move || {
            on_ranks(ranks(2, spans_processes), |rank| {
                let mut bytes: Vec<u8> = (0..LEN as u8).collect();
                if rank.own.rank == GroupRank(0) {
                    send(rank, 1, 0, &bytes).expect("a send");
                    bytes.fill(0xff);
                } else {
                    let mut received = vec![0; LEN];
                    receive(rank, 0, 0, &mut received).expect("a message");
                    assert_eq!(received, bytes);
                }
            });
        });
    }
}

/// Two threads of a rank receive. One may move the other's message along.
#[test]
fn no_thread_of_a_rank_sleeps_when_its_message_has_come() {
    explore(2, || {
        let (mut both, _shared) = ranks(2, false);
        let (sender, receiver) = (both.pop().expect("rank 1"), Arc::new(both.pop().expect("rank 0")));
        let threads = [0u8, 1].map(|tag| {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || {
                let mut byte = [9];
                receive(&receiver, 1, tag.into(), &mut byte).expect("a message");
                assert_eq!(byte, [tag]);
            })
        });
        for tag in [0u8, 1] {
            send(&sender, 0, tag.into(), &[tag]).expect("there is room");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// A thread waits for a message when its rank gives, in a call that is another one on the peer.
#[test]
fn a_receive_that_waits_learns_that_ranks_gave_in_different_calls() {
    explore(2, || {
        let (mut both, _shared) = ranks(2, false);
        let peer = both.pop().expect("rank 1");
        let own = Arc::new(both.pop().expect("rank 0"));
        let receiving = thread::spawn({
            let own = Arc::clone(&own);
            move || receive(&own, 1, 0, &mut [0]).expect_err("the calls differ").kind()
        });
        // The receive may have ended the communicator before one of the gathers returns.
        let giving = thread::spawn(move || {
            let _ = gather(&peer, 0);
            peer
        });
        let _ = gather(&own, 1);
        assert_eq!(receiving.join().expect("no panic"), ErrorKind::Disagreement);
        giving.join().expect("no panic");
    });
}

#[test]
fn a_receive_sees_its_peer_leave() {
    explore(2, || {
        let (mut both, _shared) = ranks(2, false);
        let leaving = both.pop().expect("rank 1");
        let thread = thread::spawn(move || {
            send(&leaving, 0, 0, &[1]).expect("there is room");
            drop(leaving);
        });
        receive(&both[0], 1, 0, &mut [0]).expect("it was sent before");
        assert_eq!(receive(&both[0], 1, 0, &mut [0]).expect_err("rank 1 has left").kind(), ErrorKind::PeerLost);
        thread.join().expect("no panic");
    });
}

#[test]
fn an_abort_reaches_a_send_that_waits() {
    const LEN: usize = 9;
    explore(2, || {
        on_ranks(ranks(2, false), |rank| {
            if rank.own.rank == GroupRank(0) {
                let error = send(rank, 1, 0, &[0; LEN]).expect_err("rank 1 does not receive it");
                assert_eq!(error.kind(), ErrorKind::Aborted);
            } else {
                rank.abort(ErrorKind::Aborted, "no");
            }
        });
    });
}

/// A send that fails returns when no peer copies from its buffer.
#[test]
fn a_copy_ends_before_a_failed_send_returns() {
    const LEN: usize = 9;
    explore(2, || {
        let (mut both, _shared) = ranks(2, false);
        let receiver = both.pop().expect("rank 1");
        let memory = Arc::new(Tracked::default());
        let thread = thread::spawn({
            let memory = Arc::clone(&memory);
            move || {
                if let Ok(_access) = receiver.own.segment.begin_access(receiver.own.rank, Accessor::Mailbox) {
                    memory.read(|| ());
                }
                receiver.abort(ErrorKind::Aborted, "no");
            }
        });
        send(&both[0], 1, 0, &[0; LEN]).expect_err("rank 1 aborts");
        memory.write(|| ());
        thread.join().expect("no panic");
    });
}
