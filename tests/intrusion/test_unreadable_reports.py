"""A hostile node with a good certificate sends reports that the hub cannot take, to stop other nodes' calls."""

from pathlib import Path

import pytest

from common.csi.reports import MAX_REPORT_BYTES
from tests.kit.operator import hub_state
from tests.kit.requests import create
from tests.kit.spoken_node import Site, report
from tests.kit.waiting import wait_for

DRIVER = "vendor.test"


@pytest.mark.parametrize("message", [b"\xff", b" " * (MAX_REPORT_BYTES + 1)], ids=["unreadable", "oversized"])
def test_a_report_that_cannot_be_taken_stops_no_other_nodes_calls(
    short_dir: Path, tmp_path: Path, message: bytes
) -> None:
    with Site(short_dir, tmp_path) as site:
        site.told(site.node("n2"), report(DRIVER, "n2"))
        sidecar = site.bridge.start_proxy(DRIVER).sidecar()
        hostile = site.node("a-hostile")
        hostile.tell_bytes(message)
        site.hub.wait_logged("a-hostile sent an unreadable report")
        assert site.call(sidecar, "CreateVolume", create("pvc-1")).ok
        assert hub_state(site.hub.uds)["lost"] == []
        wait_for(lambda: site.state(hostile)["problems"], what="problem of the hostile node")
