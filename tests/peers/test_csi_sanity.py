"""csi-sanity straight on Kubernetes' mock driver: the figures that a bridge in between is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kit.peers.sanity import SanityReport
    from tests.kit.processes import Process


def test_csi_sanity_on_the_mock_driver_itself_gives_the_known_figures(
    short_dir: Path, mock_driver: Callable[..., Process], sanity: Callable[..., SanityReport]
) -> None:
    mock_driver(short_dir / "csi.sock", attach=True, node_expansion=True)

    report = sanity(endpoint=short_dir / "csi.sock")

    assert report.counts == {"passed": 79, "failed": 5, "skipped": 18, "pending": 1}
    # The mock driver accepts any mutable parameter for any volume: the faults are its own.
    assert all("ModifyVolume" in name or "volume attribute class" in name for name in report.failed)


@pytest.mark.slow
def test_csi_sanity_with_a_controller_socket_of_its_own_gives_the_same_specs(
    short_dir: Path, mock_driver: Callable[..., Process], sanity: Callable[..., SanityReport]
) -> None:
    mock_driver(short_dir / "csi.sock", attach=False, topology=True)

    one_socket = sanity(endpoint=short_dir / "csi.sock")
    two_sockets = sanity(endpoint=short_dir / "csi.sock", controller_endpoint=short_dir / "csi.sock")

    assert one_socket.differences(two_sockets) == []
