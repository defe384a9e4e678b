"""Programs of test_cuda.py: ranks are threads, each with a GPU of the stand-in libraries.

A stand-in's device address is an address of the host, so these programs read and write it.
"""

import ctypes
import gc
import sys
import types
from datetime import timedelta

import numpy as np

import distcollective
import distcollective.distributed as dist
from distcollective import _core

cuda = ctypes.CDLL("libcuda.so.1")
DEFAULT_STREAM = 1  # its number in the interfaces


def check(result):
    assert result == 0, f"CUDA's error {result}"


def set_device(ordinal):
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
    check(cuda.cuCtxSetCurrent(context))


def new_stream():
    stream = ctypes.c_void_p()
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    return stream.value


class GpuArray:
    """An array in the memory of this rank's GPU, with ``__cuda_array_interface__``."""

    def __init__(self, array, stream=None, **fields):
        array = np.ascontiguousarray(array)
        self.memory = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(max(array.nbytes, 1))))
        buffer = (ctypes.c_uint8 * array.nbytes).from_address(self.memory.value)
        self.view = np.frombuffer(buffer, array.dtype).reshape(array.shape)
        self.view[...] = array
        self.interface = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.memory.value, False),
            "version": 3,
            "stream": stream,
            **fields,
        }

    @property
    def __cuda_array_interface__(self):
        return self.interface

    def __del__(self):
        cuda.cuMemFree_v2(self.memory)


class DlpackArray:
    """An array in the memory of a GPU, with ``__dlpack__``."""

    def __init__(self, array):
        import test_dlpack

        self.gpu = GpuArray(array)
        self.view, self.streams = self.gpu.view, []
        address = types.SimpleNamespace(ctypes=types.SimpleNamespace(data=self.gpu.memory.value))
        self.exporter = test_dlpack.Exporter(address, list(array.shape), device_type=2, device_id=dist.get_rank())

    def __dlpack_device__(self):
        return 2, dist.get_rank()

    def __dlpack__(self, stream=None, max_version=None):
        self.streams.append(stream)
        return self.exporter.__dlpack__(max_version=max_version)


def fake_torch_tensor(array):
    """A torch tensor that says that it is on this rank's GPU. torch itself has no GPU here."""
    import torch

    class CudaTensor(torch.Tensor):
        is_cpu = property(lambda self: False)
        is_cuda = property(lambda self: True)
        device = property(lambda self: types.SimpleNamespace(index=dist.get_rank()))

    gpu = GpuArray(array)
    tensor = torch.from_numpy(gpu.view).as_subclass(CudaTensor)
    return gpu, tensor


def on_ranks(body, size=2):
    def with_device():
        set_device(dist.get_rank())
        return body()

    return dist.run_threads(size, with_device, backend="nccl", timeout=timedelta(seconds=8))


