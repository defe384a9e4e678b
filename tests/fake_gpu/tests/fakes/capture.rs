//! Capture and graphs.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::child::test_in_child;
use crate::cuda::*;

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

fn begin(stream: Handle) {
    ok((cuda().capture_begin)(stream, THREAD_LOCAL));
}

fn end(stream: Handle) -> Handle {
    let mut graph = NO_HANDLE;
    ok((cuda().capture_end)(stream, &mut graph));
    graph
}

/// The end of a capture that went wrong.
fn end_badly(stream: Handle) -> i32 {
    let mut graph = stream;
    let result = (cuda().capture_end)(stream, &mut graph);
    assert_eq!(graph, NO_HANDLE);
    assert_eq!(status(stream), 0);
    result
}

fn status(stream: Handle) -> i32 {
    let mut status = -1;
    ok((cuda().capture_status)(stream, &mut status));
    status
}

fn instantiate(graph: Handle) -> Handle {
    let mut exec = NO_HANDLE;
    ok((cuda().graph_instantiate)(&mut exec, graph, 0));
    ok((cuda().graph_destroy)(graph));
    exec
}

test_in_child!(what_is_captured_runs_with_every_launch, Current, &[], || {
    use_device(0);
    let (stream, function) = (stream(), fill_kernel());
    let (address, to) = (allocate(8), pinned(8));
    begin(stream);
    assert_eq!(status(stream), 1);
    ok(launch_fill(function, stream, address, 2, 7));
    ok((cuda().set_on)(address, 1, 1, stream));
    ok((cuda().copy_to_host_on)(to.as_mut_ptr().cast(), address, 8, stream));
    let graph = end(stream);
    synchronize(stream);
    assert_eq!(download::<u8>(address, 8), [0xcd; 8]);
    let mut nodes = 0;
    ok((cuda().graph_nodes)(graph, std::ptr::null_mut(), &mut nodes));
    assert_eq!(nodes, 3);
    let exec = instantiate(graph);
    for _ in 0..3 {
        to.fill(0);
        ok((cuda().graph_launch)(exec, stream));
        synchronize(stream);
        assert_eq!(to, [1, 0, 0, 0, 7, 0, 0, 0]);
    }
    ok((cuda().graph_launch)(exec, stream));
    ok((cuda().graph_exec_destroy)(exec));
    assert_eq!((cuda().graph_launch)(exec, stream), INVALID_HANDLE);
    synchronize(stream);
});

/// The number of the stream's capture, and its graph.
fn info(stream: Handle) -> (u64, Handle) {
    let (mut status, mut id, mut graph) = (-1, 0, NO_HANDLE);
    let (none, no_count) = (std::ptr::null_mut(), std::ptr::null_mut());
    ok((cuda().capture_info)(stream, &mut status, &mut id, &mut graph, none, no_count));
    assert_eq!(status != 0, graph != NO_HANDLE);
    (id, graph)
}

