"""The backend of torch.distributed, beside gloo: torch 2.3 or newer."""

import ctypes.util
import hashlib
import importlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
from ranks import DEADLINE, Ranks, peer

torch = peer("torch")
dist = torch.distributed
VERSION = [int(part) for part in torch.__version__.split(".")[:2]]
IS_OLD = VERSION < [2, 3]
#: How many machines this one stands for.
machine_count = 1


@pytest.fixture
def two_machines(monkeypatch):
    """Lets the first half of the ranks be on one machine, and the others on another one."""
    if "DCL_REQUIRE_PEERS" not in os.environ and ctypes.util.find_library("ucp") is None:
        pytest.skip("UCX is not installed")
    monkeypatch.setattr(sys.modules[__name__], "machine_count", 2)


@pytest.fixture(params=[1, 2])
def machines(request):
    """Runs the test on one machine, and on two."""
    if request.param == 2:
        request.getfixturevalue("two_machines")


any_machines = pytest.mark.usefixtures("machines")


def test_an_old_torch_is_an_error():
    if not IS_OLD:
        pytest.skip("this torch is new enough")
    with pytest.raises(ImportError, match="needs torch 2.3 or newer, and this is 1"):
        import distcollective.torch  # noqa: F401


def _child(connection, variables, rank, size, body, arguments):
    try:
        import distcollective.torch  # noqa: F401

        torch.set_num_threads(1)
        os.environ["RANK_OF_TEST"] = str(rank)
        if machine_count > 1:
            os.environ.update(DCL_HOST_ID=str(rank * machine_count // size), UCX_TLS="tcp,self")
        path, seconds, *rest = arguments
        timeout = timedelta(seconds=seconds)
        dist.init_process_group(
            "distcollective", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timeout
        )
        connection.send(("result", body(*rest)))
    except BaseException:
        connection.send(("error", traceback.format_exc()))


def on_ranks(size, body, *arguments, seconds=8.0):
    """The ranks of a group of this backend."""
    if IS_OLD:
        pytest.skip(f"distcollective.torch needs torch 2.3 or newer, and this is {torch.__version__}")
    path = tempfile.mktemp(prefix="dcl-torch-")
    # A rank of a fork keeps what torch has loaded.
    return Ranks(size, body, path, seconds, *arguments, target=_child)


def run(size, body, *arguments, **options):
    with on_ranks(size, body, *arguments, **options) as ranks:
        return [ranks.result(rank) for rank in range(size)]


#: Those that gloo has too.
TYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8"]


def values(choose, name, shape):
    """A tensor of small numbers, of which every sum is exact."""
    numbers = torch.tensor([choose.randrange(4) for _ in range(torch.Size(shape).numel())]).reshape(shape)
    return numbers.to(getattr(torch, name))


def call(choose, own, n, group, tensor_of, async_op, row=()):
    """Makes a random call, and gives its results. ``choose`` is alike on all ranks. ``row`` is a shape."""
    name, op = choose.choice(TYPES), choose.choice(["SUM", "PRODUCT", "MAX", "MIN"])
    shape, root = (*choose.choice([(n,), (2 * n, 3), (0, 2)]), *row), choose.randrange(n)
    op = getattr(dist.ReduceOp, op)
    tensor = tensor_of(name, shape)
    block = (shape[0] // n, *shape[1:])
    empty = lambda shape: torch.zeros(shape, dtype=tensor.dtype)  # noqa: E731
    moves = ["broadcast", "all_gather", "into", "gather", "scatter", "all_to_all", "uneven", "lists"]
    kind = choose.choice([*moves, "all_reduce", "reduce", "reduce_scatter", "coalesced"])
    out, works = [tensor], []
    if kind == "all_reduce":
        works.append(dist.all_reduce(tensor, op, group, async_op))
    elif kind == "reduce":
        works.append(dist.reduce(tensor, root, op, group, async_op))
        out = [tensor] if own == root else []
    elif kind == "broadcast":
        works.append(dist.broadcast(tensor, root, group, async_op))
    elif kind == "all_gather":
        out = [empty(shape) for _ in range(n)]
        works.append(dist.all_gather(out, tensor, group, async_op))
    elif kind == "into":
        out = [empty((n * shape[0], *shape[1:]))]
        works.append(dist.all_gather_into_tensor(out[0], tensor, group, async_op))
    elif kind == "gather":
        out = [empty(shape) for _ in range(n)] if own == root else None
        if choose.random() < 0.5 and hasattr(dist, "gather_single") and dist.get_backend(group) != "gloo":
            out = [torch.stack(out)] if out else None
            works.append(dist.gather_single(tensor, out and out[0], root, group, async_op))
            out = out and [*out[0]]
        else:
            works.append(dist.gather(tensor, out, root, group, async_op))
    elif kind == "scatter":
        out = [empty(shape)]
        blocks = [tensor + number for number in range(n)] if own == root else None
        works.append(dist.scatter(out[0], blocks, root, group, async_op))
    elif kind == "reduce_scatter":
        out = [empty(block)]
        if dist.get_backend(group) == "gloo" and VERSION < [2, 7]:  # which has none
            dist.all_reduce(tensor, op, group)
            out = [tensor[block[0] * own : block[0] * (own + 1)]]
        else:
            blocks = [*tensor.chunk(n)] if shape[0] else [tensor] * n
            works.append(dist.reduce_scatter(out[0], blocks, op, group, async_op))
    elif kind == "all_to_all":
        out = [empty(shape)]
        works.append(dist.all_to_all_single(out[0], tensor, group=group, async_op=async_op))
    elif kind in ("uneven", "lists"):
        counts = [[choose.randrange(3) for _ in range(n)] for _ in range(n)]
        sent, received = counts[own], [row[own] for row in counts]
        tensor, out = tensor_of(name, (sum(sent), 2)), [empty((sum(received), 2))]
        if kind == "uneven":
            works.append(dist.all_to_all_single(out[0], tensor, received, sent, group, async_op))
        else:
            parts = [[*tensor.split(sent)], [*out[0].split(received)]]
            if dist.get_backend(group) == "gloo":  # which has no all_to_all of lists
                works.append(dist.all_to_all_single(out[0], tensor, received, sent, group, async_op))
            else:
                works.append(dist.all_to_all(parts[1], parts[0], group, async_op))
    elif kind == "coalesced":
        out = [tensor, tensor_of(name, (3,))]
        works += [dist.all_reduce(each, op, group, async_op) for each in out]
    for work in works:
        assert work is None or work.wait()
    return kind, name, out or []


def test_random_programs_give_what_gloo_gives():
    def body(seed):
        gloo = dist.new_group(backend="gloo")
        rank, n = dist.get_rank(), dist.get_world_size()
        seen = set()
        for number in range(400):
            results = []
            for group in (None, gloo):
                of_rank = random.Random(f"{seed} {number} {rank}")
                choose = random.Random(f"{seed} {number}")
                tensor_of = lambda name, shape: values(of_rank, name, shape)  # noqa: E731, B023
                results.append(call(choose, rank, n, group, tensor_of, async_op=number % 3 > 0))
            (kind, name, own), (_, _, expected) = results
            assert len(own) == len(expected)
            for x, y in zip(own, expected):
                assert x.dtype == y.dtype and torch.equal(x, y), (number, kind, name, x, y)
            seen.add(kind)
        return len(seen)

    # 10^5 programs take ten minutes.
    for seed in range(1, 251 if os.environ.get("DCL_EXHAUSTIVE") == "1" else 2):
        size = 2 + seed % 3
        assert run(size, body, seed, seconds=20) == [12] * size


@any_machines
def test_reductions_of_bits_and_averages():
    def body():
        rank = dist.get_rank()
        for op, expected in [("BAND", 0), ("BOR", 3), ("BXOR", 3)]:
            x = torch.tensor([rank + 1])
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            assert x.item() == expected
        with pytest.raises(ValueError, match="band is of integers and bool, and not of float32"):
            dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)
        for name in ("float32", "float64"):
            x = torch.tensor([rank, 5.0], dtype=getattr(torch, name))
            dist.all_reduce(x, dist.ReduceOp.AVG)
            assert x.tolist() == [0.5, 5.0]
        x = torch.tensor([rank - 2, 1], dtype=torch.int16)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == [-1, 1]
        x = torch.tensor([float("nan") if rank == 0 else 2.0], dtype=torch.float64)
        dist.all_reduce(x, dist.ReduceOp.MAX)
        assert x.item() == 2.0
        parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.float64).t())
        dist.all_reduce(parameter)
        strided = torch.ones(4, 4)[:, ::2]
        dist.all_reduce(strided)
        for x, total in [(torch.tensor([rank == 1]), True), (torch.tensor([1j + rank]), 1 + 2j)]:
            everything = [torch.zeros_like(x) for _ in range(2)]
            dist.all_gather(everything, x)
            assert everything[rank].equal(x)
            dist.all_reduce(x)
            assert x.item() == total
        # Both have row 1, rank 1 has row 2 alone.
        sparse = torch.sparse_coo_tensor([[1, 2][: rank + 1]], torch.ones(rank + 1, 3), (4, 3))
        dist.all_reduce(sparse)
        assert sparse.to_dense().sum(1).tolist() == [0, 6, 3, 0]
        return parameter.tolist() + strided.sum(1).tolist()

    assert run(2, body) == [[2.0, 2.0, 4.0, 4.0, 4.0, 4.0]] * 2


