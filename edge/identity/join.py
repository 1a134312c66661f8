"""A join: a node gets its identity from a hub with a token.

Rules:

* The first connection reads the hub's CA certificates and proves nothing. They count only if one of them has the key of
  the token's pin.
* The second connection is verified with these CAs, the host's name included. Only there the agent sends the token's
  secret.
* The same join may run again until it succeeds: the hub answers the same key with the same certificate.
* The agent may run meanwhile, but does not renew then. It moves to the new certificate by itself.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from common.errors import DialError, HandshakeRefused, SettingsError
from common.messages import Kind
from common.net.certificate import key_fingerprint
from common.net.endpoint import Endpoint
from common.net.enrolment import AskCa, CaCertificates, Issued, Join, JoinToken
from common.net.proxy import Proxy
from common.session.limits import Limits
from edge.identity.hub_questions import ask_at, first_answer, unverified, verified
from edge.identity.identity import Identity, Joined
from edge.identity.key_maker import answer


async def join(token: JoinToken, node: str, state_dir: Path, *, limits: Limits, proxy: Proxy | None = None) -> Joined:
    """Get the node's identity from the hub of a token, and store it.

    Raises:
        SettingsError: the state directory cannot be written or is another node's, or its agent renews it now.
        DialError: no address of the token leads to its hub.
        HandshakeRefused: the hub refused the join.
        CallError: the hub has no such part.
    """
    identity = Identity(state_dir, answer)
    former = await asyncio.to_thread(identity.joined)
    if former is not None and former.node != node:
        raise SettingsError("--node", node, f"{state_dir} has joined as {former.node}; take another --state-dir")
    try:
        with identity.held():
            await _join(identity, token, node, limits=limits, proxy=proxy)
    except BlockingIOError as error:
        why = "its agent, or another join, gets a certificate for it at this moment; run the command again"
        raise SettingsError("--state-dir", state_dir, why) from error
    except OSError as error:
        raise SettingsError("--state-dir", state_dir, f"cannot be written: {error.strerror or error}") from error
    except HandshakeRefused as error:
        if former is None:
            raise
        why = f"{error.why}; {state_dir} has joined before, and keeps that identity"
        raise HandshakeRefused(error.reason, why) from error
    joined = await asyncio.to_thread(identity.joined)
    assert joined is not None
    return joined


async def _join(identity: Identity, token: JoinToken, node: str, *, limits: Limits, proxy: Proxy | None) -> None:
    request = await asyncio.to_thread(identity.request, token.id)
    asking = partial(_ask, Join(token.id, token.secret, node, request), token, limits=limits, proxy=proxy)
    issued, endpoint = await first_answer(token.joins, asking)
    try:
        store = partial(identity.store, issued, node, now=time.time(), host=endpoint.host, token=token.id)
        await asyncio.to_thread(store)
    except ValueError as error:
        raise DialError(str(endpoint), str(error)) from error


async def _ask(question: Join, token: JoinToken, endpoint: Endpoint, *, limits: Limits, proxy: Proxy | None) -> Issued:
    asking = partial(ask_at, endpoint, node=question.node, limits=limits, proxy=proxy)
    answer: CaCertificates = await asking(Kind.CA, AskCa(), CaCertificates, tls=unverified())
    tls = verified(_pinned(answer.pem, token.pin, endpoint))
    issued: Issued = await asking(Kind.JOIN, question, Issued, tls=tls)
    return issued


def _pinned(pem: bytes, pin: bytes, endpoint: Endpoint) -> str:
    # Other CAs that the hub told count only after the join.
    try:
        for certificate in x509.load_pem_x509_certificates(pem):
            if key_fingerprint(certificate.public_key()) == pin.hex():
                return certificate.public_bytes(Encoding.PEM).decode()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DialError(str(endpoint), f"its CA certificates cannot be read: {error}") from error
    why = (
        "it is not the hub of this token: its CA has another key than the token's pin. Something between this node and "
        "the hub answers in its place, or the hub's CA was replaced after the token was made"
    )
    raise DialError(str(endpoint), why)
