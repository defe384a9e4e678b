"""Where the threads of a program are: for programs that did not end in time."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

# For all processes of a program together.
SECONDS = 40
CUDA_GDB = "/usr/local/cuda/bin/cuda-gdb"


def processes(leader):
    """A program that leads a session, and all that it started: in its session, or as its children
    and theirs."""
    parents = {}
    found = set()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may have anything in it.
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z":
            parents[int(folder.name)] = int(parent)
            if int(session) == leader:
                found.add(int(folder.name))
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def debugger():
    """The path of a debugger, or None. Only cuda-gdb sees kernels."""
    return shutil.which("cuda-gdb") or shutil.which(CUDA_GDB) or shutil.which("gdb")


def of_kernel(process):
    """What /proc tells of each thread: its name, state, and where in the kernel it waits."""

    def read(path):
        try:
            return path.read_text().strip()
        except OSError as error:
            return f"({error.strerror})"

    lines = []
    for thread in sorted(pathlib.Path(f"/proc/{process}/task").glob("*"), key=lambda path: int(path.name)):
        state = [
            line.partition(":")[2].strip() for line in read(thread / "status").splitlines() if line.startswith("State:")
        ]
        lines.append(f"thread {thread.name} {read(thread / 'comm')}: {''.join(state)}; wchan {read(thread / 'wchan')}")
        lines += [f"    {line}" for line in read(thread / "stack").splitlines()]
    return "\n".join(lines)


def of_debugger(program, process, seconds):
    """The stacks of all threads as a debugger prints them."""
    command = [program, "-p", str(process), "-batch", "-nx", "-ex", "set pagination off"]
    if "cuda-gdb" in program:
        command += ["-ex", "info cuda kernels"]
    command += ["-ex", "thread apply all backtrace"]
    environment = os.environ | {"DEBUGINFOD_URLS": ""}
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            text=True,
            errors="replace",
        )
        return result.stdout
    except subprocess.TimeoutExpired as error:
        return f"{(error.stdout or b'').decode(errors='replace')}\n({program} did not end in {seconds:.0f} s)"


def write(leader, log):
    """Writes the stacks of a program and of all that it started to a log."""
    found = processes(leader)
    program = debugger()
    for process in found:
        try:
            command = (
                pathlib.Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        log.write(f"\n--- stacks of process {process}: {command}\n{of_kernel(process)}\n")
        log.flush()
    for process in found if program else []:
        log.write(f"\n--- {program} on process {process}\n{of_debugger(program, process, SECONDS / len(found))}\n")
        log.flush()
    if program is None:
        log.write("\n(there is no debugger)\n")


def is_running(process):
    try:
        return "State:\tZ" not in pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def end(leader):
    """Kills a program and all that it started, and waits until they are gone: the driver may still
    have to free a GPU's memory, which the next program needs."""
    found = processes(leader)
    for process in found:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    limit = time.monotonic() + 10
    while any(map(is_running, found)) and time.monotonic() < limit:
        time.sleep(0.01)
