"""The hub's mark, which an agent keeps over its restarts."""

import asyncio
from pathlib import Path

import pytest

from common.errors import SettingsError
from edge.identity.hub_mark import HubMark
from tests.kit.waiting import until

HUBS = ["wss://a:1", "wss://b:1"]


async def test_the_last_mark_of_the_hub_and_the_highest_epoch_are_kept_over_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = HubMark(tmp_path, HUBS)
    assert (mark.text, mark.epoch) == ("", 0)
    keeping = asyncio.create_task(mark.write_changes())
    for given, epoch in (("first", 7), ("", 8), ("second", 5), ("x" * 201, 9)):
        mark.take(given, epoch)
        await until(lambda: (HubMark(tmp_path, HUBS).text, HubMark(tmp_path, HUBS).epoch) == (mark.text, mark.epoch))
    keeping.cancel()
    for hubs, epoch in ((["wss://b:1", "wss://c:1"], 9), (["wss://other:1"], 0)):
        assert (HubMark(tmp_path, hubs).text, HubMark(tmp_path, hubs).epoch) == ("second", epoch)
    (tmp_path / "hub.json").write_text('{"version": 1, "mark": 7}')
    assert HubMark(tmp_path, HUBS).text == ""
    (tmp_path / "hub.json").write_text("{")
    assert HubMark(tmp_path, HUBS).text == ""
    assert "hub.json is unreadable" in caplog.text
    (tmp_path / "hub.json").write_text('{"version": 2}')
    with pytest.raises(SettingsError, match="was written by a newer"):
        HubMark(tmp_path, HUBS)
