"""Models with DistCollective nodes, and models to shard."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, DOUBLE, STRING, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.STRING, TensorProto.BOOL

#: ONNX's element types that the operator takes.
_TYPES = "FLOAT FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E5M2 INT64 INT32 INT8 UINT8 BOOL".split()


def element_types():
    return [getattr(TensorProto, name) for name in _TYPES]


def _bytes(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(constants))
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


def _weights(names, rows, columns):
    generator = np.random.default_rng(0)
    made = [generator.standard_normal((rows, columns)).astype(np.float32) for _ in names]
    return [numpy_helper.from_array(weight, name) for weight, name in zip(made, names)]


def _tensor(name):
    return helper.make_tensor_value_info(name, FLOAT, [8, 16])


def attention():
    """An attention layer of one head, with its projections."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], name="q projection"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], name="k projection"),
        helper.make_node("MatMul", ["x", "wv"], ["v"], name="v projection"),
        helper.make_node("Transpose", ["k"], ["kt"], name="transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["weights"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"], name="mix"),
        helper.make_node("MatMul", ["mixed", "wo"], ["y"], name="output projection"),
    ]
    return _bytes(nodes, [_tensor("x")], [_tensor("y")], _weights(["wq", "wk", "wv", "wo"], 16, 16))


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
    constants = [*_weights(["gate", "up"], 16, 32), *_weights(["down"], 32, 16)]
    return _bytes(nodes, [_tensor("x")], [_tensor("y")], constants)
