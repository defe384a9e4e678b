//! What collectives, groups, sends and receives do.

use std::sync::{Barrier, LazyLock};

use crate::child::test_in_child;
use crate::cuda::{self, NO_HANDLE, allocate, cuda, download, ok, upload};
use crate::nccl::*;

/// All operations of one rank, checked.
fn every_operation(rank: &Rank) {
    const COUNT: usize = 37;
    let (n, r) = (rank.size as usize, rank.rank as usize);
    let (communicator, stream) = (rank.communicator, rank.stream);
    let own = pattern(rank.rank, COUNT);
    let all: Vec<i32> = (0..rank.size).flat_map(|rank| pattern(rank, COUNT)).collect();
    let whole: Vec<Vec<i32>> = (0..rank.size).map(|rank| pattern(rank, n * COUNT)).collect();
    let sums = |i: usize| whole.iter().map(|whole| whole[i]).sum::<i32>();
    let bytes = 4 * COUNT;
    let input = upload(&own);
    let wide_input = upload(&whole[r]);
    let block = |whole: &[i32], block: usize| whole[block * COUNT..][..COUNT].to_vec();

    let output = allocate(bytes);
    rank.done((nccl().all_reduce)(input, output, COUNT, INT32, SUM, communicator, stream));
    assert_eq!(download::<i32>(output, COUNT), (0..COUNT).map(sums).collect::<Vec<_>>());

    let output = allocate(n * bytes);
    rank.done((nccl().all_gather)(input, output, COUNT, INT32, communicator, stream));
    assert_eq!(download::<i32>(output, n * COUNT), all);
    // In place.
    let output = upload(&[vec![-1; r * COUNT], own.clone(), vec![-1; (n - 1 - r) * COUNT]].concat());
    rank.done((nccl().all_gather)(output + (r * bytes) as u64, output, COUNT, INT32, communicator, stream));
    assert_eq!(download::<i32>(output, n * COUNT), all);

    let output = allocate(bytes);
    rank.done((nccl().reduce_scatter)(wide_input, output, COUNT, INT32, SUM, communicator, stream));
    assert_eq!(download::<i32>(output, COUNT), (r * COUNT..(r + 1) * COUNT).map(sums).collect::<Vec<_>>());

    let output = allocate(n * bytes);
    rank.done((newer().all_to_all)(wide_input, output, COUNT, INT32, communicator, stream));
    assert_eq!(download::<i32>(output, n * COUNT), whole.iter().flat_map(|whole| block(whole, r)).collect::<Vec<_>>());

    for root in 0..rank.size {
        let at_root = rank.rank == root;
        let untouched = vec![i32::from_ne_bytes([0xcd; 4]); COUNT];

        let output = allocate(bytes);
        rank.done((nccl().broadcast)(input, output, COUNT, INT32, root, communicator, stream));
        assert_eq!(download::<i32>(output, COUNT), pattern(root, COUNT));

        let output = allocate(bytes);
        rank.done((nccl().reduce)(input, output, COUNT, INT32, MAX, root, communicator, stream));
        assert_eq!(
            download::<i32>(output, COUNT),
            if at_root { pattern(rank.size - 1, COUNT) } else { untouched.clone() }
        );

        let output = allocate(n * bytes);
        rank.done((newer().gather)(input, output, COUNT, INT32, root, communicator, stream));
        assert_eq!(download::<i32>(output, n * COUNT), if at_root { all.clone() } else { untouched.repeat(n) });

        let output = allocate(bytes);
        rank.done((newer().scatter)(wide_input, output, COUNT, INT32, root, communicator, stream));
        assert_eq!(download::<i32>(output, COUNT), block(&whole[root as usize], r));
    }
}

