//! Communicators: making, splitting, windows, ending, and what is not allowed with them.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Barrier};

use crate::child::test_in_child;
use crate::cuda::{self, Handle, NO_HANDLE, allocate, cuda, download, ok, upload};
use crate::nccl::*;

#[track_caller]
fn violation(text: &str) {
    assert!(violations().iter().any(|violation| violation.contains(text)), "{:?}", violations());
}

test_in_child!(communicators_know_themselves, Current, &[], || {
    on_ranks(3, false, |rank| {
        let (mut size, mut number, mut device) = (0, 0, 0);
        ok((nccl().count)(rank.communicator, &mut size));
        ok((nccl().user_rank)(rank.communicator, &mut number));
        ok((nccl().device)(rank.communicator, &mut device));
        assert_eq!((size, number, device), (3, rank.rank, rank.rank));
        rank.end();
    });
    assert_eq!(live(c"communicator"), 0);
    no_violations();
});

test_in_child!(init_is_checked, Current, &[], || {
    let (id, mut communicator) = (unique_id(), NO_HANDLE);
    let init = |rank: i32, config: &mut Config| {
        let mut communicator = NO_HANDLE;
        (nccl().init)(&mut communicator, 2, id, rank, config)
    };
    if !is_nccl() {
        assert_eq!(init(0, &mut Config::new(true)), UNHANDLED_CUDA_ERROR);
    }
    cuda::use_device(0);
    let change = |change: fn(&mut Config)| {
        let mut config = Config::new(true);
        change(&mut config);
        config
    };
    for mut config in [
        change(|config| config.magic = 0),
        change(|config| config.blocking = 2),
        change(|config| config.cga_cluster_size = -1),
        change(|config| config.max_ctas = 0),
        change(|config| (config.min_ctas, config.max_ctas) = (2, 1)),
        change(|config| config.split_share = -1),
    ] {
        assert_eq!(init(0, &mut config), INVALID_ARGUMENT);
    }
    for rank in [-1, 2] {
        assert_eq!(init(rank, &mut Config::new(true)), INVALID_ARGUMENT);
    }
    if is_nccl() {
        return;
    }
    for mut config in [
        change(|config| config.size = 100),
        change(|config| config.version = 23100),
        change(|config| config.version = 0),
        change(|config| config.cga_cluster_size = 9),
        change(|config| config.rest[9] = 0),
    ] {
        assert_eq!(init(0, &mut config), INVALID_ARGUMENT);
    }
    let mut unknown = id;
    unknown.0[0] = b'x';
    assert_eq!((nccl().init_plain)(&mut communicator, 1, unknown, 0), INVALID_ARGUMENT);
    // An older and smaller structure is valid, and so is a communicator of one rank. A rank can
    // join only once.
    let mut older = change(|config| (config.size, config.version) = (48, 22105));
    assert_eq!(init(0, &mut change(|config| config.blocking = 0)), IN_PROGRESS);
    assert_eq!(init(0, &mut older), INVALID_ARGUMENT);
    ok((nccl().init)(&mut communicator, 1, unique_id(), 0, &mut older));
    no_violations();
});

test_in_child!(a_device_has_one_rank, Current, &[], || {
    cuda::use_device(0);
    let (id, mut communicators) = (unique_id(), [NO_HANDLE; 2]);
    ok((nccl().group_start)());
    for (rank, communicator) in communicators.iter_mut().enumerate() {
        ok((nccl().init_plain)(communicator, 2, id, rank as i32));
    }
    assert_eq!((nccl().group_end)(), INVALID_USAGE);
    assert!(last_error().starts_with("Multiple Ranks are using the same GPU/Partition."), "{}", last_error());
});

