"""Writes the plan of python_plans.rs, or runs it on two processes: write PLAN, or run PLAN."""

import multiprocessing
import os
import sys

import numpy as np

import distcollective.distributed as dist
import distcollective.tensorrt as trt

RANKS = 2


def write(path):
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 3))
    transpose = network.add_shuffle(x)
    transpose.first_transpose = trt.Permutation([1, 0])
    transpose.name = "transpose"
    gather = network.add_dist_collective(
        transpose.get_output(0), trt.CollectiveOperation.ALL_GATHER, trt.ReduceOperation.NONE, -1, []
    )
    gather.num_ranks = RANKS
    gather.name = "gather"
    cast = network.add_cast(gather.get_output(0), trt.int32)
    cast.name = "cast"
    y = cast.get_output(0)
    y.name = "y"
    network.mark_output(y)
    # The names of tensors inside a network are those that their layers have first.
    transpose.get_output(0).name, gather.get_output(0).name = "transposed", "gathered"
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 3), (2, 3), (4, 3))
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    with open(path, "wb") as file:
        file.write(builder.build_serialized_network(network, config))


def run_rank(rank, path):
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    with open(path, "rb") as file:
        engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(file.read())
    context = engine.create_execution_context()
    context.set_communicator(dist.group.WORLD)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * rank
    y = context.run({"x": x})["y"]
    # In one write, so that the lines of the ranks do not mix.
    sys.stdout.write(f"rank {rank}: {' '.join(str(element) for element in y.flat)}\n")
    sys.stdout.flush()


def run(path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", DCL_JOB_ID=f"python_plans {os.getpid()}")
    ranks = [multiprocessing.Process(target=run_rank, args=(rank, path)) for rank in range(RANKS)]
    [rank.start() for rank in ranks]
    [rank.join() for rank in ranks]
    sys.exit(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    {"write": write, "run": run}[sys.argv[1]](sys.argv[2])
