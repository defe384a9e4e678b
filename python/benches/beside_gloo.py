#!/usr/bin/env python3
"""Times the package beside gloo of torch, and how long Ctrl-C takes to end a wait.

    python3 python/benches/beside_gloo.py > benches/results/python-gloo.txt

Both are measured in the same processes, in turns of a round each, so that other work on the machine
meets both. A round is many calls; its time is that of the slowest rank. The table has the medians
of the rounds, and the median of the ratios of the two rounds that follow each other.
"""

import multiprocessing
import os
import platform
import signal
import socket
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as gloo

import distcollective.distributed as ours

ROUNDS = 21
SECONDS = 0.05
INTERRUPTS = 20
SIZES = {8: "8 B", 1 << 20: "1 MiB"}
CALLS: Dict[str, Callable[[Any, torch.Tensor, List[torch.Tensor]], Any]] = {
    "all_reduce": lambda dist, x, parts: dist.all_reduce(x),
    "broadcast": lambda dist, x, parts: dist.broadcast(x, 0),
    "all_gather": lambda dist, x, parts: dist.all_gather(parts, x),
    "reduce": lambda dist, x, parts: dist.reduce(x, 0),
    "barrier": lambda dist, x, parts: dist.barrier(),
    "send, recv": lambda dist, x, parts: exchange(dist, x),
}


def exchange(dist: Any, x: torch.Tensor) -> None:
    """There and back between ranks 0 and 1."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
        dist.send(x, 0)


def slowest(seconds: float) -> float:
    longest = torch.tensor([seconds], dtype=torch.float32)
    ours.all_reduce(longest, ours.ReduceOp.MAX)
    return longest.item()


def time_of(dist: Any, call: Callable[[Any], Any], count: int) -> float:
    """The time of a call on the slowest rank, in microseconds."""
    ours.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call(dist)
    return slowest((time.perf_counter() - begin) / count) * 1e6


def compare(name: str, byte_len: int) -> Tuple[float, float, float]:
    x = torch.zeros(byte_len // 4)
    parts = [torch.zeros_like(x) for _ in range(ours.get_world_size())]

    def call(dist: Any) -> None:
        # Sums of zeros stay zeros.
        CALLS[name](dist, x, parts)

    counts = {dist: max(3, int(SECONDS / (time_of(dist, call, 20) * 1e-6))) for dist in (ours, gloo)}
    rounds = [(time_of(ours, call, counts[ours]), time_of(gloo, call, counts[gloo])) for _ in range(ROUNDS)]
    ratio = statistics.median(theirs / own for own, theirs in rounds)
    return statistics.median(own for own, _ in rounds), statistics.median(theirs for _, theirs in rounds), ratio


def rank_of(connection: Any, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    ours.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    gloo.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for name in CALLS:
        for byte_len in SIZES:
            if name != "barrier" or byte_len == 8:
                connection.send((name, byte_len, compare(name, byte_len)))
    connection.send(None)


def interrupted(connection: Any, rank: int, size: int, port: int) -> None:
    """Rank 0 waits, and tells when Ctrl-C has ended the wait."""
    ours.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for _ in range(INTERRUPTS):
        if rank == 0:
            work = ours.irecv(torch.zeros(1), 1)
            connection.send("waits")
            try:
                work.wait()
            except KeyboardInterrupt:
                connection.send(time.monotonic())
    connection.recv()


def start(target: Callable[..., None], size: int) -> Tuple[List[Any], List[Any]]:
    context = multiprocessing.get_context("fork")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    pipes = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=target, args=(pipes[rank][1], rank, size, port), daemon=True) for rank in range(size)
    ]
    for process in processes:
        process.start()
    return processes, [ours for ours, _ in pipes]


def processor() -> str:
    with open("/proc/cpuinfo") as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    print("# The Python package beside gloo\n\nCommand: `python/benches/beside_gloo.py`\n")
    print(f"- {processor()}, {os.cpu_count()} processors, Linux {platform.release()}")
    print(f"- Python {platform.python_version()}, torch {torch.__version__}; tensors of torch, float32")
    print(f"- load of the last minute at the start: {os.getloadavg()[0]:.1f}; the machine is shared")
    print(f"- medians of {ROUNDS} rounds each, in turns; a ratio above 1 says that this package is faster\n")
    print("| call | processes | size | distcollective (us) | gloo (us) | ratio |\n|---|---:|---:|---:|---:|---:|")
    for size in (2, 4):
        processes, connections = start(rank_of, size)
        while True:
            told = [connection.recv() for connection in connections][0]
            if told is None:
                break
            name, byte_len, (own, theirs, ratio) = told
            shown = "" if name == "barrier" else SIZES[byte_len]
            print(f"| {name} | {size} | {shown} | {own:.1f} | {theirs:.1f} | {ratio:.1f} |", flush=True)
        for process in processes:
            process.join()
    processes, (first, *_) = start(interrupted, 2)
    times = []
    for _ in range(INTERRUPTS):
        assert first.recv() == "waits"
        time.sleep(0.15 + 0.01 * len(times))
        sent = time.monotonic()
        os.kill(processes[0].pid, signal.SIGINT)
        times.append((first.recv() - sent) * 1e3)
    for process in processes:
        process.kill()
    print(
        f"\nCtrl-C ended `Work.wait` after {statistics.median(times):.1f} ms (median of {INTERRUPTS}), "
        f"at most {max(times):.1f} ms."
    )


if __name__ == "__main__":
    sys.exit(main())
