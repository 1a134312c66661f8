"""The file that a node's drivers are kept in, and what becomes of one that cannot be used."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from common.errors import SettingsError
from edge.registry.drivers_store import KnownDrivers, read_drivers, write_drivers
from edge.registry.registration import NodeInfo, Registration

KNOWN = Registration(
    name="v.test",
    endpoint="/plugins/v/csi.sock",
    socket="/plugins_registry/v-reg.sock",
    version=(1, 0, 0),
    info=NodeInfo("id", 7, {"zone": "a"}, frozenset({1, 3})),
    gone=True,
)
KEPT = KnownDrivers(
    (KNOWN,), {"v.test": "/plugins/v/csi.sock", "former.test": "/plugins/f/csi.sock"}, frozenset({"v.test", "w.test"})
)
NOTHING = KnownDrivers()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "drivers.json"


def test_what_was_written_is_read(file: Path) -> None:
    assert read_drivers(file) == NOTHING
    write_drivers(file, KEPT)
    assert read_drivers(file) == KEPT
    write_drivers(file, NOTHING)
    assert read_drivers(file) == NOTHING


def test_the_file_is_its_owners_alone_and_nothing_else_is_left_behind(file: Path) -> None:
    file.parent.mkdir()
    file.with_name("drivers.json.new").write_text("of a write that a power cut ended")
    write_drivers(file, KEPT)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_write_waits_for_one_that_nobody_waits_for_any_more(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = threading.Thread(target=write_drivers, args=(file, KEPT))

    def slow_disk(_: int) -> None:
        if not later.ident:
            later.start()
            later.join(timeout=0.05)

    monkeypatch.setattr(os, "fsync", slow_disk)
    write_drivers(file, NOTHING)
    later.join()
    assert read_drivers(file) == KEPT


def broken(change: str, value: object) -> bytes:
    body = {
        "version": 1,
        "drivers": [
            {
                "name": "v",
                "endpoint": "/v",
                "socket": "",
                "version": [1],
                "nodeID": "id",
                "maxVolumes": 0,
                "topology": {},
                "capabilities": [],
                "gone": False,
                change: value,
            }
        ],
        "nodePlugins": {},
        "withTopology": [],
    }
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff",
        b"[]",
        b'{"version": 1, "drivers": 3}',
        b'{"version": 1, "drivers": [3]}',
        b'{"version": 1, "drivers": [], "nodePlugins": ["v"], "withTopology": []}',
        b'{"version": 1, "drivers": [], "nodePlugins": {"v": 1}, "withTopology": []}',
        b'{"version": 1, "drivers": [], "nodePlugins": {}, "withTopology": "v"}',
        b'{"version": 1, "drivers": [], "nodePlugins": {}, "withTopology": [1]}',
        b'{"drivers": [], "nodePlugins": {}, "withTopology": []}',
        b"[" * 100_000,
        broken("name", 3),
        broken("maxVolumes", "7"),
        broken("topology", ["zone"]),
        broken("topology", {"zone": 1}),
        broken("version", ["1"]),
        broken("gone", 1),
    ],
)
def test_a_file_that_cannot_be_used_is_moved_aside_and_named(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert read_drivers(file) == NOTHING
    (aside,) = file.parent.iterdir()
    assert aside.suffix == ".corrupt"
    assert aside.read_bytes() == content
    assert str(aside) in caplog.text
    write_drivers(file, KEPT)
    assert read_drivers(file) == KEPT


def test_a_newer_agents_file_is_refused_and_left_as_it_is(file: Path) -> None:
    file.parent.mkdir()
    content = '{"version": 3, "drivers": []}'
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"drivers\.json: was written by a newer edge agent \(schema 3"):
        read_drivers(file)
    assert file.read_text() == content
    assert list(file.parent.iterdir()) == [file]


def test_a_path_that_is_no_file_is_nothing_known(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.mkdir(parents=True)
    assert read_drivers(file) == NOTHING
    assert "cannot be read (Is a directory)" in caplog.text
