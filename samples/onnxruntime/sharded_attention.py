#!/usr/bin/env python3
"""An attention that NVIDIA's Polygraphy shards, in ONNX Runtime, with a process for each rank.

    distcollective launch -n 2 -- env/bin/python sharded_attention.py
    env/bin/torchrun --nproc_per_node 2 sharded_attention.py

Rank 0 writes the model and lets Polygraphy shard it among all ranks. Then every rank runs the
sharded model, and compares its output with that of the whole model in a session without ranks.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import distcollective
import distcollective.distributed as dist
from distcollective.onnxruntime import drop_stored_shapes

ROWS, COLUMNS = 32, 64
#: How much of the largest element the outputs may differ, because sums are in another order.
TOLERANCE = 1e-5


def attention():
    """An attention of one head, with its projections."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], name="q projection"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], name="k projection"),
        helper.make_node("MatMul", ["x", "wv"], ["v"], name="v projection"),
        helper.make_node("Transpose", ["k"], ["kt"], name="transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["weights"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"], name="mix"),
        helper.make_node("MatMul", ["mixed", "wo"], ["y"], name="output projection"),
    ]
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(generator.standard_normal((COLUMNS, COLUMNS)).astype(np.float32) / 16, name)
        for name in ["wq", "wk", "wv", "wo"]
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, COLUMNS]) for name in "xy")
    graph = helper.make_graph(nodes, "attention", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def shard(whole, sharded, ranks):
    """Let Polygraphy write the model for so many ranks: each has its rows of the input.

    Polygraphy leaves shapes of one device in the model, which the operator refuses.
    """
    command = [
        sys.executable, Path(sys.executable).with_name("polygraphy"), "multi-device", "shard", whole, "-o", sharded,
        "--one-shot", "--parallelism", "CP", "--gpus", ranks, "--nb-rank", ranks, "--k-idx", 1, "--v-idx", 0,
        "--kv-rank", 2, "--i-rank", 2, "--o-rank", 2, "--i-idx", 0, "--o-idx", 0,
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"polygraphy failed:\n{done.stdout}")
    model = onnx.load(sharded)
    drop_stored_shapes(model)
    onnx.save(model, sharded)


def output_of(path, x, options=None):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y


def main():
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    if ROWS % size:
        sys.exit(f"there are {size} ranks; their number has to divide {ROWS} rows")
    with tempfile.TemporaryDirectory() as own:
        # The folder of rank 0, which the others read.
        folder = Path(dist.broadcast_bytes(own.encode(), src=0).decode())
        whole, sharded = str(folder / "whole.onnx"), str(folder / "sharded.onnx")
        if rank == 0:
            onnx.save(attention(), whole)
            shard(whole, sharded, size)
        dist.barrier()

        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(distcollective.onnxruntime_library())
        x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
        y, expected = output_of(sharded, x, options), output_of(whole, x)
        nodes = sum(node.op_type == "DistCollective" for node in onnx.load(sharded).graph.node)
        # Rank 0 removes its folder when all have read it.
        dist.barrier()
    difference = float(np.abs(y - expected).max())
    # In one write, so that the lines of the ranks do not mix.
    text = f"{nodes} DistCollective nodes, the largest difference is {difference:.2e}"
    print(f"rank {rank} of {size}: {text}\n", end="", flush=True)
    dist.destroy_process_group()
    sys.exit(not difference <= TOLERANCE * float(np.abs(expected).max()))


if __name__ == "__main__":
    main()
