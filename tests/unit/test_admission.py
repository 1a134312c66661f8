"""Who may be what: roles, names and certificates, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud.admission import SUBJECTS, Role, admit
from common.errors import HandshakeRefused
from common.messages import Hello, Reason
from common.transport import Peer
from common.version import introduce

UDS = Peer("pid 7 uid 0", local=True, uid=0)
PLAIN = Peer("127.0.0.1:51234", local=False)


def hello(role: str, name: str = "n1") -> Hello:
    return introduce(role, name, instance="i")


def certificate(common_name: str | None, *organizations: str) -> Peer:
    return replace(PLAIN, common_name=common_name, organizations=organizations)


EDGE_N1 = certificate("system:node:n1", "system:nodes")
DRIVER_D = certificate("csi-bridge:driver:d.example", "csi-bridge:drivers")


@pytest.mark.parametrize(
    ("said", "peer", "role"),
    [
        (hello("edge"), EDGE_N1, Role.EDGE),
        (hello("driver", "d.example"), DRIVER_D, Role.DRIVER),
        (hello("driver", "d.example"), UDS, Role.DRIVER),
        (hello("operator", "operator"), UDS, Role.OPERATOR),
        (hello("operator", ""), UDS, Role.OPERATOR),
        (hello("edge"), replace(EDGE_N1, organizations=("others", "system:nodes")), Role.EDGE),
    ],
)
def test_who_proves_what_it_says_is_let_in(said: Hello, peer: Peer, role: Role) -> None:
    assert admit(said, peer, insecure=False) is role


@pytest.mark.parametrize("peer", [UDS, PLAIN, EDGE_N1])
@pytest.mark.parametrize("role", ["", "hub", "EDGE", "edge ", "admin"])
def test_an_unknown_role_is_refused_by_its_name(role: str, peer: Peer) -> None:
    with pytest.raises(HandshakeRefused, match="a hub does not know the role") as refusal:
        admit(hello(role), peer, insecure=True)
    assert refusal.value.reason == Reason.ROLE


@pytest.mark.parametrize("insecure", [False, True])
def test_an_edge_agent_may_not_come_by_the_unix_socket(insecure: bool) -> None:
    with pytest.raises(HandshakeRefused, match="comes over the network") as refusal:
        admit(hello("edge"), UDS, insecure=insecure)
    assert refusal.value.reason == Reason.ROLE


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("peer", [PLAIN, EDGE_N1, certificate("operator", "system:masters")])
def test_an_operator_may_not_come_over_the_network_whatever_its_certificate(peer: Peer, insecure: bool) -> None:
    with pytest.raises(HandshakeRefused, match="UNIX socket alone") as refusal:
        admit(hello("operator"), peer, insecure=insecure)
    assert refusal.value.reason == Reason.ROLE


@pytest.mark.parametrize(
    ("said", "peer"),
    [
        (hello("edge"), PLAIN),
        (hello("edge", "n2"), EDGE_N1),
        (hello("edge", "N1"), EDGE_N1),
        (hello("edge"), DRIVER_D),
        (hello("driver", "n1"), EDGE_N1),
        (hello("driver", "other.example"), DRIVER_D),
        (hello("edge"), certificate("system:node:n1", "system:masters")),
        (hello("edge"), certificate("system:node:n1")),
        (hello("edge"), certificate(None, "system:nodes")),
        (hello("edge", "d.example"), certificate("csi-bridge:driver:d.example", "system:nodes")),
    ],
)
def test_a_hello_that_says_something_else_than_the_certificate_is_refused(said: Hello, peer: Peer) -> None:
    with pytest.raises(HandshakeRefused) as refusal:
        admit(said, peer, insecure=False)
    assert refusal.value.reason == Reason.CERTIFICATE


def test_the_refusal_says_what_the_certificate_says_and_what_is_needed() -> None:
    with pytest.raises(HandshakeRefused) as refusal:
        admit(hello("edge", "n2"), EDGE_N1, insecure=False)
    assert str(refusal.value) == (
        "the hello says edge n2, the certificate CN=system:node:n1 O=system:nodes; "
        "CN=system:node:n2 O=system:nodes is needed"
    )


@pytest.mark.parametrize("name", ["", "n" * 254, "n\n1", "n\x001"])
@pytest.mark.parametrize("role", ["edge", "driver"])
def test_a_name_that_is_none_is_refused(role: str, name: str) -> None:
    with pytest.raises(HandshakeRefused, match="no usable name") as refusal:
        admit(hello(role, name), PLAIN, insecure=True)
    assert refusal.value.reason == Reason.NAME


@pytest.mark.parametrize("role", ["edge", "driver"])
def test_without_tls_names_are_believed(role: str) -> None:
    assert admit(hello(role), PLAIN, insecure=True) == role


def test_only_roles_with_a_certificate_can_come_over_the_network() -> None:
    assert set(SUBJECTS) == set(Role) - {Role.OPERATOR}
