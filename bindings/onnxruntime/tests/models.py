"""Models with DistCollective nodes, and a model to shard."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, DOUBLE, STRING, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.STRING, TensorProto.BOOL
INT64 = TensorProto.INT64

#: ONNX's element types that the operator takes.
_TYPES = "FLOAT FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E5M2 INT64 INT32 INT8 UINT8 BOOL".split()


def element_types():
    return [getattr(TensorProto, name) for name in _TYPES]


def _bytes(nodes, inputs, outputs, constants=(), shapes=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(constants), value_info=list(shapes))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return model.SerializeToString()


def _collective(operation, x, y, attributes, name):
    empty = [name for name, value in attributes.items() if value == []]
    attributes = {name: value for name, value in attributes.items() if name not in empty}
    node = helper.make_node("DistCollective", [x], [y], name=name, collective_operation=operation, **attributes)
    node.attribute.extend(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS) for name in empty)
    return node


def node(operation, element_type, dims=(4, 3), name="node", **attributes):
    """A node whose tensors have this type, between casts from float32 and to it."""
    nodes = [
        helper.make_node("Cast", ["x"], ["given"], to=element_type),
        _collective(operation, "given", "taken", attributes, name),
        helper.make_node("Cast", ["taken"], ["y"], to=FLOAT),
    ]
    x, y = helper.make_tensor_value_info("x", FLOAT, list(dims)), helper.make_tensor_value_info("y", FLOAT, None)
    return _bytes(nodes, [x], [y])


def plain(operation, element_type, dims=(4, 3), **attributes):
    """A node whose tensors are the model's."""
    x = helper.make_tensor_value_info("x", element_type, list(dims))
    y = helper.make_tensor_value_info("y", element_type, None)
    return _bytes([_collective(operation, "x", "y", attributes, "node")], [x], [y])


def stored(name=None, dims=(4, 3)):
    """The shape behind an all_gather and a negation. A shape of one device may be stored."""
    nodes = [
        _collective("all_gather", "x", "gathered", {"nb_rank": 2}, "node"),
        helper.make_node("Neg", ["gathered"], ["negated"]),
        helper.make_node("Shape", ["negated"], ["y"]),
    ]
    x, y = helper.make_tensor_value_info("x", FLOAT, list(dims)), helper.make_tensor_value_info("y", INT64, None)
    shapes = [helper.make_tensor_value_info(name, FLOAT, [4, 3])] if name else []
    return _bytes(nodes, [x], [y], shapes=shapes)


def branches(count, after=0):
    """Nodes that do not depend on each other: all_reduce of `x` times 1, 2, and so on, to y0, y1, …

    Behind each are as many more as `after` says, one after the other.
    """
    nodes, constants, outputs = [], [], []
    for branch in range(count):
        constants.append(numpy_helper.from_array(np.float32([branch + 1]), f"factor {branch}"))
        nodes.append(helper.make_node("Mul", ["x", f"factor {branch}"], [f"{branch} 0"], name=f"mul {branch}"))
        for step in range(after + 1):
            y = f"y{branch}" if step == after else f"{branch} {step + 1}"
            attributes = {"reduce_op": "max" if step else "sum"}
            nodes.append(_collective("all_reduce", f"{branch} {step}", y, attributes, f"reduce {branch} {step}"))
        outputs.append(helper.make_tensor_value_info(f"y{branch}", FLOAT, [4]))
    return _bytes(nodes, [helper.make_tensor_value_info("x", FLOAT, [4])], outputs, constants)


def lookup():
    """The sum over the ranks of a row of a table with 8 rows, times `scale`."""
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["row"], name="lookup"),
        helper.make_node("Mul", ["row", "scale"], ["scaled"], name="scale"),
        _collective("all_reduce", "scaled", "y", {"reduce_op": "sum"}, "node"),
    ]
    table = numpy_helper.from_array(np.ones((8, 2), np.float32), "table")
    index = helper.make_tensor_value_info("index", INT64, [1])
    scale = helper.make_tensor_value_info("scale", FLOAT, [1])
    return _bytes(nodes, [index, scale], [helper.make_tensor_value_info("y", FLOAT, None)], [table])


def mlp():
    """A gated MLP: down(silu(gate(x)) * up(x))."""
    nodes = [
        helper.make_node("MatMul", ["x", "gate"], ["gated"], name="gate"),
        helper.make_node("Sigmoid", ["gated"], ["sigmoid"], name="sigmoid"),
        helper.make_node("Mul", ["gated", "sigmoid"], ["silu"], name="silu"),
        helper.make_node("MatMul", ["x", "up"], ["raised"], name="up"),
        helper.make_node("Mul", ["silu", "raised"], ["product"], name="product"),
        helper.make_node("MatMul", ["product", "down"], ["y"], name="down"),
    ]
    generator = np.random.default_rng(0)
    shapes = {"gate": (16, 32), "up": (16, 32), "down": (32, 16)}
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    x, y = (helper.make_tensor_value_info(name, FLOAT, [8, 16]) for name in "xy")
    return _bytes(nodes, [x], [y], weights)
