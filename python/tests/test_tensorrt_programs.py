"""Programs in the manner of NVIDIA's: its builders' helpers, its documentation, its sample."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from ranks import DEADLINE, run

import distcollective.distributed as dist
import distcollective.tensorrt as trt

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "python" / "sample_dist_collective.py"
OPERATIONS = [operation.name for operation in trt.CollectiveOperation]

# Helpers, with the calls that builders of tensor-parallel and context-parallel models make.


def cast(network, tensor, dtype):
    return tensor if tensor.dtype == dtype else network.add_cast(tensor, dtype).get_output(0)


def constant(network, value, dtype=np.float32):
    array = np.ascontiguousarray(value, dtype=dtype)
    return network.add_constant(tuple(array.shape), array).get_output(0)


def add_all_reduce_sum(network, tensor, tp_size):
    if tp_size == 1:
        return tensor
    layer = network.add_dist_collective(tensor, trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, [])
    if layer is None:
        raise RuntimeError("no all-reduce")
    layer.num_ranks = tp_size
    return layer.get_output(0)


def add_collective(network, tensor, operation, size, reduce_operation=None):
    layer = network.add_dist_collective(tensor, operation, reduce_operation or trt.ReduceOperation.NONE, -1, [])
    layer.name = f"collective_{network.num_layers}_{operation}"
    layer.num_ranks = int(size)
    return layer.get_output(0)


def sequence_to_heads(network, tensor, local_length, heads, head_dim, size):
    """Ulysses: [local rows, heads * dim] on each rank becomes [1, local heads, all rows, dim]."""
    local_heads = heads // size
    routed = network.add_shuffle(tensor)
    routed.reshape_dims = (local_length, size, local_heads, head_dim)
    routed.second_transpose = trt.Permutation([1, 0, 2, 3])
    half = cast(network, routed.get_output(0), trt.float16)
    exchanged = add_collective(network, half, trt.CollectiveOperation.ALL_TO_ALL, size)
    full = network.add_shuffle(cast(network, exchanged, trt.bfloat16))
    full.first_transpose = trt.Permutation([2, 0, 1, 3])
    full.reshape_dims = (1, local_heads, local_length * size, head_dim)
    return full.get_output(0)


def heads_to_sequence(network, tensor, local_length, heads, head_dim, size):
    """The way back: [1, local heads, all rows, dim] becomes [local rows, heads * dim]."""
    local_heads = heads // size
    routed = network.add_shuffle(tensor)
    routed.reshape_dims = (local_heads, size, local_length, head_dim)
    routed.second_transpose = trt.Permutation([1, 0, 2, 3])
    half = cast(network, routed.get_output(0), trt.float16)
    exchanged = add_collective(network, half, trt.CollectiveOperation.ALL_TO_ALL, size)
    rows = network.add_shuffle(cast(network, exchanged, trt.bfloat16))
    rows.first_transpose = trt.Permutation([2, 0, 1, 3])
    rows.reshape_dims = (local_length, heads * head_dim)
    return rows.get_output(0)


def rank_number(network, size):
    """A reduce-scatter of equal constants gives each rank its own number."""
    values = (np.arange(size, dtype=np.float32) / size).reshape(size, 1)
    operation, reduce_operation = trt.CollectiveOperation.REDUCE_SCATTER, trt.ReduceOperation.SUM
    number = add_collective(network, constant(network, values), operation, size, reduce_operation)
    return cast(network, number, trt.int32)


def infer(describe, inputs):
    """Describe, build, read the plan back, and run it, as a program for TensorRT does."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    dtypes = {trt.nptype(dtype): dtype for dtype in trt.DataType}
    tensors = [network.add_input(name, dtypes[x.dtype.type], x.shape) for name, x in inputs.items()]
    output = describe(network, *tensors)
    output.name = "output"
    network.mark_output(output)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)
    config.set_preview_feature(trt.PreviewFeature.MULTIDEVICE_RUNTIME_10_16, True)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("no plan")
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    assert context.set_communicator(dist.group.WORLD)
    buffers = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            assert context.set_input_shape(name, inputs[name].shape)
            buffers[name] = np.ascontiguousarray(inputs[name])
        else:
            shape, dtype = context.get_tensor_shape(name), engine.get_tensor_dtype(name)
            assert trt.volume(shape) * dtype.itemsize > 0
            buffers[name] = np.empty(shape, trt.nptype(dtype))
        context.set_tensor_address(name, buffers[name].ctypes.data)
    assert context.execute_async_v3(0)
    return buffers["output"]


