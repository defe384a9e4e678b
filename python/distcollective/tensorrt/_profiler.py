"""The times of layers."""

from typing import NamedTuple, Optional


class LayerTime(NamedTuple):
    """How long one layer took in one run on this rank."""

    #: The name of the layer. A run that replays a CUDA graph is one entry, "CUDA graph".
    layer: str
    #: When it began, in seconds of ``time.monotonic()``.
    begin: float
    #: How long it took, in milliseconds.
    ms: float
    #: The part of that in which this rank waited for other ranks; None on GPUs, where NCCL waits
    #: inside its kernels.
    wait_ms: Optional[float]
    #: The bytes of the inputs that it reads on this rank, and of the outputs that it writes.
    input_bytes: int
    output_bytes: int


class IProfiler:
    """What a context tells of its layers' times. Inherit, and write one of the two methods.

    >>> class Slowest(IProfiler):
    ...     def report_layer_time(self, layer_name, ms):
    ...         pass
    """

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Take a layer's name, and its time in milliseconds."""
        raise NotImplementedError(f"{type(self).__qualname__} has no method report_layer_time(layer_name, ms)")

    def report_layer(self, time: LayerTime) -> None:
        """Take all that is known of a layer's time. TensorRT does not have this method."""
        self.report_layer_time(time.layer, time.ms)


class Profiler(IProfiler):
    """Prints each layer's time."""

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Print a layer's time."""
        print(f"{layer_name}: {ms}ms")
