//! The communicator's contract: eager calls, agreement, failure, handles.

use std::sync::Arc;
use std::time::Duration;

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::stream::WorkError;
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, DataType, ErrorKind, Rank, ReduceOperation, Result, Stream};

use crate::ranks::{DEADLINE, on_ranks};

/// Enough for a rank that is there, too little to wait for one that is not.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn every_operation_called_directly() {
    let outputs = on_ranks(2, |c| -> Result<Vec<Vec<i32>>> {
        let r = c.rank().0 as i32;
        let own = [10 * r + 1, 10 * r + 2];
        let mut sum = own;
        c.all_reduce(&mut sum, ReduceOperation::Sum)?;
        let mut gathered = [0; 4];
        c.all_gather(&own, &mut gathered)?;
        let mut sent = own;
        c.broadcast(&mut sent, Rank(1))?;
        let mut most = own;
        c.reduce(&mut most, ReduceOperation::Max, Rank(1))?;
        let mut share = [0];
        c.reduce_scatter(&own, &mut share, ReduceOperation::Prod)?;
        let mut swapped = [0; 2];
        c.all_to_all(&own, &mut swapped)?;
        let mut collected = [0; 4];
        let on_root = c.rank() == Rank(0);
        c.gather(&own, on_root.then(|| TensorViewMut::from(&mut collected)), Rank(0))?;
        let mut part = [0];
        let whole = TensorView::from(&own);
        c.scatter((c.rank() == Rank(1)).then_some(whole), &mut part, Rank(1))?;
        c.barrier()?;
        c.finalize()?;
        Ok(vec![
            sum.to_vec(),
            gathered.to_vec(),
            sent.to_vec(),
            most.to_vec(),
            share.to_vec(),
            swapped.to_vec(),
            collected.to_vec(),
            part.to_vec(),
        ])
    });
    let [zero, one] = outputs.try_into().expect("two ranks");
    assert_eq!(
        zero.expect("no error"),
        [
            vec![12, 14],
            vec![1, 2, 11, 12],
            vec![11, 12],
            vec![1, 2],
            vec![11],
            vec![1, 11],
            vec![1, 2, 11, 12],
            vec![11]
        ]
    );
    assert_eq!(
        one.expect("no error"),
        [vec![12, 14], vec![1, 2, 11, 12], vec![11, 12], vec![11, 12], vec![24], vec![2, 12], vec![0; 4], vec![12]]
    );
}

#[test]
fn ranks_that_disagree_all_get_all_calls_and_nothing_is_written() {
    let errors = on_ranks(3, |c| {
        let mut x = [1.0f32, 2.0];
        let error = match c.rank().0 {
            1 => c.all_reduce(&mut x, ReduceOperation::Max),
            2 => c.all_gather(&[0u8], &mut [0u8; 3]),
            _ => c.all_reduce(&mut x, ReduceOperation::Sum),
        };
        assert_eq!(x, [1.0, 2.0]);
        let again = c.barrier().expect_err("the communicator is dead");
        (error.expect_err("they disagree"), again)
    });
    for (rank, (error, again)) in errors.into_iter().enumerate() {
        let text = "ranks disagree on collective 1: rank 0 calls all_reduce(sum) of 2 float32; rank 1 calls all_reduce(max) of \
                    2 float32; rank 2 calls all_gather of 1 uint8";
        for error in [error, again] {
            assert_eq!(error.kind(), ErrorKind::Disagreement);
            assert_eq!(error.to_string(), format!("rank {rank}: {text}"));
            assert_eq!(error.rank(), Some(Rank(rank as u32)));
        }
    }
}

