"""Bytes of unknown length, in place of torch's object collectives."""

from typing import Any, NoReturn

from ..errors import Error
from ._groups import Group, member


def broadcast_bytes(data: bytes = b"", src: int = 0, group: Group = None) -> bytes:
    """Give every rank the bytes of global rank ``src``, such as JSON. Other ranks' are ignored.

    >>> dist.run_threads(2, lambda: dist.broadcast_bytes(b"{}" if dist.get_rank() == 0 else b""))
    [b'{}', b'{}']
    """
    found = member(group, "broadcast_bytes")
    if found is None:
        return b""
    return found._live().broadcast_bytes(data, found._group_rank(src, "src"))


def _refuse(name: str) -> NoReturn:
    raise Error(
        f"{name} is not offered: it would unpickle what a peer sends, and that can run any code; send bytes, such as "
        "JSON, with broadcast_bytes"
    )


def broadcast_object_list(*_: Any, **__: Any) -> NoReturn:
    """Raise an error that names ``broadcast_bytes``."""
    _refuse("broadcast_object_list")


def all_gather_object(*_: Any, **__: Any) -> NoReturn:
    """Raise an error that names ``broadcast_bytes``."""
    _refuse("all_gather_object")


def gather_object(*_: Any, **__: Any) -> NoReturn:
    """Raise an error that names ``broadcast_bytes``."""
    _refuse("gather_object")


def scatter_object_list(*_: Any, **__: Any) -> NoReturn:
    """Raise an error that names ``broadcast_bytes``."""
    _refuse("scatter_object_list")


def send_object_list(*_: Any, **__: Any) -> NoReturn:
    """Raise an error that names ``broadcast_bytes``."""
    _refuse("send_object_list")


def recv_object_list(*_: Any, **__: Any) -> NoReturn:
    """Raise an error that names ``broadcast_bytes``."""
    _refuse("recv_object_list")