test_in_child!(
    a_device_has_more_ranks_where_that_is_asked_for,
    Current,
    &[("NCCL_MULTI_RANK_GPU_ENABLE", "1")],
    || {
        cuda::use_device(0);
        let (id, mut communicators) = (unique_id(), [NO_HANDLE; 2]);
        ok((nccl().group_start)());
        for (rank, communicator) in communicators.iter_mut().enumerate() {
            ok((nccl().init_plain)(communicator, 2, id, rank as i32));
        }
        ok((nccl().group_end)());
    }
);

test_in_child!(making_and_using_do_not_go_into_one_group, Strict, &[], || {
    on_ranks(1, true, |rank| {
        let (at, mut other) = (upload(&[1.0f32]), NO_HANDLE);
        ok((nccl().group_start)());
        ok(rank.all_reduce(at, 1));
        ok((nccl().init_plain)(&mut other, 1, unique_id(), 0));
        assert_eq!((nccl().group_end)(), INVALID_USAGE);
        ok((nccl().group_start)());
        ok((nccl().init_plain)(&mut other, 1, unique_id(), 0));
        ok(rank.all_reduce(at, 1));
        assert_eq!((nccl().group_end)(), INVALID_USAGE);
    });
});

test_in_child!(split_orders_by_key_and_rank, Current, &[], || {
    on_ranks(4, false, |rank| {
        // Ranks 0, 2 and 3 are of one color, 3 comes first; rank 1 is of none.
        let color = if rank.rank == 1 { -1 } else { 5 };
        let mut child = rank.communicator;
        let result = (nccl().split)(
            rank.communicator,
            color,
            if rank.rank == 3 { 0 } else { 1 },
            &mut child,
            std::ptr::null_mut(),
        );
        // NCCL answers success, and writes the child later.
        ok(result);
        assert!(is_nccl() || (child, async_error(rank.communicator)) == (NO_HANDLE, IN_PROGRESS));
        rank.called(result);
        if rank.rank == 1 {
            assert_eq!(child, NO_HANDLE);
        } else {
            let mut number = -1;
            ok((nccl().user_rank)(child, &mut number));
            assert_eq!(number, [1, -1, 2, 0][rank.rank as usize]);
            let (from, to) = (upload(&[rank.rank]), allocate(12));
            ok(finished(child, (nccl().all_gather)(from, to, 1, INT32, child, rank.stream)));
            cuda::synchronize(rank.stream);
            assert_eq!(download::<i32>(to, 3), [3, 0, 2]);
            ok(finished(child, (nccl().finalize)(child)));
            ok((nccl().destroy)(child));
        }
        rank.end();
    });
    assert_eq!(live(c"communicator"), 0);
    no_violations();
});

test_in_child!(a_shared_split_ends_with_its_parent, Current, &[], || {
    on_ranks(2, true, |rank| {
        let (mut config, mut shared, mut own) = (Config::new(true), NO_HANDLE, NO_HANDLE);
        ok((nccl().split)(rank.communicator, 0, 0, &mut own, &mut config));
        config.split_share = 1;
        ok((nccl().split)(rank.communicator, 0, 0, &mut shared, &mut config));
        rank.abort();
        assert_eq!((async_error(own), async_error(shared)), (0, 0));
        ok((nccl().abort)(own));
        ok((nccl().abort)(shared));
    });
    assert_eq!(live(c"communicator"), 0);
});

test_in_child!(windows_are_registered_together, Current, &[], || {
    on_ranks(2, false, |rank| {
        let (mut memory, mut window, mut none) = (0, NO_HANDLE, rank.stream);
        ok((newer().memory_allocate)(&mut memory, 10_000));
        assert_eq!(memory % 4096, 0);
        let register = |at: u64, bytes: usize, window: &mut Handle| {
            finished(rank.communicator, (newer().window_register)(rank.communicator, at, bytes, window, 1))
        };
        ok((newer().window_register)(rank.communicator, memory, 8192, &mut window, 1));
        // NCCL answers success, and writes the window later.
        assert!(is_nccl() || (window, async_error(rank.communicator)) == (NO_HANDLE, IN_PROGRESS));
        ok(finished(rank.communicator, IN_PROGRESS));
        assert_ne!(window, NO_HANDLE);
        no_violations();
        rank.done(rank.all_reduce(memory, 10));
        if is_nccl() {
            return;
        }
        assert_eq!(register(memory + 4096, 4096, &mut none), INVALID_USAGE);
        violation("registered twice");
        assert_eq!((newer().memory_free)(memory), INVALID_USAGE);
        violation("freed in which a window is registered");
        ok((newer().window_deregister)(rank.communicator, window));
        assert_eq!((newer().window_deregister)(rank.communicator, window), INVALID_ARGUMENT);
        ok((newer().memory_free)(memory));
        rank.end();
    });
    assert_eq!((live(c"window"), live(c"memory"), live(c"communicator")), (0, 0, 0));
});

