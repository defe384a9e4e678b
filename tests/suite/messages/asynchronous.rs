//! Asynchronous messages: they go on while the program does something else, and hand back what they
//! own.

use std::time::Duration;

use distcollective::comm::{Message, RawMessage, Received, Source};
use distcollective::stream::WorkError;
use distcollective::{Buffer, DataType, Error, ErrorKind, Rank};

use super::{bytes_of, on_both};

/// All ranks send long messages to the next one and receive from the one before, at once.
#[test]
fn a_ring_of_long_messages_ends() {
    for n in 1..=4 {
        on_both(n, move |communicator| {
            let rank = communicator.rank();
            let (next, before) = (Rank((rank.0 + 1) % n), Rank((rank.0 + n - 1) % n));
            for len in [100_000, 1] {
                let mut messages: Vec<Message> = (0..3)
                    .map(|tag| {
                        let bytes = bytes_of(rank, next, tag, len);
                        Message::send(Buffer::from_slice(&bytes, [len as i64]).expect("memory"), next, tag)
                    })
                    .collect();
                // The last tag first.
                messages.extend((0..3).rev().map(|tag| Message::recv(vec![0u8; len], before, tag)));
                let done = communicator.batch_isend_irecv(messages).expect("right arguments").wait().expect("messages");
                assert_eq!(done.received()[..3], [None; 3]);
                assert_eq!(done.received()[3..], [Some(Received { source: before, element_count: len }); 3]);
                for (tag, message) in done.messages[3..].iter().rev().enumerate() {
                    assert!(message.buffer.as_bytes().expect("host") == bytes_of(before, rank, tag as u32, len));
                }
            }
        });
    }
}

/// Rank 0 waits for something else than its messages, and they go on.
#[test]
fn a_message_goes_on_without_its_program() {
    on_both(2, |communicator| {
        const LEN: usize = 1_000_000;
        if communicator.rank() == Rank(0) {
            let sending = communicator.isend(vec![3i32; LEN], 1, 0).expect("right arguments");
            // Rank 1 sends this after it has received the message, to a receive that is there.
            let receiving = communicator.irecv(vec![0i32; LEN], 1, 1).expect("right arguments");
            communicator.barrier().expect("a barrier");
            for (work, element) in [(receiving, 4), (sending, 3)] {
                let done = work.wait().expect("a message");
                assert_eq!(done.messages[0].buffer.as_slice::<i32>().expect("int32")[0], element);
            }
        } else {
            let mut received = vec![0i32; LEN];
            communicator.recv(&mut received, 0, 0).expect("a message");
            assert!(received.iter().all(|x| *x == 3));
            communicator.send(&vec![4i32; LEN], 0, 1).expect("a send");
            communicator.barrier().expect("a barrier");
        }
    });
}

/// Receives end in the order in which messages come, and a blocking call does not wait for them.
#[test]
fn pending_messages_do_not_wait_for_each_other() {
    on_both(2, |communicator| {
        if communicator.rank() == Rank(0) {
            let late = communicator.irecv(vec![0i32; 2000], 1, 0).expect("right arguments");
            let early = communicator.irecv(vec![0i32; 2000], None, 1).expect("right arguments");
            assert_eq!(
                early.wait().expect("a message").received(),
                [Some(Received { source: Rank(1), element_count: 2000 })]
            );
            assert!(!late.is_done());
            let mut x = 0;
            communicator.recv(&mut x, 1, 2).expect("a message");
            assert!(x == 5 && !late.is_done());
            communicator.send(&1, 1, 0).expect("a send");
            assert_eq!(late.wait().expect("a message").received()[0].expect("a receive").element_count, 1);
        } else {
            communicator.send(&vec![1; 2000], 0, 1).expect("a send");
            communicator.send(&5, 0, 2).expect("a send");
            communicator.recv(&mut [0], 0, 0).expect("a message");
            communicator.send(&7, 0, 0).expect("a send");
        }
    });
}

/// A work that is dropped goes on, and its buffer lives until then.
#[test]
fn a_dropped_work_still_sends() {
    on_both(2, |communicator| {
        if communicator.rank() == Rank(0) {
            for tag in 0..3 {
                drop(communicator.isend(vec![tag as u8; 100_000], 1, tag).expect("right arguments"));
            }
        } else {
            for tag in [2, 0, 1] {
                let mut bytes = vec![9; 100_000];
                communicator.recv(&mut bytes, 0, tag).expect("a message");
                assert!(bytes.iter().all(|byte| *byte == tag as u8));
            }
        }
    });
}

