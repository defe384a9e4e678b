"""distcollective.tensorrt on GPUs, with stand-ins for CUDA and NCCL, as in test_cuda.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import DEADLINE
from test_cuda import LIBRARIES


@pytest.mark.parametrize(
    "name", ["with_a_group", "with_a_capsule", "runs_after_the_streams_of_its_tensors", "plugins_are_refused"]
)
def test_on_gpus(name):
    if LIBRARIES is None:
        assert "DCL_REQUIRE_PEERS" not in os.environ, "DCL_TEST_GPU_LIBRARIES is missing"
        pytest.skip("DCL_TEST_GPU_LIBRARIES does not say where the stand-ins for CUDA and NCCL are")
    process = subprocess.run(
        [sys.executable, Path(__file__).with_name("tensorrt_on_gpus.py"), name],
        env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    assert process.returncode == 0 and process.stdout.endswith("passed\n"), process.stdout
