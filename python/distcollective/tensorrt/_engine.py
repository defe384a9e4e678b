"""Runtimes, engines and execution contexts."""

import importlib
import json
import weakref
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

from .. import _core
from ..distributed import ProcessGroup
from ..errors import ArgumentError, Error, text_of
from ._enums import (
    DataType,
    LayerInformationFormat,
    Severity,
    TensorFormat,
    TensorIOMode,
    TensorLocation,
    nptype,
)
from ._errors import Guarded
from ._logger import ILogger, check_logger
from ._plugins import Plugin, creator
from ._profiler import IProfiler, LayerTime
from ._values import Dims, dims_of


class IHostMemory(bytes):
    """The bytes of a plan. They can be written to a file, and ``Runtime`` reads them."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return len(self)

    @property
    def dtype(self) -> DataType:
        """The type of an element: a byte."""
        return DataType.UINT8


class Runtime(Guarded):
    """Reads plans. An engine outlives its runtime."""

    def __init__(self, logger: ILogger) -> None:
        self._logger = check_logger(logger)
        self._plugins: Dict[Tuple[str, str], Any] = {}

    @property
    def logger(self) -> ILogger:
        """The log."""
        return self._logger

    def register_plugin(self, plugin: Type[Plugin]) -> None:
        """Let the runtime read plans with plugins of this class, by its name and version."""
        create = creator(plugin)
        if (plugin.type_name, plugin.version) in self._plugins:
            raise ArgumentError(f"plugin {plugin.type_name!r} version {plugin.version!r} is registered already")
        self._plugins[plugin.type_name, plugin.version] = create

    def deserialize_cuda_engine(self, serialized_engine: Any) -> "ICudaEngine":
        """The engine of a plan: an ``IHostMemory``, or other bytes.

        Raises an ``Error`` if the bytes are no plan, or were changed, where TensorRT gives None.
        """
        plugins = [(name, version, create) for (name, version), create in self._plugins.items()]
        try:
            return ICudaEngine(_core.Engine.deserialize(bytes(serialized_engine), plugins), "")
        except Error as error:
            self._logger.log(Severity.ERROR, str(error))
            raise


class EngineInspector(Guarded):
    """Says what an engine consists of."""

    def __init__(self, engine: "ICudaEngine") -> None:
        self._engine = engine

    def get_engine_information(self, format: LayerInformationFormat) -> str:
        """Tensors, layers, schedule and memory, as lines or as JSON."""
        is_json = LayerInformationFormat(format) is LayerInformationFormat.JSON
        return self._engine._engine.inspect(is_json)


class ICudaEngine(Guarded):
    """A network that is ready to run, with the communicator of a context, on CPUs too."""

    def __init__(self, engine: _core.Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._io = engine.io_tensors()
        self._by_name = {io[0]: io for io in self._io}

    def _tensor(self, name: str) -> Tuple[str, bool, int, List[int]]:
        try:
            return self._by_name[name]
        except KeyError:
            raise ArgumentError(f"{name!r} is no input or output; they are {', '.join(self._by_name)}") from None

    @property
    def name(self) -> str:
        """The name of the network, if this process has built it. Plans do not have it."""
        return self._name

    @property
    def num_io_tensors(self) -> int:
        """The number of inputs and outputs."""
        return len(self._io)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.inspect()["layers"])

    @property
    def num_optimization_profiles(self) -> int:
        """The number of profiles; 1 if none was added."""
        return self._engine.profile_count()

    def get_tensor_name(self, index: int) -> str:
        """The name of an input or output: the inputs come first."""
        return self._io[index][0]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """Whether a tensor is an input or an output."""
        return TensorIOMode.INPUT if self._tensor(name)[1] else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        """The type of a tensor's elements."""
        return DataType(self._tensor(name)[2])

    def get_tensor_shape(self, name: str) -> Dims:
        """A tensor's shape: -1 where it depends on the shapes of inputs."""
        return Dims(self._tensor(name)[3])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> List[Dims]:
        """The shapes of a tensor at min, opt and max of a profile. Of an output too."""
        return [Dims(shape) for shape in self._engine.profile_shapes(name, profile_index)]

    def get_tensor_location(self, name: str) -> TensorLocation:
        """Where a tensor is: with the communicator."""
        self._tensor(name)
        return TensorLocation.DEVICE

    def get_tensor_format(self, name: str) -> TensorFormat:
        """The order of a tensor's elements."""
        self._tensor(name)
        return TensorFormat.LINEAR

    def get_tensor_bytes_per_component(self, name: str) -> int:
        """The size of an element of a tensor in bytes."""
        return self.get_tensor_dtype(name).itemsize

    def create_execution_context(self) -> "IExecutionContext":
        """A context to run the engine in. Each thread needs one of its own."""
        return IExecutionContext(self, self._engine.create_context())

    def create_engine_inspector(self) -> EngineInspector:
        """What says what the engine consists of; ``inspect`` does, too."""
        return EngineInspector(self)

    def serialize(self) -> IHostMemory:
        """The engine's plan. The same network gives the same bytes, on every rank."""
        return IHostMemory(self._engine.serialize())

    def inspect(self) -> Dict[str, Any]:
        """Tensors, layers in their order, memory, warnings. ``str(engine)`` is the same as text."""
        found: Dict[str, Any] = json.loads(self._engine.inspect(True))
        return found

    def __len__(self) -> int:
        return self.num_io_tensors

    def __getitem__(self, index: int) -> str:
        return self.get_tensor_name(index)

    def __iter__(self) -> Iterator[str]:
        return (io[0] for io in self._io)

    def __str__(self) -> str:
        return self._engine.inspect(False)

    def __repr__(self) -> str:
        return f"<ICudaEngine {self._engine.fingerprint()}>"


