"""Runs a function on several ranks, each a process, with a deadline."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from pathlib import Path

import pytest

DEADLINE = 10.0 * float(os.environ.get("DCL_TEST_PATIENCE", "1"))


def peer(name):
    """A module that tests run against. Without it they are skipped; where CI needs it they fail."""
    if "DCL_REQUIRE_PEERS" in os.environ:
        return importlib.import_module(name)
    return pytest.importorskip(name)


def on_stand_ins(program, name, variable="DCL_TEST_GPU_LIBRARIES"):
    """Runs a program of this folder on the stand-ins for CUDA and NCCL (tests/fake_gpu), whose folders the variable says.

    A process loads libraries once, so each test has one of its own.
    """
    if variable not in os.environ:
        assert "DCL_REQUIRE_PEERS" not in os.environ, f"{variable} is missing"
        pytest.skip(f"{variable} does not say where the stand-ins for CUDA and NCCL are")
    return subprocess.run(
        [sys.executable, Path(__file__).with_name(program), name],
        env={**os.environ, "LD_LIBRARY_PATH": os.environ[variable]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * DEADLINE,
    )


def passes_on_stand_ins(program, name, *variable):
    process = on_stand_ins(program, name, *variable)
    assert process.returncode == 0 and process.stdout.endswith("passed\n"), process.stdout


def _child(connection, variables, rank, size, body, arguments):
    import distcollective.distributed as dist

    os.environ.update(variables)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=size)
        result = body(*arguments)
        connection.send(("result", result))
    except BaseException:
        connection.send(("error", traceback.format_exc()))


class Ranks:
    """Processes that run a function, which are killed when this ends."""

    def __init__(self, size, body, *arguments, method="fork", target=_child):
        self.deadline = time.monotonic() + DEADLINE
        context = multiprocessing.get_context(method)
        port = str(20000 + uuid.uuid4().int % 40000)
        # The name of the job keeps two tests apart that have drawn the same port.
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DCL_JOB_ID": uuid.uuid4().hex}
        self.connections, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs, variables, rank, size, body, arguments))
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()

    def receive(self, rank):
        """The next thing that a rank has sent."""
        left = self.deadline - time.monotonic()
        if not self.connections[rank].poll(max(left, 0)):
            raise TimeoutError(f"rank {rank} has sent nothing for {DEADLINE} s")
        return self.connections[rank].recv()

    def result(self, rank):
        """What the function returned on a rank."""
        kind, value = self.receive(rank)
        if kind == "error":
            raise AssertionError(f"rank {rank} failed:\n{value}")
        return value

    def signal(self, rank, number=signal.SIGINT):
        os.kill(self.processes[rank].pid, number)

    def exit_code(self, rank):
        """How a rank's process ended."""
        self.processes[rank].join(max(self.deadline - time.monotonic(), 0))
        return self.processes[rank].exitcode


def run(size, body, *arguments):
    """What the function returns on each rank."""
    with Ranks(size, body, *arguments) as ranks:
        return [ranks.result(rank) for rank in range(size)]
