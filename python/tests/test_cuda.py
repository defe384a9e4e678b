"""Tensors on GPUs and the backend "nccl", with stand-ins for CUDA and NCCL (tests/fake_gpu).

Ranks are threads.
"""

import pytest
from ranks import passes_on_stand_ins, peer, run

import distcollective
import distcollective.distributed as dist

NAMES = [
    "with_cuda_array_interface",
    "with_dlpack",
    "with_torch",
    "enqueues_behind_what_makes_the_elements",
    "refuses",
    "dictionaries",
    "a_failure_ends_the_others",
]


@pytest.mark.parametrize("name", NAMES)
def test_on_gpus(name):
    if name == "with_torch":
        torch = peer("torch")
        if torch.version.cuda is not None:
            pytest.skip("this torch brings its own NCCL, which the stand-ins cannot replace")
    passes_on_stand_ins("on_gpus.py", name)


def test_without_a_gpu_errors_name_gloo():
    def body():
        with pytest.raises(ValueError, match='backend is "nccl".*give backend="gloo"'):
            distcollective.ray_broadcast_tensor_dict({})
        with pytest.raises(ValueError, match='backend is "nccl".*leave it None'):
            dist.new_group([0], backend="nccl")
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        with pytest.raises(
            RuntimeError, match='NCCL cannot be used: ranks 0 and 1.*in Python that is backend="gloo"'
        ) as raised:
            dist.init_process_group("nccl", rank=rank, world_size=size)
        assert raised.value.kind == "Unsupported" and not dist.is_initialized()
        with pytest.raises(RuntimeError, match='backend="gloo"'):
            dist.run_threads(2, dist.barrier, backend="nccl")
        return dist.run_threads(2, dist.get_backend, backend="host")

    assert run(2, body) == [["gloo", "gloo"]] * 2
