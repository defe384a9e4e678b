"""Which tensors a call takes, which it copies, and which it refuses."""

import enum
import gc
import weakref

import numpy as np
import pytest
from ranks import peer, run
from test_matrix import MOVED, Interface, dtype_of

import distcollective.distributed as dist

torch = peer("torch")
ml_dtypes = peer("ml_dtypes")


def test_a_contiguous_tensor_is_used_in_place_and_others_are_written_back_by_the_work(tmp_path):
    (tmp_path / "numbers").write_bytes(np.arange(6, dtype=np.float32).tobytes())

    def body():
        matrix = torch.zeros(3, 2)
        column = matrix[:, 1]
        column += dist.get_rank()
        work = dist.all_reduce(column, async_op=True)
        while not work.is_completed():
            pass
        assert matrix.tolist() == [[0, 1]] * 3
        assert work.wait()
        # A strided input is not written, not even with its own values: that would end the process.
        source = np.memmap(tmp_path / "numbers", np.float32, mode="r")[::2]
        target = np.zeros(3, np.float32)
        dist.all_to_all_single(np.zeros(4, np.float32)[::2], np.broadcast_to(np.float32(1), 2))
        dist.all_gather([np.zeros(3, np.float32) for _ in range(2)], source)
        with pytest.raises(MemoryError, match="a copy of 140737488355328 bytes"):
            dist.send(np.broadcast_to(np.zeros(1), 2**44), 1 - dist.get_rank())
        if dist.get_rank() == 0:
            dist.send(source, 1)
        else:
            dist.recv(target)
            assert target.tolist() == [0, 2, 4]

    run(2, body)


def test_elements_of_a_dimension_may_lie_among_those_of_another():
    def body():
        memory = torch.zeros(8)
        # Elements 0, 2, 4 and 3, 5, 7.
        tensor = memory.as_strided((2, 3), (3, 2))
        tensor += torch.arange(6).reshape(2, 3)
        dist.all_reduce(tensor)
        return memory.tolist()

    assert run(2, body) == [[0, 0, 2, 6, 4, 8, 0, 10]] * 2


def read_only(array):
    array.flags.writeable = False
    return array


def misaligned():
    return np.zeros(13, np.uint8)[1:].view(np.float32)


def refused():
    yield ValueError, "read-only", lambda: read_only(np.zeros(2, np.float32))
    yield TypeError, "big-endian", lambda: np.zeros(2, ">f4")
    yield ValueError, "not aligned to its elements, float32 of 4 bytes", misaligned
    yield TypeError, "a scalar of numpy, which cannot be written", lambda: np.float32(1)
    yield ValueError, "several of its indices are one element", lambda: torch.zeros(1).expand(3)
    yield ValueError, "several of its indices are one element", lambda: torch.zeros(4).as_strided((3, 2), (1, 1))
    yield ValueError, "several of its indices are one element", lambda: torch.zeros(13).as_strided((3, 3), (4, 2))
    yield ValueError, "requires grad.*detach", lambda: torch.zeros(2, requires_grad=True)
    yield ValueError, "requires grad", lambda: torch.nn.Parameter(torch.zeros(2))
    yield ValueError, "it is on meta", lambda: torch.zeros(2, device="meta")
    yield TypeError, "layout is torch.sparse_coo.*to_dense", lambda: torch.zeros(2).to_sparse()
    yield ValueError, "resolve_conj", lambda: torch.zeros(2, dtype=torch.complex64).conj()
    yield TypeError, "qint8", lambda: torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)
    yield TypeError, "void", lambda: np.zeros(2, [("a", "i4")])
    yield TypeError, "by '?\"?<V2", lambda: Interface(np.zeros(2, ml_dtypes.bfloat16))
    yield TypeError, "object", lambda: np.zeros(2, object)
    yield TypeError, "datetime64", lambda: np.zeros(2, "M8[s]")
    yield TypeError, "it is a list, not a tensor", lambda: [1.0, 2.0]
    yield TypeError, "it is a bytearray", lambda: bytearray(4)
    yield TypeError, "it is a NoneType", lambda: None


