"""The page tokens of a driver with an elected node: each says at which node its list goes on. Pure.

A sidecar reads a long list page by page, and another node may take over between two pages. Its driver may not know the
old one's token, or take it for a place in a list of its own. So the hub puts the node's name before the driver's token,
and refuses a token of another node with ABORTED: the caller begins again (CSI spec, "ListVolumes Errors").
"""

from typing import Any, Final

from google.protobuf.message import DecodeError

from cloud.node_call import Caller
from common.csi.methods import METHODS
from common.status import Status

_PREFIX: Final = "csi-bridge-at:"


def node_of(token: str) -> str:
    """The node of a token; empty if no hub made it."""
    return token.removeprefix(_PREFIX).partition(":")[0] if token.startswith(_PREFIX) else ""


def for_driver(method: str, request: bytes) -> bytes:
    """The request of a list, with the driver's own token. It has been read before."""
    message: Any = METHODS[method].request.FromString(request)
    if not node_of(message.starting_token):
        return request
    message.starting_token = message.starting_token.removeprefix(_PREFIX).partition(":")[2]
    return bytes(message.SerializeToString())


class PageCaller:
    """A caller of a list whose next page is at the same node (`cloud.node_call.Caller`)."""

    __slots__ = ("_caller", "_method", "_node")

    def __init__(self, caller: Caller, method: str, node: str) -> None:
        """A caller who gets the answer of a node with the hub's token."""
        self._caller, self._method, self._node = caller, method, node

    def sent(self) -> None:
        """See `Caller`."""
        self._caller.sent()

    def answered(self, message: bytes) -> None:
        """See `Caller`."""
        self._caller.answered(message)

    def ended(self, status: Status, message: bytes | None) -> None:
        """See `Caller`."""
        self._caller.ended(status, _for_caller(self._method, message, self._node) if message else message)

    def failed(self, error: Exception) -> None:
        """See `Caller`."""
        self._caller.failed(error)


def _for_caller(method: str, answer: bytes, node: str) -> bytes:
    """The driver's answer with the hub's token. One that does not parse stays as it is."""
    kind: Any = METHODS[method].response
    try:
        token = kind.FromString(answer).next_token
    except DecodeError:
        return answer
    # Of a field that is there twice the last one counts: the driver's bytes stay as they are.
    return answer + bytes(kind(next_token=f"{_PREFIX}{node}:{token}").SerializeToString()) if token else answer
