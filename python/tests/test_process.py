"""The package in someone's process: forks, ends, threads."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
from ranks import DEADLINE, Ranks, peer, run

import distcollective
import distcollective.distributed as dist


def test_other_threads_run_while_a_call_waits():
    def body():
        if dist.get_rank() == 0:
            came = threading.Event()
            count = []

            def work():
                for number in range(1000):
                    count.append(number)
                came.set()
                dist.send(np.ones(1, np.float32), 1)

            thread = threading.Thread(target=work)
            thread.start()
            # Rank 1 comes to the barrier only after the thread's message.
            dist.barrier()
            thread.join()
            assert came.is_set() and len(count) == 1000
        else:
            dist.recv(np.zeros(1, np.float32))
            dist.barrier()

    run(2, body)


def test_threads_wait_for_one_work():
    def body():
        x = np.ones(10, np.float32)
        if dist.get_rank() == 1:
            dist.recv(np.zeros(1, np.float32))
            dist.all_reduce(x)
            return
        work = dist.all_reduce(x, async_op=True)
        results = []
        threads = [threading.Thread(target=lambda: results.append(work.wait())) for _ in range(3)]
        [thread.start() for thread in threads]
        with pytest.raises(TimeoutError, match="it goes on"):
            work.wait(timedelta(milliseconds=1))
        assert not work.is_completed() and not work.is_success() and work.exception() is None
        dist.send(np.zeros(1, np.float32), 1)
        [thread.join(DEADLINE) for thread in threads]
        assert results == [True] * 3 and x.tolist() == [2] * 10

    run(2, body)


def test_a_timeout_of_zero_is_no_limit():
    def body():
        x = np.zeros(1, np.float32)
        work = dist.irecv(x, 1 - dist.get_rank())
        if dist.get_rank() == 0:
            time.sleep(0.2)
        dist.send(np.ones(1, np.float32), 1 - dist.get_rank())
        return work.wait(timedelta(0)) and x.tolist()

    assert run(2, body) == [[1], [1]]


@pytest.mark.parametrize("end", [lambda work: work.wait(), lambda work: work.is_completed()])
def test_a_tensors_end_may_wait_for_its_work(end):
    waited = []

    class Array(np.ndarray):
        def __del__(self):
            waited.append(self.work.wait())

    def body():
        x = np.zeros(1, np.float32).view(Array)
        x.work = dist.all_reduce(x, async_op=True)
        work = x.work
        del x
        gc.collect()
        while not end(work):
            pass
        assert waited == [True]

    run(2, body)


def test_a_deadline_is_a_timeout_error():
    def body():
        group = dist.new_group(timeout=timedelta(milliseconds=50))
        if dist.get_rank() == 1:
            time.sleep(DEADLINE)
        else:
            with pytest.raises(TimeoutError, match="rank 0.*rank 1") as raised:
                dist.barrier(group)
            assert isinstance(raised.value, distcollective.Error) and raised.value.kind == "DeadlineExceeded"
            # The group has ended, and with it all that was made with it.
            work = dist.all_reduce(np.zeros(1, np.float32), async_op=True)
            with pytest.raises(RuntimeError, match="rank 0"):
                work.wait()
            assert work.is_completed() and not work.is_success()
            assert isinstance(work.exception(), distcollective.Error)

    with Ranks(2, body) as ranks:
        ranks.result(0)


def test_ranks_that_disagree_are_told():
    def body():
        with pytest.raises(distcollective.Error, match="rank 0 calls all_reduce.*rank 1 calls all_reduce") as raised:
            dist.all_reduce(np.zeros(2 + dist.get_rank(), np.float32))
        assert raised.value.kind == "Disagreement"

    run(2, body)


def test_tensors_live_until_their_work_has_ended():
    freed = []

    class Array(np.ndarray):
        def __del__(self):
            freed.append(dist.get_rank())

    def body():
        rank = dist.get_rank()
        x = np.zeros(100_000, np.float32).view(Array)
        if rank == 0:
            dist.all_reduce(x, async_op=True)
            del x
            gc.collect()
            assert freed == []
            dist.send(np.zeros(1, np.float32), 1)
            dist.barrier()
            # The next asynchronous call frees what has ended.
            dist.barrier(async_op=True).wait()
            dist.barrier(async_op=True).wait()
            assert freed == [0]
        else:
            dist.recv(np.zeros(1, np.float32))
            dist.all_reduce(x)
            dist.barrier()
            dist.barrier(async_op=True).wait()
            dist.barrier(async_op=True).wait()

    run(2, body)


def test_a_forked_child_is_refused_and_harms_none():
    def body():
        rank = dist.get_rank()
        x = np.ones(1000, np.float32)
        pending = dist.irecv(np.zeros(1, np.float32), 1 - rank)
        child = os.fork()
        if child == 0:
            code = 0
            try:
                for call in [
                    lambda: dist.all_reduce(x),
                    lambda: dist.all_reduce(x, async_op=True),
                    lambda: dist.barrier(),
                    lambda: dist.isend(x, 1 - rank),
                    lambda: dist.recv(x),
                    lambda: dist.new_group([0]),
                    lambda: pending.wait(),
                    lambda: dist.init_process_group("gloo"),
                ]:
                    with pytest.raises(RuntimeError, match="fork|was initialized at"):
                        call()
                del pending
                gc.collect()
                dist.destroy_process_group()
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                code = 1
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        dist.send(np.full(1, 5, np.float32), 1 - rank)
        assert pending.wait()
        dist.all_reduce(x)
        return x.tolist() == [2] * 1000

    assert run(2, body) == [True, True]


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent():
    def body():
        rank = dist.get_rank()
        work = dist.irecv(np.zeros(1, np.float32), 1 - rank)
        thread = threading.Thread(target=work.wait)
        thread.start()
        # The child inherits a lock that this thread holds, if it waits by now.
        time.sleep(0.2)
        child = os.fork()
        if child == 0:
            code = 1
            signal.alarm(5)
            try:
                for call in [work.wait, work.is_completed, work.is_success, work.exception, work.received]:
                    with pytest.raises(RuntimeError, match="work.*was forked"):
                        call()
                code = 0
            finally:
                os._exit(code)
        ended = os.waitpid(child, 0)[1]
        dist.send(np.zeros(1, np.float32), 1 - rank)
        thread.join(DEADLINE)
        return ended

    assert run(2, body) == [0, 0]


def test_a_child_of_a_process_that_has_ended_its_group_may_begin():
    def body():
        rank = dist.get_rank()
        dist.destroy_process_group()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                dist.init_process_group("gloo", rank=rank, world_size=2)
                x = np.ones(1, np.float32)
                dist.all_reduce(x, async_op=True).wait()
                code = 0 if x == [2] else 2
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1]

    assert run(2, body) == [0, 0]


def test_a_rank_may_begin_again():
    def body():
        for _ in range(3):
            x = np.ones(1, np.float32)
            dist.all_reduce(x)
            assert x == [2]
            rank = dist.get_rank()
            dist.destroy_process_group()
            dist.init_process_group("gloo", rank=rank, world_size=2)

    run(2, body)


def test_ranks_meet_by_the_name_of_a_file(tmp_path):
    def body(path):
        rank = dist.get_rank()
        dist.destroy_process_group()
        for name in ("MASTER_ADDR", "MASTER_PORT", "DCL_JOB_ID"):
            del os.environ[name]
        # Two jobs at a time; paths are compared, not texts.
        method = f"file://{path}/{'' if rank % 2 else './'}{rank // 2}"
        dist.init_process_group("gloo", method, rank=rank % 2, world_size=2)
        x = np.array([rank])
        dist.all_reduce(x)
        return x.tolist()

    assert run(4, body, str(tmp_path)) == [[1], [1], [5], [5]]
    assert not list(tmp_path.iterdir())


ENDS = {
    "without destroy": ("dist.barrier()", 0),
    "with destroy": ("dist.barrier(); dist.destroy_process_group()", 0),
    "by an exception": ("raise SystemExit(3)", 3),
    "with work pending": ("works = dist.irecv(x, 1 - rank), dist.all_reduce(y, async_op=True) if rank else 0", 0),
    "with dropped work": ("dist.irecv(x, 1 - rank); dist.all_reduce(y, async_op=True) if rank else 0", 0),
    "with a message under way": ("dist.isend(x, 1 - rank)", 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends(end):
    code, expected = ENDS[end]
    program = f"""
