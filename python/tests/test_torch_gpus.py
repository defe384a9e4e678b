"""The backend of torch.distributed on GPUs, with stand-ins for CUDA and NCCL (cuda_stubs.py), for a torch that is made
for CUDA.
"""

import pytest
from ranks import on_stand_ins, passes_on_stand_ins, peer

PROGRAM, LIBRARIES = "torch_on_gpus.py", "DCL_TEST_TORCH_GPU_LIBRARIES"
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


@pytest.fixture(autouse=True)
def torch_is_for_cuda():
    if peer("torch").version.cuda is None:
        pytest.skip("this torch is for the CPU alone")


@pytest.mark.parametrize("name", NAMES)
def test_on_gpus(name):
    passes_on_stand_ins(PROGRAM, name, LIBRARIES)


def test_a_program_that_is_not_told_of_an_error_ends():
    process = on_stand_ins(PROGRAM, "a_program_that_is_not_told_ends", LIBRARIES)
    text = "all_reduce: the work on the GPU was not done by the deadline"
    assert process.returncode == 1 and text in process.stdout, process.stdout
