"""Ranks that are threads of one process."""

import threading
from typing import Callable, List, Optional, Tuple, TypeVar

from .. import _core
from ..errors import ArgumentError, Error
from ._groups import ProcessGroup, Timeout, known_backend, thread_is_rank, without_gpus

Result = TypeVar("Result")

#: How often the main thread looks for signals, in seconds.
_INTERVAL = 0.1


def run_threads(
    world_size: int,
    function: Callable[[], Result],
    backend: Optional[str] = None,
    timeout: Timeout = None,
) -> List[Result]:
    """Run a function on ranks that are threads of this process. Give what each has returned.

    In the function this module's calls are those of the thread's rank: there is a group of all
    ranks, without ``init_process_group``. With backend "nccl" rank ``r`` has GPU ``r``. If the
    function raises an exception on a rank, the group ends, and the first exception is raised here.
    A rank whose function has returned has left: ranks that wait for it get an error.

    >>> import numpy
    >>> import distcollective.distributed as dist
    >>> def body():
    ...     x = numpy.full(2, dist.get_rank(), dtype=numpy.float32)
    ...     dist.all_reduce(x)
    ...     return x.tolist()
    >>> dist.run_threads(3, body)
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """
    if world_size < 1:
        raise ArgumentError(f"world_size is {world_size}; there is at least one rank")
    name = known_backend(backend)
    try:
        # Only the groups hold the communicators, so that a rank that drops its group's has left.
        groups = [ProcessGroup(communicator) for communicator in _core.in_process(world_size, name, timeout)]
    except Error as error:
        raise without_gpus(error) if name == "nccl" and error.kind == "Unsupported" else error from None
    results: List[Optional[Tuple[Result]]] = [None] * world_size
    failures: List[BaseException] = []

    def be_rank(rank: int) -> None:
        with thread_is_rank(groups[rank]):
            try:
                results[rank] = (function(),)
            except BaseException as error:
                failures.append(error)
                groups[rank]._abort(f"rank {rank} raised {type(error).__name__}: {error}")

    threads = [threading.Thread(target=be_rank, args=(rank,), daemon=True) for rank in range(world_size)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            # A signal may have come to another thread, which does not wake this one.
            while thread.is_alive():
                thread.join(_INTERVAL)
    except BaseException as error:
        # Ctrl-C, which reaches the main thread alone.
        for group in groups:
            group._abort(f"the program was interrupted: {type(error).__name__}")
        raise
    if failures:
        raise failures[0]
    return [result[0] for result in results if result is not None]
