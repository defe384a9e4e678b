"""Collectives between processes, on arrays of numpy and tensors of torch.

``distcollective.distributed`` has the functions of ``torch.distributed``:

>>> import distcollective.distributed as dist  # instead of torch.distributed
>>> dist.init_process_group("gloo")            # doctest: +SKIP
>>> dist.all_reduce(tensor)                    # doctest: +SKIP
"""

from .errors import ArgumentError, DeadlineError, Error
from .launching import launch, launch_from_openmpi, launch_from_slurm, launch_from_torch
from .onnxruntime import library as onnxruntime_library
from .tensor_dict import broadcast_tensor_dict, ray_broadcast_tensor_dict

__all__ = [
    "ArgumentError",
    "DeadlineError",
    "Error",
    "broadcast_tensor_dict",
    "launch",
    "launch_from_openmpi",
    "launch_from_slurm",
    "launch_from_torch",
    "onnxruntime_library",
    "ray_broadcast_tensor_dict",
]