/// Has the graph keep an object whose end adds one to the count.
fn keep(graph: Handle, ended: &AtomicU32) {
    extern "C" fn end(ended: *mut c_void) {
        // SAFETY: `keep` has made the pointer, of a count that lives as long as its test.
        unsafe { &*ended.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
    }
    let (mut object, value) = (NO_HANDLE, std::ptr::from_ref(ended).cast_mut().cast());
    ok((cuda().user_object)(&mut object, value, end, 1, 1));
    ok((cuda().graph_retain)(graph, object, 1, 1));
    assert_eq!((cuda().graph_retain)(graph, object, 1, 1), INVALID_HANDLE);
}

test_in_child!(what_a_graph_keeps_ends_with_the_last_launch, Current, &[], || {
    use_device(0);
    let (stream, gate, address, ended) = (stream(), Gate::new(), allocate(1), AtomicU32::new(0));
    let count = || ended.load(Ordering::Relaxed);
    assert_eq!(info(stream), (0, NO_HANDLE));
    begin(stream);
    let (first, captured) = info(stream);
    ok((cuda().set_on)(address, 1, 1, stream));
    keep(captured, &ended);
    let graph = end(stream);
    assert_eq!(graph, captured);
    let exec = instantiate(graph);
    assert_eq!(count(), 0);
    gate.close(stream);
    ok((cuda().graph_launch)(exec, stream));
    ok((cuda().graph_exec_destroy)(exec));
    assert_eq!(count(), 0);
    gate.open();
    synchronize(stream);
    assert_eq!(count(), 1);

    // A capture that is invalidated has no graph.
    begin(stream);
    let (second, captured) = info(stream);
    assert_ne!(first, second);
    keep(captured, &ended);
    assert_eq!((cuda().stream_synchronize)(stream), CAPTURE_UNSUPPORTED);
    assert_eq!(end_badly(stream), CAPTURE_INVALIDATED);
    assert_eq!(count(), 2);
});

test_in_child!(launches_of_one_graph_are_in_order, Current, &[], || {
    use_device(0);
    let (first, second, gate, address) = (stream(), stream(), Gate::new(), allocate(1));
    begin(first);
    ok((cuda().set_on)(address, 1, 1, first));
    let exec = instantiate(end(first));
    gate.close(first);
    ok((cuda().graph_launch)(exec, first));
    ok((cuda().graph_launch)(exec, second));
    assert_eq!((cuda().stream_query)(second), NOT_READY);
    gate.open();
    synchronize(second);
    synchronize(first);
});

test_in_child!(events_fork_and_join, Current, &[], || {
    use_device(0);
    let (origin, side, fork, join) = (stream(), stream(), event(), event());
    let address = allocate(1);
    begin(origin);
    ok((cuda().event_record)(fork, origin));
    ok((cuda().stream_wait)(side, fork, 0));
    assert_eq!(status(side), 1);
    ok((cuda().set_on)(address, 1, 1, side));
    ok((cuda().event_record)(join, side));
    ok((cuda().stream_wait)(origin, join, 0));
    ok((cuda().set_on)(address, 2, 1, origin));
    let exec = instantiate(end(origin));
    assert_eq!(status(side), 0);
    assert_eq!((cuda().event_query)(fork), CAPTURED_EVENT);
    assert_eq!((cuda().event_synchronize)(join), CAPTURED_EVENT);
    assert_eq!((cuda().stream_wait)(side, fork, 0), CAPTURED_EVENT);
    ok((cuda().graph_launch)(exec, origin));
    synchronize(origin);
    assert_eq!(download::<u8>(address, 1), [2]);
    ok((cuda().event_record)(fork, origin));
    ok((cuda().event_synchronize)(fork));
});

test_in_child!(a_fork_must_be_joined, Current, &[], || {
    use_device(0);
    let (origin, side, fork, join) = (stream(), stream(), event(), event());
    let address = allocate(1);
    // With nothing on it, with something, and with something after the join.
    for steps in 0..3 {
        begin(origin);
        ok((cuda().event_record)(fork, origin));
        ok((cuda().stream_wait)(side, fork, 0));
        if steps > 0 {
            ok((cuda().set_on)(address, 1, 1, side));
        }
        if steps > 1 {
            ok((cuda().event_record)(join, side));
            ok((cuda().stream_wait)(origin, join, 0));
            ok((cuda().set_on)(address, 1, 1, side));
        }
        let mut graph = NO_HANDLE;
        assert_eq!((cuda().capture_end)(side, &mut graph), CAPTURE_UNMATCHED);
        assert_eq!(end_badly(origin), CAPTURE_UNJOINED);
    }
});

test_in_child!(what_does_not_go_into_a_capture_ends_it, Current, &[], || {
    use_device(0);
    let (stream, other, plain) = (stream(), stream(), event());
    let (address, exec) = (allocate(1), {
        begin(stream);
        instantiate(end(stream))
    });
    ok((cuda().event_record)(plain, other));
    let mut pageable = 0u8;
    let pageable = std::ptr::from_mut(&mut pageable).cast();
    let attempts: [(i32, &dyn Fn() -> i32); 7] = [
        (CAPTURE_UNSUPPORTED, &|| (cuda().stream_synchronize)(stream)),
        (CAPTURE_UNSUPPORTED, &|| (cuda().stream_query)(stream)),
        (CAPTURE_UNSUPPORTED, &|| (cuda().copy_to_host_on)(pageable, address, 1, stream)),
        (CAPTURE_UNSUPPORTED, &|| (cuda().copy_to_device_on)(address, pageable, 1, stream)),
        (CAPTURE_UNSUPPORTED, &|| (cuda().graph_launch)(exec, stream)),
        (CAPTURE_UNSUPPORTED, &|| (cuda().stream_destroy)(stream)),
        (CAPTURE_ISOLATION, &|| (cuda().stream_wait)(stream, plain, 0)),
    ];
    for (number, (error, attempt)) in attempts.iter().enumerate() {
        begin(stream);
        assert_eq!(attempt(), *error, "attempt {number}");
        assert_eq!(status(stream), 2);
        assert_eq!((cuda().set_on)(address, 0, 1, stream), CAPTURE_INVALIDATED);
        assert_eq!(end_badly(stream), CAPTURE_INVALIDATED);
    }
});

test_in_child!(captures_stay_apart, Current, &[], || {
    use_device(0);
    let (first, second, event) = (stream(), stream(), event());
    begin(first);
    begin(second);
    ok((cuda().event_record)(event, first));
    assert_eq!((cuda().stream_wait)(second, event, 0), CAPTURE_MERGE);
    assert_eq!(end_badly(second), CAPTURE_INVALIDATED);
    assert_eq!(end_badly(first), CAPTURE_INVALIDATED);
});

test_in_child!(unsafe_calls_end_a_capture_of_the_thread, Current, &[], || {
    use_device(0);
    let (stream, event, address, page) = (stream(), event(), allocate(1), pinned(1).as_mut_ptr());
    let mut made = (0u64, NO_HANDLE);
    let made = &raw mut made;
    // SAFETY: the tuple outlives the calls.
    let (number, handle) = unsafe { (&raw mut (*made).0, &raw mut (*made).1) };
    let attempts: [&dyn Fn() -> i32; 8] = [
        &|| (cuda().memory_allocate)(number, 1),
        &|| (cuda().memory_free)(address),
        &|| (cuda().pinned_allocate)(handle, 1, 0),
        &|| (cuda().pinned_free)(page.cast()),
        &|| (cuda().module_load)(handle, c"FAKE CUBIN 13\n".as_ptr()),
        &|| (cuda().event_query)(event),
        &|| (cuda().set)(address, 0, 1),
        &|| (cuda().copy_to_host)(page.cast(), address, 1),
    ];
    for (number, attempt) in attempts.iter().enumerate() {
        begin(stream);
        assert_eq!(attempt(), CAPTURE_UNSUPPORTED, "attempt {number}");
        assert_eq!(end_badly(stream), CAPTURE_INVALIDATED);
    }
    // A thread may allow itself unsafe calls.
    begin(stream);
    let mut mode = RELAXED;
    ok((cuda().capture_mode)(&mut mode));
    assert_eq!(mode, GLOBAL);
    ok((cuda().memory_allocate)(number, 1));
    ok((cuda().capture_mode)(&mut mode));
    assert_eq!(mode, RELAXED);
    end(stream);
    // A thread-local capture forbids nothing on other threads; a global one does.
    for (mode, expected) in [(THREAD_LOCAL, 0), (GLOBAL, CAPTURE_UNSUPPORTED), (RELAXED, 0)] {
        ok((cuda().capture_begin)(stream, mode));
        let other = std::thread::spawn(|| {
            use_device(0);
            let mut address = 0;
            (cuda().memory_allocate)(&mut address, 1)
        });
        assert_eq!(other.join().expect("no panic"), expected, "mode {mode}");
        let mut graph = NO_HANDLE;
        assert_eq!((cuda().capture_end)(stream, &mut graph), if expected == 0 { 0 } else { CAPTURE_INVALIDATED });
    }
});

test_in_child!(no_thread_synchronizes_a_context_with_a_captured_stream, Current, &[], || {
    use_device(0);
    let stream = stream();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        ok((cuda().context_synchronize)());
        ok((cuda().capture_begin)(stream, THREAD_LOCAL));
        let other = std::thread::spawn(move || {
            use_device(0);
            let mut mode = mode;
            ok((cuda().capture_mode)(&mut mode));
            (cuda().context_synchronize)()
        });
        assert_eq!(other.join().expect("no panic"), CAPTURE_UNSUPPORTED, "mode {mode}");
        assert_eq!(end_badly(stream), CAPTURE_INVALIDATED);
        // Another context is another matter.
        begin(stream);
        use_device(1);
        ok((cuda().context_synchronize)());
        use_device(0);
        ok((cuda().graph_destroy)(end(stream)));
    }
});

