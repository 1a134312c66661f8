"""Sockets, directories and files that are not as they should be: exit code 2 and a clear message, or serving on."""

import contextlib
import json
import os
import socket
import sqlite3
import stat
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from cloud.records.records import RecordKind
from common.status import Code
from tests.kit import prefork
from tests.kit.bridge import Bridge, Member
from tests.kit.certificates import Authority
from tests.kit.operator import hub_state
from tests.kit.other_user import NOBODY_ELSE, as_user
from tests.kit.ports import free_ports
from tests.kit.processes import listens_on
from tests.kit.sidecar import Sidecar
from tests.kit.small_disk import small_disk
from tests.kit.state_db import records_in
from tests.kit.stranger import Stranger, hello
from tests.kit.waiting import wait_for


@dataclass(frozen=True)
class Role:
    """One of the three processes."""

    words: tuple[str, ...]  # the command
    flags: tuple[str, ...]  # what it needs, with `{}` for a directory of its own
    socket: str  # the flag of the UNIX socket that it makes

    def __str__(self) -> str:
        return self.words[0]

    def label(self, flag: str) -> str:
        variable = f"csi_bridge_{self}_{flag[2:]}".replace("-", "_").upper()
        return f"{variable} or {flag}"

    def command(self, directory: Path, *more: str, program: Sequence[str] = (str(prefork.PROGRAM),)) -> list[str]:
        """The whole command line; of a flag given twice the last one counts."""
        flags = (flag.format(directory) for flag in (*self.flags, "--state-dir={}/state", "--log-format=json"))
        return [*program, *self.words, *flags, *more]


HUB = Role(("hub",), ("--uds={}/it.sock",), "--uds")
DRIVER = Role(
    ("driver",),
    ("--drivername=d.example", "--endpoint={}/it.sock", "--hub-endpoint={}/hub.sock"),
    "--endpoint",
)
EDGE = Role(
    ("edge", "run"),
    ("--node=n1", "--root-dir={}/kubelet", "--status={}/it.sock", "--hub=unix://{}/hub.sock"),
    "--status",
)
ROLES = pytest.mark.parametrize("role", [HUB, DRIVER, EDGE], ids=str)


def refusal_of(role: Role, directory: Path, *flags: str) -> str:
    """Start a process that must not start; returns why it says it does not. It leaves no socket behind."""
    before = set(directory.glob("*.sock"))
    ended = prefork.run(*role.command(directory, *flags)[1:])
    assert ended.returncode == 2, ended
    lines = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
    (said,) = [line for line in lines if line["level"] == "error"]
    assert "exc" not in said
    assert " cannot start: " in said["msg"]
    assert set(directory.glob("*.sock")) == before
    return str(said["msg"].partition(" cannot start: ")[2])


class Serving(Member):
    """A process alone, which must log no traceback."""

    def __init__(
        self,
        role: Role,
        directory: Path,
        logs: Path,
        *flags: str,
        program: Sequence[str] = (str(prefork.PROGRAM),),
        at: Path | None = None,
    ) -> None:
        self.socket = at or directory / "it.sock"  # the UNIX socket that it makes
        command = role.command(directory, *flags, program=program)
        super().__init__(str(role), command, logs, ready=lambda: listens_on(self.socket))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.complaints() == []


# -------------------- the socket that a process makes --------------------


@pytest.mark.parametrize("role", [HUB, DRIVER], ids=str)
def test_a_socket_in_a_directory_that_is_missing_is_named(short_dir: Path, role: Role) -> None:
    """Others come to it, in other containers and of other users: which of them may is not for the process to guess."""
    path = short_dir / "none" / "x.sock"
    assert refusal_of(role, short_dir, f"{role.socket}={path}") == (
        f"{role.label(role.socket)}={path}: cannot listen on {path}: the directory {path.parent} does not exist "
        "(create it first)"
    )


def test_an_agent_makes_the_missing_directory_of_its_status_for_its_own_user(short_dir: Path, tmp_path: Path) -> None:
    path = short_dir / "made" / "it.sock"
    with Serving(EDGE, short_dir, tmp_path, f"--status={path}", at=path):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_agent_names_the_directory_of_its_status_that_it_cannot_make(short_dir: Path) -> None:
    path = short_dir / "no" / "such" / "it.sock"
    assert refusal_of(EDGE, short_dir, f"--status={path}") == (
        f"{EDGE.label('--status')}={path}: cannot listen on {path}: the directory {path.parent} does not exist and "
        "cannot be created: No such file or directory (create it first)"
    )


# -------------------- ports and certificates --------------------


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


