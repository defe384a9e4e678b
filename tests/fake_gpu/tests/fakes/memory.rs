//! Memory, contexts and devices.

use std::ffi::{CStr, c_int, c_void};

use crate::child::test_in_child;
use crate::cuda::*;

test_in_child!(nothing_goes_before_init_nor_without_a_context, Current, &[], || {
    let (mut count, mut address, mut context) = (0, 0, NO_HANDLE);
    assert_eq!((cuda().device_count)(&mut count), NOT_INITIALIZED);
    assert_eq!((cuda().memory_allocate)(&mut address, 1), NOT_INITIALIZED);
    ok((cuda().init)(0));
    ok((cuda().device_count)(&mut count));
    assert_eq!(count, 8);
    assert_eq!((cuda().memory_allocate)(&mut address, 1), INVALID_CONTEXT);
    assert_eq!((cuda().stream_synchronize)(NO_HANDLE), INVALID_CONTEXT);
    assert_eq!((cuda().context_retain)(&mut context, 8), 101);
    assert_eq!((cuda().context_set)(0x1234 as Handle), INVALID_CONTEXT);
    let context = use_device(3);
    ok((cuda().context_device)(&mut count));
    assert_eq!(count, 3);
    ok((cuda().context_push)(context));
    ok((cuda().context_set)(NO_HANDLE));
    let mut current = NO_HANDLE;
    ok((cuda().context_get)(&mut current));
    assert_eq!(current, context);
    ok((cuda().context_pop)(&mut current));
    assert_eq!((cuda().context_pop)(&mut current), INVALID_CONTEXT);
});

test_in_child!(a_context_ends_with_its_last_release, Current, &[], || {
    use_device(0);
    let (stream, event) = (stream(), event());
    use_device(0);
    assert_eq!(live(c"context"), 1);
    ok((cuda().context_release)(0));
    synchronize(stream);
    ok((cuda().context_release)(0));
    assert_eq!(live(c"context"), 0);
    assert_eq!((cuda().stream_synchronize)(NO_HANDLE), INVALID_CONTEXT);
    assert_eq!((cuda().context_release)(0), INVALID_CONTEXT);
    use_device(0);
    assert_eq!((cuda().stream_synchronize)(stream), INVALID_HANDLE);
    assert_eq!((cuda().event_query)(event), INVALID_HANDLE);
});

test_in_child!(
    devices_are_as_told,
    Current,
    &[("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_SM", "86"), ("FAKE_CUDA_MEMORY", "1000")],
    || {
        use_device(1);
        let (mut count, mut major, mut minor, mut free, mut total) = (0, 0, 0, 0, 0);
        ok((cuda().device_count)(&mut count));
        ok((cuda().device_attribute)(&mut major, 75, 1));
        ok((cuda().device_attribute)(&mut minor, 76, 1));
        assert_eq!((count, major, minor), (2, 8, 6));
        let address = allocate(600);
        ok((cuda().memory_info)(&mut free, &mut total));
        assert_eq!((free, total), (400, 1000));
        let mut more = 0;
        assert_eq!((cuda().memory_allocate)(&mut more, 401), OUT_OF_MEMORY);
        ok((cuda().memory_free)(address));
        allocate(1000);
        assert_eq!((cuda().device_get)(&mut count, 2), 101);
    }
);

test_in_child!(memory_is_fresh_bounded_and_counted, Current, &[], || {
    use_device(0);
    let address = allocate(100);
    assert_eq!(download::<u8>(address, 100), [0xcd; 100]);
    let mut host = [0u8; 101];
    let host = host.as_mut_ptr().cast::<c_void>();
    for (at, bytes) in
        [(address, 101), (address + 99, 2), (address - 1, 1), (address + 100, 1), (16, 1), (host as u64, 1)]
    {
        assert_eq!((cuda().copy_to_host)(host, at, bytes), INVALID_VALUE);
        assert_eq!((cuda().copy_to_device)(at, host, bytes), INVALID_VALUE);
        assert_eq!((cuda().set)(at, 0, bytes), INVALID_VALUE);
        assert_eq!((cuda().set_on)(at, 0, bytes, NO_HANDLE), INVALID_VALUE);
        assert_eq!((cuda().copy_on)(at, address, bytes, NO_HANDLE), INVALID_VALUE);
        assert_eq!((cuda().copy_on)(address, at, bytes, NO_HANDLE), INVALID_VALUE);
    }
    // The host side of a copy has to be in host memory.
    assert_eq!((cuda().copy_to_host)(address as Handle, address, 1), INVALID_VALUE);
    let mut unused = 0;
    assert_eq!((cuda().memory_allocate)(&mut unused, 0), INVALID_VALUE);
    assert_eq!((cuda().memory_free)(address + 1), INVALID_VALUE);
    assert_eq!((cuda().pinned_free)(address as Handle), INVALID_VALUE);
    assert_eq!(live(c"device memory"), 1);
    ok((cuda().memory_free)(address));
    assert_eq!(live(c"device memory"), 0);
    assert_eq!((cuda().memory_free)(address), INVALID_VALUE);
    assert_eq!((cuda().set)(address, 0, 1), INVALID_VALUE);
    let pinned = pinned(3);
    assert_eq!(live(c"pinned memory"), 1);
    ok((cuda().pinned_free)(pinned.as_mut_ptr().cast()));
    assert_eq!(live(c"pinned memory"), 0);
});

