"""distcollective.tensorrt on GPUs, with stand-ins for CUDA and NCCL, as in test_cuda.py."""

import pytest
from ranks import passes_on_stand_ins


@pytest.mark.parametrize(
    "name", ["with_a_group", "with_a_capsule", "runs_after_the_streams_of_its_tensors", "plugins_are_refused"]
)
def test_on_gpus(name):
    passes_on_stand_ins("tensorrt_on_gpus.py", name)