def train(make, backend):
    group = None if backend is None else dist.new_group(backend=backend)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).double()
    net = make(net, group)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 16, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    return torch.cat([each.detach().reshape(-1) for each in net.parameters()])


def ddp(net, group):
    return torch.nn.parallel.DistributedDataParallel(net, process_group=group)


def test_ddp_fsdp_and_dtensor():
    def body():
        own, gloo = train(ddp, None), train(ddp, "gloo")
        assert torch.allclose(own, gloo)
        from torch.distributed.fsdp import FullyShardedDataParallel

        sharded = train(lambda net, group: FullyShardedDataParallel(net, group, device_id=torch.device("cpu")), None)
        total = sharded.sum()
        dist.all_reduce(total)
        assert torch.allclose(total, gloo.sum())
        from torch.distributed.device_mesh import init_device_mesh

        if VERSION < [2, 5]:
            from torch.distributed._tensor import Shard, distribute_tensor
        else:
            from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        whole = torch.arange(30.0).reshape(5, 6)
        part = distribute_tensor(whole, mesh["model"], [Shard(0)])
        assert torch.equal((part @ part.t()).full_tensor(), whole @ whole.t())
        assert torch.equal(part.redistribute(placements=[Shard(1)]).full_tensor(), whole)
        return mesh["data"].get_group().name()

    assert run(4, body, seconds=30) == ["distcollective"] * 4


