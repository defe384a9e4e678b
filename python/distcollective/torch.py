"""A backend of torch.distributed: its groups, on tensors in the host's memory and on GPUs, on one machine or several.

Importing this registers it::

    import distcollective.torch

    torch.distributed.init_process_group("distcollective")

Ranks meet through torch's store, so every launcher and ``init_method`` of torch's works. It needs torch 2.3 or newer.
"""

import atexit
import functools
import itertools
import json
import os
import queue
import sys
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from . import _core
from .distributed import ReduceOp
from .distributed._collectives import split_sizes
from .distributed._groups import monitored_barrier
from .errors import Error

_VERSION = [int(part) for part in torch.__version__.split(".")[:2]]
if _VERSION < [2, 3]:
    raise ImportError(f"distcollective.torch needs torch 2.3 or newer, and this is {torch.__version__}")

_Torch = torch._C._distributed_c10d
_profiler = torch.autograd.profiler
_NAME = "distcollective"
#: The types that the library reduces. Others are gathered, and torch reduces them.
_REDUCED = {
    getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int8", "uint64", "uint32", "uint8", "bool"),
    )
    if hasattr(torch, name)
}
#: How torch reduces two tensors, the first in place.
_COMBINE = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    # A NaN loses to a number, as in the library.
    "MAX": lambda x, y: torch.fmax(x, y, out=x),
    "MIN": lambda x, y: torch.fmin(x, y, out=x),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
#: The names in torch's profiler, where they differ from a method's.
_TITLES = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        ("allgather", "_allgather_base", "allgather_into_tensor_coalesced", "allgather_coalesced"), "all_gather"
    ),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"), "reduce_scatter"),
    **dict.fromkeys(("alltoall", "alltoall_base"), "all_to_all"),
    "recv_anysource": "recvAnySource",
}
#: Calls whose second argument is what the rank gives.
_OUTPUT_FIRST = {"all_gather", "reduce_scatter", "all_to_all", "gather", "gather_single", "scatter"}
_MESSAGES = ("send", "recv", "recv_anysource")
#: Other names of arguments: those of the short forms of calls, and of other versions.
_LONG_NAMES = {
    "root": "opts",
    "tensor": "tensors",
    **dict.fromkeys(("input", "input_tensor"), "input_tensors"),
    **dict.fromkeys(("output", "output_tensor"), "output_tensors"),
    **dict.fromkeys(("inputTensors", "input_list", "input_tensors"), "inputs"),
    **dict.fromkeys(("outputTensors", "output_lists", "output_tensors"), "outputs"),
}
#: The name of a reduction by its number. The enumeration's own takes a microsecond more.
_NAMES = {op.value: name for name, op in dist.ReduceOp.RedOpType.__members__.items() if name in _COMBINE}


def _told(error):
    """The exception of torch for an error of the library."""
    if isinstance(error, ValueError):
        return error
    return (dist.DistNetworkError if error.kind == "PeerLost" else dist.DistBackendError)(str(error))


@contextmanager
def _recorded(title, tensors):
    """Shows a call to torch's profiler as gloo's are shown: with tensors, and ended by another thread."""
    handle = torch.autograd._record_function_with_args_enter(f"{_NAME}:{title}", *_tensors_in(tensors))
    end = functools.partial(torch.autograd._record_function_with_args_exit, handle)
    try:
        yield
    finally:
        # Older versions lose what another thread ends.
        if _VERSION < [2, 15]:
            end()
        else:
            ending = threading.Thread(target=end)
            ending.start()
            ending.join()