/// Asynchronous messages end with the communicator, and hand their buffers back.
#[test]
fn pending_messages_end_with_the_communicator() {
    on_both(3, |communicator| {
        let rank = communicator.rank();
        let receiving = communicator.irecv(vec![7u8; 100_000], (rank.0 + 1) % 3, 0).expect("right arguments");
        let sending = communicator.isend(vec![8u8; 100_000], (rank.0 + 1) % 3, 1).expect("right arguments");
        communicator.barrier().expect("a barrier");
        if rank == Rank(2) {
            communicator.abort("enough").expect("this process's own");
        }
        for (work, byte) in [(receiving, 7), (sending, 8)] {
            let Err(WorkError::Failed(failed)) = work.wait() else { panic!("the communicator has ended") };
            assert_eq!(failed.error.kind(), ErrorKind::Aborted);
            assert!(failed.error.to_string().contains("rank 2 ended the communicator: enough"), "{}", failed.error);
            assert!(failed.operands.messages[0].buffer.as_bytes().expect("host").iter().all(|b| *b == byte));
        }
        let error = communicator.irecv(vec![0u8], 0, 0).expect("right arguments").wait().expect_err("it has ended");
        assert_eq!(Error::from(error).kind(), ErrorKind::Aborted);
    });
}

/// A message may be the next call of two ranks that only gave, in calls that differ.
#[test]
fn ranks_that_gave_in_different_calls_learn_of_it_from_a_message() {
    for is_blocking in [true, false] {
        let errors = on_both(2, move |communicator| {
            let peer = Rank(1 - communicator.rank().0);
            match peer {
                Rank(1) => communicator.broadcast(&mut [1u8], Rank(0)).expect("it only gives"),
                _ => communicator.gather(&[1u8], None::<&mut [u8]>, Rank(0)).expect("it only gives"),
            }
            let error = match is_blocking {
                true => communicator.recv(&mut [0u8], peer, 0).map(drop).expect_err("the calls differ"),
                false => {
                    let receiving = communicator.irecv(vec![0u8], peer, 0).map_err(Error::from);
                    receiving.and_then(|work| Ok(work.wait().map(drop)?)).expect_err("the calls differ")
                }
            };
            (error.kind(), error.to_string())
        });
        let calls = "ranks disagree on collective 1: rank 0 calls broadcast from group rank 0 of 1 uint8; rank 1 calls \
                     gather to group rank 0 of 1 uint8";
        for (kind, text) in errors.iter().flatten() {
            assert!(*kind == ErrorKind::Disagreement && text.contains(calls), "{kind:?} {text}");
        }
    }
}

/// A receive waits already when its rank and the peer give, in calls that differ. Neither rank
/// makes another call.
#[test]
fn a_message_that_waits_learns_that_ranks_gave_in_different_calls() {
    for is_blocking in [true, false] {
        let errors = on_both(2, move |communicator| {
            let peer = Rank(1 - communicator.rank().0);
            std::thread::scope(|scope| {
                let waiting = match is_blocking {
                    true => Ok(scope.spawn(|| communicator.recv(&mut [0u8], peer, 0).map(drop))),
                    false => Err(communicator.irecv(vec![0u8], peer, 0).expect("right arguments")),
                };
                std::thread::sleep(Duration::from_millis(30));
                communicator.gather(&[1u8], None::<&mut [u8]>, peer).expect("it only gives");
                let waited = match waiting {
                    Ok(thread) => thread.join().expect("no panic"),
                    Err(work) => work.wait().map(drop).map_err(Error::from),
                };
                waited.expect_err("the calls differ")
            })
        });
        for error in errors.iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        }
    }
}

#[test]
fn a_late_message_ends_the_communicator() {
    on_both(2, |communicator| {
        let soon = communicator.with_timeout(Duration::from_millis(200));
        if communicator.rank() == Rank(0) {
            let receiving = soon.irecv(vec![0u8], 1, 3).expect("right arguments");
            let later = communicator.irecv(vec![0u8], 1, 4).expect("right arguments");
            let error = Error::from(receiving.wait().expect_err("no message comes"));
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            let text = "irecv: recv of 1 uint8 from rank 1 with tag 3: no message came from rank 1 before the deadline";
            assert!(error.to_string().ends_with(text), "{error}");
            assert_eq!(Error::from(later.wait().expect_err("it has ended")).kind(), ErrorKind::DeadlineExceeded);
        } else {
            assert_eq!(communicator.recv(&mut [0], 0, 0).expect_err("rank 0 is late").kind(), ErrorKind::Aborted);
        }
    });
}