@any_machines
def test_groups_are_made_by_their_ranks():
    def body():
        rank = dist.get_rank()
        # At one time, and each by its ranks alone.
        own = dist.new_group([0, 1] if rank < 2 else [3, 2], use_local_synchronization=True)
        x = torch.tensor([rank])
        dist.all_reduce(x, group=own)
        ends = dist.new_group([0, 3])
        y = torch.tensor([rank])
        if rank in (0, 3):
            dist.all_reduce(y, group=ends)
            dist.broadcast_object_list(found := [{"of": rank}], src=3, group=ends)
            assert found == [{"of": 3}]
        dist.destroy_process_group(own)
        dist.barrier()
        return x.item(), y.item()

    assert run(4, body) == [(1, 3), (1, 1), (5, 2), (5, 3)]


def test_tensors_on_another_device_have_torchs_backend():
    if VERSION < [2, 15]:
        pytest.skip("older versions have no calls on tensors without elements")

    def body(folder):
        # Calls of "fake" do nothing, on any device, and tensors on "meta" have no elements.
        from torch.testing._internal.distributed import fake_pg  # noqa: F401

        with pytest.raises(RuntimeError, match="has no tensors on meta"):
            dist.all_reduce(torch.ones(2, device="meta"))
        dist.destroy_process_group()
        store, rank = dist.FileStore(f"{folder}/store", 2), int(os.environ["RANK_OF_TEST"])
        name = "cpu:distcollective,meta:fake"
        dist.init_process_group(name, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=8))
        for group in (dist.group.WORLD, dist.new_group([1, 0], use_local_synchronization=True)):
            x, meta = torch.ones(2), torch.ones(2, device="meta")
            dist.all_reduce(x, group=group)
            assert dist.all_reduce(meta, group=group, async_op=True).wait()
            dist.all_gather([meta.clone(), meta.clone()], meta, group=group)
            dist.broadcast(meta, 0, group=group)
            group.broadcast(tensor=meta, root=0).wait()
            dist.all_reduce(x, group=group)
            assert x.tolist() == [4, 4]
            assert type(group._get_backend(torch.device("meta"))).__name__ == "FakeProcessGroup"
        dist.destroy_process_group(group)
        group = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(torch.ones(1, device="meta"), group=group)
        dist.destroy_process_group()
        return True

    with tempfile.TemporaryDirectory() as folder:
        assert all(run(2, body, folder))


