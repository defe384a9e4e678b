"""The extension module: what ``distcollective.distributed`` is made of."""

from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union, final

_Timeout = Union[timedelta, float]

__all__ = [
    "Communicator",
    "Context",
    "Engine",
    "Environment",
    "GpuBytes",
    "Layer",
    "LayerId",
    "Network",
    "SessionCommunicator",
    "TensorId",
    "Work",
    "connect",
    "from_mpi",
    "in_process",
    "initialize",
]

@final
class Work:
    """A call that goes on after it has returned."""

    def wait(self, timeout: Optional[_Timeout] = None) -> bool:
        """Wait until the call has ended, and raise its error if it has one.

        A ``DeadlineError`` says that the timeout is over; zero is no limit. The call goes on then,
        and after a Ctrl-C too. Strided tensors have their new values when this returns.
        """

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not. Waits for no other rank."""

    def is_success(self) -> bool:
        """Whether the call has ended well. Waits for no other rank."""

    def exception(self) -> Optional[BaseException]:
        """The error of a call that has ended with one. Waits for no other rank."""

    def forget_tensors(self) -> None:
        """Let go of torch's tensors on a GPU. The caller keeps them until the GPU does not use them."""

    def _source_rank(self) -> Optional[int]:
        """The sender of a message that has been received, by its rank in the group."""

    def received(self) -> List[Optional[Tuple[int, int]]]:
        """The sender, by its rank in the group, and the number of elements, for each message that was
        received; None for a send."""

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
    def with_timeout(self, timeout: _Timeout) -> Communicator: ...
    def global_ranks(self) -> List[int]: ...
    def new_group(self, ranks: Sequence[int]) -> Optional[Communicator]: ...
    def abort(self, reason: str) -> None: ...
    def begin_request(self, id: int) -> None: ...
    def end_request(self, failure: Optional[str]) -> None: ...
    def barrier(self, async_op: bool = False) -> Optional[Work]: ...
    def monitored_barrier(self, timeout: _Timeout) -> None: ...
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

    def all_to_all_split(
        self,
        output: Any,
        input: Any,
        output_sizes: Optional[Sequence[int]],
        input_sizes: Optional[Sequence[int]],
        async_op: bool = False,
    ) -> Optional[Work]:
        """all_to_all of parts along dimension 0, of these lengths, or of one length."""

    def call_on_blocks(
        self, operation: str, outputs: Sequence[Any], inputs: Sequence[Any], op: int, async_op: bool = False
    ) -> Optional[Work]:
        """ "all_to_all" or "reduce_scatter" of tensors with different lengths."""

    def messages(
        self,
        messages: Sequence[Tuple[bool, Any, Optional[int], int]],
        async_op: bool = True,
        on_stream: bool = False,
    ) -> Work:
        """Begin messages: whether it is sent, the tensor, the other rank (None is any), the tag.

        Without ``async_op`` the work has ended when this returns. On GPUs the messages are enqueued on the stream of
        the tensors with ``on_stream``. Otherwise this waits for that stream, and they have one of their own.
        """

    def broadcast_tensor_dict(
        self, entries: Optional[Sequence[Tuple[str, Any]]], options: Mapping[str, Any]
    ) -> List[Tuple[str, str, List[int], Union[bytearray, GpuBytes]]]:
        """Give every rank the tensors of ``src``: name, type, shape, bytes. None on ``src``."""

    def all_gather_bytes(self, data: bytes) -> List[bytes]: ...
    def gather_bytes(self, data: bytes, root: int) -> Optional[List[bytes]]: ...
    def scatter_bytes(self, list: Optional[Sequence[bytes]], root: int) -> bytes: ...
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

def connect(
    exchange: Callable[[bytes], List[bytes]],
    rank: int,
    world_size: int,
    timeout: _Timeout,
    gpu: Optional[int] = None,
) -> Communicator:
    """The communicator of processes, for whom ``exchange`` brings each rank the bytes of all; on GPUs if it has one."""

def from_mpi(comm: int, timeout: Optional[_Timeout] = None) -> Communicator:
    """The communicator of the ranks of an ``MPI_Comm``, which is given as a number."""

def in_process(world_size: int, backend: str, timeout: Optional[_Timeout] = None) -> List[Communicator]:
    """The communicators of ranks that are threads of this process."""

def initialize(options: Mapping[str, Any]) -> Environment:
    """Find the other ranks. What the options leave out comes from the launcher's variables."""

@final
class SessionCommunicator:
    """A communicator that sessions of ONNX Runtime can be made with, as long as this lives."""

    def __new__(cls, communicator: Communicator) -> "SessionCommunicator": ...
    @property
    def value(self) -> str: ...

