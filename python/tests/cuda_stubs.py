"""Makes libraries in place of NVIDIA's, so that PyPI's torch can be imported without them, for use on the CPU.

Each has the functions that torch's libraries want of it, all of which answer with CUDA's error 100: there is no GPU.

Example: python cuda_stubs.py .../site-packages/torch FOLDER

With the folders of the stand-ins (tests/fake_gpu) and of CUDA's headers there is a subfolder ``gpu`` too. With that one
first in LD_LIBRARY_PATH, torch has eight GPUs, which have memory, streams and events, and none of its kernels and graphs.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

MAKERS = re.compile(r"lib(cu|nccl|nv)")


def readelf(option, path):
    return subprocess.run(["readelf", option, "-W", path], stdout=subprocess.PIPE, text=True, check=True).stdout


def wanted(torch):
    """The libraries that are missing, each with its versions, each with the names of functions."""
    own = {path.name: path for pattern in ("lib/*.so*", "_C*.so") for path in torch.glob(pattern)}
    libraries, undefined, defined = {}, set(), set()
    for path in own.values():
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", path)):
            if MAKERS.match(name) and name not in own:
                libraries[name] = collections.defaultdict(set)
        for section, symbol in re.findall(r" (\S+) (\w+(?:@\S+)?)(?: \(\d+\))?$", readelf("--dyn-syms", path), re.M):
            (undefined if section == "UND" else defined).add(symbol)
    for name, _, version in (symbol.partition("@") for symbol in undefined - defined):
        for library, versions in libraries.items():
            # A version bears the name of its library, but for NVSHMEM's.
            if version in (library, library.startswith("libnvshmem") and "NVSHMEM"):
                versions[version].add(name)
            elif not version and library.startswith("libcublas.") and re.match("_*(cu|nccl|nv)", name):
                versions[""].add(name)
    return libraries


def make(library, versions, folder):
    lines, script = ["static char memory[4096];", "void *dcl_unused(void) { return memory; }"], []
    for version, names in versions.items():
        for name in sorted(names):
            # What registers kernels gives an address, to which the caller writes.
            value = "memory" if name.endswith("RegisterFatBinary") else "(void *)100"
            lines.append(f"__attribute__((weak)) void *{name}(void) {{ return {value}; }}")
        if version:
            script.append(f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};")
    (folder / f"{library}.c").write_text("\n".join(lines))
    (folder / f"{library}.map").write_text("\n".join(script))
    command = ["cc", "-w", "-fno-builtin", "-shared", "-fPIC", "-o", folder / library, folder / f"{library}.c"]
    command += [f"-Wl,-soname,{library}"] + [f"-Wl,--version-script={folder / library}.map"] * bool(script)
    subprocess.run(command, check=True)


def make_runtime(folder, stand_ins, headers):
    """CUDA's runtime on the stand-in for the driver. It is beside links to the stand-ins."""
    gpu, fake_gpu = folder / "gpu", Path(__file__).parents[2] / "tests" / "fake_gpu"
    gpu.mkdir(exist_ok=True)
    for name in ("libcuda.so.1", "libnccl.so.2"):
        (gpu / name).unlink(missing_ok=True)
        (gpu / name).symlink_to(stand_ins / name)
    (stubs,) = folder.glob("libcudart.so.*.c")
    name, rest = stubs.stem, stubs.with_suffix(".o")
    subprocess.run(["cc", "-w", "-fno-builtin", "-fPIC", "-c", "-o", rest, stubs], check=True)
    command = ["g++", "-std=c++17", "-w", "-shared", "-fPIC", "-o", gpu / name, rest, fake_gpu / "cudart.cc"]
    command += [f"-I{headers}", f"-Wl,-soname,{name}", f"-Wl,--version-script={stubs.with_suffix('.map')}"]
    subprocess.run([*command, f"-L{stand_ins}", "-l:libcuda.so.1", "-ldl"], check=True)


if __name__ == "__main__":
    torch, folder, *of_gpus = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for library, versions in wanted(torch).items():
        make(library, versions, folder)
    if of_gpus:
        make_runtime(folder, *of_gpus)
