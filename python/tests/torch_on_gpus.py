"""Programs of test_torch_gpus.py: groups of distcollective.torch on tensors of torch's on GPUs.

The GPUs are those of the stand-ins for CUDA and NCCL (cuda_stubs.py), which run none of torch's kernels: tensors are made
on the CPU and copied. Ranks are threads.
"""

import ctypes
import gc
import itertools
import sys
import threading
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import distcollective.torch as backend
from distcollective import _torch_cuda

cuda = ctypes.CDLL("libcuda.so.1")
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ASYNC = [False, True]


def check(result):
    assert result == 0, f"CUDA's error {result}"


def current_stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Threads:
    """The ranks of a group, each a thread with a GPU."""

    def __init__(self, size, body, seconds):
        self.store, self.results, self.errors = dist.HashStore(), [None] * size, []
        self.threads = [threading.Thread(target=self.run, args=(rank, size, body, seconds)) for rank in range(size)]

    def run(self, rank, size, body, seconds):
        try:
            torch.cuda.set_device(rank)
            timeout = timedelta(seconds=seconds)
            group = backend._create(dist.PrefixStore("job", self.store), rank, size, timeout)
            try:
                self.results[rank] = body(group)
            finally:
                group.shutdown()
        except BaseException:
            self.errors.append(traceback.format_exc())


def on_ranks(size, body, seconds=8.0):
    ranks = Threads(size, body, seconds)
    for thread in ranks.threads:
        thread.start()
    for thread in ranks.threads:
        thread.join()
    assert not ranks.errors, "\n".join(ranks.errors)
    return ranks.results


def values(rank, *shape, dtype=torch.float32):
    return (torch.arange(torch.Size(shape).numel()) % 7 + rank).reshape(shape).to(dtype)


def each_call(group, place, async_op):
    """The results of each call on tensors that ``place`` puts somewhere."""
    rank, n, results = group.rank(), group.size(), []

    def tensor(*shape, dtype=torch.float32):
        return place(values(rank, *shape, dtype=dtype))

    def done(work, *outputs):
        assert (work is None) == (not async_op), work
        assert work is None or work.wait()
        results.extend(output.cpu() for output in outputs)

    group_of = {"group": group, "async_op": async_op}
    for op, dtype in itertools.product(["SUM", "MAX", "MIN", "PRODUCT"], [torch.float32, torch.int64, torch.bfloat16]):
        x = tensor(5, 3, dtype=dtype)
        done(dist.all_reduce(x, getattr(dist.ReduceOp, op), **group_of), x)
    x = tensor(4)
    done(dist.reduce(x, op=dist.ReduceOp.SUM, group_dst=1, **group_of), *[x] * (rank == 1))
    for dtype in [torch.int16, torch.bool, torch.complex64]:
        x = tensor(4, dtype=dtype)
        done(dist.broadcast(x, group_src=2, **group_of), x)
    outputs = [tensor(2, 3) for _ in range(n)]
    done(dist.all_gather(outputs, tensor(2, 3), **group_of), *outputs)
    outputs = [place(torch.zeros(other + 1)) for other in range(n)]
    done(dist.all_gather(outputs, tensor(rank + 1), **group_of), *outputs)
    output = tensor(2 * n, 3)
    done(dist.all_gather_into_tensor(output, tensor(2, 3), **group_of), output)
    outputs = [tensor(2) for _ in range(n)] if rank == 1 else []
    done(dist.gather(tensor(2), outputs or None, group_dst=1, **group_of), *outputs)
    output, inputs = tensor(2), [place(values(other, 2)) for other in range(n)] if rank == 1 else None
    done(dist.scatter(output, inputs, group_src=1, **group_of), output)
    output = tensor(2)
    done(dist.reduce_scatter_tensor(output, tensor(2 * n), **group_of), output)
    output = tensor(2 * n)
    done(dist.all_to_all_single(output, tensor(2 * n), **group_of), output)
    output, splits = tensor(n * (rank + 1)), [other + 1 for other in range(n)]
    sizes = {"output_split_sizes": [rank + 1] * n, "input_split_sizes": splits}
    done(dist.all_to_all_single(output, tensor(sum(splits)), **sizes, **group_of), output)
    outputs, inputs = [tensor(2) for _ in range(n)], [place(values(other, 2)) for other in range(n)]
    done(dist.all_to_all(outputs, inputs, **group_of), *outputs)
    # The input is one of the outputs.
    outputs = [tensor(3) for _ in range(n)]
    done(dist.all_gather(outputs, outputs[rank], **group_of), *outputs)
    with dist._coalescing_manager(group, async_ops=async_op) as coalesced:
        both = [tensor(3), tensor(4)]
        for x in both:
            dist.all_reduce(x, group=group)
    if async_op:
        coalesced.wait()
    results.extend(x.cpu() for x in both)
    done(dist.barrier(**group_of))
    return results