test_in_child!(captures_begin_and_end_as_they_should, Current, &[], || {
    use_device(0);
    let (stream, mut graph, mut blocking) = (stream() as usize, NO_HANDLE, NO_HANDLE);
    assert_eq!((cuda().capture_begin)(NO_HANDLE, THREAD_LOCAL), CAPTURE_UNSUPPORTED);
    assert_eq!((cuda().capture_end)(stream as Handle, &mut graph), ILLEGAL_STATE);
    begin(stream as Handle);
    assert_eq!((cuda().capture_begin)(stream as Handle, THREAD_LOCAL), ILLEGAL_STATE);
    let other = std::thread::spawn(move || {
        use_device(0);
        let mut graph = NO_HANDLE;
        (cuda().capture_end)(stream as Handle, &mut graph)
    });
    assert_eq!(other.join().expect("no panic"), CAPTURE_WRONG_THREAD);
    // A capture on a blocking stream forbids the default stream. One on a non-blocking stream does
    // not.
    synchronize(NO_HANDLE);
    end(stream as Handle);
    ok((cuda().stream_create)(&mut blocking, 0));
    begin(blocking);
    assert_eq!((cuda().stream_synchronize)(NO_HANDLE), CAPTURE_IMPLICIT);
    let mut graph = blocking;
    assert_eq!((cuda().capture_end)(blocking, &mut graph), CAPTURE_INVALIDATED);
    assert_eq!(graph, NO_HANDLE);
});

