"""The hub's disk is stolen: it has nothing of the manifests' Secrets."""

import base64
from pathlib import Path

from common.pages.client import ask_page
from common.pages.hub import VolumeStatus
from tests.kit.bridge import Bridge
from tests.kit.cluster_objects import as_yaml, secret, volume
from tests.kit.waiting import wait_for


def test_a_stolen_disk_has_no_secret_of_the_manifests(bridge: Bridge, tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "a.yaml").write_text(as_yaml(secret("credentials", password="hunter2-in-clear"), volume("v")))
    bridge.start_hub(f"--manifests={manifests}")
    wait_for(
        lambda: ask_page(bridge.hub.uds, "/volumes", list[VolumeStatus], timeout_s=10), what="the manifests' volume"
    )
    state = bridge.hub.uds.parent / "hub"
    found = {path.name: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    clear = (b"hunter2-in-clear", base64.b64encode(b"hunter2-in-clear"))
    assert "state.db" in found
    assert [name for name, content in found.items() if any(text in content for text in clear)] == []