@any_machines
def test_a_group_is_split():
    if VERSION < [2, 15]:
        pytest.skip("older versions split groups of GPUs only")

    def body():
        rank = dist.get_rank()
        mine = dist.split_group(split_ranks=[[0, 2], [3]])
        with pytest.raises(ValueError, match="not all of a group of 4"):
            dist.group.WORLD.split_group([0, 7])
        x = torch.tensor([rank])
        if rank == 1:
            assert mine is dist.GroupMember.NON_GROUP_MEMBER
            return 1
        dist.all_reduce(x, group=mine)
        again = dist.split_group(mine, [[1, 0]] if rank != 3 else [[0]])
        dist.all_reduce(x, group=again)
        # Of the group's ranks 1 and 0, rank 1 is the first.
        assert dist.get_group_rank(again, rank) == {0: 1, 2: 0, 3: 0}[rank]
        dist.destroy_process_group(again)
        dist.destroy_process_group(mine)
        return x.item()

    assert run(4, body) == [4, 1, 4, 3]


@any_machines
def test_messages():
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        x, y = torch.full((3,), float(rank)), torch.zeros(3)
        after, before = (rank + 1) % n, (rank - 1) % n
        pairs = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
        for work in dist.batch_isend_irecv(pairs):
            work.wait()
        assert y.tolist() == [float(before)] * 3
        if rank == 0:
            assert {dist.recv(y, tag=4) for _ in range(n - 1)} == {1, 2}
        else:
            dist.send(x, 0, tag=4)
        with pytest.raises(ValueError, match="tag is 40000; it is 0 to 32767"):
            dist.send(x, after, tag=40000)
        # A rank that ends before rank 0 has received from any rank is a dead one.
        dist.barrier()
        return True

    assert all(run(3, body))


@any_machines
def test_work_and_futures():
    def body():
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        halves = work.get_future().then(lambda future: future.value()[0] / 2)
        assert halves.wait().tolist() == [1.0] * 4
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert work.result()[0] is x
        # A future whose work waits for another rank, which waits for this rank's message.
        work = dist.all_reduce(x, async_op=True) if dist.get_rank() == 0 else None
        future = work and work.get_future()
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
            dist.all_reduce(x)
        assert future is None or future.wait()[0].tolist() == [4.0] * 4
        return x.tolist()

    assert run(2, body) == [[4.0] * 4] * 2


@any_machines
def test_work_that_is_completed_has_its_result():
    def body():
        # Types that the library reduces, and that torch reduces after it.
        for name in ("float32", "float64"):
            x = torch.ones(1000, dtype=getattr(torch, name))
            work = dist.all_reduce(x, async_op=True)
            while not work.is_completed():
                time.sleep(0.001)
            assert x.eq(2).all() and work.is_success()
        # A future of a message does not hold back those of calls.
        if dist.get_rank() == 0:
            received = torch.zeros(1)
            future = dist.irecv(received, 1, tag=1).get_future()
        assert dist.all_reduce(x, async_op=True).get_future().wait()[0].eq(4).all()
        if dist.get_rank() == 0:
            assert not future.done()
            dist.send(torch.ones(1), 1, tag=2)
            return future.wait()[0].item()
        dist.recv(torch.zeros(1), 0, tag=2)
        dist.send(torch.ones(1), 0, tag=1)
        return 1.0

    assert run(2, body) == [1.0, 1.0]


@any_machines
def test_callbacks_may_wait_for_other_calls():
    def body():
        if dist.get_rank() == 1:
            time.sleep(0.3)
        x, y = torch.ones(2), torch.ones(2)
        chained = dist.all_reduce(x, async_op=True).get_future()
        chained = chained.then(lambda _: dist.all_reduce(y, async_op=True).get_future().wait()[0].tolist())
        return chained.wait()

    assert run(2, body) == [[2.0, 2.0]] * 2


def test_a_reduction_that_fails_is_an_error_however_it_is_waited_for():
    def body():
        # A type that torch has no sum of.
        x = torch.ones(3).to(torch.float8_e4m3fnuz)
        for wait in ("wait", "poll", "future"):
            work = dist.all_reduce(x, async_op=True)
            while wait == "poll" and not work.is_completed():
                time.sleep(0.001)
            if wait == "future":
                with pytest.raises(RuntimeError, match="add_stub"):
                    work.get_future().wait()
            for _ in range(2):
                with pytest.raises(RuntimeError, match="add_stub"):
                    work.wait()
            assert not work.is_success() and "add_stub" in str(work.exception())
        return x.float().tolist()

    assert run(2, body) == [[1.0] * 3] * 2


