"""An operator: the end of a link to the hub on this host that a command for people holds.

It opens streams, and serves none.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator

from common.errors import DialError
from common.links.dial import dial
from common.messages import Reason
from common.net.endpoint import Endpoint
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, LinkHandler
from common.status import Origin

_WHERE = (
    "run this on the hub's host, or in its pod (kubectl -n csi-bridge exec csi-bridge-hub-0 -- csi-bridge …), and see "
    "that the hub runs; --hub names its socket if it is another one"
)


def in_words(error: BaseException | None) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return f"there is no such socket here; {_WHERE}"
        case ConnectionRefusedError():
            return f"no hub listens on this socket; {_WHERE}"
        case PermissionError():
            return "the socket is closed to this user; run this as root or as the hub's user"
    return ""


@contextlib.asynccontextmanager
async def connected(hub: Endpoint, *, limits: Limits) -> AsyncIterator[Link]:
    try:
        hello = introduce("operator", "operator", instance=secrets.token_hex(8))
        link = await dial(hub, hello, LinkHandler(Origin.PROXY), limits=limits)
    except DialError as error:
        raise DialError(error.endpoint, in_words(error.__cause__) or error.why) from error
    try:
        yield link
    finally:
        link.goodbye(Reason.DONE, "the operator has its answer")
        await link.wait_closed()