def _call(method):
    """A method whose errors are torch's, and which torch's profiler sees."""
    name = method.__name__
    title = _TITLES.get(name, name)
    given = slice(1, 2) if title in _OUTPUT_FIRST else slice(1)
    own_names = method.__code__.co_varnames[: method.__code__.co_argcount]

    @functools.wraps(method)
    def wrapper(self, *arguments, **named):
        first = arguments[0] if arguments else None
        first = first[0] if type(first) is list and first else first
        if type(first) is not torch.Tensor or not first.is_cpu:
            first = next(_tensors_in((*arguments, *named.values())), None)
            if first is not None and first.device.type != self._device_type:
                return getattr(self._group_on(first.device), name)(*arguments, **named)
        named = {key if key in own_names else _LONG_NAMES.get(key, key): value for key, value in named.items()}
        try:
            if self._unfinished and name not in _MESSAGES:
                self._finish_on([*arguments, *named.values()])
            call = method if self._stream is None else self._on_stream(method)
            if not _profiler._is_profiler_enabled:
                return call(self, *arguments, **named)
            with _recorded(title, arguments[given]):
                return call(self, *arguments, **named)
        except Error as error:
            self._was_told = True
            raise _told(error) from None

    return wrapper


class _Work(_Torch.Work):
    """Calls of the library that go on, or works of this class; then what is left to do with what they brought."""

    _error = None
    #: The group's works for which the program has not waited. Before torch 2.7, C++ keeps no work written in Python.
    _held: "set[_Work]" = set()

    def __init__(self, works, tensors, acts, unfinished=None):
        super().__init__()
        self._works, self._tensors, self._acts, self._unfinished = works, tensors, acts, unfinished
        self._lock = threading.Lock() if acts else None

    def wait(self, timeout=timedelta(0)):
        """Waits until the call has ended, and raises its error. Without a timeout that of the call counts."""
        self._held.discard(self)
        end = time.monotonic() + timeout.total_seconds() if timeout > timedelta(0) else None
        for work in self._works:
            left = timedelta(0) if end is None else timedelta(seconds=max(end - time.monotonic(), 1e-6))
            try:
                work.wait(left)
            except Error as error:
                raise _told(error) from None
        self._act()
        if self._error is not None:
            raise self._error
        return True

    synchronize = wait

    def _act(self):
        """Does what is left to do, once. Its error is that of the call."""
        if self._lock is None:
            return
        with self._lock:
            if not self._acts:
                return
            try:
                for act in self._acts:
                    act()
            except Error as error:
                self._error = _told(error)
            except Exception as error:
                self._error = error
            # After a Ctrl-C it is done again.
            self._acts = ()
            if self._unfinished is not None:
                self._unfinished.remove(self)

    def is_completed(self):
        if not all(work.is_completed() for work in self._works):
            return False
        if all(work.is_success() for work in self._works):
            self._act()
        return True

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        found = (work.exception() for work in self._works)
        error = next((error for error in found if error is not None), self._error)
        return _told(error) if isinstance(error, Error) else error

    def result(self):
        self.wait()
        return self._tensors

    def _source_rank(self):
        self._works[0].wait()
        received = self._works[0].received()[0]
        return -1 if received is None else received[0]

    source_rank = _source_rank

    def get_future(self):
        self._held.discard(self)
        ended = torch.futures.Future()
        # An error is raised in a callback: C++ would take that of `set_exception` for tensors.
        future = ended.then(lambda _: self.result())
        if self.is_completed():
            ended.set_result(None)
        else:
            _waiters.run(lambda: self._complete(ended))
        return future

    def _complete(self, ended):
        with suppress(Exception):  # The future's callback raises it.
            self.wait()
        ended.set_result(None)


class _Waiters:
    """Threads that complete futures. Each waits for one call at a time, because callbacks may wait for others."""

    def __init__(self):
        self._lock, self._tasks, self._idle = threading.Lock(), queue.SimpleQueue(), 0

    def run(self, task):
        with self._lock:
            is_missing = self._idle == 0
            self._idle -= not is_missing
        if is_missing:
            threading.Thread(target=self._serve, daemon=True).start()
        self._tasks.put(task)

    def _serve(self):
        while True:
            self._tasks.get()()
            with self._lock:
                self._idle += 1


_waiters = _Waiters()


def _forget_waiters():
    """In a child that was forked, which has no threads."""
    global _waiters
    _waiters = _Waiters()


os.register_at_fork(after_in_child=_forget_waiters)