@any_machines
def test_calls_on_one_tensor_have_their_order():
    def body():
        found = []
        for x in (torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2, 2)[:, 0]):
            works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
            [work.wait() for work in works]
            found.append(x.tolist())
        # Waited for once, as a whole and each by itself.
        x = torch.ones(2, dtype=torch.float64)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            work = dist.reduce(x, 0, async_op=True)
        work.wait(), manager.wait()
        found.append(x.tolist() if dist.get_rank() == 0 else [2.0, 2.0])
        # An input that is an output too.
        x, y, z = torch.full((1,), 1.0), torch.full((1,), 2.0), torch.zeros(1)
        dist.all_to_all([y, z] if dist.get_rank() == 0 else [z, y], [x, y])
        found.append(z.item())
        both = [torch.full((1,), float(dist.get_rank())) for _ in range(2)]
        dist.all_gather(both, both[dist.get_rank()])
        assert both == [0.0, 1.0]
        return found

    four, two = [4.0, 4.0], [2.0, 2.0]
    assert run(2, body) == [[four, four, four, two, 1.0], [four, four, four, two, 2.0]]


@any_machines
def test_every_waiter_finds_the_result():
    def body():
        # Large, so that torch's part takes a while. The future's thread and this one wait together.
        x = torch.ones(2_000_000, dtype=torch.float64)
        for number in range(6):
            work = dist.all_reduce(x.fill_(1), async_op=True)
            future = work.get_future()
            if number % 2:
                work.wait()
            else:
                while not work.is_completed():
                    pass
            assert x[-1] == 2 and x[0] == 2 and future.wait()[0][-1] == 2
        small = [torch.ones(10, dtype=torch.float64) for _ in range(50)]
        sums = [dist.all_reduce(each, async_op=True).get_future().then(lambda f: f.value()[0].sum()) for each in small]
        return {each.wait().item() for each in sums}

    assert run(2, body) == [{20.0}] * 2


def test_messages_wait_for_no_call():
    def body():
        peer = 1 - dist.get_rank()
        grid, flat = torch.ones(4, 2), torch.ones(8, dtype=torch.float64)
        works = [dist.irecv(grid[:, 0], peer), dist.isend(grid[:, 1], peer)]
        [work.wait() for work in works]
        if dist.get_rank() == 0:
            work = dist.all_reduce(flat[:4], async_op=True)
            dist.send(flat[4:], 1)
        else:
            dist.recv(flat[4:], 0)
            work = dist.all_reduce(flat[:4], async_op=True)
        work.wait()
        # What a functional collective gives is a tensor like others.
        from torch.distributed import _functional_collectives as functional

        waiting = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        dist.all_reduce(waiting)
        return flat.tolist(), waiting.tolist()

    assert run(2, body) == [([2.0] * 4 + [1.0] * 4, [4.0] * 2)] * 2


@any_machines
def test_a_wait_has_its_timeout_beside_a_future():
    def body():
        if dist.get_rank() == 1:
            # Rank 0 sends this when it has waited.
            dist.recv(torch.zeros(1), 0)
            dist.all_reduce(torch.ones(1))
            return True
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        with pytest.raises(dist.DistBackendError, match="the timeout is over"):
            work.wait(timedelta(seconds=0.3))
        dist.send(torch.zeros(1), 1)
        return future.wait()[0].item() == 2.0 and work.wait(timedelta(milliseconds=-1))

    assert all(run(2, body))


def test_a_group_is_bound_to_the_cpu():
    if VERSION < [2, 15]:
        pytest.skip("older versions bind groups to GPUs only")

    def body(folder):
        dist.destroy_process_group()
        store, rank = dist.FileStore(f"{folder}/store", 2), int(os.environ["RANK_OF_TEST"])
        cpu = torch.device("cpu:0")
        dist.init_process_group("distcollective", store=store, rank=rank, world_size=2, device_id=cpu)
        x = torch.ones(1)
        dist.all_reduce(x, group=dist.new_group([rank], use_local_synchronization=True))
        dist.all_reduce(x)
        dist.barrier()
        return x.item()

    with tempfile.TemporaryDirectory() as folder:
        assert run(2, body, folder) == [2, 2]


