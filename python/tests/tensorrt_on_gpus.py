"""Programs of test_tensorrt_gpus.py: ranks are threads, each with a GPU of the stand-in libraries."""

import ctypes
import sys
import time

import numpy as np
from on_gpus import GpuArray, check, cuda, new_stream, on_ranks

import distcollective
import distcollective.distributed as dist
import distcollective.tensorrt as trt

SIZE = 2


def new_context(add=None):
    """A context for y = the sum of x over the ranks, of float32 [2, 3]."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2, 3))
    layer = network.add_dist_collective(x, trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, [])
    layer.num_ranks = SIZE
    y = layer.get_output(0) if add is None else add(network, layer.get_output(0))
    y.name = "y"
    network.mark_output(y)
    return builder.build_engine_with_config(network, builder.create_builder_config()).create_execution_context()


def inputs():
    return np.full((2, 3), dist.get_rank() + 1, np.float32)


def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"there is no error with {text!r}")


def run_on(context):
    """Every way to run, on a context that has its communicator."""
    stream = new_stream()
    x, y = GpuArray(inputs()), GpuArray(np.zeros((2, 3), np.float32))
    assert context.set_tensor_address("x", x) and context.set_tensor_address("y", y)
    assert context.execute_async_v3(stream)
    check(cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))
    assert (y.view == 3).all()
    z = GpuArray(np.zeros((2, 3), np.float32))
    assert context.set_tensor_address("x", x.memory.value) and context.set_tensor_address("y", z.memory.value)
    context.execute_async_v3(stream)
    check(cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))
    assert (z.view == 3).all()
    w = GpuArray(np.zeros((2, 3), np.float32))
    assert context.execute_v2([x, w]) and (w.view == 3).all()
    # Arrays of the host are copied to the GPU and back.
    assert (context.run({"x": inputs()})["y"] == 3).all()
    return stream


def with_a_group():
    def body():
        context = new_context()
        on_host = np.zeros((2, 3), np.float32)
        context.set_communicator(dist.group.WORLD)
        raises(ValueError, "host", lambda: context.set_tensor_address("y", on_host))
        run_on(context)
        # What was set before belongs to another memory. NCCL has no way to leave out a run, so the
        # first rank that finds it ends the group.
        context = new_context()
        context.set_tensor_address("x", on_host)
        context.set_communicator(dist.group.WORLD)
        text = 'tensor "x": it is in host memory, and the context runs in the memory of GPU'
        raises(RuntimeError, text, lambda: (dist.barrier(), context.execute_async_v3(0)))

    on_ranks(body, SIZE)


def with_a_capsule():
    nccl = ctypes.CDLL("libnccl.so.2")

    class Id(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    id = Id()
    check(nccl.ncclGetUniqueId(ctypes.byref(id)))
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def body():
        communicator = ctypes.c_void_p()
        check(nccl.ncclCommInitRank(ctypes.byref(communicator), SIZE, id, dist.get_rank()))
        for name in [b"ncclComm_t", b"another name", None]:
            context = new_context()
            assert context.set_communicator(new_capsule(communicator, name, None)) is True
            run_on(context)
            del context
        check(nccl.ncclCommDestroy(communicator))

    on_ranks(body, SIZE)


def runs_after_the_streams_of_its_tensors():
    """The input is made on one stream, and the output was used on another; both are slow."""
    function_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def body():
        context = new_context()
        context.set_communicator(dist.group.WORLD)
        streams = [new_stream(), new_stream()]
        x, y = (GpuArray(np.zeros((2, 3), np.float32), stream) for stream in streams)

        def write_late(array, value):
            def late(_):
                time.sleep(0.2)
                array.view[...] = value

            return function_type(late)

        make, use = write_late(x, 7), write_late(y, -1)
        for late, stream in [([make], streams[:1]), ([use], streams[1:]), ([make, use], streams)]:
            x.view[...], y.view[...] = 0 if make in late else 7, 0
            for function, on in zip(late, stream):
                check(cuda.cuLaunchHostFunc(ctypes.c_void_p(on), function, None))
            assert context.execute_v2([x, y])
            assert (y.view == 14).all(), y.view

    on_ranks(body, SIZE)


def plugins_are_refused():
    class Copy(trt.Plugin):
        def enqueue(self, inputs, outputs):
            outputs[0][...] = inputs[0]

    def body():
        context = new_context(lambda network, y: network.add_plugin([y], Copy(), "mine").get_output(0))
        raises(distcollective.Error, "mine", lambda: context.set_communicator(dist.group.WORLD))

    on_ranks(body, SIZE)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("passed")
