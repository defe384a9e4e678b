"""The samples, and that the tutorial's program prints what it prints with torch.distributed."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import peer

peer("torch")

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "python"
#: These programs start processes that import torch.
DEADLINE = 60
OURS, THEIRS = "import distcollective.distributed as dist", "import torch.distributed as dist"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def output_of(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


def torchrun(size, logs):
    """torchrun's command. Debian's version needs a redirection of the output."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(size), "--master_port", free_port(),
        "--monitor_interval", "0.1", "-r", "1", "-t", "1", "--log_dir", str(logs),
    ]  # fmt: skip


@pytest.mark.parametrize("start", ["fork", "spawn", "torchrun"])
def test_the_tutorial_prints_what_it_prints_with_gloo(start, tmp_path):
    program = (SAMPLES / "torch_primitives.py").read_text()
    assert program.count(OURS) == 1
    with_torch = tmp_path / "with_torch.py"
    with_torch.write_text(program.replace(OURS, THEIRS))
    outputs = []
    for path in [SAMPLES / "torch_primitives.py", with_torch]:
        if start == "torchrun":
            command = [*torchrun(3, tmp_path / path.stem), path]
        else:
            command = [sys.executable, path, "--ranks", "3", "--start", start, "--port", free_port()]
        # torchrun says which rank has written a line.
        lines = [re.sub(r"^\[\w+\]:", "", line) for line in output_of(command).splitlines()]
        outputs.append(sorted(lines))
    assert outputs[0] == outputs[1] and len(outputs[0]) == 20


def test_split_layers_compute_what_the_whole_ones_compute(tmp_path):
    command = [*torchrun(2, tmp_path), SAMPLES / "tensor_parallel.py"]
    assert "2 ranks compute what one computes" in output_of(command)


def test_servers_get_the_trainers_weights(tmp_path):
    output = output_of([*torchrun(3, tmp_path), SAMPLES / "weight_sync.py"])
    assert output.count("2 servers have the weights of loss") == 3
