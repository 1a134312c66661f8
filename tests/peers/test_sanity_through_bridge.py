"""csi-sanity sees no difference between a driver and the bridge in front of it, spec by spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.peers.support.bridged import Bridge
    from tests.peers.support.processes import Process
    from tests.peers.support.sanity import SanityReport


@pytest.mark.parametrize("attach", [True, False], ids=["attach", "no-attach"])
@pytest.mark.parametrize("topology", [True, False], ids=["topology", "no-topology"])
def test_kubernetes_own_mock_driver_behaves_as_it_does_without_a_bridge(
    short_dir: Path,
    mock_driver: Callable[..., Process],
    bridge: Callable[[Path, str], Bridge],
    sanity: Callable[..., SanityReport],
    *,
    attach: bool,
    topology: bool,
) -> None:
    vendor, name = short_dir / "vendor.sock", "mock.csi-bridge.io"
    mock_driver(vendor, name=name, attach=attach, topology=topology, node_expansion=True)
    direct = sanity(endpoint=vendor)

    bridged = sanity(endpoint=vendor, controller_endpoint=bridge(vendor, name).socket)

    assert direct.differences(bridged) == []
