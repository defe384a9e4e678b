"""The process group of all ranks, and groups of some of them."""

import atexit
import enum
import os
import re
import sys
import threading
import warnings
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union
from urllib.parse import urlsplit

from .. import _core
from ..errors import ArgumentError, DeadlineError, Error, text_of

_BACKENDS = ("gloo", "host", "nccl", "mpi")
#: A time, or a number of seconds; None for what holds unless it is given.
Timeout = Union[timedelta, float, None]
#: How the names of this package's modules begin.
_PACKAGE = __name__.partition(".")[0] + "."


class _NonGroupMember:
    """What ``new_group`` gives to a rank that is not in the group."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class ProcessGroup:
    """A group of ranks, in this process, which is one of them."""

    def __init__(self, communicator: _core.Communicator) -> None:
        self._communicator: Optional[_core.Communicator] = communicator
        self._ranks = communicator.global_ranks()
        self._group_ranks = {rank: number for number, rank in enumerate(self._ranks)}
        self._for_sessions: Optional[_core.SessionCommunicator] = None

    @classmethod
    def from_mpi(cls, comm: Any, timeout: Timeout = None) -> "ProcessGroup":
        """The group of the ranks of an ``MPI_Comm``, on any number of machines without GPUs. They all call it.

        ``comm`` is a communicator of mpi4py, which is duplicated, or a handle of the MPI that this
        process has loaded, as a number. MPI has been initialized with ``MPI_THREAD_MULTIPLE``, as
        mpi4py does. After ``MPI_Finalize`` calls on the group raise an error. ``timeout`` is for this
        call and for each later one.
        """
        if not isinstance(comm, int):
            from mpi4py import MPI

            comm = MPI._handleof(comm)
        return cls(_core.from_mpi(comm, timeout))

    def rank(self) -> int:
        """This process's number in the group."""
        return self._live().rank

    def size(self) -> int:
        """The number of ranks in the group."""
        return len(self._ranks)

    def name(self) -> str:
        """The name of the backend."""
        return self._live().backend

    def monitored_barrier(self, timeout: Timeout = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank of the group has come. The error names all that have not."""
        monitored_barrier(self._live(), timeout, wait_all_ranks)

    def abort(self, reason: str = "the program called abort") -> None:
        """End the group for all its ranks. Their calls raise an error with the reason."""
        self._live().abort(reason)

    @contextmanager
    def request(self, id: int) -> Iterator[None]:
        """What this rank does for one request of a server: runs of sessions and contexts, collectives.

        Every rank enters it for each request, with the same id, from any thread. Requests run one
        after the other, in the order in which rank 0 begins them. If the block raises an exception
        on one rank, the others get one from their next call, or at the end of the block an
        ``Error`` of the kind ``"RunRefused"``. All go on to the next request.

        >>> def body():
        ...     x = np.ones(2, np.float32)
        ...     with dist.group.WORLD.request(17):
        ...         dist.all_reduce(x)
        ...     return x.tolist()
        >>> dist.run_threads(2, body)
        [[2.0, 2.0], [2.0, 2.0]]
        """
        communicator = self._live()
        communicator.begin_request(id)
        try:
            yield
        except BaseException as error:
            # If this rank cannot tell the others, the communicator has ended.
            with suppress(Error):
                communicator.end_request(text_of(error))
            raise
        communicator.end_request(None)

    def session_value(self) -> str:
        """The value of the session config entry ``distcollective.communicator`` of ONNX Runtime.

        A session with this entry runs its DistCollective nodes in this group. It is made before the
        group is destroyed.
        """
        if self._for_sessions is None:
            self._for_sessions = _core.SessionCommunicator(self._live())
        return self._for_sessions.value

    def _abort(self, reason: str) -> None:
        """End the group, unless this rank has left it, also while another thread leaves it."""
        communicator = self._communicator
        if communicator is not None:
            communicator.abort(reason)

    def _drop(self) -> None:
        """Drop this rank's handle."""
        self._communicator, self._for_sessions = None, None

    def _live(self) -> _core.Communicator:
        if self._communicator is None:
            raise ArgumentError("the process group has been destroyed")
        return self._communicator

    def _group_rank(self, rank: int, name: str) -> int:
        """The number in the group of a global rank."""
        try:
            return self._group_ranks[rank]
        except KeyError:
            raise ArgumentError(
                f"{name} is global rank {rank}, which is not in the group of ranks {self._ranks}"
            ) from None

    def _peer(self, name: str, rank: Optional[int], group_rank: Optional[int]) -> int:
        """The number in the group of a rank that is given by its global rank or by that number."""
        if group_rank is None:
            if rank is None:
                raise ArgumentError(f"{name} is missing; give {name}, a global rank, or group_{name}")
            return self._group_rank(rank, name)
        if rank is not None:
            raise ArgumentError(f"{name} is {rank} and group_{name} is {group_rank}; give one of them")
        if not 0 <= group_rank < self.size():
            raise ArgumentError(f"group_{name} is {group_rank}, and the group has {self.size()} ranks")
        return group_rank

    def _root(self, name: str, rank: Optional[int], group_rank: Optional[int]) -> int:
        """``_peer``, which is global rank 0 unless one of the two is given."""
        return self._peer(name, 0 if rank is None and group_rank is None else rank, group_rank)

    def __repr__(self) -> str:
        return f"ProcessGroup(ranks={self._ranks})"


def monitored_barrier(communicator: _core.Communicator, timeout: Timeout, wait_all_ranks: bool) -> None:
    """``monitored_barrier``, whose errors begin with gloo's words: programs for torch look for them."""
    try:
        communicator.monitored_barrier(communicator.timeout if timeout is None else timeout)
    except Error as error:
        rank, found = communicator.rank, re.search(r"ranks? (\d[\d, and]*) did not arrive", str(error))
        missing = re.findall(r"\d+", found[1]) if found else []
        if rank == 0 and not missing and not isinstance(error, DeadlineError):
            raise
        if rank != 0:
            words = f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
        elif not missing or timeout in (0, timedelta(0)):
            words = "Rank 0 timed out in monitoredBarrier"
        elif wait_all_ranks:
            words = f"Ranks {', '.join(missing)} failed to pass monitoredBarrier"
        else:
            words = f"Rank {missing[0]} failed to pass monitoredBarrier"
        told = type(error)(f"{words}: {error}")
        told.kind = error.kind
        raise told from None


Group = Union[ProcessGroup, _NonGroupMember, None]


class _World:
    """A rank: what ``init_process_group`` has made, or ``run_threads`` for a thread."""

    def __init__(self, group: Optional[ProcessGroup] = None) -> None:
        self.environment: Optional[_core.Environment] = None
        self.group = group
        self.subgroups: List[ProcessGroup] = []
        self.allow_pickle = False

    def leave(self) -> None:
        """Drop this rank's handles, by which the other ranks learn that it has left."""
        for process_group in [self.group, *self.subgroups]:
            if process_group is not None:
                process_group._drop()
        self.environment, self.group, self.subgroups, self.allow_pickle = None, None, [], False


_process = _World()
_thread = threading.local()


def _own() -> _World:
    """The rank that this thread is, else the one that this process is."""
    found: _World = getattr(_thread, "world", _process)
    return found


@contextmanager
def thread_is_rank(group: ProcessGroup) -> Iterator[None]:
    """Make this thread a rank."""
    _thread.world = _World(group)
    try:
        yield
    finally:
        _thread.world.leave()
        del _thread.world


class _WorldProperty(type):
    @property
    def WORLD(cls) -> Optional[ProcessGroup]:
        """The group of all ranks; None before ``init_process_group``."""
        return _own().group


class group(metaclass=_WorldProperty):
    """``group.WORLD`` is the group of all ranks."""


class GroupMember(metaclass=_WorldProperty):
    """``GroupMember.NON_GROUP_MEMBER`` is what a rank outside gets from ``new_group``."""

    NON_GROUP_MEMBER = _NonGroupMember()


def world() -> ProcessGroup:
    """The group of all ranks."""
    found = _own().group
    if found is None:
        raise Error("there is no process group; call init_process_group first")
    return found


def member(group: Group, name: str) -> Optional[ProcessGroup]:
    """The group for the call ``name``; None, with a warning, if this process is not in it."""
    if isinstance(group, ProcessGroup):
        return group
    if isinstance(group, _NonGroupMember):
        rank = world().rank()
        warnings.warn(f"{name} on global rank {rank}, which is not in the group, does nothing", stacklevel=3)
        return None
    if group is None:
        return world()
    raise TypeError(f"{name}: group is a {type(group).__qualname__}, not a group of this package")


def is_available() -> bool:
    """Whether this package can be used: True."""
    return True


def is_initialized() -> bool:
    """Whether this process, or this thread, has a process group."""
    return _own().group is not None


def _line_of_the_program() -> str:
    """The source line outside this package that has called it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def begin(options: Dict[str, Any]) -> _core.Environment:
    """Initialize with what is given, and with the launcher's variables for the rest."""
    for name in ("rank", "world_size", "port"):
        number = options.get(name)
        if number is not None and not 0 <= number < 2**16:
            raise ArgumentError(f"{name} is {number}; it is a number from 0 to 65535")
    if _own() is not _process:
        raise Error("this thread is a rank of run_threads, and its group is there already")
    options["called_at"] = _line_of_the_program()
    try:
        environment = _core.initialize(options)
    except Error as error:
        if error.kind == "Unsupported" and options["backend"] == "nccl":
            raise without_gpus(error) from None
        raise
    _process.environment = environment
    _process.group = ProcessGroup(environment.communicator)
    atexit.register(_process.leave)
    return environment


def without_gpus(error: Error) -> Error:
    """The error of a machine that cannot use NCCL."""
    told = Error(f'{error}; in Python that is backend="gloo"')
    told.kind = error.kind
    return told


def known_backend(name: Optional[str]) -> str:
    """The backend of that name, which is "gloo" unless it is given."""
    found = "gloo" if name is None else name.lower()
    if found not in _BACKENDS:
        raise ArgumentError(
            f'backend is "{name}"; this package has "gloo", which is also called "host", "mpi" and "nccl"'
        )
    return "gloo" if found == "host" else found


def check_none(name: str, value: Any, why: str) -> None:
    """Check that an argument of torch that this package does not have is left out."""
    if value is not None:
        raise ArgumentError(f"{name} is {value!r}; {why}; leave it None")


def init_process_group(
    backend: Optional[str] = None,
    init_method: Optional[str] = None,
    timeout: Timeout = None,
    world_size: int = -1,
    rank: int = -1,
    store: Optional[object] = None,
    group_name: str = "",
    pg_options: Optional[object] = None,
    device_id: Optional[object] = None,
    allow_pickle: bool = False,
) -> None:
    """Find the other ranks, and make the group of all of them. Every rank calls it.

    ``backend`` is "gloo", which is also called "host": tensors are in the memory of the host, and
    between machines UCX moves them, or MPI where the ranks meet over it. "mpi" asks for MPI. With
    "nccl" each rank has the GPU of its local rank, and tensors are there. It is "gloo" unless it is
    given.
    ``init_method`` is "env://", "tcp://HOST:PORT" or "file:///PATH", whose path names the job of ranks
    of one machine. What is not given comes from the launcher's
    variables: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``. ``timeout`` is for this
    call and for each later one; unless it is given, what ``DCL_TIMEOUT`` says in seconds, or 600 s.
    ``device_id`` is another GPU for "nccl": its number, or a torch.device. ``allow_pickle`` allows
    the calls on objects, which unpickle what peers send. ``store``, ``group_name`` and
    ``pg_options`` keep their defaults.
    """
    options: Dict[str, Any] = {"timeout": timeout, "backend": known_backend(backend)}
    check_none("store", store, "ranks find each other by init_method, without a store of torch")
    check_none("pg_options", pg_options, "there are no options of a backend")
    if group_name:
        raise ArgumentError(f'group_name is {group_name!r}; the group of all ranks has no name; leave it ""')
    if device_id is not None:
        options["device"] = _gpu_of(device_id, options["backend"])
    if rank != -1:
        options["rank"] = rank
    if world_size != -1:
        options["world_size"] = world_size
    url = urlsplit(init_method or "env://")
    if url.scheme == "tcp" and url.hostname and url.port:
        options["host"], options["port"] = url.hostname, url.port
    elif url.scheme == "file" and url.path:
        # Ranks of one machine meet by the name alone; no file is made.
        options["job"] = os.path.realpath(url.path)
    elif url.scheme != "env":
        known = "'env://', 'tcp://HOST:PORT' and 'file:///PATH'"
        raise ArgumentError(f"init_method is {init_method!r}; this package has {known}")
    begin(options)
    _process.allow_pickle = allow_pickle


def allows_pickle() -> bool:
    """Whether the program has allowed calls on objects."""
    return _own().allow_pickle


def _gpu_of(device_id: object, backend: str) -> int:
    """The number of a GPU that is given by it or by a torch.device."""
    index = getattr(device_id, "index", device_id)
    is_gpu = getattr(device_id, "type", "cuda") == "cuda"
    if backend != "nccl" or not is_gpu or not isinstance(index, int) or index < 0:
        raise ArgumentError(
            f'device_id is {device_id!r} and backend "{backend}"; it is the number of a GPU, with "nccl"'
        )
    return index


def destroy_process_group(group: Group = None) -> None:
    """End a group, or by default everything, on this rank.

    It waits for no other rank. Ranks that wait for this one get an error. An execution context of
    ``distcollective.tensorrt`` or a session of ONNX Runtime that has the group keeps this rank in
    it until the program drops that too.
    """
    own = _own()
    if group is None or group is own.group:
        world()
        environment = own.environment
        own.leave()
        if environment is not None:
            atexit.unregister(_process.leave)
            environment.destroy()
    elif isinstance(group, ProcessGroup):
        group._drop()
        own.subgroups = [other for other in own.subgroups if other is not group]


def new_group(
    ranks: Optional[Sequence[int]] = None,
    timeout: Timeout = None,
    backend: Optional[str] = None,
    pg_options: Optional[object] = None,
    use_local_synchronization: bool = False,
    group_desc: Optional[str] = None,
    device_id: Optional[object] = None,
    sort_ranks: bool = True,
) -> Union[ProcessGroup, _NonGroupMember]:
    """Make a group of these ranks, sorted unless ``sort_ranks`` is False; of all by default.

    Every rank calls it, so ``use_local_synchronization`` is False. A rank that is not in the group
    gets ``GroupMember.NON_GROUP_MEMBER``. The group's GPUs are those of all ranks, so ``device_id``
    is None. ``pg_options`` is None. ``group_desc`` is for the reader.

    >>> def body():
    ...     dist.new_group([0, 1])
    ...     own = dist.new_group([2])
    ...     return dist.get_world_size(own)
    >>> dist.run_threads(3, body)
    [-1, -1, 1]
    """
    if use_local_synchronization:
        raise ArgumentError("use_local_synchronization is True; every rank calls new_group; leave it False")
    check_none("device_id", device_id, "a group has the GPUs of the group of all ranks")
    check_none("pg_options", pg_options, "there are no options of a backend")
    all_ranks = world()
    communicator = all_ranks._live()
    if backend is not None and known_backend(backend) != all_ranks.name():
        raise ArgumentError(
            f'backend is "{backend}", and the group of all ranks has "{all_ranks.name()}"; leave it None'
        )
    if timeout is not None:
        communicator.with_timeout(timeout)  # which checks it, on ranks outside of the group too
    numbers = list(range(all_ranks.size()))
    if ranks is not None:
        numbers = [all_ranks._group_rank(rank, "a rank of new_group") for rank in ranks]
    made = communicator.new_group(sorted(numbers) if sort_ranks else numbers)
    if made is None:
        return GroupMember.NON_GROUP_MEMBER
    process_group = ProcessGroup(made if timeout is None else made.with_timeout(timeout))
    _own().subgroups.append(process_group)
    return process_group


def new_subgroups(
    group_size: Optional[int] = None,
    group: Group = None,
    timeout: Timeout = None,
    backend: Optional[str] = None,
    pg_options: Optional[object] = None,
    group_desc: Optional[str] = None,
) -> Tuple[Union[ProcessGroup, _NonGroupMember], List[Union[ProcessGroup, _NonGroupMember]]]:
    """Divide all ranks into groups of ``group_size`` ranks that follow each other.

    Gives the group that this rank is in, and all groups.

    >>> def body():
    ...     own, every = dist.new_subgroups(2)
    ...     return dist.get_process_group_ranks(own), len(every)
    >>> dist.run_threads(4, body)
    [([0, 1], 2), ([0, 1], 2), ([2, 3], 2), ([2, 3], 2)]
    """
    if group is not None and group is not world():
        raise ArgumentError("group is another one than that of all ranks; leave it None")
    size = world().size()
    if group_size is None or not 0 < group_size <= size:
        raise ArgumentError(
            f"group_size is {group_size}; it is above 0 and must not exceed the number of ranks, {size}"
        )
    if size % group_size:
        raise ArgumentError(f"The world size ({size}) must be divisible by '{group_size=}'")
    ranks = [list(range(first, first + group_size)) for first in range(0, size, group_size)]
    return new_subgroups_by_enumeration(ranks, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: Optional[str] = None,
    pg_options: Optional[object] = None,
    group_desc: Optional[str] = None,
) -> Tuple[Union[ProcessGroup, _NonGroupMember], List[Union[ProcessGroup, _NonGroupMember]]]:
    """Make a group of each of the lists of ranks, of which no two have a rank in common.

    Gives the group that this rank is in, and all groups.
    """
    lists = [list(ranks) for ranks in ranks_per_subgroup_list]
    of_rank: Dict[int, List[int]] = {}
    for ranks in lists:
        for rank in ranks:
            if not 0 <= rank < world().size():
                raise ArgumentError(f"Rank {rank} is out of range; there are {world().size()} ranks")
            if rank in of_rank:
                raise ArgumentError(f"Rank {rank} has appeared in both subgroup {of_rank[rank]} and subgroup {ranks}")
            of_rank[rank] = ranks
    if not of_rank:
        raise ArgumentError(f"ranks_per_subgroup_list is {lists}; it has ranks")
    groups = [new_group(ranks, timeout, backend, pg_options, group_desc=group_desc) for ranks in lists]
    own = [group for group in groups if isinstance(group, ProcessGroup)]
    return own[0] if own else GroupMember.NON_GROUP_MEMBER, groups


class Backend(str):
    """The name of a backend: ``Backend("GLOO")`` is "gloo"."""

    GLOO = "gloo"
    NCCL = "nccl"

    def __new__(cls, name: str) -> "Backend":
        return super().__new__(cls, known_backend(name))


class DebugLevel(enum.IntEnum):
    """What torch reads from ``TORCH_DISTRIBUTED_DEBUG``. This package checks calls at every level."""

    OFF = 0
    INFO = 1
    DETAIL = 2


def get_debug_level() -> DebugLevel:
    """The level that ``TORCH_DISTRIBUTED_DEBUG`` names; OFF unless it is set."""
    name = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if name not in DebugLevel.__members__:
        raise ArgumentError(f"TORCH_DISTRIBUTED_DEBUG is {name!r}; it is OFF, INFO or DETAIL")
    return DebugLevel[name]


def get_rank(group: Group = None) -> int:
    """This process's number in the group; -1 if it is not in it."""
    if isinstance(group, _NonGroupMember):
        return -1
    return (group or world()).rank()


def get_world_size(group: Group = None) -> int:
    """The number of ranks in the group; -1 if this process is not in it."""
    if isinstance(group, _NonGroupMember):
        return -1
    return (group or world()).size()


def get_backend(group: Group = None) -> str:
    """The group's backend: "gloo" or "nccl"."""
    return _own_group(group, "get_backend").name()


def _own_group(group: Group, name: str) -> ProcessGroup:
    """The group for the call ``name``, which needs one that this process is in."""
    found = None if isinstance(group, _NonGroupMember) else member(group, name)
    if found is None:
        raise ArgumentError(f"{name}: this process is not in the group; only its ranks know it")
    return found


def get_group_rank(group: Group, global_rank: int) -> int:
    """The number in the group of a global rank."""
    return _own_group(group, "get_group_rank")._group_rank(global_rank, "global_rank")


def get_global_rank(group: Group, group_rank: int) -> int:
    """The global rank of a rank of the group."""
    found = _own_group(group, "get_global_rank")
    if not 0 <= group_rank < found.size():
        raise ArgumentError(f"group_rank is {group_rank}, and the group has {found.size()} ranks")
    return found._ranks[group_rank]


def get_process_group_ranks(group: Group) -> List[int]:
    """The global ranks of the group, in its order."""
    return list(_own_group(group, "get_process_group_ranks")._ranks)