test_in_child!(a_mistake_with_a_window_lasts_on_who_does_not_block, Current, &[], || {
    for blocking in [true, false] {
        on_ranks(2, blocking, move |rank| {
            let (mut memory, mut window) = (0, NO_HANDLE);
            ok((newer().memory_allocate)(&mut memory, 10_000));
            let mut register = |at| {
                let result = (newer().window_register)(rank.communicator, at, 4096, &mut window, 1);
                finished(rank.communicator, result)
            };
            assert_eq!(register(memory + 1), INVALID_ARGUMENT);
            assert_eq!(async_error(rank.communicator), if blocking { 0 } else { INVALID_ARGUMENT });
            assert_eq!(register(memory), if blocking { 0 } else { INVALID_ARGUMENT });
            rank.abort();
        });
        // Memory that is not ncclMemAlloc's.
        on_ranks(2, blocking, move |rank| {
            let (plain, mut window) = (allocate(20_000).next_multiple_of(4096), NO_HANDLE);
            let result = (newer().window_register)(rank.communicator, plain, 4096, &mut window, 1);
            assert_eq!(finished(rank.communicator, result), UNHANDLED_CUDA_ERROR);
            rank.abort();
        });
    }
    no_violations();
});

test_in_child!(windows_must_be_alike, Strict, &[], || {
    on_ranks(2, true, |rank| {
        let (mut memory, mut window) = (0, NO_HANDLE);
        ok((newer().memory_allocate)(&mut memory, 8192));
        let offset = 4096 * rank.rank as u64;
        let result = (newer().window_register)(rank.communicator, memory + offset, 4096, &mut window, 1);
        assert_eq!(result, INVALID_ARGUMENT);
    });
    violation("different sizes, offsets");
});

test_in_child!(a_window_is_bound_in_the_free_space_of_the_rank, Strict, &[], || {
    on_ranks(2, true, |rank| {
        let register = || {
            let (mut memory, mut window) = (0, NO_HANDLE);
            ok((newer().memory_allocate)(&mut memory, 4096));
            ok((newer().window_register)(rank.communicator, memory, 4096, &mut window, 1));
            window
        };
        let (first, second) = (register(), register());
        ok((newer().window_deregister)(rank.communicator, first));
        let third = register();
        no_violations();
        BARRIER.wait();
        // Each rank has another gap.
        ok((newer().window_deregister)(rank.communicator, if rank.rank == 0 { second } else { third }));
        register();
    });
    violation("different offsets");
});

test_in_child!(null_windows, Current, &[("FAKE_NCCL", "null_window")], || {
    on_ranks(2, true, |rank| {
        let (mut memory, mut window) = (0, rank.stream);
        ok((newer().memory_allocate)(&mut memory, 4096));
        ok((newer().window_register)(rank.communicator, memory, 4096, &mut window, 1));
        assert_eq!(window, NO_HANDLE);
    });
    no_violations();
});

