"""What each call gives, on arrays of numpy and tensors of torch."""

import inspect
import time
from datetime import timedelta

import numpy as np
import pytest
from ranks import Ranks, peer, run

import distcollective.distributed as dist

torch = peer("torch")

LIBRARIES = {"numpy": np.asarray, "torch": torch.from_numpy}


def own(rank, shape=(3, 4)):
    """A rank's input. Different ranks have different elements."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32) + 100 * rank).reshape(shape)


@pytest.fixture(params=LIBRARIES)
def convert(request):
    return LIBRARIES[request.param]


OPERATIONS = {
    dist.ReduceOp.SUM: np.sum,
    dist.ReduceOp.PRODUCT: np.prod,
    dist.ReduceOp.MAX: np.max,
    dist.ReduceOp.MIN: np.min,
    dist.ReduceOp.AVG: np.mean,
}


def in_both_ways(call, *arguments, **keywords):
    """Makes a call that blocks, or one that goes on and is waited for."""
    work = call(*arguments, **keywords)
    if keywords.get("async_op"):
        assert isinstance(work, dist.Work)
        assert work.wait() is True and work.is_completed() and work.is_success() and work.exception() is None
    else:
        assert work is None


@pytest.mark.parametrize("async_op", [False, True])
def test_each_call(convert, async_op):
    size = 3
    inputs = [own(rank) for rank in range(size)]
    stacked = np.stack(inputs)

    def body():
        rank = dist.get_rank()
        results = {}

        def tensor(array):
            return convert(array.copy())

        def note(name, tensor):
            results[name] = np.asarray(tensor).copy()

        for op in OPERATIONS:
            x = tensor(inputs[rank])
            in_both_ways(dist.all_reduce, x, op, async_op=async_op)
            note(f"all_reduce {op.name}", x)
            x = tensor(inputs[rank])
            in_both_ways(dist.reduce, x, 1, op, async_op=async_op)
            note(f"reduce {op.name}", x)
            y = tensor(np.zeros(4, np.float32))
            in_both_ways(dist.reduce_scatter_tensor, y, tensor(inputs[rank]), op, async_op=async_op)
            note(f"reduce_scatter_tensor {op.name}", y)
        x = tensor(inputs[rank])
        in_both_ways(dist.broadcast, x, 2, async_op=async_op)
        note("broadcast", x)
        y = tensor(np.zeros((3, 4), np.float32))
        blocks = [tensor(block) for block in inputs] if rank == 1 else None
        in_both_ways(dist.scatter, y, blocks, src=1, async_op=async_op)
        note("scatter", y)
        blocks = [tensor(np.zeros((3, 4), np.float32)) for _ in range(size)]
        in_both_ways(dist.gather, tensor(inputs[rank]), blocks if rank == 0 else None, async_op=async_op)
        note("gather", np.stack([np.asarray(block) for block in blocks]))
        blocks = [tensor(np.zeros((3, 4), np.float32)) for _ in range(size)]
        in_both_ways(dist.all_gather, blocks, tensor(inputs[rank]), async_op=async_op)
        note("all_gather", np.stack([np.asarray(block) for block in blocks]))
        y = tensor(np.zeros((size, 3, 4), np.float32))
        in_both_ways(dist.all_gather_into_tensor, y, tensor(inputs[rank]), async_op=async_op)
        note("all_gather_into_tensor", y)
        y = tensor(np.zeros(12, np.float32))
        in_both_ways(dist.all_to_all_single, y, tensor(inputs[rank]), async_op=async_op)
        note("all_to_all_single", y)
        in_both_ways(dist.barrier, async_op=async_op)
        return results

    for rank, results in enumerate(run(size, body)):
        expected = {
            "broadcast": inputs[2],
            "scatter": inputs[rank],
            "gather": stacked if rank == 0 else np.zeros_like(stacked),
            "all_gather": stacked,
            "all_gather_into_tensor": stacked,
            "all_to_all_single": stacked.reshape(size, size, 4)[:, rank].reshape(-1),
        }
        for op, reduce in OPERATIONS.items():
            reduced = reduce(stacked, axis=0).astype(np.float32)
            expected[f"all_reduce {op.name}"] = reduced
            expected[f"reduce {op.name}"] = reduced if rank == 1 else inputs[rank]
            expected[f"reduce_scatter_tensor {op.name}"] = reduced.reshape(size, 4)[rank]
        assert results.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(results[name], array, rtol=1e-6, err_msg=f"{name} on rank {rank}")


def test_groups_have_global_ranks():
    def body():
        rank = dist.get_rank()
        pair = dist.new_group([3, 1])
        if rank not in (1, 3):
            assert pair is dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(pair) == -1 and dist.get_world_size(pair) == -1
            x = np.full(2, rank, np.float32)
            with pytest.warns(UserWarning, match="all_reduce on global rank"):
                assert dist.all_reduce(x, group=pair) is None
            for call in [
                lambda: dist.get_group_rank(pair, 1),
                lambda: dist.get_global_rank(pair, 0),
                lambda: dist.get_process_group_ranks(pair),
                lambda: dist.get_backend(pair),
            ]:
                with pytest.raises(ValueError, match="^get_.*: this process is not in the group"):
                    call()
            return x.tolist()
        assert dist.get_process_group_ranks(pair) == [1, 3] and dist.get_world_size(pair) == 2
        assert dist.get_global_rank(pair, 1) == 3 and dist.get_group_rank(pair, 3) == 1
        assert dist.get_process_group_ranks(None) == [0, 1, 2, 3]
        assert dist.get_rank(pair) == (rank - 1) // 2 and dist.get_rank() == rank
        x = np.full(2, rank, np.float32)
        dist.broadcast(x, src=3, group=pair)
        with pytest.raises(ValueError, match=r"src is global rank 0, which is not in the group of ranks \[1, 3\]"):
            dist.broadcast(x, src=0, group=pair)
        y = np.full(1, rank, np.float32)
        if rank == 1:
            dist.send(y, 3, group=pair)
        else:
            assert dist.recv(y, group=pair) == 1 and y == [1]
        return x.tolist()

    assert run(4, body) == [[0, 0], [3, 3], [2, 2], [3, 3]]


def test_what_the_process_group_tells():
    def body():
        assert dist.is_available() and dist.is_initialized()
        assert (dist.get_world_size(), dist.get_backend()) == (2, "gloo")
        assert dist.group.WORLD is dist.GroupMember.WORLD
        assert dist.get_rank(dist.group.WORLD) == dist.get_rank()
        assert dist.get_process_group_ranks(None) == [0, 1]
        everyone = dist.new_group()
        empty = dist.new_group([])
        assert dist.get_world_size(everyone) == 2 and empty is dist.GroupMember.NON_GROUP_MEMBER
        dist.monitored_barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized() and dist.group.WORLD is None
        with pytest.raises(ValueError, match="destroyed"):
            dist.barrier(everyone)
        with pytest.raises(RuntimeError, match="call init_process_group first"):
            dist.get_rank()

    run(2, body)


def test_bytes_and_objects():
    def body():
        for name in [name for name in dist.__all__ if "object" in name]:
            with pytest.raises(
                RuntimeError, match=f"{name} unpickles what a peer sends.*allow_pickle.*broadcast_bytes"
            ):
                getattr(dist, name)([1], [2])
        return dist.broadcast_bytes(b'{"layers": 12}' if dist.get_rank() == 1 else b"", src=1)

    assert run(3, body) == [b'{"layers": 12}'] * 3


def test_objects_of_trusted_peers(monkeypatch):
    monkeypatch.setenv("DCL_ALLOW_PICKLE", "1")

    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        found = [{"of": rank}, None]
        dist.broadcast_object_list(found, src=1)
        assert found == [{"of": 1}, None]
        every = [None] * n
        dist.all_gather_object(every, "x" * rank)
        assert every == ["x" * other for other in range(n)]
        every = [None] * n if rank == 2 else None
        dist.gather_object((rank, "y"), every, dst=2)
        assert every == ([(other, "y") for other in range(n)] if rank == 2 else None)
        own = [None]
        # As in torch, the others may give any list.
        dist.scatter_object_list(own, [[0], [1, 1], [2] * 3] if rank == 0 else [None])
        assert own == [[rank] * (rank + 1)]
        if rank == 0:
            dist.send_object_list([1.5, {2, 3}], dst=2)
        elif rank == 2:
            found = [None, None]
            assert dist.recv_object_list(found) == 0 and found == [1.5, {2, 3}]
        with pytest.raises(ValueError, match="object_list has 1 places, and the group 3 ranks"):
            dist.all_gather_object([None], rank)
        with pytest.raises(ValueError, match="object_gather_list is missing"):
            dist.gather_object(rank, None, dst=rank)

    run(3, body)


def test_tensors_of_different_lengths():
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        for dtype, async_op in [(np.float64, False), (np.uint32, True), (np.complex64, True), (np.int16, False)]:
            got = [np.zeros((other, 2), dtype) for other in range(n)]
            work = dist.all_gather(got, np.full((rank, 2), rank, dtype), async_op=async_op)
            assert work is None or work.wait()
            assert all((each == other).all() for other, each in enumerate(got))
            # Rank r sends r + s rows to rank s, which are every second row of an array.
            rows = [rank + other for other in range(n)]
            whole = np.repeat(
                np.concatenate([np.full((len, 2), 10 * rank + s, dtype) for s, len in enumerate(rows)]), 2, 0
            )
            got = np.zeros((sum(rows), 2), dtype)
            work = dist.all_to_all_single(got, whole[::2], rows, rows, async_op=async_op)
            assert work is None or work.wait()
            expected = np.concatenate([np.full((len, 2), 10 * s + rank, dtype) for s, len in enumerate(rows)])
            assert (got == expected).all()
            parts = [np.zeros((len, 2), dtype) for len in rows]
            work = dist.all_to_all(parts, np.split(whole[::2], np.cumsum(rows)[:-1]), async_op=async_op)
            assert work is None or work.wait()
            assert (np.concatenate(parts) == expected).all()
        for dtype in (np.float64, np.uint64, np.int8):
            got = np.zeros(rank, dtype)
            dist.reduce_scatter(got, [np.arange(other).astype(dtype) for other in range(n)])
            assert (got == n * np.arange(rank)).all()
        with pytest.raises(ValueError, match="this rank gives itself 1 elements and takes 4"):
            dist.reduce_scatter(np.zeros(4), [np.zeros(1)] * n)
        same = np.zeros(2)
        with pytest.raises(ValueError, match="overlap"):
            dist.reduce_scatter(same, [same] * n)
        x = np.zeros((2, 2))
        sizes = np.array([2, 0, 0]) if rank == 0 else np.array([0, 0, 0])
        out = np.ones((sum(sizes), 2))
        dist.all_to_all_single(out, np.zeros((sum(sizes), 2)), sizes, sizes)
        assert (out == 0).all()
        for wrong, text in [
            ([1, 2, 0], "their sum is the length"),
            ([1, 1], "a size for each of 3"),
            ([3, -1, 0], "sum"),
        ]:
            with pytest.raises(ValueError, match=f"output_split_sizes is .*{text}"):
                dist.all_to_all_single(x, x.copy(), wrong, [2, 0, 0])
        with pytest.raises(ValueError, match="tensor_list has 1 elements, and needs 2: at this rank's place"):
            dist.all_gather([np.zeros(1 + (other != rank)) for other in range(n)], np.zeros(2))
        with pytest.raises(ValueError, match="is null|blocks? and"):
            dist.all_to_all([x], [x])

    run(3, body)


def test_complex_numbers_have_sums_and_averages():
    def body():
        rank = dist.get_rank()
        for dtype in (np.complex64, np.complex128):
            x = np.array([[1 + 2j, rank], [3j, 4]], dtype).T
            dist.all_reduce(x)
            assert x.tolist() == [[2 + 4j, 6j], [1, 8]]
            y = np.zeros(1, dtype)
            dist.reduce_scatter_tensor(y, np.array([rank + 1j, 4 - rank * 1j], dtype), dist.ReduceOp.AVG)
            assert y.tolist() == ([0.5 + 1j] if rank == 0 else [4 - 0.5j])
            with pytest.raises(ValueError, match=f"tensor: {x.dtype} has sums and averages, and no max"):
                dist.all_reduce(x, dist.ReduceOp.MAX)

    run(2, body)


def test_wrong_counts_are_named_on_every_rank():
    def body():
        rank = dist.get_rank()
        with pytest.raises(RuntimeError) as raised:
            sizes = [1, 2] if rank == 0 else [1, 1]
            dist.all_to_all_single(np.zeros(sum(sizes)), np.zeros(2), sizes, [1, 1])
        return str(raised.value)

    for text in run(2, body):
        assert "blocks of all_to_all: rank 1 gives rank 0 1 float64, and rank 0 takes 2 from rank 1" in text, text


def test_subgroups():
    def body():
        own, every = dist.new_subgroups_by_enumeration([[3, 0], [1]])
        assert len(every) == 2
        ranks = dist.get_process_group_ranks(own) if dist.get_rank() != 2 else None
        for wrong, text in [
            ([[0, 1], [1]], "Rank 1 has appeared in both"),
            ([[4]], "Rank 4 is out of range"),
            ([], "has ranks"),
        ]:
            with pytest.raises(ValueError, match=text):
                dist.new_subgroups_by_enumeration(wrong)
        for wrong, text in [
            (None, "above 0"),
            (0, "above 0"),
            (8, "must not exceed"),
            (3, "must be divisible by 'group_size=3'"),
        ]:
            with pytest.raises(ValueError, match=text):
                dist.new_subgroups(wrong)
        pair, _ = dist.new_subgroups(2)
        return ranks, dist.get_process_group_ranks(pair)

    assert run(4, body) == [([0, 3], [0, 1]), ([1], [0, 1]), (None, [2, 3]), ([0, 3], [2, 3])]


def test_monitored_barrier_has_the_words_of_gloo():
    def body(wait_all_ranks):
        if dist.get_rank() != 0:
            time.sleep(60)
        with pytest.raises(TimeoutError) as raised:
            dist.monitored_barrier(timeout=0.1, wait_all_ranks=wait_all_ranks)
        return str(raised.value)

    for wait_all_ranks, words in [(False, "Rank 1 failed to pass"), (True, "Ranks 1, 2 failed to pass")]:
        with Ranks(3, body, wait_all_ranks) as ranks:
            assert ranks.result(0).startswith(f"{words} monitoredBarrier: "), words


def test_timeouts_are_times_or_seconds():
    def body():
        rank = dist.get_rank()
        x = np.zeros(1)
        for wrong, kind in [
            (-1, ValueError),
            (float("nan"), ValueError),
            (timedelta(-1), ValueError),
            ("1", TypeError),
        ]:
            for call in (dist.barrier, lambda timeout: dist.new_group([0], timeout)):
                with pytest.raises(kind, match="a timeout"):
                    call(timeout=wrong)
            with pytest.raises((kind, RuntimeError), match="a timeout|is a rank of run_threads|was initialized"):
                dist.init_process_group("gloo", timeout=wrong)
        with pytest.raises(TimeoutError):
            dist.irecv(x, 1 - rank, tag=9).wait(1e-12)
        if rank == 0:
            work = dist.irecv(x, 1)
            with pytest.raises(TimeoutError):
                work.wait(0.05)
            dist.send(x, 1)
            assert work.wait(5) and work._source_rank() == 1
        else:
            dist.recv(x, 0)
            dist.send(x + 1, 0)
        dist.monitored_barrier(timeout=5.0)
        return dist.get_debug_level() is dist.DebugLevel.OFF and dist.Backend("HOST") == dist.Backend.GLOO

    assert run(2, body) == [True, True]


def test_messages():
    def body():
        rank, size = dist.get_rank(), dist.get_world_size()
        after, before = (rank + 1) % size, (rank - 1) % size
        x, y = torch.full((50_000,), float(rank)), torch.zeros(50_000)
        messages = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        assert y.eq(before).all()
        z = np.zeros(3, np.int64)
        works = [dist.irecv(z, before, tag=7), dist.isend(np.arange(3) + rank, after, tag=7)]
        assert all(work.wait() for work in works) and works[0].received()[0][0] == before
        assert z.tolist() == [before, before + 1, before + 2]
        if rank == 0:
            assert sorted(dist.recv(z) for _ in range(size - 1)) == [1, 2]
        else:
            dist.send(np.array([rank, 0, 0]), 0)
        # A rank that ends before rank 0 has received from any rank is a dead one.
        dist.barrier()

    run(3, body)


def test_messages_of_a_batch_are_of_one_group():
    def body():
        other = 1 - dist.get_rank()
        x, y = np.full(3, other, np.float32), np.zeros(3, np.float32)
        everyone = dist.new_group()
        messages = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other, dist.group.WORLD)]
        for batch in [messages, messages[::-1]]:
            [work.wait() for work in dist.batch_isend_irecv(batch)]
        with pytest.raises(ValueError, match="are of one group"):
            dist.batch_isend_irecv([*messages, dist.P2POp(dist.isend, x, other, everyone)])
        return y.tolist()

    assert run(2, body) == [[0] * 3, [1] * 3]


#: Classes, and what has no signature in torch.
OTHER_FORMS = {
    "Backend",
    "DebugLevel",
    "get_debug_level",
    "P2POp",
    "GroupMember",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "group",
}


@pytest.mark.parametrize("name", sorted(set(dist.__all__) - OTHER_FORMS))
def test_arguments_are_those_of_torch(name):
    theirs = getattr(torch.distributed, name, None)
    if theirs is None:
        pytest.skip("this torch does not have it")
    #: Those that torch does not document.
    internal = {"_ranks", "enable_reconfigure"}
    expected = [name for name in inspect.signature(theirs).parameters if name not in internal]
    assert list(inspect.signature(getattr(dist, name)).parameters)[: len(expected)] == expected


def test_ranks_by_their_numbers_in_the_group():
    def body():
        rank = dist.get_rank()
        group = dist.new_group([2, 0], sort_ranks=False)
        assert dist.get_process_group_ranks(group) == [2, 0] if rank != 1 else True
        if rank == 1:
            return
        x = np.full(2, rank, np.float32)
        dist.broadcast(x, group_src=0, group=group)
        assert x.tolist() == [2, 2]
        dist.reduce(x, group_dst=1, group=group)
        assert x.tolist() == ([4, 4] if rank == 0 else [2, 2])
        blocks = [np.full(2, 7 + block, np.float32) for block in range(2)] if rank == 2 else None
        dist.scatter(x, blocks, group_src=0, group=group)
        assert x.tolist() == ([8, 8] if rank == 0 else [7, 7])
        dist.gather(x, blocks, group_dst=0, group=group)
        assert blocks is None or [block.tolist() for block in blocks] == [[7, 7], [8, 8]]
        if rank == 2:
            dist.send(x, group_dst=1, group=group)
            dist.isend(x, group_dst=1, group=group).wait()
        else:
            for receive in [dist.recv, lambda *a, **k: dist.irecv(*a, **k).wait()]:
                x[...] = 0
                receive(x, group_src=0, group=group)
                assert x.tolist() == [7, 7]
        peer = 1 - dist.get_rank(group)
        ops = [(dist.isend, x), (dist.irecv, x.copy())]
        [work.wait() for work in dist.batch_isend_irecv([dist.P2POp(*op, group=group, group_peer=peer) for op in ops])]
        dist.barrier(group, timeout=timedelta(seconds=5))
        for text, call in [
            ("src is missing; give src, a global rank, or group_src", lambda: dist.broadcast(x, group=group)),
            ("dst is 0 and group_dst is 1; give one", lambda: dist.reduce(x, 0, group_dst=1, group=group)),
            ("group_dst is 2, and the group has 2 ranks", lambda: dist.send(x, group_dst=2, group=group)),
            ("dst is missing", lambda: dist.send(x, group=group)),
            ("use_local_synchronization is True", lambda: dist.new_group([0], use_local_synchronization=True)),
            ("device_id is 0", lambda: dist.new_group([0], device_id=0)),
            ("device_id is 0", lambda: dist.init_process_group("gloo", device_id=0)),
        ]:
            with pytest.raises(ValueError, match=text):
                call()

    run(3, body)


def test_wrong_arguments():
    def body():
        x = np.zeros(4, np.float32)
        cases = [
            (ValueError, "dst is global rank 9", lambda: dist.send(x, 9)),
            (ValueError, "tag is 40000", lambda: dist.send(x, 0, tag=40000)),
            (
                ValueError,
                "gather_list has 1 tensors; on this rank it has 2",
                lambda: dist.gather(x, [x.copy()], dst=dist.get_rank()),
            ),
            (ValueError, "gather_list is missing", lambda: dist.gather(x, dst=dist.get_rank())),
            (ValueError, "scatter_list is for src alone", lambda: dist.scatter(x, [x, x], src=1 - dist.get_rank())),
            (ValueError, "tensor_list has 3 elements, and needs 4", lambda: dist.all_gather([x[:3]] * 2, x)),
            (ValueError, "output_tensor has 4 elements, and needs 8", lambda: dist.all_gather_into_tensor(x, x.copy())),
            (
                ValueError,
                "dimension 0 of input is 3, which is not a multiple of 2 ranks",
                lambda: dist.all_to_all_single(x, x[:3]),
            ),
            (
                ValueError,
                "dimension 0 of input is 1, which is not a multiple of 2 ranks",
                lambda: dist.all_to_all_single(x, x.reshape(1, 4).copy()),
            ),
            (
                ValueError,
                "dimension 0 of output is 1, which is not a multiple of 2 ranks",
                lambda: dist.all_to_all_single(x.reshape(1, 4), x.copy()),
            ),
            (
                ValueError,
                "dimension 0 of input is 3, which is not a multiple of 2 ranks",
                lambda: dist.reduce_scatter_tensor(torch.zeros(6), torch.zeros(3, 4)),
            ),
            (
                ValueError,
                r"output_split_sizes is \[1, 1\]; it has a size .* the length of dimension 0, 4",
                lambda: dist.all_to_all_single(x, x.copy(), [1, 1]),
            ),
            (
                ValueError,
                r"input_split_sizes is \[4, 4\]; it has a size .* their sum is the length of dimension 0, 4",
                lambda: dist.all_to_all_single(x, x.copy(), [2, 2], [4, 4]),
            ),
            (ValueError, "device_ids is .0., and the group is on no GPU", lambda: dist.barrier(device_ids=[0])),
            (ValueError, "pg_options is {}; there are no options", lambda: dist.new_group(pg_options={})),
            (ValueError, "pg_options is {}; there are no options", lambda: dist.init_process_group(pg_options={})),
            (ValueError, "store is {}; ranks find each other", lambda: dist.init_process_group(store={})),
            (ValueError, "group_name is 'mine'; the group of", lambda: dist.init_process_group(group_name="mine")),
            (
                TypeError,
                "input is of float32 and output of int32",
                lambda: dist.all_to_all_single(x.astype(np.int32), x),
            ),
            (TypeError, "op is 9, not a ReduceOp", lambda: dist.all_reduce(x, 9)),
            (ValueError, "bool", lambda: dist.all_reduce(np.ones(2, bool), dist.ReduceOp.AVG)),
            (ValueError, "overlap", lambda: dist.all_gather([x, x], x.copy())),
            (TypeError, "group is a int", lambda: dist.all_reduce(x, group=3)),
            (ValueError, "op is", lambda: dist.P2POp(dist.send, x, 0)),
            (ValueError, "at least one P2POp", lambda: dist.batch_isend_irecv([])),
            (ValueError, 'backend is "ucc"; this package has "gloo"', lambda: dist.init_process_group("ucc")),
            (ValueError, "init_method is 'udp:///x'", lambda: dist.init_process_group(init_method="udp:///x")),
            (ValueError, "rank is -2", lambda: dist.init_process_group(rank=-2)),
            (RuntimeError, r"was initialized at .*ranks\.py:\d+", lambda: dist.init_process_group("gloo")),
        ]
        for kind, text, call in cases:
            with pytest.raises(kind, match=text):
                call()
        # The group still works.
        dist.all_reduce(x)

    run(2, body)