/// The operations that have a form in place, but for all_gather.
fn every_operation_in_place(rank: &Rank) {
    let (n, r) = (rank.size as usize, rank.rank as usize);
    let (communicator, stream) = (rank.communicator, rank.stream);
    let whole: Vec<Vec<i32>> = (0..rank.size).map(|rank| pattern(rank, n)).collect();
    let sum = |i: usize| whole.iter().map(|whole| whole[i]).sum::<i32>();
    let own = |at: u64| at + 4 * r as u64;

    let at = upload(&whole[r]);
    rank.done((nccl().all_reduce)(at, at, n, INT32, SUM, communicator, stream));
    assert_eq!(download::<i32>(at, n), (0..n).map(sum).collect::<Vec<_>>());

    let at = upload(&whole[r]);
    rank.done((nccl().reduce_scatter)(at, own(at), 1, INT32, SUM, communicator, stream));
    assert_eq!(download::<i32>(own(at), 1), [sum(r)]);

    for root in 0..rank.size {
        let at_root = rank.rank == root;
        let at = upload(&whole[r]);
        rank.done((nccl().broadcast)(at, at, n, INT32, root, communicator, stream));
        assert_eq!(download::<i32>(at, n), whole[root as usize]);

        let at = upload(&whole[r]);
        rank.done((nccl().reduce)(at, at, n, INT32, MIN, root, communicator, stream));
        assert_eq!(download::<i32>(at, n), whole[if at_root { 0 } else { r }]);

        let at = upload(&whole[r]);
        rank.done((newer().gather)(own(at), at, 1, INT32, root, communicator, stream));
        let gathered: Vec<i32> = (0..n).map(|i| whole[i][i]).collect();
        assert_eq!(download::<i32>(at, n), if at_root { gathered } else { whole[r].clone() });

        let at = upload(&whole[r]);
        rank.done((newer().scatter)(at, own(at), 1, INT32, root, communicator, stream));
        assert_eq!(download::<i32>(own(at), 1), [whole[root as usize][r]]);
    }
}

test_in_child!(eight_operations_on_one_to_four_ranks, Current, &[], || {
    for size in 1..=4 {
        for blocking in [true, false] {
            on_ranks(size, blocking, |rank| {
                every_operation(rank);
                every_operation_in_place(rank);
                rank.end();
            });
        }
    }
    no_violations();
    assert_eq!(live(c"communicator"), 0);
});

test_in_child!(calls_on_one_communicator_are_in_order_on_all_streams, Current, &[], || {
    on_ranks(2, true, |rank| {
        let (second, gate) = (cuda::stream(), cuda::Gate::new());
        let at = upload(&[1.0f32]);
        if rank.rank == 0 {
            gate.close(rank.stream);
        }
        rank.called(rank.all_reduce(at, 1));
        rank.called((nccl().all_reduce)(at, at, 1, FLOAT32, PROD, rank.communicator, second));
        gate.open();
        cuda::synchronize(second);
        assert_eq!(download::<f32>(at, 1), [4.0]);
        rank.end();
    });
    no_violations();
});

test_in_child!(sends_and_receives_of_a_group_go_together, Current, &[], || {
    for blocking in [true, false] {
        on_ranks(4, blocking, |rank| {
            let (next, previous) = ((rank.rank + 1) % 4, (rank.rank + 3) % 4);
            let (from, to, own) = (upload(&pattern(rank.rank, 5)), allocate(20), allocate(20));
            let (communicator, stream) = (rank.communicator, rank.stream);
            for _ in 0..5 {
                ok((nccl().group_start)());
                ok((nccl().send)(from, 5, INT32, next, communicator, stream));
                ok((nccl().receive)(to, 5, INT32, previous, communicator, stream));
                ok((nccl().send)(from, 5, INT32, rank.rank, communicator, stream));
                ok((nccl().receive)(own, 5, INT32, rank.rank, communicator, stream));
                rank.done((nccl().group_end)());
                assert_eq!(download::<i32>(to, 5), pattern(previous, 5));
                assert_eq!(download::<i32>(own, 5), pattern(rank.rank, 5));
            }
            // Alone, a pair in one direction.
            match rank.rank {
                0 => rank.done((nccl().send)(from, 5, INT32, 1, communicator, stream)),
                1 => rank.done((nccl().receive)(to, 5, INT32, 0, communicator, stream)),
                _ => {}
            }
            rank.end();
        });
    }
    no_violations();
});

static BARRIER: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));

test_in_child!(the_first_messages_of_opposite_ranks_have_to_fit, Current, &[], || {
    on_ranks(2, false, |rank| {
        let (at, other) = (allocate(20), 1 - rank.rank);
        ok((nccl().group_start)());
        if rank.rank == 0 {
            ok((nccl().send)(at, 5, INT32, other, rank.communicator, rank.stream));
        }
        ok((nccl().receive)(at, 5, INT32, other, rank.communicator, rank.stream));
        let result = (nccl().group_end)();
        if rank.rank == 1 {
            assert_eq!(finished(rank.communicator, result), INTERNAL_ERROR);
        }
        BARRIER.wait();
        rank.abort();
    });
    no_violations();
});

