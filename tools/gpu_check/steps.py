"""The steps of a run, in the order in which they run: what a first run should learn comes first."""

import dataclasses

from . import stacks

# For ranks that share a GPU. NCCL hangs if the blocks of two ranks do not fit on the GPU together.
# The streams of two ranks that are threads share the work queues of one context. A module that is
# loaded late may wait for a kernel that waits for the other rank.
SHARED_GPU = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "4",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "EAGER",
}


@dataclasses.dataclass
class Step:
    name: str
    commands: list
    seconds: int
    settings: dict = dataclasses.field(default_factory=dict)
    # Whether to print its output even if it passes. The log has the output in any case.
    shows: bool = False
    # Why it does not run.
    skipped: str = None


@dataclasses.dataclass
class Machine:
    """What the steps depend on."""

    gpus: int
    nccl: str

    @property
    def shares_a_gpu(self):
        return self.gpus == 1 and [int(part) for part in self.nccl.split(".")] >= [2, 30]

    @property
    def ranks(self):
        return 2 if self.shares_a_gpu else min(max(self.gpus, 1), 4)


def steps(folder, machine, arguments):
    program = lambda name: str(folder / name)
    one_at_a_time = ["--test-threads", "1"]
    sharing = SHARED_GPU if machine.shares_a_gpu else {}
    n = str(machine.ranks)
    launch = [program("distcollective"), "launch", "-n", n, "--"]

    def suite(*filters):
        return [program("suite"), *filters, *one_at_a_time, "--show-output"]

    def role(name, ranks, *before):
        """A part of the suite that its tests run as a child process, run directly."""
        variables = [f"DCL_TEST_NCCL_ROLE={name}", f"DCL_TEST_NCCL_RANKS={ranks}"]
        return ["env", *variables, *before, program("suite"), "nccl::child", "--exact", "--nocapture", *one_at_a_time]

    def bench(*words, quick=arguments.quick):
        return [program("benches"), "gpu", *words, *(["--quick"] if quick else [])]

    debugger = {"DCL_TEST_DEBUGGER": stacks.debugger()} if stacks.debugger() else {}

    def on_gpus(ranks, **more):
        return {"DCL_TEST_GPU": str(ranks), "DCL_TEST_PATIENCE": "3", **debugger, **more}

    def swept(ranks, *more):
        options = ["--op", "all", "--max-bytes", "64K", "--factor", "16", "--iters", "3", "--backend", "nccl"]
        return [program("distcollective"), "bench", *options, "-n", str(ranks), *more]

    def demo(ranks):
        return [program("sample_dist_collective"), "--backend", "nccl", "--ranks", str(ranks)]

    yield Step("doctor", [[program("distcollective"), "doctor"]], 30, shows=True)
    if machine.ranks > 1:
        more = ["eager", "contexts graphs", "contexts capture", "contexts groups"]
        on_ranks = on_gpus(n, **sharing)
        yield Step(f"suite, {n} ranks", [suite("nccl::two_ranks", "nccl::contexts", "nccl::sharing")], 150, on_ranks)
        yield Step(f"exact mode, {n} ranks", [suite("nccl::two_exact_ranks", "nccl::exact")], 65, on_ranks)
        yield Step(f"results of exact mode, {n} ranks", [bench("exact", "--ranks", n)], 30, on_ranks)
        yield Step(f"eager calls and graphs, {n} ranks", [role(name, n) for name in more], 60, on_ranks)
        yield Step(f"calls, {n} ranks as threads", [bench("calls", "--ranks", n, "--seconds", "40")], 75, sharing)
        # Processes take turns on a GPU that they share, so that a call takes milliseconds.
        quick = arguments.quick or machine.shares_a_gpu
        commands = [[*launch, *bench("calls", "--launched", "--seconds", "40", quick=quick)]]
        yield Step(f"calls, {n} ranks as processes", commands, 75, sharing)
        yield Step(f"command line, {n} ranks as threads", [demo(n), swept(n)], 40, sharing, shows=True)
        commands = [[*launch, program("distcollective"), "env", "--backend", "nccl"], swept(n, "--processes")]
        yield Step(f"command line, {n} ranks as processes", commands, 40, sharing, shows=True)
        if arguments.failures:
            yield Step(f"suite, {n} ranks as processes", [suite("nccl::processes")], 120, on_ranks)
            yield Step(f"failures, {n} ranks", [suite("nccl::ends", "nccl::differing", "nccl::stuck")], 120, on_ranks)
    else:
        reason = f"there is one GPU, and NCCL {machine.nccl} has one rank a GPU; from 2.30 on ranks can share one"
        yield Step("everything on 2 ranks", [], 0, skipped=reason)
    windows = [f"conformance symmetric backend {quarter}" for quarter in range(4)]
    yield Step("suite, 1 rank", [suite("nccl::")], 150, on_gpus(1))
    yield Step("enqueued in windows, 1 rank", [role(name, 1) for name in windows], 60, on_gpus(1))
    yield Step("command line, 1 rank", [demo(1), swept(1)], 40, shows=True)
    yield Step("calls, 1 rank", [bench("calls", "--seconds", "15")], 40)
    yield Step("kernels", [bench("kernels")], 90)
    yield Step("leaks", [bench("leaks", "--seconds", "40")], 60)
    if arguments.sanitize:
        # NCCL tries calls that the driver refuses, so API errors are not reported.
        options = ["--target-processes", "all", "--error-exitcode", "9", "--report-api-errors", "no"]
        patient = on_gpus(1) | {"DCL_TEST_PATIENCE": "60"}
        tool = lambda name: [arguments.sanitizer, "--tool", name, *options]
        roles = ["eager", "contexts graphs", "contexts capture", "contexts groups", "contexts networks 1"]
        roles += [f"conformance {place} backend {quarter}" for place in ("own", "symmetric") for quarter in range(4)]
        for name in roles:
            yield Step(f"memcheck: {name}", [role(name, 1, *tool("memcheck"))], 300, patient)
        for name in ("memcheck", "racecheck"):
            yield Step(f"{name}: kernels", [tool(name) + bench("kernels", quick=True)], 300)
