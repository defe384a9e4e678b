"""Runs PyTorch's own tests of torch.distributed on CPU tensors, by gloo and by this package's backend.

The tests are those of torch.testing._internal.distributed.distributed_test, as the installed torch has them. Each rank
of a test is a process. Prints which tests pass on gloo and not on "distcollective", with the first error, and counts.
Fails if there are others than those that are explained here. Needs expecttest beside torch.

usage: python distributed.py [WORLD_SIZE ...] [--only PATTERN]
"""

import argparse
import functools
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta

#: The longest that a test may take, in seconds.
LIMIT = 60
#: These choose a model by the backend's name, and have none for another backend than gloo, MPI and NCCL.
EXPLAINED = {
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
}


def load(backend, world_size, folder):
    """The tests, as a class, for ranks of this backend."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(world_size), TEMP_DIR=folder, OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", INIT_METHOD=f"file://{folder}/shared", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.testing._internal.common_distributed as common

    import distcollective.torch  # noqa: F401

    torch.set_num_threads(1)
    for backends in common.DistTestCases.backend_feature.values():
        if "gloo" in backends:
            backends.add("distcollective")
    # The bodies need ranks 1 and 2. Some versions ask for 8 ranks here.
    common.skip_if_small_worldsize = functools.partial(_needs_ranks, common, world_size)
    import torch.testing._internal.distributed.distributed_test as upstream

    upstream.PROFILING_SUPPORTED_BACKENDS.append("distcollective")
    upstream.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("distcollective")

    class Tests(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        pass

    return upstream, common, Tests


def _needs_ranks(common, world_size, function):
    @functools.wraps(function)
    def wrapper(*arguments, **named):
        if world_size < 3:
            sys.exit(common.TEST_SKIPS["small_worldsize"].exit_code)
        return function(*arguments, **named)

    return wrapper


def be_rank(loaded, backend, world_size, rank, name, port, folder):
    """Runs a test on a rank, and exits: with 0, with a number of a skipped test, or with 1."""
    import torch.distributed as dist

    upstream, common, Tests = loaded
    log = os.open(f"{folder}/log{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        test = Tests(name)
        test.rank, test.file_name = rank, f"{folder}/file"
        timeout = timedelta(seconds=getattr(upstream, "CUSTOM_PG_TIMEOUT", {}).get(name, LIMIT))
        method = f"tcp://127.0.0.1:{port}"
        dist.init_process_group(backend, init_method=method, world_size=world_size, rank=rank, timeout=timeout)
        test._barrier()
        getattr(test, name)()
        test._barrier(timeout=LIMIT)
        code = 0
    except unittest.SkipTest:
        code = common.TEST_SKIPS["generic"].exit_code
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def run(loaded, backend, world_size, name):
    """What a test gives: "pass", "skip", or the text of the first rank that failed."""
    _, common, _ = loaded
    skips = {skip.exit_code for skip in common.TEST_SKIPS.values()}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        for part in ("barrier", "test_dir", "init_dir"):
            os.mkdir(f"{folder}/{part}")
        os.environ.update(TEMP_DIR=folder, MASTER_PORT=str(port))
        ranks = {}
        for rank in range(world_size):
            child = os.fork()
            if child == 0:
                try:
                    be_rank(loaded, backend, world_size, rank, name, port, folder)
                finally:
                    os._exit(1)
            ranks[child] = rank
        codes, end = {}, time.monotonic() + LIMIT + 30
        while ranks and time.monotonic() < end:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child:
                codes[ranks.pop(child)] = os.waitstatus_to_exitcode(status)
                if codes[max(codes, key=lambda rank: codes[rank] != 0)] not in {0, *skips}:
                    # The others may still say what they saw.
                    end = min(end, time.monotonic() + 5)
            else:
                time.sleep(0.002)
        for child in ranks:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        failed = [rank for rank, code in sorted(codes.items()) if code not in {0, *skips}]
        if failed:
            with open(f"{folder}/log{failed[0]}", errors="replace") as log:
                errors = [line.strip() for line in log if re.match(r"[\w.]*(Error|Exception)\b", line)]
            return f"rank {failed[0]}: {errors[-1] if errors else codes[failed[0]]}"[:300]
        if ranks:
            return f"no end: ranks {sorted(ranks.values())}"
        return "skip" if set(codes.values()) & skips else "pass"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("world_sizes", nargs="*", type=int, default=[2, 3, 4], metavar="WORLD_SIZE")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression of the tests' names")
    arguments = parser.parse_args()
    is_explained = True
    for world_size in arguments.world_sizes:
        found = {}
        for backend in ("gloo", "distcollective"):
            # The module reads the backend when it is imported.
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                with tempfile.TemporaryDirectory() as folder, os.fdopen(writer, "w") as out:
                    loaded = load(backend, world_size, folder)
                    for name in sorted(name for name in dir(loaded[2]) if name.startswith("test_")):
                        if re.search(arguments.only, name) and not re.search("cuda|nccl", name, re.IGNORECASE):
                            out.write(f"{name}\t{run(loaded, backend, world_size, name)}\n")
                os._exit(0)
            os.close(writer)
            with os.fdopen(reader) as lines:
                found[backend] = dict(line.rstrip("\n").split("\t", 1) for line in lines)
            os.waitpid(child, 0)
        passed = {backend: {name for name, text in of.items() if text == "pass"} for backend, of in found.items()}
        both = passed["gloo"] & passed["distcollective"]
        counts = f"{len(passed['gloo'])} pass on gloo, {len(both)} of them on distcollective"
        print(f"{world_size} ranks: {counts}, which passes {len(passed['distcollective'])}")
        for name in sorted(passed["gloo"] - both):
            print(f"  {name}: {found['distcollective'][name]}")
        sys.stdout.flush()
        is_explained &= passed["gloo"] - both <= EXPLAINED and (bool(arguments.only) or len(both) > 50)
    sys.exit(not is_explained)


if __name__ == "__main__":
    main()
