"""Peers with real certificates claim names, roles and keys that are not theirs: the hub admits none of them."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

import pytest

from common.messages import Goodbye, Reason
from tests.kit.certificates import Authority
from tests.kit.intruder import client_of, gets_in
from tests.kit.operator import hub_state
from tests.kit.stranger import HungUp, Stranger, hello

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.bridge import Bridge


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
    ],
)
def test_a_certificate_proves_one_name_and_one_role(
    bridge: Bridge, authority: Authority, owner: str, role: str, name: str, reason: str
) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    kind, _, shown = owner.partition(" ")
    pem = authority.hub() if kind == "hub" else authority.edge(shown) if kind == "node" else authority.driver(shown)
    said: object = None
    try:
        with Stranger(hub.address, tls=client_of(authority, pem)) as stranger:
            stranger.upgrade()
            stranger.frames(hello(role, name))
            said = stranger.all_frames()[0]
    except (HungUp, ssl.SSLError):  # TLS itself refuses a server's certificate from a client
        assert kind == "hub"
    else:
        assert isinstance(said, Goodbye)
        assert said.reason == reason
    state = hub_state(hub.uds)
    assert (state["nodes"], state["drivers"]) == ([], [])


def test_a_certificate_of_another_ca_proves_nothing(bridge: Bridge, authority: Authority, tmp_path: Path) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    foreign = Authority(tmp_path, name="csi-bridge test CA")
    assert not gets_in(hub, "n1", client_of(authority, foreign.edge("n1")))
    assert gets_in(hub, "n1", client_of(authority, authority.edge("n1")))


def test_a_node_signs_no_certificate_for_another(bridge: Bridge, authority: Authority, tmp_path: Path) -> None:
    """The chain of the forged certificate is whole, but a node's certificate is not a CA's."""
    hub = bridge.start_hub(*authority.hub().flags)
    forger = Authority(tmp_path, name="system:node:n1")
    node = authority.issue("system:node:n1", "system:nodes", file="signer", key=forger._key)
    forged = forger.edge("n2")
    chain = tmp_path / "chain.pem"
    chain.write_bytes(forged.cert.read_bytes() + node.cert.read_bytes())
    tls = client_of(authority)
    tls.load_cert_chain(chain, forged.key)
    assert not gets_in(hub, "n2", tls)


def test_one_stolen_key_does_not_fill_the_hub(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    tls = client_of(authority, authority.driver("d.example"))
    with contextlib.ExitStack() as opened:
        for _ in range(64):
            opened.enter_context(Stranger(hub.address, tls=tls)).greet(hello("driver", "d.example"))
        one_more = opened.enter_context(Stranger(hub.address, tls=tls))
        one_more.upgrade()
        one_more.frames(hello("driver", "d.example"))
        reason, why = one_more.last_word()
        assert reason == Reason.FULL
        assert why.endswith("64 connections with the certificate of one name is the limit")
        assert gets_in(hub, "n1", client_of(authority, authority.edge("n1")))


def test_no_certificate_is_no_name(bridge: Bridge, authority: Authority) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    assert not gets_in(hub, "n1", client_of(authority))
    assert hub_state(hub.uds)["nodes"] == []
