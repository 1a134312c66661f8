"""Where a command for operators does not find the hub, it says where to run it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from cli.operator import connected
from common.endpoint import Endpoint
from common.errors import DialError
from common.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path


async def refusal(path: Path) -> str:
    with pytest.raises(DialError) as error:
        async with connected(Endpoint(f"unix://{path}", path=path), limits=Limits()):
            pass
    return str(error.value)


async def test_without_a_socket_the_operator_is_sent_to_the_hubs_host_or_pod(tmp_path: Path) -> None:
    said = await refusal(tmp_path / "none.sock")
    assert said.startswith(
        f"cannot reach unix://{tmp_path}/none.sock: there is no such socket here; run this on the hub's"
    )
    assert "kubectl -n csi-bridge exec csi-bridge-hub-0 -- csi-bridge" in said


async def test_a_socket_on_which_nothing_listens_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("dead.sock")
    assert "no hub listens on this socket; run this on the hub's host" in await refusal(path)
