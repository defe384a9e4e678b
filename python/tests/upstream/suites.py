"""Runs files of PyTorch's tests on gloo, and with this package's backend in gloo's place.

Bodies and texts are unchanged: ``sitecustomize`` beside this file changes what "gloo" is. Prints for each file how many
tests pass, and which pass on gloo alone, with their errors. Needs pytest-timeout, expecttest and what the files import
besides.

usage: python suites.py SOURCE FILE ...

SOURCE is PyTorch's source tree, of the version that is installed. A FILE is one of its folder test/distributed.
"""

import argparse
import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

#: The longest that a test may take, and a file, in seconds.
TEST_LIMIT, FILE_LIMIT = 120, 1800
#: These have groups in the process that starts the ranks, and a fork does not have their threads.
SPAWNED = ("test_c10d_common", "test_c10d_spawn", "test_dist2")


def error_of(text):
    """The last line that says an error, of those that the ranks printed."""
    lines = [line.strip().removeprefix("E").strip() for line in text.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failure)\b", line)]
    own = [line for line in errors if "exited with error code" not in line]
    return (own or errors or lines or [""])[-1][:160]


def run(source, file, is_ours):
    """What each test of the file gives: "pass", "skip", or its error."""
    tests = source / "test" / "distributed"
    here = str(Path(__file__).parent)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([here, str(tests.parent), str(tests)]))
    environment.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    if not file.startswith(SPAWNED):
        environment["DCL_FORK_TESTS"] = "1"
    if is_ours:
        environment["DCL_IN_PLACE_OF_GLOO"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", str(TEST_LIMIT)]
        command += ["--junitxml", report, str(tests / file)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, env=environment, cwd=tests, start_new_session=True, **quiet) as pytest:
            try:
                pytest.wait(FILE_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(pytest.pid, signal.SIGKILL)
        if not os.path.exists(report):
            sys.exit(f"{file}: no result within {FILE_LIMIT} s")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        found = {}
        for case in cases:
            parts = {part.tag: part for part in case}
            bad = parts.get("failure", parts.get("error"))
            result = "skip" if "skipped" in parts else "pass"
            if bad is not None:
                result = error_of(f"{bad.get('message')}\n{bad.text}")
            found[f"{case.get('classname').split('.')[-1]}.{case.get('name')}"] = result
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    for file in arguments.files:
        gloo, ours = [run(arguments.source, file, is_ours) for is_ours in (False, True)]
        passed = [name for name, result in gloo.items() if result == "pass"]
        missed = collections.defaultdict(list)
        for name in passed:
            if ours.get(name) != "pass":
                missed[ours.get(name, "no result")].append(name)
        both = len(passed) - sum(map(len, missed.values()))
        print(f"{file}: {len(passed)} pass on gloo, {both} of them on distcollective", flush=True)
        for error, names in missed.items():
            print(f"  {', '.join(names)}: {error}", flush=True)


if __name__ == "__main__":
    main()
