"""Messages from one rank to another."""

from typing import Any, Callable, List, Optional, Tuple

from .._core import Work
from ..errors import ArgumentError
from ._groups import Group, ProcessGroup, member

_Message = Tuple[bool, Any, Optional[int], int]


def _message(
    group: ProcessGroup, is_send: bool, tensor: Any, peer: Optional[int], group_peer: Optional[int], tag: int
) -> _Message:
    name = "dst" if is_send else "src"
    if not 0 <= tag < 2**15:
        raise ArgumentError(f"tag is {tag}; it is 0 to {2**15 - 1}")
    is_from_any = not is_send and peer is None and group_peer is None
    return is_send, tensor, None if is_from_any else group._peer(name, peer, group_peer), tag


def isend(
    tensor: Any, dst: Optional[int] = None, group: Group = None, tag: int = 0, group_dst: Optional[int] = None
) -> Optional[Work]:
    """Begin to send the tensor to global rank ``dst``.

    >>> def body():
    ...     x = np.array([dist.get_rank() + 7])
    ...     work = dist.isend(x, dst=1) if dist.get_rank() == 0 else dist.irecv(x, src=0)
    ...     work.wait()
    ...     return x.tolist()
    >>> dist.run_threads(2, body)
    [[7], [7]]
    """
    found = member(group, "isend")
    return None if found is None else found._live().messages([_message(found, True, tensor, dst, group_dst, tag)])


def irecv(
    tensor: Any, src: Optional[int] = None, group: Group = None, tag: int = 0, group_src: Optional[int] = None
) -> Optional[Work]:
    """Begin to receive into the tensor from global rank ``src``, or from any."""
    found = member(group, "irecv")
    return None if found is None else found._live().messages([_message(found, False, tensor, src, group_src, tag)])


def send(
    tensor: Any, dst: Optional[int] = None, group: Group = None, tag: int = 0, group_dst: Optional[int] = None
) -> None:
    """Send the tensor to global rank ``dst``. It may be changed when this returns."""
    found = member(group, "send")
    if found is not None:
        found._live().messages([_message(found, True, tensor, dst, group_dst, tag)], async_op=False)


def recv(
    tensor: Any, src: Optional[int] = None, group: Group = None, tag: int = 0, group_src: Optional[int] = None
) -> int:
    """Receive into the tensor from global rank ``src``, or from any. Gives the sender's.

    >>> def body():
    ...     x = np.zeros(1, np.int64)
    ...     if dist.get_rank() == 0:
    ...         return dist.recv(x), x.tolist()
    ...     dist.send(x + 4, dst=0)
    >>> dist.run_threads(2, body)
    [(1, [4]), None]
    """
    found = member(group, "recv")
    if found is None:
        return -1
    work = found._live().messages([_message(found, False, tensor, src, group_src, tag)], async_op=False)
    (received,) = work.received()
    return -1 if received is None else found._ranks[received[0]]


class P2POp:
    """A message for ``batch_isend_irecv``: ``op`` is ``isend`` or ``irecv``."""

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: Optional[int] = None,
        group: Group = None,
        tag: int = 0,
        group_peer: Optional[int] = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ArgumentError(f"op is {op!r}; it is isend or irecv of this module")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer


def batch_isend_irecv(p2p_op_list: List[P2POp]) -> List[Work]:
    """Begin messages together, so that ranks that send to each other do not wait for each other.

    Gives one ``Work`` for all of them.

    >>> def body():
    ...     mine, theirs = np.array([dist.get_rank()]), np.zeros(1, np.int64)
    ...     other = 1 - dist.get_rank()
    ...     works = dist.batch_isend_irecv([
    ...         dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)
    ...     ])
    ...     [work.wait() for work in works]
    ...     return theirs.tolist()
    >>> dist.run_threads(2, body)
    [[1], [0]]
    """
    if not p2p_op_list or not all(isinstance(message, P2POp) for message in p2p_op_list):
        raise ArgumentError("Invalid ``p2p_op_list``: it is a list of at least one P2POp")
    group = p2p_op_list[0].group
    found = member(group, "batch_isend_irecv")
    for message in p2p_op_list:
        if message.group is not group and member(message.group, "batch_isend_irecv") is not found:
            raise ArgumentError("the messages of p2p_op_list are of one group")
    if found is None:
        return []
    messages = [
        _message(found, message.op is isend, message.tensor, message.peer, message.group_peer, message.tag)
        for message in p2p_op_list
    ]
    return [found._live().messages(messages)]
