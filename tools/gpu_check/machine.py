"""The machine: its GPUs and the libraries for them."""

import json
import os
import pathlib
import shutil
import site
import subprocess
import sys

from . import slim

# Runs in its own process, with the same LD_LIBRARY_PATH as the checked programs.
PROBE = r"""
import ctypes, json

def load(*names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = str(error)
    raise OSError(reason)

def number(function, *arguments):
    value = ctypes.c_int(-1)
    status = function(ctypes.byref(value), *arguments)
    if status != 0:
        raise OSError(f"{function.__name__} gives {status}")
    return value.value

def cuda():
    library = load("libcuda.so.1")
    status = library.cuInit(0)
    if status != 0:
        raise OSError(f"cuInit gives {status}")
    version, count = number(library.cuDriverGetVersion), number(library.cuDeviceGetCount)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGetName(name, 256, 0)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), 0)
    capability = [number(library.cuDeviceGetAttribute, attribute, 0) for attribute in (75, 76)]
    return {"version": f"{version // 1000}.{version % 1000 // 10}", "gpus": count, "name": name.value.decode(),
            "capability": ".".join(map(str, capability)), "memory_bytes": memory.value,
            "multiprocessors": number(library.cuDeviceGetAttribute, 16, 0)}

def nccl():
    code = number(load("libnccl.so.2", "libnccl.so").ncclGetVersion)
    return {"version": f"{code // 10000}.{code // 100 % 100}.{code % 100}"}

def nvrtc():
    library = load("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")
    minor = ctypes.c_int()
    return {"version": f"{number(library.nvrtcVersion, ctypes.byref(minor))}.{minor.value}"}

found = {}
for name, look in [("cuda", cuda), ("nccl", nccl), ("nvrtc", nvrtc)]:
    try:
        found[name] = look()
        maps = [line.split()[-1] for line in open("/proc/self/maps") if f"/lib{name}.so" in line]
        found[name]["path"] = maps[0] if maps else None
    except (OSError, AttributeError) as error:
        found[name] = {"missing": str(error)}
print(json.dumps(found))
"""


def probe(environment):
    command = [sys.executable, "-c", PROBE]
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return json.loads(result.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        sys.exit(f"error: the libraries cannot be probed: {error}")


def candidates(name):
    """Folders where Python's packages or the driver's installer may have put a library."""
    if name == "cuda":
        return ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    folders = sys.path + site.getsitepackages() + [site.getusersitepackages()]
    for python in ("python3", "python"):
        if shutil.which(python):
            listed = subprocess.run(
                [python, "-c", r"import sys; print('\n'.join(sys.path))"], capture_output=True, text=True
            )
            folders += listed.stdout.splitlines()
    found = [
        path.parent for folder in folders if folder for path in pathlib.Path(folder).glob(f"nvidia/*/lib/lib{name}.so*")
    ]
    return list(dict.fromkeys(map(str, found)))


def find_libraries(folder, arguments, about):
    """The environment variables for the steps, and the libraries that are found with them."""
    environment = dict(os.environ)
    path = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]

    def look(folders):
        environment["LD_LIBRARY_PATH"] = ":".join(folders)
        return probe(environment)

    carried = folder / "libnccl.so.2.xz"
    nccl = arguments.nccl
    if arguments.fakes:
        environment.setdefault("FAKE_CUDA_DEVICES", "1")
        path.insert(0, about["test_libraries"])
    elif nccl is None and carried.exists():
        nccl = carried
    if nccl and pathlib.Path(nccl).is_dir():
        path.insert(0, os.path.abspath(nccl))
    elif nccl:
        path.insert(0, str(slim.unpack(nccl, folder / "nccl")))
    found = look(path)
    for name in ("cuda", "nccl", "nvrtc"):
        # The folders of the options come first, those that are searched here come last.
        for candidate in candidates(name) if "missing" in found[name] else []:
            tried = look(path + [candidate])
            if "missing" not in tried[name]:
                path.append(candidate)
                found = tried
                break
    look(path)
    return environment, found


def driver_version():
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