test_in_child!(messages_of_no_elements_connect, Current, &[], || {
    on_ranks(2, true, |rank| {
        let (at, other) = (allocate(20), 1 - rank.rank);
        let (send, receive) = (nccl().send, nccl().receive);
        ok((nccl().group_start)());
        ok(send(at, 0, INT32, other, rank.communicator, rank.stream));
        ok(receive(at, 0, INT32, other, rank.communicator, rank.stream));
        rank.done((nccl().group_end)());
        ok((nccl().group_start)());
        if rank.rank == 0 {
            ok(send(at, 5, INT32, other, rank.communicator, rank.stream));
        }
        ok(receive(at, 5, INT32, other, rank.communicator, rank.stream));
        ok((nccl().group_end)());
        if rank.rank == 1 {
            ok(send(at, 5, INT32, other, rank.communicator, rank.stream));
        }
        cuda::synchronize(rank.stream);
        rank.end();
    });
    no_violations();
});

test_in_child!(a_group_is_nested_and_mixed, Current, &[], || {
    on_ranks(2, true, |rank| {
        let (at, out) = (upload(&[1.0f32]), allocate(8));
        let other = 1 - rank.rank;
        ok((nccl().group_start)());
        ok(rank.all_reduce(at, 1));
        ok((nccl().group_start)());
        ok((nccl().send)(at, 1, FLOAT32, other, rank.communicator, rank.stream));
        ok((nccl().receive)(out, 1, FLOAT32, other, rank.communicator, rank.stream));
        ok((nccl().group_end)());
        ok((cuda().stream_query)(rank.stream));
        rank.done((nccl().group_end)());
        assert_eq!(download::<f32>(at, 1), [2.0]);
        if is_nccl() {
            return rank.end();
        }
        assert!(
            log().contains(&format!("rank {}: ncclAllReduce count 1 type 7 op 0 in group\n", rank.rank)),
            "{}",
            log()
        );
        assert!((reports().call_count)(c"ncclSend".as_ptr()) >= 1);
        assert_eq!((reports().call_count)(c"ncclReduce".as_ptr()), 0);
        assert!(
            log().contains(&format!("rank {}: ncclSend count 1 type 7 peer {other} in group\n", rank.rank)),
            "{}",
            log()
        );
        rank.end();
    });
    no_violations();
});

test_in_child!(one_thread_can_be_all_ranks_in_groups, Current, &[], || {
    let id = unique_id();
    let mut communicators = [NO_HANDLE; 3];
    ok((nccl().group_start)());
    for (rank, communicator) in communicators.iter_mut().enumerate() {
        cuda::use_device(rank as i32);
        ok((nccl().init_plain)(communicator, 3, id, rank as i32));
    }
    ok((nccl().group_end)());
    let streams = [0, 1, 2].map(|rank| (cuda::use_device(rank), cuda::stream(), upload(&[rank as f32])));
    ok((nccl().group_start)());
    for (communicator, (context, stream, at)) in communicators.iter().zip(streams) {
        ok((cuda().context_set)(context));
        ok((nccl().all_reduce)(at, at, 1, FLOAT32, SUM, *communicator, stream));
    }
    ok((nccl().group_end)());
    for (context, stream, at) in streams {
        ok((cuda().context_set)(context));
        cuda::synchronize(stream);
        assert_eq!(download::<f32>(at, 1), [3.0]);
    }
    no_violations();
});

test_in_child!(graphs_repeat_collectives, Current, &[], || {
    on_ranks(3, false, |rank| {
        let (at, out) = (upload(&[1.0f32]), allocate(4));
        ok((cuda().capture_begin)(rank.stream, 1));
        rank.called(rank.all_reduce(at, 1));
        ok((nccl().group_start)());
        ok((nccl().send)(at, 1, FLOAT32, (rank.rank + 1) % 3, rank.communicator, rank.stream));
        ok((nccl().receive)(out, 1, FLOAT32, (rank.rank + 2) % 3, rank.communicator, rank.stream));
        rank.called((nccl().group_end)());
        rank.called(rank.all_reduce(at, 1));
        let (mut graph, mut exec) = (NO_HANDLE, NO_HANDLE);
        ok((cuda().capture_end)(rank.stream, &mut graph));
        ok((cuda().graph_instantiate)(&mut exec, graph, 0));
        assert_eq!(download::<f32>(at, 1), [1.0]);
        for _ in 0..3 {
            ok((cuda().graph_launch)(exec, rank.stream));
        }
        // An eager call goes after them, on the same stream.
        rank.done(rank.all_reduce(at, 1));
        assert_eq!(download::<f32>(at, 1), [3.0f32.powi(7)]);
        ok((cuda().graph_exec_destroy)(exec));
        ok((cuda().graph_destroy)(graph));
        rank.end();
    });
    no_violations();
});

