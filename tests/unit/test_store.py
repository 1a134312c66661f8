"""The hub's memory on disk: what is written comes back, and what cannot be used ends in words or is moved aside."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cloud.store import Store, StoredNode, StoredSegment
from common.errors import SettingsError
from common.reports import GET_PLUGIN_INFO, Answer, DriverReport

if TYPE_CHECKING:
    from pathlib import Path

REPORT = DriverReport("d.example", "n1", {GET_PLUGIN_INFO: Answer(0, body=b"\n\x01d")})
N1 = StoredNode("n1", "i-1", 3, 1_700_000_000.25, connected=True, reports=(REPORT,))
N2 = StoredNode("n2", "i-2", 1, 1_700_000_001.0, connected=False, reports=())


async def stored(directory: Path) -> list[StoredNode]:
    """What a hub that starts now would find."""
    store = Store(directory)
    nodes = store.nodes()
    await store.close()
    return sorted(nodes, key=lambda node: node.name)


async def keep(directory: Path, *nodes: StoredNode) -> None:
    """What a hub leaves that knew these nodes."""
    store = Store(directory)
    for node in nodes:
        store.save(node)
    await store.close()


def database(directory: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(directory / "hub.db"))


async def test_a_new_store_is_empty_and_its_directory_is_made(tmp_path: Path) -> None:
    assert await stored(tmp_path / "a" / "b") == []
    assert (tmp_path / "a" / "b" / "hub.db").is_file()


async def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    odd = StoredNode("größe '; DROP TABLE nodes; --", "\u4e2d", 2**62, 0.5, connected=True, reports=())
    await keep(tmp_path, N1, N2, odd)
    assert await stored(tmp_path) == [odd, N1, N2]


async def test_unique_segments_and_offers_are_there_after_a_restart_unless_they_were_dropped(tmp_path: Path) -> None:
    segments = [StoredSegment("host", f"h{number}", "d.example", "n1") for number in (1, 2)]
    store = Store(tmp_path)
    for segment in segments:
        store.save_segment(segment)
    for driver in ("d.example", "e.example"):
        store.save_offer(driver, replace(REPORT, driver=driver))
    store.drop_segment(segments[0])
    store.save_offer("e.example", None)
    await store.close()
    again = Store(tmp_path)
    assert again.segments() == segments[1:]
    assert again.offers() == {"d.example": REPORT}
    await again.close()


async def test_an_offer_that_cannot_be_read_is_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save_offer("d.example", REPORT)
    await store.close()
    with database(tmp_path) as older:
        older.execute("UPDATE offers SET report = x'ff'")
        older.commit()
    again = Store(tmp_path)
    assert again.offers() == {}
    await again.close()


async def test_a_forgotten_node_is_gone_after_a_restart_and_can_come_again(tmp_path: Path) -> None:
    await keep(tmp_path, N1, N2)
    store = Store(tmp_path)
    store.forget("n1")
    await store.close()
    assert await stored(tmp_path) == [N2]
    store = Store(tmp_path)
    store.forget("n2")
    store.save(N2)
    await store.close()
    assert await stored(tmp_path) == [N2]


def moved_aside(directory: Path) -> list[Path]:
    return list(directory.glob("hub-*.corrupt"))


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5_000])
async def test_a_file_that_is_no_database_is_moved_aside_and_named(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hub.db").write_bytes(content)
    assert await stored(tmp_path) == []
    (aside,) = moved_aside(tmp_path)
    assert aside.read_bytes() == content
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert f"{tmp_path / 'hub.db'} is damaged" in caplog.messages[0]
    assert str(aside) in caplog.messages[0]


async def test_pages_damaged_in_the_middle_are_found_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = [StoredNode(f"n{number:04}", "i" * 100, 1, 0.0, connected=False, reports=()) for number in range(500)]
    await keep(tmp_path, *many)
    content = bytearray((tmp_path / "hub.db").read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)  # all but the header's page
    (tmp_path / "hub.db").write_bytes(content)
    assert await stored(tmp_path) == []
    assert "is damaged" in caplog.records[0].getMessage()
    await keep(tmp_path, N1)
    assert await stored(tmp_path) == [N1]


async def test_reports_that_nobody_can_read_are_dropped_and_the_node_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await keep(tmp_path, N1, N2)
    with database(tmp_path) as other:
        other.execute("UPDATE nodes SET reports = x'00ff' WHERE name = 'n1'")
        other.commit()
    (n1, n2) = await stored(tmp_path)
    assert (n1.name, n1.boot, n1.reports) == ("n1", 3, ())
    assert n2 == N2
    assert caplog.text.count("the stored reports of node n1 are unreadable and dropped") == 1


async def test_a_hub_that_could_not_start_holds_the_directory_no_longer(tmp_path: Path) -> None:
    (tmp_path / "hub.db").mkdir()
    for _ in range(2):
        with pytest.raises(SettingsError, match="cannot be written"):
            Store(tmp_path)
