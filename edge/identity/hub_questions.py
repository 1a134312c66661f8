"""Questions to the hub for certificates, each on a link of its own to the join listener or on the agent's.

The hub answers each question with one message (`common.net.enrolment`). A `JoinRefused` becomes a `HandshakeRefused`.
"""

import asyncio
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from common.errors import CallError, DialError, HandshakeRefused, RemoteProtocolError, TunnelClosed, not_carried
from common.links.dial import dial
from common.messages import Kind, Priority, Reason
from common.net.endpoint import Endpoint, hub_endpoint
from common.net.enrolment import Answer, JoinRefused, Request, decode, encode
from common.net.proxy import Proxy
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Link, LinkHandler
from common.status import Code, Origin

ANSWER_S = 30.0  # The hub answers within this time, or the question counts as failed. It writes to its disk first.

A = TypeVar("A", bound=Answer)


async def ask(link: Link, kind: Kind, question: Request, wanted: type[A]) -> A:
    """Ask on a link, and return the answer.

    Raises:
        HandshakeRefused: the hub refused; the error has its reason and sentence.
        CallError: the hub does not know the question; it is older, or has no part for it.
        DialError: the answer did not come, or is no answer to the question.
    """
    hub = str(link.peer_identity.address)
    try:
        stream = link.open(kind, encode(question), priority=Priority.CONTROL, timeout_s=ANSWER_S)
        try:
            message = await stream.receive()
            answer = decode(message) if message is not None else None
        finally:
            stream.cancel()
    except (TunnelClosed, CallError, RemoteProtocolError) as error:
        raise DialError(hub, f"it has not answered the question {kind.name}: {error}") from error
    if isinstance(answer, JoinRefused):
        raise HandshakeRefused(answer.reason, answer.message)
    if isinstance(answer, wanted):
        return answer
    status = stream.status
    if status is not None and status.code == Code.UNIMPLEMENTED:
        raise not_carried(f"the question {kind.name}", status.message)
    why = status.message if status is not None and status.message else "it sent another message than the answer"
    raise DialError(hub, why)


async def ask_at(
    endpoint: Endpoint,
    kind: Kind,
    question: Request,
    wanted: type[A],
    *,
    node: str,
    tls: ssl.SSLContext,
    limits: Limits,
    proxy: Proxy | None = None,
) -> A:
    """Ask on a new link to the join listener. Errors as of `ask`."""
    hello = introduce("edge", node, instance=secrets.token_hex(8))
    link = await dial(endpoint, hello, LinkHandler(Origin.EDGE), limits=limits, tls=tls, proxy=proxy)
    try:
        return await ask(link, kind, question, wanted)
    finally:
        link.goodbye(Reason.DONE, "the node has its answer")
        await asyncio.shield(link.wait_closed())


async def first_answer(addresses: Iterable[str], asking: Callable[[Endpoint], Awaitable[A]]) -> tuple[A, Endpoint]:
    """Ask at one address after another, until one of them leads to the hub. Returns its answer and this address."""
    failure: DialError | None = None
    for endpoint in map(hub_endpoint, addresses):
        try:
            return await asking(endpoint), endpoint
        except DialError as error:
            failure = error
    assert failure is not None  # there is an address
    raise failure


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def verified(authorities: str) -> ssl.SSLContext:
    """The context of a connection to a server with a certificate of these CAs, for the host's name. We show none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as for links (`common.net.tls`)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the pinned CA may be an intermediate one
    context.load_verify_locations(cadata=authorities)
    return context