def are_as_on_the_host():
    def body(group):
        for async_op in ASYNC:
            on_host = each_call(group, lambda x: x, async_op)
            on_gpu = each_call(group, torch.Tensor.cuda, async_op)
            assert len(on_host) == len(on_gpu) > 20
            for one, other in zip(on_host, on_gpu):
                assert one.dtype == other.dtype and torch.equal(one, other), (one, other)

    on_ranks(3, body)


def messages():
    def body(group):
        rank, n = group.rank(), group.size()
        after, before = (rank + 1) % n, (rank - 1) % n
        for place in [torch.Tensor.cuda, lambda x: x]:
            sent, received, again = place(values(rank, 5)), place(torch.zeros(5)), place(torch.zeros(5))
            group._start_coalescing(sent.device)
            work = group.send([sent], after, 0)
            if place is torch.Tensor.cuda:
                raises(ValueError, "has not begun", work.wait)
            group.recv([received], before, 0)
            assert group._end_coalescing(sent.device).wait()
            assert torch.equal(received.cpu(), values(before, 5))
            if rank == 0:
                assert group.send([sent], 1, 0).wait()
            elif rank == 1:
                work = group.recv([again], 0, 0)
                assert work.wait() and work._source_rank() == 0
                assert torch.equal(again.cpu(), values(0, 5))
        text = "NCCL does not receive from any rank"
        raises(dist.DistBackendError, text, lambda: group.recv_anysource([values(rank, 5).cuda()], 0))

    on_ranks(3, body)


def streams_keep_the_order():
    """A call comes after what the current stream had, and before what it gets after ``wait``. None waits for the GPU."""

    def body(group):
        rank = group.rank()
        functions, own = [], values(rank, 1 << 16)
        made = torch.cuda.Stream()
        for stream, async_op in itertools.product([torch.cuda.default_stream(), made], ASYNC):
            with torch.cuda.stream(stream):
                x, may_fill, filled = torch.zeros(1 << 16).cuda(), threading.Event(), threading.Event()

                def fill(_, x=x, may_fill=may_fill, filled=filled):
                    may_fill.wait(8)
                    # A stand-in's device address is one of the host.
                    ctypes.memmove(x.data_ptr(), own.data_ptr(), 4 << 16)
                    filled.set()

                functions.append(HOST_FUNCTION(fill))
                check(cuda.cuLaunchHostFunc(current_stream(), functions[-1], None))
                work = dist.all_reduce(x, group=group, async_op=async_op)
                if async_op:
                    assert not work.is_completed() and work.wait() and not work.is_completed()
                assert not filled.is_set(), "the call has waited for the GPU"
                after = torch.empty(1 << 16, device="cuda")
                after.copy_(x, non_blocking=True)
                may_fill.set()
                assert torch.equal(after.cpu(), values(0, 1 << 16) + values(1, 1 << 16))
                assert work is None or work.is_completed() and work.is_success()
        group.barrier(device(rank)).wait()

    on_ranks(2, body)


def device(rank):
    options = dist.BarrierOptions()
    options.device = torch.device("cuda", rank)
    return options


