"""Runs collectives on PyTorch's gloo backend: gloo.py FOLDER WORLD_SIZE.

FOLDER has cases.json, a list of collectives, and for each rank the file inRANK with the inputs of
all cases one after the other. Each rank writes outRANK: for each case the number of bytes, or -1 if
gloo does not have the case or the rank has no output, as a 64-bit integer, then the bytes.
"""

import json
import os
import struct
import sys

import torch
import torch.distributed as dist

TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def run(case, x, rank, world_size):
    """The output of one case; None if this rank has none."""
    operation, root = case["operation"], case["root"]
    reduction = REDUCTIONS.get(case["reduce_op"])
    blocks = lambda: [torch.zeros_like(x) for _ in range(world_size)]
    if operation == "all_reduce":
        dist.all_reduce(x, reduction)
        return x
    if operation == "all_gather":
        gathered = blocks()
        dist.all_gather(gathered, x)
        return torch.cat(gathered)
    if operation == "broadcast":
        dist.broadcast(x, root)
        return x
    if operation == "reduce":
        dist.reduce(x, root, reduction)
        return x if rank == root else None
    if operation == "reduce_scatter":
        output = torch.zeros(x.numel() // world_size, dtype=x.dtype)
        dist.reduce_scatter(output, list(x.chunk(world_size)), reduction)
        return output
    if operation == "all_to_all":
        output = torch.zeros_like(x)
        dist.all_to_all_single(output, x)
        return output
    if operation == "gather":
        gathered = blocks() if rank == root else None
        dist.gather(x, gathered, root)
        return torch.cat(gathered) if rank == root else None
    if operation == "scatter":
        output = torch.zeros(x.numel() // world_size, dtype=x.dtype)
        dist.scatter(output, list(x.chunk(world_size)) if rank == root else None, root)
        return output
    raise RuntimeError(operation)


def as_bytes(x):
    return bytes(x.contiguous().view(torch.uint8).numpy()) if x.numel() else b""


def run_rank(folder, rank, world_size):
    store = "file://" + os.path.join(folder, "store")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    inputs = open(os.path.join(folder, f"in{rank}"), "rb").read()
    at = 0
    with open(os.path.join(folder, f"out{rank}"), "wb") as outputs:
        for case in json.load(open(os.path.join(folder, "cases.json"))):
            data = bytearray(inputs[at : at + case["bytes"]])
            at += case["bytes"]
            try:
                output = run(case, torch.frombuffer(data, dtype=TYPES[case["data_type"]]), rank, world_size)
            except RuntimeError:
                output = None
            written = b"" if output is None else as_bytes(output)
            outputs.write(struct.pack("q", -1 if output is None else len(written)) + written)
    dist.barrier()


def main():
    folder, world_size = sys.argv[1], int(sys.argv[2])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            try:
                run_rank(folder, rank, world_size)
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {error}", file=sys.stderr)
                code = 1
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))


main()
