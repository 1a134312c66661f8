"""Certificates that the bridge's CA has signed, and that make their holder no node and no driver."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.messages import Goodbye, Hello, Reason
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import CLIENT_AUTH, SERVER_AUTH, Authority
from tests.kit.stranger import Stranger, hello

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Hub]:
    with (
        tempfile.TemporaryDirectory(prefix="csi-") as name,
        Bridge(Path(name), tmp_path_factory.mktemp("logs")) as bridge,
    ):
        yield bridge.start_hub(*authority.hub().flags)


@pytest.fixture(scope="module")
def insecure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with (
        tempfile.TemporaryDirectory(prefix="csi-") as name,
        Bridge(Path(name), tmp_path_factory.mktemp("logs")) as bridge,
    ):
        yield bridge.start_hub()


def answer(hub: Hub, said: Hello, tls: ssl.SSLContext | None) -> str:
    """The hub's answer to a hello: `welcome`, or the reason of its goodbye."""
    with Stranger(hub.address, tls=tls) as peer:
        peer.upgrade()
        peer.frames(said)
        frames = peer.receive()
        assert isinstance(frames, list)
        return frames[0].reason if isinstance(frames[0], Goodbye) else "welcome"


def issued(authority: Authority, name: str, *, role: str = "edge", **how: Any) -> ssl.SSLContext:
    subject = {"edge": ("system:node:", "system:nodes"), "driver": ("csi-bridge:driver:", "csi-bridge:drivers")}[role]
    how = {"common_name": subject[0] + name, "organization": subject[1], "purposes": [CLIENT_AUTH]} | how
    return authority.issue(file="odd", **how).client()


ODD_NAMES = ["../../etc", "n1/..", "N1", "n_1", "-n1", "n1-", "n1.", ".n1", "n 1", "n\N{LATIN SMALL LETTER DOTLESS I}"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_node_name_that_is_no_dns_subdomain_is_refused_whatever_the_certificate(
    hub: Hub, authority: Authority, name: str
) -> None:
    assert answer(hub, hello("edge", name), issued(authority, name)) == Reason.NAME


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_node_name_that_is_no_dns_subdomain_is_refused_without_tls_too(insecure: Hub, name: str) -> None:
    assert answer(insecure, hello("edge", name), None) == Reason.NAME


@pytest.mark.parametrize("role", ["edge", "driver"])
@pytest.mark.parametrize("purposes", [None, [ExtendedKeyUsageOID.CODE_SIGNING, CLIENT_AUTH][:1]])
def test_a_certificate_that_is_not_for_clients_is_refused(
    hub: Hub, authority: Authority, role: str, purposes: list[Any] | None
) -> None:
    with Stranger(hub.address, tls=issued(authority, "x", role=role, purposes=purposes)) as peer:
        peer.send(b"")
        assert not admitted(peer, hello(role, "x"))


def admitted(peer: Stranger, said: Hello) -> bool:
    """Whether the hub welcomes a peer; TLS 1.3 tells a client of its refusal only when the client reads."""
    try:
        peer.upgrade()
        peer.frames(said)
        frames = peer.receive()
    except Exception:  # noqa: BLE001  # any end of the connection is a refusal
        return False
    return isinstance(frames, list) and isinstance(frames[0], Hello)


def test_a_hubs_certificate_admits_no_node(hub: Hub, authority: Authority) -> None:
    with Stranger(hub.address, tls=issued(authority, "x", purposes=[SERVER_AUTH])) as peer:
        assert not admitted(peer, hello("edge", "x"))


@pytest.mark.parametrize("mine", ["system:node:n1", "system:node:n2"])
def test_a_certificate_with_two_common_names_is_refused_for_either(hub: Hub, authority: Authority, mine: str) -> None:
    tls = issued(authority, "", common_name=["system:node:n1", "system:node:n2"])
    assert answer(hub, hello("edge", mine.removeprefix("system:node:")), tls) == Reason.CERTIFICATE


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_certificate_with_two_names_in_uris_is_refused_for_either(hub: Hub, authority: Authority, name: str) -> None:
    tls = issued(authority, "n1", uris=["csi-bridge:node:n1", "csi-bridge:node:n2"])
    assert answer(hub, hello("edge", name), tls) == Reason.CERTIFICATE


def test_the_uri_decides_and_not_the_common_name(hub: Hub, authority: Authority) -> None:
    tls = issued(authority, "n1", uris=["csi-bridge:node:n2"])
    assert answer(hub, hello("edge", "n1"), tls) == Reason.CERTIFICATE
    assert answer(hub, hello("edge", "n2"), tls) == "welcome"


def test_a_drivers_uri_makes_no_node_of_the_same_name(hub: Hub, authority: Authority) -> None:
    tls = issued(authority, "x", uris=["csi-bridge:driver:x"])
    assert answer(hub, hello("edge", "x"), tls) == Reason.CERTIFICATE
