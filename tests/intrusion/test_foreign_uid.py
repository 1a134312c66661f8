"""A process of another user reaches for the sockets of hub and agent: it gets nothing from them."""

import os
import socket
from pathlib import Path

import pytest

from tests.kit import needs
from tests.kit.bridge import Bridge
from tests.kit.other_user import NOBODY_ELSE
from tests.kit.stranger import Stranger, upgrade_request
from tests.kit.wire_vendor import WireVendor


def connect_as(uid: int, path: Path) -> str:
    """Connect to a socket in a process of this user, and return the error, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        said = b""
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
        except OSError as error:
            said = type(error).__name__.encode()
        os.write(writer, said)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return found


def test_a_user_that_is_not_listed_gets_no_session_and_no_page(bridge: Bridge) -> None:
    hub = bridge.start_hub(f"--uds-group={os.getgid()}", f"--uds-allow-uid={os.getuid() + 1}")
    for request in (upgrade_request(), b"GET /status HTTP/1.1\r\nHost: hub\r\n\r\n"):
        with Stranger(hub.uds) as stranger:
            stranger.send(request)
            answer = stranger.read_to_end()
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert f"uid {os.getuid()} is not on --uds-allow-uid".encode() in answer
        assert b"csi-bridge/" not in answer


@pytest.mark.parametrize("socket_of", ["hub", "agent"])
@needs.skip_without(needs.root())
def test_another_user_cannot_connect(bridge: Bridge, short_dir: Path, socket_of: str) -> None:
    """The directories are open to all, so that the sockets' own modes are tested."""
    hub = bridge.start_hub()
    with WireVendor(short_dir / "vendor.sock") as vendor:
        agent = bridge.start_agent("n1", vendor.socket)
        for directory in (short_dir, *short_dir.parents[:-1]):
            directory.chmod(directory.stat().st_mode | 0o055)
        assert connect_as(NOBODY_ELSE, hub.uds if socket_of == "hub" else agent.socket) == "PermissionError"
        assert connect_as(os.getuid(), hub.uds) == ""
