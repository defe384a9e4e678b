"""What a program asks for that is not here."""

from typing import Any

from ..errors import Error

_WAY = (
    "networks of distcollective.tensorrt have collectives and the layers directly around them; for all else, write a "
    "plugin layer: network.add_plugin([tensors], plugin) runs Python on arrays of numpy"
)


class UnsupportedError(Error, AttributeError):
    """A layer, method, attribute or constant of TensorRT that this package does not have.

    It is an ``AttributeError`` too, so that ``hasattr`` gives False.
    """

    kind = "Unsupported"

    @classmethod
    def of(cls, subject: str, more: str = "") -> "UnsupportedError":
        """The error of something of TensorRT's, with what there is instead."""
        return cls(f"{subject} is not offered: {f'{more}; ' if more else ''}{_WAY}")


class Guarded:
    """A class of TensorRT: what it does not have here is an error that names the plugin layer.

    That is so for an attribute that a program sets, too: it would have no effect. None is accepted,
    because it is TensorRT's default.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise UnsupportedError.of(f"{type(self).__name__}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name):
            if value is None:
                return
            raise UnsupportedError.of(f"{type(self).__name__}.{name}")
        object.__setattr__(self, name, value)
