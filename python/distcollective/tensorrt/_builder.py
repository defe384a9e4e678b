"""Builders, their configurations, and optimization profiles."""

from typing import Dict, Iterable, List, Tuple

from ..errors import ArgumentError, Error
from ._engine import ICudaEngine, IHostMemory
from ._enums import BuilderFlag, MemoryPoolType, PreviewFeature, ProfilingVerbosity, Severity
from ._errors import Guarded
from ._logger import ILogger, check_logger
from ._network import INetworkDefinition
from ._values import Dims, dims_of

#: min, opt and max.
_Shapes = Tuple[Dims, Dims, Dims]


class IOptimizationProfile(Guarded):
    """The shapes that dynamic inputs have: between which ones they lie."""

    def __init__(self) -> None:
        self._shapes: Dict[str, _Shapes] = {}

    def set_shape(self, input: str, min: Iterable[int], opt: Iterable[int], max: Iterable[int]) -> None:
        """Set the smallest, the usual and the largest shape of an input. They are checked at build."""
        self._shapes[input] = (Dims(dims_of(min)), Dims(dims_of(opt)), Dims(dims_of(max)))

    def get_shape(self, input: str) -> List[Dims]:
        """The three shapes of an input; empty if none are set."""
        return list(self._shapes.get(input, ()))

    @property
    def extra_memory_target(self) -> float:
        """TensorRT's default; it has no effect here."""
        return 1.0

    def __bool__(self) -> bool:
        return True


class IBuilderConfig(Guarded):
    """How an engine is built: its profiles. All else is accepted and has no effect."""

    def __init__(self) -> None:
        self._profiles: List[IOptimizationProfile] = []
        self._flags = 0
        self._limits: Dict[MemoryPoolType, int] = {}
        self._features: Dict[PreviewFeature, bool] = {}
        self._numbers = {"builder_optimization_level": 3, "avg_timing_iterations": 1, "max_aux_streams": 0}
        self._verbosity = ProfilingVerbosity.DETAILED

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        """Add a profile, and give its index."""
        if not isinstance(profile, IOptimizationProfile):
            raise TypeError(f"profile is a {type(profile).__qualname__}; give builder.create_optimization_profile()")
        self._profiles.append(profile)
        return len(self._profiles) - 1

    @property
    def num_optimization_profiles(self) -> int:
        """The number of profiles."""
        return len(self._profiles)

    @property
    def flags(self) -> int:
        """The flags, as bits. They have no effect."""
        return self._flags

    @flags.setter
    def flags(self, flags: int) -> None:
        for number in range(int(flags).bit_length()):
            if flags >> number & 1:
                BuilderFlag(number)
        self._flags = int(flags)

    def set_flag(self, flag: BuilderFlag) -> None:
        """Set a flag. It has no effect: tensors have the types that the network says."""
        self._flags |= 1 << int(BuilderFlag(flag))

    def clear_flag(self, flag: BuilderFlag) -> None:
        """Clear a flag."""
        self._flags &= ~(1 << int(BuilderFlag(flag)))

    def get_flag(self, flag: BuilderFlag) -> bool:
        """Whether a flag is set."""
        return bool(self._flags >> int(BuilderFlag(flag)) & 1)

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        """Limit memory of TensorRT's builder. It has no effect: building here needs none."""
        self._limits[MemoryPoolType(pool)] = int(pool_size)

    def get_memory_pool_limit(self, pool: MemoryPoolType) -> int:
        """The limit that was set; 0 if none was."""
        return self._limits.get(MemoryPoolType(pool), 0)

    def set_preview_feature(self, feature: PreviewFeature, enable: bool) -> None:
        """Turn on a feature. It has no effect: collectives are always there."""
        self._features[PreviewFeature(feature)] = bool(enable)

    def get_preview_feature(self, feature: PreviewFeature) -> bool:
        """Whether a feature was turned on."""
        return self._features.get(PreviewFeature(feature), False)

    @property
    def builder_optimization_level(self) -> int:
        """How long TensorRT looks for fast kernels. It has no effect."""
        return self._numbers["builder_optimization_level"]

    @builder_optimization_level.setter
    def builder_optimization_level(self, level: int) -> None:
        self._numbers["builder_optimization_level"] = int(level)

    @property
    def avg_timing_iterations(self) -> int:
        """How often TensorRT times a kernel. It has no effect."""
        return self._numbers["avg_timing_iterations"]

    @avg_timing_iterations.setter
    def avg_timing_iterations(self, count: int) -> None:
        self._numbers["avg_timing_iterations"] = int(count)

    @property
    def max_aux_streams(self) -> int:
        """How many more streams TensorRT may use. It has no effect."""
        return self._numbers["max_aux_streams"]

    @max_aux_streams.setter
    def max_aux_streams(self, count: int) -> None:
        self._numbers["max_aux_streams"] = int(count)

    @property
    def profiling_verbosity(self) -> ProfilingVerbosity:
        """How much TensorRT keeps for its inspector. It has no effect."""
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, verbosity: ProfilingVerbosity) -> None:
        self._verbosity = ProfilingVerbosity(verbosity)


class Builder(Guarded):
    """Makes networks, configurations and engines.

    >>> builder = Builder(Logger())                                  # doctest: +SKIP
    >>> network = builder.create_network()                           # doctest: +SKIP
    >>> config = builder.create_builder_config()                     # doctest: +SKIP
    >>> plan = builder.build_serialized_network(network, config)     # doctest: +SKIP
    """

    def __init__(self, logger: ILogger) -> None:
        self._logger = check_logger(logger)

    @property
    def logger(self) -> ILogger:
        """The log."""
        return self._logger

    @property
    def platform_has_fast_fp16(self) -> bool:
        """True: half precision is offered everywhere."""
        return True

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        """A network without tensors. ``flags`` has no effect: it always has strong types."""
        if int(flags) >> 2:
            raise ArgumentError(f"flags is {flags:#b}; the flags are EXPLICIT_BATCH and STRONGLY_TYPED")
        return INetworkDefinition(self)

    def create_builder_config(self) -> IBuilderConfig:
        """A configuration without profiles."""
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        """A profile without shapes, to fill and to add to a configuration."""
        return IOptimizationProfile()

    def build_engine_with_config(self, network: INetworkDefinition, config: IBuilderConfig) -> ICudaEngine:
        """Build an engine, without a plan. The log gets what may be a mistake.

        Raises an ``Error`` with all mistakes of the network, where TensorRT gives None.
        """
        profiles = [list(profile._shapes.items()) for profile in config._profiles]
        shapes = [[(name, [list(dims) for dims in points]) for name, points in profile] for profile in profiles]
        try:
            engine = network._network.build(shapes)
        except Error as error:
            self._logger.log(Severity.ERROR, str(error))
            raise
        for warning in engine.warnings():
            self._logger.log(Severity.WARNING, warning)
        return ICudaEngine(engine, network.name)

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory:
        """Build an engine, and give its plan: bytes, which ``Runtime`` reads.

        Raises an ``Error`` with all mistakes of the network, where TensorRT gives None; and if a
        plugin cannot be serialized.
        """
        return self.build_engine_with_config(network, config).serialize()

    def is_network_supported(self, network: INetworkDefinition, config: IBuilderConfig) -> bool:
        """Whether the network can be built. The log says why not."""
        try:
            self.build_engine_with_config(network, config)
        except Error:
            return False
        return True
