"""Ranks that are threads of one process."""

import os
import signal
import threading

import numpy as np
import pytest
from ranks import DEADLINE, Ranks, run

import distcollective
import distcollective.distributed as dist


def alone(body):
    """Runs a function in a process without a group, with a deadline."""

    def target(connection, *_):
        try:
            connection.send(("result", body()))
        except BaseException as error:
            connection.send(("error", repr(error)))
            raise

    with Ranks(1, None, target=target) as ranks:
        return ranks.result(0)


def test_each_thread_is_a_rank():
    def on_each_rank():
        rank = dist.get_rank()
        x = np.full(50_000, rank, np.float32)
        dist.all_reduce(x)
        assert (x == 6).all()
        pair = dist.new_group([1, 3])
        if rank in (1, 3):
            dist.broadcast(x, 3, group=pair)
            assert dist.get_rank(pair) == rank // 2
        works = [
            dist.isend(np.full(3, rank, np.int64), (rank + 1) % 4),
            dist.irecv(y := np.zeros(3, np.int64), (rank - 1) % 4),
        ]
        assert all(work.wait() for work in works) and (y == (rank - 1) % 4).all()
        assert dist.broadcast_bytes(b"hello" if rank == 2 else b"", src=2) == b"hello"
        given = {"w": np.arange(3.0)} if rank == 0 else None
        assert distcollective.broadcast_tensor_dict(given, src=0)["w"].tolist() == [0, 1, 2]
        return rank, dist.get_world_size()

    def body():
        ranks = dist.run_threads(4, on_each_rank)
        assert not dist.is_initialized()
        # Again, and with fewer.
        return ranks, dist.run_threads(1, dist.get_world_size)

    assert alone(body) == ([(rank, 4) for rank in range(4)], [1])


def test_the_first_exception_is_raised_and_ends_the_others():
    def on_each_rank():
        if dist.get_rank() == 2:
            raise LookupError("no weights")
        with pytest.raises(distcollective.Error, match="rank 2 raised LookupError: no weights"):
            dist.barrier()
        dist.barrier()

    def body():
        with pytest.raises(LookupError, match="no weights"):
            dist.run_threads(3, on_each_rank)

    alone(body)


@pytest.mark.parametrize("destroys", [False, True])
def test_a_rank_that_has_left_is_an_error_for_those_that_wait(destroys):
    left = threading.Event()

    def on_each_rank():
        dist.barrier()
        if dist.get_rank() == 1:
            if destroys:
                dist.destroy_process_group()
                assert left.wait(DEADLINE)
            return
        try:
            dist.barrier()
        finally:
            left.set()

    def body():
        with pytest.raises(distcollective.Error, match="rank 1"):
            dist.run_threads(3, on_each_rank)

    alone(body)


def test_ranks_that_return_at_different_times_harm_none():
    def on_each_rank():
        rank = dist.get_rank()
        x = np.full(100_000, rank, np.float32)
        dist.all_reduce(x)
        if rank == 0:
            dist.send(x, 2)
        elif rank == 2:
            dist.recv(x, 0)
        return x[-1]

    alone(lambda: [dist.run_threads(3, on_each_rank) == [3.0] * 3 or pytest.fail() for _ in range(50)])


def test_ctrl_c_after_a_rank_has_left():
    def on_each_rank():
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(DEADLINE)

    def body():
        with pytest.raises(KeyboardInterrupt):
            dist.run_threads(2, on_each_rank)

    alone(body)


def test_ctrl_c_ends_the_ranks():
    told = []

    def on_each_rank():
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGINT)
            dist.recv(np.zeros(1, np.float32), 1)
        try:
            dist.barrier()
        except distcollective.Error as error:
            told.append(str(error))
            ended.set()

    ended = threading.Event()

    def body():
        with pytest.raises(KeyboardInterrupt):
            dist.run_threads(2, on_each_rank)
        assert ended.wait(5)
        return told

    (text,) = alone(body)
    assert "the program was interrupted: KeyboardInterrupt" in text


def test_a_process_that_is_a_rank_may_have_ranks_as_threads():
    def body():
        outer = dist.get_rank()
        inner = dist.run_threads(2, dist.get_rank)
        x = np.ones(1, np.float32)
        dist.all_reduce(x)
        return outer, inner, x.tolist()

    assert run(2, body) == [(rank, [0, 1], [2]) for rank in range(2)]


def test_what_is_refused():
    def body():
        with pytest.raises(ValueError, match="world_size is 0"):
            dist.run_threads(0, dist.barrier)
        with pytest.raises(RuntimeError, match="is a rank of run_threads"):
            dist.run_threads(2, lambda: dist.init_process_group("gloo"))

        def destroy():
            dist.destroy_process_group()
            assert not dist.is_initialized()

        dist.run_threads(2, destroy)

    alone(body)
