"""TensorRT's enumerations, as far as this package has what they name."""

import importlib
from enum import Enum, EnumMeta, IntEnum
from typing import Any, Iterable

from ._errors import UnsupportedError


class _Members(EnumMeta):
    """Names the plugin layer in the error of a member that does not exist here."""

    def __getattr__(cls, name: str) -> Any:
        # Up to Python 3.11 members are found here.
        members = cls.__dict__.get("_member_map_", {})
        if name in members:
            return members[name]
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedError.of(f"{cls.__name__}.{name}", f"members are {', '.join(members)}")


class _Numbered(Enum, metaclass=_Members):
    """An enumeration whose members have TensorRT's numbers."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class DataType(_Numbered):
    """The type of a tensor's elements."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    #: E4M3.
    FP8 = 6
    BF16 = 7
    INT64 = 8
    #: TensorRT does not have it.
    FP8_E5M2 = 100

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return {"FLOAT": 4, "INT32": 4, "HALF": 2, "BF16": 2, "INT64": 8}.get(self.name, 1)


_NUMPY = {
    DataType.FLOAT: "float32",
    DataType.HALF: "float16",
    DataType.INT8: "int8",
    DataType.INT32: "int32",
    DataType.BOOL: "bool",
    DataType.UINT8: "uint8",
    DataType.INT64: "int64",
}
_ML_DTYPES = {
    DataType.FP8: "float8_e4m3fn",
    DataType.BF16: "bfloat16",
    DataType.FP8_E5M2: "float8_e5m2",
}


def name_of(dtype: DataType) -> str:
    """The name of a type in numpy, ml_dtypes and torch."""
    return {**_NUMPY, **_ML_DTYPES}[dtype]


def nptype(trt_type: DataType) -> Any:
    """numpy's type for a type of TensorRT. Those that numpy lacks are those of ``ml_dtypes``.

    Raises a ``TypeError`` if the type needs ``ml_dtypes`` and that package is not installed.

    >>> nptype(DataType.HALF)
    <class 'numpy.float16'>
    """
    if trt_type in _NUMPY:
        numpy = importlib.import_module("numpy")
        return numpy.dtype(_NUMPY[trt_type]).type
    try:
        return getattr(importlib.import_module("ml_dtypes"), _ML_DTYPES[trt_type])
    except ImportError:
        raise TypeError(f"numpy has no {trt_type}; install ml_dtypes, which has one") from None


def volume(iterable: Iterable[int]) -> int:
    """The number of elements of a shape."""
    count = 1
    for length in iterable:
        count *= length
    return count


class CollectiveOperation(_Numbered):
    """What a DistCollective layer does."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    BROADCAST = 2
    REDUCE = 3
    REDUCE_SCATTER = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7


class ReduceOperation(_Numbered):
    """How a DistCollective layer reduces; ``NONE`` if it does not."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    NONE = 5


class ElementWiseOperation(_Numbered):
    """What an ElementWise layer computes of two tensors."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    SUB = 4
    DIV = 5


class LayerType(Enum, metaclass=_Members):
    """What kind of layer a layer is. The values are not TensorRT's."""

    DIST_COLLECTIVE = "DIST_COLLECTIVE"
    SHUFFLE = "SHUFFLE"
    CAST = "CAST"
    CONSTANT = "CONSTANT"
    ELEMENTWISE = "ELEMENTWISE"
    CONCATENATION = "CONCATENATION"
    SLICE = "SLICE"
    IDENTITY = "IDENTITY"
    PLUGIN = "PLUGIN"


class TensorIOMode(_Numbered):
    """Whether a tensor of an engine is an input or an output."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(_Numbered):
    """Where a tensor is. All are where the communicator is, which TensorRT calls ``DEVICE``."""

    DEVICE = 0
    HOST = 1


class TensorFormat(_Numbered):
    """The order of a tensor's elements: row by row."""

    LINEAR = 0


class NetworkDefinitionCreationFlag(_Numbered):
    """How a network is created. Every network here is one with explicit batch and strong types."""

    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1


class BuilderFlag(_Numbered):
    """Flags that allow TensorRT something. They change nothing here: types are as described."""

    FP16 = 0
    BF16 = 1
    INT8 = 2
    FP8 = 3
    TF32 = 4
    DEBUG = 5
    DISABLE_TIMING_CACHE = 6
    SPARSE_WEIGHTS = 7
    MONITOR_MEMORY = 8


class PreviewFeature(_Numbered):
    """Features that TensorRT has behind a flag and this package always has."""

    MULTIDEVICE_RUNTIME_10_16 = 0


class MemoryPoolType(_Numbered):
    """Memory that TensorRT's builder can limit. The limits change nothing here."""

    WORKSPACE = 0
    TACTIC_DRAM = 1
    TACTIC_SHARED_MEMORY = 2


class ProfilingVerbosity(_Numbered):
    """How much TensorRT keeps for its inspector. ``inspect`` always shows everything."""

    LAYER_NAMES_ONLY = 0
    NONE = 1
    DETAILED = 2


class LayerInformationFormat(_Numbered):
    """The form of an engine inspector's text."""

    ONELINE = 0
    JSON = 1


class Severity(IntEnum):
    """How serious a line of the log is. The most serious has the smallest number."""

    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4

    __str__ = Enum.__str__
    __format__ = Enum.__format__
