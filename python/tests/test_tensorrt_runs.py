"""distcollective.tensorrt at run time: memory, plugins, and a process with other things in it."""

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from datetime import timedelta

import ml_dtypes
import numpy as np
import pytest
from ranks import DEADLINE, Ranks, peer, run

import distcollective
import distcollective.distributed as dist
import distcollective.tensorrt as trt

ROWS = {"x": [(1, 4), (2, 4), (8, 4)]}


def new_engine(add, dtype=trt.float32, shape=(2, 4), profile=None):
    """The engine of a network with the input x and the output y, which `add` gives."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    y = add(network, network.add_input("x", dtype, shape))
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    if profile is not None:
        shapes = builder.create_optimization_profile()
        for name, points in profile.items():
            shapes.set_shape(name, *points)
        config.add_optimization_profile(shapes)
    return builder.build_engine_with_config(network, config)


def all_reduce(network, x, ranks=2):
    layer = network.add_dist_collective(x, trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, [])
    layer.num_ranks = ranks
    return layer.get_output(0)


def local_context(dtype=trt.float32, **arguments):
    return new_engine(lambda network, x: network.add_cast(x, trt.float32).get_output(0), dtype, **arguments)


def test_ranks_run_on_numpy_torch_and_addresses():
    torch = peer("torch")

    def body():
        context = new_engine(all_reduce, shape=(-1, 4), profile=ROWS).create_execution_context()
        with pytest.raises(distcollective.Error, match="communicator"):
            context.run({"x": np.ones((2, 4), np.float32)})
        assert context.set_communicator(dist.group.WORLD) is True
        mine, both = dist.get_rank() + 1.0, 3.0
        results = []
        x, y = np.full((2, 4), mine, np.float32), np.zeros((2, 4), np.float32)
        assert context.set_input_shape("x", x.shape)
        assert context.set_tensor_address("x", x) is True and context.set_tensor_address("y", y) is True
        assert context.get_tensor_address("y") == y.ctypes.data
        assert context.execute_async_v3(0) is True
        results.append(y)
        z = torch.zeros(2, 4)
        assert context.execute_v2([torch.full((2, 4), mine), z]) is True
        results.append(z.numpy())
        w = np.zeros((2, 4), np.float32)
        assert context.set_tensor_address("x", np.int64(x.ctypes.data)) and context.set_tensor_address(
            "y", w.ctypes.data
        )
        context.execute_async_v3(stream_handle=0)
        results.append(w)
        results.append(context.run({"x": x})["y"])
        # Longer memory than the shape needs is used in part.
        long = np.full((8, 4), -1, np.float32)
        context.set_tensor_address("y", long)
        context.execute_async_v3(0)
        assert (long[2:] == -1).all()
        results.append(long[:2])
        # In place, and on tensors that do not lie one after the other.
        context.run({"x": x}, {"y": x})
        results.append(x)
        columns = np.zeros((4, 2), np.float32).T
        context.run({"x": np.full((4, 2), mine, np.float32).T}, {"y": columns})
        results.append(columns)
        assert all((result == both).all() for result in results), results
        return len(results)

    assert run(2, body) == [7, 7]


def test_what_one_rank_refuses_is_left_out_on_every_rank():
    def body():
        context = new_engine(all_reduce, shape=(-1, 4), profile=ROWS).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        refusals = [
            lambda: context.run({"x": np.ones((9, 4), np.float32)}),
            lambda: context.run({"x": np.ones((2, 4))}),
            lambda: context.run({"x": None}),
            lambda: context.run({"z": np.ones((2, 4), np.float32)}),
            lambda: context.execute_v2([np.ones((2, 4), np.float32)]),
            lambda: context.execute_v2([np.ones((2, 4), np.float32), np.zeros((1, 4), np.float32)]),
            lambda: context.execute_v2([np.ones((2, 4), np.float32), np.zeros((2, 4))]),
        ]
        for number, refusal in enumerate(refusals):
            context.set_input_shape("x", (2, 4))
            if dist.get_rank() == 1:
                with pytest.raises((distcollective.Error, TypeError, ValueError)) as caught:
                    refusal()
                assert getattr(caught.value, "kind", "") != "RunRefused"
            else:
                with pytest.raises(distcollective.Error, match="rank 1 refused run ") as caught:
                    context.run({"x": np.ones((2, 4), np.float32)})
                assert caught.value.kind == "RunRefused"
            x = np.full((2, 4), number, np.float32)
            assert (context.run({"x": x})["y"] == 2 * number).all()
        # Requests that fail before the run.
        for number in range(20):
            fails = number % 3 == 1
            try:
                with dist.group.WORLD.request(number):
                    if fails and dist.get_rank() == number % 2:
                        raise KeyError("no image")
                    y = context.run({"x": np.full((2, 4), number, np.float32)})["y"]
            except KeyError:
                assert fails and dist.get_rank() == number % 2
            except distcollective.Error as error:
                assert fails and error.kind == "RunRefused" and "no image" in str(error)
            else:
                assert not fails and (y == 2 * number).all()
        dist.barrier()

    run(2, body)


def test_groups_and_partitions_run():
    def body():
        rank = dist.get_rank()
        pair = dist.new_group([1, 3]) if rank in (1, 3) else dist.new_group([1, 3])
        engine = new_engine(all_reduce, trt.int32)
        x = np.full((2, 4), 10**rank, np.int32)
        results = []
        if rank in (1, 3):
            context = engine.create_execution_context()
            context.set_communicator(pair)
            results.append(context.run({"x": x})["y"][0, 0])
        gather = trt.CollectiveOperation.ALL_GATHER

        def add(network, x):
            return network.add_dist_collective(x, gather, groups=[[2, 0], [1, 3]]).get_output(0)

        context = new_engine(add, trt.int32).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        results.append(context.run({"x": x})["y"][:, 0].tolist())

        # Rank 1 skips a layer of the others, and its output stays zero.
        def some(network, x):
            operation, reduction = trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.MAX
            return network.add_dist_collective(x, operation, reduction, -1, [0, 2, 3]).get_output(0)

        context = new_engine(some, trt.int32).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        results.append(context.run({"x": x})["y"][1, 1])
        return [np.asarray(result).tolist() for result in results]

    even, odd = [100, 100, 1, 1], [10, 10, 1000, 1000]
    assert run(4, body) == [[even, 1000], [1010, odd, 0], [even, 1000], [1010, odd, 1000]]


@pytest.mark.parametrize("operation", list(trt.CollectiveOperation))
def test_each_operation_computes_what_it_means(operation):
    reduces = operation.name in ("ALL_REDUCE", "REDUCE", "REDUCE_SCATTER")
    has_root = operation.name in ("BROADCAST", "REDUCE", "GATHER", "SCATTER")

    def body():
        def add(network, x):
            reduce_op = trt.ReduceOperation.SUM if reduces else trt.ReduceOperation.NONE
            layer = network.add_dist_collective(x, operation, reduce_op, 1 if has_root else -1, [])
            layer.num_ranks = 2
            return layer.get_output(0)

        context = new_engine(add, trt.int64, (4,)).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        return context.run({"x": np.arange(4) + 10 * dist.get_rank()})["y"].tolist()

    a, b = [0, 1, 2, 3], [10, 11, 12, 13]
    total = [10, 12, 14, 16]
    assert (
        run(2, body)
        == {
            "ALL_REDUCE": [total, total],
            "ALL_GATHER": [a + b, a + b],
            "BROADCAST": [b, b],
            "REDUCE": [[0] * 4, total],
            "REDUCE_SCATTER": [total[:2], total[2:]],
            "ALL_TO_ALL": [[0, 1, 10, 11], [2, 3, 12, 13]],
            "GATHER": [[0] * 8, a + b],
            "SCATTER": [b[:2], b[2:]],
        }[operation.name]
    )


def test_ranks_with_other_plans_get_an_error():
    def body():
        def add(network, x):
            return all_reduce(network, x) if dist.get_rank() == 0 else all_gather(network, x)

        def all_gather(network, x):
            layer = network.add_dist_collective(x, trt.CollectiveOperation.ALL_GATHER)
            layer.num_ranks = 2
            return layer.get_output(0)

        context = new_engine(add).create_execution_context()
        with pytest.raises(distcollective.Error) as raised:
            context.set_communicator(dist.group.WORLD)
        too_many = new_engine(lambda network, x: all_reduce(network, x, 3)).create_execution_context()
        with pytest.raises(distcollective.Error, match="3"):
            too_many.set_communicator(dist.group.WORLD)
        return raised.value.kind, "all_reduce" in str(raised.value) and "all_gather" in str(raised.value)

    assert run(2, body) == [("Disagreement", True)] * 2


def test_a_network_that_was_made_for_another_rank_is_refused():
    def body():
        def of_rank(rank):
            def describe(network, x):
                network.for_rank(rank, 2)
                return all_reduce(network, x)

            return new_engine(describe).create_execution_context()

        with pytest.raises(distcollective.Error, match="rank 1.* made for rank 0 of 2, and this is rank 1 of 2"):
            of_rank(0).set_communicator(dist.group.WORLD)
        return of_rank(dist.get_rank()).set_communicator(dist.group.WORLD)

    assert run(2, body) == [True, True]


def test_what_is_no_communicator_is_refused():
    context = new_engine(all_reduce).create_execution_context()
    for wrong in [None, 7, np.zeros(1), dist.GroupMember.NON_GROUP_MEMBER]:
        with pytest.raises(TypeError, match="give a group of distcollective.distributed, such as dist.group.WORLD"):
            context.set_communicator(wrong)


def refused():
    """Memory that an input x (read) or an output y (written) of float32 [2, 4] cannot be."""
    fine = np.zeros((2, 4), np.float32)
    read_only = fine.copy()
    read_only.flags.writeable = False
    misaligned = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32).reshape(2, 4)
    strided = np.zeros((2, 8), np.float32)[:, ::2]
    yield "x", strided, ValueError, "x: its elements do not lie one after the other"
    yield "y", strided, ValueError, "y: its elements do not lie one after the other"
    yield "y", read_only, ValueError, "y: it is read-only"
    yield "x", fine.astype(np.int32), TypeError, "x: it is of int32, and the engine has float32 there"
    yield "x", fine.astype(np.float64), TypeError, "x: float64 is no type of a network"
    yield "x", fine.astype(">f4"), TypeError, "x: its elements are big-endian"
    yield "x", misaligned, ValueError, "x: its memory is not aligned"
    yield "y", np.float32(0), TypeError, "y: it is a scalar of numpy"
    yield "x", [0.0] * 8, TypeError, "x: it is a .*list, not a tensor"
    yield "w", fine, ValueError, '"w" is not an input or output'


@pytest.mark.parametrize("name, memory, kind, text", list(refused()))
def test_memory_that_does_not_fit_is_refused_with_the_reason(name, memory, kind, text):
    context = local_context().create_execution_context()
    with pytest.raises(kind, match=text):
        context.set_tensor_address(name, memory)
    assert name == "w" or context.get_tensor_address(name) == 0


def test_too_little_memory_is_refused_when_the_context_runs():
    context = local_context().create_execution_context()
    short, fine = np.zeros((1, 4), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(distcollective.Error, match='"x"'):
        context.execute_async_v3(0)
    context.set_tensor_address("x", fine)
    context.set_tensor_address("y", short)
    with pytest.raises(ValueError, match=r'tensor "y": it has 4 elements, and the shape \[2, 4\] has 8'):
        context.execute_async_v3(0)
    with pytest.raises(ValueError, match="bindings has 1 elements, and the engine's tensors are"):
        context.execute_v2([fine])
    with pytest.raises(ValueError, match=r"x has the shape \[1, 4\], and the engine has \[2, 4\] there"):
        context.run({"x": short})
    with pytest.raises(ValueError, match=r"y has the shape \[1, 4\]"):
        context.run({"x": fine}, {"y": short})
    with pytest.raises(TypeError, match="x: it is a list, not a tensor"):
        context.run({"x": [1.0]})
    with pytest.raises(ValueError, match="'x' is an input; give it in inputs"):
        context.run({"x": fine}, {"x": fine})
    with pytest.raises(distcollective.Error, match='"x"'):
        context.run({})
    # None of these has changed the context.
    context.set_tensor_address("y", fine.copy())
    assert context.execute_async_v3(0)


def test_a_context_keeps_tensors_alive_until_others_are_set():
    context = local_context().create_execution_context()
    x, y = np.full((2, 4), 5, np.float32), np.zeros((2, 4), np.float32)
    dead = [weakref.ref(x), weakref.ref(y)]
    context.set_tensor_address("x", x)
    context.set_tensor_address("y", y)
    del x, y
    gc.collect()
    # Other arrays would get the memory if it were free.
    others = [np.full((2, 4), 9, np.float32) for _ in range(100)]
    assert all(reference() is not None for reference in dead)
    context.execute_async_v3(0)
    assert (dead[1]() == 5).all() and len(others) == 100
    context.set_tensor_address("x", np.zeros((2, 4), np.float32))
    context.set_tensor_address("y", 0)
    assert [reference() for reference in dead] == [None, None]
    kept = np.zeros((2, 4), np.float32)
    last = weakref.ref(kept)
    context.run({"x": kept})
    context.set_tensor_address("x", kept)
    del kept
    assert last() is not None
    del context
    assert last() is None


def test_everything_may_be_dropped_in_any_order():
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (3,))
    layer = network.add_cast(x, trt.int32)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    del network, builder
    assert (x.name, layer.name, layer.get_output(0).dtype) == ("x", "cast_0", trt.int32)
    runtime = trt.Runtime(trt.Logger())
    engine = runtime.deserialize_cuda_engine(plan)
    del runtime, plan
    context = engine.create_execution_context()
    del engine
    gc.collect()
    assert context.run({"x": np.array([1.5, 2.5, -1], np.float32)})["y"].tolist() == [1, 2, -1]
    assert context.engine.get_tensor_name(0) == "x"


class Scale(trt.Plugin):
    type_name = "scale"

    def __init__(self, factor):
        self.factor = factor
        self.seen = []

    def enqueue(self, inputs, outputs):
        self.seen.append((inputs[0], outputs[0]))
        outputs[0][...] = inputs[0] * inputs[0].dtype.type(self.factor)

    def serialize(self):
        return str(self.factor).encode()

    @classmethod
    def deserialize(cls, data):
        return cls(float(data))


@pytest.mark.parametrize("dtype", [trt.float32, trt.float16, trt.bfloat16, trt.int32, trt.fp8])
def test_plugins_compute_on_arrays_of_numpy(dtype):
    plugin = Scale(2)
    engine = new_engine(lambda network, x: network.add_plugin([x], plugin, "double").get_output(0), dtype)
    context = engine.create_execution_context()
    x = np.arange(8).reshape(2, 4).astype(trt.nptype(dtype))
    for _ in range(2):
        y = context.run({"x": x})["y"]
        assert y.dtype == x.dtype and (y.astype(np.float32) == 2 * x.astype(np.float32)).all()
    # A plugin may keep its arrays: the library's memory goes on to others.
    (given, computed), _ = plugin.seen
    given[...] = computed[...] = 1
    assert (context.run({"x": x})["y"] == y).all()
    (layer,) = engine.inspect()["layers"]
    assert (layer["name"], layer["kind"]) == ("double", "scale")


def test_a_plugin_may_replace_an_output_by_an_array_like_it():
    def results(value, dtype=trt.float32):
        def enqueue(inputs, outputs):
            outputs[:] = value(inputs[0], outputs[0])

        def add(network, x):
            return network.add_plugin([x], Wrong(enqueue=enqueue), "mine").get_output(0)

        x = np.arange(8).reshape(2, 4).astype(trt.nptype(dtype))
        return new_engine(add, dtype).create_execution_context().run({"x": x})["y"].tolist()

    twice = (2 * np.arange(8).reshape(2, 4)).tolist()
    for dtype in (trt.float32, trt.bfloat16, trt.int32):
        assert results(lambda x, y: [x + x], dtype) == twice
    assert results(lambda x, y: [(x + x).T.copy().T]) == twice
    assert results(lambda x, y: [x[:, ::-1]]) == np.arange(8).reshape(2, 4)[:, ::-1].tolist()
    for value, text in [
        (lambda x, y: [x.astype(np.float64)], r"float64 of shape \(2, 4\) into outputs\[0\]; the output is float32"),
        (lambda x, y: [x[:1]], r"float32 of shape \(1, 4\) into outputs\[0\]; the output is .* shape \(2, 4\)"),
        (lambda x, y: [None], r"object of shape \(\) into outputs\[0\]"),
        (lambda x, y: [y, y], "enqueue left 2 outputs in its list; there are 1"),
        (lambda x, y: [], "enqueue left 0 outputs"),
    ]:
        with pytest.raises(distcollective.Error, match=text):
            results(value)


def test_a_plugin_may_exchange_its_outputs():
    def enqueue(inputs, outputs):
        outputs[0][...], outputs[1][...] = inputs[0], inputs[0] + 1
        outputs.reverse()

    methods = {"output_types": lambda inputs: inputs * 2, "output_shapes": lambda inputs: inputs * 2}

    def add(network, x):
        layer = network.add_plugin([x], Wrong(enqueue=enqueue, **methods))
        return network.add_concatenation([layer.get_output(0), layer.get_output(1)]).get_output(0)

    x = np.zeros((2, 4), np.float32)
    y = new_engine(add).create_execution_context().run({"x": x})["y"]
    assert y[:, 0].tolist() == [1, 1, 0, 0]


def test_plugins_run_between_collectives():
    def body():
        def add(network, x):
            half = network.add_plugin([all_reduce(network, x)], Scale(0.5)).get_output(0)
            return all_reduce(network, half)

        context = new_engine(add).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        return context.run({"x": np.full((2, 4), dist.get_rank() + 1, np.float32)})["y"][0, 0]

    assert run(2, body) == [3.0, 3.0]


def test_plugins_are_in_plans():
    engine = new_engine(lambda network, x: network.add_plugin([x], Scale(3.0)).get_output(0))
    plan = engine.serialize()
    runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
    with pytest.raises(distcollective.Error, match='plugin "scale" version "1" is not registered'):
        runtime.deserialize_cuda_engine(plan)
    runtime.register_plugin(Scale)
    with pytest.raises(ValueError, match="plugin 'scale' version '1' is registered already"):
        runtime.register_plugin(Scale)
    with pytest.raises(ValueError, match="is not a class that inherits from distcollective.tensorrt.Plugin"):
        runtime.register_plugin(Scale(1))
    read = runtime.deserialize_cuda_engine(plan)
    assert read.serialize() == plan
    assert (read.create_execution_context().run({"x": np.ones((2, 4), np.float32)})["y"] == 3).all()


class Wrong(trt.Plugin):
    def __init__(self, **methods):
        self.__dict__.update(methods)

    def enqueue(self, inputs, outputs):
        outputs[0][...] = 0


def raises(error):
    def method(*_):
        raise error

    return method


def test_mistakes_of_plugins_are_errors_with_their_causes():
    def add(**methods):
        return lambda network, x: network.add_plugin([x], Wrong(**methods), "mine").get_output(0)

    cause = RuntimeError("out of luck")
    x = {"x": np.ones((2, 4), np.float32)}
    for name in ["output_types", "output_shapes", "enqueue", "serialize"]:
        with pytest.raises(distcollective.Error, match="the plugin raised RuntimeError: out of luck") as raised:
            engine = new_engine(add(**{name: raises(cause)}))
            engine.create_execution_context().run(x) if name == "enqueue" else engine.serialize()
        if name in ("enqueue", "serialize"):
            assert raised.value.__cause__ is cause
        assert name == "serialize" or 'layer "mine" (python_plugin)' in str(raised.value)
    for methods, text in [
        ({"output_types": lambda inputs: []}, "a plugin has at least one output"),
        ({"output_types": lambda inputs: [trt.float32] * 2}, "the plugin gave 1 shape for 2 outputs"),
        ({"output_types": lambda inputs: [77]}, "77 is not a valid DataType"),
        ({"output_shapes": lambda inputs: [(-1, 4)]}, "OverflowError|negative"),
    ]:
        with pytest.raises(distcollective.Error, match=text):
            new_engine(add(**methods))
    with pytest.raises(NotImplementedError, match="Plugin has no method enqueue"):
        trt.Plugin().enqueue([], [])
    with pytest.raises(distcollective.Error, match=r"Wrong has no method serialize\(\); a plan needs it"):
        new_engine(add()).serialize()
    with pytest.raises(TypeError, match="plugin is a function; inherit from distcollective.tensorrt.Plugin"):
        new_engine(lambda network, x: network.add_plugin([x], raises(cause)).get_output(0))


def test_a_plugin_that_fails_ends_the_communicator_for_all():
    def body():
        failing = Wrong(enqueue=raises(RuntimeError("out of luck"))) if dist.get_rank() == 1 else Scale(1)
        add = lambda network, x: all_reduce(network, network.add_plugin([x], failing, "mine").get_output(0))  # noqa: E731
        context = new_engine(add).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        with pytest.raises(distcollective.Error) as raised:
            context.run({"x": np.ones((2, 4), np.float32)})
        return "out of luck" in str(raised.value)

    assert run(2, body) == [True, True]


def test_ctrl_c_ends_a_run_that_waits():
    def body(connection, variables, rank, size, *_):
        os.environ.update(variables)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        context = new_engine(all_reduce).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        connection.send("ready")
        if rank == 0:
            with pytest.raises(KeyboardInterrupt):
                context.run({"x": np.ones((2, 4), np.float32)})
            connection.send("interrupted")
        connection.recv()

    with Ranks(2, None, target=body) as ranks:
        assert [ranks.receive(rank) for rank in range(2)] == ["ready"] * 2
        time.sleep(0.3)
        ranks.signal(0)
        assert ranks.receive(0) == "interrupted"


def test_ctrl_c_in_a_plugin_is_a_keyboard_interrupt():
    engine = new_engine(
        lambda network, x: network.add_plugin([x], Wrong(enqueue=raises(KeyboardInterrupt()))).get_output(0)
    )
    context = engine.create_execution_context()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            context.run({"x": np.ones((2, 4), np.float32)})
    # Nothing is left of it.
    local_context().create_execution_context().run({"x": np.ones((2, 4), np.float32)})


def test_other_threads_run_while_a_context_waits():
    def body():
        context = new_engine(all_reduce).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        results, ready = [], threading.Event()
        if dist.get_rank() == 0:
            x = np.ones((2, 4), np.float32)
            thread = threading.Thread(target=lambda: (ready.set(), results.append(context.run({"x": x})["y"])))
            thread.start()
            ready.wait()
            busy = None
            # The thread waits for rank 1, which waits for this message.
            deadline = time.monotonic() + DEADLINE
            while busy is None and time.monotonic() < deadline:
                try:
                    context.get_tensor_address("x")
                except distcollective.Error as error:
                    busy = str(error)
            dist.send(np.zeros(1), 1)
            thread.join()
            return busy, results[0][0, 0]
        dist.recv(np.zeros(1), 0)
        return context.run({"x": np.ones((2, 4), np.float32)})["y"][0, 0]

    (busy, result), other = run(2, body)
    assert "another thread uses this execution context" in busy and result == other == 2


def test_threads_run_contexts_of_one_engine():
    plugin = Scale(2)
    engine = new_engine(lambda network, x: network.add_plugin([x], plugin).get_output(0))
    failures = []

    def work(number):
        context = engine.create_execution_context()
        x = np.full((2, 4), number, np.float32)
        failures.extend(number for _ in range(20) if not (context.run({"x": x})["y"] == 2 * number).all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join(DEADLINE) for thread in threads]
    assert not any(thread.is_alive() for thread in threads) and failures == []
    assert len(plugin.seen) == 160


def test_ranks_may_be_threads():
    def body():
        context = new_engine(all_reduce).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        results = [context.run({"x": np.full((2, 4), dist.get_rank() + 1, np.float32)})["y"] for _ in range(10)]
        return {float(result[0, 0]) for result in results}

    assert dist.run_threads(2, body, timeout=timedelta(seconds=DEADLINE)) == [{3.0}] * 2


def test_a_forked_child_is_no_rank():
    def body():
        context = new_engine(all_reduce).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        child = os.fork()
        if child == 0:
            try:
                context.run({"x": np.ones((2, 4), np.float32)})
            except distcollective.Error as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        return os.WEXITSTATUS(status), context.run({"x": np.ones((2, 4), np.float32)})["y"][0, 0]

    assert run(2, body) == [(0, 2), (0, 2)]


def test_a_tensor_that_has_got_other_memory_is_refused():
    torch = peer("torch")
    engine = new_engine(lambda network, x: network.add_cast(x, trt.float32).get_output(0))
    context = engine.create_execution_context()
    x, y = torch.ones(2, 4), torch.zeros(2, 4)
    context.set_input_shape("x", (2, 4))
    for name, tensor in [("x", x), ("y", y)]:
        context.set_tensor_address(name, tensor)
    context.execute_async_v3(0)
    assert torch.equal(x, y)
    x.resize_(1 << 20)
    with pytest.raises(
        ValueError, match="^x: it has got other memory since its address was set; set its address again"
    ):
        context.execute_async_v3(0)
    context.set_tensor_address("x", x)
    context.execute_async_v3(0)


def test_a_capsule_is_taken_whatever_its_name():
    """Without a GPU, a capsule gets as far as NCCL, if it is there, whose error is an exception."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    memory = ctypes.create_string_buffer(1 << 16)
    context = new_engine(all_reduce).create_execution_context()
    for name in [b"ncclComm_t", b"nccl_communicator", None]:
        with pytest.raises(distcollective.Error) as raised:
            context.set_communicator(new(ctypes.addressof(memory), name, None))
        error = raised.value
        assert error.kind == "Unsupported" or "ncclCommCuDevice: NCCL says" in str(error), error


