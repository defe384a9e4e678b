//! Messages between ranks that are threads, and between ranks that are processes. A process is a
//! child, or a thread of this process with mappings of its own.

mod asynchronous;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use distcollective::comm::{BackendKind, MAX_TAG, Message, Received, Source};
use distcollective::{Buffer, Communicator, DataType, ErrorKind, Rank, Result};

use crate::bootstrap::bootstrap_all;
use crate::processes::{Role, command, new_job, wait_for_line};
use crate::ranks::{DEADLINE, logged, on_communicators, patient, wait_all};

/// The most bytes of a message that travels in the ring, and how many of them there is room for.
pub const INLINE_BYTES: usize = 4040;
pub const ROOM: usize = 16;

/// Element counts around every boundary: nothing, small, the longest that fits a cell of one-byte
/// and of eight-byte elements, more than the ring, more than one copy.
const COUNTS: [usize; 9] =
    [0, 1, 3, INLINE_BYTES / 8, INLINE_BYTES / 8 + 1, INLINE_BYTES, INLINE_BYTES + 1, 20_000, 300_001];

/// Communicators of `n` ranks: one of threads, and one of processes of one rank.
fn worlds(n: u32) -> [Vec<Communicator>; 2] {
    let job = new_job();
    let builder = |rank| Communicator::builder().job(&job).world_size(n).rank(rank).timeout(patient(DEADLINE));
    let processes = bootstrap_all((0..n).map(builder).collect()).into_iter().collect::<Result<Vec<_>>>();
    [Communicator::builder().in_process(n).expect("ranks"), processes.expect("a bootstrap")]
}

/// Runs `body` on both.
pub fn on_both<T: Send + 'static>(n: u32, body: impl Fn(Communicator) -> T + Send + Sync + 'static) -> [Vec<T>; 2] {
    let body = Arc::new(body);
    worlds(n).map(|communicators| {
        let body = body.clone();
        on_communicators(DEADLINE, communicators, move |communicator| body(communicator))
    })
}

/// The bytes of a message, which name its sender, its receiver and its tag.
fn bytes_of(from: Rank, to: Rank, tag: u32, byte_len: usize) -> Vec<u8> {
    let seed = (from.0 * 31 + to.0 * 7 + tag) as usize;
    (0..byte_len).map(|i| (seed + i * 13 + i / 251) as u8).collect()
}

/// Every rank sends to every other one and to itself, with every type: in round `k` to the rank `k`
/// behind it. One thread sends, and one receives.
fn exchange_all(communicator: &Communicator, is_symmetric: bool) {
    let (rank, n) = (communicator.rank(), communicator.world_size());
    let buffer = |data_type: DataType, count: usize| match is_symmetric {
        true => communicator.allocate(data_type, [count as i64]).expect("memory"),
        false => Buffer::zeroed(data_type, [count as i64]).expect("memory"),
    };
    for (number, data_type) in DataType::ALL.into_iter().enumerate() {
        let element = data_type.byte_len();
        // Each type has some of the counts, and all types together have them all.
        for count in COUNTS.into_iter().skip(number % 3).step_by(3) {
            let (mut sent, mut received) = (buffer(data_type, count), buffer(data_type, count + 2));
            for k in 0..n {
                let (to, from) = (Rank((rank.0 + k) % n), Rank((rank.0 + n - k) % n));
                let tag = number as u32 + k;
                sent.write(0, &bytes_of(rank, to, tag, count * element)).expect("the buffer is as long");
                received.write(0, &vec![0xa5; (count + 2) * element]).expect("the buffer is as long");
                let got = std::thread::scope(|scope| {
                    let sending = scope.spawn(|| communicator.send(&sent, to, tag));
                    let got = communicator.recv(&mut received, from, tag);
                    sending.join().expect("no panic").expect("a send");
                    got.expect("a message")
                });
                assert_eq!(got, Received { source: from, element_count: count }, "{data_type} {k}");
                let mut bytes = vec![0; (count + 2) * element];
                received.read(0, &mut bytes).expect("host memory");
                let (message, rest) = bytes.split_at(count * element);
                assert!(message == bytes_of(from, rank, tag, count * element), "{data_type} {count} {k}");
                assert!(rest.iter().all(|byte| *byte == 0xa5), "{data_type} {count} {k}: beyond the message");
            }
        }
    }
}

