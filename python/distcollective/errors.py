"""The exceptions of this package. Each text says what is wrong and on which rank."""


class Error(RuntimeError):
    """An error of a call: a peer failed, ranks disagree, the system refused something.

    ``kind`` names the case, such as ``"PeerLost"`` or ``"Disagreement"``.
    """

    kind: str = "System"


class DeadlineError(Error, TimeoutError):
    """Other ranks did not make the call in time."""

    kind = "DeadlineExceeded"


class ArgumentError(Error, ValueError):
    """An argument is wrong. Nothing has happened, and the group still works."""

    kind = "InvalidArgument"


def text_of(error: BaseException) -> str:
    """What an exception says, as other ranks read it."""
    return (str(error) or type(error).__name__).encode("utf-8", "replace").decode("utf-8")
