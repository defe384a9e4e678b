"""Bytes of unknown length, and objects as pickled bytes."""

import importlib
import os
import pickle
from typing import Any, List, Optional

from ..errors import ArgumentError, Error
from ._collectives import list_of_root
from ._groups import Group, ProcessGroup, allows_pickle, member
from ._messages import recv, send

#: The most bytes of pickled objects that a rank receives from another one.
_LONGEST = 1 << 30


def broadcast_bytes(data: bytes = b"", src: int = 0, group: Group = None) -> bytes:
    """Give every rank the bytes of global rank ``src``, such as JSON. Other ranks' are ignored.

    >>> dist.run_threads(2, lambda: dist.broadcast_bytes(b"{}" if dist.get_rank() == 0 else b""))
    [b'{}', b'{}']
    """
    found = member(group, "broadcast_bytes")
    if found is None:
        return b""
    return found._live().broadcast_bytes(data, found._group_rank(src, "src"))


def _objects(group: Group, name: str) -> Optional[ProcessGroup]:
    """The group for a call on objects, if the program trusts its peers."""
    if not allows_pickle() and os.environ.get("DCL_ALLOW_PICKLE") != "1":
        raise Error(
            f"{name} unpickles what a peer sends, and that can run any code; if all ranks are trusted, give "
            "allow_pickle=True to init_process_group, or set DCL_ALLOW_PICKLE=1; else send bytes, such as JSON, with "
            "broadcast_bytes"
        )
    return member(group, name)


def broadcast_object_list(
    object_list: List[Any],
    src: Optional[int] = None,
    group: Group = None,
    device: Any = None,
    group_src: Optional[int] = None,
) -> None:
    """Replace the objects of the list on every rank by those of global rank ``src``, by default 0.

    All functions on objects need ``allow_pickle=True`` in ``init_process_group``, or the variable
    ``DCL_ALLOW_PICKLE=1``. No rank reads ``device``: objects are in host memory.
    """
    found = _objects(group, "broadcast_object_list")
    if found is None:
        return
    root = found._root("src", src, group_src)
    data = pickle.dumps(list(object_list)) if found.rank() == root else b""
    got = pickle.loads(found._live().broadcast_bytes(data, root))
    if len(got) != len(object_list):
        raise ArgumentError(f"object_list has {len(object_list)} objects, and src gives {len(got)}")
    object_list[:] = got


def all_gather_object(object_list: List[Any], obj: Any, group: Group = None) -> None:
    """Put the object of each rank into the list."""
    found = _objects(group, "all_gather_object")
    if found is not None:
        _put(object_list, found._live().all_gather_bytes(pickle.dumps(obj)), "object_list")


def gather_object(
    obj: Any,
    object_gather_list: Optional[List[Any]] = None,
    dst: Optional[int] = None,
    group: Group = None,
    group_dst: Optional[int] = None,
) -> None:
    """Put the object of each rank into the list of global rank ``dst``, by default 0."""
    found = _objects(group, "gather_object")
    if found is None:
        return
    root = found._root("dst", dst, group_dst)
    list_of_root("object_gather_list", object_gather_list, "dst", root, found)
    got = found._live().gather_bytes(pickle.dumps(obj), root)
    if got is not None and object_gather_list is not None:
        _put(object_gather_list, got, "object_gather_list")


def _put(objects: List[Any], got: List[bytes], name: str) -> None:
    if len(objects) != len(got):
        raise ArgumentError(f"{name} has {len(objects)} places, and the group {len(got)} ranks")
    objects[:] = [pickle.loads(data) for data in got]


def scatter_object_list(
    scatter_object_output_list: List[Any],
    scatter_object_input_list: Optional[List[Any]] = None,
    src: Optional[int] = None,
    group: Group = None,
    group_src: Optional[int] = None,
) -> None:
    """Put one object of the list of global rank ``src`` into each rank's list, in its first place."""
    found = _objects(group, "scatter_object_list")
    if found is None:
        return
    if not scatter_object_output_list:
        raise ArgumentError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    root = found._root("src", src, group_src)
    # As in torch, the other ranks may give any list.
    objects = scatter_object_input_list if found.rank() == root else None
    list_of_root("scatter_object_input_list", objects, "src", root, found)
    given = None if objects is None else [pickle.dumps(each) for each in objects]
    scatter_object_output_list[0] = pickle.loads(found._live().scatter_bytes(given, root))


def send_object_list(
    object_list: List[Any],
    dst: Optional[int] = None,
    group: Group = None,
    device: Any = None,
    group_dst: Optional[int] = None,
) -> None:
    """Send the objects of the list to global rank ``dst``."""
    if _objects(group, "send_object_list") is None:
        return
    numpy = importlib.import_module("numpy")
    data = pickle.dumps(list(object_list))
    send(numpy.array([len(data)]), dst, group, group_dst=group_dst)
    send(numpy.frombuffer(data, numpy.uint8), dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: List[Any],
    src: Optional[int] = None,
    group: Group = None,
    device: Any = None,
    group_src: Optional[int] = None,
) -> int:
    """Receive objects into the list from global rank ``src``, or from any. Gives the sender's."""
    if _objects(group, "recv_object_list") is None:
        return -1
    numpy = importlib.import_module("numpy")
    length = numpy.zeros(1, numpy.int64)
    source = recv(length, src, group, group_src=group_src)
    if not 0 <= length[0] <= _LONGEST:
        raise Error(f"rank {source} would send {length[0]} bytes; the most are {_LONGEST}")
    data = numpy.zeros(length[0], numpy.uint8)
    recv(data, source, group)
    got = pickle.loads(data.tobytes())
    if len(got) != len(object_list):
        raise ArgumentError(f"object_list has {len(object_list)} objects, and rank {source} sends {len(got)}")
    object_list[:] = got
    return source
