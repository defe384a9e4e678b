"""TensorRT's Python API, for networks with DistCollective layers, on CPUs.

Replace ``import tensorrt as trt`` by this import, and give the group of all ranks where a program
for GPUs gives NCCL's communicator::

    import distcollective.distributed as dist
    import distcollective.tensorrt as trt

    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (4, 8))
    layer = network.add_dist_collective(
        x, trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, []
    )
    layer.num_ranks = 2
    y = layer.get_output(0)
    y.name = "y"
    network.mark_output(y)
    plan = builder.build_serialized_network(network, builder.create_builder_config())

    dist.init_process_group("gloo")
    context = trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan).create_execution_context()
    context.set_communicator(dist.group.WORLD)
    print(context.run({"x": array})["y"])

A failure is an exception, also where TensorRT logs and gives None or False. What this package does
not have is an ``UnsupportedError``, which names the plugin layer as the way.
"""

from typing import Any

from ._builder import Builder, IBuilderConfig, IOptimizationProfile
from ._engine import EngineInspector, ICudaEngine, IExecutionContext, IHostMemory, Runtime
from ._enums import (
    BuilderFlag,
    CollectiveOperation,
    DataType,
    ElementWiseOperation,
    LayerInformationFormat,
    LayerType,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    PreviewFeature,
    ProfilingVerbosity,
    ReduceOperation,
    TensorFormat,
    TensorIOMode,
    TensorLocation,
    nptype,
    volume,
)
from ._errors import UnsupportedError
from ._logger import ILogger, Logger
from ._network import (
    ICastLayer,
    IConcatenationLayer,
    IConstantLayer,
    IDistCollectiveLayer,
    IElementWiseLayer,
    IIdentityLayer,
    ILayer,
    INetworkDefinition,
    IPluginLayer,
    IShuffleLayer,
    ISliceLayer,
    ITensor,
)
from ._plugins import Plugin, init_libnvinfer_plugins
from ._profiler import IProfiler, LayerTime, Profiler
from ._values import Dims, Permutation, Weights

#: The version of TensorRT whose API this is.
__version__ = "11.1.0"

float32 = DataType.FLOAT
float16 = DataType.HALF
bfloat16 = DataType.BF16
fp8 = DataType.FP8
int8 = DataType.INT8
int32 = DataType.INT32
int64 = DataType.INT64
uint8 = DataType.UINT8
bool = DataType.BOOL

__all__ = [
    "Builder",
    "BuilderFlag",
    "CollectiveOperation",
    "DataType",
    "Dims",
    "ElementWiseOperation",
    "EngineInspector",
    "IBuilderConfig",
    "ICastLayer",
    "IConcatenationLayer",
    "IConstantLayer",
    "ICudaEngine",
    "IDistCollectiveLayer",
    "IElementWiseLayer",
    "IExecutionContext",
    "IHostMemory",
    "IIdentityLayer",
    "ILayer",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IPluginLayer",
    "IProfiler",
    "IShuffleLayer",
    "ISliceLayer",
    "ITensor",
    "LayerInformationFormat",
    "LayerTime",
    "LayerType",
    "Logger",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "Permutation",
    "Plugin",
    "PreviewFeature",
    "Profiler",
    "ProfilingVerbosity",
    "ReduceOperation",
    "Runtime",
    "TensorFormat",
    "TensorIOMode",
    "TensorLocation",
    "UnsupportedError",
    "Weights",
    "bfloat16",
    "bool",
    "float16",
    "float32",
    "fp8",
    "init_libnvinfer_plugins",
    "int32",
    "int64",
    "int8",
    "nptype",
    "uint8",
    "volume",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise UnsupportedError.of(f"tensorrt.{name}")
