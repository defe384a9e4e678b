"""distcollective as a backend of torch.distributed, beside gloo: the time of a call, and of a step of DDP and of FSDP.

Both have the same processes, each on a processor of its own as far as there are enough, and take turns.

Example: python torch_backend.py --processes 2
"""

import argparse
import os
import platform
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import distcollective.torch  # noqa: F401

ROUNDS = 15
SIZES = {"8 B": 2, "64 KiB": 1 << 14, "1 MiB": 1 << 18, "16 MiB": 1 << 22}


def calls(size, n, group):
    """The calls, each on tensors of ``size`` elements on each rank."""
    x, block, all_blocks = torch.ones(size), torch.ones(size // n * n), torch.ones(size * n)
    yield "all_reduce", lambda: dist.all_reduce(x, group=group)
    yield "broadcast", lambda: dist.broadcast(x, 0, group=group)
    yield "all_gather", lambda: dist.all_gather_into_tensor(all_blocks, x, group=group)
    yield "all_to_all", lambda: dist.all_to_all_single(torch.empty_like(block), block, group=group)
    # The last rank gets what others get less.
    splits = [size // n // 2] * (n - 1) + [size // n * n - size // n // 2 * (n - 1)]
    own = [splits[dist.get_rank()]] * n
    taken = torch.empty(sum(own))
    yield "uneven a2a", lambda: dist.all_to_all_single(taken, block, own, splits, group=group)


def ddp(net, group):
    return torch.nn.parallel.DistributedDataParallel(net, process_group=group)


def fsdp(net, group):
    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def step(make, group):
    """A training step of a small transformer, of which ``make`` makes a parallel one."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
    net = make(torch.nn.TransformerEncoder(layer, 4), group)
    optimizer, x = torch.optim.SGD(net.parameters(), 0.01), torch.randn(4, 16, 64)

    def run():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return run


def microseconds(call, group, budget):
    """The time of a call on the slowest rank, over so many calls that they take about the budget."""
    dist.barrier(group)
    begin = time.perf_counter()
    call()
    count = torch.tensor([max(int(budget / (time.perf_counter() - begin)), 3)])
    dist.all_reduce(count, dist.ReduceOp.MIN, group)
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(int(count)):
        call()
    time_of_all = torch.tensor([(time.perf_counter() - begin) / int(count) * 1e6])
    dist.all_reduce(time_of_all, dist.ReduceOp.MAX, group)
    return time_of_all.item()


def be_rank(rank, n, path):
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    dist.init_process_group("distcollective", init_method=f"file://{path}", rank=rank, world_size=n)
    groups = [None, dist.new_group(backend="gloo")]
    cases = [
        (name, text, [dict(calls(size, n, group))[name] for group in groups])
        for text, size in SIZES.items()
        for name, _ in calls(size, n, None)
    ]
    cases += [(f"{make.__name__} step", "", [step(make, group) for group in groups]) for make in (ddp, fsdp)]
    for name, text, both in cases:
        times = [[], []]
        for round_ in range(ROUNDS):
            for which in (0, 1) if round_ % 2 else (1, 0):
                times[which].append(microseconds(both[which], groups[which], 0.02))
        own, gloo = map(statistics.median, times)
        if rank == 0:
            print(f"{name:<12}{n:>10}{text:>8}{own:>19.1f}{gloo:>12.1f}{gloo / own:>8.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    n = parser.parse_args().processes
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} processors, float32")
    print(f"medians of {ROUNDS} rounds, in turns; a ratio above 1 says that distcollective is faster\n")
    print(f"{'call':<12}{'processes':>10}{'size':>8}{'distcollective us':>19}{'gloo us':>12}{'ratio':>8}")
    mp.spawn(be_rank, (n, tempfile.mktemp()), nprocs=n)
