"""The hub's disk is stolen: the Secrets of its manifests are sealed with a key that is elsewhere."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.kit.cluster_objects import as_yaml, secret
from tests.kit.operator import hub_state
from tests.kit.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.bridge import Bridge


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    directory = tmp_path / "manifests"
    directory.mkdir()
    (directory / "secret.yaml").write_text(as_yaml(secret("credentials", password="hunter2-in-clear")))
    return directory


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A key apart from the hub's state, as text in a Kubernetes Secret."""
    path = tmp_path / "seal-key"
    path.write_text(base64.b64encode(secrets.token_bytes(32)).decode() + "\n")
    path.chmod(0o400)
    return path


def on_disk(bridge: Bridge) -> dict[str, bytes]:
    """Each file of the hub's state directory."""
    state = bridge.hub.uds.parent / "hub"
    return {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}


def wait_copied(bridge: Bridge) -> None:
    wait_for(lambda: "manifests.sealed" in on_disk(bridge), what="copy of the manifests")


def problems(bridge: Bridge) -> list[str]:
    found: list[str] = hub_state(bridge.hub.uds)["problems"]
    return found


def test_a_stolen_disk_has_no_secret_of_the_manifests_and_no_key(bridge: Bridge, manifests: Path, key: Path) -> None:
    bridge.start_hub(f"--manifests={manifests}", f"--seal-key={key}")
    wait_copied(bridge)
    found = on_disk(bridge)
    assert "seal.key" not in found
    clear = (b"hunter2-in-clear", base64.b64encode(b"hunter2-in-clear"), base64.b64decode(key.read_text()))
    assert [name for name, content in found.items() if any(text in content for text in clear)] == []


def test_a_wrong_key_is_told_and_costs_the_hub_the_copies_alone(bridge: Bridge, manifests: Path, key: Path) -> None:
    bridge.start_hub(f"--manifests={manifests}", f"--seal-key={key}")
    wait_copied(bridge)
    bridge.hub.stop()
    key.chmod(0o600)
    key.write_bytes(secrets.token_bytes(32))
    (manifests / "secret.yaml").write_text("broken: [")
    bridge.hub.start()
    wait_for(
        lambda: any("no node is told anything until every manifest is good" in said for said in problems(bridge)),
        what="word of the broken manifest",
    )
    bridge.hub.wait_logged("manifests.sealed cannot be used, so the last good manifests are not known")