def each_call(async_op, make):
    """Every call between three ranks, on tensors that ``make`` puts on the GPU."""
    size = 3
    inputs = [np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * rank for rank in range(size)]
    total = sum(inputs)

    def body():
        rank = dist.get_rank()
        assert dist.get_backend() == "nccl"

        def wait(work):
            assert (work is not None) == async_op
            assert work is None or (work.wait() and work.is_completed())

        def tensor(array):
            return make(array)

        view, x = tensor(inputs[rank])
        wait(dist.all_reduce(x, async_op=async_op))
        assert (view == total).all()
        view, x = tensor(inputs[rank])
        wait(dist.broadcast(x, 2, async_op=async_op))
        assert (view == inputs[2]).all()
        view, x = tensor(inputs[rank])
        wait(dist.reduce(x, 1, dist.ReduceOp.MAX, async_op=async_op))
        assert (view == inputs[2 if rank == 1 else rank]).all()
        pairs = [tensor(np.zeros((3, 2), np.float32)) for _ in range(size)]
        wait(dist.all_gather([x for _, x in pairs], tensor(inputs[rank])[1], async_op=async_op))
        assert all((view == inputs[other]).all() for other, (view, _) in enumerate(pairs))
        pairs = [tensor(np.zeros((3, 2), np.float32)) for _ in range(size)]
        wait(dist.gather(tensor(inputs[rank])[1], [x for _, x in pairs] if rank == 0 else None, async_op=async_op))
        assert all((view == (inputs[other] if rank == 0 else 0)).all() for other, (view, _) in enumerate(pairs))
        view, x = tensor(np.zeros((3, 2), np.float32))
        blocks = [tensor(block)[1] for block in inputs] if rank == 0 else None
        wait(dist.scatter(x, blocks, async_op=async_op))
        assert (view == inputs[rank]).all()
        view, x = tensor(np.zeros((size, 3, 2), np.float32))
        wait(dist.all_gather_into_tensor(x, tensor(inputs[rank])[1], async_op=async_op))
        assert (view == np.stack(inputs)).all()
        view, x = tensor(np.zeros(2, np.float32))
        wait(dist.reduce_scatter_tensor(x, tensor(inputs[rank])[1], async_op=async_op))
        assert (view == total[rank]).all()
        view, x = tensor(np.zeros((3, 2), np.float32))
        wait(dist.all_to_all_single(x, tensor(inputs[rank])[1], async_op=async_op))
        assert (view == np.stack(inputs)[:, rank]).all()
        wait(dist.barrier(async_op=async_op, device_ids=[rank]))
        after, before = (rank + 1) % size, (rank - 1) % size
        view, x = tensor(np.zeros((3, 2), np.float32))
        messages = [dist.P2POp(dist.isend, tensor(inputs[rank])[1], after), dist.P2POp(dist.irecv, x, before)]
        [work.wait() for work in dist.batch_isend_irecv(messages)]
        assert (view == inputs[before]).all()

    on_ranks(body, size)


def with_cuda_array_interface():
    def make(array):
        made = GpuArray(array, DEFAULT_STREAM)
        return made.view, made

    for async_op in [False, True]:
        each_call(async_op, make)


def with_dlpack():
    def make(array):
        made = DlpackArray(array)
        return made.view, made

    each_call(False, make)

    def body():
        x = DlpackArray(np.ones(3, np.float32))
        dist.all_reduce(x)
        assert x.streams == [DEFAULT_STREAM] and (x.view == 2).all()

    on_ranks(body)


def with_torch():
    import torch

    asked = []

    def current_stream(ordinal):
        asked.append(ordinal)
        return types.SimpleNamespace(cuda_stream=0)

    torch.cuda.current_stream = current_stream
    kept = []

    def make(array):
        gpu, tensor = fake_torch_tensor(array)
        kept.append(gpu)
        return gpu.view, tensor

    each_call(True, make)
    assert set(asked) == {0, 1, 2}


def enqueues_behind_what_makes_the_elements():
    """The call runs on the stream of the tensor: after a host function there, which is slow."""
    import time

    function_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def body():
        stream = new_stream()
        sent = GpuArray(np.zeros(4, np.float32), stream)
        received = GpuArray(np.zeros(4, np.float32), stream)

        def fill(_):
            time.sleep(0.2)
            sent.view[...] = 7

        filling = function_type(fill)
        for call in [
            lambda: dist.all_to_all_single(received, sent),
            lambda: dist.all_to_all_single(received, sent, async_op=True).wait(),
            lambda: [
                work.wait()
                for work in dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, sent, 1 - dist.get_rank()),
                        dist.P2POp(dist.irecv, received, 1 - dist.get_rank()),
                    ]
                )
            ],
        ]:
            sent.view[...], received.view[...] = 0, 0
            check(cuda.cuLaunchHostFunc(ctypes.c_void_p(stream), filling, None))
            call()
            assert received.view.tolist() == [7] * 4

    on_ranks(body)


