"""The extension module: what ``distcollective.distributed`` is made of."""

from datetime import timedelta
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, final

__all__ = ["Communicator", "Environment", "GpuBytes", "Work", "in_process", "initialize"]

@final
class Work:
    """A call that goes on after it has returned."""

    def wait(self, timeout: Optional[timedelta] = None) -> bool:
        """Wait until the call has ended, and raise its error if it has one.

        A ``DeadlineError`` says that the timeout is over; zero is no limit. The call goes on then,
        and after a Ctrl-C too. Strided tensors have their new values when this returns.
        """

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not. Does not wait."""

    def is_success(self) -> bool:
        """Whether the call has ended well. Does not wait."""

    def exception(self) -> Optional[BaseException]:
        """The error of a call that has ended with one. Does not wait."""

    def sources(self) -> List[Optional[int]]:
        """The group's ranks that sent what was received, for each message; None for a send."""

@final
class Communicator:
    """One rank of a set of ranks. Roots and peers are ranks of this communicator."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def backend(self) -> str:
        """ "gloo" or "nccl"."""

    @property
    def gpu(self) -> Optional[int]:
        """The number of the GPU that tensors are on; None if they are in host memory."""

    @property
    def timeout(self) -> timedelta: ...
    def with_timeout(self, timeout: timedelta) -> Communicator: ...
    def global_ranks(self) -> List[int]: ...
    def new_group(self, ranks: Sequence[int]) -> Optional[Communicator]: ...
    def abort(self, reason: str) -> None: ...
    def barrier(self, async_op: bool = False) -> Optional[Work]: ...
    def monitored_barrier(self, timeout: timedelta) -> None: ...
    def all_reduce(self, tensor: Any, op: int, async_op: bool = False) -> Optional[Work]: ...
    def broadcast(self, tensor: Any, root: int, async_op: bool = False) -> Optional[Work]: ...
    def reduce(self, tensor: Any, op: int, root: int, async_op: bool = False) -> Optional[Work]: ...
    def all_gather_into(self, output: Any, input: Any, async_op: bool = False) -> Optional[Work]: ...
    def reduce_scatter(self, output: Any, input: Any, op: int, async_op: bool = False) -> Optional[Work]: ...
    def all_to_all(self, output: Any, input: Any, async_op: bool = False) -> Optional[Work]: ...
    def call_on_list(
        self, operation: str, tensor: Any, tensors: Optional[Sequence[Any]], root: int, async_op: bool = False
    ) -> Optional[Work]:
        """ "all_gather", "gather" or "scatter" with a tensor for each rank."""

    def messages(self, messages: Sequence[Tuple[bool, Any, Optional[int], int]], async_op: bool = True) -> Work:
        """Begin messages: whether it is sent, the tensor, the other rank (None is any), the tag.

        Without ``async_op`` the work has ended when this returns.
        """

    def broadcast_tensor_dict(
        self, entries: Sequence[Tuple[str, Any, Sequence[int]]], options: Mapping[str, Any]
    ) -> List[Tuple[str, str, List[int], Union[bytearray, GpuBytes]]]:
        """Give every rank the tensors of ``src``: name, type, shape, bytes. None on ``src``."""

    def broadcast_bytes(self, data: bytes, root: int) -> bytes: ...

@final
class GpuBytes:
    """Bytes in the memory of a GPU."""

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...

@final
class Environment:
    """This process's place among all ranks."""

    @property
    def communicator(self) -> Communicator: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def destroy(self) -> None: ...

def in_process(world_size: int, backend: str, timeout: Optional[timedelta] = None) -> List[Communicator]:
    """The communicators of ranks that are threads of this process."""

def initialize(options: Mapping[str, Any]) -> Environment:
    """Find the other ranks. What the options leave out comes from the launcher's variables."""