macro_rules! exchanges {
    ($($name:ident: $n:expr),* $(,)?) => { $(
        #[test]
        fn $name() {
            on_both($n, |communicator| exchange_all(&communicator, false));
        }
    )* };
}

exchanges! {
    exchange_of_1: 1,
    exchange_of_2: 2,
    exchange_of_3: 3,
    exchange_of_4: 4,
    exchange_of_5: 5,
    exchange_of_6: 6,
    exchange_of_7: 7,
    exchange_of_8: 8,
}

/// What a child does.
pub fn play(role: &str, communicator: &Communicator) {
    let rank = communicator.rank();
    match role {
        "messages: exchange" => {
            exchange_all(communicator, false);
            // A rank has a thread from now on, until it leaves.
            let n = communicator.world_size();
            let (next, before) = (Rank((rank.0 + 1) % n), Rank((rank.0 + n - 1) % n));
            let messages =
                vec![Message::send(vec![rank.0 as i32; 5000], next, 0), Message::recv(vec![0; 5000], before, 0)];
            let work = communicator.batch_isend_irecv(messages).expect("right arguments");
            let messages = work.wait().expect("an exchange").messages;
            assert_eq!(messages[1].buffer.as_slice::<i32>().expect("int32"), [before.0 as i32; 5000]);
        }
        "messages: exchange in symmetric memory" => exchange_all(communicator, true),
        "messages: rank 1 exits" | "messages: rank 1 exits, and all receive from any" => {
            // It dies after one message, in the middle of another.
            if rank == Rank(1) {
                for to in [0, 2] {
                    communicator.send(&[1u8], to, 0).expect("a send");
                }
                println!("ready");
                std::io::stdin().read_line(&mut String::new()).expect("a line");
                std::process::exit(0);
            }
            let mut long = vec![0u8; 1 << 20];
            communicator.recv(&mut long, 1, 0).expect("it was sent");
            println!("ready");
            let error = match (rank.0, role) {
                (0, "messages: rank 1 exits") => communicator.send(&long, 1, 0),
                (_, "messages: rank 1 exits") => communicator.recv(&mut long, 1, 0).map(drop),
                _ => communicator.recv(&mut long, None, 0).map(drop),
            };
            println!("{:?}", error.expect_err("rank 1 has died"));
        }
        other => panic!("no role {other}"),
    }
}

fn children(name: &str, processes: &[u32]) -> Vec<Command> {
    let (job, world_size) = (new_job(), processes.iter().sum());
    let first_ranks = processes.iter().scan(0, |next, ranks| Some(std::mem::replace(next, *next + ranks)));
    let roles = first_ranks.zip(processes).map(|(first_rank, &local_ranks)| {
        command(&Role { name, job: &job, world_size, first_rank, local_ranks, quarter: 0 })
    });
    roles.collect()
}

#[test]
fn processes_exchange_messages() {
    for name in ["messages: exchange", "messages: exchange in symmetric memory"] {
        for processes in [&[1, 1][..], &[2, 1]] {
            let children = children(name, processes).iter_mut().map(|child| child.spawn().expect("a child")).collect();
            for (success, text) in wait_all(children, DEADLINE) {
                assert!(success, "{name} {processes:?}: {text}");
            }
        }
    }
}