import sys
import numpy as np
import distcollective.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2)
x, y = np.zeros(100_000, np.float32), np.zeros(100_000, np.float32)
{code}
"""
    environment = {
        **os.environ,
        "DCL_JOB_ID": f"end {os.getpid()} {end}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    arguments = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", program, str(rank)], **arguments) for rank in range(2)]
    try:
        errors = [process.communicate(timeout=DEADLINE)[1] for process in processes]
    finally:
        [process.kill() for process in processes]
    assert [process.returncode for process in processes] == [expected] * 2, errors
    assert not any("Traceback" in error for error in errors), errors


def test_a_killed_peer_is_an_error_at_once():
    def body():
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(distcollective.Error, match="rank 1") as raised:
            dist.all_reduce(np.zeros(1, np.float32))
        return raised.value.kind

    with Ranks(2, body) as ranks:
        assert ranks.result(0) == "PeerLost"
        assert ranks.exit_code(1) == -signal.SIGKILL


def test_a_sub_interpreter_is_refused():
    program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = "import distcollective._core"
try:
    failed = interpreters.run_string(interpreters.create(), code)
except Exception as error:
    failed = error
assert "subinterpreters" in str(failed), failed
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr


def test_a_peer_that_is_killed_while_work_is_under_way():
    def body():
        x = np.zeros(100_000, np.float32)
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        works = [dist.irecv(x.copy(), 1), dist.all_reduce(x, async_op=True)]
        kinds = []
        for work in works:
            with pytest.raises(distcollective.Error, match="rank 1") as raised:
                work.wait()
            kinds.append(raised.value.kind)
        return kinds

    with Ranks(2, body) as ranks:
        assert ranks.result(0) == ["PeerLost"] * 2


class Dataset:
    """A dataset whose items try to call the group of the process that loads them."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        for call in [lambda: dist.all_reduce(np.ones(1, np.float32)), lambda: dist.barrier(async_op=True)]:
            with pytest.raises(RuntimeError, match="fork"):
                call()
        return float(index)


