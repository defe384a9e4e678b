//! Streams, copies and launches.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::child::test_in_child;
use crate::cuda::*;

test_in_child!(a_stream_is_asynchronous_and_in_order, Current, &[], || {
    use_device(0);
    let (stream, gate, to) = (stream(), Gate::new(), pinned(4));
    let address = allocate(4);
    gate.close(stream);
    ok((cuda().set_on)(address, 1, 4, stream));
    ok((cuda().set_on)(address + 1, 2, 2, stream));
    ok((cuda().copy_to_host_on)(to.as_mut_ptr().cast(), address, 4, stream));
    assert_eq!((cuda().stream_query)(stream), NOT_READY);
    assert_eq!(to, [0xcd; 4]);
    gate.open();
    synchronize(stream);
    assert_eq!(to, [1, 2, 2, 1]);
    ok((cuda().stream_query)(stream));
});

test_in_child!(pinned_memory_is_read_when_the_copy_comes_to_its_turn, Current, &[], || {
    use_device(0);
    let (stream, gate, from) = (stream(), Gate::new(), pinned(2));
    from.fill(1);
    let address = allocate(2);
    gate.close(stream);
    ok((cuda().copy_to_device_on)(address, from.as_ptr().cast(), 2, stream));
    from.fill(9);
    gate.open();
    synchronize(stream);
    assert_eq!(download::<u8>(address, 2), [9, 9]);
});

test_in_child!(pageable_copies_wait_for_the_stream, Current, &[], || {
    use_device(0);
    let (stream, gate) = (stream(), Gate::new());
    let address = allocate(2);
    gate.close(stream);
    ok((cuda().set_on)(address, 7, 2, stream));
    let opener = std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        gate.open();
    });
    let mut to = [0u8; 2];
    ok((cuda().copy_to_host_on)(to.as_mut_ptr().cast(), address, 2, stream));
    assert_eq!(to, [7, 7]);
    ok((cuda().copy_to_device_on)(address, [8u8, 9].as_ptr().cast(), 2, stream));
    assert_eq!(download::<u8>(address, 2), [8, 9]);
    opener.join().expect("no panic");
});

test_in_child!(streams_do_not_wait_for_each_other, Current, &[], || {
    use_device(0);
    let (held, free, gate) = (stream(), stream(), Gate::new());
    let address = allocate(1);
    gate.close(held);
    for stream in [free, NO_HANDLE, 1 as Handle, 2 as Handle] {
        ok((cuda().set_on)(address, 1, 1, stream));
        synchronize(stream);
    }
    assert_eq!((cuda().stream_query)(held), NOT_READY);
    gate.open();
    synchronize(held);
});

test_in_child!(kernels_take_their_argument_at_the_launch, Current, &[], || {
    use_device(0);
    let (stream, gate) = (stream(), Gate::new());
    let (function, address) = (fill_kernel(), allocate(400));
    gate.close(stream);
    ok(launch_fill(function, stream, address, 100, 5));
    gate.open();
    synchronize(stream);
    assert_eq!(download::<u32>(address, 100), [5; 100]);
});

test_in_child!(launches_are_checked, Current, &[], || {
    use_device(0);
    let (stream, function) = (stream(), fill_kernel());
    let mut fill = Fill { at: 0, count: 0, value: 0 };
    let mut parameters = [std::ptr::from_mut(&mut fill).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    let none = std::ptr::null_mut();
    let launch = |grid: [u32; 3], block: [u32; 3]| {
        (cuda().launch)(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], 0, stream, parameters, none)
    };
    ok(launch([1, 1, 1], [1, 1, 1]));
    for (grid, block) in [
        ([0, 1, 1], [1, 1, 1]),
        ([1, 2, 1], [1, 1, 1]),
        ([1, 1, 2], [1, 1, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [1, 2, 1]),
        ([1, 1, 1], [1, 1, 0]),
    ] {
        assert_eq!(launch(grid, block), INVALID_VALUE, "{grid:?} {block:?}");
    }
    let (mut module, mut unknown) = (NO_HANDLE, NO_HANDLE);
    assert_eq!((cuda().module_load)(&mut module, c"PTX".as_ptr()), INVALID_IMAGE);
    ok((cuda().module_load)(&mut module, c"FAKE CUBIN 13\n".as_ptr()));
    assert_eq!((cuda().module_function)(&mut unknown, module, c"no such kernel".as_ptr()), NOT_FOUND);
    ok((cuda().module_function)(&mut unknown, module, c"fake_fill".as_ptr()));
    ok((cuda().module_unload)(module));
    assert_eq!(launch_fill(unknown, stream, 0, 0, 0), INVALID_HANDLE);
    assert_eq!((cuda().module_unload)(module), INVALID_HANDLE);
});

static INSIDE: AtomicI32 = AtomicI32::new(0);

extern "C" fn call_the_driver(_: *mut c_void) {
    INSIDE.store((cuda().stream_synchronize)(NO_HANDLE), Ordering::SeqCst);
}

test_in_child!(host_functions_may_not_call_the_driver, Current, &[], || {
    use_device(0);
    ok((cuda().launch_host)(NO_HANDLE, call_the_driver, NO_HANDLE));
    synchronize(NO_HANDLE);
    assert_eq!(INSIDE.load(Ordering::SeqCst), NOT_PERMITTED);
});

test_in_child!(handles_end_with_what_they_stand_for, Current, &[], || {
    use_device(0);
    let (stream, gate, address) = (stream(), Gate::new(), allocate(1));
    gate.close(stream);
    ok((cuda().set_on)(address, 3, 1, stream));
    let done = event();
    ok((cuda().event_record)(done, stream));
    ok((cuda().stream_destroy)(stream));
    for result in [
        (cuda().stream_destroy)(stream),
        (cuda().stream_synchronize)(stream),
        (cuda().stream_query)(stream),
        (cuda().set_on)(address, 0, 1, stream),
        (cuda().event_record)(done, stream),
    ] {
        assert_eq!(result, INVALID_HANDLE);
    }
    // What was queued is still done.
    gate.open();
    ok((cuda().event_synchronize)(done));
    assert_eq!(download::<u8>(address, 1), [3]);
});

test_in_child!(work_goes_on_streams_of_the_current_context_only, Current, &[], || {
    let first = use_device(0);
    let (stream, address, event) = (stream(), allocate(1), event());
    let mut context = NO_HANDLE;
    ok((cuda().stream_context)(stream, &mut context));
    assert_eq!(context, first);
    use_device(1);
    let function = fill_kernel();
    assert_eq!(launch_fill(function, stream, address, 0, 0), INVALID_HANDLE);
    assert_eq!((cuda().set_on)(address, 0, 1, stream), INVALID_HANDLE);
    assert_eq!((cuda().event_record)(event, NO_HANDLE), INVALID_HANDLE);
    // To wait is allowed.
    ok((cuda().stream_wait)(NO_HANDLE, event, 0));
    synchronize(stream);
    use_device(0);
    assert_eq!(launch_fill(function, stream, address, 0, 0), INVALID_HANDLE);
});