test_in_child!(everything_made_is_counted, Current, &[], || {
    use_device(0);
    let kinds: [&CStr; 5] = [c"stream", c"event", c"module", c"graph", c"graph exec"];
    let all = |expected: usize| assert!(kinds.iter().all(|kind| live(kind) == expected));
    all(0);
    let (stream, event) = (stream(), event());
    let (mut module, mut graph, mut exec) = (NO_HANDLE, NO_HANDLE, NO_HANDLE);
    ok((cuda().module_load)(&mut module, c"FAKE CUBIN 13\n".as_ptr()));
    ok((cuda().capture_begin)(stream, 1));
    ok((cuda().capture_end)(stream, &mut graph));
    ok((cuda().graph_instantiate)(&mut exec, graph, 0));
    all(1);
    ok((cuda().stream_destroy)(stream));
    ok((cuda().event_destroy)(event));
    ok((cuda().module_unload)(module));
    ok((cuda().graph_destroy)(graph));
    ok((cuda().graph_exec_destroy)(exec));
    all(0);
    assert_eq!((cuda().call_count)(c"cuModuleLoadData".as_ptr()), 1);
    assert_eq!((cuda().call_count)(c"cuModuleLoadDataEx".as_ptr()), 0);
});

test_in_child!(addresses_tell_what_they_are, Current, &[], || {
    use_device(1);
    let (address, pinned) = (allocate(8), pinned(8).as_ptr() as u64);
    let attribute = |number: i32, address: u64| {
        let mut value = 0u64;
        let result = (cuda().pointer_attribute)(std::ptr::from_mut(&mut value).cast(), number, address);
        (result, value)
    };
    assert_eq!(attribute(2, address + 7), (0, 2));
    assert_eq!(attribute(2, pinned), (0, 1));
    assert_eq!(attribute(9, address), (0, 1));
    assert_eq!(attribute(11, address + 3), (0, address));
    assert_eq!(attribute(12, address + 3), (0, 8));
    assert_eq!(attribute(2, address + 8).0, INVALID_VALUE);
    assert_eq!(attribute(2, &raw const attribute as u64).0, INVALID_VALUE);
});

test_in_child!(a_late_write_is_seen_at_the_end, Current, &[], aborts "was written to after the memory was freed", || {
    use_device(0);
    let (stream, function, address) = (stream(), fill_kernel(), allocate(4));
    ok((cuda().memory_free)(address));
    ok(launch_fill(function, stream, address, 1, 5));
    synchronize(stream);
});

test_in_child!(memory_is_freed_after_the_work_of_all_streams, Current, &[], || {
    use_device(0);
    let (stream, gate, function, address) = (stream(), Gate::new(), fill_kernel(), allocate(4));
    gate.close(stream);
    ok(launch_fill(function, stream, address, 1, 5));
    let other = std::thread::spawn(move || {
        use_device(0);
        ok((cuda().memory_free)(address));
    });
    while (cuda().call_count)(c"cuMemFree_v2".as_ptr()) == 0 {
        std::thread::yield_now();
    }
    assert!(!other.is_finished());
    gate.open();
    other.join().expect("no panic");
    assert_eq!((cuda().stream_query)(stream), 0);
});

test_in_child!(memory_with_queued_copies_is_not_freed, Current, &[], aborts "freed while a queued operation names it", || {
    use_device(0);
    let (stream, gate, address) = (stream(), Gate::new(), allocate(4));
    gate.close(stream);
    ok((cuda().set_on)(address, 0, 4, stream));
    (cuda().memory_free)(address);
});

test_in_child!(memory_of_a_queued_graph_is_not_freed, Current, &[], aborts "freed while a queued operation names it", || {
    use_device(0);
    let (stream, gate, address) = (stream(), Gate::new(), allocate(4));
    let (mut graph, mut exec) = (NO_HANDLE, NO_HANDLE);
    ok((cuda().capture_begin)(stream, 1));
    ok((cuda().set_on)(address, 0, 4, stream));
    ok((cuda().capture_end)(stream, &mut graph));
    ok((cuda().graph_instantiate)(&mut exec, graph, 0));
    gate.close(stream);
    ok((cuda().graph_launch)(exec, stream));
    ok((cuda().stream_destroy)(stream));
    (cuda().memory_free)(address);
});