def test_workers_of_a_data_loader_are_refused_and_harm_none():
    torch = peer("torch")

    def body():
        x = np.ones(3, np.float32)
        loader = torch.utils.data.DataLoader(Dataset(), num_workers=2, multiprocessing_context="fork")
        total = 0.0
        for batch in loader:
            total += batch.sum().item()
            dist.all_reduce(x, dist.ReduceOp.MAX)
        return total, x.tolist()

    assert run(2, body) == [(6.0, [1, 1, 1])] * 2


def double():
    x = np.ones(3, np.float32)
    dist.all_reduce(x)
    return x.tolist()


def test_ranks_may_be_spawned():
    with Ranks(2, double, method="spawn") as ranks:
        assert [ranks.result(rank) for rank in range(2)] == [[2, 2, 2]] * 2


def test_tensors_may_be_dropped_while_work_is_under_way():
    def body():
        rank = dist.get_rank()
        other = 1 - rank
        for number in range(20):
            dist.isend(np.full(50_000, number, np.float32), other)
        for number in range(20):
            x = np.zeros(50_000, np.float32)
            dist.recv(x, other)
            assert (x == number).all()
        for _ in range(20):
            dist.all_reduce(np.ones(50_000, np.float32), async_op=True)
        gc.collect()
        x = np.ones(1, np.float32)
        dist.all_reduce(x)
        return x.tolist()

    assert run(2, body) == [[2], [2]]
