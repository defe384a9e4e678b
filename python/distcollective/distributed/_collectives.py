"""Calls that all ranks of a group make together."""

import enum
from typing import Any, List, Optional, Sequence

from .._core import Work
from ..errors import ArgumentError
from ._groups import Group, ProcessGroup, Timeout, member


class ReduceOp(enum.IntEnum):
    """How elements are reduced. Bits are those of integers and bool, and the host backend's."""

    SUM = 0
    PRODUCT = 1
    MAX = 2
    MIN = 3
    AVG = 4
    BAND = 101
    BOR = 102
    BXOR = 103


def _number_of(op: Any) -> int:
    """The number of a reduction: of a ``ReduceOp``, or of torch's with the same name."""
    if type(op) is ReduceOp:
        return op
    name = getattr(op, "name", None)
    if name is None:
        raise TypeError(f"op is {op!r}, not a ReduceOp")
    found = ReduceOp.__members__.get(name)
    if found is None:
        raise ArgumentError(f"op is {name}, which is not offered; there are {', '.join(ReduceOp.__members__)}")
    return found


def all_reduce(tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Optional[Work]:
    """Replace the tensor on every rank by the reduction of all of them.

    With ``async_op`` it returns a ``Work`` at once, as all functions here do.

    >>> def body():
    ...     x = np.array([dist.get_rank(), 1], np.float32)
    ...     dist.all_reduce(x, dist.ReduceOp.MAX)
    ...     return x.tolist()
    >>> dist.run_threads(2, body)
    [[1.0, 1.0], [1.0, 1.0]]
    """
    found = member(group, "all_reduce")
    return None if found is None else found._live().all_reduce(tensor, _number_of(op), async_op)


class _Works:
    """Several calls that go on, as one ``Work``."""

    def __init__(self, works: List[Work]) -> None:
        self._works = works

    def wait(self, timeout: Timeout = None) -> bool:
        """Wait until all calls have ended, and raise the first error. The timeout is for each."""
        return all([work.wait(timeout) for work in self._works])

    def is_completed(self) -> bool:
        """Whether all calls have ended. Does not wait."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all calls have ended well. Does not wait."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Optional[BaseException]:
        """The first error. Does not wait."""
        return next(filter(None, (work.exception() for work in self._works)), None)


def _together(works: List[Optional[Work]]) -> Optional[_Works]:
    """What a call of several gives: one ``Work``, unless they have blocked."""
    going_on = [work for work in works if work is not None]
    return _Works(going_on) if going_on else None


def all_reduce_coalesced(
    tensors: Sequence[Any], op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Optional[_Works]:
    """``all_reduce`` of each tensor of a list.

    >>> def body():
    ...     x, y = np.ones(2), np.array([dist.get_rank()])
    ...     dist.all_reduce_coalesced([x, y], async_op=True).wait()
    ...     return x.tolist(), y.tolist()
    >>> dist.run_threads(2, body)
    [([2.0, 2.0], [1]), ([2.0, 2.0], [1])]
    """
    found = member(group, "all_reduce_coalesced")
    if found is None:
        return None
    communicator, number = found._live(), _number_of(op)
    return _together([communicator.all_reduce(tensor, number, async_op) for tensor in tensors])


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Any]],
    input_tensor_list: Sequence[Any],
    group: Group = None,
    async_op: bool = False,
) -> Optional[_Works]:
    """``all_gather`` of each tensor of a list. There is an output list for each rank, with a place for each tensor.

    >>> def body():
    ...     got = [[np.zeros(1), np.zeros(2)] for _ in range(2)]
    ...     dist.all_gather_coalesced(got, [np.ones(1), np.full(2, dist.get_rank() + 2.0)])
    ...     return [[x.tolist() for x in row] for row in got]
    >>> dist.run_threads(2, body)[1]
    [[[1.0], [2.0, 2.0]], [[1.0], [3.0, 3.0]]]
    """
    found = member(group, "all_gather_coalesced")
    if found is None:
        return None
    n, inputs = found.size(), list(input_tensor_list)
    lists = [list(row) for row in output_tensor_lists]
    if len(lists) != n or any(len(row) != len(inputs) for row in lists):
        raise ArgumentError(
            f"output_tensor_lists has a list for each of {n} ranks, with a place for each of {len(inputs)} tensors"
        )
    communicator, outputs = found._live(), list(zip(*lists))
    return _together(
        [
            communicator.call_on_list("all_gather", tensor, list(row), 0, async_op)
            for row, tensor in zip(outputs, inputs)
        ]
    )


def broadcast(
    tensor: Any,
    src: Optional[int] = None,
    group: Group = None,
    async_op: bool = False,
    group_src: Optional[int] = None,
) -> Optional[Work]:
    """Replace the tensor on every rank by that of global rank ``src``.

    ``group_src`` is its number in the group, in place of ``src``. So are ``group_dst`` and the like
    of other functions.

    >>> def body():
    ...     x = np.array([dist.get_rank()])
    ...     dist.broadcast(x, src=1)
    ...     return x.tolist()
    >>> dist.run_threads(2, body)
    [[1], [1]]
    """
    found = member(group, "broadcast")
    if found is None:
        return None
    return found._live().broadcast(tensor, found._peer("src", src, group_src), async_op)


def reduce(
    tensor: Any,
    dst: Optional[int] = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: Optional[int] = None,
) -> Optional[Work]:
    """Replace the tensor of global rank ``dst`` by the reduction of all. The others keep theirs.

    >>> def body():
    ...     x = np.array([dist.get_rank() + 1])
    ...     dist.reduce(x, dst=0)
    ...     return x.tolist()
    >>> dist.run_threads(2, body)
    [[3], [2]]
    """
    found = member(group, "reduce")
    if found is None:
        return None
    return found._live().reduce(tensor, _number_of(op), found._peer("dst", dst, group_dst), async_op)


def list_of_root(
    name: str, tensors: Optional[Sequence[Any]], root_name: str, root: int, group: ProcessGroup
) -> Optional[List[Any]]:
    """The list that the root alone gives."""
    if group.rank() == root and tensors is None:
        raise ArgumentError(f"{name} is missing; {root_name} gives a tensor for each rank")
    if group.rank() != root and tensors:
        raise ArgumentError(f"{name} is for {root_name} alone, which is global rank {group._ranks[root]}")
    return None if tensors is None else list(tensors)


def scatter(
    tensor: Any,
    scatter_list: Optional[Sequence[Any]] = None,
    src: Optional[int] = None,
    group: Group = None,
    async_op: bool = False,
    group_src: Optional[int] = None,
) -> Optional[Work]:
    """Give each rank of the group its element of the list of global rank ``src``, by default 0.

    >>> def body():
    ...     x = np.zeros(2, np.int32)
    ...     given = [np.array([1, 2], np.int32), np.array([3, 4], np.int32)]
    ...     dist.scatter(x, given if dist.get_rank() == 0 else None)
    ...     return x.tolist()
    >>> dist.run_threads(2, body)
    [[1, 2], [3, 4]]
    """
    found = member(group, "scatter")
    if found is None:
        return None
    root = found._root("src", src, group_src)
    tensors = list_of_root("scatter_list", scatter_list, "src", root, found)
    return found._live().call_on_list("scatter", tensor, tensors, root, async_op)


def gather(
    tensor: Any,
    gather_list: Optional[Sequence[Any]] = None,
    dst: Optional[int] = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: Optional[int] = None,
) -> Optional[Work]:
    """Give global rank ``dst``, by default 0, the tensor of each rank, in its list.

    >>> def body():
    ...     got = [np.zeros(1, np.int32), np.zeros(1, np.int32)] if dist.get_rank() == 0 else None
    ...     dist.gather(np.array([dist.get_rank() + 5], np.int32), got)
    ...     return got and [x.tolist() for x in got]
    >>> dist.run_threads(2, body)
    [[[5], [6]], None]
    """
    found = member(group, "gather")
    if found is None:
        return None
    root = found._root("dst", dst, group_dst)
    tensors = list_of_root("gather_list", gather_list, "dst", root, found)
    return found._live().call_on_list("gather", tensor, tensors, root, async_op)


def all_gather(tensor_list: Sequence[Any], tensor: Any, group: Group = None, async_op: bool = False) -> Optional[Work]:
    """Give every rank the tensor of each rank, in its list. They may have different lengths.

    >>> def body():
    ...     got = [np.zeros(1, np.int32), np.zeros(1, np.int32)]
    ...     dist.all_gather(got, np.array([dist.get_rank() + 5], np.int32))
    ...     return [x.tolist() for x in got]
    >>> dist.run_threads(2, body)
    [[[5], [6]], [[5], [6]]]
    """
    found = member(group, "all_gather")
    if found is None:
        return None
    return found._live().call_on_list("all_gather", tensor, list(tensor_list), 0, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group = None, async_op: bool = False
) -> Optional[Work]:
    """Give every rank the tensors of all ranks, one after the other in one tensor.

    >>> def body():
    ...     got = np.zeros(4, np.int32)
    ...     dist.all_gather_into_tensor(got, np.full(2, dist.get_rank(), np.int32))
    ...     return got.tolist()
    >>> dist.run_threads(2, body)
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    found = member(group, "all_gather_into_tensor")
    return None if found is None else found._live().all_gather_into(output_tensor, input_tensor, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Optional[Work]:
    """Reduce the inputs of all ranks, and give each rank its part of the result.

    The parts are along dimension 0, whose length is a multiple of the number of ranks.

    >>> def body():
    ...     part = np.zeros(1, np.int32)
    ...     dist.reduce_scatter_tensor(part, np.array([1, 10], np.int32))
    ...     return part.tolist()
    >>> dist.run_threads(2, body)
    [[2], [20]]
    """
    found = member(group, "reduce_scatter_tensor")
    return None if found is None else found._live().reduce_scatter(output, input, _number_of(op), async_op)


def reduce_scatter(
    output: Any, input_list: Sequence[Any], op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Optional[Work]:
    """Reduce the lists of all ranks, and give each rank its tensor of the result.

    The tensors of a list may have different lengths.

    >>> def body():
    ...     got = np.zeros(dist.get_rank() + 1)
    ...     dist.reduce_scatter(got, [np.ones(1), np.ones(2)])
    ...     return got.tolist()
    >>> dist.run_threads(2, body)
    [[2.0], [2.0, 2.0]]
    """
    found = member(group, "reduce_scatter")
    if found is None:
        return None
    return found._live().call_on_blocks("reduce_scatter", [output], list(input_list), _number_of(op), async_op)


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: Group = None, async_op: bool = False
) -> Optional[Work]:
    """Send each rank its tensor of the list. What comes from each rank is put into the other list.

    The tensors may have different lengths.

    >>> def body():
    ...     got = [np.zeros(1), np.zeros(1)]
    ...     dist.all_to_all(got, [np.array([10.0 * dist.get_rank() + other]) for other in range(2)])
    ...     return [x.tolist() for x in got]
    >>> dist.run_threads(2, body)
    [[[0.0], [10.0]], [[1.0], [11.0]]]
    """
    found = member(group, "all_to_all")
    if found is None:
        return None
    outputs, inputs = list(output_tensor_list), list(input_tensor_list)
    return found._live().call_on_blocks("all_to_all", outputs, inputs, 0, async_op)


def split_sizes(sizes: Optional[Sequence[int]]) -> Optional[List[int]]:
    """Split sizes, if there are any. An empty list is none, as in torch."""
    return None if sizes is None or len(sizes) == 0 else [int(size) for size in sizes]


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Optional[Sequence[int]] = None,
    input_split_sizes: Optional[Sequence[int]] = None,
    group: Group = None,
    async_op: bool = False,
) -> Optional[Work]:
    """Divide the input into one part for each rank, and send it there.

    The parts are along dimension 0, and equally long unless split sizes are given. If one rank
    gives split sizes, all do.

    >>> def body():
    ...     got = np.zeros(2, np.int32)
    ...     dist.all_to_all_single(got, np.array([0, 1], np.int32) + 10 * dist.get_rank())
    ...     return got.tolist()
    >>> dist.run_threads(2, body)
    [[0, 10], [1, 11]]
    """
    found = member(group, "all_to_all_single")
    if found is None:
        return None
    output_sizes, input_sizes = split_sizes(output_split_sizes), split_sizes(input_split_sizes)
    if output_sizes is None and input_sizes is None:
        return found._live().all_to_all(output, input, async_op)
    return found._live().all_to_all_split(output, input, output_sizes, input_sizes, async_op)


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: Optional[List[int]] = None,
    timeout: Timeout = None,
) -> Optional[Work]:
    """Wait until every rank of the group has come.

    ``device_ids`` is None, or with "nccl" a list with the number of the group's GPU. ``timeout`` is
    the group's unless it is given.

    >>> def body():
    ...     work = dist.barrier(async_op=True)
    ...     work.wait()
    ...     return work.is_completed()
    >>> dist.run_threads(2, body)
    [True, True]
    """
    found = member(group, "barrier")
    if found is None:
        return None
    communicator = found._live()
    if device_ids is not None and list(device_ids) != [communicator.gpu]:
        gpu = "is on no GPU" if communicator.gpu is None else f"is on GPU {communicator.gpu}"
        raise ArgumentError(f"device_ids is {device_ids!r}, and the group {gpu}; leave it None")
    return (communicator if timeout is None else communicator.with_timeout(timeout)).barrier(async_op)


def monitored_barrier(group: Group = None, timeout: Timeout = None, wait_all_ranks: bool = False) -> None:
    """Wait until every rank of the group has come. The error names all that have not.

    ``wait_all_ranks`` is read as True, whatever it is.

    >>> is_over = threading.Event()
    >>> def body():
    ...     if dist.get_rank() == 1:
    ...         return is_over.wait()
    ...     try:
    ...         dist.monitored_barrier(timeout=timedelta(milliseconds=50))
    ...     except TimeoutError as error:
    ...         is_over.set()
    ...         return "rank 1" in str(error)
    >>> dist.run_threads(2, body)
    [True, True]
    """
    found = member(group, "monitored_barrier")
    if found is not None:
        found.monitored_barrier(timeout, wait_all_ranks)
