"""distcollective.tensorrt: what a program describes, builds and asks an engine."""

import ctypes
import io
import re

import ml_dtypes
import numpy as np
import pytest

import distcollective
import distcollective.tensorrt as trt

ALL_REDUCE, SUM = trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM


class Lines(trt.ILogger):
    """A log that keeps its lines."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def log(self, severity, msg):
        self.lines.append((severity, msg))


def new_network(logger=None):
    builder = trt.Builder(logger or trt.Logger())
    return builder, builder.create_network()


def build(builder, network, profiles=()):
    config = builder.create_builder_config()
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, points in shapes.items():
            profile.set_shape(name, *points)
        config.add_optimization_profile(profile)
    return builder.build_engine_with_config(network, config)


def output(network, tensor, name):
    tensor.name = name
    network.mark_output(tensor)


def run_locally(add, **inputs):
    """What a network of one output computes."""
    builder, network = new_network()
    dtypes = {np.dtype(trt.nptype(dtype)): dtype for dtype in trt.DataType}
    tensors = [network.add_input(name, dtypes[x.dtype], x.shape) for name, x in inputs.items()]
    output(network, add(network, *tensors).get_output(0), "y")
    return build(builder, network).create_execution_context().run(inputs)["y"]


def test_a_network_tells_what_it_consists_of():
    builder, network = new_network()
    network.name = "model"
    x = network.add_input("x", trt.float16, (4, 6))
    layer = network.add_dist_collective(x, trt.CollectiveOperation.SCATTER, trt.ReduceOperation.NONE, 1, [1, 0])
    assert isinstance(layer, trt.IDistCollectiveLayer) and layer.type is trt.LayerType.DIST_COLLECTIVE
    assert (layer.collective_operation, layer.reduce_op) == (
        trt.CollectiveOperation.SCATTER,
        trt.ReduceOperation.NONE,
    )
    assert (layer.root, layer.groups, layer.num_ranks) == (1, [[1, 0]], 2)
    layer.name, layer.metadata = "part", "of the model"
    assert (layer.name, layer.metadata) == ("part", "of the model")
    assert (layer.num_inputs, layer.num_outputs) == (1, 1)
    assert layer.get_input(0) == x and layer.get_input(1) is None
    y = layer.get_output(0)
    assert y != x and len({y, x, layer.get_output(0)}) == 2
    with pytest.raises(IndexError, match="layer 'part' has no output 1; it has 1"):
        layer.get_output(1)
    cast = network.add_cast(y, trt.int8)
    z = cast.get_output(0)
    assert (z.dtype, z.shape, z.dtype.itemsize) == (trt.DataType.INT8, (2, 6), 1)
    cast.to_type = trt.DataType.INT64
    assert (cast.to_type, z.dtype) == (trt.int64, trt.int64)
    network.mark_output(z)
    assert z.is_network_output and not z.is_network_input and x.is_network_input
    assert (network.num_inputs, network.num_outputs, network.num_layers, len(network)) == (1, 1, 2, 2)
    assert network.get_input(0) == x and network.get_output(0) == z and network.get_layer(1) == cast
    assert [type(found) for found in network] == [trt.IDistCollectiveLayer, trt.ICastLayer]
    assert network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert (network.name, network.builder) == ("model", builder)
    for index in (2, -3):
        with pytest.raises(IndexError):
            network.get_layer(index)
    cast.set_input(0, x)
    assert z.shape == (4, 6)


def test_shapes_are_known_while_a_network_is_described():
    _, network = new_network()
    x = network.add_input("x", trt.float32, (-1, 8))
    gather = network.add_dist_collective(x, trt.CollectiveOperation.ALL_GATHER)
    assert x.shape == (-1, 8) and gather.num_ranks == 1
    heads = network.add_shuffle(gather.get_output(0))
    heads.reshape_dims = (-1, 2, 4)
    heads.second_transpose = trt.Permutation([1, 0, 2])
    assert heads.get_output(0).shape == (2, -1, 4)
    assert (heads.first_transpose, heads.reshape_dims, heads.second_transpose) == ((0, 1), (-1, 2, 4), (1, 0, 2))
    turned = network.add_shuffle(network.add_constant((2, 3), np.zeros((2, 3), np.float32)).get_output(0))
    turned.first_transpose = (1, 0)
    assert (turned.reshape_dims, turned.second_transpose) == ((3, 2), (0, 1))
    shape = turned.get_output(0).shape
    assert (shape, trt.volume(shape), list(shape), len(shape)) == ((3, 2), 6, [3, 2], 2)
    wrong = network.add_shuffle(turned.get_output(0))
    wrong.reshape_dims = (5,)
    with pytest.raises(ValueError, match=r"\(shuffle\): reshape \[5\] gives 5 elements"):
        wrong.get_output(0).shape
    with pytest.raises(ValueError, match=r"\[0, 2\] is not a permutation"):
        wrong.first_transpose = trt.Permutation([0, 2])
    assert wrong.first_transpose == (0, 1), "the layer is as it was"


def test_the_numbers_are_those_of_tensorrt():
    assert [int(dtype) for dtype in trt.DataType] == [*range(9), 100]
    assert (int(trt.float32), int(trt.float16), int(trt.bfloat16), int(trt.fp8)) == (0, 1, 7, 6)
    assert [int(operation) for operation in trt.CollectiveOperation] == list(range(8))
    assert [operation.name for operation in trt.ReduceOperation] == ["SUM", "PROD", "MAX", "MIN", "AVG", "NONE"]
    assert 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) == 2
    assert (f"{ALL_REDUCE}", str(trt.float32)) == ("CollectiveOperation.ALL_REDUCE", "DataType.FLOAT")
    assert trt.Logger.Severity.ERROR < trt.Logger.WARNING and str(trt.Logger.WARNING) == "Severity.WARNING"
    for dtype in trt.DataType:
        assert np.dtype(trt.nptype(dtype)).itemsize == dtype.itemsize
    assert trt.nptype(trt.bfloat16) is ml_dtypes.bfloat16 and trt.nptype(trt.bool) is np.bool_


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "int64", "bool", "bfloat16", "float8_e5m2"])
def test_constants_have_the_elements_of_arrays(name):
    values = np.arange(6).astype(name).reshape(2, 3)
    expected = values.tobytes()
    dtype = next(dtype for dtype in trt.DataType if trt.nptype(dtype) is values.dtype.type)
    transposed = np.ascontiguousarray(values.T).T
    for weights in [
        values,
        trt.Weights(values),
        transposed,
        trt.Weights(dtype, values.ctypes.data, 6),
    ]:
        result = run_locally(lambda network: network.add_constant((2, 3), weights))
        assert (result.dtype, result.shape, result.tobytes()) == (values.dtype, (2, 3), expected)


def test_weights_tell_their_size():
    weights = trt.Weights(np.zeros((2, 3), np.float16))
    assert (weights.dtype, trt.Weights(trt.bfloat16).dtype) == (trt.float16, trt.bfloat16)
    with pytest.raises(TypeError, match="float64 is no type of a network"):
        trt.Weights(np.zeros(3)).dtype
    assert (len(weights), weights.size, weights.nbytes, weights.numpy().shape) == (6, 6, 12, (2, 3))
    assert (trt.Weights(trt.float32).size, trt.Weights(trt.float32, 0, 0).size) == (0, 0)
    with pytest.raises(ValueError, match="the address of weights is null, and count is 3"):
        trt.Weights(trt.float32, 0, 3)


def test_wrong_constants_are_refused():
    _, network = new_network()
    with pytest.raises(ValueError, match=r"weights has 3 elements, and the shape \[2, 2\] has 4"):
        network.add_constant((2, 2), np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="weights: float64 is no type of a network; these are: float32"):
        network.add_constant((3,), np.zeros(3))
    with pytest.raises(TypeError, match="weights: it is a builtins.list, not a tensor|weights: it is a list"):
        network.add_constant((3,), [1.0, 2.0, 3.0])


def test_a_shuffle_moves_elements():
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)

    def add(network, tensor):
        layer = network.add_shuffle(tensor)
        layer.first_transpose = trt.Permutation([2, 0, 1])
        layer.reshape_dims = (0, 6)
        layer.second_transpose = trt.Permutation([1, 0])
        return layer

    assert np.array_equal(run_locally(add, x=x), x.transpose(2, 0, 1).reshape(4, 6).T)


def test_a_cast_converts():
    x = np.array([-1.5, 0.0, 300.0, np.nan], np.float32)
    assert run_locally(lambda network, x: network.add_cast(x, trt.int8), x=x).tolist() == [-1, 0, 127, 0]


def test_groups_may_be_a_partition():
    builder, network = new_network()
    x = network.add_input("x", trt.float32, (2,))
    layer = network.add_dist_collective(x, trt.CollectiveOperation.BROADCAST, groups=[[0, 2], [3, 1]], root=1)
    assert (layer.groups, layer.root, layer.num_ranks) == ([[0, 2], [3, 1]], 1, 2)
    output(network, layer.get_output(0), "y")
    (found,) = build(builder, network).inspect()["layers"]
    assert found["collective"]["groups"] == [[0, 2], [3, 1]] and found["collective"]["root_group_rank"] == 1
    arrays = network.add_dist_collective(x, trt.CollectiveOperation.ALL_GATHER, groups=np.array([[0, 1], [2, 3]]))
    assert arrays.groups == [[0, 1], [2, 3]]
    same = network.add_dist_collective(x, ALL_REDUCE, SUM, -1, np.array([0, 2], np.int64))
    assert same.groups == [[0, 2]]
    for groups, text in [
        ([[0, 1], [2]], "groups of a partition have equal lengths"),
        ([[0, 1], [1, 2]], "rank 1 occurs twice"),
        ([0, 0], "rank 0 occurs twice"),
    ]:
        with pytest.raises(ValueError, match=text):
            network.add_dist_collective(x, ALL_REDUCE, SUM, -1, groups)


def test_wrong_collectives_are_refused_when_they_are_added():
    _, network = new_network()
    x = network.add_input("x", trt.bool, (2,))
    for arguments, text in [
        ((ALL_REDUCE,), "all_reduce: it needs a reduce operation"),
        ((ALL_REDUCE, trt.ReduceOperation.AVG), "bool"),
        ((trt.CollectiveOperation.BROADCAST,), "broadcast: it has a root, and root is -1"),
        ((trt.CollectiveOperation.ALL_GATHER, SUM), "all_gather: it does not reduce"),
    ]:
        with pytest.raises(ValueError, match=text):
            network.add_dist_collective(x, *arguments)
    assert network.num_layers == 0
    layer = network.add_dist_collective(x, ALL_REDUCE, SUM)
    with pytest.raises(ValueError, match="nb_rank is 0"):
        layer.num_ranks = 0
    with pytest.raises(ValueError, match="only a DistCollective layer has more than one rank"):
        network.add_shuffle(x).num_ranks = 2
    with pytest.raises(TypeError, match="input is a IDistCollectiveLayer, not a tensor of a network"):
        network.add_shuffle(layer)
    other = new_network()[1].add_input("x", trt.bool, (2,))
    with pytest.raises(ValueError, match="an id is for the network that gave it"):
        network.add_shuffle(other)


def unsupported():
    builder, network = new_network()
    x = network.add_input("x", trt.float32, (2,))
    layer, config = network.add_shuffle(x), builder.create_builder_config()
    output(network, layer.get_output(0), "y")
    engine = build(builder, network)
    yield "INetworkDefinition.add_matrix_multiply", lambda: network.add_matrix_multiply(x, x)
    yield "INetworkDefinition.add_plugin_v3", lambda: network.add_plugin_v3([x], [], None)
    yield "tensorrt.OnnxParser", lambda: trt.OnnxParser(network, trt.Logger())
    yield "tensorrt.MatrixOperation", lambda: trt.MatrixOperation.NONE
    yield "DataType.INT4", lambda: trt.DataType.INT4
    yield "BuilderFlag.REFIT", lambda: trt.BuilderFlag.REFIT
    yield "IShuffleLayer.precision", lambda: setattr(layer, "precision", trt.float16)
    yield "ITensor.dynamic_range", lambda: setattr(x, "dynamic_range", (0, 1))
    yield "IBuilderConfig.int8_calibrator", lambda: setattr(config, "int8_calibrator", object())
    yield "ICudaEngine.refittable", lambda: engine.refittable
    yield "IExecutionContext.set_output_allocator", lambda: engine.create_execution_context().set_output_allocator


@pytest.mark.parametrize("subject, call", list(unsupported()))
def test_what_is_not_offered_is_an_error_that_names_the_plugin_layer(subject, call):
    with pytest.raises(trt.UnsupportedError) as raised:
        call()
    text = str(raised.value)
    assert text.startswith(f"{subject} is not offered: ") and "write a plugin layer: network.add_plugin(" in text
    assert isinstance(raised.value, distcollective.Error) and raised.value.kind == "Unsupported"


def test_hasattr_tells_what_is_offered():
    _, network = new_network()
    assert hasattr(network, "add_shuffle") and not hasattr(network, "add_softmax")
    assert hasattr(trt, "Builder") and not hasattr(trt, "Refitter")
    assert hasattr(trt.DataType, "FP8") and not hasattr(trt.DataType, "FP4")


def test_settings_that_change_nothing_are_accepted():
    builder, network = new_network()
    assert trt.init_libnvinfer_plugins(trt.Logger(), "") is True
    builder.error_recorder = None
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)
    config.set_flag(trt.BuilderFlag.BF16)
    config.set_preview_feature(trt.PreviewFeature.MULTIDEVICE_RUNTIME_10_16, True)
    config.builder_optimization_level, config.max_aux_streams, config.avg_timing_iterations = 5, 2, 8
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.progress_monitor = None
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 30
    assert config.get_flag(trt.BuilderFlag.BF16) and not config.get_flag(trt.BuilderFlag.FP16)
    config.clear_flag(trt.BuilderFlag.BF16)
    assert config.flags == 0 and config.get_preview_feature(trt.PreviewFeature.MULTIDEVICE_RUNTIME_10_16)
    config.flags = 1 << int(trt.BuilderFlag.FP16)
    with pytest.raises(ValueError):
        config.flags = 1 << 30
    assert config.get_flag(trt.BuilderFlag.FP16)
    # Programs often add a profile without shapes.
    config.add_optimization_profile(builder.create_optimization_profile())
    output(network, network.add_shuffle(network.add_input("x", trt.float32, (2,))).get_output(0), "y")
    assert builder.build_serialized_network(network, config)
    with pytest.raises(ValueError, match="the flags are EXPLICIT_BATCH and STRONGLY_TYPED"):
        builder.create_network(1 << 5)


def test_a_network_with_mistakes_is_an_error_with_all_of_them():
    logger = Lines()
    builder, network = new_network(logger)
    x = network.add_input("x", trt.float32, (5, 2))
    network.add_input("unread", trt.float32, (2,))
    layer = network.add_dist_collective(x, trt.CollectiveOperation.REDUCE_SCATTER, SUM)
    layer.num_ranks, layer.name = 2, "halves"
    output(network, layer.get_output(0), "y")
    config = builder.create_builder_config()
    with pytest.raises(distcollective.Error) as raised:
        builder.build_serialized_network(network, config)
    text = str(raised.value)
    assert raised.value.kind == "InvalidNetwork"
    assert 'input "unread": no layer reads it' in text
    assert 'layer "halves" (reduce_scatter): dimension 0 is 5, which is not a multiple of 2 ranks' in text
    assert logger.lines == [(trt.Logger.ERROR, text)]
    assert not builder.is_network_supported(network, config)


def test_what_may_be_a_mistake_is_a_warning(capfd):
    logger = Lines()
    builder, network = new_network(logger)
    x = network.add_input("x", trt.float32, (4,))
    layer = network.add_dist_collective(x, trt.CollectiveOperation.REDUCE, SUM, 0)
    layer.num_ranks = 2
    output(network, network.add_cast(layer.get_output(0), trt.float16).get_output(0), "y")
    build(builder, network)
    ((severity, text),) = logger.lines
    assert severity is trt.Logger.WARNING and "it reads zeros there" in text
    assert "it reads zeros there" in capfd.readouterr().err, "the library's own log has it too"
    # The log that comes with the package writes what is serious enough.
    for least, lines in [(trt.Logger.WARNING, 1), (trt.Logger.ERROR, 0)]:
        trt.Logger(least).log(severity, text)
        assert capfd.readouterr().err == f"[DCL] [W] {text}\n" * lines
    with pytest.raises(TypeError, match="logger is a NoneType, not a Logger"):
        trt.Builder(None)
    with pytest.raises(TypeError, match="logger is a function"):
        trt.Runtime(lambda severity, msg: None)


def dynamic_engine():
    builder, network = new_network()
    x = network.add_input("x", trt.float32, (-1, 4))
    table = network.add_input("table", trt.int32, (3,))
    output(network, network.add_cast(x, trt.float16).get_output(0), "y")
    output(network, network.add_cast(table, trt.int64).get_output(0), "z")
    first, second = [(1, 4), (2, 4), (4, 4)], [(16, 4), (32, 4), (64, 4)]
    return build(builder, network, [{"x": first}, {"x": second, "table": [(3,)] * 3}])


def test_an_engine_tells_its_tensors():
    engine = dynamic_engine()
    assert engine.num_io_tensors == len(engine) == 4
    assert [engine.get_tensor_name(index) for index in range(4)] == list(engine) == ["x", "table", "y", "z"]
    modes = [engine.get_tensor_mode(name) for name in engine]
    assert modes == [trt.TensorIOMode.INPUT] * 2 + [trt.TensorIOMode.OUTPUT] * 2
    assert [engine.get_tensor_dtype(name) for name in engine] == [trt.float32, trt.int32, trt.float16, trt.int64]
    assert [engine.get_tensor_shape(name) for name in engine] == [(-1, 4), (3,), (-1, 4), (3,)]
    assert [engine.get_tensor_bytes_per_component(name) for name in engine] == [4, 4, 2, 8]
    assert engine.num_optimization_profiles == 2 and engine.num_layers == 2
    assert engine.get_tensor_profile_shape("x", 1) == [(16, 4), (32, 4), (64, 4)]
    assert engine.get_tensor_profile_shape("y", 0) == [(1, 4), (2, 4), (4, 4)]
    assert engine.get_tensor_location("x") is trt.TensorLocation.DEVICE
    assert engine.get_tensor_format("x") is trt.TensorFormat.LINEAR
    with pytest.raises(ValueError, match="'w' is no input or output; they are x, table, y, z"):
        engine.get_tensor_dtype("w")
    with pytest.raises(ValueError, match="there is no optimization profile 2"):
        engine.get_tensor_profile_shape("x", 2)
    inspector = engine.create_engine_inspector()
    assert '"cast_0"' in inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    assert inspector.get_engine_information(trt.LayerInformationFormat.ONELINE) == str(engine)
    assert [layer["kind"] for layer in engine.inspect()["layers"]] == ["cast", "cast"]


def test_shapes_of_inputs_are_set_within_the_profile():
    context = dynamic_engine().create_execution_context()
    assert context.infer_shapes() == ["x"] and not context.all_binding_shapes_specified
    assert (context.get_tensor_shape("x"), context.get_tensor_shape("y")) == ((-1, 4), (-1, 4))
    assert context.set_input_shape("x", (3, 4)) is True
    assert (context.get_tensor_shape("y"), context.infer_shapes()) == ((3, 4), [])
    with pytest.raises(ValueError, match=re.escape('input "x": [5, 4] is not in optimization profile 0')):
        context.set_input_shape("x", (5, 4))
    assert context.get_tensor_shape("x") == (3, 4), "the shape is as it was"
    assert context.set_optimization_profile_async(1, 0) is True
    assert (context.active_optimization_profile, context.infer_shapes()) == (1, ["x"])
    context.set_input_shape("x", (16, 4))
    assert context.get_tensor_shape("y") == (16, 4)
    with pytest.raises(ValueError, match="there is no optimization profile 2; the engine has 2"):
        context.set_optimization_profile_async(2, 0)
    with pytest.raises(ValueError, match='"w" is not an input or output'):
        context.set_input_shape("w", (1,))


class Add(trt.Plugin):
    type_name = "add"

    def output_shapes(self, inputs):
        if inputs[0] != inputs[1]:
            raise ValueError(f"{inputs[0]} and {inputs[1]} differ")
        return inputs[:1]

    def enqueue(self, inputs, outputs):
        outputs[0][...] = inputs[0] + inputs[1]


def test_shapes_that_only_fit_together_are_set_one_after_the_other():
    builder, network = new_network()
    inputs = [network.add_input(name, trt.int32, (-1,)) for name in "ab"]
    output(network, network.add_plugin(inputs, Add()).get_output(0), "y")
    engine = build(builder, network, [{"a": [(1,), (2,), (8,)], "b": [(1,), (2,), (8,)]}])
    context = engine.create_execution_context()
    for size in (2, 5, 3):
        context.set_input_shape("a", (size,))
        context.set_input_shape("b", (size,))
        assert context.get_tensor_shape("y") == (size,)
    context.set_input_shape("a", (4,))
    for use in [context.infer_shapes, lambda: context.get_tensor_shape("y"), lambda: context.execute_async_v3(0)]:
        with pytest.raises(distcollective.Error, match=r"\(4,\) and \(3,\) differ"):
            use()
    context.set_input_shape("b", (4,))
    assert context.get_tensor_shape("y") == (4,)
    x = np.arange(6, dtype=np.int32)
    assert context.run({"a": x, "b": x})["y"].tolist() == [0, 2, 4, 6, 8, 10]


def test_profiles_with_mistakes_are_errors():
    builder, network = new_network()
    output(network, network.add_shuffle(network.add_input("x", trt.float32, (-1,))).get_output(0), "y")
    for profiles, text in [
        ([], 'input "x": .* no optimization profile says'),
        ([{"x": [(1,), (2,), (3,)]}, {}], "optimization profile 1 has no shapes for it"),
        ([{"w": [(1,), (2,), (3,)]}], 'a profile has shapes for "w", which is no input; inputs are "x"'),
        ([{"x": [(3,), (2,), (1,)]}], "min <= opt <= max"),
    ]:
        with pytest.raises(distcollective.Error, match=text):
            build(builder, network, profiles)
    profile = builder.create_optimization_profile()
    assert profile.get_shape("x") == []
    profile.set_shape("x", [1], [2], [3])
    assert profile.get_shape("x") == [(1,), (2,), (3,)] and profile
    with pytest.raises(TypeError, match="profile is a dict"):
        builder.create_builder_config().add_optimization_profile({})


def test_a_plan_is_bytes(tmp_path):
    builder, network = new_network()
    output(network, network.add_cast(network.add_input("x", trt.float32, (2,)), trt.int8).get_output(0), "y")
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    assert isinstance(plan, trt.IHostMemory) and plan.nbytes == len(plan) == len(memoryview(plan))
    assert plan.dtype is trt.DataType.UINT8
    path = tmp_path / "model.plan"
    with open(path, "wb") as file:
        file.write(plan)
    runtime = trt.Runtime(trt.Logger())
    for data in [plan, path.read_bytes(), bytearray(plan), memoryview(plan), np.frombuffer(plan, np.uint8)]:
        engine = runtime.deserialize_cuda_engine(data)
        assert engine.serialize() == plan
    assert io.BytesIO(plan).read() == plan


def test_bytes_that_are_no_plan_are_an_error():
    logger = Lines()
    runtime = trt.Runtime(logger)
    builder, network = new_network()
    output(network, network.add_cast(network.add_input("x", trt.float32, (2,)), trt.int8).get_output(0), "y")
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    changed = bytearray(plan)
    changed[-1] ^= 1
    for data in [b"", b"no plan", plan[:-1], bytes(changed)]:
        with pytest.raises(distcollective.Error) as raised:
            runtime.deserialize_cuda_engine(data)
        assert raised.value.kind == "InvalidPlan" and logger.lines[-1] == (trt.Logger.ERROR, str(raised.value))


def test_addresses_of_weights_are_read_when_a_layer_gets_them():
    memory = (ctypes.c_int32 * 3)(1, 2, 3)
    weights = trt.Weights(trt.int32, ctypes.addressof(memory), 3)
    _, network = new_network()
    layer = network.add_constant((3,), weights)
    assert layer.shape == (3,) and layer.type is trt.LayerType.CONSTANT
    memory[0] = 7
    builder, network = new_network()
    output(network, network.add_constant((3,), weights).get_output(0), "y")
    assert build(builder, network).create_execution_context().run({})["y"].tolist() == [7, 2, 3]