def test_what_is_refused():
    def body():
        for kind, text, make in refused():
            with pytest.raises(kind, match=f"^tensor: .*{text}"):
                dist.broadcast(make(), 1 - dist.get_rank())
        for name in [name for name in MOVED if "complex" not in name]:
            with pytest.raises(TypeError, match=f"^tensor: {name} is not reduced: its elements move as bytes"):
                dist.all_reduce(np.zeros(2, dtype_of(name)))
        with pytest.raises(TypeError, match="^tensor_list: .*scalar"):
            dist.all_gather([np.float32(0)] * 2, np.float32(1))
        # The group still works; and inputs may be read-only, scalars of numpy, and require grad.
        results = [np.zeros((), np.float32) for _ in range(2)]
        dist.all_gather(results, np.float32(dist.get_rank()))
        assert results == [0, 1]
        for x in [read_only(np.ones(1, np.float32)), torch.ones(1, requires_grad=True)]:
            dist.all_gather([y.reshape(1) for y in results], x)
            assert results == [1, 1]

    run(2, body)


def give_other_data(tensor):
    tensor.data = torch.zeros(1)


@pytest.mark.parametrize("give_other_memory", [lambda tensor: tensor.set_(), give_other_data])
def test_memory_lives_when_its_tensor_gets_another(give_other_memory):
    def body():
        rank = dist.get_rank()
        array = np.zeros(1000, np.float32)
        memory, tensor = weakref.ref(array), torch.from_numpy(array)
        del array
        work = dist.irecv(tensor, 1 - rank)
        give_other_memory(tensor)
        gc.collect()
        assert memory() is not None
        dist.send(np.ones(1000, np.float32), 1 - rank)
        received = memory()
        assert work.wait() and received.tolist() == [1] * 1000
        del received
        gc.collect()
        assert memory() is None

    run(2, body)


def test_elements_of_several_words_are_not_divided():
    def body():
        x = np.zeros(3, np.complex128)
        with pytest.raises(ValueError, match="dimension 0 of input is 3, which is not a multiple of 2 ranks"):
            dist.all_to_all_single(x.copy(), x)

    run(2, body)


def test_masked_arrays_and_null_addresses_are_refused():
    def body():
        masked = np.ma.masked_array(np.zeros(3, np.float32), [0, 1, 0])
        with pytest.raises(TypeError, match="^tensor: it is a masked array, whose mask would not count"):
            dist.all_reduce(masked)
        null = {"typestr": "<f4", "shape": (2, 2), "strides": (16, 4), "data": (0, False), "version": 3}
        with pytest.raises(ValueError, match="^tensor: its address is null, and it has elements"):
            dist.all_reduce(type("Null", (), {"__array_interface__": null})())

    run(1, body)


def test_reductions_are_those_of_this_package_or_have_their_names():
    class Torchs(enum.Enum):
        """Numbers as torch has them."""

        AVG, PRODUCT, MIN, MAX, BAND, PREMUL_SUM = 1, 2, 3, 4, 5, 8

    def body():
        x = np.array([dist.get_rank() + 2.0], np.float32)
        for op, expected in [(Torchs.AVG, 2.5), (Torchs.PRODUCT, 6), (Torchs.MIN, 2), (Torchs.MAX, 3)]:
            y = x.copy()
            dist.all_reduce(y, op)
            assert y[0] == expected, op
        with pytest.raises(ValueError, match="op is PREMUL_SUM, which is not offered; there are SUM, PRODUCT"):
            dist.all_reduce(x, Torchs.PREMUL_SUM)
        with pytest.raises(ValueError, match="band is of integers and bool, and not of float32"):
            dist.all_reduce(x, Torchs.BAND)
        for op, expected in [(Torchs.BAND, 2), (dist.ReduceOp.BOR, 3), (dist.ReduceOp.BXOR, 1)]:
            y = np.array([dist.get_rank() + 2], np.uint8)
            dist.all_reduce(y, op)
            assert y[0] == expected, op
        with pytest.raises(TypeError, match="op is 1, not a ReduceOp"):
            dist.all_reduce(x, 1)

    run(2, body)
