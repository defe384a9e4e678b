"""Shapes, permutations and weights."""

import ctypes
import importlib
from typing import Any, Iterable, Optional, Sequence, Tuple, Union

from ..errors import ArgumentError
from ._enums import DataType, name_of, nptype


class Dims(Tuple[int, ...]):
    """A shape, as a tuple. -1 stands for a dimension that is not known yet."""

    __slots__ = ()
    MAX_DIMS = 8


class Permutation(Tuple[int, ...]):
    """The order of dimensions of a transpose: dimension i of the output is dimension [i] of the input."""

    __slots__ = ()


class Weights:
    """Elements for a constant: those of an array or tensor, or of memory at an address.

    >>> Weights(numpy.zeros(3, numpy.float32)).size       # doctest: +SKIP
    3
    >>> Weights(DataType.HALF, array.ctypes.data, 8)      # doctest: +SKIP

    Memory at an address is read when a layer gets the weights.
    """

    def __init__(self, a: Any, ptr: Optional[int] = None, count: int = 0) -> None:
        if ptr is not None:
            self._array = _array_at(DataType(a), ptr, count)
        elif isinstance(a, DataType):
            self._array = importlib.import_module("numpy").empty(0, nptype(a))
        else:
            self._array = a

    @property
    def dtype(self) -> DataType:
        """The type of the elements."""
        name = str(self._array.dtype).rpartition(".")[2]
        found = [dtype for dtype in DataType if name == name_of(dtype)]
        if not found:
            raise TypeError(f"{name} is no type of a network; these are: {', '.join(map(name_of, DataType))}")
        return found[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return len(self)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return int(self._array.nbytes)

    def numpy(self) -> Any:
        """The elements as an array of numpy."""
        return importlib.import_module("numpy").asarray(self._array)

    def __len__(self) -> int:
        count = 1
        for length in self._array.shape:
            count *= int(length)
        return count


def _array_at(dtype: DataType, address: int, count: int) -> Any:
    """An array of numpy on memory of the program's."""
    numpy = importlib.import_module("numpy")
    if not address and count:
        raise ArgumentError(f"the address of weights is null, and count is {count}")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return numpy.frombuffer(memory, nptype(dtype))


def elements_of(weights: Any) -> Any:
    """The array or tensor of weights."""
    return weights._array if isinstance(weights, Weights) else weights


def dims_of(shape: Union[Iterable[int], int]) -> Sequence[int]:
    """A shape that the program gives, as a list."""
    return [int(length) for length in shape] if not isinstance(shape, int) else [shape]
