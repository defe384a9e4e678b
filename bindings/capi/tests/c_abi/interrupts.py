"""A wait in the C ABI ends by Ctrl-C. The argument is the shared library.

The process is its rank 0 of two. The other rank does not come, so that without the interrupt
callback the call would wait for ten minutes. A thread sends SIGINT when the wait has begun: when
the callback has been called.
"""

import ctypes
import os
import signal
import sys
import threading

library = ctypes.CDLL(sys.argv[1])
INTERRUPTED, ABORTED = 19, 15
TIMEOUT_MS = 600_000
Callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class BootstrapConfig(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("world_size", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("local_ranks", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("timeout_ms", ctypes.c_int64),
    ]


was_called = threading.Event()
ctrl_c = []


def on_sigint(_number, _frame):
    ctrl_c.append(True)


@Callback
def interrupt(_user_data):
    # Python runs the handlers of signals between two instructions of the main thread, so also here.
    was_called.set()
    return 1 if ctrl_c else 0


def press_ctrl_c():
    was_called.wait()
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(call, *arguments):
    """Makes a call that waits, and ends it by Ctrl-C."""
    was_called.clear()
    ctrl_c.clear()
    thread = threading.Thread(target=press_ctrl_c)
    thread.start()
    status = call(*arguments)
    thread.join()
    assert ctrl_c, "the signal has come"
    assert status == INTERRUPTED, status


signal.signal(signal.SIGINT, on_sigint)
assert library.dcl_set_interrupt_callback(interrupt, None) == 0

config = BootstrapConfig()
assert library.dcl_bootstrap_config_init(ctypes.byref(config), ctypes.sizeof(config)) == 0
config.job = b"interrupts.py %d" % os.getpid()
config.world_size = 2
config.timeout_ms = TIMEOUT_MS
communicators = (ctypes.c_void_p * 2)()
interrupted(library.dcl_communicator_bootstrap, ctypes.byref(config), communicators)

make = library.dcl_communicator_new_in_process
make.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p]
assert make(b"host", 2, TIMEOUT_MS, communicators) == 0
first, second = (ctypes.c_void_p(handle) for handle in communicators)
interrupted(library.dcl_communicator_barrier, first)
assert library.dcl_communicator_barrier(second) == ABORTED
message = ctypes.create_string_buffer(4096)
library.dcl_last_error_message(message, ctypes.c_size_t(len(message)))
assert b"interrupted by the program" in message.value, message.value
for communicator in (first, second):
    assert library.dcl_communicator_free(communicator) == 0
assert library.dcl_set_interrupt_callback(Callback(), None) == 0
print("interrupted")
