#!/usr/bin/env python3
"""The examples of torch.distributed's tutorial: each rank prints what it has after each call.

    python3 torch_primitives.py --ranks 4 --start fork
    torchrun --nproc_per_node 4 torch_primitives.py

With ``import torch.distributed as dist`` in place of the import below it prints the same.
"""

import argparse
import os

import torch
import torch.multiprocessing as multiprocessing

import distcollective.distributed as dist


def say(name, value):
    # In one write, so that the lines of the ranks do not mix.
    print(f"{name}: rank {dist.get_rank()} has {value}\n", end="", flush=True)


def broadcast(rank, size):
    tensor = torch.full((2,), float(rank))
    dist.broadcast(tensor, src=0)
    say("broadcast", tensor)


def all_reduce(rank, size):
    group = dist.new_group(list(range(size)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
    say("all_reduce", tensor[0])


def reduce(rank, size):
    tensor = torch.tensor([rank + 1.0])
    dist.reduce(tensor, dst=0)
    if rank == 0:
        say("reduce", tensor)


def scatter(rank, size):
    tensor = torch.empty(1)
    if rank == 0:
        dist.scatter(tensor, scatter_list=[torch.tensor([other + 1.0]) for other in range(size)], src=0)
    else:
        dist.scatter(tensor, scatter_list=[], src=0)
    say("scatter", tensor)


def gather(rank, size):
    tensor = torch.tensor([rank + 1.0])
    if rank == 0:
        tensors = [torch.empty(1) for _ in range(size)]
        dist.gather(tensor, gather_list=tensors, dst=0)
        say("gather", tensors)
    else:
        dist.gather(tensor, gather_list=[], dst=0)


def all_gather(rank, size):
    tensors = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(tensors, torch.tensor([rank + 1.0]))
    say("all_gather", tensors)


def asynchronous(rank, size):
    tensor = torch.tensor([rank + 1.0])
    work = dist.all_reduce(tensor, async_op=True)
    # Compute something else here.
    work.wait()
    say("async all_reduce", tensor)


def send_recv(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor=tensor, src=0)
        say("send and recv", tensor[0])
    request = None
    if rank == 0:
        request = dist.isend(tensor=tensor + 1, dst=1)
    elif rank == 1:
        request = dist.irecv(tensor=tensor, src=0)
    if request is not None:
        request.wait()
        say("isend and irecv", tensor.numel())


def run(rank, size):
    for example in [broadcast, all_reduce, reduce, scatter, gather, all_gather, asynchronous, send_recv]:
        example(rank, size)
    dist.barrier()


def init_process(rank, size, port):
    """Initializes as the tutorial does, for ranks that this program starts itself."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    run(rank, size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--start", choices=["fork", "spawn"], default="spawn")
    parser.add_argument("--port", type=int, default=29500)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        run(dist.get_rank(), dist.get_world_size())
    else:
        ranks = (arguments.ranks, arguments.port)
        multiprocessing.start_processes(init_process, args=ranks, nprocs=arguments.ranks, start_method=arguments.start)