#[test]
fn a_death_ends_messages() {
    for name in ["messages: rank 1 exits", "messages: rank 1 exits, and all receive from any"] {
        let mut children: Vec<_> = children(name, &[1, 1, 1])
            .iter_mut()
            .map(|child| child.stdin(Stdio::piped()).spawn().expect("a child"))
            .collect();
        for child in &mut children {
            wait_for_line(child, "ready");
        }
        drop(children[1].stdin.take());
        for (rank, (success, text)) in wait_all(children, DEADLINE).into_iter().enumerate() {
            assert!(success, "{name}, rank {rank}: {text}");
            assert!(rank == 1 || (text.contains("PeerLost: ") && text.contains("rank 1 died")), "{rank}: {text}");
        }
    }
}

#[test]
fn messages_are_matched_by_tag_in_the_senders_order() {
    const MESSAGES: i32 = 3 * ROOM as i32;
    on_both(2, |communicator| {
        if communicator.rank() == Rank(0) {
            (0..MESSAGES).for_each(|i| communicator.send(&[i], 1, i as u32 % 3).expect("a send"));
            communicator.send(&vec![7; 2000], 1, 3).expect("a send");
            communicator.send(&8, 1, 0).expect("a send");
            return;
        }
        // The last tag first: the others are in private memory meanwhile.
        for tag in [2, 0, 1] {
            for i in (0..MESSAGES).filter(|i| i % 3 == tag) {
                let mut x = [0; 2];
                let got = communicator.recv(&mut x, 0, tag as u32).expect("a message");
                assert_eq!((x, got.element_count), ([i, 0], 1));
            }
        }
        let (mut long, mut last) = (vec![0; 2000], 0);
        communicator.recv(&mut long, 0, 3).expect("a message");
        communicator.recv(&mut last, 0, 0).expect("a message");
        assert!(long.iter().all(|x| *x == 7) && last == 8);
    });
}

/// A receive from any rank takes what has arrived, from whichever rank, and only its tag.
#[test]
fn a_message_is_received_from_any_rank() {
    on_both(4, |communicator| {
        let rank = communicator.rank();
        if rank != Rank(0) {
            for count in [1, 3000] {
                communicator.send(&vec![rank.0 as i32; count], 0, 5).expect("a send");
                communicator.send(&[-1], 0, 6).expect("a send");
            }
            return;
        }
        let mut counts = [[0; 2]; 4];
        for _ in 0..6 {
            let mut x = vec![0; 3000];
            let got = communicator.recv(&mut x, None, 5).expect("a message");
            let seen = &mut counts[got.source.index()];
            // The sender's order: the short one first.
            assert_eq!((seen[0], got.element_count == 3000), (usize::from(seen[1] > 0 || seen[0] > 0), seen[0] == 1));
            seen[usize::from(got.element_count == 3000)] += 1;
            assert!(x[..got.element_count].iter().all(|x| *x == got.source.0 as i32));
        }
        assert_eq!(counts, [[0, 0], [1, 1], [1, 1], [1, 1]]);
        for from in 1..4 {
            for _ in 0..2 {
                communicator.recv(&mut [0], from, 6).expect("a message");
            }
        }
    });
}

/// A message that does not fit its receive ends the communicator. The receiver's buffer keeps its
/// bytes, and the sender gets the error too.
#[test]
fn a_message_that_does_not_fit_is_an_error_on_both_ranks() {
    for (sent, has_arrived) in [(5, false), (5, true), (5000, false), (5000, true)] {
        for other_type in [false, true] {
            let results = on_both(2, move |communicator| {
                if communicator.rank() == Rank(0) {
                    let sending = communicator.send(&vec![1.5f32; sent], 1, 3);
                    assert!(sent == 5000 || sending.is_ok(), "there is room");
                    return sending.and_then(|()| communicator.barrier()).expect_err("it does not fit");
                }
                if has_arrived {
                    // The message of tag 3 is before this one, and is in private memory then.
                    let _ = communicator.with_timeout(Duration::from_millis(50)).check();
                }
                let (mut floats, mut integers) = (vec![0.5f32; sent - 1], vec![7i32; sent]);
                let error = match other_type {
                    false => communicator.recv(&mut floats, 0, 3),
                    true => communicator.recv(&mut integers, 0, 3),
                };
                assert!(floats.iter().all(|x| *x == 0.5) && integers.iter().all(|x| *x == 7));
                let error = error.expect_err("it does not fit");
                assert_eq!(communicator.check().expect_err("it has ended").kind(), ErrorKind::Disagreement);
                error
            });
            let problem = match other_type {
                false => format!("{} elements fit its buffer", sent - 1),
                true => "its buffer is int32".to_owned(),
            };
            let text = format!("rank 0 sent {sent} float32 with tag 3, and rank 1 cannot receive them: {problem}");
            for error in results.into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Disagreement);
                assert!(error.to_string().ends_with(&text), "{error}");
            }
        }
    }
}