@ROLES
def test_an_http_address_that_is_taken_is_named_and_no_socket_stays_behind(
    short_dir: Path, role: Role, taken: str
) -> None:
    assert refusal_of(role, short_dir, f"--http={taken}") == (
        f"{role.label('--http')}={taken}: cannot listen there: Address already in use"
    )


def test_a_hubs_address_that_is_taken_is_named_and_no_socket_stays_behind(short_dir: Path, taken: str) -> None:
    said = refusal_of(HUB, short_dir, f"--listen={taken}", "--insecure")
    assert said.startswith(f"{HUB.label('--listen')}={taken}: cannot listen there: ")
    assert "Address already in use" in said


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_an_address_that_is_not_here_is_named(short_dir: Path, tmp_path: Path, host: str) -> None:
    pem = Authority(tmp_path).hub()
    said = refusal_of(HUB, short_dir, f"--listen={host}:1", *pem.flags)
    assert said.startswith(f"{HUB.label('--listen')}={host}:1: cannot listen ")


@ROLES
def test_a_tls_file_that_is_missing_is_named(short_dir: Path, tmp_path: Path, role: Role) -> None:
    pem = Authority(tmp_path).hub()
    flags = [*pem.flags, "--listen=127.0.0.1:0"] if role is HUB else pem.flags
    pem.key.unlink()
    said = refusal_of(role, short_dir, *flags)
    assert said.startswith(f"{role.label('--tls-key')}={pem.key}: the TLS files cannot be used: ")


# -------------------- the state directory --------------------


