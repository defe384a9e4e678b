//! Events.

use crate::child::test_in_child;
use crate::cuda::*;

test_in_child!(an_event_is_the_stream_until_there, Current, &[], || {
    use_device(0);
    let (first, second, gate, event) = (stream(), stream(), Gate::new(), event());
    let address = allocate(1);
    // Never recorded, it is done.
    ok((cuda().event_query)(event));
    gate.close(first);
    ok((cuda().set_on)(address, 1, 1, first));
    ok((cuda().event_record)(event, first));
    ok((cuda().stream_wait)(second, event, 0));
    ok((cuda().set_on)(address, 2, 1, second));
    assert_eq!((cuda().event_query)(event), NOT_READY);
    assert_eq!((cuda().stream_query)(second), NOT_READY);
    gate.open();
    ok((cuda().event_synchronize)(event));
    synchronize(second);
    assert_eq!(download::<u8>(address, 1), [2]);
});

test_in_child!(a_wait_is_for_what_was_recorded_before_it, Current, &[], || {
    use_device(0);
    let (first, second, gate, event) = (stream(), stream(), Gate::new(), event());
    ok((cuda().event_record)(event, first));
    ok((cuda().stream_wait)(second, event, 0));
    gate.close(first);
    ok((cuda().event_record)(event, first));
    synchronize(second);
    assert_eq!((cuda().event_query)(event), NOT_READY);
    // An event may be destroyed while a stream waits for it.
    ok((cuda().stream_wait)(second, event, 0));
    ok((cuda().event_destroy)(event));
    assert_eq!((cuda().event_query)(event), INVALID_HANDLE);
    gate.open();
    synchronize(second);
});

test_in_child!(devices_wait_for_each_other_by_events, Current, &[], || {
    use_device(0);
    let (first, gate, event, address) = (stream(), Gate::new(), event(), allocate(1));
    gate.close(first);
    ok((cuda().set_on)(address, 1, 1, first));
    ok((cuda().event_record)(event, first));
    use_device(1);
    let second = stream();
    ok((cuda().stream_wait)(second, event, 0));
    ok((cuda().set_on)(address, 2, 1, second));
    gate.open();
    synchronize(second);
    assert_eq!(download::<u8>(address, 1), [2]);
});

test_in_child!(time_goes_on_between_events, Current, &[], || {
    use_device(0);
    let (stream, gate, start, end) = (stream(), Gate::new(), event(), event());
    let mut milliseconds = -1.0;
    assert_eq!((cuda().event_elapsed)(&mut milliseconds, start, end), INVALID_HANDLE);
    ok((cuda().event_record)(start, stream));
    gate.close(stream);
    ok((cuda().event_record)(end, stream));
    assert_eq!((cuda().event_elapsed)(&mut milliseconds, start, end), NOT_READY);
    gate.open();
    ok((cuda().event_synchronize)(end));
    ok((cuda().event_elapsed)(&mut milliseconds, start, end));
    assert!(milliseconds >= 0.0);
    let mut untimed = NO_HANDLE;
    ok((cuda().event_create)(&mut untimed, 2));
    ok((cuda().event_record)(untimed, stream));
    synchronize(stream);
    assert_eq!((cuda().event_elapsed)(&mut milliseconds, start, untimed), INVALID_HANDLE);
});
