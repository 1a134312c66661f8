"""Who may be what: the rows that tests/intrusion does not show with certificates of its own."""

from dataclasses import replace

import pytest

from cloud.trust.admission import Role, admit
from common.errors import HandshakeRefused
from common.messages import Hello, Reason
from common.net.peer import CLIENT_AUTH, Peer
from common.observe.version import introduce
from tests.kit.shown_peer import ShownPeer

UDS = Peer("pid 7 uid 0", local=True, uid=0)
PLAIN = Peer("127.0.0.1:51234", local=False)
SHOWN = ShownPeer("127.0.0.1:51234", local=False)


def hello(role: str, name: str = "n1") -> Hello:
    return introduce(role, name, instance="i")


def certificate(common_name: str | None, *organizations: str) -> Peer:
    names = (common_name,) if common_name else ()
    return replace(SHOWN, common_names=names, organizations=organizations, purposes=(CLIENT_AUTH,))


def with_uris(peer: Peer, *uris: str) -> Peer:
    return replace(peer, uris=uris)


def refusal_of(said: Hello, peer: Peer, *, insecure: bool = False) -> HandshakeRefused:
    with pytest.raises(HandshakeRefused) as refusal:
        admit(said, peer, insecure=insecure)
    return refusal.value


LONGEST = ".".join(["n" * 63] * 3) + "." + "n" * 61  # a node's name of 253 characters; a common name has 64

EDGE_N1 = certificate("system:node:n1", "system:nodes")
DRIVER_D = certificate("csi-bridge:driver:d.example", "csi-bridge:drivers")
HUB = with_uris(
    certificate("csi-bridge:hub", "csi-bridge:hubs"), "csi-bridge:driver:d.example", "csi-bridge:driver:e.example"
)


@pytest.mark.parametrize(
    ("said", "peer", "role"),
    [
        (hello("edge"), EDGE_N1, Role.EDGE),
        (hello("driver", "d.example"), DRIVER_D, Role.DRIVER),
        (hello("driver", "d.example"), UDS, Role.DRIVER),
        (hello("operator", "operator"), UDS, Role.OPERATOR),
        (hello("operator", ""), UDS, Role.OPERATOR),
        (hello("edge"), replace(EDGE_N1, organizations=("others", "system:nodes")), Role.EDGE),
        (hello("edge"), replace(EDGE_N1, purposes=("1.3.6.1.5.5.7.3.1", CLIENT_AUTH)), Role.EDGE),
        (hello("edge"), with_uris(certificate("a host"), "csi-bridge:node:n1"), Role.EDGE),
        (hello("edge"), with_uris(certificate(None), "csi-bridge:node:n1", "csi-bridge:generation:7"), Role.EDGE),
        (hello("edge"), with_uris(certificate(None), "https://example.org", "csi-bridge:node:n1"), Role.EDGE),
        (hello("edge"), with_uris(EDGE_N1, "spiffe://cluster/n2"), Role.EDGE),
        (hello("edge", LONGEST), with_uris(certificate("a host"), f"csi-bridge:node:{LONGEST}"), Role.EDGE),
        (hello("driver", "d.example"), with_uris(certificate("a host"), "csi-bridge:driver:d.example"), Role.DRIVER),
        (hello("driver", "d.example"), HUB, Role.DRIVER),
    ],
)
def test_who_proves_what_it_says_is_let_in(said: Hello, peer: Peer, role: Role) -> None:
    assert admit(said, peer, insecure=False) is role


@pytest.mark.parametrize(
    ("said", "peer"),
    [
        (hello("edge"), PLAIN),
        (hello("edge", "n2"), EDGE_N1),
        (hello("edge"), DRIVER_D),
        (hello("driver", "other.example"), DRIVER_D),
        (hello("edge"), certificate("system:node:n1", "system:masters")),
        (hello("edge"), certificate("system:node:n1")),
        (hello("edge"), certificate(None, "system:nodes")),
        (hello("edge", "d.example"), certificate("csi-bridge:driver:d.example", "system:nodes")),
        (hello("edge"), replace(EDGE_N1, common_names=("system:node:n1", "system:node:n1"))),
        (hello("edge"), with_uris(EDGE_N1, "csi-bridge:node:n1", "csi-bridge:driver:d.example")),
        (hello("edge"), with_uris(EDGE_N1, "csi-bridge:driver:n1")),
        (hello("driver", "d.example"), with_uris(EDGE_N1, "csi-bridge:node:n1", "csi-bridge:driver:d.example")),
        (hello("driver", "f.example"), HUB),
        (hello("edge", "d.example"), HUB),
        (hello("edge"), with_uris(EDGE_N1, "csi-bridge:hub:n1")),
        (hello("edge"), replace(EDGE_N1, purposes=("2.5.29.37.0",))),
    ],
)
def test_a_hello_that_says_something_else_than_the_certificate_is_refused(said: Hello, peer: Peer) -> None:
    assert refusal_of(said, peer).reason == Reason.CERTIFICATE


def test_the_refusal_says_what_the_certificate_says_and_what_is_needed() -> None:
    assert str(refusal_of(hello("edge", "n2"), EDGE_N1)) == (
        "the peer says that it is edge n2, but its certificate is for CN=system:node:n1 O=system:nodes; "
        "it needs one for csi-bridge:node:n2, or for CN=system:node:n2 O=system:nodes"
    )


@pytest.mark.parametrize("name", ["", "n" * 254, "n\n1", "n\x001"])
@pytest.mark.parametrize("role", ["edge", "driver"])
def test_a_name_that_is_none_is_refused(role: str, name: str) -> None:
    refusal = refusal_of(hello(role, name), PLAIN, insecure=True)
    assert (refusal.reason, str(refusal)) == (Reason.NAME, f"the {role} gave no usable name ({len(name)} characters)")


@pytest.mark.parametrize("name", ["o" * 254, "o\n1"])
def test_an_operator_needs_no_name_but_a_usable_one(name: str) -> None:
    assert refusal_of(hello("operator", name), UDS).reason == Reason.NAME


@pytest.mark.parametrize("instance", ["i" * 254, "i\n1"])
@pytest.mark.parametrize(("role", "peer"), [("edge", PLAIN), ("driver", PLAIN), ("operator", UDS)])
def test_an_instance_that_is_none_is_refused(role: str, peer: Peer, instance: str) -> None:
    refusal = refusal_of(replace(hello(role), instance=instance), peer, insecure=True)
    assert (refusal.reason, str(refusal)) == (
        Reason.NAME,
        f"the {role} gave no usable instance ({len(instance)} characters)",
    )


def test_a_role_is_not_repeated_at_any_length() -> None:
    assert len(str(refusal_of(hello("r" * 60_000), PLAIN))) < 300


@pytest.mark.parametrize("insecure", [False, True])
def test_an_edge_agent_may_not_come_by_the_unix_socket(insecure: bool) -> None:
    refusal = refusal_of(hello("edge"), UDS, insecure=insecure)
    assert (refusal.reason, "must connect over the network" in str(refusal)) == (Reason.ROLE, True)


def test_a_node_has_the_name_of_a_kubernetes_node() -> None:
    refusal = refusal_of(hello("edge", "n..1"), PLAIN, insecure=True)
    assert (refusal.reason, "'n..1' is no node's name" in str(refusal)) == (Reason.NAME, True)
