#!/usr/bin/env python3
"""Two linear layers of torch, split over ranks. The result is that of the whole layers.

    torchrun --nproc_per_node 2 tensor_parallel.py

The first layer is split by its outputs, the second by its inputs. So each rank computes a part of
every element of the result, and one all_reduce adds the parts.
"""

import torch

import distcollective.distributed as dist

INPUT, HIDDEN, OUTPUT, BATCH = 16, 64, 8, 4


class SplitLayers(torch.nn.Module):
    """This rank's part of two linear layers with a ReLU between them."""

    def __init__(self, first, second):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        own = slice(rank * first.out_features // size, (rank + 1) * first.out_features // size)
        self.first_weight, self.first_bias = first.weight[own], first.bias[own]
        self.second_weight = second.weight[:, own]
        self.second_bias = second.bias

    def forward(self, x):
        hidden = torch.relu(x @ self.first_weight.T + self.first_bias)
        y = hidden @ self.second_weight.T
        dist.all_reduce(y)
        return y + self.second_bias


def main():
    dist.init_process_group("gloo")
    # Every rank makes the same layers and the same input.
    torch.manual_seed(7)
    first, second = torch.nn.Linear(INPUT, HIDDEN), torch.nn.Linear(HIDDEN, OUTPUT)
    x = torch.randn(BATCH, INPUT)
    with torch.no_grad():
        whole = second(torch.relu(first(x)))
        split = SplitLayers(first, second)(x)
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-5)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks compute what one computes: {split.sum().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