test_in_child!(abort_frees_ranks_that_hang, Current, &[], || {
    on_ranks(3, false, |rank| {
        let at = upload(&[1.0f32; 4]);
        // One rank's call differs, so all ranks wait; another rank has more work queued.
        let count = if rank.rank == 2 { 4 } else { 3 };
        rank.called(rank.all_reduce(at, count));
        rank.called((nccl().broadcast)(at, at, 4, FLOAT32, 0, rank.communicator, rank.stream));
        assert_eq!((cuda().stream_query)(rank.stream), cuda::NOT_READY);
        rank.abort();
        cuda::synchronize(rank.stream);
        assert_eq!(download::<f32>(at, 4), [1.0; 4]);
    });
    assert_eq!(live(c"communicator"), 0);
    no_violations();
});

test_in_child!(abort_frees_a_rank_whose_peers_never_come, Current, &[], || {
    cuda::use_device(0);
    let mut communicator = NO_HANDLE;
    assert_eq!((nccl().init)(&mut communicator, 2, unique_id(), 0, &mut Config::new(false)), IN_PROGRESS);
    assert_eq!(async_error(communicator), IN_PROGRESS);
    ok((nccl().abort)(communicator));
    // The first transfer between two ranks and the first collective of all wait on the host.
    for is_transfer in [true, false] {
        on_ranks(2, false, move |rank| {
            let at = upload(&[1f32]);
            if rank.rank == 0 {
                let result = match is_transfer {
                    true => (nccl().send)(at, 1, INT8, 1, rank.communicator, rank.stream),
                    false => rank.all_reduce(at, 1),
                };
                assert_eq!((result, async_error(rank.communicator)), (IN_PROGRESS, IN_PROGRESS));
            }
            rank.abort();
            cuda::synchronize(rank.stream);
        });
    }
    on_ranks(2, false, |rank| {
        // A transfer without a receiver, and a split that one rank does not call.
        let (mut child, at) = (NO_HANDLE, upload(&[1u8]));
        let send = || rank.called((nccl().send)(at, 1, INT8, 1, rank.communicator, rank.stream));
        if rank.rank == 1 {
            rank.done((nccl().receive)(at, 1, INT8, 0, rank.communicator, rank.stream));
        } else {
            send();
            send();
            ok((nccl().split)(rank.communicator, 0, 0, &mut child, std::ptr::null_mut()));
            assert_eq!(async_error(rank.communicator), IN_PROGRESS);
        }
        rank.abort();
        cuda::synchronize(rank.stream);
        if rank.rank == 0 {
            ok((nccl().abort)(child));
        }
    });
    assert_eq!(live(c"communicator"), 0);
    no_violations();
});

test_in_child!(the_child_of_a_failed_split_is_aborted_after_its_parent, Strict, &[], || {
    on_ranks(2, false, |rank| {
        let mut child = NO_HANDLE;
        if rank.rank == 0 {
            ok((nccl().split)(rank.communicator, 0, 0, &mut child, std::ptr::null_mut()));
            ok((nccl().group_start)());
            ok((nccl().abort)(rank.communicator));
            while async_error(rank.communicator) == IN_PROGRESS {
                std::thread::yield_now();
            }
            let child = child as usize;
            let early = std::thread::spawn(move || {
                cuda::use_device(0);
                (nccl().abort)(child as Handle)
            });
            ok(early.join().expect("no panic"));
            ok((nccl().group_end)());
        } else {
            rank.abort();
        }
    });
    assert_eq!(live(c"communicator"), 0);
    violation("rank 0: the child of a failed split is aborted before its parent");
});

/// Has a thread call all_reduce, which does not return by itself, and ends it on this thread. The
/// communicator is freed when the thread has come out, or before. Gives what all_reduce gives.
fn end_a_stuck_call(when_out: bool) -> i32 {
    let result = Arc::new(AtomicI32::new(0));
    let stuck = Arc::clone(&result);
    on_ranks(1, true, move |rank| {
        let (communicator, stream, at) = (rank.communicator as usize, rank.stream as usize, upload(&[1.0f32]));
        let thread = std::thread::spawn(move || {
            cuda::use_device(0);
            (nccl().all_reduce)(at, at, 1, FLOAT32, SUM, communicator as Handle, stream as Handle)
        });
        while !log().contains("ncclAllReduce") {
            std::thread::yield_now();
        }
        ok((nccl().group_start)());
        ok((nccl().abort)(rank.communicator));
        if !when_out {
            ok((nccl().group_end)());
        }
        stuck.store(thread.join().expect("no panic"), Ordering::SeqCst);
        if when_out {
            ok((nccl().group_end)());
        }
    });
    result.load(Ordering::SeqCst)
}

