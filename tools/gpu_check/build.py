"""Builds all programs into a folder that can be carried to a machine with a GPU."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from . import slim

PROGRAMS = ["suite", "benches", "distcollective", "sample_dist_collective"]
MOST_BYTES = 64 << 20
HERE = pathlib.Path(__file__).resolve().parent


def tree_of(root):
    """Git's name of the sources as they are, with files that are changed or new."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        git(root, "add", "--all", environment=index)
        return git(root, "write-tree", environment=index)


def git(root, *words, environment={}):
    """What a git command prints."""
    command = ["git", *words]
    result = subprocess.run(
        command, cwd=root, env=os.environ | environment, stdout=subprocess.PIPE, check=True, text=True
    )
    return result.stdout.strip()


def build(arguments):
    root = HERE.parent.parent
    target = pathlib.Path(arguments.dir).absolute()
    target.mkdir(parents=True, exist_ok=True)
    found, test_libraries = {}, None
    cargo = [os.environ.get("CARGO", "cargo")]
    options = ["--profile", arguments.profile, "--locked", "--message-format=json-render-diagnostics"]
    # The default members, so that Cargo builds the library once.
    for command in (["build", "--bins"], ["test", "--no-run", "--test", "suite"]):
        output = subprocess.run(
            cargo + command + options, cwd=root, stdout=subprocess.PIPE, check=True, text=True
        ).stdout
        for message in map(json.loads, output.splitlines()):
            if message.get("executable"):
                found[message["target"]["name"]] = message["executable"]
            if message.get("reason") == "build-script-executed" and "fake_gpu" in message["package_id"]:
                test_libraries = os.path.join(message["out_dir"], "current")
    for name in PROGRAMS:
        shutil.copy(found[name], target / name)
        # The names of functions stay, for stacks.
        subprocess.run(["strip", "--strip-debug", target / name], check=True)
    shutil.copy(HERE.parent / "gpu-check", target / "gpu-check")
    shutil.copytree(
        HERE, target / "gpu_check", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "tests")
    )
    if arguments.nccl:
        try:
            kept, zeroed = slim.make(arguments.nccl, target / "libnccl.so.2.xz", arguments.arch)
        except (OSError, KeyError, ValueError) as error:
            what = f"a libnccl.so.2 with device code for sm_{arguments.arch}, nor a wheel with one"
            sys.exit(f"error: {arguments.nccl} is not {what}: {error}")
        print(f"libnccl: {kept >> 20} MiB of device code kept, {zeroed >> 20} MiB for other architectures zeroed")
    about = {
        "commit": git(root, "rev-parse", "HEAD"),
        "modified": git(root, "status", "--porcelain") != "",
        "tree": tree_of(root),
        "test_libraries": test_libraries,
    }
    (target / "build.json").write_text(json.dumps(about, indent=2) + "\n")
    size = sum(path.stat().st_size for path in target.iterdir() if path.is_file())
    print(f"{target}: commit {about['commit']}{', modified' if about['modified'] else ''}, {size / (1 << 20):.1f} MiB")
    if size > MOST_BYTES:
        sys.exit(f"error: that is more than {MOST_BYTES >> 20} MiB")
