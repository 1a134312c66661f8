"""Peers and drivers write texts that steer a terminal: no command prints them, and no log line has them."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from common.messages import Reason
from tests.kit.bridge import Bridge
from tests.kit.stranger import Stranger, hello
from tests.kit.wire_vendor import WireVendor

CLEAR, TITLE, C1 = "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x9b2J"
ESCAPES = CLEAR + TITLE + C1


def on_terminal(*argv: str) -> bytes:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "cli", *argv], stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        found = b""
        try:
            while data := os.read(ours, 65_536):
                found += data
        except OSError:  # the command has ended, and with it the terminal's other side
            pass
    os.close(ours)
    return found


def steers(output: bytes) -> bool:
    return any(sign.encode() in output for sign in ("\x1b", "\x07", "\x9b"))


def test_a_peer_steers_no_terminal_through_the_hubs_state(bridge: Bridge) -> None:
    hub = bridge.start_hub()
    with Stranger(hub.address) as stranger:
        stranger.upgrade()
        stranger.frames(hello(f"edge{ESCAPES}", f"n{ESCAPES}", software=ESCAPES))
        assert stranger.last_word()[0] == Reason.ROLE
    with Stranger(hub.address) as driver, Stranger(hub.address) as edge:
        driver.greet(hello("driver", "d.example", software=f"d{ESCAPES}"))
        edge.greet(hello("edge", "n1", software=f"e{ESCAPES}", instance="i-2"))
        for command in ("status", "nodes", "volumes"):
            shown = on_terminal(command, f"--hub=unix://{hub.uds}")
            assert shown.strip()
            assert not steers(shown), command
    assert not steers(hub.process.output().encode())


def test_a_driver_steers_no_terminal_through_a_call(bridge: Bridge, short_dir: Path) -> None:
    hub = bridge.start_hub()
    with WireVendor(short_dir / "vendor.sock") as vendor:
        encoded = "".join(f"%{byte:02X}" for byte in f"broken{ESCAPES}".encode())
        vendor.on(
            "GetCapacity",
            lambda wire: wire.trailers(
                (":status", "200"),
                ("content-type", "application/grpc"),
                ("grpc-status", "13"),
                ("grpc-message", encoded),
            ),
        )
        agent = bridge.start_agent("n1", vendor.socket)
        sidecar = bridge.start_proxy("vendor.test").sidecar()
        agent.wait_logged("driver vendor.test")
        while sidecar.call("GetCapacity").code != 13:
            pass
        shown = on_terminal("call", "GetCapacity", "--driver=vendor.test", f"--hub=unix://{hub.uds}")
    assert b"broken" in shown
    assert not steers(shown)
    assert not any(steers(member.process.output().encode()) for member in bridge.members)