test_in_child!(a_graph_records_and_waits_for_events_of_each_launch, Current, &[], || {
    use_device(0);
    let (origin, other, before, after) = (stream(), stream(), event(), event());
    let address = allocate(1);
    assert_eq!((cuda().stream_wait)(origin, before, 1), 401, "external waits are for graphs");
    begin(origin);
    ok((cuda().stream_wait)(origin, before, 1));
    ok((cuda().set_on)(address, 1, 1, origin));
    let (mut state, mut id, mut graph, mut node) = (0, 0, NO_HANDLE, origin);
    ok((cuda().capture_info)(origin, &mut state, &mut id, &mut graph, std::ptr::null_mut(), std::ptr::null_mut()));
    ok((cuda().graph_add_record)(&mut node, graph, std::ptr::null(), 0, after));
    let exec = instantiate(end(origin));
    for value in 2..5 {
        ok((cuda().set)(address, value, 1));
        let gate = Gate::new();
        gate.close(other);
        ok((cuda().event_record)(before, other));
        ok((cuda().graph_launch)(exec, origin));
        assert_eq!((cuda().event_query)(after), 600);
        assert_eq!(download::<u8>(address, 1), [value], "the graph waits for the event");
        gate.open();
        ok((cuda().event_synchronize)(after));
        assert_eq!(download::<u8>(address, 1), [1]);
    }
});

test_in_child!(a_stream_takes_over_what_another_depends_on, Current, &[], || {
    use_device(0);
    let (origin, side, through, fork, done) = (stream(), stream(), stream(), event(), event());
    let address = allocate(1);
    begin(origin);
    ok((cuda().event_record)(fork, origin));
    ok((cuda().stream_wait)(side, fork, 0));
    ok((cuda().capture_depends)(side, std::ptr::null_mut(), std::ptr::null(), 0, 1));
    ok((cuda().set_on)(address, 3, 1, side));
    ok((cuda().event_record)(done, side));
    ok((cuda().stream_wait)(through, done, 0));
    let (mut state, mut id, mut graph, mut nodes, mut count) = (0, 0, NO_HANDLE, std::ptr::null(), 0);
    ok((cuda().capture_info)(through, &mut state, &mut id, &mut graph, &mut nodes, &mut count));
    ok((cuda().capture_depends)(origin, nodes.cast_mut(), std::ptr::null(), count, 1));
    // It has recorded nothing, so there is nothing to join.
    ok((cuda().stream_destroy)(through));
    let exec = instantiate(end(origin));
    ok((cuda().graph_launch)(exec, origin));
    synchronize(origin);
    assert_eq!(download::<u8>(address, 1), [3]);
});