test_in_child!(
    an_abort_in_a_group_ends_a_call_that_blocks,
    Current,
    &[("FAKE_NCCL", "in_progress=ncclAllReduce:60000")],
    || {
        assert_eq!(end_a_stuck_call(true), INTERNAL_ERROR);
        assert_eq!(live(c"communicator"), 0);
        no_violations();
    }
);

test_in_child!(
    an_abort_frees_nothing_under_a_thread,
    Current,
    &[("FAKE_NCCL", "in_progress=ncclAllReduce:60000")],
    || {
        end_a_stuck_call(false);
        // The thread may have come out by itself, before the group ended.
        assert!(violations().iter().all(|text| text.contains("freed while a thread is inside")), "{:?}", violations());
    }
);

test_in_child!(an_older_abort_does_not_go_into_a_group, Old, &[], || {
    cuda::use_device(0);
    let mut communicator = NO_HANDLE;
    ok((nccl().init_plain)(&mut communicator, 1, unique_id(), 0));
    ok((nccl().group_start)());
    (nccl().abort)(communicator);
    violation("rank 0: ncclCommAbort: this does not go into a group");
});

test_in_child!(a_full_queue_keeps_the_caller, Current, &[("FAKE_NCCL", "fifo=2")], || {
    on_ranks(2, true, |rank| {
        let at = upload(&[1.0f32]);
        rank.done(rank.all_reduce(at, 1));
        if rank.rank == 1 {
            // Rank 0 is inside a third more, which waits for this rank.
            while log().matches("rank 0: ncclAllReduce").count() < 4 {
                std::thread::yield_now();
            }
            assert!(!log().contains("rank 0: ncclCommCount"));
        }
        for _ in 0..3 {
            ok(rank.all_reduce(at, 1));
        }
        let mut size = 0;
        ok((nccl().count)(rank.communicator, &mut size));
        cuda::synchronize(rank.stream);
        assert_eq!(download::<f32>(at, 1), [16.0]);
        rank.end();
    });
    no_violations();
});

test_in_child!(revoke_stops_what_runs, Current, &[], || {
    on_ranks(2, false, |rank| {
        let (at, mut child) = (upload(&[1.0f32]), NO_HANDLE);
        rank.done(rank.all_reduce(at, 1));
        if rank.rank == 0 {
            rank.called(rank.all_reduce(at, 1));
        }
        assert_eq!((newer().revoke)(rank.communicator, 1), INVALID_ARGUMENT);
        rank.called((newer().revoke)(rank.communicator, 0));
        cuda::synchronize(rank.stream);
        rank.called((nccl().split)(rank.communicator, 0, 0, &mut child, std::ptr::null_mut()));
        ok(finished(child, (nccl().all_reduce)(at, at, 1, FLOAT32, SUM, child, rank.stream)));
        cuda::synchronize(rank.stream);
        assert_eq!(download::<f32>(at, 1), [4.0]);
        no_violations();
        Barrier::wait(&BARRIER);
        if is_nccl() {
            return;
        }
        assert_eq!((nccl().finalize)(rank.communicator), INVALID_USAGE);
        violation("the communicator is revoked");
        ok((nccl().destroy)(rank.communicator));
    });
});

static BARRIER: std::sync::LazyLock<Barrier> = std::sync::LazyLock::new(|| Barrier::new(2));