class ProcessGroup(dist.ProcessGroup):
    """A group of torch.distributed."""

    _device_type = "cpu"
    #: Of a group on a GPU: the stream of its calls.
    _stream = None
    #: The program was told of an error.
    _was_told = False

    def __init__(self, rank, size, communicator, store):
        super().__init__(rank, size)
        self._communicator, self._store = communicator, store
        self._name = self._description = ""
        self._coalesced = None
        #: Works that write to tensors when they are waited for.
        self._unfinished = []
        #: See :class:`_Work`.
        self._held = set()
        #: The groups for the tensors of other devices, by the device's type.
        self._others = {}
        _groups.add(self)

    def _live(self, options=None, timeout=None):
        """The communicator, with the timeout that a call or its options may have."""
        if self._communicator is None:
            raise ValueError("the process group has been destroyed")
        if timeout is None:
            timeout = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
        if timeout is None or timeout <= timedelta(0):
            return self._communicator
        return self._communicator.with_timeout(timeout)

    def _root(self, options):
        """The root, which is given in options, or by itself."""
        root = options if isinstance(options, int) else options.rootRank
        if not 0 <= root < self.size():
            raise ValueError(f"root {root} is not one of {self.size()} ranks")
        return root

    # What torch asks a group.

    def getBackendName(self):
        return _NAME

    name = _get_backend_name = getBackendName

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    def getGroupDesc(self):
        return self._description

    def setGroupDesc(self, description):
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    supports_coalescing = supports_time_estimate = _supports_time_estimate = supports_shrinking = False
    supports_splitting = True

    def supports_tensor_alloc(self, device):
        return False

    @property
    def _device_types(self):
        return (torch.device(self._device_type), *map(torch.device, self._others))

    @property
    def options(self):
        return _Torch.Backend.Options(_NAME, self._live().timeout)

    def get_group_store(self):
        return self._store

    def eager_connect_single_device(self, device):
        """Connects the ranks of a group that is bound to a device."""
        if device.type != self._device_type:
            self._group_on(device).eager_connect_single_device(device)

    def perform_nocolor_split(self, device):
        """Of a rank that is not in a group that others make: it need not do anything."""

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """A group of some of this group's ranks. The others get None, at once."""
        timeout = self._live().timeout if timeout is None else timeout
        if not all(0 <= rank < self.size() for rank in ranks):
            raise ValueError(f"the ranks {ranks} are not all of a group of {self.size()}")
        if self.rank() not in ranks:
            return None
        name = f"{group_name} of {ranks}"
        store = dist.PrefixStore(f"{name}/", self._store)
        group = _create(store, ranks.index(self.rank()), len(ranks), timeout)
        group._name, group._description = group_name or name, group_desc or ""
        return group

    def _get_backend(self, device):
        return self if device.type == self._device_type else self._group_on(device)._get_backend(device)

    def _group_on(self, device):
        """The group for tensors on another device. Torch takes this group for all devices. The name of the backend says
        which other it is, if it was "cpu:distcollective,cuda:nccl" or such. The ranks of the other group meet at their
        first call, through this group's store."""
        c10d = dist.distributed_c10d
        # Torch may connect the ranks of a group that is bound to a device before it sets the name.
        names = c10d._world.pg_backend_config.get(self, "").split(",")
        backend = dict(name.split(":") for name in names if ":" in name).get(device.type, _NAME)
        group = self._others.get(device.type)
        if group is not None and isinstance(group, ProcessGroup) == (backend == _NAME):
            return group
        if group is not None:
            self._others.pop(device.type).shutdown()
        if backend != _NAME:
            ranks, name = dist.get_process_group_ranks(self), f"{self._name} on {device.type}"
            description = self.size(), self.rank(), ranks, f"{device.type}:{backend}", self._store, name
            group, _ = c10d._new_process_group_helper(*description, timeout=self._live().timeout)
            c10d._world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
        elif device.type == "cuda" and torch.cuda.is_available():
            from ._torch_cuda import CudaGroup

            group = CudaGroup(self.rank(), self.size(), device.index, self._store, self._live().timeout)
        else:
            raise RuntimeError(f"the backend {_NAME!r} has no tensors on {device.type}")
        # Another thread may have been here.
        return self._others.setdefault(device.type, group)

    def _set_default_timeout(self, timeout):
        self._communicator = self._live().with_timeout(timeout)
        for group in self._others.values():
            group._set_default_timeout(timeout)

    set_timeout = _set_default_timeout

    def abort(self):
        """End the group for all its ranks."""
        if self._communicator is not None:
            self._communicator.abort("the program called abort")
        for group in self._others.values():
            group.abort()

    def shutdown(self):
        """Leave the group. Ranks that wait for this one get an error."""
        # The store may be a server, whose port the next group may want.
        self._communicator = self._store = None
        self._held.clear()
        others, self._others = self._others, {}
        for group in others.values():
            if isinstance(group, ProcessGroup):
                group.shutdown()
            elif group in dist.distributed_c10d._world.pg_map:
                dist.destroy_process_group(group)

    def _started(self, works, tensors, acts=()):
        """What a call gives: of the library's works, which are None if the call has blocked, and of what is left to do
        after them: to write to tensors."""
        works = [work for work in works if work is not None]
        if not works:
            for act in acts:
                act()
            work = _Work(works, tensors, ())
        elif acts or not all(tensor.is_contiguous() for tensor in tensors):
            # Strided tensors get their elements when the work is waited for.
            work = _Work(works, tensors, acts or [lambda: None], self._unfinished)
            self._unfinished.append(work)
        else:
            work = _Work(works, tensors, ())
        return self._kept(work)

    def _kept(self, work):
        """The work, which is part of those that are coalesced just now."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        if _VERSION < [2, 7]:
            work._held = self._held
            self._held.add(work)
        return work

    def _finish_on(self, arguments):
        """Waits for works that are still to write to a tensor of these arguments, so that calls have an order."""
        used = list(_tensors_in(arguments))
        for work in list(self._unfinished):
            # One that has ended leaves the list.
            if work.is_completed() or not _overlap(work._tensors, used):
                continue
            try:
                work.wait()
            except Exception as error:
                # An error of the other call is not one of this call.
                if error is not work._error and not isinstance(error, (dist.DistError, ValueError)):
                    raise

    def _start_coalescing(self, device=None):
        if device is not None and device.type != self._device_type:
            return self._group_on(device)._start_coalescing(device)
        self._coalesced = []

    def _end_coalescing(self, device=None):
        if device is not None and device.type != self._device_type:
            return self._group_on(device)._end_coalescing(device)
        works, self._coalesced = self._coalesced, None
        return _Work(works, [tensor for work in works for tensor in work._tensors], ())

    @staticmethod
    def _is_async(options):
        """Whether the program waits for the call itself. Some options of older versions, and short forms, do not
        say."""
        return getattr(options, "asyncOp", True)

    # Collectives.

    @_call
    def allreduce(self, tensors, opts=_Torch.AllreduceOptions(), timeout=None, op=None):
        return self._all_reduce(self._live(opts, timeout), [_one(tensors)], opts if op is None else op)

    @_call
    def allreduce_coalesced(self, tensors, opts=_Torch.AllreduceCoalescedOptions()):
        return self._all_reduce(self._live(opts), tensors, opts)

    def _all_reduce(self, communicator, tensors, opts):
        async_op, op = self._is_async(opts), _op_of(opts)
        works, acts = [], []
        # Tensors that share elements get the reduction of what they were before the call.
        are_copies = len(tensors) > 1 and _share(tensors)
        own = [_plain(tensor).clone() if are_copies else _plain(tensor) for tensor in tensors]
        for tensor in own:
            if tensor.is_sparse:
                self._all_reduce_sparse(communicator, op, tensor)
            elif _is_reduced(op, tensor):
                works.append(communicator.all_reduce(tensor, ReduceOp[op], async_op))
            else:
                all_blocks = tensor.new_empty((self.size(), *tensor.shape))
                works.append(communicator.all_gather_into(all_blocks, tensor.contiguous(), async_op))
                acts.append(functools.partial(_reduce, op, all_blocks, tensor))
        if are_copies:
            acts += [functools.partial(_plain(tensor).copy_, copy) for tensor, copy in zip(tensors, own)]
        return self._started(works, tensors, acts)

    def _all_reduce_sparse(self, communicator, op, tensor):
        """Brings each rank the elements of all, and adds them. This waits for the other ranks."""
        if op != "SUM":
            raise ValueError(f"a sparse tensor has the reduction SUM, and not {op}")
        own = tensor.coalesce()
        counts = own.indices().new_empty(self.size())
        communicator.all_gather_into(counts, counts.new_tensor([own._nnz()]), False)

        def gather_rows(rows):
            padded = rows.new_zeros((int(counts.max()), *rows.shape[1:]))
            padded[: len(rows)] = rows
            gathered = padded.new_empty((self.size(), *padded.shape))
            communicator.all_gather_into(gathered, padded, False)
            return torch.cat([rows[:count] for rows, count in zip(gathered, counts)])

        indices = gather_rows(own.indices().t()).t()
        tensor.copy_(torch.sparse_coo_tensor(indices, gather_rows(own.values()), tensor.shape).coalesce())

    @_call
    def reduce(self, tensors, opts=_Torch.ReduceOptions(), op=dist.ReduceOp.SUM, timeout=None):
        root, op = self._root(opts), _op_of(op if isinstance(opts, int) else opts)
        communicator, async_op, is_root = self._live(opts, timeout), self._is_async(opts), self.rank() == root
        given = [_one(tensors)]
        tensor = _plain(given[0])
        if _is_reduced(op, tensor):
            return self._started([communicator.reduce(tensor, ReduceOp[op], root, async_op)], given)
        all_blocks = tensor.new_empty((self.size() if is_root else 0, *tensor.shape))
        work = communicator.call_on_list("gather", tensor.contiguous(), list(all_blocks), root, async_op)
        acts = [functools.partial(_reduce, op, all_blocks, tensor)] if is_root else ()
        return self._started([work], given, acts)

    @_call
    def broadcast(self, tensors, opts=_Torch.BroadcastOptions(), timeout=None):
        tensor, root = _one(tensors), self._root(opts)
        work = self._live(opts, timeout).broadcast(_plain(tensor), root, self._is_async(opts))
        return self._started([work], [tensor])

    @_call
    def allgather(self, output_tensors, input_tensors, opts=_Torch.AllgatherOptions(), timeout=None):
        output_tensors, input_tensors = _lists(output_tensors, input_tensors)
        return self._gather_lists(self._live(opts, timeout), output_tensors, input_tensors, opts)

    @_call
    def allgather_coalesced(self, output_lists, input_list, opts=_Torch.AllgatherOptions()):
        # One list for each rank, of all tensors.
        return self._gather_lists(self._live(opts), list(zip(*output_lists)), input_list, opts)

    def _gather_lists(self, communicator, lists, tensors, opts):
        works = []
        for outputs, tensor in _pairs(lists, tensors):
            # The input may be one of the outputs.
            tensor, outputs = _plain(tensor), [*map(_plain, outputs)]
            tensor = tensor.clone() if _overlap([tensor], outputs) else tensor
            works.append(communicator.call_on_list("all_gather", tensor, outputs, 0, self._is_async(opts)))
        return self._started(works, [output for outputs in lists for output in outputs])

    @_call
    def _allgather_base(self, output, input, opts=_Torch.AllgatherOptions()):
        return self._gather_into([output], [input], opts)

    @_call
    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=_Torch.AllgatherOptions()):
        return self._gather_into(outputs, inputs, opts)

    def _gather_into(self, outputs, inputs, opts):
        communicator, async_op = self._live(opts), self._is_async(opts)
        pairs = _pairs([*map(_plain, outputs)], [*map(_plain, inputs)])
        return self._started([communicator.all_gather_into(*pair, async_op) for pair in pairs], outputs)

    @_call
    def reduce_scatter(self, output_tensors, input_tensors, opts=_Torch.ReduceScatterOptions(), timeout=None, op=None):
        output_tensors, input_tensors = _lists(output_tensors, input_tensors)
        communicator, n = self._live(opts, timeout), self.size()
        opts = opts if op is None else op
        for output, blocks in _pairs(output_tensors, input_tensors):
            if len(blocks) != n or blocks[self.rank()].numel() != output.numel():
                raise ValueError(
                    "reduce_scatter: the list has a tensor for each rank, and this rank's is as its output"
                )
        if all(len({block.numel() for block in blocks}) == 1 for blocks in input_tensors):
            inputs = [torch.stack([_plain(block).reshape(-1) for block in blocks]) for blocks in input_tensors]
            return self._reduce_scatter(communicator, output_tensors, inputs, opts)
        works, acts, (async_op, op) = [], [], (self._is_async(opts), _op_of(opts))
        for output, blocks in _pairs([*map(_plain, output_tensors)], input_tensors):
            blocks = [*map(_plain, blocks)]
            blocks = [block.clone() for block in blocks] if _overlap(blocks, [output]) else blocks
            if _is_reduced(op, output):
                arguments = [output], blocks, ReduceOp[op], async_op
                works.append(communicator.call_on_blocks("reduce_scatter", *arguments))
            else:
                taken = output.new_empty((n, output.numel()))
                works.append(communicator.call_on_blocks("all_to_all", list(taken), blocks, 0, async_op))
                acts.append(functools.partial(_reduce, op, taken, output))
        return self._started(works, output_tensors, acts)

    @_call
    def _reduce_scatter_base(self, outputTensor, inputTensor, opts=_Torch.ReduceScatterOptions()):
        return self._reduce_scatter(self._live(opts), [outputTensor], [inputTensor], opts)

    @_call
    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=_Torch.ReduceScatterOptions()):
        return self._reduce_scatter(self._live(opts), outputs, inputs, opts)

    def _reduce_scatter(self, communicator, outputs, inputs, opts):
        async_op, op = self._is_async(opts), _op_of(opts)
        works, acts = [], []
        for output, input in _pairs([*map(_plain, outputs)], [*map(_plain, inputs)]):
            if _is_reduced(op, input):
                works.append(communicator.reduce_scatter(output, input, ReduceOp[op], async_op))
            else:
                blocks = input.new_empty((self.size(), output.numel()))
                works.append(communicator.all_to_all(blocks, input.reshape(self.size(), -1).contiguous(), async_op))
                acts.append(functools.partial(_reduce, op, blocks, output))
        return self._started(works, outputs, acts)

    @_call
    def gather(self, output_tensors, input_tensors, opts=_Torch.GatherOptions(), timeout=None):
        output_tensors, input_tensors = _lists(output_tensors, input_tensors)
        input, root = _plain(_one(input_tensors)), self._root(opts)
        outputs = [*map(_plain, _one(output_tensors))] if self.rank() == root and output_tensors else []
        input = input.clone() if _overlap([input], outputs) else input
        arguments = input, outputs, root, self._is_async(opts)
        return self._started([self._live(opts, timeout).call_on_list("gather", *arguments)], outputs)

    @_call
    def gather_single(self, output, input, opts=_Torch.GatherOptions()):
        root = self._root(opts)
        outputs = list(_plain(output).view(self.size(), input.numel())) if self.rank() == root else []
        work = self._live(opts).call_on_list("gather", _plain(input), outputs, root, self._is_async(opts))
        return self._started([work], [output])

    @_call
    def scatter(self, output_tensors, input_tensors, opts=_Torch.ScatterOptions(), timeout=None):
        output_tensors, input_tensors = _lists(output_tensors, input_tensors)
        output, root = _plain(_one(output_tensors)), self._root(opts)
        inputs = [*map(_plain, _one(input_tensors))] if self.rank() == root and input_tensors else []
        inputs = [input.clone() for input in inputs] if _overlap(inputs, [output]) else inputs
        arguments = output, inputs, root, self._is_async(opts)
        return self._started([self._live(opts, timeout).call_on_list("scatter", *arguments)], output_tensors)

    @_call
    def alltoall_base(
        self, output, input, output_split_sizes, input_split_sizes, opts=_Torch.AllToAllOptions(), timeout=None
    ):
        target, source = _plain(output), _plain(input)
        communicator, async_op = self._live(opts, timeout), self._is_async(opts)
        sizes = split_sizes(output_split_sizes), split_sizes(input_split_sizes)
        if sizes == (None, None):
            return self._started([communicator.all_to_all(target, source, async_op)], [output])
        source = source.clone() if _overlap([source], [target]) else source
        return self._started([communicator.all_to_all_split(target, source, *sizes, async_op)], [output])

    @_call
    def alltoall(self, output_tensors, input_tensors, opts=_Torch.AllToAllOptions(), timeout=None):
        n = self.size()
        if len(output_tensors) != n or len(input_tensors) != n:
            raise ValueError(f"all_to_all: each list has a tensor for each of {n} ranks")
        outputs, inputs = [*map(_plain, output_tensors)], [*map(_plain, input_tensors)]
        inputs = [each.clone() for each in inputs] if _overlap(inputs, outputs) else inputs
        arguments = outputs, inputs, 0, self._is_async(opts)
        return self._started([self._live(opts, timeout).call_on_blocks("all_to_all", *arguments)], output_tensors)

    @_call
    def barrier(self, opts=_Torch.BarrierOptions(), timeout=None):
        device, ids = getattr(opts, "device", None), opts.device_ids
        # Older versions set the numbers only.
        if ids and torch.cuda.is_available():
            device = torch.device("cuda", ids[0])
        if device is not None and device.type != "cpu":
            return self._group_on(device).barrier(opts, timeout)
        return self._started([self._live(opts, timeout).barrier(self._is_async(opts))], [])

    @_call
    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        monitored_barrier(self._live(), timeout, wait_all_ranks)

    # Newer names.
    all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
    reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced
    all_to_all_single, gather_into_tensor = alltoall_base, gather_single

    # Messages.

    @_call
    def send(self, tensors, dstRank, tag=0):
        return self._message(True, tensors, dstRank, tag)

    @_call
    def recv(self, tensors, srcRank, tag=0):
        return self._message(False, tensors, srcRank, tag)

    @_call
    def recv_anysource(self, tensors, tag=0):
        return self._message(False, tensors, None, tag)

    def _message(self, is_send, tensors, peer, tag):
        if not 0 <= tag < 2**15:
            raise ValueError(f"tag is {tag}; it is 0 to {2**15 - 1}")
        (tensor,) = tensors
        return self._begun((is_send, _plain(tensor), peer, tag), tensors)

    def _begun(self, message, tensors):
        # Messages have no order among calls.
        work = self._live().messages([message], async_op=True)
        return self._kept(_Work([work], tensors, ()))


def _one(tensors):
    """The tensor of a call that has one, or the list of one that has a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"the call has one tensor, or list of tensors, on each rank, and here are {len(tensors)}")
    return tensors[0]