@any_machines
def test_groups_are_made_again():
    def body(folder):
        for _ in range(3):
            pair = dist.new_group([0, 1], use_local_synchronization=True) if dist.get_rank() < 2 else None
            if pair is not None:
                dist.barrier(pair)
                dist.destroy_process_group(pair)
        dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/store", 3)
        rank = int(os.environ["RANK_OF_TEST"])
        for _ in range(3):
            dist.init_process_group("distcollective", store=store, rank=rank, world_size=3)
            dist.barrier()
            dist.destroy_process_group()
        return True

    with tempfile.TemporaryDirectory() as folder:
        assert all(run(3, body, folder))


@any_machines
def test_a_rank_that_does_not_come_is_named():
    def body():
        if dist.get_rank() == 1:
            time.sleep(60)
        with pytest.raises(dist.DistBackendError, match="rank 1 did not come within 1.0 s"):
            dist.new_group(timeout=timedelta(seconds=1))
        return True

    with on_ranks(3, body) as ranks:
        assert ranks.result(0) and ranks.result(2)


def test_ddp_ends_when_a_peer_leaves():
    def body():
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        loss = net(torch.ones(2, 4)).sum()
        if dist.get_rank() == 1:
            group = dist.group.WORLD
            dist.destroy_process_group()
            # Older versions leave a group when nothing refers to it, and DDP does.
            group.shutdown()
            time.sleep(60)
        with pytest.raises(RuntimeError, match="rank 1"):
            loss.backward()
        return True

    with on_ranks(2, body) as ranks:
        assert ranks.result(0)


def test_a_checkpoint_comes_from_rank_0():
    if VERSION < [2, 4]:
        pytest.skip("older versions have no such option")

    def body():
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        net = torch.nn.Linear(3, 2)
        state = {name: torch.full_like(value, 7.0) for name, value in net.state_dict().items()}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(net, state if dist.get_rank() == 0 else {}, options=options)
        return net.bias.tolist()

    assert run(2, body) == [[7.0, 7.0]] * 2


@pytest.mark.parametrize("dies", [False, True])
@any_machines
def test_a_rank_that_leaves_or_dies_is_named_at_once(dies):
    def body():
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.destroy_process_group()
            time.sleep(60)
        with pytest.raises(dist.DistNetworkError, match="rank 1"):
            dist.all_reduce(torch.ones(1))
        return True

    # The group's timeout is longer than that of the test.
    with on_ranks(2, body, seconds=60) as ranks:
        assert ranks.result(0)


@any_machines
def test_a_rank_is_killed_at_any_moment():
    def body(round_):
        rank, n = dist.get_rank(), dist.get_world_size()
        choose = random.Random(round_)
        if rank == 1:
            threading.Timer(choose.random() / 20, os.kill, (os.getpid(), signal.SIGKILL)).start()
        works, number = [], 0
        with pytest.raises((dist.DistNetworkError, dist.DistBackendError), match="rank 1"):
            while True:
                number += 1
                of_rank = random.Random(f"{round_} {number} {rank}")
                tensor_of = lambda name, shape: values(of_rank, name, shape)  # noqa: E731, B023
                call(random.Random(f"{round_} {number}"), rank, n, None, tensor_of, number % 3 > 0)
                works.append(dist.all_reduce(torch.ones(1 + number % 7), async_op=True))
        return True

    # The group's timeout is longer than that of the test.
    for round_ in range(100 if os.environ.get("DCL_EXHAUSTIVE") == "1" else 3):
        with on_ranks(3, body, round_, seconds=60) as ranks:
            assert ranks.result(0) and ranks.result(2)


def test_the_sample_under_torchrun():
    if IS_OLD:
        pytest.skip(f"distcollective.torch needs torch 2.3 or newer, and this is {torch.__version__}")
    sample = Path(__file__).resolve().parents[2] / "samples" / "python" / "torch_training.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", sample]
    found = subprocess.run(command, capture_output=True, text=True, timeout=6 * DEADLINE)
    assert found.returncode == 0 and "of the points are right" in found.stdout, found.stdout + found.stderr


@any_machines
def test_errors_name_both_sides():
    def body():
        rank = dist.get_rank()
        x = torch.ones(4)
        found = []
        group = dist.new_group()
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_reduce(x, group=group) if rank == 0 else dist.broadcast(x, 0, group=group)
        found.append(str(raised.value))
        group = dist.new_group()
        with pytest.raises(dist.DistBackendError) as raised:
            splits = [[2, 2], [2, 2]] if rank == 0 else []
            dist.all_to_all_single(torch.zeros(4), x, *splits, group=group)
        found.append(str(raised.value))
        return found

    for first, second in run(2, body):
        assert "all_reduce" in first and "broadcast" in first, first
        assert "rank 0 calls a collective with counts; rank 1 calls all_to_all of 2 float32" in second, second


