"""Every type, library and layout in every call."""

import numpy as np
import pytest
from ranks import peer, run
from test_dlpack import READ_ONLY, Exporter

import distcollective.distributed as dist

torch = peer("torch")
ml_dtypes = peer("ml_dtypes")


class Interface:
    """An object with ``__array_interface__`` and nothing else."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


def torch_of(array):
    """A tensor with the array's memory, if torch has the type."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


#: The types that are reduced, and some that only move.
REDUCED = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int8", "uint8", "bool"]
REDUCED += ["float64", "uint32", "uint64"]
MOVED = ["complex64", "complex128", "int16", "uint16", "float8_e4m3b11fnuz", "int4"]
OF_TORCH = {
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int8",
    "uint8",
    "bool",
    "float64",
    "complex64",
    "int16",
}
#: DLPack's codes, of types that are reduced.
CODES = {
    "float32": 2,
    "float16": 2,
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e5m2": 12,
    "int64": 0,
    "int32": 0,
    "int8": 0,
    "uint8": 1,
    "bool": 6,
    "float64": 2,
    "uint32": 1,
    "uint64": 1,
}


def dlpack_of(array):
    """An object with ``__dlpack__``, made by hand: numpy gives neither bool nor ml_dtypes' types."""
    strides = [stride // array.itemsize for stride in array.strides]
    fields = {"code": CODES[array.dtype.name], "bits": 8 * array.itemsize}
    return Exporter(array, array.shape, strides, flags=0 if array.flags.writeable else READ_ONLY, **fields)


CONVERT = {"numpy": lambda array: array, "torch": torch_of, "interface": Interface, "dlpack": dlpack_of}


def misaligned(array):
    """A copy that begins at an odd address."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    copy = memory[1 - memory.ctypes.data % 2 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def is_refused(name, layout):
    """Whether elements have to be aligned, and are not."""
    return layout == "misaligned" and name in REDUCED and dtype_of(name).itemsize > 1


LAYOUTS = {
    "contiguous": lambda array: array.copy(),
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "every second": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "misaligned": lambda array: misaligned(array),
    "0-d": lambda array: array[0, 0, ...].copy(),
    "empty": lambda array: array[:0].copy(),
    "reversed": lambda array: np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1],
}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def values(name, rank):
    """Small numbers, which all types have."""
    return (np.arange(6).reshape(2, 3) % 2 + rank).astype(dtype_of(name))


def cases():
    for kind in CONVERT:
        for name in REDUCED + MOVED:
            if (kind == "torch" and name not in OF_TORCH) or (kind == "dlpack" and name not in REDUCED):
                continue
            if kind == "interface" and hasattr(ml_dtypes, name):
                continue  # the type is in the array's dtype alone
            for layout in LAYOUTS:
                if (layout == "reversed" and kind == "torch") or is_refused(name, layout):
                    continue  # torch has no negative strides
                yield kind, name, layout


def test_every_type_and_layout_in_every_call():
    def body():
        rank = dist.get_rank()
        for kind, name, layout in cases():
            what = f"{kind} {name} {layout}"
            make = LAYOUTS[layout]

            def tensor(array, kind=kind, make=make):
                array = make(array)
                return array, CONVERT[kind](array)

            def check(array, expected, call, what=what, make=make):
                expected = make(expected)
                assert array.tobytes() == expected.tobytes(), f"{call} of {what} gave {array}, not {expected}"

            both = [values(name, 0), values(name, 1)]
            zeros = np.zeros_like(both[0])
            if name in REDUCED:
                array, x = tensor(both[rank])
                dist.all_reduce(x, dist.ReduceOp.MAX)
                check(array, np.maximum(*both), "all_reduce")
                array, x = tensor(both[rank])
                dist.reduce(x, 1, dist.ReduceOp.MAX)
                check(array, np.maximum(*both) if rank == 1 else both[0], "reduce")
            array, x = tensor(both[rank])
            dist.broadcast(x, 1)
            check(array, both[1], "broadcast")
            arrays, tensors = zip(*[tensor(zeros) for _ in both])
            dist.all_gather(list(tensors), tensor(both[rank])[1])
            for other, array in enumerate(arrays):
                check(array, both[other], "all_gather")
            arrays, tensors = zip(*[tensor(zeros) for _ in both])
            work = dist.gather(tensor(both[rank])[1], list(tensors) if rank == 0 else None, async_op=True)
            work.wait()
            for other, array in enumerate(arrays):
                check(array, both[other] if rank == 0 else zeros, "gather")
            array, x = tensor(zeros)
            dist.scatter(x, [tensor(block)[1] for block in both] if rank == 0 else None)
            check(array, both[rank], "scatter")
            array, x = tensor(zeros)
            works = [dist.isend(tensor(both[rank])[1], 1 - rank), dist.irecv(x, 1 - rank)]
            [work.wait() for work in works]
            check(array, both[1 - rank], "irecv")
            if layout == "0-d":
                continue
            own = make(both[rank])
            whole = np.zeros((2, *own.shape), own.dtype)
            dist.all_gather_into_tensor(CONVERT[kind](whole), CONVERT[kind](own))
            assert whole.tobytes() == b"".join(make(array).tobytes() for array in both), what
            if name in REDUCED:
                pair = np.stack([own, own])
                array, x = tensor(zeros)
                dist.reduce_scatter_tensor(x, CONVERT[kind](pair), dist.ReduceOp.MAX)
                check(array, np.maximum(*both), "reduce_scatter_tensor")
            pair = np.stack([own, own])
            whole = np.zeros_like(pair)
            dist.all_to_all_single(CONVERT[kind](whole), CONVERT[kind](pair))
            assert whole.tobytes() == b"".join(make(array).tobytes() for array in both), what

    run(2, body)


def calls_that_write(x, y, others):
    """Calls that write ``x`` on this rank, and read ``y``."""
    rank = dist.get_rank()
    yield lambda: dist.all_reduce(x, dist.ReduceOp.MAX)
    yield lambda: dist.reduce(x, rank, dist.ReduceOp.MAX)
    yield lambda: dist.broadcast(x, 1 - rank)
    yield lambda: dist.all_gather([x, others[0]], y)
    yield lambda: dist.gather(y, [x, others[0]], rank)
    yield lambda: dist.scatter(x, [y, y], rank)
    yield lambda: dist.scatter(x, None, 1 - rank)
    yield lambda: dist.recv(x, 1 - rank)
    yield lambda: dist.irecv(x, 1 - rank)
    yield lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1 - rank)])
    yield lambda: dist.all_gather_into_tensor(x, y)
    yield lambda: dist.reduce_scatter_tensor(x, y, dist.ReduceOp.MAX)
    yield lambda: dist.all_to_all_single(x, y)


def calls_that_read(x, y, others):
    """Calls that read ``x`` on this rank, and write others."""
    rank = dist.get_rank()
    yield lambda: dist.reduce(x, 1 - rank, dist.ReduceOp.MAX)
    yield lambda: dist.broadcast(x, rank)
    yield lambda: dist.all_gather(others, x)
    yield lambda: dist.gather(x, others, rank)
    yield lambda: dist.scatter(others[0], [x, y], rank)
    yield lambda: dist.send(x, 1 - rank)
    yield lambda: dist.isend(x, 1 - rank)
    yield lambda: dist.all_gather_into_tensor(np.concatenate([y, y]), x)
    yield lambda: dist.reduce_scatter_tensor(others[0][:1], x, dist.ReduceOp.MAX)
    yield lambda: dist.all_to_all_single(others[0], x)


def test_no_call_writes_what_is_read_only_or_uses_what_is_not_aligned():
    def body():
        for kind in CONVERT:
            for name in REDUCED:
                if (kind == "torch" and name not in OF_TORCH) or (kind == "interface" and hasattr(ml_dtypes, name)):
                    continue
                y = values(name, 0)[:, :2].copy()
                others = [y.copy(), y.copy()]
                locked = y.copy()
                locked.flags.writeable = False
                if kind != "torch":  # whose tensors cannot be read-only
                    for call in calls_that_write(CONVERT[kind](locked), y, others):
                        with pytest.raises(ValueError, match="it is read-only, and this call writes it"):
                            call()
                if not is_refused(name, "misaligned"):
                    continue
                odd = CONVERT[kind](misaligned(y))
                for call in [*calls_that_write(odd, y, others), *calls_that_read(odd, y, others)]:
                    with pytest.raises(ValueError, match=f"not aligned to its elements, {name}"):
                        call()

    run(2, body)


def test_every_call_reads_what_is_read_only():
    def body():
        rank = dist.get_rank()
        for kind in ["numpy", "interface", "dlpack"]:
            for name in REDUCED:
                if kind == "interface" and hasattr(ml_dtypes, name):
                    continue
                both = [values(name, other)[:, :2].copy() for other in range(2)]
                locked = both[rank].copy()
                locked.flags.writeable = False
                x = CONVERT[kind](locked)
                got, whole = [np.zeros_like(locked) for _ in both], np.zeros((4, 2), locked.dtype)
                part, parts = np.zeros_like(locked[:1]), np.zeros_like(locked)
                dist.all_gather(got, x)
                assert [array.tobytes() for array in got] == [array.tobytes() for array in both]
                dist.all_gather_into_tensor(whole, x)
                assert whole.tobytes() == np.concatenate(both).tobytes()
                dist.reduce_scatter_tensor(part, x, dist.ReduceOp.MAX)
                assert part.tobytes() == np.maximum(*both)[rank : rank + 1].tobytes()
                dist.all_to_all_single(parts, x)
                assert parts.tobytes() == np.stack([array[rank] for array in both]).tobytes()
                dist.broadcast(x if rank == 0 else got[0], 0)
                dist.reduce(got[1] if rank == 1 else x, 1, dist.ReduceOp.MAX)
                assert rank == 0 or got[1].tobytes() == np.maximum(*both).tobytes()
                dist.gather(x, got if rank == 0 else None)
                dist.scatter(got[0], [x, x] if rank == 0 else None)
                assert got[0].tobytes() == both[0].tobytes()
                works = [dist.isend(x, 1 - rank), dist.irecv(got[1], 1 - rank)]
                assert all(work.wait() for work in works) and got[1].tobytes() == both[1 - rank].tobytes()

    run(2, body)
