"""The layers around collectives: ElementWise, Concatenation, Slice, Identity, against numpy."""

import numpy as np
import pytest
from ranks import run

import distcollective
import distcollective.distributed as dist
import distcollective.tensorrt as trt

DTYPES = {np.dtype(trt.nptype(dtype)): dtype for dtype in trt.DataType}
OF_NUMPY = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "SUB": np.subtract}


def compute(add, *arrays):
    """The output of a network whose inputs are these arrays, and its layer."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    tensors = [network.add_input(f"x{i}", DTYPES[x.dtype], x.shape) for i, x in enumerate(arrays)]
    layer = add(network, *tensors)
    y = layer.get_output(0)
    described = (y.dtype, y.shape)
    y.name = "y"
    network.mark_output(y)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    context = trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan).create_execution_context()
    result = context.run({f"x{i}": x for i, x in enumerate(arrays)})["y"]
    assert described == (DTYPES[result.dtype], result.shape), "what the network told before the build"
    return result


def values(shape, dtype):
    return (np.arange(np.prod(shape)).reshape(shape) % 7 + 1).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64, np.int8, np.uint8])
@pytest.mark.parametrize("operation", list(trt.ElementWiseOperation), ids=lambda operation: operation.name)
def test_elementwise_operations_are_those_of_numpy(operation, dtype):
    divide = np.divide if np.dtype(dtype).kind == "f" else np.floor_divide
    expected = OF_NUMPY.get(operation.name, divide)
    for a, b in [((2, 3), (2, 3)), ((2, 1, 4), (1, 3, 4)), ((1,), (5,)), ((3, 4), (1, 1))]:
        x, y = values(a, dtype), values(b, dtype)[::-1]
        result = compute(lambda network, x, y: network.add_elementwise(x, y, operation), x, y)
        assert result.dtype == dtype and np.array_equal(result, expected(x, y).astype(dtype))


def test_an_elementwise_layer_tells_its_operation():
    def add(network, x):
        layer = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM)
        assert isinstance(layer, trt.IElementWiseLayer) and layer.type is trt.LayerType.ELEMENTWISE
        assert (layer.op, layer.num_inputs) == (trt.ElementWiseOperation.SUM, 2)
        layer.op = trt.ElementWiseOperation.PROD
        assert layer.op is trt.ElementWiseOperation.PROD
        return layer

    assert compute(add, np.array([2, 3], np.int32)).tolist() == [4, 9]


def test_concatenations_are_those_of_numpy():
    a, b, c = values((2, 3, 4), np.float32), values((2, 5, 4), np.float32), values((2, 1, 4), np.float32)

    def add(network, *tensors):
        layer = network.add_concatenation(list(tensors))
        assert isinstance(layer, trt.IConcatenationLayer) and layer.type is trt.LayerType.CONCATENATION
        assert (layer.axis, layer.num_inputs) == (0, len(tensors))
        layer.axis = 1
        assert layer.axis == 1
        return layer

    assert np.array_equal(compute(add, a, b, c), np.concatenate([a, b, c], axis=1))
    assert np.array_equal(compute(add, b), b)


@pytest.mark.parametrize("shape, axis", [((3,), 0), ((3, 4), 0), ((3, 4, 5), 0), ((3, 4, 5, 2), 1), ((2,) * 5, 2)])
def test_the_axis_is_at_first_the_third_from_the_end(shape, axis):
    x = values(shape, np.int32)
    result = compute(lambda network, x: network.add_concatenation([x, x]), x)
    assert np.array_equal(result, np.concatenate([x, x], axis=axis))


def test_slices_are_those_of_numpy():
    x = values((4, 6, 5), np.int64)
    for start, shape, stride, expected in [
        ((0, 0, 0), (4, 6, 5), (1, 1, 1), x),
        ((1, 2, 3), (2, 3, 2), (1, 1, 1), x[1:3, 2:5, 3:5]),
        ((0, 1, 0), (2, 3, 3), (2, 2, 2), x[::2, 1::2, ::2]),
        ((3, 0, 4), (4, 6, 5), (-1, 1, -1), x[::-1, :, ::-1]),
        ((0, 0, 2), (4, 6, 3), (1, 1, 0), np.repeat(x[:, :, 2:3], 3, axis=2)),
    ]:
        result = compute(lambda network, x: network.add_slice(x, start, shape, stride), x)
        assert np.array_equal(result, expected)


def test_a_slice_layer_tells_its_part():
    def add(network, x):
        layer = network.add_slice(x, [0], [1], [1])
        assert isinstance(layer, trt.ISliceLayer) and layer.type is trt.LayerType.SLICE
        layer.start, layer.shape, layer.stride = (1,), trt.Dims((2,)), [2]
        assert (layer.start, layer.shape, layer.stride) == ((1,), (2,), (2,))
        return layer

    assert compute(add, np.arange(4, dtype=np.int32)).tolist() == [1, 3]


def test_an_identity_copies():
    def add(network, x):
        layer = network.add_identity(x)
        assert isinstance(layer, trt.IIdentityLayer) and layer.type is trt.LayerType.IDENTITY
        return layer

    x = np.array([1.5, np.nan, -0.0], np.float32)
    assert compute(add, x).tobytes() == x.tobytes()


def test_mistakes_around_collectives_are_errors():
    network = trt.Builder(trt.Logger()).create_network()
    x, y = network.add_input("x", trt.float32, (2, 3)), network.add_input("y", trt.int32, (2, 3))
    flag = network.add_input("flag", trt.bool, (2,))
    for wrong, text in [
        (lambda: network.add_elementwise(x, y, trt.ElementWiseOperation.SUM), "float32.*int32"),
        (lambda: network.add_elementwise(flag, flag, trt.ElementWiseOperation.DIV), "bool"),
        (lambda: network.add_concatenation([]), "has at least one input"),
        (lambda: network.add_concatenation([x, y]), "float32.*int32"),
        (lambda: setattr(network.add_concatenation([x, x]), "axis", 8), "axis"),
    ]:
        with pytest.raises(ValueError, match=text):
            wrong()
    for operation in ("POW", "FLOOR_DIV", "AND"):
        with pytest.raises(trt.UnsupportedError, match=f"ElementWiseOperation.{operation} is not offered: .*plugin"):
            getattr(trt.ElementWiseOperation, operation)
    for outside in [((0, 0), (3, 3), (1, 1)), ((0, 0), (2,), (1, 1)), ((2, 0), (1, 1), (1, 1))]:
        with pytest.raises(distcollective.Error, match="slice"):
            network.add_slice(x, *outside).get_output(0).shape
    with pytest.raises(distcollective.Error, match="concatenation"):
        layer = network.add_concatenation([x, network.add_slice(x, (0, 0), (1, 2), (1, 1)).get_output(0)])
        layer.get_output(0).shape
    with pytest.raises(TypeError, match="input1 is a ndarray, not a tensor of a network"):
        network.add_elementwise(np.zeros(3), x, trt.ElementWiseOperation.SUM)


def test_key_value_heads_are_repeated_around_an_all_gather():
    """Grouped-query attention: each key-value head becomes as many as there are query heads for it."""

    def body():
        rank, size = dist.get_rank(), dist.get_world_size()
        builder = trt.Builder(trt.Logger())
        network = builder.create_network()
        x = network.add_input("x", trt.float32, (1, 2, 3, 4))
        _, heads, length, head_dim = tuple(x.shape)
        parts = []
        for head in range(heads):
            part = network.add_slice(x, (0, head, 0, 0), (1, 1, length, head_dim), (1, 1, 1, 1)).get_output(0)
            parts.extend([part] * 2)
        expanded = network.add_concatenation(parts)
        expanded.axis = 1
        gather = network.add_dist_collective(expanded.get_output(0), trt.CollectiveOperation.ALL_GATHER)
        gather.num_ranks = size
        scale = network.add_constant((1, 1, 1, 1), np.full((1, 1, 1, 1), 0.5, np.float32)).get_output(0)
        y = network.add_elementwise(gather.get_output(0), scale, trt.ElementWiseOperation.PROD).get_output(0)
        y.name = "y"
        network.mark_output(y)
        engine = builder.build_engine_with_config(network, builder.create_builder_config())
        context = engine.create_execution_context()
        context.set_communicator(dist.group.WORLD)
        inputs = [values((1, 2, 3, 4), np.float32) + 10 * other for other in range(size)]
        expected = np.concatenate([np.repeat(x, 2, axis=1) for x in inputs]) / 2
        return bool(np.array_equal(context.run({"x": inputs[rank]})["y"], expected))

    assert run(2, body) == [True, True]
