"""A random program of calls gives what torch's gloo gives."""

import os
import random

import pytest
from ranks import peer, run

import distcollective.distributed as ours

torch = peer("torch")
theirs = peer("torch.distributed")

TYPES = [torch.float32, torch.int64, torch.int32, torch.uint8, torch.float64, torch.int8]
#: gloo has no average. Sums are of small integers, which no order of addition rounds.
OPS = ["SUM", "MAX", "MIN", "PRODUCT"]
CALLS = [
    "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_gather", "barrier", "send", "isend", "batch",
]  # fmt: skip


def step(dist, choice, rank, group, ranks):
    """One call of the program. Gives what this rank has got."""
    call, dtype, op, shape, root, peer, tag, seed, async_op = choice
    count = 1
    for length in shape:
        count *= length
    x = ((torch.arange(count) + seed + rank * 7) % 3).to(dtype).reshape(shape)
    blocks = [((torch.arange(count) + seed + other) % 5).to(dtype).reshape(shape) for other in ranks]
    reduce_op = getattr(dist.ReduceOp, op)
    keywords = {"group": group, "async_op": async_op}
    works = []
    if call == "all_reduce":
        works.append(dist.all_reduce(x, reduce_op, **keywords))
        return works, [x]
    if call == "broadcast":
        works.append(dist.broadcast(x, root, **keywords))
        return works, [x]
    if call == "reduce":
        works.append(dist.reduce(x, root, reduce_op, **keywords))
        # gloo leaves partial sums on the other ranks.
        return works, [x] if rank == root else []
    if call == "scatter":
        works.append(dist.scatter(x, blocks if rank == root else None, root, **keywords))
        return works, [x]
    if call == "gather":
        works.append(dist.gather(x, blocks if rank == root else None, root, **keywords))
        return works, blocks
    if call == "all_gather":
        works.append(dist.all_gather(blocks, x, **keywords))
        return works, blocks
    if call == "barrier":
        works.append(dist.barrier(group, async_op))
        return works, []
    if root == peer:
        return works, []
    if call == "send":
        if rank == root:
            dist.send(x, peer, group, tag)
        elif rank == peer:
            # gloo gives 0 or the sender, by its version.
            dist.recv(x, root, group, tag)
        return works, [x]
    if call == "isend":
        if rank == root:
            works.append(dist.isend(x, peer, group, tag))
        elif rank == peer:
            works.append(dist.irecv(x, root, group, tag))
        return works, [x]
    place = ranks.index(rank)
    after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]
    y = torch.zeros_like(x)
    messages = [dist.P2POp(dist.isend, x, after, group, tag), dist.P2POp(dist.irecv, y, before, group, tag)]
    if len(ranks) > 1:
        works.extend(dist.batch_isend_irecv(messages))
    return works, [y]


def program(dist, seed, count):
    """Makes random calls on all ranks and on a group. Gives what this rank has got."""
    generator = random.Random(seed)
    rank = dist.get_rank()
    pair = dist.new_group([1, 3])
    results, pending = [], []
    for _ in range(count):
        ranks, group = generator.choice([([0, 1, 2, 3], None), ([0, 1, 2, 3], None), ([1, 3], pair)])
        shape = generator.choice([(), (1,), (3,), (5, 7), (2, 3, 4), (40_000,)])
        choice = (
            generator.choice(CALLS), generator.choice(TYPES), generator.choice(OPS), shape, generator.choice(ranks),
            generator.choice(ranks), generator.randrange(5), generator.randrange(100), generator.random() < 0.3,
        )  # fmt: skip
        is_waited_for = generator.random() < 0.7
        if rank not in ranks:
            continue
        works, tensors = step(dist, choice, rank, group, ranks)
        pending.extend(work for work in works if work is not None)
        results.extend(tensors)
        if is_waited_for:
            [work.wait() for work in pending]
            pending.clear()
    [work.wait() for work in pending]
    return results


@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_is_equal(seed):
    def body():
        rank, size = ours.get_rank(), ours.get_world_size()
        # gloo's store listens on this port; another process may have it.
        port = int.from_bytes(ours.broadcast_bytes(os.urandom(2)), "little") % 20000 + 40000
        address = f"tcp://127.0.0.1:{port}"
        theirs.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
        expected = program(theirs, seed, 200)
        got = program(ours, seed, 200)
        assert len(got) == len(expected)
        for number, (ours_tensor, theirs_tensor) in enumerate(zip(got, expected)):
            assert ours_tensor.dtype == theirs_tensor.dtype
            assert torch.equal(ours_tensor, theirs_tensor), f"result {number}: {ours_tensor}, not {theirs_tensor}"
        return len(got)

    counts = run(4, body)
    assert all(count > 100 for count in counts)