#[test]
fn a_batch_with_a_wrong_message_begins_none() {
    on_both(2, |communicator| {
        let other = 1 - communicator.rank().0;
        let messages = vec![Message::send(vec![1], other, 0), Message::recv(vec![1], other, 40_000)];
        let failed = communicator.batch_isend_irecv(messages).expect_err("a wrong tag");
        assert_eq!(failed.error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(failed.operands.len(), 2);
        communicator.barrier().expect("a barrier");
        communicator.send(&[2], other, 0).expect("there is room");
        let mut x = [0];
        communicator.recv(&mut x, other, 0).expect("a message");
        assert_eq!(x, [2], "the message of the batch was not sent");
        let none = communicator.batch_isend_irecv(Vec::new()).expect("no arguments");
        assert!(none.is_done() && none.wait().expect("nothing").messages.is_empty());
    });
}

#[test]
fn messages_on_raw_addresses() {
    on_both(2, |communicator| {
        let other = Rank(1 - communicator.rank().0);
        let (mut sent, mut received) = (vec![other.0 as i64; 1000], vec![-1i64; 1001]);
        let raw = |elements: &mut [i64], dst, src| RawMessage {
            address: elements.as_mut_ptr().cast(),
            data_type: DataType::Int64.into(),
            element_count: elements.len(),
            dst,
            src,
            tag: 1,
        };
        let messages = [raw(&mut sent, Some(other), Source::Any), raw(&mut received, None, Source::Rank(other))];
        // SAFETY: the vectors live until the work is done.
        let work = unsafe { communicator.enqueue_messages(&messages, None) }.expect("right arguments");
        let done = work.wait().expect("messages");
        assert_eq!(done.received(), [None, Some(Received { source: other, element_count: 1000 })]);
        assert!(received[..1000].iter().all(|x| *x == i64::from(communicator.rank().0)) && received[1000] == -1);
        // The same, one by one; the blocking calls end with messages that are on their way.
        received.fill(-1);
        // SAFETY: as above.
        let (sending, receiving) =
            unsafe { messages.map(|message| communicator.enqueue_messages(&[message], None)).into() };
        assert_eq!(sending.expect("right arguments").wait().expect("a message").received(), [None]);
        let got = Some(Received { source: other, element_count: 1000 });
        assert_eq!(receiving.expect("right arguments").wait().expect("a message").received(), [got]);
        assert_eq!(received[999], i64::from(communicator.rank().0));
        let short = RawMessage { element_count: 2, ..messages[0] };
        // SAFETY: the vectors live during the calls.
        let (sent, got) = unsafe { (communicator.execute_message(&short), communicator.execute_message(&messages[1])) };
        assert_eq!(sent.expect("there is room").element_count, 2);
        assert_eq!(got.expect("a message"), Received { source: other, element_count: 2 });

        let odd = |message: RawMessage| RawMessage { address: message.address.wrapping_add(1), ..message };
        for message in messages {
            let (blocking, starts) = if message.dst.is_some() { ("send: ", "isend: ") } else { ("recv: ", "irecv: ") };
            // SAFETY: the calls are refused.
            let errors = unsafe {
                [
                    (blocking, communicator.execute_message(&odd(message)).map(drop)),
                    (starts, communicator.enqueue_messages(&[odd(message)], None).map(drop)),
                    ("batch_isend_irecv: ", communicator.enqueue_messages(&messages.map(odd), None).map(drop)),
                ]
            };
            for (name, refused) in errors {
                let error = refused.expect_err("not aligned");
                assert_eq!(error.kind(), ErrorKind::InvalidBuffer);
                assert!(error.to_string().contains(name), "{name}{error}");
            }
        }
    });
}

/// The progress thread sleeps for the first message then, until its deadline or a message comes.
#[test]
fn a_later_message_with_an_earlier_deadline_ends_at_that() {
    on_both(2, |communicator| {
        if communicator.rank() == Rank(1) {
            let error = communicator.recv(&mut [0], 0, 2).expect_err("rank 0 ends the communicator");
            return assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        }
        let late = communicator.with_timeout(Duration::from_secs(3600)).irecv(vec![0], 1, 0).expect("it has begun");
        std::thread::sleep(Duration::from_millis(100));
        let soon = communicator.with_timeout(Duration::from_millis(200)).irecv(vec![0], 1, 1).expect("it has begun");
        for work in [soon, late] {
            let error = Error::from(work.wait().expect_err("no message comes"));
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            assert!(
                error.to_string().contains("with tag 1: no message came from rank 1 before the deadline"),
                "{error}"
            );
        }
    });
}