#[test]
fn a_sender_has_room_for_as_many_messages_as_is_written_down() {
    on_both(2, |communicator| {
        let soon = communicator.with_timeout(Duration::from_millis(300));
        if communicator.rank() == Rank(1) {
            let error = communicator.recv(&mut [0u8; INLINE_BYTES], 0, 1).expect_err("it is not sent");
            return assert!(error.to_string().contains("rank 0 ended the communicator: send of 4040 uint8"), "{error}");
        }
        for _ in 0..ROOM {
            // To itself, since a rank that receives makes room.
            soon.send(&[0u8; INLINE_BYTES], 0, 0).expect("there is room");
        }
        let error = soon.send(&[0u8; INLINE_BYTES], 0, 0).expect_err("there is no more");
        let text = "rank 0: send: send of 4040 uint8 to rank 0 with tag 0: rank 0 did not receive the messages before it before \
                    the deadline; ranks wait for each other: rank 0 sends to rank 0 with tag 0; give such messages to \
                    one batch_isend_irecv";
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::DeadlineExceeded, text));
    });
}

/// Ranks that send long messages before they receive.
#[test]
fn a_cycle_of_sends_is_named() {
    for communicators in worlds(3) {
        let results = on_communicators(DEADLINE, communicators, |communicator| {
            let (rank, soon) = (communicator.rank().0, communicator.with_timeout(Duration::from_secs(3)));
            let mut error = None;
            let log = logged(|| {
                let result = match rank {
                    2 => soon.recv(&mut [0.0f32], 0, 9).map(drop),
                    _ => soon.send(&[0.0f32; 5000], rank + 1, 4),
                };
                error = result.err();
            });
            (log, error.expect("they wait for each other"))
        });
        let cycle = "ranks wait for each other: ";
        let steps = [
            "rank 0 sends to rank 1 with tag 4",
            "rank 1 sends to rank 2 with tag 4",
            "rank 2 receives from rank 0 with tag 9",
        ];
        for (rank, (log, _)) in results.iter().enumerate() {
            let warning = format!("{cycle}{}, {}, {}", steps[rank], steps[(rank + 1) % 3], steps[(rank + 2) % 3]);
            assert_eq!(log.matches(&warning).count(), 1, "{log}");
        }
        let late = results.iter().find(|(_, error)| error.kind() == ErrorKind::DeadlineExceeded);
        let (_, error) = late.expect("the first one that was late");
        assert!(error.to_string().contains("before the deadline; ranks wait for each other: rank "), "{error}");
    }
}

/// Rank 1's send ends after the warning. Rank 0's does not.
#[test]
fn a_cycle_that_has_ended_is_not_named_at_the_deadline() {
    for communicators in worlds(2) {
        let errors = on_communicators(DEADLINE, communicators, |communicator| {
            let rank = communicator.rank().0;
            let late = communicator.with_timeout(Duration::from_millis(2500));
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| late.send(&[rank as f32; 5000], 1 - rank, 4));
                if rank == 0 {
                    std::thread::sleep(Duration::from_millis(1300));
                    late.recv(&mut [0f32; 5000], 1, 4).expect("rank 1 waits for that");
                }
                let result = sending.join().expect("no panic");
                if rank == 1 {
                    result.expect("rank 0 has received it");
                    return communicator.barrier().expect_err("rank 0 ends the communicator").to_string();
                }
                result.expect_err("rank 1 does not receive it").to_string()
            })
        });
        assert_eq!(
            errors[0],
            "rank 0: send: send of 5000 float32 to rank 1 with tag 4: rank 1 did not receive it before the deadline"
        );
        assert!(errors[1].ends_with("rank 1 did not receive it before the deadline"), "{}", errors[1]);
    }
}