def test_float8_and_bfloat16_move_between_ranks():
    def body():
        def add(network, x):
            wide = network.add_cast(all_reduce(network, x), trt.float32)
            return network.add_cast(wide.get_output(0), trt.fp8).get_output(0)

        context = new_engine(add, trt.bfloat16).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        y = context.run({"x": np.full((2, 4), 1.5, ml_dtypes.bfloat16)})["y"]
        return y.dtype.name, float(y[0, 0])

    assert run(2, body) == [("float8_e4m3fn", 3.0)] * 2


def test_shapes_and_types_travel_between_processes():
    """What a program sends to a worker: enumerations and shapes can be pickled."""
    values = [trt.float16, trt.CollectiveOperation.SCATTER, trt.Dims((2, 3)), trt.Permutation([1, 0]), trt.Logger.INFO]
    assert pickle.loads(pickle.dumps(values)) == values


def test_a_run_gives_back_what_it_holds():
    engine = new_engine(lambda network, x: network.add_plugin([x], Scale(1)).get_output(0))
    context, x = engine.create_execution_context(), np.ones((2, 4), np.float32)
    context.run({"x": x})
    before = sys.getrefcount(x)
    for _ in range(100):
        context.run({"x": x})
    assert sys.getrefcount(x) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_profiler_is_told_of_each_layer():
    class Both(trt.IProfiler):
        def __init__(self):
            self.layers = []

        def report_layer(self, time):
            self.layers.append(time)
            super().report_layer(time)

        def report_layer_time(self, layer_name, ms):
            assert (layer_name, ms) == (self.layers[-1].layer, self.layers[-1].ms)

    class Failing(trt.IProfiler):
        def report_layer_time(self, layer_name, ms):
            raise LookupError(layer_name)

    def body():
        context = new_engine(all_reduce).create_execution_context()
        context.set_communicator(dist.group.WORLD)
        assert context.profiler is None
        context.profiler = profiler = Both()
        assert context.profiler is profiler
        x = np.ones((2, 4), np.float32)
        before = time.monotonic()
        context.run({"x": x})
        context.execute_v2([x, np.zeros((2, 4), np.float32)])
        for told in profiler.layers:
            assert (told.layer, told.input_bytes, told.output_bytes) == ("all_reduce_0", 32, 32)
            assert before <= told.begin <= time.monotonic() and 0 <= told.wait_ms <= told.ms
        context.profiler = Failing()
        # The run has succeeded, and both ranks go on.
        with pytest.raises(LookupError, match="all_reduce_0"):
            context.run({"x": x})
        with pytest.raises(LookupError, match="all_reduce_0"):
            context.execute_async_v3(0)
        with pytest.raises(NotImplementedError, match="report_layer_time"):
            context.profiler = trt.IProfiler()
            context.run({"x": x})
        with pytest.raises(TypeError, match="inherits IProfiler"):
            context.profiler = print
        context.profiler = None
        assert context.run({"x": x})["y"].tolist() == [[2.0] * 4] * 2
        return len(profiler.layers)

    assert run(2, body) == [2, 2]


def test_the_profiler_of_tensorrt_prints(capsys):
    context = local_context().create_execution_context()
    context.profiler = trt.Profiler()
    context.run({"x": np.ones((2, 4), np.float32)})
    name, ms = capsys.readouterr().out.split(": ")
    assert name == "cast_0" and ms.endswith("ms\n") and float(ms[:-3]) >= 0
    # A profiler that keeps its context goes with it.
    context.profiler.context = context
    gone = weakref.ref(context)
    del context
    gc.collect()
    assert gone() is None
