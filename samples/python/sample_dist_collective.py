#!/usr/bin/env python3
"""A DistCollective layer in a network of TensorRT's API, after NVIDIA's sampleDistCollective.

    python3 sample_dist_collective.py --op all_reduce --ranks 2
    torchrun --nproc_per_node 2 sample_dist_collective.py --op reduce_scatter
    distcollective launch -n 4 -- python3 sample_dist_collective.py

Each rank builds the network, writes it as a plan and reads that back, runs it, and compares the
output with what the operation means. It needs numpy, and neither TensorRT nor a GPU.

For TensorRT, replace the import of trt, copy the arrays to the GPU, and give set_communicator a
PyCapsule of an ncclComm_t.
"""

import argparse
import multiprocessing
import os
import sys

import numpy as np

import distcollective.distributed as dist
import distcollective.tensorrt as trt

COLUMNS = 3
LOGGER = trt.Logger(trt.Logger.WARNING)


class Operation:
    """An operation: its arguments, and what each rank has afterwards."""

    def __init__(self, operation, reduces=False, has_root=False, divides=False):
        self.operation = operation
        self.name = operation.name
        self.reduce_op = trt.ReduceOperation.SUM if reduces else trt.ReduceOperation.NONE
        self.root = 0 if has_root else -1
        self.divides = divides

    def rows(self, size):
        """The rows of the input. Some operations divide them among the ranks."""
        return 2 * size if self.divides else 4

    def expected(self, inputs, rank):
        """This rank's output; None if the operation does not write it."""
        size = len(inputs)
        blocks = {
            "ALL_REDUCE": lambda: sum(inputs),
            "ALL_GATHER": lambda: np.concatenate(inputs),
            "BROADCAST": lambda: inputs[0],
            "REDUCE": lambda: sum(inputs) if rank == 0 else None,
            "REDUCE_SCATTER": lambda: np.split(sum(inputs), size)[rank],
            "ALL_TO_ALL": lambda: np.concatenate([np.split(x, size)[rank] for x in inputs]),
            "GATHER": lambda: np.concatenate(inputs) if rank == 0 else None,
            "SCATTER": lambda: np.split(inputs[0], size)[rank],
        }
        return blocks[self.name]()


OPERATIONS = [
    Operation(trt.CollectiveOperation.ALL_REDUCE, reduces=True),
    Operation(trt.CollectiveOperation.ALL_GATHER),
    Operation(trt.CollectiveOperation.BROADCAST, has_root=True),
    Operation(trt.CollectiveOperation.REDUCE, reduces=True, has_root=True),
    Operation(trt.CollectiveOperation.REDUCE_SCATTER, reduces=True, divides=True),
    Operation(trt.CollectiveOperation.ALL_TO_ALL, divides=True),
    Operation(trt.CollectiveOperation.GATHER, has_root=True),
    Operation(trt.CollectiveOperation.SCATTER, has_root=True, divides=True),
]


def build(operation, size):
    """The plan of a network with one layer."""
    builder = trt.Builder(LOGGER)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    tensor = network.add_input("input", trt.float32, (operation.rows(size), COLUMNS))
    layer = network.add_dist_collective(tensor, operation.operation, operation.reduce_op, operation.root, [])
    layer.name = operation.name.lower()
    layer.num_ranks = size
    layer.get_output(0).name = "output"
    network.mark_output(layer.get_output(0))
    return builder.build_serialized_network(network, builder.create_builder_config())


def infer(plan, x):
    """The output of a plan on this rank. It begins as NaN, which stays where nothing is written."""
    engine = trt.Runtime(LOGGER).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    context.set_communicator(dist.group.WORLD)
    output = np.full(context.get_tensor_shape("output"), np.nan, trt.nptype(engine.get_tensor_dtype("output")))
    context.set_tensor_address("input", x)
    context.set_tensor_address("output", output)
    context.execute_async_v3(0)
    return output


def say(text):
    # In one write, so that the lines of the ranks do not mix.
    sys.stdout.write(f"[I] Rank {dist.get_rank()} - {text}\n")
    sys.stdout.flush()


def run(operation):
    """Run an operation. Whether it gave what it means."""
    rank, size = dist.get_rank(), dist.get_world_size()
    shape = (operation.rows(size), COLUMNS)
    inputs = [100.0 * other + np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape) for other in range(size)]
    output = infer(build(operation, size), inputs[rank])
    expected = operation.expected(inputs, rank)
    passed = bool(np.isnan(output).all() if expected is None else np.array_equal(output, expected))
    say(f"{operation.name} {'PASSED' if passed else 'FAILED'}")
    if passed:
        say(f"{operation.name} test completed successfully!")
    return passed


def run_rank(name, rank=-1, size=-1):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    results = [run(operation) for operation in OPERATIONS if name in ("all", operation.name.lower())]
    dist.destroy_process_group()
    sys.exit(not all(results))


def main():
    names = [operation.name.lower() for operation in OPERATIONS]
    parser = argparse.ArgumentParser(description="Runs a DistCollective layer on every rank and checks the result.")
    parser.add_argument("--op", type=str.lower, choices=["all", *names], default="all", help="the operation")
    parser.add_argument("--ranks", type=int, help="start so many processes, without a launcher")
    arguments = parser.parse_args()
    if arguments.ranks is None:
        return run_rank(arguments.op)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", DCL_JOB_ID=f"sample {os.getpid()}")
    ranks = [
        multiprocessing.Process(target=run_rank, args=(arguments.op, rank, arguments.ranks))
        for rank in range(arguments.ranks)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


if __name__ == "__main__":
    main()
