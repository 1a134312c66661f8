"""An attacker between a node and the hub answers the node's join in the hub's place."""

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common.errors import DialError
from common.links.listener import Listener
from common.messages import Kind
from common.net.enrolment import CaCertificates, Issued, JoinToken, encode
from common.net.tls import TlsFiles, TlsIdentity
from common.observe.version import introduce
from common.session.limits import Limits
from common.session.link import Side, Stream
from common.status import Code, Origin, Status
from edge.identity.identity import Identity
from edge.identity.join import join
from tests.kit.certificates import Authority, Pem
from tests.kit.linked import Peer

SECRET = b"the-secret-of-the-token-32-bytes"

LIMITS = Limits(hello_timeout_s=5.0)


class FalseHub(Peer):
    """The attacker: tells a CA of its choice, and keeps all that it hears."""

    origin = Origin.HUB

    def __init__(self, ca: bytes) -> None:
        super().__init__(self._answer)
        self.heard = b""
        self.kinds: list[int] = []
        self._ca = ca

    async def _answer(self, stream: Stream) -> None:
        assert stream.opened is not None
        self.kinds.append(stream.opened.kind)
        self.heard += await stream.receive() or b""
        issued = Issued(b"", self._ca, 1, 0, ("wss://evil.example:1",), ())
        answer = issued if stream.opened.kind == Kind.JOIN else CaCertificates(self._ca)
        stream.end(Status(Code.OK), encode(answer))


@contextlib.asynccontextmanager
async def listening(handler: FalseHub, pem: Pem, host: str = "127.0.0.1") -> AsyncIterator[str]:
    tls = TlsIdentity(TlsFiles(pem.ca, pem.cert, pem.key), server=True, asks=False)
    listener = Listener(
        socket.create_server((host, 0)),
        Side(introduce("hub", "hub", instance="hub"), handler, LIMITS),
        tls=tls.context,
    )
    await listener.start()
    try:
        yield f"wss://{listener.address}"
    finally:
        await listener.close()
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected connections are gone when a test ends."""
    monkeypatch.setattr("common.net.tcp.LINGER_S", 0.001)
    monkeypatch.setattr("common.links.transport.LINGER_S", 0.001)


@pytest.fixture
def hubs_ca(tmp_path: Path) -> Authority:
    """The CA of the true hub, whose key the token pins."""
    return Authority(tmp_path, name="the hubs CA")


@pytest.fixture
def attackers_ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path, name="the attackers CA")


def token(address: str, authority: Authority) -> JoinToken:
    certificate = x509.load_pem_x509_certificate(authority.path.read_bytes())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return JoinToken((address,), hashlib.sha256(key).digest(), "t-1", SECRET)


async def refusal(handler: FalseHub, pem: Pem, authority: Authority, state_dir: Path) -> str:
    """Why a join at the attacker's listener fails."""
    async with listening(handler, pem) as address:
        with pytest.raises(DialError) as error:
            await join(token(address, authority), "n1", state_dir, limits=LIMITS)
    assert SECRET not in handler.heard
    assert Identity(state_dir).joined() is None
    return error.value.why


@pytest.mark.parametrize(
    ("tells", "why"),
    [
        ("its own", "its CA has another key than the token's pin"),
        ("the true one", "its certificate is not trusted"),
        ("both", "its certificate is not trusted"),
    ],
)
async def test_a_false_hub_gets_no_secret_whatever_ca_it_tells(
    hubs_ca: Authority, attackers_ca: Authority, tmp_path: Path, tells: str, why: str
) -> None:
    true, own = hubs_ca.path.read_bytes(), attackers_ca.path.read_bytes()
    handler = FalseHub({"its own": own, "the true one": true, "both": own + true}[tells])
    assert why in await refusal(handler, attackers_ca.hub(), hubs_ca, tmp_path / "state")
    assert handler.kinds == [Kind.CA]


async def test_a_node_with_a_certificate_of_the_true_ca_is_no_hub(hubs_ca: Authority, tmp_path: Path) -> None:
    handler = FalseHub(hubs_ca.path.read_bytes())
    told = await refusal(handler, hubs_ca.edge("n7"), hubs_ca, tmp_path / "state")
    assert "its certificate is not trusted" in told
    assert handler.kinds == [Kind.CA]


async def test_a_hub_under_another_hosts_name_gets_no_secret(hubs_ca: Authority, tmp_path: Path) -> None:
    handler = FalseHub(hubs_ca.path.read_bytes())
    async with listening(handler, hubs_ca.hub(), "127.0.0.2") as address:
        with pytest.raises(DialError, match="its certificate is not trusted"):
            await join(token(address, hubs_ca), "n1", tmp_path / "state", limits=LIMITS)
    assert handler.kinds == [Kind.CA]


@pytest.mark.parametrize(
    "ca", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
async def test_a_false_hub_without_a_readable_ca_gets_no_secret(
    hubs_ca: Authority, attackers_ca: Authority, tmp_path: Path, ca: bytes
) -> None:
    handler = FalseHub(ca)
    await refusal(handler, attackers_ca.hub(), hubs_ca, tmp_path / "state")


async def test_what_the_true_hub_sends_in_place_of_a_certificate_is_not_stored(
    hubs_ca: Authority, tmp_path: Path
) -> None:
    handler = FalseHub(hubs_ca.path.read_bytes())
    async with listening(handler, hubs_ca.hub()) as address:
        with pytest.raises(DialError):
            await join(token(address, hubs_ca), "n1", tmp_path / "state", limits=LIMITS)
    assert handler.kinds == [Kind.CA, Kind.JOIN]
    assert Identity(tmp_path / "state").joined() is None
