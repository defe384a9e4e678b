//! Faults on demand.

use std::sync::mpsc;
use std::time::Duration;

use crate::child::test_in_child;
use crate::cuda::{self, Handle, NO_HANDLE, allocate, cuda, download, ok, upload};
use crate::nccl::*;

test_in_child!(
    the_drivers_nth_call,
    Current,
    &[("FAKE_CUDA_FAULTS", "cuMemAlloc_v2:2:2,cuStreamCreate:*:999")],
    || {
        cuda::use_device(0);
        let (mut address, mut stream) = (0, NO_HANDLE);
        allocate(1);
        assert_eq!((cuda().memory_allocate)(&mut address, 1), cuda::OUT_OF_MEMORY);
        allocate(1);
        for _ in 0..2 {
            assert_eq!((cuda().stream_create)(&mut stream, 0), 999);
        }
        assert_eq!(cuda::live(c"device memory"), 2);
    }
);

test_in_child!(
    nccls_nth_call_of_a_rank,
    Current,
    &[("FAKE_NCCL", "fail=ncclAllReduce:2:6:1,fail=ncclGroupStart:1:3")],
    || {
        assert_eq!((nccl().group_start)(), INTERNAL_ERROR);
        on_ranks(2, true, |rank| {
            let at = upload(&[1.0f32]);
            rank.done(rank.all_reduce(at, 1));
            let result = rank.all_reduce(at, 1);
            if rank.rank == 1 {
                assert_eq!(result, REMOTE_ERROR);
                // It lasts.
                assert_eq!(async_error(rank.communicator), REMOTE_ERROR);
                assert_eq!(rank.all_reduce(at, 1), REMOTE_ERROR);
            } else {
                ok(result);
            }
            rank.abort();
        });
        no_violations();
    }
);

test_in_child!(an_invalid_argument_is_forgiven, Current, &[("FAKE_NCCL", "fail=ncclAllReduce:1:4")], || {
    on_ranks(1, true, |rank| {
        let at = upload(&[1.0f32]);
        assert_eq!(rank.all_reduce(at, 1), INVALID_ARGUMENT);
        rank.done(rank.all_reduce(at, 1));
        rank.end();
    });
});

test_in_child!(a_failed_init, Current, &[("FAKE_NCCL", "fail=ncclCommInitRankConfig:1:2:1")], || {
    cuda::use_device(1);
    let mut communicator = NO_HANDLE;
    let mut init = || (nccl().init)(&mut communicator, 2, unique_id(), 1, &mut Config::new(false));
    assert_eq!(init(), SYSTEM_ERROR);
    assert_eq!(init(), IN_PROGRESS);
});

test_in_child!(a_failed_group_end, Current, &[("FAKE_NCCL", "fail=ncclGroupEnd:1:1")], || {
    on_ranks(1, true, |rank| {
        let at = upload(&[1.0f32]);
        ok((nccl().group_start)());
        ok(rank.all_reduce(at, 1));
        assert_eq!((nccl().group_end)(), UNHANDLED_CUDA_ERROR);
        ok((nccl().group_start)());
        ok((nccl().group_end)());
    });
});

test_in_child!(an_error_that_comes_later, Current, &[("FAKE_NCCL", "async_error=2:6:1")], || {
    on_ranks(2, false, |rank| {
        let at = upload(&[1.0f32]);
        rank.done(rank.all_reduce(at, 1));
        // The error may come before the answer is asked for.
        let result = finished(rank.communicator, rank.all_reduce(at, 1));
        assert!(result == 0 || (rank.rank == 1 && result == REMOTE_ERROR), "{result}");
        while rank.rank == 1 && async_error(rank.communicator) != REMOTE_ERROR {
            std::thread::yield_now();
        }
        assert_eq!((cuda().stream_query)(rank.stream), cuda::NOT_READY);
        rank.abort();
        cuda::synchronize(rank.stream);
        assert_eq!(download::<f32>(at, 1), [2.0]);
    });
});

