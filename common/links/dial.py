"""A dial: one attempt to make a link, by connect, TLS, WebSocket and hello."""

import asyncio
import ssl

from common.errors import DialError
from common.links.transport import WebSocket
from common.messages import Hello
from common.net.endpoint import Endpoint
from common.net.proxy import Proxy, through
from common.net.tcp import RawTcp, connect, describe_error, limit_write_buffer
from common.session.limits import Limits
from common.session.link import Link, LinkHandler, Side


async def dial(
    endpoint: Endpoint,
    hello: Hello,
    handler: LinkHandler,
    *,
    limits: Limits,
    tls: ssl.SSLContext | None = None,
    proxy: Proxy | None = None,
) -> Link:
    """Make one link. All steps together may take `limits.hello_timeout_s`. `proxy` is for `wss://` alone.

    Cancelling it closes the connection.

    Raises DialError: no process answers there, the proxy refuses, or the peer is no hub; HandshakeRefused: the hub
    refused our hello.
    """
    try:
        async with asyncio.timeout(limits.hello_timeout_s):
            websocket = WebSocket(Side(hello, handler, limits), to=endpoint)
            try:
                await _connect(endpoint, websocket, limits, tls, proxy)
                link = await websocket.opened()
                await link.wait_greeted()
            except BaseException:
                websocket.abort("the dial was given up")
                raise
            return link
    except TimeoutError:
        raise DialError(str(endpoint), f"no answer within {limits.hello_timeout_s:g} s") from None
    # `ssl.SSLError` is an OSError. The idna codec raises UnicodeError for a name that no host can have.
    except (OSError, UnicodeError) as error:
        raise DialError(str(endpoint), describe_error(error)) from error


async def _connect(
    endpoint: Endpoint, websocket: WebSocket, limits: Limits, tls: ssl.SSLContext | None, proxy: Proxy | None
) -> None:
    if endpoint.path is not None:
        await asyncio.get_running_loop().create_unix_connection(lambda: websocket, str(endpoint.path))
        return
    # `through` returns None if the endpoint is dialled without a proxy.
    raw = await through(proxy, endpoint, limits) if endpoint.tls else None
    if raw is None:
        # `connect` may try several addresses, and makes a new protocol for each. There is only one WebSocket, so it
        # replaces the `RawTcp` that has connected.
        _, raw = await connect(RawTcp, endpoint.host, endpoint.port, limit_s=limits.hello_timeout_s)
    if not endpoint.tls:
        raw.hand_over(websocket)
        return
    assert tls is not None
    limit_write_buffer(raw.transport)  # the WebSocket limits only the buffer of TLS, above this one
    secure = await raw.secure(websocket, tls, server_hostname=endpoint.host)
    websocket.connection_made(secure)  # start_tls() leaves this call to its caller
