"""What tensors of one call have to do with each other: on several ranks, and on one."""

import numpy as np
import pytest
from ranks import peer, run

import distcollective
import distcollective.distributed as dist

ml_dtypes = peer("ml_dtypes")

#: Pairs of types with elements of the same length.
SAME_LENGTH = [
    ("float64", "complex64"),
    ("float64", "int64"),
    ("uint64", "complex64"),
    ("int16", "uint16"),
    ("uint16", "float16"),
    ("uint32", "float32"),
    ("complex128", "longdouble"),
    ("int4", "uint4"),
    ("int4", "int8"),
    ("float8_e4m3", "float8_e4m3fn"),
    ("float8_e3m4", "uint8"),
]


def zeros(name):
    return np.zeros(4, getattr(ml_dtypes, name, name))


def collectives(x):
    """Calls in which no rank returns before it has compared its call with the other rank's."""
    yield lambda: dist.all_gather([x.copy(), x.copy()], x.copy())
    yield lambda: dist.all_gather_into_tensor(np.concatenate([x, x]), x)
    yield lambda: dist.all_to_all_single(x.copy(), x)
    yield lambda: dist.all_to_all_single(x.copy(), x, async_op=True).wait()


@pytest.mark.parametrize("names", SAME_LENGTH, ids=" and ".join)
def test_ranks_compare_types_of_one_length(names):
    def body():
        rank = dist.get_rank()
        # A disagreement ends the group, with all groups of the same beginning.
        for number in range(len(list(collectives(zeros("int8"))))):
            dist.destroy_process_group()
            dist.init_process_group("gloo", rank=rank, world_size=2)
            with pytest.raises(distcollective.Error) as raised:
                list(collectives(zeros(names[rank])))[number]()
            assert raised.value.kind == "Disagreement"
            # The library's float8_e4m3 is float8_e4m3fn in Python.
            others = {"float8_e4m3fn": "float8_e4m3", "float8_e4m3": "float8_e4m3_ieee"}
            for caller, name in enumerate(names):
                text = f"rank {caller} calls {'all_to_all' if number > 1 else 'all_gather'} of"
                assert f" {others.get(name, name)}" in str(raised.value).partition(text)[2], raised.value

    run(2, body)


@pytest.mark.parametrize("names", SAME_LENGTH[:3], ids=" and ".join)
def test_a_receiver_compares_the_type(names):
    def body():
        x = zeros(names[dist.get_rank()])
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            with pytest.raises(distcollective.Error, match=f"rank 0 sent 4 {names[0]}.*its buffer is {names[1]}"):
                dist.recv(x, 0)

    run(2, body)


def overlapping():
    """Pairs of views of one array, and whether an element belongs to both."""
    line = np.zeros(12, np.float32)
    yield line[::2], line[1::2], False
    yield line[::2], line[::2], True
    yield line[:8:2], line[4:12:2], True
    yield line[:4:2], line[4:8:2], False
    yield line[::3], line[1::3], False
    # Steps of 2 and 3: the views are apart, which their steps alone do not show.
    yield line[0:4:2], line[3:7:3], False
    yield line[0:4:2], line[2:8:5], True
    matrix = np.zeros((4, 6), np.float32)
    yield matrix[:, 0], matrix[:, 1], False
    yield matrix[:, :2], matrix[:, 2:4], False
    yield matrix[:, :2], matrix[:, 1:3], True
    yield matrix[:, 0], matrix[0, :4], True
    yield matrix[::-1, 0], matrix[::-1, 1], False
    yield matrix[:, ::-1][:, 0], matrix[3, 2:6], True
    # A view whose elements are half as long.
    halves = matrix.view(np.int16)
    yield halves[:, 0], halves[:, 1], False
    yield halves[:, 1], halves[:, 1], True


def test_tensors_of_a_call_may_interleave_and_not_overlap():
    def body():
        rank = dist.get_rank()
        for number, (one, other, is_overlap) in enumerate(overlapping()):
            calls = {
                "input and output": lambda one=one, other=other: dist.all_to_all_single(one, other),
                "two outputs": lambda one=one, other=other: dist.all_gather([one, other], one.copy()),
                "messages": lambda one=one, other=other: [
                    work.wait()
                    for work in dist.batch_isend_irecv(
                        [dist.P2POp(dist.isend, one, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
                    )
                ],
            }
            for name, call in calls.items():
                if is_overlap:
                    with pytest.raises(ValueError, match="overlap"):
                        call()
                    continue
                one[...], other[...] = 1 + rank, 5 + rank
                call()
                expected = {
                    "input and output": ([5, 6], [5 + rank] * 2),
                    "two outputs": ([1, 1], [2, 2]),
                    "messages": ([1 + rank] * 2, [1 + 1 - rank] * 2),
                }[name]
                for tensor, values in zip((one, other), expected):
                    assert (tensor.reshape(2, -1) == np.array(values)[:, None]).all(), (number, name, tensor)
        # Inputs may be one tensor, strided or not.
        x = np.arange(8, dtype=np.float32)[::2]
        y = np.zeros(4, np.float32)
        dist.scatter(y, [x, x] if rank == 0 else None)
        assert y.tolist() == [0, 2, 4, 6]
        sends = [dist.P2POp(dist.isend, x, 1 - rank)] * 2
        receives = [dist.P2POp(dist.irecv, tensor, 1 - rank) for tensor in (y, y.copy())]
        [work.wait() for work in dist.batch_isend_irecv(sends + receives)]

    run(2, body)
