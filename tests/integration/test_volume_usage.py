"""The usage of volumes at /metrics of an agent, as a Prometheus reads that of a kubelet's."""

import urllib.request
from pathlib import Path

from tests.kit.edge_node import EdgeNode, pod, volume
from tests.kit.needs import needs_mounts
from tests.kit.ports import free_ports
from tests.kit.waiting import wait_for

pytestmark = needs_mounts

_NAMES = ("capacity_bytes", "available_bytes", "used_bytes", "inodes", "inodes_free", "inodes_used")


def test_the_usage_of_a_claim_appears_with_its_mount_and_goes_with_it(short_dir: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)

    def scraped() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("kubelet_volume_stats_"))
        return {name: float(value) for name, value in pairs}

    def of(name: str) -> str:
        return f'kubelet_volume_stats_{name}{{namespace="default",persistentvolumeclaim="data"}}'

    with EdgeNode(short_dir, tmp_path) as node:
        node.start(f"--http=127.0.0.1:{port}", "--volume-stats-interval=1s")
        assert scraped() == {}
        objects = volume("data", node.make_volume("data"))
        node.write(*objects, pod("web", "data"), file="web")
        (path,) = node.wait_published("web")
        usage = wait_for(scraped, what="usage of the claim")
        assert {of(name) for name in _NAMES} <= usage.keys()
        assert usage[of("capacity_bytes")] >= usage[of("used_bytes")] + usage[of("available_bytes")] > 0
        (path / "file").write_bytes(b"x" * (4 << 20))
        grown = usage[of("used_bytes")] + (4 << 20)
        wait_for(lambda: scraped()[of("used_bytes")] >= grown, what="the written file in the usage")
        assert node.state()["volumes"][0]["used_bytes"] >= grown
        node.write(*objects, file="web")
        node.wait_clean()
        assert scraped() == {}
