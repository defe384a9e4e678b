"""Dictionaries of tensors, such as the weights of a model."""

import importlib
import sys
from typing import Any, Dict, List, Mapping, Optional, Union

from . import _core
from .distributed._groups import Group, known_backend, member
from .errors import ArgumentError

_Bytes = Union[bytearray, _core.GpuBytes]


def broadcast_tensor_dict(
    tensor_dict: Optional[Mapping[str, Any]],
    src: int = 0,
    device: Any = None,
    group_name: str = "default",
    backend: Optional[str] = None,
    offload_to_cpu: bool = False,
    pin_memory: bool = False,
    group: Group = None,
) -> Dict[str, Any]:
    """Give every rank the dictionary of global rank ``src``. Every rank of the group calls it.

    The source gets its own tensors back, the others tensors of torch if the program has imported
    torch, else arrays of numpy; so is a type that torch does not have. What they give is ignored.
    Types of ml_dtypes need that package on ranks whose torch does not have them.

    What arrives is where the group's tensors are: on the CPU, with "nccl" on the rank's GPU.
    ``device`` is another device of torch. ``offload_to_cpu`` puts it on the CPU, and
    ``pin_memory`` into pinned memory of the CPU, whatever ``device`` is; the source's tensors stay
    where they are. ``backend`` is the group's. ``group_name`` is "default": groups are those of
    ``new_group``, given as ``group``.

    >>> def body():
    ...     weights = {"bias": np.array([1.5, 2.5])} if dist.get_rank() == 0 else {}
    ...     return broadcast_tensor_dict(weights)["bias"].tolist()
    >>> dist.run_threads(2, body)
    [[1.5, 2.5], [1.5, 2.5]]
    """
    if group_name != "default":
        raise ArgumentError(f"group_name is {group_name!r}; give a group of new_group as group instead")
    wanted = None if backend is None else known_backend(backend)
    found = member(group, "broadcast_tensor_dict")
    if found is None:
        return {}
    communicator, root = found._live(), found._group_rank(src, "src")
    with_torch = "torch" in sys.modules
    refusal: Optional[str] = None
    if wanted not in (None, communicator.backend):
        refusal = f'backend is "{backend}", and the group has another one; give backend="{communicator.backend}"'
    elif not with_torch and (pin_memory or (device is not None and str(device) != "cpu")):
        refusal = f"device is {device} and pin_memory {pin_memory}; that needs torch, so import it first"
    is_source = communicator.rank == root
    given: Dict[str, Any] = {}
    if is_source and tensor_dict is not None:
        if isinstance(tensor_dict, Mapping):
            given = dict(tensor_dict)
        else:
            refusal = f"tensor_dict is a {type(tensor_dict).__name__}, not a dictionary"
        wrong = next((name for name in given if not isinstance(name, str)), None)
        if wrong is not None:
            refusal = f"a name in tensor_dict is {wrong!r}; names are texts"
            given = {}
    entries = None if tensor_dict is None else list(given.items())
    on_host = offload_to_cpu or pin_memory or not with_torch
    # The library tells every rank what one rank refuses, such as None on the source.
    options = {"src": root, "on_host": on_host, "refusal": refusal}
    arrived = communicator.broadcast_tensor_dict(entries, options)
    if is_source:
        return given
    tensors: Dict[str, Any] = {}
    for name, dtype, shape, data in arrived:
        found = getattr(sys.modules["torch"], dtype, None) if with_torch else None
        if found is None:
            tensors[name] = _array(dtype, shape, data)
            continue
        tensor = _torch_tensor(found, shape, data, communicator.gpu)
        if pin_memory:
            tensor = tensor.pin_memory()
        tensors[name] = tensor if device is None or on_host else tensor.to(device)
    return tensors


def _torch_tensor(dtype: Any, shape: List[int], data: _Bytes, gpu: Optional[int]) -> Any:
    torch = sys.modules["torch"]
    if isinstance(data, _core.GpuBytes):
        return torch.as_tensor(data, device=f"cuda:{gpu}").view(dtype).reshape(shape)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _array(dtype: str, shape: List[int], data: _Bytes) -> Any:
    if isinstance(data, _core.GpuBytes):
        raise ArgumentError(f"torch has no {dtype}, so it cannot be on a GPU; give offload_to_cpu=True")
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
    """``broadcast_tensor_dict`` with ColossalAI's arguments and defaults, among all ranks.

    ``backend`` is that of the group: on a machine without a GPU it is "gloo".
    """
    return broadcast_tensor_dict(tensor_dict, src, device, group_name, backend, offload_to_cpu, pin_memory)
