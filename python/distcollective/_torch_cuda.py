"""Groups of :mod:`distcollective.torch` on GPUs.

As in torch's own backend for GPUs, a call is enqueued on a stream of the group's, behind what the current stream has
then, and ``wait`` puts the current stream behind the call. Neither waits for the GPU.
"""

import functools
import queue
import threading
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from . import torch as _torch
from .errors import Error

#: How often a thread looks at calls that have not ended, in seconds.
_LOOK = 0.05
#: How long after an error it waits for the program to be told, in seconds.
_PATIENCE = 10.0


class CudaWork(_torch._Work):
    """Calls on a group's stream."""

    def __init__(self, group, works, tensors):
        super().__init__(works, tensors, ())
        self._group, self._event = group, torch.cuda.Event()
        self._event.record(group._stream)
        #: What the calls use, until the current stream is behind them, or they have ended.
        self._used = []
        group._watch_over(works, self._used)
        self._raise_error()

    def exception(self):
        error = super().exception()
        self._group._was_told |= error is not None
        return error

    def _raise_error(self):
        error = self.exception()
        if error is not None:
            raise error

    def wait(self, timeout=timedelta(0)):
        """Puts the current stream behind the call. With a timeout it waits for the GPU too."""
        if timeout > timedelta(0):
            try:
                super().wait(timeout)
            except dist.DistError:
                self._raise_error()
                raise
        self._held.discard(self)
        self._raise_error()
        torch.cuda.current_stream(self._group._stream.device).wait_event(self._event)
        self._used.clear()
        return True

    synchronize = wait

    def block_current_stream(self):
        self.wait()

    def is_completed(self):
        return super().is_completed() and (self.exception() is not None or self._event.query())

    def get_future(self):
        """A future that is complete now, on the group's stream: what a callback enqueues comes after the call."""
        self._held.discard(self)
        stream = self._group._stream
        future = torch.futures.Future(devices=[stream.device])
        with torch.cuda.stream(stream):
            future.set_result(self._tensors)
        return future


class _BatchedWork(_torch._Work):
    """A message of a batch, which begins when the batch ends."""

    def wait(self, timeout=timedelta(0)):
        if not self._works:
            raise ValueError("the batch of this message has not begun")
        return super().wait(timeout)

    def is_completed(self):
        return bool(self._works) and super().is_completed()


class CudaGroup(_torch.ProcessGroup):
    """The ranks of a group, each with a GPU. They meet at the first call."""

    _device_type = "cuda"
    supports_coalescing = True

    def __init__(self, rank, size, gpu, store, timeout):
        super().__init__(rank, size, None, dist.PrefixStore("cuda", store))
        self._gpu, self._timeout = gpu, timeout
        self._meeting, self._watch = threading.Lock(), None
        self._messages = None

    @functools.cached_property
    def _stream(self):
        if self._gpu is None:
            self._gpu = torch.cuda.current_device()
        return torch.cuda.Stream(self._gpu)

    def _live(self, options=None, timeout=None):
        with self._meeting:
            if self._communicator is None and self._store is not None:
                place = self._store, self.rank(), self.size(), self._timeout
                self._communicator = _torch._connect(*place, self._stream.device.index)
                self._watch = _Watch(self)
        return super()._live(options, timeout)

    @property
    def options(self):
        return _torch._Torch.Backend.Options(_torch._NAME, self._timeout)

    def eager_connect_single_device(self, device):
        self._live()

    def _group_on(self, device):
        raise RuntimeError(f"the group is for tensors on GPUs, and the tensor is on {device}")

    def _set_default_timeout(self, timeout):
        self._timeout = timeout
        if self._communicator is not None:
            super()._set_default_timeout(timeout)

    set_timeout = _set_default_timeout

    def abort(self):
        self._was_told = True
        super().abort()

    def shutdown(self):
        """Leaves the group, when what it has enqueued has ended. Raises an error of which the program was not told."""
        with self._meeting:
            watch, self._watch = self._watch, None
        error = watch and watch.end()
        super().shutdown()
        if error and not self._was_told:
            self._was_told = True
            raise _torch._told(error)

    # What calls have in common.

    def _on_stream(self, method):
        def on_stream(*arguments, **named):
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            with torch.cuda.stream(self._stream):
                work = method(*arguments, **named)
            if isinstance(work, CudaWork):
                work._used.extend(_torch._tensors_in([*arguments[1:], *named.values()]))
            return work

        return on_stream

    @staticmethod
    def _is_async(options):
        """The library's own calls that are not asynchronous wait for the GPU."""
        return True

    def _watch_over(self, works, used):
        watch = self._watch
        # Another thread may have left the group.
        if watch is not None:
            watch.add(works, used)

    def _started(self, works, tensors, acts=()):
        for work in works:
            work.forget_tensors()
        for act in acts:
            act()
        if acts:
            for tensor in tensors:
                tensor.record_stream(self._stream)
        return self._kept(CudaWork(self, works, tensors))

    # Several messages are one group of NCCL's.

    def _start_coalescing(self, device=None):
        self._coalesced, self._messages = [], []

    @_torch._call
    def _end_coalescing(self, device=None):
        (batch, works), (self._messages, self._coalesced) = (self._messages, self._coalesced), (None, None)
        begun = [self._live().messages([message for message, _ in batch], on_stream=True)] if batch else []
        tensors = [tensor for work in works for tensor in work._tensors]
        for _, work in batch:
            work._works = begun
            tensors += work._tensors
        work = self._started(begun + [part for work in works for part in work._works], tensors)
        work._used.extend(tensors)
        return work

    def _begun(self, message, tensors):
        if self._messages is None:
            return self._started([self._live().messages([message], on_stream=True)], tensors)
        work = _BatchedWork([], tensors, ())
        self._messages.append((message, work))
        return work

    @_torch._call
    def barrier(self, opts=_torch._Torch.BarrierOptions(), timeout=None):
        """Waiting for it waits for the GPU."""
        work = self._live(opts, timeout).barrier(True)
        self._watch_over([work], [])
        return self._kept(_torch._Work([work], [], ()))


class _Watch:
    """A thread that looks at enqueued calls, for which a program need not wait: it ends them at their deadline. If a call
    has failed, tensors on the GPU have no right elements. A program that is not told of that ends, as it does with
    torch's own backend."""

    def __init__(self, group):
        self._calls, self._is_ending, self._error = queue.SimpleQueue(), False, None
        arguments = self._calls, weakref.ref(group)
        self._thread = threading.Thread(target=self._look, args=arguments, daemon=True)
        self._thread.start()
        # It ends with a group that the program has dropped.
        weakref.finalize(group, self._calls.put, None)

    def add(self, works, used):
        """Watches calls of the library's, and keeps what they use."""
        self._calls.put((works, used))

    def end(self):
        """Waits until all calls have ended. Gives their error."""
        self._is_ending = True
        self._calls.put(None)
        self._thread.join()
        return self._error

    def _look(self, calls, group):
        while (call := calls.get()) is not None:
            works, used = call
            for work in works:
                try:
                    while not work.is_completed():
                        time.sleep(_LOOK)
                    work.wait()
                except Error as error:
                    self._error = self._error or error
                    self._wait_until_told(error, group)
            used.clear()

    def _wait_until_told(self, error, group):
        until = time.monotonic() + _PATIENCE
        while not self._is_ending and (left := group()) is not None and not left._was_told:
            if time.monotonic() > until:
                _torch._exit(error)
            del left
            time.sleep(_LOOK)
