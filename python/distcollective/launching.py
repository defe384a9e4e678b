"""Initialization after ColossalAI's ``launch`` functions."""

import random
import sys
from typing import Any, Dict

from .distributed._groups import begin, known_backend

#: ColossalAI's default.
DEFAULT_SEED = 1024


def _launch(backend: str, seed: int, options: Dict[str, Any]) -> None:
    environment = begin({**options, "backend": known_backend(backend), "seed": seed})
    gpu = environment.communicator.gpu
    if gpu is not None and "torch" in sys.modules:
        sys.modules["torch"].cuda.set_device(gpu)
    # Every rank has rank 0's seed.
    random.seed(environment.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(environment.seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(environment.seed)


def launch(
    rank: int,
    world_size: int,
    host: str,
    port: int,
    backend: str = "gloo",
    seed: int = DEFAULT_SEED,
    verbose: bool = True,
) -> None:
    """Make the group of all ranks, and give every rank the same seed. Every rank calls it.

    With ``backend="nccl"`` each rank has the GPU of its local rank, and torch's current device is
    that GPU. The seed is rank 0's. It seeds ``random``, and numpy and torch if the program has imported
    them. With ``verbose``, rank 0 prints a line.
    """
    options = {"rank": rank, "world_size": world_size, "host": host, "port": port, "verbose": verbose}
    _launch(backend, seed, options)


def launch_from_torch(backend: str = "gloo", seed: int = DEFAULT_SEED, verbose: bool = True) -> None:
    """``launch`` with the variables that torchrun sets."""
    _launch(backend, seed, {"launcher": "torch", "verbose": verbose})


def launch_from_openmpi(
    host: str, port: int, backend: str = "gloo", seed: int = DEFAULT_SEED, verbose: bool = True
) -> None:
    """``launch`` with the variables that Open MPI's mpirun sets; rank 0 is at ``host``."""
    _launch(backend, seed, {"launcher": "openmpi", "host": host, "port": port, "verbose": verbose})


def launch_from_slurm(
    host: str, port: int, backend: str = "gloo", seed: int = DEFAULT_SEED, verbose: bool = True
) -> None:
    """``launch`` with the variables that srun sets; rank 0 is at ``host``."""
    _launch(backend, seed, {"launcher": "slurm", "host": host, "port": port, "verbose": verbose})
