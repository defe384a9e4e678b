#!/usr/bin/env python3
"""PyTorch on this library's backend: data parallel training, then a tensor parallel forward pass.

    torchrun --nproc-per-node 2 torch_training.py
    torchrun --nproc-per-node 2 torch_training.py --backend gloo

A small network learns to tell two spirals apart, by DistributedDataParallel: each rank has a part of the points. Then
its layers are divided among the ranks, by DTensor, and give what the whole network gives. Nothing but the name of the
backend differs from gloo.
"""

import argparse
import copy
import math
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import distcollective.torch  # noqa: F401

POINTS, STEPS = 512, 200


def spirals():
    """Points of two spirals, and which spiral each is of."""
    turn = torch.linspace(0.5, 3, POINTS // 2) * math.pi
    arms = [torch.stack([turn * torch.cos(turn + angle), turn * torch.sin(turn + angle)], 1) for angle in (0, math.pi)]
    return torch.cat(arms) / 6, torch.cat([torch.zeros(POINTS // 2), torch.ones(POINTS // 2)]).long()


def train(net, points, labels):
    """Trains on this rank's points. Gives the share of all points that it tells right, and the seconds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = slice(rank, None, size)
    parallel = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    begin = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(parallel(points[own]), labels[own]).backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    right = (net(points[own]).argmax(1) == labels[own]).sum()
    dist.all_reduce(right)
    return right.item() / POINTS, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="distcollective")
    dist.init_process_group(parser.parse_args().backend)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    )
    points, labels = spirals()
    share, seconds = train(net, points, labels)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    divided = parallelize_module(copy.deepcopy(net), mesh, {"2": ColwiseParallel(), "4": RowwiseParallel()})
    differs = (divided(points) - net(points)).abs().max().item()
    if dist.get_rank() == 0:
        print(f"{share:.0%} of the points are right after {STEPS} steps, in {seconds:.2f} s")
        print(f"divided among {dist.get_world_size()} ranks, the outputs differ by at most {differs:.0e}")
    assert share > 0.9 and differs < 1e-4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