/// Another thread of rank 0 waits and ends meanwhile. Rank 0 still waits in a cycle.
#[test]
fn a_cycle_is_named_at_the_deadline_although_another_thread_has_ended_its_wait() {
    for communicators in worlds(2) {
        let errors = on_communicators(DEADLINE, communicators, |communicator| {
            let rank = communicator.rank().0;
            let late = if rank == 0 { communicator.with_timeout(Duration::from_secs(4)) } else { communicator.clone() };
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| late.send(&[rank as f32; 5000], 1 - rank, 4));
                if rank == 0 {
                    std::thread::sleep(Duration::from_millis(2100));
                    communicator.recv(&mut [0f32], 1, 5).expect("rank 1 sends that");
                } else {
                    std::thread::sleep(Duration::from_millis(2500));
                    communicator.send(&[0f32], 0, 5).expect("there is room");
                }
                sending.join().expect("no panic").expect_err("they wait for each other").to_string()
            })
        });
        let cycle = "ranks wait for each other: rank 0 sends to rank 1 with tag 4, rank 1 sends to rank 0 with tag 4";
        assert!(errors.iter().all(|error| error.contains(cycle)), "{errors:?}");
    }
}

#[test]
fn messages_that_are_not_received_are_counted_when_the_rank_leaves() {
    for communicators in worlds(2) {
        let logs = on_communicators(DEADLINE, communicators, |communicator| {
            if communicator.rank() == Rank(0) {
                (0..5).for_each(|_| communicator.send(&[1], 1, 0).expect("there is room"));
                communicator.send(&[2], 1, 1).expect("there is room");
            } else {
                // The five before it are in private memory then, and four of them stay.
                communicator.recv(&mut [0], 0, 1).expect("a message");
                communicator.recv(&mut [0], 0, 0).expect("a message");
            }
            communicator.barrier().expect("a barrier");
            if communicator.rank() == Rank(0) {
                communicator.send(&[3], 1, 2).expect("there is room");
            }
            communicator.barrier().expect("a barrier");
            logged(|| communicator.finalize().expect("a barrier"))
        });
        assert!(!logs[0].contains("WARN"), "{}", logs[0]);
        let warning = "rank 1: the communicator ends with 5 messages that this rank did not receive";
        assert_eq!(logs[1].matches(warning).count(), 1, "{}", logs[1]);
    }
}

#[test]
fn a_rank_sends_to_itself() {
    on_both(2, |communicator| {
        let rank = communicator.rank();
        communicator.send(&[1, 2], rank, 0).expect("there is room");
        let mut x = [0; 2];
        assert_eq!(communicator.recv(&mut x, None, 0).expect("a message").source, rank);
        assert_eq!(x, [1, 2]);
    });
}

/// Messages of a group are its own, and so are its ranks' numbers.
#[test]
fn a_group_has_messages_of_its_own() {
    on_both(3, |communicator| {
        let group = communicator.new_group([2, 0]).expect("a group");
        let Some(group) = group else { return };
        if group.rank() == Rank(0) {
            communicator.send(&[1], 0, 0).expect("a send");
            group.send(&[2], 1, 0).expect("a send");
        } else {
            let mut x = [0];
            let got = group.recv(&mut x, None, 0).expect("a message");
            assert_eq!((x, got.source), ([2], Rank(0)));
            let got = communicator.recv(&mut x, None, 0).expect("a message");
            assert_eq!((x, got.source), ([1], Rank(2)));
        }
    });
}

