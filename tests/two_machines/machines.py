"""Network namespaces of this machine that stand for several machines: each has a host name, a boot
id and a network of its own, and a virtual cable joins two of them."""

import os
import pathlib
import subprocess
import tempfile
import time

NETWORK = "10.78.9"
#: The network device of each machine.
CABLE = "cable"

# Runs a command on a machine. UCX, MPI and this library tell machines apart by what is set here.
ON_MACHINE = """#!/bin/bash
machine=$1; shift
exec ip netns exec "$machine" unshare --uts --mount bash -c '
  hostname "$0"; mount --bind "{folder}/boot.$0" /proc/sys/kernel/random/boot_id; exec "$@"' "$machine" "$@"
"""

# What mpirun calls in place of ssh: options, an address, a command.
SHELL = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
machine={tag}${{1##*.}}; shift
exec {folder}/on-machine "$machine" sh -c "$*"
"""


class Unavailable(Exception):
    """The system does not let this process make network namespaces."""


def address(machine):
    return f"{NETWORK}.{machine}"


class TwoMachines:
    """Machines 1 and 2, as long as the context lasts."""

    def __enter__(self):
        self._tag = f"dcl{os.getpid()}-"
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        self.shell = folder / "shell"
        for file, text in {"on-machine": ON_MACHINE, "shell": SHELL}.items():
            (folder / file).write_text(text.format(folder=folder, tag=self._tag))
            (folder / file).chmod(0o755)
        try:
            self._make(folder)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError | subprocess.CalledProcessError):
                raise Unavailable(getattr(error, "stderr", None) or str(error)) from None
            raise
        return self

    def __exit__(self, *_):
        for name in self._names():
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                subprocess.run(["kill", "-9", pid], check=False, stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
        self._folder.cleanup()

    def _names(self):
        return [f"{self._tag}{machine}" for machine in (1, 2)]

    def _ip(self, *words):
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

    def _make(self, folder):
        first, second = self._names()
        for name in (first, second):
            self._ip("netns", "add", name)
            (folder / f"boot.{name}").write_text(pathlib.Path("/proc/sys/kernel/random/uuid").read_text())
        self._ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE, "netns", second)
        for machine, name in enumerate((first, second), 1):
            self._ip("-n", name, "addr", "add", f"{address(machine)}/24", "dev", CABLE)
            for device in ("lo", CABLE):
                self._ip("-n", name, "link", "set", device, "up")
        end = time.monotonic() + 10
        for name in (first, second):
            while "LOWER_UP" not in self._ip("-n", name, "-o", "link", "show", CABLE):
                if time.monotonic() > end:
                    raise OSError("the cable did not come up in 10 s")
                time.sleep(0.02)
        subprocess.run(self.on(1, "true"), check=True, capture_output=True, text=True)

    def on(self, machine, *command):
        """The command that runs a command on a machine."""
        return [self.shell.with_name("on-machine"), f"{self._tag}{machine}", *command]

    def cut(self):
        """Cuts the cable: nothing arrives any more, and no connection ends."""
        self._ip("-n", self._names()[0], "link", "set", CABLE, "down")

    def sent(self):
        """How many bytes machine 1 has sent."""
        path = f"/sys/class/net/{CABLE}/statistics/tx_bytes"
        return int(subprocess.run(self.on(1, "cat", path), check=True, capture_output=True, text=True).stdout)
