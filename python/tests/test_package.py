"""The package as it is installed: its symbols, and the programs of its documents."""

import doctest
import importlib
import os
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import numpy
import pytest
from ranks import DEADLINE, Ranks, peer

import distcollective._core
import distcollective.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
README, GUIDES = ROOT / "README.md", [ROOT / "docs" / "src" / name for name in ("python.md", "tensorrt.md")]


def test_the_extension_exports_what_python_and_onnx_runtime_call():
    command = ["nm", "--dynamic", "--defined-only", distcollective._core.__file__]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert sorted(line.split()[-1] for line in lines) == ["PyInit__core", "RegisterCustomOps"]


def test_a_missing_peer_is_skipped_and_fails_where_it_is_needed(monkeypatch):
    monkeypatch.delenv("DCL_REQUIRE_PEERS", raising=False)
    with pytest.raises(pytest.skip.Exception):
        peer("no_such_module")
    monkeypatch.setenv("DCL_REQUIRE_PEERS", "1")
    with pytest.raises(ModuleNotFoundError):
        peer("no_such_module")


def programs():
    packages_readme = ROOT / "python" / "README.md"
    for path in [*GUIDES, packages_readme]:
        for number, program in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            yield pytest.param(program, id=f"{path.relative_to(ROOT)} {number}")


@pytest.mark.parametrize("program", list(programs()))
def test_the_guides_programs_run(program):
    if "import torch" in program:
        peer("torch")
    variables = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "DCL_JOB_ID": f"guide {os.getpid()}",
    }
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **variables, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [process.wait(DEADLINE) for process in processes] == [0, 0]
    finally:
        [process.kill() for process in processes]


@pytest.mark.parametrize("name", ["_bytes", "_collectives", "_groups", "_messages", "_threads", "..tensor_dict"])
def test_the_examples_of_functions_run(name):
    """In examples ``dist`` is the module and ``np`` is numpy."""
    module = importlib.import_module(name if name[0] == "." else f".{name}", "distcollective.distributed")
    names = {"dist": dist, "np": numpy, "threading": threading, "timedelta": timedelta}

    # A process that has had a group runs no signal handlers in the processes that it forks.
    def body(connection, *_):
        connection.send(tuple(doctest.testmod(module, extraglobs=names)))

    with Ranks(1, None, target=body) as ranks:
        failed, attempted = ranks.receive(0)
    assert failed == 0 and attempted > 0


def test_the_readmes_program_runs():
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=DEADLINE)
    assert done.returncode == 0
    assert done.stdout == f"{[[10.0] * 3] * 4}\n"