@any_machines
def test_a_wrong_count_is_named():
    def body(expected):
        rank = dist.get_rank()
        # Each rank keeps a row; rank 0 sends two, and rank 1 expects another number.
        sizes = ([1, 1], [1, 2]) if rank == 0 else ([expected, 1], [1, 1])
        with pytest.raises(dist.DistBackendError) as raised:
            dist.all_to_all_single(torch.zeros(sum(sizes[0])), torch.ones(sum(sizes[1])), *map(list, sizes))
        return str(raised.value)

    for expected in (1, 4):
        for text in run(2, body, expected):
            assert f"rank 0 gives rank 1 2 float32, and rank 1 takes {expected} from rank 0" in text, text


@any_machines
def test_lists_of_tensors_of_different_lengths():
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        for async_op, name in [(False, "float32"), (True, "float64"), (True, "int16"), (False, "uint8")]:
            dtype = getattr(torch, name)
            own = torch.full((rank, 2), rank, dtype=dtype)
            out = [torch.zeros(other, 2, dtype=dtype) for other in range(n)]
            work = dist.all_gather(out, own, async_op=async_op)
            assert work is None or work.wait()
            assert all((each == other).all() for other, each in enumerate(out))
            # The block for a rank is a part of every second column.
            blocks = [torch.arange(8 * other).to(dtype).reshape(-1, 8)[:, ::2] + rank for other in range(n)]
            got = torch.zeros(rank, 4, dtype=dtype)
            work = dist.reduce_scatter(got, blocks, async_op=async_op)
            assert work is None or work.wait()
            assert (got == n * (blocks[rank] - rank) + n * (n - 1) // 2).all(), got
        with pytest.raises(ValueError, match="this rank's is as its output"):
            dist.reduce_scatter(torch.zeros(4), [torch.zeros(other) for other in range(n)])

    run(3, body)


@any_machines
def test_the_methods_of_a_group():
    def body():
        group, rank = dist.group.WORLD, dist.get_rank()
        x = torch.tensor([rank + 1.0])
        group.broadcast(x, root=1).wait()
        assert x.item() == 2
        group.reduce(tensor=x, root=0, op=dist.ReduceOp.PRODUCT).wait()
        assert x.item() == (4 if rank == 0 else 2)
        # A tensor that is there twice is reduced once.
        same = torch.tensor([rank + 1])
        dist.all_reduce_coalesced([same, same.view(1, 1)])
        assert same.item() == 3
        parameter = torch.nn.Parameter(torch.ones(1))
        assert group.reduce([parameter], root=0).result()[0] is parameter
        halves = torch.zeros(1, dtype=torch.int64)
        group.reduce_scatter(output=halves, input=[same, same]).wait()
        group.reduce_scatter_tensor_coalesced(outputs=[same], inputs=[torch.ones(2, dtype=torch.int64)]).wait()
        assert (halves.item(), same.item()) == (6, 2)
        # The tensor that a rank gives may be one that it gets.
        all_ranks = [torch.full((2,), rank) for _ in range(2)]
        dist.gather(all_ranks[1], all_ranks if rank == 0 else None)
        assert rank == 1 or [each.tolist() for each in all_ranks] == [[0, 0], [1, 1]]
        dist.scatter(x, [x, torch.zeros(1)] if rank == 0 else None)
        assert x.item() == (4 if rank == 0 else 0)
        for wrong in (lambda: group.allreduce([x, x]), lambda: group.broadcast([], root=0)):
            with pytest.raises(ValueError, match="the call has one tensor, or list of tensors, on each rank"):
                wrong()
        options = torch._C._distributed_c10d.ReduceOptions()
        options.rootRank = -1
        with pytest.raises(ValueError, match="root -1 is not one of 2 ranks"):
            group.reduce([x], options)
        assert VERSION < [2, 7] or group.options._timeout == timedelta(seconds=8)
        return True

    assert all(run(2, body))


@any_machines
def test_a_late_rank_is_named_at_the_timeout():
    def body():
        if dist.get_rank() == 1:
            time.sleep(60)
        with pytest.raises(dist.DistBackendError, match="rank 1.*the timeout is over"):
            dist.barrier()
        return 0

    with on_ranks(2, body, seconds=3.0) as ranks:
        assert ranks.result(0) == 0


def links():
    """The number of this process's groups that are between machines."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("dcl-cluster")


def bits_of(tensor):
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def program(seed):
    """Calls of every kind on floats, whose sums depend on the order. What they gave."""
    rank, n, results = dist.get_rank(), dist.get_world_size(), []
    for number in range(60):
        of_rank = torch.Generator().manual_seed(1000 * seed + 10 * number + rank)

        def tensor_of(name, shape):
            drawn = torch.randn(shape, generator=of_rank)  # noqa: B023
            return (drawn if getattr(torch, name).is_floating_point else drawn * 40).to(getattr(torch, name))

        # The elements of short calls go with the agreement.
        row = (1 + 5000 * (number % 3),)
        kind, name, out = call(random.Random(f"{seed} {number}"), rank, n, None, tensor_of, number % 2 > 0, row)
        results.append((number, kind, name, [bits_of(each) for each in out]))
    return results


@pytest.mark.parametrize("size", [2, 3, 4])
def test_two_machines_give_the_bits_of_one(two_machines, monkeypatch, size):
    if not IS_OLD:
        # The optimizer does it. Ranks have a deadline.
        importlib.import_module("torch._dynamo")

    def body():
        return program(dist.get_world_size()), bits_of(train(ddp, None)), links()

    two = run(size, body)
    monkeypatch.setattr(sys.modules[__name__], "machine_count", 1)
    one = run(size, body)
    for (calls, net, backend), (expected, expected_net, own_backend) in zip(two, one):
        assert (backend, own_backend) == (1, 0)
        for found, wanted in zip(calls, expected):
            assert found == wanted, found[:3]
        assert net == expected_net


def test_groups_within_and_between_machines(two_machines):
    def body():
        found = []
        for ranks in ([0, 1], [2, 3], [0, 2], [3, 1], [1, 2, 3]):
            group = dist.new_group(ranks)
            x = torch.tensor([dist.get_rank()])
            if x.item() in ranks:
                dist.all_reduce(x, group=group)
                assert x.item() == sum(ranks)
                found.append(links())
                dist.destroy_process_group(group)
        return found

    # The group of all ranks is between machines.
    assert run(4, body) == [[1, 2], [1, 2, 2], [1, 2, 2], [1, 2, 2]]


def test_every_rank_of_two_machines_is_told(two_machines):
    def body():
        rank = dist.get_rank()
        with pytest.raises(dist.DistBackendError) as differing:
            dist.all_reduce(torch.ones(9 + rank // 3), group=dist.new_group())
        group = dist.new_group()
        group.monitored_barrier()
        dist.barrier()
        with pytest.raises(dist.DistBackendError) as aborted:
            group.abort() if rank == 2 else None
            dist.barrier(group)
        group = dist.new_group()
        if rank == 3:
            dist.group.WORLD.monitored_barrier()
            return str(differing.value), str(aborted.value), ""
        with pytest.raises(dist.DistBackendError) as late:
            group.monitored_barrier(timedelta(seconds=0.5))
        dist.group.WORLD.monitored_barrier()
        return str(differing.value), str(aborted.value), str(late.value)

    for rank, (differing, aborted, late) in enumerate(run(4, body)):
        calls = "ranks 0, 1 and 2 call all_reduce(sum) of 9 float32; rank 3 calls all_reduce(sum) of 10 float32"
        assert calls in differing and "the program called abort" in aborted, (rank, differing, aborted)
        assert rank == 3 or "rank 3 did not arrive" in late, (rank, late)


def test_a_rank_without_ucx_is_named_on_every_rank(two_machines):
    def body():
        os.environ["UCX_TLS"] = "nothing" if dist.get_rank() == 1 else "tcp,self"
        with pytest.raises(dist.DistBackendError, match="UCX cannot be used: rank 1: ") as raised:
            dist.new_group(timeout=timedelta(seconds=60))
        return str(raised.value)

    assert len(set(run(3, body))) == 1


@any_machines
def test_workers_of_a_loader_and_the_profiler():
    def body():
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2)
        x = torch.ones(2)
        with torch.profiler.profile(record_shapes=True) as profile:
            for batch in loader:
                dist.all_reduce(x)
                assert batch.numel() == 4
        shapes = [event.input_shapes for event in profile.events() if event.name == "distcollective:all_reduce"]
        assert shapes == [[[2]]] * 2, shapes
        dist.destroy_process_group()
        assert not dist.is_initialized()
        return x.tolist()

    assert run(2, body) == [[4.0, 4.0]] * 2