def refuses():
    def body():
        rank = dist.get_rank()
        x = GpuArray(np.zeros((2, 3), np.float32))
        own, other = new_stream(), new_stream()
        import pytest

        strided = {**x.interface, "strides": (4, 8)}
        cases = [
            (ValueError, "tensor: it is in host memory.*GPU", lambda: dist.all_reduce(np.zeros(2, np.float32))),
            (
                ValueError,
                "tensor: .*not lie one after the other.*on a GPU",
                lambda: dist.all_reduce(with_fields(strided)),
            ),
            (ValueError, "tensor: .*read-only", lambda: dist.all_reduce(GpuArray(np.ones(2), data=(8, True)))),
            (ValueError, "tensor: .*stream.* is 0", lambda: dist.all_reduce(GpuArray(np.ones(2, np.float32), 0))),
            (TypeError, "tensor: it has a mask", lambda: dist.all_reduce(GpuArray(np.ones(2, np.float32), mask=x))),
            (
                TypeError,
                "tensor: int16 is not reduced",
                lambda: dist.all_reduce(GpuArray(np.ones(2, np.int16))),
            ),
            (
                ValueError,
                "on two CUDA streams",
                lambda: dist.all_to_all_single(GpuArray(np.ones(2), own), GpuArray(np.ones(2), other)),
            ),
            (ValueError, "device_ids is .9., and the group is on GPU", lambda: dist.barrier(device_ids=[9])),
            (
                ValueError,
                'another one; give backend="nccl"',
                lambda: distcollective.broadcast_tensor_dict({}, backend="gloo"),
            ),
            (RuntimeError, "a rank of run_threads", lambda: dist.init_process_group("nccl")),
        ]
        for kind, text, call in cases:
            with pytest.raises(kind, match=text):
                call()
        # The group still works.
        y = GpuArray(np.full(2, rank, np.float64))
        dist.broadcast(y, 1)
        assert y.view.tolist() == [1, 1]

    on_ranks(body)


def with_fields(interface):
    return type("Interface", (), {"__cuda_array_interface__": interface})()


def dictionaries():
    given = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "d": np.arange(3, dtype=np.float64)}

    def body():
        mine = {}
        if dist.get_rank() == 0:
            for name, array in given.items():
                mine[name] = GpuArray(array)
                mine[name].shape = array.shape
        # Without torch arrays of numpy arrive, on the host.
        got = distcollective.broadcast_tensor_dict(mine, src=0, backend="nccl")
        if dist.get_rank() == 1:
            assert all(
                got[name].tobytes() == array.tobytes() and got[name].shape == array.shape
                for name, array in given.items()
            )
        # What torch gets of a GPU.
        communicator = dist.group.WORLD._live()
        entries = [(name, tensor) for name, tensor in mine.items()]
        arrived = communicator.broadcast_tensor_dict(entries, {"src": 0, "on_host": False, "refusal": None})
        for name, dtype, shape, data in arrived:
            assert isinstance(data, _core.GpuBytes)
            interface = data.__cuda_array_interface__
            (length,), (address, is_read_only) = interface["shape"], interface["data"]
            assert (interface["typestr"], interface["version"], is_read_only) == ("|u1", 3, False)
            received = np.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype).reshape(shape)
            assert received.tobytes() == given[name].tobytes() and received.dtype == given[name].dtype
        return len(arrived)

    assert "torch" not in sys.modules
    assert on_ranks(body) == [0, 2]


def a_failure_ends_the_others():
    def body():
        if dist.get_rank() == 1:
            raise LookupError("no weights")
        dist.all_reduce(GpuArray(np.ones(2, np.float32)))

    try:
        on_ranks(body)
    except LookupError as error:
        assert str(error) == "no weights"
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    check(cuda.cuInit(0))
    globals()[sys.argv[1]]()
    gc.collect()
    print("passed")
