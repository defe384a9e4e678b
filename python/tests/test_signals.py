"""Ctrl-C and other signals while a call waits."""

import os
import signal
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
from ranks import Ranks, run

import distcollective
import distcollective.distributed as dist


def interrupted(call):
    """Makes a call that Ctrl-C has to end. Gives the error."""
    with pytest.raises(KeyboardInterrupt):
        call()


def waits():
    x = np.zeros(100_000, np.float32)
    yield lambda: dist.barrier()
    yield lambda: dist.all_reduce(x)
    yield lambda: dist.all_reduce(x, async_op=True).wait()
    yield lambda: dist.all_reduce(x, async_op=True).wait(timedelta(seconds=100))
    yield lambda: dist.recv(x)
    yield lambda: dist.send(x, 1)
    yield lambda: dist.new_group([0, 1])
    yield lambda: dist.monitored_barrier(timeout=timedelta(seconds=100))
    yield lambda: dist.broadcast_bytes(src=1)
    # This rank refuses its arguments, and waits until the others know.
    yield lambda: distcollective.broadcast_tensor_dict({}, src=1, backend="nccl")
    yield lambda: distcollective.broadcast_tensor_dict(None, src=0)


@pytest.mark.parametrize("number", range(len(list(waits()))))
def test_ctrl_c_ends_each_wait(number):
    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        connection.send("initialized")
        if rank == 0:
            interrupted(list(waits())[number])
            connection.send("interrupted")
        connection.recv()

    with Ranks(2, None, target=body) as ranks:
        assert [ranks.receive(rank) for rank in range(2)] == ["initialized"] * 2
        # A rank that does not wait yet gets the same exception, from Python itself.
        time.sleep(0.3)
        ranks.signal(0)
        assert ranks.receive(0) == "interrupted"


def test_ctrl_c_ends_the_initialization():
    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        connection.send("begins")
        interrupted(lambda: dist.init_process_group("gloo", rank=rank, world_size=size + 1))
        connection.send("interrupted")

    with Ranks(1, None, target=body) as ranks:
        assert ranks.receive(0) == "begins"
        time.sleep(0.3)
        ranks.signal(0)
        assert ranks.receive(0) == "interrupted"


#: Waits for another rank, which is in ``waits`` and comes to none of them.
BLOCKING = {
    "barrier": lambda x: dist.barrier(),
    "all_reduce": lambda x: dist.all_reduce(x),
    "all_gather": lambda x: dist.all_gather([x.copy() for _ in range(3)], x),
    "new_group": lambda x: dist.new_group([0, 1]),
    "monitored_barrier": lambda x: dist.monitored_barrier(timeout=timedelta(seconds=100)),
    "recv": lambda x: dist.recv(x, 2),
    "send": lambda x: dist.send(x, 2),
    "broadcast_bytes": lambda x: dist.broadcast_bytes(src=2),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_peers_are_told_who_was_interrupted(name):
    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        connection.send("initialized")
        if rank == 2:  # comes to no call
            connection.recv()
        try:
            BLOCKING[name](np.zeros(100_000, np.float32))
        except BaseException as error:
            connection.send((type(error).__name__, str(error)))

    with Ranks(3, None, target=body) as ranks:
        assert [ranks.receive(rank) for rank in range(3)] == ["initialized"] * 3
        time.sleep(0.6)
        ranks.signal(1)
        assert ranks.receive(1)[0] == "KeyboardInterrupt"
        kind, text = ranks.receive(0)
        assert kind == "Error" and "rank 1" in text and "interrupted" in text


def test_peers_are_told_who_was_interrupted_in_the_initialization():
    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        connection.send("begins")
        try:
            dist.init_process_group("gloo", rank=rank, world_size=size + 1)
        except BaseException as error:
            connection.send((type(error).__name__, str(error)))

    with Ranks(2, None, target=body) as ranks:
        assert [ranks.receive(rank) for rank in range(2)] == ["begins"] * 2
        time.sleep(1.0)
        ranks.signal(1)
        assert ranks.receive(1)[0] == "KeyboardInterrupt"
        kind, text = ranks.receive(0)
        assert kind == "Error" and "rank 1" in text, text


def test_handlers_run_every_tenth_of_a_second():
    """So Ctrl-C ends a wait within 200 ms."""

    def body():
        runs = []
        if dist.get_rank() == 1:
            dist.recv(np.zeros(1, np.float32), 0)
            dist.barrier()
            return 0
        # The handler sends what rank 1 waits for when it has run ten times. So the barrier does
        # not end before, and the test ends by its deadline if handlers do not run.
        thread = threading.Thread(target=lambda: came.wait() and dist.send(np.zeros(1, np.float32), 1))
        came = threading.Event()
        thread.start()

        def count(*_):
            runs.append(time.monotonic())
            if len(runs) == 10:
                came.set()

        signal.signal(signal.SIGALRM, count)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        dist.barrier()
        signal.setitimer(signal.ITIMER_REAL, 0)
        thread.join()
        return len(runs)

    assert run(2, body)[0] >= 10


def test_a_handler_cannot_wait_for_the_work_that_it_interrupts():
    def body():
        if dist.get_rank() == 1:
            dist.recv(np.zeros(1, np.float32), 0)
            dist.send(np.ones(1, np.float32), 0, tag=1)
            return
        x, errors, came = np.zeros(1, np.float32), [], threading.Event()
        work = dist.irecv(x, 1, tag=1)
        other = dist.irecv(np.zeros(1, np.float32), 1, tag=2)
        threading.Thread(target=lambda: came.wait() and dist.send(np.zeros(1, np.float32), 1)).start()

        def handler(*_):
            for waited in [work, other]:
                try:
                    waited.wait()
                except ValueError as error:
                    errors.append(str(error))
            assert not work.is_completed()
            came.set()

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert work.wait() and x == [1]
        assert len(errors) == 2 and all("a signal handler that runs inside a wait" in text for text in errors), errors

    with Ranks(2, body) as ranks:
        ranks.result(0)


def test_a_handler_of_the_programs_own_raises_its_own():
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        signal.signal(signal.SIGUSR1, stop)
        connection.send("initialized")
        if rank == 0:
            with pytest.raises(Stop):
                dist.barrier()
            connection.send("stopped")
        connection.recv()

    with Ranks(2, None, target=body) as ranks:
        assert [ranks.receive(rank) for rank in range(2)] == ["initialized"] * 2
        time.sleep(0.3)
        ranks.signal(0, signal.SIGUSR1)
        assert ranks.receive(0) == "stopped"


def test_a_handlers_exception_is_not_lost_when_the_timeout_ends_meanwhile():
    class Stop(Exception):
        pass

    def stop(*_):
        time.sleep(1.2)
        raise Stop

    def body():
        if dist.get_rank() == 1:
            dist.recv(np.zeros(1, np.float32))
            dist.send(np.ones(1, np.float32), 0)
            return
        x = np.zeros(1, np.float32)
        work = dist.irecv(x, 1)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Stop):
            work.wait(timedelta(seconds=1))
        dist.send(x, 1)
        assert work.wait() and x == [1]

    run(2, body)