test_in_child!(what_ends_is_not_used_again, Strict, &[], || {
    on_ranks(1, true, |rank| {
        let (at, mut number) = (upload(&[1.0f32]), 0);
        ok((nccl().finalize)(rank.communicator));
        assert_eq!(rank.all_reduce(at, 1), INVALID_USAGE);
        violation("rank 0: ncclAllReduce: the communicator is finalized");
        ok((nccl().destroy)(rank.communicator));
        assert_eq!(rank.all_reduce(at, 1), INVALID_ARGUMENT);
        violation("rank 0: ncclAllReduce: the communicator is gone");
        assert_eq!((nccl().destroy)(rank.communicator), INVALID_ARGUMENT);
        assert_eq!((nccl().abort)(rank.communicator), INVALID_ARGUMENT);
        assert_eq!((nccl().async_error)(rank.communicator, &mut number), INVALID_ARGUMENT);
        assert_eq!(violations().len(), 5);
    });
});

test_in_child!(the_end_waits_for_graphs, Current, &[], || {
    on_ranks(2, false, |rank| {
        let (at, mut graph) = (upload(&[1.0f32]), NO_HANDLE);
        ok((cuda().capture_begin)(rank.stream, 1));
        rank.called(rank.all_reduce(at, 1));
        ok((cuda().capture_end)(rank.stream, &mut graph));
        let result = (nccl().finalize)(rank.communicator);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!((result, async_error(rank.communicator)), (IN_PROGRESS, IN_PROGRESS));
        ok((cuda().graph_destroy)(graph));
        ok(finished(rank.communicator, result));
        ok((nccl().destroy)(rank.communicator));
    });
    no_violations();
});

test_in_child!(the_device_must_be_the_communicators, Strict, &[], || {
    on_ranks(1, true, |rank| {
        let at = upload(&[1.0f32]);
        cuda::use_device(1);
        assert_eq!(rank.all_reduce(at, 1), INVALID_USAGE);
        violation("the current device is not the communicator's");
    });
});

test_in_child!(one_group_has_one_stream_for_a_communicator, Strict, &[], || {
    on_ranks(1, true, |rank| {
        let at = upload(&[1.0f32]);
        ok((nccl().group_start)());
        ok(rank.all_reduce(at, 1));
        ok((nccl().all_reduce)(at, at, 1, FLOAT32, SUM, rank.communicator, cuda::stream()));
        assert_eq!((nccl().group_end)(), INVALID_USAGE);
        violation("calls on two streams in one group");
    });
});

test_in_child!(
    a_communicator_in_progress_is_left_alone,
    Current,
    &[("FAKE_NCCL", "in_progress=ncclAllReduce:50")],
    || {
        on_ranks(1, false, |rank| {
            let (at, mut size) = (upload(&[1.0f32]), 0);
            let result = rank.all_reduce(at, 1);
            assert_eq!(result, IN_PROGRESS);
            assert_eq!((nccl().count)(rank.communicator, &mut size), INVALID_USAGE);
            violation("rank 0: ncclCommCount: the communicator is in progress");
            rank.done(result);
            ok((nccl().count)(rank.communicator, &mut size));
            rank.end();
        });
    }
);

test_in_child!(a_communicator_has_one_thread_at_a_time, Current, &[("FAKE_NCCL", "stall=ncclCommCount:1")], || {
    on_ranks(1, true, |rank| {
        let (communicator, barrier) = (rank.communicator as usize, Arc::new(Barrier::new(2)));
        let there = barrier.clone();
        std::thread::spawn(move || {
            there.wait();
            let mut size = 0;
            (nccl().count)(communicator as Handle, &mut size)
        });
        barrier.wait();
        while !log().contains("ncclCommCount") {
            std::thread::yield_now();
        }
        let mut number = 0;
        assert_eq!((nccl().user_rank)(rank.communicator, &mut number), INVALID_USAGE);
        violation("rank 0: ncclCommUserRank: another thread is inside");
        rank.abort();
        violation("rank 0: ncclCommAbort: another thread is inside");
    });
});