def test_tensor_parallel_helpers_run():
    def body():
        rank, size = dist.get_rank(), dist.get_world_size()
        x = np.arange(6, dtype=np.float32).reshape(2, 3) * (rank + 1)
        y = infer(lambda network, x: add_all_reduce_sum(network, x, size), {"x": x})
        alone = infer(lambda network, x: cast(network, add_all_reduce_sum(network, x, 1), trt.float16), {"x": x})
        return y.tolist(), bool((alone == x).all())

    assert run(2, body) == [([[0, 3, 6], [9, 12, 15]], True)] * 2


def test_ranks_know_their_numbers():
    def body():
        return infer(lambda network: rank_number(network, dist.get_world_size()), {}).tolist()

    assert run(4, body) == [[[0]], [[1]], [[2]], [[3]]]


@pytest.mark.parametrize("size", [2, 4])
def test_ulysses_exchanges_run(size):
    local_length, heads, head_dim = 3, 4, 2
    whole = np.arange(size * local_length * heads * head_dim).reshape(size * local_length, heads, head_dim) % 251

    def body():
        rank = dist.get_rank()
        mine = whole[rank * local_length : (rank + 1) * local_length].reshape(local_length, heads * head_dim)
        x = mine.astype(ml_dtypes.bfloat16)
        arguments = (local_length, heads, head_dim, size)

        def there(network, x):
            y = sequence_to_heads(network, x, *arguments)
            assert (y.shape, y.dtype) == ((1, heads // size, size * local_length, head_dim), trt.bfloat16)
            return y

        y = infer(there, {"x": x})
        local = heads // size
        expected = whole[:, rank * local : (rank + 1) * local].transpose(1, 0, 2)[None]
        back = infer(lambda network, x: heads_to_sequence(network, there(network, x), *arguments), {"x": x})
        return bool((y.astype(int) == expected).all()), bool((back == x).all())

    assert run(size, body) == [(True, True)] * size


def output_of(command, **environment):
    """What a program prints. It has the deadline of a test."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def lines_of(operations, ranks):
    says = [f"{name} {text}" for name in operations for text in ("PASSED", "test completed successfully!")]
    return sorted(f"[I] Rank {rank} - {text}" for rank in range(ranks) for text in says)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_sample_passes(ranks):
    output = output_of([sys.executable, SAMPLE, "--ranks", str(ranks)])
    assert sorted(output.splitlines()) == lines_of(OPERATIONS, ranks)


def test_the_sample_runs_under_a_launcher():
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "DCL_JOB_ID": f"trt {os.getpid()}"}
    command = [sys.executable, SAMPLE, "--op", "reduce_scatter"]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **variables, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        output = "".join(rank.communicate(timeout=DEADLINE)[0] for rank in ranks)
    finally:
        [rank.kill() for rank in ranks]
    assert sorted(output.splitlines()) == lines_of(["REDUCE_SCATTER"], 2)
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_the_sample_finds_wrong_results(tmp_path):
    program = SAMPLE.read_text()
    right = '"ALL_REDUCE": lambda: sum(inputs)'
    assert program.count(right) == 1
    wrong = tmp_path / "wrong.py"
    wrong.write_text(program.replace(right, '"ALL_REDUCE": lambda: inputs[0]'))
    done = subprocess.run(
        [sys.executable, wrong, "--ranks", "2", "--op", "ALL_REDUCE"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == [f"[I] Rank {rank} - ALL_REDUCE FAILED" for rank in range(2)]