def tensors_stay_as_long_as_calls_use_them():
    """What a call uses stays until the current stream is behind the call, or the call has ended."""
    MIB = 1 << 20

    def body(group):
        stream, may_go_on = torch.cuda.current_stream(), threading.Event()
        made = values(group.rank(), MIB // 4)
        blocked = HOST_FUNCTION(lambda _: may_go_on.wait(8))
        group.eager_connect_single_device(stream.device)
        before = torch.cuda.memory_allocated()
        check(cuda.cuLaunchHostFunc(current_stream(), blocked, None))
        for _ in range(6):
            x = torch.empty(MIB // 4, device="cuda")
            dist.all_reduce(x, group=group)
            del x
        assert torch.cuda.memory_allocated() == before
        for _ in range(6):
            x = torch.empty(MIB // 4, device="cuda")
            dist.all_reduce(x, group=group, async_op=True)
            del x
        assert torch.cuda.memory_allocated() >= before + 6 * MIB
        may_go_on.set()
        until = time.monotonic() + 8
        while torch.cuda.memory_allocated() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert torch.cuda.memory_allocated() == before
        x, y = made.cuda(), torch.empty(MIB // 4, device="cuda")
        work = dist.all_reduce(x, group=group, async_op=True)
        work.block_current_stream()
        y.copy_(x, non_blocking=True)
        assert torch.equal(y.cpu(), values(0, MIB // 4) + values(1, MIB // 4))

    on_ranks(2, body)


def futures():
    def body(group):
        x, copy = values(group.rank(), 6).cuda(), torch.empty(6, device="cuda")
        group.eager_connect_single_device(x.device)
        if group.rank() == 1:
            # Rank 0 enqueues its copy meanwhile.
            time.sleep(0.2)
        future = dist.all_reduce(x, group=group, async_op=True).get_future()
        assert future.done()
        # A callback enqueues behind the call.
        copied = future.then(lambda done: copy.copy_(done.value()[0], non_blocking=True))
        assert torch.equal(copied.wait().cpu(), values(0, 6) + values(1, 6))

    on_ranks(2, body)


def a_barrier_waits_for_the_gpu():
    def body(group):
        if group.rank() == 1:
            check(cuda.cuLaunchHostFunc(current_stream(), function, None))
        assert group.barrier(device(group.rank())).wait() and ended.is_set()

    def slow(_):
        time.sleep(0.3)
        ended.set()

    ended, function = threading.Event(), HOST_FUNCTION(slow)
    on_ranks(2, body)


def captures():
    """A call in a graph that the program captures, on the group's own stream."""

    def body(group):
        x = values(group.rank(), 4).cuda()
        dist.all_reduce(torch.ones(4).cuda(), group=group)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        graph, launchable = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.stream(stream):
            # Relaxed: other threads go on.
            check(cuda.cuStreamBeginCapture_v2(current_stream(), 2))
            work = dist.all_reduce(x, group=group, async_op=True)
            assert work.wait()
            dist.all_reduce(x, group=group)
            check(cuda.cuStreamEndCapture(current_stream(), ctypes.byref(graph)))
            check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(launchable), graph, ctypes.c_uint64(0)))
            assert torch.equal(x.cpu(), values(group.rank(), 4))
            for _ in range(2):
                check(cuda.cuGraphLaunch(launchable, current_stream()))
            assert torch.equal(x.cpu(), (values(0, 4) + values(1, 4)) * 8)
        check(cuda.cuGraphExecDestroy(launchable))
        check(cuda.cuGraphDestroy(graph))

    on_ranks(2, body)


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"no {kind.__name__}")


def refuses():
    def body(group):
        rank = group.rank()
        x, other = values(rank, 2, 3).cuda(), torch.ones(3).to(f"cuda:{1 - rank}")
        # The other rank's stream waits for this rank from now on.
        group.barrier()
        dist.all_reduce(x, group=group)
        raises(ValueError, "lie one after the other", lambda: dist.all_reduce(x.t(), group=group))
        raises(ValueError, "GPU", lambda: dist.all_reduce(other, group=group))
        raises(ValueError, "host memory", lambda: dist.all_gather([torch.ones(3)] * 2, x, group=group))
        raises(RuntimeError, "no tensors on meta", lambda: dist.all_reduce(torch.ones(3, device="meta"), group=group))
        # The group still works.
        dist.all_reduce(x, group=group)

    on_ranks(2, body)


def groups_of_some_ranks():
    def body(group):
        part = group.split_group([0, 2], group_name="part")
        assert (part is None) == (group.rank() == 1)
        if part is not None:
            part.eager_connect_single_device(torch.device("cuda", group.rank()))
            x = values(group.rank(), 3).cuda()
            dist.all_reduce(x, group=part)
            assert torch.equal(x.cpu(), values(0, 3) + values(2, 3))
            part.shutdown()
        y = values(group.rank(), 3).cuda()
        dist.all_reduce(y, group=group)
        assert torch.equal(y.cpu(), values(0, 3) + values(1, 3) + values(2, 3))

    on_ranks(3, body)


def ranks_that_differ_are_told():
    def body(group):
        dist.all_reduce(torch.ones(3).cuda(), group=group)
        op = [dist.ReduceOp.SUM, dist.ReduceOp.MAX][group.rank()]
        text = ""
        try:
            work = dist.all_reduce(torch.ones(3).cuda(), op, group=group, async_op=True)
            work.wait(timedelta(seconds=5))
        except dist.DistBackendError as error:
            text = str(error)
        return text

    for text in on_ranks(2, body):
        assert all(part in text for part in ["rank 0", "rank 1", "all_reduce(sum)", "all_reduce(max)"]), text


def a_call_ends_at_its_deadline():
    """The program waits for the GPU only, and is told by its next call."""

    def body(group):
        dist.all_reduce(torch.ones(3).cuda(), group=group)
        if group.rank() == 1:
            was_told.wait(8)
            return
        x = torch.ones(3).cuda()
        work = dist.all_reduce(x, group=group, async_op=True)
        torch.cuda.synchronize()
        for call in [work.wait, lambda: group.allreduce([x])]:
            raises(dist.DistError, "deadline", call)
        assert work.is_completed() and not work.is_success()
        was_told.set()

    was_told = threading.Event()
    on_ranks(2, body, seconds=1.0)


def who_leaves_is_told():
    """And a program that has aborted a group need not be."""

    def body(group):
        dist.all_reduce(torch.ones(3).cuda(), group=group)
        if group.rank() == 0:
            dist.all_reduce(torch.ones(3).cuda(), group=group)
            if is_aborted:
                group.abort()
                # The process does not end.
                time.sleep(1.5)
                group.shutdown()
            else:
                raises(dist.DistError, "deadline", group.shutdown)
            was_told.set()
        was_told.wait(8)
        if group.rank() == 1:
            raises(dist.DistError, "rank 0", lambda: dist.all_reduce(torch.ones(3).cuda(), group=group))

    _torch_cuda._PATIENCE = 0.5
    for is_aborted in [True, False]:
        was_told = threading.Event()
        on_ranks(2, body, seconds=1.0 if not is_aborted else 8.0)


def a_program_that_is_not_told_ends():
    def body(group):
        dist.all_reduce(torch.ones(3).cuda(), group=group)
        if group.rank() == 0:
            dist.all_reduce(torch.ones(3).cuda(), group=group)
        time.sleep(30)

    _torch_cuda._PATIENCE = 0.5
    on_ranks(2, body, seconds=1.0)


def by_torchs_own_functions():
    """A group of one rank, which torch's own functions make."""
    gpu = torch.device("cuda", 0)
    options = {"rank": 0, "world_size": 1, "timeout": timedelta(seconds=8), "device_id": gpu}
    dist.init_process_group("distcollective", store=dist.HashStore(), **options)
    x = values(1, 4).cuda()
    for group in [None, dist.new_group([0])]:
        dist.all_reduce(x, group=group)
        assert dist.all_reduce(x, group=group, async_op=True).get_future().wait()
        dist.barrier(group, device_ids=[0])
        dist.barrier(group)
        dist.all_reduce(torch.ones(3), group=group)
        objects = [None]
        dist.all_gather_object(objects, "an object", group)
        assert objects == ["an object"]
    assert dist.group.WORLD._get_backend(gpu).name() == "distcollective"
    assert torch.equal(x.cpu(), values(1, 4))
    dist.destroy_process_group()
    raises(ValueError, "destroyed", lambda: group.allreduce([x]))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    gc.collect()
    print("passed")