def fill(directory: Path) -> Path:
    """Fill a file system to the last byte."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


@pytest.mark.parametrize(
    ("role", "why"),
    [
        *((role, why) for role in (HUB, DRIVER, EDGE) for why in ("a file", "read-only")),
        *((role, "full") for role in (HUB, EDGE)),
    ],
    ids=str,
)
def test_a_state_directory_that_cannot_be_written_is_named(short_dir: Path, role: Role, why: str) -> None:
    state = short_dir / "state"
    with contextlib.ExitStack() as stack:
        if why == "a file":
            state.touch()
        else:
            stack.enter_context(small_disk(state, "ro" if why == "read-only" else "size=64k"))
        if why == "full":
            fill(state)
        assert refusal_of(role, short_dir).startswith(f"{role.label('--state-dir')}={state}: cannot be written: ")


def test_a_full_disk_under_a_proxy_driver_costs_it_its_cache_alone(
    short_dir: Path, tmp_path: Path, bridge: Bridge
) -> None:
    with small_disk(short_dir / "full", "size=64k") as state:
        fill(state)
        hub = bridge.start_hub()
        proxy = bridge.start_proxy("d.example", f"--state-dir={state}")
        with Stranger(hub.address) as agent:
            agent.greet(hello("edge", "n1"))
            agent.report("n1", "d.example")
            proxy.wait_logged(
                "at the next start, sidecars wait until the link to the hub is up: [Errno 28] No space left on device"
            )
            assert proxy.sidecar().call("GetPluginInfo").answer.vendor_version == "1"
        proxy.kill()


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_the_hub_serving_and_later_writes_work(bridge: Bridge, short_dir: Path) -> None:
    bridge.foresee("cannot write ")
    with small_disk(short_dir / "small", "size=1m") as state:
        hub = bridge.start_hub(f"--state-dir={state}")
        ballast = fill(state)
        with Stranger(hub.address) as agent:
            agent.greet(hello("edge", "n1"))
            agent.report("n1", "d.example", padding=20_000)
            wait_for(
                lambda: any(
                    "the hub cannot store that edge node n1 has d.example" in problem
                    for node in hub_state(hub.uds)["nodes"]
                    for problem in node["problems"]
                ),
                what="node that has no calls",
            )
            hub.wait_logged("cannot write ")
            assert hub_state(hub.uds)["trouble"]
            assert hub_state(hub.uds)["nodes"][0]["drivers"] == []
            ballast.unlink()
            wait_for(lambda: hub_state(hub.uds)["nodes"][0]["drivers"] == ["d.example"], what="driver that counts")
            # While the hub runs: its end writes all once more.
            wait_for(lambda: records_in(state, RecordKind.NODE)[("n1",)]["connected"], what="whole record")
        assert [it["driver"] for it in records_in(state, RecordKind.NODE)[("n1",)]["drivers"]] == ["d.example"]
        hub.stop()
        assert hub.process.exit_status == 0


# -------------------- files of the state directory --------------------


def test_a_second_hub_on_one_state_directory_is_refused_and_the_first_says_that_no_agent_can_reach_it(
    short_dir: Path, tmp_path: Path
) -> None:
    with Serving(HUB, short_dir, tmp_path) as hub:
        assert refusal_of(HUB, short_dir, f"--uds={short_dir / 'other.sock'}") == (
            f"{HUB.label('--state-dir')}={short_dir / 'state'}: another hub is using it"
        )
        assert hub.logged("without --listen no edge agent can connect")


def test_a_database_of_a_newer_hub_is_named_and_left_alone(short_dir: Path) -> None:
    (short_dir / "state").mkdir()
    path = short_dir / "state" / "state.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version=7")
    assert refusal_of(HUB, short_dir) == (
        f"{HUB.label('--state-dir')}={path}: was written by a newer hub (schema 7, this one knows 1); start the newer "
        "version again, or see docs/recovery.md#going-back-a-version"
    )


def test_a_corrupt_instance_leaves_the_agent_serving(short_dir: Path, tmp_path: Path) -> None:
    path = short_dir / "state" / "instance.json"
    path.parent.mkdir()
    path.write_bytes(b'{"id": "i", "boot": 1e999}')
    with Serving(EDGE, short_dir, tmp_path) as agent:
        agent.wait_logged(f"{path} is unreadable (ValueError): this agent gets a new identity")
    assert json.loads(path.read_text())["boot"] == 1


# -------------------- the sockets that a process dials --------------------


KINDS = pytest.mark.parametrize("kind", ["missing", "stale"])


def put(kind: str, path: Path) -> None:
    if kind == "stale":
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))


@KINDS
def test_a_proxy_driver_serves_on_without_a_hub_says_what_is_wrong_and_counts_its_dials(
    short_dir: Path, tmp_path: Path, kind: str
) -> None:
    why = "ENOENT No such file or directory" if kind == "missing" else "ECONNREFUSED Connection refused"
    path = short_dir / "hub.sock"
    put(kind, path)
    (port,) = free_ports(1)
    with (
        Serving(DRIVER, short_dir, tmp_path, f"--http=127.0.0.1:{port}") as proxy,
        Sidecar(proxy.socket) as sidecar,
    ):
        proxy.wait_logged(f"no link to the hub: cannot reach {path}: {why}; dialling again until there is one")
        assert sidecar.call("Probe").answer.ready.value is False
        code, message = sidecar.call("GetCapacity").refusal
        assert code is Code.UNAVAILABLE
        assert "the proxy driver has no link to the hub since " in message
        assert f": cannot reach {path}: {why}; look at the hub's log" in message
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            (line,) = [line for line in answer.read().decode().splitlines() if line.startswith("csi_bridge_redials_to")]
        assert float(line.split()[1]) >= 1


@KINDS
def test_a_call_by_hand_says_what_is_wrong(short_dir: Path, kind: str) -> None:
    why = "there is no such socket here" if kind == "missing" else "no hub listens on this socket"
    path = short_dir / "hub.sock"
    put(kind, path)
    ended = prefork.run("call", "GetCapacity", "--driver=d.example", f"--hub={path}")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"csi-bridge: cannot reach {path}: {why}; run this on the hub's host, or in its pod (kubectl -n csi-bridge "
        "exec csi-bridge-hub-0 -- csi-bridge …), and see that the hub runs; --hub names its socket if it is another "
        "one\n"
    )


@pytest.mark.slow
@KINDS
def test_an_agent_serves_on_without_its_driver_and_says_what_is_wrong(
    short_dir: Path, tmp_path: Path, kind: str
) -> None:
    why = "no such socket" if kind == "missing" else "connection refused"
    path = short_dir / "vendor"
    put(kind, path)
    with Serving(EDGE, short_dir, tmp_path, f"--driver={path}") as agent:
        agent.wait_logged(f"the driver at {path} cannot be asked: cannot connect to unix:")
        (said,) = agent.logged("cannot be asked")
        assert why in said["msg"]


def test_a_socket_that_this_user_may_not_use_is_named(short_dir: Path, tmp_path: Path) -> None:
    # Root may use any, so root is somebody else here.
    program = as_user(NOBODY_ELSE) if os.getuid() == 0 else [str(prefork.PROGRAM)]
    os.chown(short_dir, NOBODY_ELSE if os.getuid() == 0 else os.getuid(), -1)
    path = short_dir / "hub.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        path.chmod(0)
        with Serving(DRIVER, short_dir, tmp_path, program=program) as proxy:
            proxy.wait_logged(f"no link to the hub: cannot reach {path}: EACCES Permission denied")