test_in_child!(collectives_of_several_ranks_are_in_progress, Current, &[], || {
    on_ranks(2, false, |rank| {
        let at = upload(&[1.0f32]);
        for _ in 0..5 {
            let result = rank.all_reduce(at, 1);
            assert!(result == IN_PROGRESS || is_nccl(), "{result}");
            rank.done(result);
        }
        assert_eq!(download::<f32>(at, 1), [32.0]);
        rank.end();
    });
});

test_in_child!(one_rank_is_never_in_progress_with_a_collective, Current, &[], || {
    on_ranks(1, false, |rank| {
        let at = upload(&[1.0f32]);
        for _ in 0..9 {
            ok(rank.all_reduce(at, 1));
            assert_eq!(async_error(rank.communicator), 0);
        }
        rank.end();
    });
});

test_in_child!(who_never_is_in_progress, Current, &[("FAKE_NCCL", "never_in_progress")], || {
    let (mut communicator, at) = (NO_HANDLE, {
        cuda::use_device(0);
        upload(&[1.0f32])
    });
    ok((nccl().init)(&mut communicator, 1, unique_id(), 0, &mut Config::new(false)));
    for _ in 0..5 {
        ok((nccl().all_reduce)(at, at, 1, FLOAT32, SUM, communicator, NO_HANDLE));
    }
    ok((nccl().finalize)(communicator));
});

/// Calls on a thread that may never return.
fn never_returns(call: impl FnOnce() + Send + 'static, function: &str) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        call();
        let _ = sender.send(());
    });
    while !log().contains(function) {
        std::thread::yield_now();
    }
    // A call that returns takes microseconds. If it took longer, this would miss a fault, and never
    // fail without one.
    assert_eq!(receiver.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout));
}

test_in_child!(a_call_that_stalls, Current, &[("FAKE_NCCL", "stall=ncclAllReduce:1:0")], || {
    on_ranks(1, true, |rank| {
        let (communicator, stream, at) = (rank.communicator as usize, rank.stream as usize, upload(&[1.0f32]));
        never_returns(
            move || {
                cuda::use_device(0);
                (nccl().all_reduce)(at, at, 1, FLOAT32, SUM, communicator as Handle, stream as Handle);
            },
            "ncclAllReduce",
        );
    });
});

test_in_child!(an_abort_that_hangs, Current, &[("FAKE_NCCL", "hang_abort")], || {
    on_ranks(1, true, |rank| {
        let communicator = rank.communicator as usize;
        never_returns(move || ok((nccl().abort)(communicator as Handle)), "ncclCommAbort");
    });
});

test_in_child!(a_script_that_cannot_be_read, Current, &[("FAKE_NCCL", "fail=ncclAllReduce:1")], aborts "cannot be read", || {
    let mut version = 0;
    (nccl().version)(&mut version);
});

test_in_child!(a_call_after_the_end, Current, &[("FAKE_CUDA_EXIT_MS", "1000")], aborts "although the exit handler has begun", || {
    ok((cuda().init)(0));
    std::thread::spawn(|| loop {
        let mut count = 0;
        (cuda().device_count)(&mut count);
        std::thread::sleep(Duration::from_millis(1));
    });
});

test_in_child!(faults_that_cannot_be_read, Current, &[("FAKE_CUDA_FAULTS", "cuInit")], aborts "cannot be read", || {
    (cuda().init)(0);
});

test_in_child!(
    the_drivers_faults_are_nccls,
    Strict,
    &[("FAKE_CUDA_FAULTS", "cuLaunchHostFunc:1:2,fake_cuda_map:1:2")],
    || {
        on_ranks(1, true, |rank| {
            let (at, mut memory) = (upload(&[1.0f32]), 0);
            assert_eq!(rank.all_reduce(at, 1), UNHANDLED_CUDA_ERROR);
            assert_eq!((newer().memory_allocate)(&mut memory, 1), UNHANDLED_CUDA_ERROR);
        });
    }
);
