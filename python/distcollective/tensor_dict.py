"""Dictionaries of tensors, such as the weights of a model."""

import importlib
import sys
from typing import Any, Dict, List, Mapping, Optional

from .distributed._groups import Group, check_backend, member
from .errors import ArgumentError


def broadcast_tensor_dict(
    tensor_dict: Optional[Mapping[str, Any]], src: int = 0, group: Group = None
) -> Dict[str, Any]:
    """Give every rank the dictionary of global rank ``src``. Every rank of the group calls it.

    The source gets its own tensors back, the others tensors of torch if the program has imported
    torch, else arrays of numpy. What they give is ignored. Types of ml_dtypes need that package
    on ranks without torch.
    """
    found = member(group, "broadcast_tensor_dict")
    if found is None:
        return {}
    communicator, root = found._live(), found._group_rank(src, "src")
    is_source = communicator.rank == root
    given = dict(tensor_dict) if is_source and tensor_dict is not None else {}
    entries = [
        (name, tensor, [int(length) for length in getattr(tensor, "shape", ())]) for name, tensor in given.items()
    ]
    # The library refuses None on the source, and tells every rank.
    arrived = communicator.broadcast_tensor_dict(None if tensor_dict is None else entries, root)
    if is_source:
        return given
    make = _torch_tensor if "torch" in sys.modules else _array
    return {name: make(dtype, shape, data) for name, dtype, shape, data in arrived}


def _torch_tensor(dtype: str, shape: List[int], data: bytearray) -> Any:
    torch = sys.modules["torch"]
    found = getattr(torch, dtype, None)
    if found is None:
        return _array(dtype, shape, data)
    if not data:
        return torch.empty(shape, dtype=found)
    return torch.frombuffer(data, dtype=found).reshape(shape)


def _array(dtype: str, shape: List[int], data: bytearray) -> Any:
    numpy = importlib.import_module("numpy")
    try:
        found = numpy.dtype(dtype)
    except TypeError:
        found = numpy.dtype(getattr(importlib.import_module("ml_dtypes"), dtype))
    return numpy.frombuffer(data, dtype=found).reshape(shape)


def ray_broadcast_tensor_dict(
    tensor_dict: Optional[Mapping[str, Any]],
    src: int = 0,
    device: Any = None,
    group_name: str = "default",
    backend: str = "nccl",
    offload_to_cpu: bool = False,
    pin_memory: bool = False,
) -> Dict[str, Any]:
    """``broadcast_tensor_dict`` with ColossalAI's arguments, among all ranks.

    ``backend`` is "gloo": its default, "nccl", needs GPUs, which this package does not have yet.
    Tensors are on the CPU, so ``device`` is None or "cpu", and ``offload_to_cpu`` changes nothing.
    """
    check_backend(backend)
    if device is not None and str(device) != "cpu":
        raise ArgumentError(f'device is {device}; tensors arrive on the CPU, by device=None or device="cpu"')
    if group_name != "default":
        raise ArgumentError(f"group_name is {group_name!r}; give broadcast_tensor_dict a group of new_group instead")
    if pin_memory:
        raise ArgumentError("pin_memory is for GPUs; leave it False")
    return broadcast_tensor_dict(tensor_dict, src)