class IExecutionContext(Guarded):
    """What an engine needs to run: a communicator, shapes, memory. One thread uses it at a time."""

    def __init__(self, engine: ICudaEngine, context: _core.Context) -> None:
        self._engine = engine
        self._context = context
        self._name = ""
        self._profiler: Optional[IProfiler] = None
        #: The shapes that the program has set, of the profile.
        self._shapes: Dict[str, List[int]] = {}
        #: Whether the context has all of them.
        self._has_shapes = True
        #: Kept: a capsule may destroy its communicator at its end.
        self._communicator: Any = None

    @property
    def engine(self) -> ICudaEngine:
        """The engine."""
        return self._engine

    @property
    def name(self) -> str:
        """A name for the context, which has no effect."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = str(name)

    @property
    def profiler(self) -> Optional[IProfiler]:
        """What is told how long each layer took, after each run that succeeds; None for nothing.

        It is called in the thread that runs, and must not use the context or its ranks. The call that
        runs raises what it raises. On GPUs, ``execute_async_v3`` then waits for the end of the run.
        """
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: Optional[IProfiler]) -> None:
        if not isinstance(profiler, (IProfiler, type(None))):
            raise TypeError(f"profiler is a {type(profiler).__qualname__}; give one that inherits IProfiler, or None")
        # The garbage collector does not see what the library keeps.
        context = weakref.ref(self)

        def take(layer: str, begin: float, time: float, wait: Optional[float], inputs: int, outputs: int) -> None:
            this = context()
            if this is not None and this._profiler is not None:
                wait_ms = None if wait is None else wait * 1e3
                this._profiler.report_layer(LayerTime(layer, begin, time * 1e3, wait_ms, inputs, outputs))

        self._context.set_profiler(None if profiler is None else take)
        self._profiler = profiler

    @property
    def active_optimization_profile(self) -> int:
        """The index of the profile."""
        return self._context.profile()

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """Choose a profile, and forget the shapes that were set. True, or an exception."""
        self._context.set_profile(profile_index)
        self._shapes, self._has_shapes = {}, True
        return True

    def set_communicator(self, communicator: Any) -> bool:
        """Set the ranks among which the collectives run. Every rank calls it. True, or an exception.

        It is ``dist.group.WORLD`` or another group of ``distcollective.distributed``, or a PyCapsule
        with an ``ncclComm_t``, whatever its name. The program keeps NCCL's communicator as long as
        the context. Ranks compare their plans; if they differ, each gets an error.
        """
        if isinstance(communicator, ProcessGroup):
            self._context.set_communicator(communicator._live())
        elif type(communicator).__name__ == "PyCapsule":
            self._context.set_nccl_communicator(communicator)
        else:
            raise TypeError(
                f"communicator is a {type(communicator).__qualname__}; give a group of distcollective.distributed, "
                "such as dist.group.WORLD after init_process_group, or a PyCapsule of an ncclComm_t"
            )
        self._communicator = communicator
        return True

    def set_input_shape(self, name: str, shape: Iterable[int]) -> bool:
        """Set the shape of an input, within the profile. True, or an exception.

        Shapes of several inputs that only fit together can be set one after the other: whether they
        fit is checked when all are set, at the latest when the context runs.
        """
        dims = list(dims_of(shape))
        together = {**self._shapes, name: dims}
        try:
            self._context.set_input_shapes(list(together.items()))
        except Error:
            # The shape alone is wrong, or it does not fit those that were set before.
            profile = self._context.profile()
            self._context.set_profile(profile)
            self._has_shapes = False
            self._context.set_input_shapes([(name, dims)])
        else:
            self._has_shapes = True
        self._shapes = together
        return True

    def _set_shapes(self) -> None:
        """Give the context the shapes that did not fit together when they were set."""
        if not self._has_shapes:
            self._context.set_input_shapes(list(self._shapes.items()))
            self._has_shapes = True

    def get_tensor_shape(self, name: str) -> Dims:
        """A tensor's shape; that of the engine, with -1, while an input has none."""
        self._set_shapes()
        shape = self._context.tensor_shape(name)
        if shape is not None:
            return Dims(shape)
        return Dims(self._shapes.get(name, self._engine.get_tensor_shape(name)))

    def infer_shapes(self) -> List[str]:
        """The names of inputs that have no shape yet. Shapes that do not fit are an exception."""
        self._set_shapes()
        return [name for name in self._engine if name not in self._shapes and self._is_dynamic_input(name)]

    def _is_dynamic_input(self, name: str) -> bool:
        return self._engine.get_tensor_mode(name) is TensorIOMode.INPUT and -1 in self._engine.get_tensor_shape(name)

    @property
    def all_binding_shapes_specified(self) -> bool:
        """Whether all inputs have shapes."""
        return not self.infer_shapes()

    def set_tensor_address(self, name: str, memory: Any) -> bool:
        """Set the memory of an input or output: a tensor, or an address. True, or an exception.

        A tensor is an array of numpy, a tensor of torch, or one with ``__dlpack__``, of the engine's
        type, with elements one after the other. The context keeps it alive until another is set. It
        may be longer than needed. Memory at an address is the program's, and nothing is checked.
        """
        if isinstance(memory, Integral):
            self._context.set_address(name, int(memory))
        else:
            self._context.set_tensor(name, memory)
        return True

    def get_tensor_address(self, name: str) -> int:
        """The address that is set; 0 if none is."""
        return self._context.address(name)

    def set_input_tensor_address(self, name: str, memory: Any) -> bool:
        """``set_tensor_address`` of an input."""
        return self.set_tensor_address(name, memory)

    set_output_tensor_address = set_input_tensor_address

    def refuse_run(self, reason: str) -> None:
        """Refuse the next run of this rank, before it begins.

        Call it if the program cannot make the run. On the other ranks the run raises an ``Error`` of
        the kind ``"RunRefused"`` with the reason, and all go on to the next run. An exception of
        ``run``, ``execute_v2`` and ``execute_async_v3`` about what is given does the same.
        """
        self._context.refuse_run(str(reason))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """What prepares a run: an exception refuses the run."""
        try:
            yield
        except BaseException as error:
            # If this rank cannot tell the others, the communicator has ended.
            with suppress(Error):
                self.refuse_run(text_of(error))
            raise

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Run on the memory that is set. True, or an exception.

        On CPUs the run has ended when this returns, and ``stream_handle`` is not used. On a
        communicator of GPUs it is enqueued on that CUDA stream, and goes on; keep what was set
        until the stream has come to its end.
        """
        with self._refusing():
            self._set_shapes()
            stream = int(stream_handle)
        self._context.execute(stream)
        return True

    def execute_v2(self, bindings: Sequence[Any]) -> bool:
        """Run on this memory: a tensor or an address for each input, then for each output.

        On GPUs too, the run has ended when this returns.
        """
        with self._refusing():
            names = list(self._engine)
            if len(bindings) != len(names):
                raise ArgumentError(f"bindings has {len(bindings)} elements, and the engine's tensors are {names}")
            for name, memory in zip(names, bindings):
                self.set_tensor_address(name, memory)
            self._set_shapes()
        self._context.execute(None)
        return True

    def run(self, inputs: Mapping[str, Any], outputs: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Run on tensors by their names, and give the outputs by their names.

        Inputs get their shapes here. Tensors need not lie one after the other: such ones are copied.
        An output that ``outputs`` lacks is a new array of numpy; it is zero on a rank that does not
        write it. What ``set_tensor_address`` has set stays.

        >>> context.run({"x": x})["y"]      # doctest: +SKIP
        """
        with self._refusing():
            for name, tensor in inputs.items():
                if self._is_dynamic_input(name):
                    self.set_input_shape(name, _shape_of(name, tensor))
                else:
                    _check_shape(name, tensor, self._engine.get_tensor_shape(name))
            self._set_shapes()
            results = dict(outputs or {})
            for name in self._engine:
                if self._engine.get_tensor_mode(name) is TensorIOMode.INPUT:
                    continue
                if name not in results:
                    zeros = importlib.import_module("numpy").zeros
                    results[name] = zeros(self.get_tensor_shape(name), nptype(self._engine.get_tensor_dtype(name)))
                else:
                    _check_shape(name, results[name], self.get_tensor_shape(name))
            for name in results:
                if self._engine.get_tensor_mode(name) is not TensorIOMode.OUTPUT:
                    raise ArgumentError(f"{name!r} is an input; give it in inputs")
        self._context.run([*inputs.items(), *results.items()])
        return results


def _shape_of(name: str, tensor: Any) -> List[int]:
    shape = getattr(tensor, "shape", None)
    if shape is None:
        raise TypeError(f"{name}: it is a {type(tensor).__qualname__}, not a tensor; give an array of numpy")
    return [int(length) for length in shape]


def _check_shape(name: str, tensor: Any, expected: Sequence[int]) -> None:
    shape = _shape_of(name, tensor)
    if shape != list(expected):
        raise ArgumentError(f"{name} has the shape {shape}, and the engine has {list(expected)} there")
