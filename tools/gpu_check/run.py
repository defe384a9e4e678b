"""Runs the steps that were asked for on this machine, and adds their results to the report."""

import json
import os
import pathlib
import platform
import sys

from . import machine, report
from .build import PROGRAMS
from .runner import Runner, now
from .steps import Machine, steps

# The seconds of a whole run: it fits into ten minutes with the stacks of a step that hangs.
LIMIT = 540

# The fields of a report that must be equal for results to go into one report.
SAME = ["commit", "tree", "with_test_libraries", "quick", "cuda", "nccl", "ranks"]


def begin(folder, about, found, here, arguments):
    """A report without steps, or the one that is in the output folder, so that results are kept."""
    new = {
        "date": now(),
        "commit": about["commit"],
        "modified": about["modified"],
        "tree": about["tree"],
        "with_test_libraries": arguments.fakes,
        "quick": arguments.quick,
        "system": {"kernel": platform.release(), "libc": " ".join(platform.libc_ver()), "processors": os.cpu_count()},
        "driver": machine.driver_version(),
        **{name: {key: value for key, value in library.items() if key != "path"} for name, library in found.items()},
        "ranks": here.ranks,
        "ranks_share_a_gpu": here.shares_a_gpu,
        "not_measured": report.NOT_MEASURED,
        "steps": [],
    }
    path = folder / "report.json"
    if not path.exists():
        return new
    old = json.loads(path.read_text())
    for field in SAME:
        # A report of an older gpu-check lacks fields.
        if old.get(field) != new[field]:
            difference = f"its {field} is {old.get(field)}, and now it is {new[field]}"
            sys.exit(f"error: {path} is the report of another run: {difference}; give another folder with --out")
    return new | {"steps": old["steps"]}


def run(arguments):
    folder, out = pathlib.Path(arguments.dir).resolve(), pathlib.Path(arguments.out)
    about = json.loads((folder / "build.json").read_text())
    environment, found = machine.find_libraries(folder, arguments, about)
    for name, library in found.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in library.items())}")
    missing = [name for name, library in found.items() if "missing" in library]
    if missing or found["cuda"]["gpus"] == 0:
        sys.exit(f"error: there is no usable GPU, or a library is missing: {', '.join(missing) or 'no GPU'}")
    here = Machine(found["cuda"]["gpus"], found["nccl"]["version"])
    print(
        f"ranks: {here.ranks}{', which share the GPU' if here.shares_a_gpu else ''}; commit {about['commit']}",
        flush=True,
    )
    for name in PROGRAMS:
        # Copying to another machine may have lost the permission to execute.
        if not os.access(folder / name, os.X_OK):
            os.chmod(folder / name, 0o755)
    kept = begin(out, about, found, here, arguments)
    chosen = choose(steps(folder, here, arguments), kept, arguments)
    runner = Runner(out, environment)
    runner.end_on_signals()
    runner.run(chosen, kept, arguments.limit, without_times=arguments.fakes)
    print("\n" + "\n".join(report.steps_table(kept)))
    print(f"report, and all output: {out}")
    chosen = {step.name for step in chosen}
    ended = [result["status"] for result in kept["steps"] if result["name"] in chosen]
    sys.exit(any(status not in ("passed", "skipped") for status in ended))


def choose(all_steps, kept, arguments):
    """The steps to run."""
    passed = {result["name"] for result in kept["steps"] if result["status"] in ("passed", "skipped")}
    chosen = [step for step in all_steps if not arguments.only or any(part in step.name for part in arguments.only)]
    if not chosen:
        sys.exit("error: there is no such step")
    return [step for step in chosen if not (arguments.resume and step.name in passed)]
