"""A proxy driver's stolen key opens nothing at the port that is open to the world."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from common.messages import Reason
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.ports import free_ports
from tests.kit.stranger import Stranger, hello

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kit.certificates import Pem


class TwoPorts:
    """A hub with a port for edge agents and one for proxy drivers."""

    def __init__(self, bridge: Bridge, directory: Path) -> None:
        (port,) = free_ports(1)
        self.authority = Authority(directory)
        self.bridge, self.drivers = bridge, f"127.0.0.1:{port}"
        self.hub = bridge.start_hub(f"--driver-listen={self.drivers}", *self.authority.hub().flags)

    def refusal(self, address: str, role: str, name: str) -> str:
        """Say hello at a port, and return the reason of the refusal; empty if the hub admits the peer."""
        pem = self.authority.edge(name) if role == "edge" else self.authority.driver(name)
        with Stranger(address, tls=_context(pem)) as stranger:
            stranger.upgrade()
            stranger.frames(hello(role, name))
            answer = stranger.receive()
            assert isinstance(answer, list)
            return str(getattr(answer[0], "reason", ""))


def _context(pem: Pem) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pem.ca)
    context.load_cert_chain(pem.cert, pem.key)
    return context


@pytest.fixture
def ports(short_dir: Path, tmp_path: Path) -> Iterator[TwoPorts]:
    with Bridge(short_dir, tmp_path) as bridge:
        yield TwoPorts(bridge, tmp_path)


def test_each_port_admits_its_role_alone(ports: TwoPorts) -> None:
    edges, drivers = ports.hub.address, ports.drivers
    assert ports.refusal(edges, "edge", "n1") == ""
    assert ports.refusal(drivers, "driver", "vendor.test") == ""
    assert ports.refusal(edges, "driver", "vendor.test") == Reason.ROLE
    assert ports.refusal(drivers, "edge", "n2") == Reason.ROLE
    assert ports.hub.logged("this port of the hub takes no driver; it has the port of --driver-listen")
