"""The tables of a report."""

import unittest

from gpu_check import report


def call(way, ns, bare, **place):
    place = {"operation": "all_reduce", "bytes": 2048, "ranks": 2, "rank": 0, "ranks_are": "threads"} | place
    return {
        "benchmark": "calls",
        "place": place,
        "way": way,
        "against": "NCCL",
        "ns": ns,
        "bare_ns": bare,
        "difference_ns": ns - bare,
        "allowed_ns": 200.0,
        "noise_ns": 1.0,
        "done_ns": ns * 2,
        "bare_done_ns": bare * 2,
        "ok": ns - bare <= 200,
    }


def step(name, figures=(), status="passed", **more):
    return {"name": name, "status": status, "seconds": 1.0, "tests": 1, "skipped": [], "figures": list(figures)} | more


KERNEL = {
    "benchmark": "kernels",
    "place": {"kernel": "cast", "bytes": 64},
    "gb_per_s": 900.0,
    "copy_gb_per_s": 1000.0,
    "ratio": 0.9,
    "ok": True,
}

HASHES = {
    "benchmark": "exact",
    "place": {"operation": "reduce", "type": "float16"},
    "exact_hash": "0a",
    "host_hash": "0b",
    "nccl_hash": "0c",
    "ok": False,
}


def a_report():
    library = {"version": "13.0"}
    return {
        "date": "2026-01-01",
        "commit": "abc",
        "modified": False,
        "with_test_libraries": False,
        "quick": False,
        "driver": "580",
        "cuda": library | {"gpus": 1, "name": "GPU"},
        "nccl": {"version": "2.30.7"},
        "nvrtc": library,
        "ranks": 2,
        "ranks_share_a_gpu": True,
        "not_measured": ["exact mode: there is none"],
        "steps": [
            step(
                "calls",
                [
                    call("Communicator::enqueue", 1100.0, 1000.0),
                    call("Communicator::enqueue", 1150.0, 1020.0, rank=1),
                    call("Communicator::enqueue, exact", 9000.0, 1000.0) | {"ok": None},
                    call("ExecutionContext::enqueue, graph", 400.0, 390.0),
                ],
            ),
            step("exact", [HASHES]),
            step("kernels", [KERNEL]),
            step("suite", status="timed out", skipped=["no second GPU"]),
        ],
    }


class Tables(unittest.TestCase):
    def test_a_row_has_the_slowest_ranks_time_of_each_way(self):
        lines = report.calls_table(a_report(), "")
        self.assertEqual(lines[0].split(), ["call", "bare", "eager", "exact", "layer", "engine", "bare", "graph", "graph"])
        self.assertEqual(lines[1].split()[-7:], ["1020.0", "1150.0", "9000.0", "-", "-", "390.0", "400.0"])
        self.assertEqual(
            report.calls_table(a_report(), "done_")[1].split()[-7:],
            ["2040.0", "2300.0", "18000.0", "-", "-", "780.0", "800.0"],
        )

    def test_hashes_that_differ_are_shown_as_missed(self):
        line = "exact, operation reduce, type float16: 0a, on the host 0b, NCCL's own 0c; MISSED"
        self.assertEqual(report.as_text(HASHES), line)

    def test_the_text_has_every_part(self):
        text = report.text(a_report())
        for part in ("commit abc", "NCCL 2.30.7", "which share the GPU", "suite: no second GPU", "exact mode", "0.9\n", "0b"):
            self.assertIn(part, text)