def _lists(outputs, inputs):
    """The outputs and the inputs as lists. The short form of a call has one tensor on one side."""
    return (
        ([outputs], [inputs])
        if isinstance(outputs, torch.Tensor) or isinstance(inputs, torch.Tensor)
        else (outputs, inputs)
    )


def _plain(tensor):
    """The tensor that the library uses: without its gradient, since what a call writes is not autograd's."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    # What a functional collective gives.
    return tensor.wait() if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def _pairs(outputs, inputs):
    """Each output and its input."""
    if len(outputs) != len(inputs):
        raise ValueError(f"there are {len(outputs)} outputs and {len(inputs)} inputs")
    return zip(outputs, inputs)


def _extent(tensor):
    """Where the tensor's elements begin, and where they end."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return 0, 0
    tensor = _plain(tensor)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlap(some, others):
    return any(a[0] < b[1] and b[0] < a[1] for a in map(_extent, some) for b in map(_extent, others))


def _share(tensors):
    """Whether two of the tensors share elements."""
    extents = sorted(extent for extent in map(_extent, tensors) if extent[0] < extent[1])
    return any(first[1] > second[0] for first, second in zip(extents, extents[1:]))


def _tensors_in(arguments):
    """The tensors of a call's arguments, which may be lists of lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors_in(argument)


def _op_of(options):
    """The name of a reduction, which is given as options, or by itself."""
    op = getattr(options, "reduceOp", options)
    op = getattr(op, "op", op)
    name = _NAMES.get(op.value)
    if name is None:
        raise ValueError(f"there is no reduction {op.name}")
    return name


def _is_reduced(op, tensor):
    """Whether the library reduces the tensor."""
    if tensor.dtype in _COMPLEX:
        return op in ("SUM", "AVG")
    return tensor.dtype in _REDUCED and op in ReduceOp.__members__


def _reduce(op, blocks, target):
    """Reduces the blocks of all ranks, in the order of ranks."""
    total = blocks[0].clone()
    for block in blocks[1:]:
        _COMBINE[op](total, block)
    if op == "AVG":
        total.div_(len(blocks), rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc")
    target.copy_(total.reshape(target.shape))


#: The groups that this process has not left.
_groups: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()


@atexit.register
def _leave():
    for group in list(_groups):
        try:
            group.shutdown()
        except dist.DistError as error:
            _exit(error)


def _exit(error):
    """Ends a process whose tensors are wrong."""
    with suppress(Exception):
        sys.stdout.flush()
        print(f"distcollective: {error}; the process ends: tensors on its GPU are wrong", file=sys.stderr, flush=True)
    os._exit(1)


def _exchange(store, rank, size, timeout):
    """The function by which the group's ranks meet: it brings each the bytes of all, through rank 0."""
    # A store may have served other groups of this name, of the same ranks.
    meeting = f"meeting {store.add(f'joins of {rank}', 1)}"
    end = time.monotonic() + timeout.total_seconds()
    steps = itertools.count()

    def value_of(name, who, grace=0.0):
        try:
            store.wait([name], timedelta(seconds=max(end + grace - time.monotonic(), 0.001)))
        except Exception as error:
            raise Error(f"{who} did not come within {timeout.total_seconds():.1f} s ({error})") from None
        return store.get(name).decode()

    def exchange(own):
        key = f"{meeting}, step {next(steps)}"
        store.set(f"{key}: {rank}", own.hex())
        if rank == 0:
            try:
                found = {"all": [value_of(f"{key}: {other}", f"rank {other}") for other in range(size)]}
            except Exception as error:
                found = {"error": str(error)}
            store.set(key, json.dumps(found))
        # Rank 0 may wait as long for another rank, and then says for which.
        found = json.loads(value_of(key, "rank 0, or a rank for which it waits,", grace=1.0))
        if "error" in found:
            raise Error(found["error"])
        return [bytes.fromhex(other) for other in found["all"]]

    return exchange


def _connect(store, rank, size, timeout, gpu=None):
    try:
        return _core.connect(_exchange(store, rank, size, timeout), rank, size, timeout, gpu)
    except Error as error:
        raise _told(error) from None


def _create(store, rank, size, timeout):
    return ProcessGroup(rank, size, _connect(store, rank, size, timeout), store)


def register():
    """What importing this module does. Newer versions of torch find it by the backend's name, and call it."""
    if _NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_NAME, _create, devices=["cpu", "cuda"])
        # Newer versions attach a recorder to groups, which are in C++.
        attach = getattr(dist.distributed_c10d, "_maybe_attach_flight_recorder", None)
        if attach is not None:
            dist.distributed_c10d._maybe_attach_flight_recorder = lambda group, *rest: (
                None if isinstance(group, ProcessGroup) else attach(group, *rest)
            )


register()
