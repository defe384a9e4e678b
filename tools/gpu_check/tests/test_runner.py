"""How steps run: their limits, their output, and that results are kept."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from gpu_check.runner import Runner
from gpu_check.stacks import is_running
from gpu_check.steps import Step

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "gpu-check"


def shell(script):
    return ["sh", "-c", script]


def empty():
    library = {"version": "0"}
    return {
        "date": "",
        "commit": "",
        "modified": False,
        "with_test_libraries": True,
        "quick": True,
        "driver": None,
        "cuda": library | {"gpus": 1, "name": ""},
        "nccl": library,
        "nvrtc": library,
        "ranks": 1,
        "ranks_share_a_gpu": False,
        "not_measured": ["exact mode"],
        "steps": [],
    }


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.kept = empty()

    def run_steps(self, *steps, limit=60):
        with contextlib.redirect_stdout(io.StringIO()):
            Runner(self.out, dict(os.environ)).run(steps, self.kept, limit)
        return {result["name"]: result for result in json.loads((self.out / "report.json").read_text())["steps"]}

    def log(self, name="steps.log"):
        return (self.out / name).read_text()

    def test_a_step_that_hangs_leaves_stacks_and_no_process(self):
        # One child is in a session of its own.
        script = "setsid sleep 61 & echo child $!; sleep 62"
        begin = time.monotonic()
        results = self.run_steps(Step("hangs", [shell(script)], 1), Step("next", [["true"]], 5))
        self.assertEqual(results["hangs"]["status"], "timed out")
        self.assertEqual(results["next"]["status"], "passed")
        self.assertLess(time.monotonic() - begin, 60)
        log = self.log()
        for process in ("sh -c", "sleep 61", "sleep 62"):
            self.assertRegex(log, rf"--- stacks of process \d+: {process}")
        self.assertRegex(log, r"thread \d+ sleep: S \(sleeping\); wchan ")
        if shutil.which("gdb"):
            self.assertRegex(log, r"(?s)gdb on process.*#0 ")
        child = int(log.rpartition("\nchild ")[2].split()[0])
        self.assertFalse(is_running(child))

    def test_a_step_that_crashes_is_named_with_its_signal(self):
        results = self.run_steps(Step("crashes", [shell("echo last words; kill -SEGV $$"), shell("echo unreached")], 5))
        self.assertEqual(results["crashes"]["status"], "failed")
        self.assertEqual(results["crashes"]["ended"], "ended by SIGSEGV")
        self.assertIn("last words", results["crashes"]["output"])
        self.assertNotIn("\nunreached", self.log())

    def test_a_program_that_is_not_there_is_a_failed_step(self):
        self.assertEqual(
            self.run_steps(Step("absent", [["/nowhere/program"]], 5))["absent"]["ended"], "exit status 127"
        )

    def test_without_time_nothing_runs(self):
        results = self.run_steps(Step("first", [["true"]], 5), limit=0.5)
        self.assertEqual(results["first"]["status"], "no time")
        self.assertFalse((self.out / "steps.log").exists())
        self.assertIn("first: the time limit of the whole run was reached before it", self.log("report.txt"))

    def test_the_whole_runs_limit_ends_a_step(self):
        self.assertEqual(self.run_steps(Step("long", [["sleep", "63"]], 600), limit=1.5)["long"]["status"], "timed out")

    def test_results_are_kept_until_the_step_runs_again(self):
        flag = self.out / "flag"
        step = Step("once", [["test", "-e", str(flag)]], 5)
        self.run_steps(step, Step("other", [["true"]], 5))
        self.assertEqual([result["status"] for result in self.kept["steps"]], ["failed", "passed"])
        flag.touch()
        self.run_steps(step)
        self.assertEqual([result["status"] for result in self.kept["steps"]], ["passed", "passed"])
        # A result is not lost because there was no time to get a new one.
        self.run_steps(step, limit=0)
        self.assertEqual(self.kept["steps"][0]["status"], "passed")
        self.assertEqual(self.log().count("=== once"), 2)

    def test_the_log_has_all_output_and_the_report_what_was_skipped(self):
        lines = "\n".join(f"line {number}" for number in range(5000))
        text = "test result: ok. 3 passed;\nskipped: no second GPU\nskipped: no second GPU"
        results = self.run_steps(Step("writes", [shell(f"cat <<X\n{lines}\n{text}\nX")], 5))
        self.assertIn("\nline 0\n", self.log())
        self.assertEqual((results["writes"]["tests"], len(results["writes"]["skipped"])), (3, 2))
        self.assertIn("writes: no second GPU (2 times)", self.log("report.txt"))

    def test_a_suite_without_a_test_has_failed(self):
        suite = self.out / "suite"
        suite.symlink_to("/bin/true")
        result = self.run_steps(Step("suite", [[str(suite)]], 5))["suite"]
        self.assertEqual((result["status"], result["ended"]), ("failed", "exit status 0, without a test"))

    def test_a_benchmark_without_figures_has_failed(self):
        figure = {"benchmark": "leaks", "rounds": 1, "lost_bytes": 0, "allowed_bytes": 1, "ok": True}
        bench = self.out / "benches"
        bench.write_text(f"#!/bin/sh\n[ \"$1\" != leaks ] || echo '{json.dumps(figure)}'\n")
        bench.chmod(0o755)
        leaks, nothing = [str(bench), "leaks"], ["sh", "-c", '"$0"', str(bench)]
        # Figures of one command are none of another's.
        results = self.run_steps(Step("leaks", [leaks], 5), Step("nothing", [leaks, nothing], 5))
        self.assertEqual(results["leaks"]["status"], "passed")
        result = results["nothing"]
        self.assertEqual((result["status"], result["ended"]), ("failed", "exit status 0, without figures"))

    def test_figures_are_read_also_behind_a_launchers_prefix(self):
        figure = {"benchmark": "leaks", "rounds": 1, "lost_bytes": 0, "allowed_bytes": 1, "ok": True}
        results = self.run_steps(
            Step("good", [["echo", "[1] " + json.dumps(figure)]], 5),
            Step("missed", [["echo", json.dumps(figure | {"ok": False})]], 5),
            Step("wrong", [["echo", json.dumps({"benchmark": "kernels", "error": "bits"})]], 5),
            Step("none", [["echo", json.dumps({"benchmark": "calls", "skipped": "no GPU"})]], 5),
        )
        self.assertEqual(results["good"]["figures"], [figure])
        statuses = [results[name]["status"] for name in ("good", "missed", "wrong", "none")]
        self.assertEqual(statuses, ["passed", "missed", "failed", "skipped"])

    def test_nccls_warnings_of_every_process_are_kept(self):
        # As NCCL does, each process puts its id for %p.
        script = 'for p in 1 2; do echo "$NCCL_DEBUG of $p" > "$(echo "$NCCL_DEBUG_FILE" | sed "s/%p/$p/")"; done'
        self.run_steps(Step("warns", [shell(script)], 5))
        self.assertRegex(self.log("nccl.log"), r"(?s)process 1 of sh.*WARN of 1.*process 2 of sh.*WARN of 2")

    def test_settings_reach_the_step_and_the_log(self):
        self.run_steps(Step("set", [shell("echo value is $NCCL_MAX_CTAS")], 5, {"NCCL_MAX_CTAS": "4"}))
        self.assertIn("NCCL_MAX_CTAS=4", self.log())
        self.assertIn("value is 4", self.log())


class Ended(unittest.TestCase):
    def test_a_run_that_is_ended_ends_its_step(self):
        with tempfile.TemporaryDirectory() as folder:
            script = (
                "import os\n"
                "from gpu_check.runner import Runner\n"
                f"runner = Runner({folder!r}, dict(os.environ))\n"
                "runner.end_on_signals()\n"
                "runner.command(['sh', '-c', 'echo child $$; sleep 64'], {}, 60)\n"
            )
            process = subprocess.Popen([sys.executable, "-c", script], cwd=TOOL.parent)
            log = pathlib.Path(folder) / "steps.log"
            end = time.monotonic() + 10
            while not (log.exists() and "\nchild " in log.read_text()) and time.monotonic() < end:
                time.sleep(0.01)
            child = int(log.read_text().rpartition("\nchild ")[2].split()[0])
            process.terminate()
            self.assertEqual(process.wait(10), 143)
            self.assertFalse(is_running(child))
