"""The backend of torch.distributed on GPUs, with stand-ins for CUDA and NCCL (cuda_stubs.py).

``DCL_TEST_TORCH_GPU_LIBRARIES`` is the folders of the stand-ins, for a torch that is made for CUDA. A process loads the
libraries once, so each test runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import DEADLINE, peer

LIBRARIES = os.environ.get("DCL_TEST_TORCH_GPU_LIBRARIES")
NAMES = [
    "are_as_on_the_host",
    "messages",
    "streams_keep_the_order",
    "tensors_stay_as_long_as_calls_use_them",
    "futures",
    "a_barrier_waits_for_the_gpu",
    "captures",
    "refuses",
    "groups_of_some_ranks",
    "ranks_that_differ_are_told",
    "a_call_ends_at_its_deadline",
    "who_leaves_is_told",
    "by_torchs_own_functions",
]


def run(name):
    if LIBRARIES is None:
        torch = peer("torch")
        assert "DCL_REQUIRE_PEERS" not in os.environ or torch.version.cuda is None, "the libraries are missing"
        pytest.skip("DCL_TEST_TORCH_GPU_LIBRARIES does not say where the stand-ins for CUDA and NCCL are")
    program = Path(__file__).with_name("torch_on_gpus.py")
    return subprocess.run(
        [sys.executable, program, name],
        env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * DEADLINE,
    )


@pytest.mark.parametrize("name", NAMES)
def test_on_gpus(name):
    process = run(name)
    assert process.returncode == 0 and process.stdout.endswith("passed\n"), process.stdout


def test_a_program_that_is_not_told_of_an_error_ends():
    process = run("a_program_that_is_not_told_ends")
    text = "all_reduce: the work on the GPU was not done by the deadline"
    assert process.returncode == 1 and text in process.stdout, process.stdout