@final
class TensorId:
    """Which tensor of a network."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class LayerId:
    """Which layer of a network."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Network:
    """The description of a network. Types and operations are TensorRT's numbers."""

    def __new__(cls) -> Network: ...
    def for_rank(self, rank: int, world_size: int) -> None: ...
    def add_input(self, name: str, data_type: int, dims: Sequence[int]) -> TensorId: ...
    def add_dist_collective(
        self,
        input: TensorId,
        operations: Tuple[int, int],
        root: int,
        ranks: Sequence[int],
        group_size: Optional[int],
    ) -> LayerId:
        """Add a collective: operation and reduction, root, ranks. With a size, ranks of a partition."""

    def add_shuffle(self, input: TensorId) -> LayerId: ...
    def add_cast(self, input: TensorId, to: int) -> LayerId: ...
    def add_constant(self, dims: Sequence[int], weights: Any) -> LayerId: ...
    def add_elementwise(self, a: TensorId, b: TensorId, operation: int) -> LayerId: ...
    def add_concatenation(self, inputs: Sequence[TensorId], axis: int) -> LayerId: ...
    def add_slice(
        self, input: TensorId, start: Sequence[int], size: Sequence[int], stride: Sequence[int]
    ) -> LayerId: ...
    def add_identity(self, input: TensorId) -> LayerId: ...
    def add_plugin(self, name: str, plugin: Any, inputs: Sequence[TensorId]) -> LayerId: ...
    def mark_output(self, tensor: TensorId) -> None: ...
    def inputs(self) -> List[TensorId]: ...
    def outputs(self) -> List[TensorId]: ...
    def layers(self) -> List[LayerId]: ...
    def layer_count(self) -> int: ...
    def tensor_name(self, tensor: TensorId) -> str: ...
    def set_tensor_name(self, tensor: TensorId, name: str) -> None: ...
    def tensor_data_type(self, tensor: TensorId) -> int: ...
    def tensor_dims(self, tensor: TensorId) -> List[int]: ...
    def build(self, profiles: Sequence[Sequence[Tuple[str, Sequence[Sequence[int]]]]]) -> Engine:
        """Build an engine. A profile has min, opt and max of inputs by their names."""

@final
class Layer:
    """A layer of a network."""

    def __new__(cls, network: Network, id: LayerId) -> Layer: ...
    def id(self) -> LayerId: ...
    def name(self) -> str: ...
    def set_name(self, name: str) -> None: ...
    def metadata(self) -> str: ...
    def set_metadata(self, metadata: str) -> None: ...
    def kind(self) -> str: ...
    def inputs(self) -> List[TensorId]: ...
    def outputs(self) -> List[TensorId]: ...
    def set_input(self, index: int, tensor: TensorId) -> None: ...
    def rank_count(self) -> int: ...
    def set_rank_count(self, count: int) -> None: ...
    def dist_collective(self) -> Tuple[int, int, int, List[List[int]]]:
        """Operation, reduction, root, groups."""

    def shuffle(self) -> Tuple[Optional[List[int]], Optional[List[int]], Optional[List[int]]]:
        """The first transpose, the reshape, the second transpose."""

    def set_shuffle(
        self, steps: Tuple[Optional[Sequence[int]], Optional[Sequence[int]], Optional[Sequence[int]]]
    ) -> None: ...
    def cast_type(self) -> int: ...
    def set_cast_type(self, to: int) -> None: ...
    def elementwise_operation(self) -> int: ...
    def set_elementwise_operation(self, operation: int) -> None: ...
    def axis(self) -> int: ...
    def set_axis(self, axis: int) -> None: ...
    def slice(self) -> List[List[int]]:
        """Start, size and stride."""

    def set_slice(self, slice: Sequence[Sequence[int]]) -> None: ...

@final
class Engine:
    """A network that is ready to run."""

    @staticmethod
    def deserialize(plan: bytes, plugins: Sequence[Tuple[str, str, Any]]) -> Engine:
        """Read a plan. A plugin has a name, a version, and a function that makes one from bytes."""

    def serialize(self) -> bytes: ...
    def io_tensors(self) -> List[Tuple[str, bool, int, List[int]]]:
        """The inputs, then the outputs: name, whether it is an input, type, dimensions."""

    def profile_shapes(self, name: str, profile: int) -> List[List[int]]: ...
    def profile_count(self) -> int: ...
    def fingerprint(self) -> str: ...
    def warnings(self) -> List[str]: ...
    def inspect(self, json: bool) -> str: ...
    def create_context(self) -> Context: ...

@final
class Context:
    """What an engine needs to run."""

    def set_communicator(self, communicator: Communicator) -> None: ...
    def set_nccl_communicator(self, capsule: Any) -> None: ...
    def set_profiler(self, profiler: Optional[Callable[[str, float, float, Optional[float], int, int], None]]) -> None:
        """Give a function each layer's name, begin, duration, wait (in seconds), and bytes read and written."""

    def set_profile(self, profile: int) -> None: ...
    def profile(self) -> int: ...
    def set_input_shapes(self, shapes: Sequence[Tuple[str, Sequence[int]]]) -> None: ...
    def tensor_shape(self, name: str) -> Optional[List[int]]:
        """The shape of an input or output; None while an input has no shape."""

    def set_tensor(self, name: str, object: Any) -> None: ...
    def set_address(self, name: str, address: int) -> None: ...
    def address(self, name: str) -> int: ...
    def refuse_run(self, reason: str) -> None: ...
    def execute(self, stream: Optional[int]) -> None:
        """Run on what is set. On GPUs that is enqueued on a stream, if one is given."""

    def run(self, tensors: Sequence[Tuple[str, Any]]) -> None: ...
