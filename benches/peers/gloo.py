"""Times one collective of PyTorch's gloo backend as `distcollective bench --points` does.

usage: gloo.py RANKS OPERATION dirty|clean BYTES...

Prints a line for each size: gloo,ranks,operation,bytes,median,min,max,batches,iterations. Bytes are
those of what a rank has to itself, times are microseconds a call on the slowest rank.
"""

import os
import socket
import sys
import time

BATCHES, TRIALS, WARMUP, ROOT = 9, 3, 5, 0
BATCH_SECONDS = 0.01


def run(rank, ranks, name, dirty, sizes):
    cpus = sorted(os.sched_getaffinity(0))
    if ranks <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank * len(cpus) // ranks]})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    operation, has_barrier = name.removesuffix("_bar"), name.endswith("_bar")

    def tensors(count):
        return [torch.zeros(count) for _ in range(ranks)]

    def call(count):
        """What is called, and the tensors that it reads."""
        block = max(1, count // ranks)
        own, whole = torch.zeros(count), torch.zeros(block * ranks)
        parts = list(whole.split(block))
        several = tensors(count) if rank == ROOT else None
        gathered = tensors(count) if operation == "all_gather" else None
        calls = {
            "all_reduce": (lambda: dist.all_reduce(own), [own]),
            "all_gather": (lambda: dist.all_gather(gathered, own), [own]),
            "broadcast": (lambda: dist.broadcast(own, ROOT), [own]),
            "reduce": (lambda: dist.reduce(own, ROOT), [own]),
            "reduce_scatter": (lambda: dist.reduce_scatter(torch.empty(block), parts), [whole]),
            "all_to_all": (lambda: dist.all_to_all_single(torch.empty(block * ranks), whole), [whole]),
            "gather": (lambda: dist.gather(own, several, ROOT), [own]),
            "scatter": (lambda: dist.scatter(own, several, ROOT), several or []),
        }
        return calls[operation]

    def slowest(times):
        times = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        return sorted(times.tolist())

    def measure(size):
        once, sources = call(max(1, size // 4))

        def repeat(calls):
            for _ in range(calls):
                once()
                if has_barrier:
                    dist.barrier()

        def batch(calls):
            seconds = 0.0
            for _ in range(calls if dirty else 1):
                if dirty and (rank == ROOT or operation not in ("broadcast", "scatter")):
                    for source in sources:
                        source.fill_(1.0)
                dist.barrier()
                start = time.perf_counter()
                repeat(1 if dirty else calls)
                seconds += time.perf_counter() - start
            return seconds

        repeat(WARMUP)
        calls = 1
        while True:
            share = BATCH_SECONDS / slowest([batch(calls) for _ in range(TRIALS)])[0]
            if share <= 2:
                calls = max(1, round(calls * share))
                break
            calls *= 2
        times = [1e6 * seconds / calls for seconds in slowest([batch(calls) for _ in range(BATCHES)])]
        if rank == ROOT:
            figures = ",".join(f"{microseconds:.3f}" for microseconds in (times[BATCHES // 2], times[0], times[-1]))
            print(f"gloo,{ranks},{name},{size},{figures},{BATCHES},{calls}", flush=True)

    for size in sizes:
        try:
            measure(size)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            # Some operations of gloo exist in newer versions alone.
            if rank == ROOT:
                print(f"gloo has no {operation} here: {str(error).splitlines()[0]}", file=sys.stderr)
            break
    dist.barrier()
    dist.destroy_process_group()


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    import torch.multiprocessing as mp

    ranks, name, state = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    mp.spawn(run, args=(ranks, name, state == "dirty", [int(size) for size in sys.argv[4:]]), nprocs=ranks)


if __name__ == "__main__":
    main()