unsafe extern "C" {
    safe fn _exit(status: c_int) -> !;
}

test_in_child!(a_late_write_is_seen_when_much_was_freed, Current, &[], aborts "byte 8 of 16", || {
    use_device(0);
    let (stream, address) = (stream(), allocate(16));
    ok((cuda().memory_free)(address));
    ok(launch_fill(fill_kernel(), stream, address + 8, 1, 5));
    synchronize(stream);
    for _ in 0..2 {
        ok((cuda().memory_free)(allocate(64 << 20)));
    }
    // The library finds the mistake before this line, which would end the process with success.
    _exit(0);
});

test_in_child!(functions_are_found_by_name, Current, &[], || {
    let (mut function, mut name, mut status) = (NO_HANDLE, std::ptr::null(), -1);
    ok((cuda().proc_address)(c"cuMemAlloc".as_ptr(), &mut function, 13000, 0, &mut status));
    assert_eq!((function, status), (cuda().memory_allocate as Handle, 0));
    assert_eq!((cuda().proc_address)(c"cuNothing".as_ptr(), &mut function, 13000, 0, &mut status), NOT_FOUND);
    assert_eq!(status, 1);
    ok((cuda().error_name)(907, &mut name));
    // SAFETY: the driver gives a constant text.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_CAPTURED_EVENT");
    let mut version = 0;
    ok((cuda().driver_version)(&mut version));
    assert_eq!(version, 13000);
});

/// The granularity of virtual memory.
const PIECE: usize = 2 << 20;
/// Memory of device 1, which can be exported as a file.
const ON_DEVICE_1: Properties = Properties([1, 1, 1, 1], [0; 2]);

/// Maps memory at an address of its own, with access.
fn map(handle: u64) -> u64 {
    let mut address = 0;
    ok((cuda().virtual_reserve)(&mut address, PIECE, 0, 0, 0));
    ok((cuda().virtual_map)(address, PIECE, 0, handle, 0));
    ok((cuda().virtual_access)(address, PIECE, &[1, 1, 3], 1));
    address
}

test_in_child!(virtual_memory_is_the_same_wherever_it_is_mapped, Current, &[], || {
    use_device(1);
    use_device(0);
    let (mut handle, mut file, mut imported, mut ordinal) = (0, -1, 0, -1);
    assert_eq!((cuda().virtual_create)(&mut handle, PIECE + 1, &ON_DEVICE_1, 0), 1);
    ok((cuda().virtual_create)(&mut handle, PIECE, &ON_DEVICE_1, 0));
    ok((cuda().virtual_export)(&mut file, handle, 1, 0));
    ok((cuda().virtual_import)(&mut imported, file as isize, 1));
    let (first, second) = (map(handle), map(imported));
    ok((cuda().set)(first, 7, PIECE));
    assert_eq!(download::<u8>(second + 100, 4), [7; 4]);
    ok((cuda().pointer_attribute)((&raw mut ordinal).cast(), 9, second));
    assert_eq!(ordinal, 1);
    assert_eq!((cuda().virtual_map)(first, PIECE, 0, imported, 0), 1, "something is mapped there");
    ok((cuda().virtual_release)(handle));
    ok((cuda().virtual_unmap)(first, PIECE));
    assert_eq!((cuda().set)(first, 1, 1), 1, "it is no memory any more");
    ok((cuda().virtual_free)(first, PIECE));
    ok((cuda().virtual_release)(imported));
    assert_eq!(download::<u8>(second, 1), [7], "the mapping keeps it");
    ok((cuda().virtual_unmap)(second, PIECE));
    assert_eq!(live(c"memory handle"), 0);
});

test_in_child!(virtual_memory_in_use_is_not_unmapped, Current, &[], aborts "unmapped while a queued operation", || {
    use_device(0);
    let (mut handle, stream) = (0, stream());
    ok((cuda().virtual_create)(&mut handle, PIECE, &ON_DEVICE_1, 0));
    let address = map(handle);
    Gate::new().close(stream);
    ok((cuda().set_on)(address, 1, 1, stream));
    let _ = (cuda().virtual_unmap)(address, PIECE);
});

test_in_child!(pools_free_in_the_order_of_a_stream, Current, &[("FAKE_CUDA_POOLS", "1")], || {
    use_device(0);
    let (stream, gate, mut pools, mut address) = (stream(), Gate::new(), 0, 0);
    ok((cuda().device_attribute)(&mut pools, 115, 0));
    assert_eq!(pools, 1);
    ok((cuda().memory_allocate_on)(&mut address, 4, stream));
    gate.close(stream);
    ok((cuda().set_on)(address, 1, 4, stream));
    ok((cuda().memory_free_on)(address, stream));
    assert_eq!(live(c"device memory"), 1);
    gate.open();
    synchronize(stream);
    assert_eq!(live(c"device memory"), 0);
});