/// A rank that waits for one other rank compares with that one, also where others have come.
#[test]
fn a_rank_that_takes_from_a_root_compares_with_the_root() {
    let errors = on_ranks(3, |c| {
        let result = match c.rank().0 {
            2 => c.broadcast(&mut [0u8], Rank(0)),
            _ => c.all_reduce(&mut [0f32], ReduceOperation::Sum),
        };
        result.expect_err("they disagree")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        let text = error.to_string();
        assert!(text.contains("rank 2 calls broadcast from group rank 0 of 1 uint8"), "{text}");
        assert!(
            text.contains("call all_reduce(sum) of 1 float32") || text.contains("rank 0 calls all_reduce(sum)"),
            "{text}"
        );
    }
}

/// The root may have returned when the others see the difference. Its next call is the error.
#[test]
fn a_root_that_gave_learns_of_a_disagreement_from_its_next_call() {
    let errors = on_ranks(2, |c| {
        if c.rank() == Rank(0) {
            let given = c.broadcast(&mut [1u8], Rank(0));
            given.and_then(|()| c.finalize()).expect_err("rank 1 wanted something else").kind()
        } else {
            c.reduce(&mut [1u8], ReduceOperation::Sum, Rank(1)).expect_err("rank 0 does not reduce").kind()
        }
    });
    assert_eq!(errors, [ErrorKind::Disagreement; 2]);
}

/// A late rank does not keep the others from comparing their calls. Otherwise they would touch each
/// other's buffers in different calls (invariant 5 in docs/src/internals.md).
#[test]
fn a_late_rank_hides_no_disagreement() {
    let meet = Arc::new(std::sync::Barrier::new(2));
    let errors = on_ranks(3, move |c| {
        if c.rank() == Rank(2) {
            // It comes when the others have their errors.
            while c.check().is_ok() {
                std::thread::yield_now();
            }
            return c.check().expect_err("the others disagree");
        }
        // Both give. The second one may already see the header of the first.
        let given = c.broadcast(&mut [1u8], c.rank());
        meet.wait();
        given.and_then(|()| c.broadcast(&mut vec![1u8; 1 << 20], Rank(0))).expect_err("each was the root")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        assert!(
            error.to_string().contains("ranks disagree on collective 1: rank 0 calls broadcast from group rank 0"),
            "{error}"
        );
    }
}

/// Ranks that give run ahead until there is no room. Then the error names the late rank, and no
/// other.
#[test]
fn a_giver_that_has_run_ahead_names_who_is_late() {
    let errors = on_ranks(3, |c| {
        if c.rank() == Rank(2) {
            while c.check().is_ok() {
                std::thread::yield_now();
            }
            return None;
        }
        let c = c.with_timeout(Duration::from_secs(2));
        (0..100).find_map(|_| c.broadcast(&mut [1u8], Rank(0)).err())
    });
    for error in errors.into_iter().flatten() {
        assert!(error.to_string().contains("rank 2 did not arrive before the deadline"), "{error}");
    }
}

/// A rank sees a disagreement also after the other rank has left.
#[test]
fn a_rank_that_disagreed_and_left_has_disagreed() {
    let left = Arc::new(std::sync::Barrier::new(2));
    let kinds = on_ranks(2, move |c| {
        let given = c.broadcast(&mut [1u8], c.rank());
        if c.rank() == Rank(1) {
            drop(c);
            left.wait();
            return None;
        }
        left.wait();
        Some(given.and_then(|()| c.finalize()).expect_err("rank 1 was another root").kind())
    });
    assert_eq!(kinds[0], Some(ErrorKind::Disagreement));
}

/// A rank that waits for a header learns that an earlier call differed, whatever its peer does
/// after that call.
#[test]
fn a_rank_that_waits_learns_of_an_earlier_call_that_only_gave() {
    for leaves in [false, true] {
        let kinds = on_ranks(2, move |c| {
            if c.rank() == Rank(0) {
                let c = c.with_timeout(3 * DEADLINE);
                let given = c.broadcast(&mut [1u8], Rank(0));
                return Some(given.and_then(|()| c.barrier()).expect_err("rank 1 gathers").kind());
            }
            // By then rank 0 waits.
            std::thread::sleep(Duration::from_millis(50));
            c.gather(&[1u8], None::<&mut [u8]>, Rank(0)).expect("it only gives");
            let receive = || c.with_timeout(DEADLINE / 2).recv(&mut [1u8], Rank(0), 0).expect_err("rank 0 broadcasts");
            (!leaves).then(|| receive().kind())
        });
        let own = (!leaves).then_some(ErrorKind::Disagreement);
        assert_eq!(kinds, [Some(ErrorKind::Disagreement), own], "{leaves}");
    }
}

#[test]
fn agreement_is_checked_without_elements_too() {
    let kinds = on_ranks(2, |c| {
        let mut none = [0f32; 0];
        let mut one = [0f32; 1];
        let x = if c.rank() == Rank(0) { &mut none[..] } else { &mut one[..] };
        c.all_reduce(x, ReduceOperation::Sum).expect_err("0 is not 1").kind()
    });
    assert_eq!(kinds, [ErrorKind::Disagreement; 2]);
}

#[test]
fn a_barrier_against_another_call_names_both() {
    let errors = on_ranks(2, |c| match c.rank().0 {
        0 => c.barrier().expect_err("no barrier over there").to_string(),
        _ => c.split(Some(0), 0).expect_err("no split over there").to_string(),
    });
    assert_eq!(errors[0], "rank 0: ranks disagree on collective 1: rank 0 calls barrier; rank 1 calls split");
}

/// What the library exchanges inside other calls is not counted.
#[test]
fn errors_count_the_collectives_that_the_program_calls() {
    fn prepare(c: &Communicator) {
        c.all_reduce(&mut [1f32], ReduceOperation::Sum).expect("collective 1");
        c.split(Some(0), 0).expect("a split");
        c.new_group([0, 1]).expect("a group");
        c.allocate(DataType::Float32, [4]).expect("a buffer");
        c.barrier().expect("collective 2");
        c.allocate(DataType::Float32, [4]).expect("a buffer");
    }
    let errors = on_ranks(2, |c| {
        prepare(&c);
        let wrong = [1f32; 2];
        c.all_reduce(&mut wrong[..1 + c.rank().index()].to_vec(), ReduceOperation::Sum)
            .expect_err("1 is not 2")
            .to_string()
    });
    for (rank, error) in errors.iter().enumerate() {
        let sides = "rank 0 calls all_reduce(sum) of 1 float32; rank 1 calls all_reduce(sum) of 2 float32";
        assert_eq!(*error, format!("rank {rank}: ranks disagree on collective 3: {sides}"));
    }

    // The root does not wait for the others. It finds the difference in this call or in a later
    // one.
    let errors = on_ranks(2, |c| {
        prepare(&c);
        match c.rank().0 {
            0 => (0..100).find_map(|_| c.broadcast(&mut [1f32], Rank(0)).err()).expect("another call").to_string(),
            _ => c.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("another call").to_string(),
        }
    });
    assert!(errors[0].starts_with("rank 0: ranks disagree on collective 3: rank 0 calls broadcast"), "{}", errors[0]);

    let errors = on_ranks(2, |c| {
        prepare(&c);
        match c.rank().0 {
            0 => c.split(Some(0), 0).map(drop).expect_err("another call").to_string(),
            _ => c.new_group([0]).map(drop).expect_err("another call").to_string(),
        }
    });
    let sides = "rank 0 calls split; rank 1 calls new_group";
    assert_eq!(errors[0], format!("rank 0: ranks disagree on the call after collective 2: {sides}"));

    let errors = on_ranks(2, |c| {
        if c.rank() == Rank(1) {
            return None;
        }
        Some(c.with_timeout(SHORT).split(Some(0), 0).map(drop).expect_err("rank 1 is gone").to_string())
    });
    let split = "rank 0: split (before the first collective): rank 1 left the communicator while this rank waited";
    assert_eq!(errors[0].as_deref(), Some(split));
}

#[test]
fn a_rank_that_leaves_is_named_at_once() {
    let errors = on_ranks(3, |c| {
        if c.rank() == Rank(1) {
            return None;
        }
        let error = c.all_reduce(&mut [1u8], ReduceOperation::Sum).expect_err("rank 1 is gone");
        Some((error.kind(), error.to_string()))
    });
    for rank in [0, 2] {
        let (kind, text) = errors[rank].clone().expect("an error");
        assert_eq!(kind, ErrorKind::PeerLost);
        assert_eq!(
            text,
            format!(
                "rank {rank}: all_reduce(sum) of 1 uint8 (collective 1): rank 1 left the communicator while this rank waited"
            )
        );
    }
}

#[test]
fn a_rank_that_panics_has_left() {
    let kinds = on_ranks(2, |c| {
        if c.rank() == Rank(0) {
            let thread = std::thread::spawn(move || {
                let _owned = c;
                panic!("a panic that the test wants");
            });
            assert!(thread.join().is_err());
            return None;
        }
        Some(c.barrier().expect_err("rank 0 is gone").kind())
    });
    assert_eq!(kinds[1], Some(ErrorKind::PeerLost));
}

#[test]
fn a_deadline_names_who_did_not_come_and_ends_the_communicator_for_all() {
    let errors = on_ranks(3, |c| {
        if c.rank() == Rank(2) {
            // It comes when the others have failed.
            while c.check().is_ok() {
                std::thread::yield_now();
            }
            return c.barrier().expect_err("too late");
        }
        let short = c.with_timeout(if c.rank() == Rank(0) { SHORT } else { c.timeout() });
        let error = short.barrier().expect_err("rank 2 does not come");
        let again = c.barrier().expect_err("the communicator is dead");
        assert_eq!(again.to_string(), error.to_string(), "further calls return the error at once");
        error
    });
    assert_eq!(errors[0].kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(errors[0].to_string(), "rank 0: barrier (collective 1): rank 2 did not arrive before the deadline");
    for rank in [1, 2] {
        assert_eq!(errors[rank].kind(), ErrorKind::Aborted);
        assert_eq!(
            errors[rank].to_string(),
            format!(
                "rank {rank}: rank 0 ended the communicator: barrier (collective 1): rank 2 did not arrive before the deadline"
            )
        );
    }
}

#[test]
fn abort_reaches_ranks_that_wait_anywhere_in_the_family() {
    let errors = on_ranks(4, |c| {
        let half = c.split(Some(c.rank().0 % 2), c.rank().0 as i32).expect("a split").expect("a color");
        match c.rank().0 {
            // One waits in the group, one in the whole, one calls abort.
            0 => half.barrier().expect_err("aborted").to_string(),
            1 => c.barrier().expect_err("aborted").to_string(),
            2 => {
                c.abort("out of patience").expect("an end");
                c.check().expect_err("aborted").to_string()
            }
            _ => half.all_reduce(&mut [0i64], ReduceOperation::Sum).expect_err("aborted").to_string(),
        }
    });
    let ended = "rank 2 ended the communicator: out of patience";
    // Rank 3 is rank 1 of its group; errors name it as the communicator that was split does.
    assert_eq!(
        errors,
        [
            format!("rank 0: {ended}"),
            format!("rank 1: {ended}"),
            format!("rank 2: {ended}"),
            format!("rank 3: {ended}")
        ]
    );
}

#[test]
fn groups_have_the_order_they_are_given() {
    let numbers = on_ranks(4, |c| -> Result<_> {
        let reversed = c.new_group([3, 2, 0])?;
        let by_key = c.split(Some(7), -(c.rank().0 as i32))?.expect("a color");
        let mut gathered = [0u8; 3];
        if let Some(group) = &reversed {
            group.all_gather(&[c.rank().0 as u8], &mut gathered)?;
        }
        c.barrier()?;
        Ok((reversed.map(|g| (g.rank().0, g.world_size())), by_key.rank().0, gathered))
    });
    let numbers: Vec<_> = numbers.into_iter().map(|n| n.expect("no error")).collect();
    assert_eq!(
        numbers,
        [(Some((2, 3)), 3, [3, 2, 0]), (None, 2, [0; 3]), (Some((1, 3)), 1, [3, 2, 0]), (Some((0, 3)), 0, [3, 2, 0])]
    );
}

#[test]
fn allocate_wants_one_length() {
    let texts = on_ranks(2, |c| {
        let mut buffer = c.allocate(DataType::Float32, [2, 3]).expect("memory");
        assert_eq!(buffer.as_slice::<f32>().expect("floats"), [0.0; 6]);
        c.all_reduce(&mut buffer, ReduceOperation::Sum).expect("a sum");
        let error = c.allocate(DataType::Float32, [1 + i64::from(c.rank().0)]).expect_err("4 is not 8");
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        // Every rank knows, so nothing is broken.
        c.barrier().expect("a barrier");
        error.to_string()
    });
    assert_eq!(
        texts[0],
        "rank 0: allocate wants the same length on every rank: this rank asks for 4 bytes, rank 1 for 8"
    );
}

#[test]
fn asynchronous_work_hands_its_buffers_back() {
    let sums = on_ranks(2, |c| -> Result<_> {
        let stream = Stream::worker()?;
        let mut works = Vec::new();
        for i in 0..4 {
            let buffer = Buffer::from_slice(&[i + c.rank().0 as i32], [1])?;
            let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            works.push(c.collective_async(collective, Operands::in_place(buffer), &stream)?);
        }
        stream.synchronize().expect("a worker");
        assert!(works.iter().all(|work| work.is_done()));
        let mut sums = Vec::new();
        for work in works {
            sums.push(work.wait()?.output.expect("the buffer").as_slice::<i32>()?[0]);
        }
        // Input and output apart, and off the root nothing to write to.
        let input = Buffer::from_slice(&[c.rank().0 as i32], [1])?;
        let output = if c.rank() == Rank(1) { Some(Buffer::zeroed(DataType::Int32, [2])?) } else { None };
        let work = c.collective_async(Collective::Gather { root: Rank(1) }, Operands::new(input, output), &stream)?;
        if let Some(output) = work.wait()?.output {
            sums.extend(output.as_slice::<i32>()?);
        }
        // Wrong arguments come back at once, with the buffers.
        let short = Operands::in_place(Buffer::zeroed(DataType::Int32, [1])?);
        let failed = c.collective_async(Collective::AllToAll, short, &stream).expect_err("1 is no multiple of 2");
        assert!(failed.operands.output.is_some());
        Ok(sums)
    });
    assert_eq!(sums[0].as_ref().expect("no error"), &[1, 3, 5, 7]);
    assert_eq!(sums[1].as_ref().expect("no error"), &[1, 3, 5, 7, 0, 1]);
}

#[test]
fn work_that_is_leaked_or_dropped_goes_on() {
    let last = on_ranks(2, |c| -> Result<_> {
        let stream = Stream::worker()?;
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let operands = || Ok::<_, distcollective::Error>(Operands::in_place(Buffer::from_slice(&[1u8; 4096], [4096])?));
        std::mem::forget(c.collective_async(sum, operands()?, &stream)?);
        drop(c.collective_async(sum, operands()?, &stream)?);
        let work = c.collective_async(sum, operands()?, &stream)?;
        drop(stream);
        Ok(work.wait()?.output.expect("the buffer").as_slice::<u8>()?[4095])
    });
    assert!(last.into_iter().all(|x| x.expect("no error") == 2));
}

#[test]
fn an_error_of_asynchronous_work_comes_with_its_buffers() {
    let failures = on_ranks(2, |c| {
        let stream = Stream::worker().expect("a thread");
        let element = if c.rank() == Rank(0) { DataType::Int8 } else { DataType::Uint8 };
        let operands = Operands::in_place(Buffer::zeroed(element, [3]).expect("a buffer"));
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let error = c.collective_async(sum, operands, &stream).expect("it fits").wait().expect_err("they disagree");
        let WorkError::Failed(failed) = error else { panic!("{error}") };
        (failed.error.kind(), failed.operands.output.is_some())
    });
    assert_eq!(failures, [(ErrorKind::Disagreement, true); 2]);
}

#[test]
fn a_rank_in_one_process_may_be_driven_by_several_threads() {
    // Two communicators of the same ranks, each on a thread of its own: no call waits for the other
    // communicator.
    on_ranks(2, |c| {
        let other = c.split(Some(0), c.rank().0 as i32).expect("a split").expect("a color");
        let thread = std::thread::spawn(move || {
            for _ in 0..200 {
                other.barrier().expect("a barrier");
            }
        });
        for _ in 0..200 {
            c.barrier().expect("a barrier");
        }
        thread.join().expect("no panic");
    });
}

#[test]
fn an_in_process_communicator_has_a_rank() {
    assert_eq!(Communicator::builder().in_process(0).expect_err("no rank").kind(), ErrorKind::InvalidArgument);
    let one = Communicator::builder().in_process(1).expect("one rank").remove(0);
    let mut x = [f32::from_bits(0xffc1_2345)];
    one.all_reduce(&mut x, ReduceOperation::Sum).expect("the identity");
    assert_eq!(x[0].to_bits(), 0xffc1_2345, "a reduction over one rank changes no byte");
}

#[test]
fn new_group_wants_one_list() {
    let texts = on_ranks(3, |c| {
        let list = if c.rank() == Rank(0) { [Rank(0), Rank(1)] } else { [Rank(1), Rank(2)] };
        let error = c.new_group(list).expect_err("two lists");
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        c.barrier().expect("every rank knows, so nothing is broken");
        error.to_string()
    });
    assert_eq!(
        texts[2],
        "rank 2: new_group wants the same ranks on every rank: this rank gives [1, 2], rank 0 gives [0, 1]"
    );
}

#[test]
fn a_rank_that_leaves_is_noticed_by_one_that_waits_for_another() {
    let (sender, told) = std::sync::mpsc::channel();
    let told = Arc::new(std::sync::Mutex::new(told));
    let kinds = on_ranks(3, move |c| match c.rank().0 {
        // It comes when rank 1 has seen that rank 2 is gone.
        0 => {
            told.lock().expect("one rank locks").recv().expect("rank 1 is told");
            Some(c.barrier().expect_err("rank 2 is gone").kind())
        }
        1 => {
            let kind = c.barrier().expect_err("rank 2 is gone").kind();
            sender.send(()).expect("rank 0 listens");
            Some(kind)
        }
        _ => None,
    });
    assert_eq!(kinds, [Some(ErrorKind::PeerLost), Some(ErrorKind::PeerLost), None]);
}

#[test]
fn threads_of_one_rank_take_turns_within_their_deadlines() {
    let kinds = on_ranks(2, |c| {
        if c.rank() == Rank(1) {
            while c.check().is_ok() {
                std::thread::yield_now();
            }
            return None;
        }
        let other = c.clone();
        let waiting = std::thread::spawn(move || other.barrier().expect_err("rank 1 does not come").kind());
        // Whichever of the two holds the lock, this one does not wait for ten seconds.
        let kind = c.with_timeout(SHORT).barrier().expect_err("rank 1 does not come").kind();
        c.abort("enough").expect("an end");
        waiting.join().expect("no panic");
        Some(kind)
    });
    assert_eq!(kinds[0], Some(ErrorKind::DeadlineExceeded));
}
