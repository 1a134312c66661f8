"""Peers with real certificates claim names, roles and keys that are not theirs: the hub admits none of them."""

import contextlib
import ssl
from pathlib import Path

import pytest

from common.messages import Goodbye, Reason
from tests.kit.bridge import Hub
from tests.kit.certificates import Authority, Pem
from tests.kit.enrolling import trusting
from tests.kit.intruder import gets_in
from tests.kit.operator import hub_state
from tests.kit.stranger import HungUp, Stranger, hello


def knows(hub: Hub, name: str) -> bool:
    state = hub_state(hub.uds)
    return name in {*(node["node"] for node in state["nodes"]), *(proxy["driver"] for proxy in state["drivers"])}


@pytest.mark.parametrize(
    ("owner", "role", "name", "reason"),
    [
        ("node n1", "edge", "n2", Reason.CERTIFICATE),
        ("node n1", "driver", "n1", Reason.CERTIFICATE),
        ("node n1", "operator", "n1", Reason.ROLE),
        ("node n1", "hub", "hub", Reason.ROLE),
        ("driver d.example", "driver", "other.example", Reason.CERTIFICATE),
        ("driver d.example", "edge", "d.example", Reason.CERTIFICATE),
        ("driver d.example", "operator", "d.example", Reason.ROLE),
        ("hub", "edge", "hub", Reason.CERTIFICATE),
        ("hub", "driver", "hub", Reason.CERTIFICATE),
        ("hub d.example", "driver", "other.example", Reason.CERTIFICATE),
        ("hub d.example", "edge", "d.example", Reason.CERTIFICATE),
    ],
)
def test_a_certificate_proves_one_name_and_one_role(
    hub: Hub, authority: Authority, owner: str, role: str, name: str, reason: str
) -> None:
    kind, _, shown = owner.partition(" ")
    of_hub = authority.hub(serves=[shown] if shown else [])
    pem = of_hub if kind == "hub" else authority.edge(shown) if kind == "node" else authority.driver(shown)
    said: object = None
    try:
        with Stranger(hub.address, tls=pem.client()) as stranger:
            stranger.upgrade()
            stranger.frames(hello(role, name))
            said = stranger.all_frames()[0]
    except (HungUp, ssl.SSLError):  # TLS itself refuses a server's certificate from a client
        assert owner == "hub"
    else:
        assert isinstance(said, Goodbye)
        assert said.reason == reason
    assert not knows(hub, name)


def test_a_certificate_of_another_ca_proves_nothing(hub: Hub, authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path, name="csi-bridge test CA").edge("n8")
    assert not gets_in(hub, "n8", Pem(authority.path, foreign.cert, foreign.key).client())
    assert gets_in(hub, "n8", authority.edge("n8").client())


def test_a_node_signs_no_certificate_for_another(hub: Hub, authority: Authority, tmp_path: Path) -> None:
    """The chain of the forged certificate is whole, but a node's certificate is not a CA's."""
    forger = Authority(tmp_path, name="system:node:n1")
    node = authority.issue("system:node:n1", "system:nodes", file="signer", key=forger._key)
    forged = forger.edge("n2")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(forged.cert.read_bytes() + node.cert.read_bytes())
    tls = trusting(authority.path)
    tls.load_cert_chain(chain, forged.key)
    assert not gets_in(hub, "n2", tls)


def test_one_stolen_key_does_not_fill_the_hub(hub: Hub, authority: Authority) -> None:
    tls = authority.driver("full.example").client()
    with contextlib.ExitStack() as opened:
        for _ in range(64):
            opened.enter_context(Stranger(hub.address, tls=tls)).greet(hello("driver", "full.example"))
        one_more = opened.enter_context(Stranger(hub.address, tls=tls))
        one_more.upgrade()
        one_more.frames(hello("driver", "full.example"))
        reason, why = one_more.last_word()
        assert reason == Reason.FULL
        assert why.endswith("64 connections with the certificate of one name is the limit")
        assert gets_in(hub, "n9", authority.edge("n9").client())


def test_no_certificate_is_no_name(hub: Hub, authority: Authority) -> None:
    assert not gets_in(hub, "n1", trusting(authority.path))
    assert not knows(hub, "n1")
