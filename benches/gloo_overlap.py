"""PyTorch's gloo: an asynchronous all_reduce beside computation, as `benches overlap` measures it.

usage: gloo_overlap.py RANKS ROUNDS KIB,KIB,...
"""

import json
import math
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FEW, PASSES, MANY, ALL = 4096, 16, 64 << 10, 16 << 20


class Computation:
    """Multiplications and additions on one thread: in the cache, or in memory."""

    def __init__(self, name, count, step, passes):
        self.name, self.step, self.passes, self.next = name, step, passes, 0
        self.elements = torch.ones(count)

    def run(self, steps):
        for _ in range(steps):
            part = self.elements[self.next : self.next + self.step]
            for _ in range(self.passes):
                part.mul_(0.999).add_(0.001)
            self.next = (self.next + self.step) % len(self.elements)


def median(times):
    return sorted(times)[len(times) // 2]


def compute_alone(work, steps, rounds):
    times = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        work.run(steps)
        times.append(time.perf_counter() - start)
    return median(times)


def both(tensor, work, steps, rounds):
    computed, ended = [], []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        all_reduce = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
        work.run(steps)
        computed.append(time.perf_counter() - start)
        all_reduce.wait()
        ended.append(time.perf_counter() - start)
    return median(computed), median(ended)


def run(rank, ranks, rounds, lengths):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for length in lengths:
        tensor = torch.zeros(length // 4)
        for work in [Computation("in the cache", FEW, FEW, PASSES), Computation("in memory", ALL, MANY, 1)]:
            _, all_reduce = both(tensor, work, 0, rounds)
            steps = torch.tensor([math.ceil(all_reduce / compute_alone(work, 1, rounds))])
            dist.broadcast(steps, 0)
            compute = compute_alone(work, int(steps), rounds)
            beside, all_of_it = both(tensor, work, int(steps), rounds)
            result = {"benchmark": "overlap", "implementation": "gloo", "ranks": ranks, "bytes": length}
            result |= {"computation": work.name, "compute_ms": compute * 1e3, "all_reduce_ms": all_reduce * 1e3}
            result |= {"both_ms": all_of_it * 1e3, "slowdown": beside / compute}
            result |= {"hidden": (compute + all_reduce - all_of_it) / all_reduce}
            if rank == 0:
                print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def main():
    ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
    lengths = [int(length) << 10 for length in sys.argv[3].split(",")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), GLOO_SOCKET_IFNAME="lo")
    mp.spawn(run, args=(ranks, rounds, lengths), nprocs=ranks)


if __name__ == "__main__":
    main()
