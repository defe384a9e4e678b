"""The functions of ``torch.distributed``, on arrays of numpy and tensors of torch.

Replace ``import torch.distributed as dist`` by this import::

    import distcollective.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(3)
    dist.all_reduce(tensor)

A tensor is an array of numpy, a tensor of torch, an array of ml_dtypes' types, or an object with
``__array_interface__``, ``__cuda_array_interface__`` or ``__dlpack__``. It is in the memory of the
host, and with backend "nccl" in that of the rank's GPU. It is used in place where its elements lie
one after the other. Any other tensor of the host is copied, and written back when the call has
ended.
"""

from .._core import Work
from ._bytes import (
    all_gather_object,
    broadcast_bytes,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from ._collectives import (
    ReduceOp,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from ._groups import (
    Backend,
    DebugLevel,
    GroupMember,
    ProcessGroup,
    destroy_process_group,
    get_backend,
    get_debug_level,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
)
from ._messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
from ._threads import run_threads

__all__ = [
    "Backend",
    "DebugLevel",
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_bytes",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_debug_level",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "run_threads",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
]
