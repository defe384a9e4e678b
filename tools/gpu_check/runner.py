"""Runs steps one after the other, within a time limit, and keeps all that they write.

The output folder has `report.json` and `report.txt`, `steps.log` with the full output of every
step, and `nccl.log` with NCCL's warnings. All are written while steps run, so that they exist if
this program is ended.
"""

import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from . import report, stacks

TAIL = 4000
# A line of a benchmark. The launcher puts the rank before it.
FIGURE = re.compile(r"^(?:\[\d+\] )?(\{\".*\})$", re.M)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def describe(status):
    """An exit status in words."""
    if status is None:
        return "did not end in time"
    if status >= 0:
        return f"exit status {status}"
    return f"ended by {signal.Signals(-status).name}"


class Runner:
    def __init__(self, folder, environment):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ended_by = None
        self.messages = self.folder.absolute() / "nccl"
        # NCCL puts the process's id for %p. Ranks that write one file overwrite each other.
        self.environment = environment | {
            "NCCL_DEBUG": environment.get("NCCL_DEBUG", "WARN"),
            "NCCL_DEBUG_FILE": str(self.messages / "%p.log"),
        }

    def end_on_signals(self):
        """Lets SIGINT and SIGTERM end the step that runs and this program."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.note_signal)

    def note_signal(self, number, _):
        # An exception here could come before Popen has returned the process that is to be killed.
        self.ended_by = number

    def wait(self, process, seconds):
        """The exit status of a process."""
        end = time.monotonic() + max(seconds, 0.1)
        while True:
            if self.ended_by is not None:
                sys.exit(128 + self.ended_by)
            try:
                return process.wait(timeout=min(0.1, max(end - time.monotonic(), 0)))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    raise

    def command(self, command, settings, seconds):
        """Runs a command. Returns its exit status, or None after the time limit; and its output."""
        path = self.folder / "steps.log"
        self.messages.mkdir(exist_ok=True)
        with open(path, "a", errors="replace") as log:
            print(f"\n$ {' '.join(command)}", file=log, flush=True)
            begin = log.tell()
            try:
                # A new session, so that all that it starts is found and killed with it.
                process = subprocess.Popen(
                    command,
                    env=self.environment | settings,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                print(error, file=log)
                return 127, str(error)
            try:
                status = self.wait(process, seconds)
            except subprocess.TimeoutExpired:
                status = None
                stacks.write(process.pid, log)
            finally:
                # Also kills children that a finished program left behind.
                stacks.end(process.pid)
                process.wait()
                self.gather_messages(" ".join(command))
            print(f"({describe(status)})", file=log)
        with open(path, errors="replace") as log:
            log.seek(begin)
            return status, log.read()

    def gather_messages(self, command):
        """Appends what NCCL has written to one file."""
        with open(self.folder / "nccl.log", "a") as log:
            for file in sorted(self.messages.glob("*.log")):
                print(f"--- process {file.stem} of {command}\n{file.read_text(errors='replace')}", file=log)
        shutil.rmtree(self.messages)

    def step(self, step, seconds):
        """Runs a step, and returns its result."""
        result = {
            "name": step.name,
            "date": now(),
            "status": "passed",
            "seconds": 0,
            "tests": 0,
            "skipped": [],
            "figures": [],
        }
        if step.skipped:
            return result | {"status": "skipped", "skipped": [step.skipped]}
        if seconds < 1:
            return result | {"status": "no time"}
        with open(self.folder / "steps.log", "a") as log:
            print(f"\n=== {step.name}, {result['date']}", file=log)
            for name, value in step.settings.items():
                print(f"{name}={value}", file=log)
        begin = time.monotonic()
        end = begin + min(step.seconds, seconds)
        for command in step.commands:
            status, output = self.command(command, step.settings, end - time.monotonic())
            figures = list(map(json.loads, FIGURE.findall(output)))
            result["figures"] += figures
            tests = sum(map(int, re.findall(r"^test result: \w+\. (\d+) passed", output, re.M)))
            result["tests"] += tests
            result["skipped"] += re.findall(r"^skipped: (.*)", output, re.M)
            lacks = missing(command, tests, figures)
            if status != 0 or lacks:
                result["status"] = "timed out" if status is None else "failed"
                result["ended"] = describe(status) if status != 0 else f"{describe(status)}, without {lacks}"
                result["command"] = " ".join(os.path.basename(word) if "/" in word else word for word in command)
                result["output"] = output[-TAIL:]
                break
            if step.shows:
                print(output[-TAIL:])
        if result["status"] == "passed":
            result["status"] = judge(result["figures"])
        return result | {"seconds": round(time.monotonic() - begin, 1)}

    def run(self, steps, kept, limit, without_times=False):
        """Runs steps, and puts their results into a report, in place of earlier ones."""
        end = time.monotonic() + limit
        for step in steps:
            print(f"\n=== {step.name}", flush=True)
            result = self.step(step, end - time.monotonic())
            if without_times and result["status"] == "missed":
                # Times mean nothing with the test libraries.
                result["status"] = "passed"
            if "output" in result:
                print(result["output"])
            print(f"{result['status']} after {result['seconds']} s{summary(result['figures'])}", flush=True)
            keep(kept, result)
            report.write(self.folder, kept)


def missing(command, tests, figures):
    """What a command that succeeds must have printed and has not. A filter that matches no test or
    benchmark also exits with 0."""
    for program, what, printed in (("suite", "a test", tests), ("benches", "figures", figures)):
        if not printed and any(word.endswith(f"/{program}") for word in command):
            return what
    return None


def judge(figures):
    """The status of a step whose commands have succeeded."""
    judged = [figure for figure in figures if "skipped" not in figure]
    if figures and not judged:
        return "skipped"
    if any("error" in figure for figure in judged):
        return "failed"
    return "missed" if any(figure.get("ok") is False for figure in judged) else "passed"


def summary(figures):
    """How many figures there are, and how many are not as they should be."""
    counts = [
        ("missed", sum(figure.get("ok") is False and "error" not in figure for figure in figures)),
        ("failed", sum("error" in figure for figure in figures)),
        ("skipped", sum("skipped" in figure for figure in figures)),
    ]
    parts = [f"{len(figures)} figures"] + [f"{count} {name}" for name, count in counts if count]
    return f"; {', '.join(parts)}" if figures else ""


def keep(kept, result):
    """Puts a result in place of an earlier one of the same step. A step that had no time keeps its
    earlier result."""
    names = [earlier["name"] for earlier in kept["steps"]]
    if result["name"] not in names:
        kept["steps"].append(result)
    elif result["status"] != "no time":
        kept["steps"][names.index(result["name"])] = result
