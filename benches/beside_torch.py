#!/usr/bin/env python3
"""Measures transposes beside numpy and torch, and prints a table in Markdown.

Runs the benchmark `transposes` and the same transposes with numpy and torch, one
after the other, again and again, all on one processor. Each time is the median of its passes; a
pass is the median of nine runs. The last column is how many times as long torch takes.

    cargo build --profile dist -p benches && benches/beside_torch.py --passes 5
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import numpy
import torch

PROGRAM = Path(__file__).resolve().parents[1] / "target/dist/benches"
RUNS = 9


def median_us(run):
    """The median time of a call."""
    run()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def of_numpy(case):
    source = numpy.ones(case["dims"], getattr(numpy, case["data_type"])).transpose(case["permutation"])
    target = numpy.ones(source.shape, source.dtype)
    return median_us(lambda: numpy.copyto(target, source))


def of_torch(case):
    source = torch.ones(case["dims"], dtype=getattr(torch, case["data_type"])).permute(case["permutation"])
    target = torch.ones(source.shape, dtype=source.dtype)
    return median_us(lambda: target.copy_(source))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, [arguments.cpu])
    torch.set_num_threads(1)
    passes = []
    for _ in range(arguments.passes):
        lines = subprocess.run([PROGRAM, "transposes"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        cases = [json.loads(line) for line in lines]
        passes.append([case | {"numpy_us": of_numpy(case), "torch_us": of_torch(case)} for case in cases])
    columns = ["copy_us", "ours_us", "numpy_us", "torch_us"]
    print("| type | dimensions | permutation | copy µs | ours µs | numpy µs | torch µs | numpy / ours | torch / ours |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in zip(*passes):
        copy, ours, of_np, of_pt = (statistics.median(one[column] for one in case) for column in columns)
        figures = [f"{x:.0f}" for x in (copy, ours, of_np, of_pt)] + [f"{of_np / ours:.1f}", f"{of_pt / ours:.1f}"]
        what = [case[0]["data_type"], str(case[0]["dims"]), str(case[0]["permutation"])]
        print("| " + " | ".join(what + figures) + " |")


if __name__ == "__main__":
    main()
