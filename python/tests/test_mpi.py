"""``ProcessGroup.from_mpi`` on communicators of mpi4py, under Open MPI's mpirun."""

import os
import shutil
import subprocess
import sys

from ranks import peer

PROGRAM = """
import os
os.environ["DCL_HOST_ID"] = "ab"[int(os.environ["OMPI_COMM_WORLD_RANK"]) // 2]
from mpi4py import MPI
import numpy as np
import distcollective.distributed as dist

group = dist.ProcessGroup.from_mpi(MPI.COMM_WORLD, timeout=8)
half = dist.ProcessGroup.from_mpi(MPI.COMM_WORLD.Split(group.rank() % 2), timeout=8)
for count in 3, 50_000:
    x = np.full(count, group.rank() + 1, np.float32)
    dist.all_reduce(x, group=group)
    dist.all_reduce(x, group=half)
    assert x.tolist() == [20] * count, x
try:
    dist.ProcessGroup.from_mpi(MPI.COMM_NULL)
except ValueError as error:
    assert "MPI_COMM_NULL" in str(error), error
print("passed")
"""


def test_ranks_of_mpi4py_are_a_group():
    peer("mpi4py")
    mpirun = shutil.which("mpirun.openmpi")
    assert mpirun or "DCL_REQUIRE_PEERS" not in os.environ, "mpirun.openmpi is not installed"
    if not mpirun:
        return
    command = [mpirun, "-n", "4", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", sys.executable, "-c", PROGRAM]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ran = subprocess.run(command, env=os.environ | root, capture_output=True, text=True, timeout=10)
    assert (ran.returncode, ran.stdout.count("passed")) == (0, 4), ran.stdout + ran.stderr
