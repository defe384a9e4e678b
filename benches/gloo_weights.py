"""PyTorch's gloo broadcasts tensors one by one, into tensors that the receivers have.

usage: gloo_weights.py RANKS ROUNDS COUNT,COUNT,...    (elements of 16 bits)
"""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, ranks, rounds, counts):
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    tensors = [torch.full((count,), rank, dtype=torch.float16) for count in counts]
    times = []
    for round_ in range(rounds + 1):
        dist.barrier()
        start = time.perf_counter()
        for tensor in tensors:
            dist.broadcast(tensor, 0)
        dist.barrier()
        if round_ > 0:
            times.append(time.perf_counter() - start)
    assert all(not tensor.any() for tensor in tensors)
    times.sort()
    if rank == 0:
        received = 2 * sum(counts) * (ranks - 1)
        rate = [round(received / seconds / 1e9, 2) for seconds in times]
        result = {"benchmark": "weights", "implementation": "gloo", "ranks": ranks, "bytes": 2 * sum(counts)}
        result |= {"tensors": len(counts), "received_gb_per_s": rate[len(rate) // 2]}
        print(json.dumps(result | {"slowest": rate[-1], "fastest": rate[0]}), flush=True)
    dist.destroy_process_group()


def main():
    ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
    counts = [int(count) for count in sys.argv[3].split(",")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), GLOO_SOCKET_IFNAME="lo")
    mp.spawn(run, args=(ranks, rounds, counts), nprocs=ranks)


if __name__ == "__main__":
    main()