test_in_child!(a_count_of_zero_is_dropped_locally, Current, &[], || {
    on_ranks(2, true, |rank| {
        let at = upload(&[1.0f32]);
        rank.done((nccl().all_reduce)(0, 0, 0, FLOAT32, SUM, rank.communicator, rank.stream));
        if rank.rank == 0 {
            rank.done(rank.all_reduce(at, 0));
        }
        rank.done(rank.all_reduce(at, 1));
        assert_eq!(download::<f32>(at, 1), [2.0]);
    });
    no_violations();
});

test_in_child!(arguments_are_checked, Current, &[], || {
    on_ranks(2, true, |rank| {
        let (a, b, wide) = (allocate(16), allocate(16), allocate(32));
        let (communicator, stream) = (rank.communicator, rank.stream);
        let all_reduce = |from, kind, op| (nccl().all_reduce)(from, b, 4, kind, op, communicator, stream);
        let mut results = vec![
            all_reduce(a, 12, SUM),
            all_reduce(a, -1, SUM),
            all_reduce(a, FLOAT32, 5),
            (nccl().all_reduce)(a, b, 4, FLOAT32, SUM, NO_HANDLE, stream),
        ];
        for root in [-1, 2] {
            results.extend([
                (nccl().broadcast)(a, b, 4, FLOAT32, root, communicator, stream),
                (nccl().reduce)(a, b, 4, FLOAT32, SUM, root, communicator, stream),
                (newer().gather)(a, wide, 4, FLOAT32, root, communicator, stream),
                (newer().scatter)(wide, a, 4, FLOAT32, root, communicator, stream),
                (nccl().send)(a, 4, FLOAT32, root, communicator, stream),
                (nccl().receive)(a, 4, FLOAT32, root, communicator, stream),
            ]);
        }
        assert!(results.iter().all(|&result| result == INVALID_ARGUMENT), "{results:?}");
        // Any of them in a group is the group's error, and nothing is done.
        ok((nccl().group_start)());
        ok(rank.all_reduce(a, 4));
        assert_eq!(all_reduce(a, 12, SUM), INVALID_ARGUMENT);
        assert_eq!((nccl().group_end)(), INVALID_ARGUMENT);
        assert_eq!((nccl().group_end)(), INVALID_USAGE);
        // The communicator still works.
        let at = upload(&[1.0f32]);
        rank.done(rank.all_reduce(at, 1));
        assert_eq!(download::<f32>(at, 1), [2.0]);
        rank.end();
    });
    no_violations();
});

test_in_child!(buffers_are_checked, Strict, &[], || {
    on_ranks(2, true, |rank| {
        let (a, b, wide) = (allocate(16), allocate(16), allocate(32));
        let (communicator, stream, r) = (rank.communicator, rank.stream, rank.rank as u64);
        let mut host = [0u8; 16];
        let host = host.as_mut_ptr() as u64;
        let foreign = {
            cuda::use_device(2);
            let foreign = allocate(16);
            cuda::use_device(rank.rank);
            foreign
        };
        let all_reduce = |from, to, count| (nccl().all_reduce)(from, to, count, FLOAT32, SUM, communicator, stream);
        let results = [
            all_reduce(0, b, 4),
            all_reduce(a, 0, 4),
            all_reduce(a, b, 5),
            all_reduce(a, b + 4, 4),
            all_reduce(a, a + 4, 2),
            all_reduce(host, b, 4),
            all_reduce(a, foreign, 4),
            (nccl().all_gather)(wide + 16 * (1 - r), wide, 4, FLOAT32, communicator, stream),
            (nccl().reduce_scatter)(wide, wide + 16 * (1 - r), 4, FLOAT32, SUM, communicator, stream),
            (newer().all_to_all)(wide, wide, 4, FLOAT32, communicator, stream),
            (newer().gather)(a, 0, 4, FLOAT32, 1 - rank.rank, communicator, stream),
            (newer().scatter)(0, a, 4, FLOAT32, 1 - rank.rank, communicator, stream),
        ];
        assert!(results.iter().all(|&result| result == INVALID_ARGUMENT), "{results:?}");
        rank.end();
    });
    no_violations();
});