#[test]
fn wrong_arguments_of_messages_are_found_at_once() {
    let communicator = Communicator::builder().in_process(2).expect("ranks").remove(1);
    let error_of = |result: Result<()>| {
        let error = result.expect_err("a wrong argument");
        (error.kind(), error.to_string())
    };
    let invalid = |text: &str| (ErrorKind::InvalidArgument, text.to_owned());
    let tag = MAX_TAG + 1;
    assert_eq!(error_of(communicator.send(&[1], 2, 0)), invalid("rank 1: send: dst 2 is not one of 2 ranks"));
    assert_eq!(
        error_of(communicator.recv(&mut [1], 2, 0).map(drop)),
        invalid("rank 1: recv: src 2 is not one of 2 ranks")
    );
    let text = "rank 1: recv: tag 32768 is not from 0 to 32767";
    assert_eq!(error_of(communicator.recv(&mut [1], Source::Any, tag).map(drop)), invalid(text));
    assert_eq!(communicator.backend(), BackendKind::Host);
    communicator.check().expect("it works");
    communicator.send(&[1u8], 1, MAX_TAG).expect("there is room");
    communicator.recv(&mut [0u8], 1, MAX_TAG).expect("a message");
}

/// A rank that leaves has sent what it sent, and receives nothing more.
#[test]
fn a_rank_that_left_is_told_from_one_that_has_sent() {
    for communicators in worlds(2) {
        let mut ranks = communicators.into_iter();
        let (stays, leaves) = (ranks.next().expect("rank 0"), ranks.next().expect("rank 1"));
        leaves.send(&[1], 0, 0).expect("there is room");
        drop(leaves);
        let mut x = [0];
        stays.recv(&mut x, 1, 0).expect("it was sent before");
        assert_eq!(x, [1]);
        let error = stays.send(&[1], 1, 0).expect_err("rank 1 has left");
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert_eq!(
            error.to_string(),
            "rank 0: send: send of 1 int32 to rank 1 with tag 0: rank 1 left the communicator"
        );
    }
    let mut ranks = Communicator::builder().in_process(3).expect("ranks");
    drop(ranks.split_off(1));
    let error = ranks[0].recv(&mut [0], None, 0).expect_err("all have left");
    assert!(error.to_string().ends_with("from any rank with tag 0: ranks 1 and 2 left the communicator"), "{error}");
}

/// A short message that has come before its receive, behind one of another tag.
#[test]
fn a_receive_ends_with_a_message_that_came_before_it() {
    on_both(2, |communicator| {
        if communicator.rank() == Rank(1) {
            communicator.send(&[1i32], 0, 1).expect("a send");
            communicator.send(&[2i32], 0, 2).expect("a send");
        } else {
            let mut second = [0i32];
            communicator.recv(&mut second, 1, 2).expect("the second message");
            let first = communicator.irecv(vec![0i32], 1, 1).expect("right arguments");
            let first = first.wait().expect("the first message").messages.remove(0);
            assert_eq!((first.buffer.as_slice::<i32>().expect("int32")[0], second[0]), (1, 2));
        }
        communicator.barrier().expect("a barrier");
    });
}

/// Messages of one tag are received in order although they do not all have room.
#[test]
fn many_messages_are_received_in_order() {
    on_both(2, |communicator| {
        const COUNT: i32 = 200;
        if communicator.rank() == Rank(0) {
            let works: Vec<_> =
                (0..COUNT).map(|number| communicator.isend(vec![number; 3], 1, 0).expect("right arguments")).collect();
            works.into_iter().for_each(|work| drop(work.wait().expect("a send")));
        } else {
            for number in 0..COUNT {
                let mut received = [0i32; 3];
                communicator.recv(&mut received, 0, 0).expect("a message");
                assert_eq!(received, [number; 3]);
            }
        }
    });
}
