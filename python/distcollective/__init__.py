"""Collectives between processes, on arrays of numpy and tensors of torch.

``distcollective.distributed`` has the functions of ``torch.distributed``:

>>> import distcollective.distributed as dist  # instead of torch.distributed
>>> dist.init_process_group("gloo")            # doctest: +SKIP
>>> dist.all_reduce(tensor)                    # doctest: +SKIP
"""

from .errors import ArgumentError, DeadlineError, Error

__all__ = ["ArgumentError", "DeadlineError", "Error"]
