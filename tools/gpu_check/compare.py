"""Prints the differences between two reports."""

import json
import sys

from . import report

# What a figure says of its benchmark: a field, and a unit.
VALUES = [
    ("ns", "ns"),
    ("done_ns", "ns until done"),
    ("bare_ns", "ns for the bare call"),
    ("ratio", "of the copy's bandwidth"),
    ("lost_bytes", "bytes lost"),
]
# The fields of a report that say on what it was made.
ABOUT = [
    "commit",
    "modified",
    "with_test_libraries",
    "quick",
    "driver",
    "cuda",
    "nccl",
    "nvrtc",
    "system",
    "ranks",
    "ranks_share_a_gpu",
]


def key(figure):
    place = [f"{name} {value}" for name, value in figure.get("place", {}).items()]
    return ", ".join([figure["benchmark"], *place, *([figure["way"]] if "way" in figure else [])])


def outcome(figure):
    """The judgement of a figure in one word."""
    if "skipped" in figure or "error" in figure:
        return "skipped" if "skipped" in figure else "failed"
    return {True: "passed", False: "missed", None: "not judged"}[figure.get("ok")]


def changes(before, after):
    """What differs between two figures of the same key."""
    if outcome(before) != outcome(after):
        yield f"{outcome(before)} -> {outcome(after)}"
    for field, unit in VALUES:
        old, new = before.get(field), after.get(field)
        if old != new and old is not None and new is not None:
            yield f"{old} -> {new} {unit}" + (f" ({(new - old) / old:+.1%})" if old else "")


def differences(before, after):
    """Lines that say what differs between two reports."""
    for field in ABOUT:
        if before.get(field) != after.get(field):
            yield f"{field}: {before.get(field)} -> {after.get(field)}"
    for what, select, describe in (
        ("step", lambda of: {step["name"]: step for step in of["steps"]}, step_changes),
        ("figure", lambda of: {key(figure): figure for figure in report.figures(of)}, changes),
    ):
        old, new = select(before), select(after)
        for name in dict.fromkeys([*old, *new]):
            if name not in new:
                yield f"{what} {name}: only in the first report"
            elif name not in old:
                yield f"{what} {name}: only in the second report"
            else:
                found = list(describe(old[name], new[name]))
                if found:
                    yield f"{name}: {'; '.join(found)}"


def step_changes(before, after):
    if before["status"] != after["status"]:
        yield f"{before['status']} -> {after['status']}"
    for count, old, new in (
        ("tests", before["tests"], after["tests"]),
        ("skipped", len(before["skipped"]), len(after["skipped"])),
    ):
        if old != new:
            yield f"{count}: {old} -> {new}"


def compare(arguments):
    reports = []
    for path in (arguments.before, arguments.after):
        try:
            with open(path) as file:
                reports.append(json.load(file))
        except (OSError, ValueError) as error:
            sys.exit(f"error: {path} cannot be read as a report: {error}")
    lines = list(differences(*reports))
    print("\n".join(lines) if lines else "no differences")
