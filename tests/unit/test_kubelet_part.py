"""Whose root directory and state directory it is, and what an agent does that may not use them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from common.errors import SettingsError
from edge.kubelet_part import KubeletPart
from edge.settings import AgentSettings

if TYPE_CHECKING:
    from pathlib import Path


def part(directory: Path, *, state: str = "state", registration: str = "own") -> KubeletPart:
    settings = AgentSettings.from_texts(
        {
            "node": "n1",
            "hub": "ws://127.0.0.1:1",
            "insecure": "true",
            "state_dir": str(directory / state),
            "root_dir": str(directory / "root"),
            "registration": registration,
        }
    )
    return KubeletPart(settings, changed=lambda: None)


async def test_a_root_directory_is_one_agents_alone_until_it_ends(tmp_path: Path) -> None:
    first = part(tmp_path)
    with pytest.raises(SettingsError, match=r"--root-dir=.*root: another edge agent is using it"):
        part(tmp_path, state="other")
    await first.close()
    await part(tmp_path, state="third").close()


async def test_beside_a_running_kubelet_an_agent_only_observes(tmp_path: Path) -> None:
    kubelets = tmp_path / "root" / "pod-resources" / "kubelet.sock"
    kubelets.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(kubelets))
        kubelet.listen()
        with pytest.raises(SettingsError, match=r"a kubelet is running .* say --registration=observe"):
            part(tmp_path)
        observing = part(tmp_path, registration="observe")
        assert observing.describe()["observing"]
        await observing.close()
    own = part(tmp_path, state="own")  # the file is left over: nobody listens there any more
    assert not own.describe()["observing"]
    await own.close()


async def test_rows_that_cannot_be_written_are_waited_for_and_said(tmp_path: Path) -> None:
    (tmp_path / "state" / "volumes.db").mkdir(parents=True)
    waiting = part(tmp_path)
    state = waiting.describe()
    assert not state["started"]
    assert "volumes.db" in state["trouble"]
    await waiting.close()
