"""The differences between two reports, and the tables of one."""

import contextlib
import copy
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from gpu_check import report
from gpu_check.compare import differences

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "gpu-check"


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


class Differences(unittest.TestCase):
    def setUp(self):
        self.before = a_report()
        self.after = copy.deepcopy(self.before)

    def lines(self):
        return list(differences(self.before, self.after))

    def test_equal_reports_have_none(self):
        self.assertEqual(self.lines(), [])

    def test_a_time_is_shown_with_its_change(self):
        self.after["steps"][0]["figures"][0] |= {"ns": 1375.0, "ok": False}
        (line,) = self.lines()
        self.assertEqual(
            line,
            "calls, operation all_reduce, bytes 2048, ranks 2, rank 0, ranks_are threads, Communicator::enqueue: "
            "passed -> missed; 1100.0 -> 1375.0 ns (+25.0%)",
        )

    def test_statuses_and_counts_of_steps(self):
        self.after["steps"][3] |= {"status": "passed", "tests": 40, "skipped": []}
        self.assertEqual(self.lines(), ["suite: timed out -> passed; tests: 1 -> 40; skipped: 1 -> 0"])

    def test_what_only_one_report_has(self):
        self.after["steps"][2]["figures"] = []
        self.after["steps"].append(step("leaks"))
        self.assertEqual(
            self.lines(),
            [
                "step leaks: only in the second report",
                "figure kernels, kernel cast, bytes 64: only in the first report",
            ],
        )

    def test_the_machine(self):
        self.after["nccl"] = {"version": "2.29.7"}
        self.assertEqual(self.lines(), ["nccl: {'version': '2.30.7'} -> {'version': '2.29.7'}"])

    def test_a_loss_of_nothing_is_no_divisor(self):
        leaks = {"benchmark": "leaks", "rounds": 1, "lost_bytes": 0, "allowed_bytes": 9, "ok": True}
        self.before["steps"].append(step("leaks", [leaks]))
        self.after["steps"].append(step("leaks", [leaks | {"lost_bytes": 8}]))
        self.assertEqual(self.lines(), ["leaks: 0 -> 8 bytes lost"])

    def test_the_command_prints_them(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("A.json", "B.json")]
            self.after["commit"] = "def"
            for path, content in zip(paths, (self.before, self.after)):
                path.write_text(json.dumps(content))
            compare = [sys.executable, TOOL, "compare"]
            self.assertEqual(subprocess.check_output([*compare, *paths], text=True), "commit: abc -> def\n")
            self.assertEqual(subprocess.check_output([*compare, paths[0], paths[0]], text=True), "no differences\n")
            refused = subprocess.run([*compare, paths[0], "/nowhere"], capture_output=True, text=True)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("error: /nowhere cannot be read as a report", refused.stderr)


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
