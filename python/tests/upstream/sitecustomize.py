"""What Python imports when it starts: puts the backend "distcollective" in the place of gloo.

Tests of PyTorch name gloo, and start processes that import everything again. With ``DCL_IN_PLACE_OF_GLOO`` set, groups
of "gloo" are of this package's backend, in each of these processes. ``DCL_FORK_TESTS`` lets ranks be forks, which are
there sooner than processes that import torch.
"""

import functools
import os
from datetime import timedelta


def _fork_ranks():
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    torch.set_num_threads(1)
    fork = torch.multiprocessing.get_context("fork").Process
    MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(fork)


def _replace_gloo():
    import torch.distributed as dist

    import distcollective.torch as ours

    c10d, name = dist.distributed_c10d, "distcollective"

    def in_place(backend):
        return backend.replace("gloo", name) if isinstance(backend, str) else backend

    def replace(function, position):
        @functools.wraps(function)
        def wrapper(*arguments, **named):
            arguments = [in_place(each) if i == position else each for i, each in enumerate(arguments)]
            if "backend" in named:
                named["backend"] = in_place(named["backend"])
            return function(*arguments, **named)

        setattr(c10d, function.__name__, wrapper)
        setattr(dist, function.__name__, wrapper)

    replace(c10d.init_process_group, 0)
    replace(c10d.new_group, 2)
    replace(c10d.new_subgroups, 3)
    replace(c10d.new_subgroups_by_enumeration, 2)
    # What a group has that names no backend. Tests ask for this name, and know that of gloo.
    c10d.Backend.default_device_backend_map["cpu"] = name
    default = c10d.get_default_backend_for_device
    c10d.get_default_backend_for_device = lambda device: default(device).replace(name, "gloo")
    dist.get_default_backend_for_device = c10d.get_default_backend_for_device

    class Gloo:
        """What tests of ``ProcessGroupGloo`` make by themselves."""

        _Options = dist.ProcessGroupGloo._Options
        create_device = staticmethod(dist.ProcessGroupGloo.create_device)
        create_default_device = staticmethod(dist.ProcessGroupGloo.create_default_device)

        def __new__(cls, store, rank, size, options=None, timeout=None):
            timeout = timeout or getattr(options, "_timeout", options) or c10d.default_pg_timeout
            timeout = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
            return ours._create(store, rank, size, timeout)

    dist.ProcessGroupGloo = c10d.ProcessGroupGloo = Gloo


if "DCL_FORK_TESTS" in os.environ:
    _fork_ranks()
if "DCL_IN_PLACE_OF_GLOO" in os.environ:
    _replace_gloo()
