"""Plugins: layers that a program writes in Python."""

import importlib
from typing import Any, List, Sequence, Tuple, Type

from ..errors import ArgumentError
from ._enums import DataType, nptype

#: The number of a type, a shape, the elements.
_Described = Tuple[int, List[int], bytearray]


class Plugin:
    """A layer that a program writes in Python. Inherit, and write at least ``enqueue``.

    >>> class Scale(Plugin):
    ...     type_name = "scale"
    ...     def __init__(self, factor):
    ...         self.factor = factor
    ...     def enqueue(self, inputs, outputs):
    ...         outputs[0][...] = self.factor * inputs[0]
    ...     def serialize(self):
    ...         return str(self.factor).encode()
    ...     @classmethod
    ...     def deserialize(cls, data):
    ...         return cls(float(data))

    ``network.add_plugin([x], Scale(2))`` adds it to a network. A plan has the bytes of
    ``serialize``, and ``runtime.register_plugin(Scale)`` lets a runtime read them.
    """

    #: The kind of layer. Plans, errors and ``inspect`` name it so.
    type_name: str = "python_plugin"
    #: Only the same version reads a plan back.
    version: str = "1"

    def output_types(self, inputs: List[DataType]) -> List[DataType]:
        """The types of the outputs. Unless written: one output, of the first input's type."""
        return inputs[:1]

    def output_shapes(self, inputs: List[Tuple[int, ...]]) -> List[Tuple[int, ...]]:
        """The shapes of the outputs. Unless written: one output, of the first input's shape."""
        return inputs[:1]

    def enqueue(self, inputs: List[Any], outputs: List[Any]) -> None:
        """Compute the outputs: arrays of numpy, which are zero. All arrays are copies.

        Write into an output, as in ``outputs[0][...] = x``, or put an array of its type and shape
        in its place.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no method enqueue(inputs, outputs)")

    def serialize(self) -> bytes:
        """The plugin as bytes, for plans."""
        raise NotImplementedError(f"{type(self).__qualname__} has no method serialize(); a plan needs it")

    @classmethod
    def deserialize(cls, data: bytes) -> "Plugin":
        """A plugin from the bytes of ``serialize``."""
        raise NotImplementedError(f"{cls.__qualname__} has no method deserialize(data); a plan needs it")


def _copy(output: Any, value: Any, number: int) -> None:
    """Copy what a plugin has put into the list of outputs, in place of the array there."""
    if (value.dtype, value.shape) != (output.dtype, output.shape):
        raise ArgumentError(
            f"enqueue put {value.dtype} of shape {value.shape} into outputs[{number}]; "
            f"the output is {output.dtype} of shape {output.shape}"
        )
    output[...] = value


class Adapter:
    """A plugin as the extension module calls it: with numbers, lists and bytes."""

    def __init__(self, plugin: Plugin) -> None:
        if not isinstance(plugin, Plugin):
            raise TypeError(f"plugin is a {type(plugin).__qualname__}; inherit from distcollective.tensorrt.Plugin")
        self.plugin = plugin
        self.type_name = plugin.type_name
        self.version = plugin.version

    def output_types(self, inputs: Sequence[int]) -> List[int]:
        return [int(DataType(dtype)) for dtype in self.plugin.output_types([DataType(number) for number in inputs])]

    def output_shapes(self, inputs: Sequence[Sequence[int]]) -> List[Tuple[int, ...]]:
        shapes = self.plugin.output_shapes([tuple(shape) for shape in inputs])
        return [tuple(int(length) for length in shape) for shape in shapes]

    def enqueue(self, inputs: Sequence[_Described], outputs: Sequence[Tuple[int, List[int]]]) -> List[Any]:
        numpy = importlib.import_module("numpy")
        given = [numpy.frombuffer(data, nptype(DataType(number))).reshape(shape) for number, shape, data in inputs]
        computed = [numpy.zeros(shape, nptype(DataType(number))) for number, shape in outputs]
        outcome = list(computed)
        self.plugin.enqueue(given, outcome)
        if len(outcome) != len(computed):
            raise ArgumentError(f"enqueue left {len(outcome)} outputs in its list; there are {len(computed)}")
        # Copies, because what a plugin has put there may be another output.
        replaced = {
            number: numpy.array(left)
            for number, (array, left) in enumerate(zip(computed, outcome))
            if left is not array
        }
        for number, value in replaced.items():
            _copy(computed[number], value, number)
        return computed

    def serialize(self) -> bytes:
        return self.plugin.serialize()


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    """Accept what many programs call first. There is no library of plugins: each is the program's."""
    return True


def creator(plugin: Type[Plugin]) -> Any:
    """What makes a plugin of this class from the bytes in a plan."""
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise ArgumentError(f"{plugin!r} is not a class that inherits from distcollective.tensorrt.Plugin")
    return lambda data: Adapter(plugin.deserialize(bytes(data)))
