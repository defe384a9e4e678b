"""The report of a run: `report.json` for programs, `report.txt` for people."""

import json
import pathlib

# What no step measures, and why.
NOT_MEASURED = ["the kernels of exact mode by themselves, beside a copy"]

# The ways of making a call, as columns of a table: a title, the way, what it is compared with. The
# time of a bare call is in the figures of the ways that are compared with it.
COLUMNS = [
    ("bare", None, "Communicator::enqueue"),
    ("eager", "Communicator::enqueue", None),
    ("exact", "Communicator::enqueue, exact", None),
    ("layer", "BoundLayer::enqueue", None),
    ("engine", "ExecutionContext::enqueue", None),
    ("bare graph", None, "ExecutionContext::enqueue, graph"),
    ("graph", "ExecutionContext::enqueue, graph", None),
]


def figures(report):
    return [figure for step in report["steps"] for figure in step["figures"]]


def as_text(figure):
    """A figure as a line."""
    place = [f"{key} {value}" for key, value in figure.get("place", {}).items()]
    text = f"{', '.join([figure['benchmark'], *place])}: "
    if "skipped" in figure or "error" in figure:
        return text + figure.get("skipped", figure.get("error", ""))
    if "way" in figure:
        text += "{way} {ns} ns, {against} {bare_ns} ns; {difference_ns:+} ns".format(**figure)
        text += ", {allowed_ns} allowed, {noise_ns} noise".format(**figure)
    elif "host_hash" in figure:
        text += "{exact_hash}, on the host {host_hash}, NCCL's own {nccl_hash}".format(**figure)
    elif "ratio" in figure:
        text += "{gb_per_s} GB/s, a copy {copy_gb_per_s} GB/s; ratio {ratio}".format(**figure)
    else:
        text += "{rounds} rounds lose {lost_bytes} bytes, {allowed_bytes} allowed".format(**figure)
    return text + ("; MISSED" if figure.get("ok") is False else "")


def table(titles, rows):
    """Rows of texts and numbers as lines, the first column to the left."""
    lines = [[str(cell) for cell in row] for row in [titles, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    align = lambda line: [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
    return ["  ".join(align(line)).rstrip() for line in lines]


def steps_table(report):
    rows = [
        [step["name"], step["status"], step["seconds"], step["tests"], len(step["skipped"])] for step in report["steps"]
    ]
    return table(["step", "status", "seconds", "tests", "skipped"], rows)


def calls_table(report, prefix):
    """A row for each operation and size: the time of each way, of the slowest rank."""
    cells = {}
    for figure in figures(report):
        if figure["benchmark"] != "calls" or "skipped" in figure:
            continue
        place = figure["place"]
        row = f"{place['operation']}, {place['bytes']} bytes, ranks: {place['ranks']} {place['ranks_are']}"
        for title, way, compared in COLUMNS:
            if figure["way"] == way:
                value = figure[prefix + "ns"]
            elif figure["way"] == compared:
                value = figure[f"bare_{prefix}ns"]
            else:
                continue
            cells.setdefault(row, {})[title] = max(value, cells.get(row, {}).get(title, 0))
    titles = [title for title, _, _ in COLUMNS]
    return table(
        ["call", *titles], [[row, *(of_row.get(title, "-") for title in titles)] for row, of_row in cells.items()]
    )


def kernels_table(report):
    rows = [
        [
            f"{figure['place']['kernel']}, {figure['place']['bytes']} bytes",
            figure["gb_per_s"],
            figure["copy_gb_per_s"],
            figure["ratio"],
        ]
        for figure in figures(report)
        if "ratio" in figure
    ]
    return table(["kernel", "GB/s", "copy, GB/s", "share"], rows)


def skipped(report):
    """What was skipped and why, each reason once."""
    lines = []
    for step in report["steps"]:
        reasons = step["skipped"] + [as_text(figure) for figure in step["figures"] if "skipped" in figure]
        if step["status"] == "no time":
            reasons = reasons + ["the time limit of the whole run was reached before it"]
        lines += [
            f"{step['name']}: {reason}" + (f" ({reasons.count(reason)} times)" if reasons.count(reason) > 1 else "")
            for reason in dict.fromkeys(reasons)
        ]
    return lines


def text(report):
    """The whole report for people."""
    machine = report["cuda"]
    lines = [
        f"{report['date']}, commit {report['commit']}{', modified' if report['modified'] else ''}",
        f"{machine['gpus']} x {machine['name']}, driver {report['driver']}, CUDA {machine['version']}, "
        f"NCCL {report['nccl'].get('version')}, NVRTC {report['nvrtc'].get('version')}",
        f"ranks: {report['ranks']}{', which share the GPU' if report['ranks_share_a_gpu'] else ''}",
    ]
    if report["with_test_libraries"] or report["quick"]:
        lines.append("The figures mean nothing: this is a trial.")
    parts = [
        ("Steps", steps_table(report)),
        ("The host's nanoseconds for a call", calls_table(report, "")),
        ("Nanoseconds of a call until the GPU has finished it", calls_table(report, "done_")),
        ("Kernels, beside a copy on the device", kernels_table(report)),
        (
            "Hashes of results in exact mode",
            [as_text(figure) for figure in figures(report) if figure["benchmark"] == "exact"],
        ),
        ("Leaks", [as_text(figure) for figure in figures(report) if figure["benchmark"] == "leaks"]),
        (
            "Missed and wrong",
            [as_text(figure) for figure in figures(report) if figure.get("ok") is False or "error" in figure],
        ),
        ("Skipped", skipped(report)),
        ("Not measured", report["not_measured"]),
    ]
    for title, content in parts:
        lines += ["", title, "", *(content or ["nothing"])]
    return "\n".join(lines) + "\n"


def write(folder, report):
    """Writes both files, each in one step, so that none is ever half a report."""
    for name, content in (("report.json", json.dumps(report, indent=1) + "\n"), ("report.txt", text(report))):
        part = pathlib.Path(folder) / f".{name}"
        part.write_text(content)
        part.rename(pathlib.Path(folder) / name)
