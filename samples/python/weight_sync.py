#!/usr/bin/env python3
"""Weights from training to serving: rank 0 trains a model, the others serve it.

    torchrun --nproc_per_node 3 weight_sync.py

After each step of training every server gets the new weights, as a state_dict of torch. The servers
know neither names nor shapes before.
"""

import torch

import distcollective
import distcollective.distributed as dist

STEPS = 3


def new_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def main():
    distcollective.launch_from_torch(verbose=False)
    is_trainer = dist.get_rank() == 0
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(1, 4)
    for step in range(STEPS):
        if is_trainer:
            loss = model(x).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()} if is_trainer else None
        weights = distcollective.broadcast_tensor_dict(weights, src=0)
        if not is_trainer:
            model.load_state_dict(weights)
        # Every rank now computes the same.
        with torch.no_grad():
            outputs = [torch.empty(1, 2) for _ in range(dist.get_world_size())]
            dist.all_gather(outputs, model(x))
        assert all(torch.equal(output, outputs[0]) for output in outputs)
        if is_trainer:
            print(f"step {step}: {dist.get_world_size() - 1} servers have the weights of loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
