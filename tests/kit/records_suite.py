"""What every implementation of the records must do. Each has a test file that runs these with its own fixture.

`reopen` ends the records, as a hub that stops does, and returns them as the next hub finds them.
"""

from collections.abc import Awaitable, Callable

import pytest

from cloud.claims.claim import Mark
from cloud.claims.claims import Claims
from cloud.claims.election import Elected
from cloud.claims.rules import GROUP, VOLUME, Thing
from cloud.records.records import Body, Change, Key, RecordKind, Records
from common.errors import SettingsError
from tests.kit.placed_nodes import claimed

Reopen = Callable[[], Awaitable[Records]]

KEY = ("d.example", "CreateVolume größe '; DROP TABLE records; -- \u4e2d/..")


def claim(since: float) -> Body:
    ids = [{"kind": "volume", "id": "v\u4e2d/1", "node": "n1", "since": 0.5, "gone": 0.0}]
    return {"state": "open", "node": "n1", "since": since, "lease_s": 0, "machine": "", "ids": ids}


def found(records: Records, kind: RecordKind = RecordKind.CLAIM) -> dict[Key, Body]:
    return dict(records.take(kind, lambda key, body: (key, body)))


class RecordsSuite:
    """The tests. A subclass has the fixture `reopen`."""

    async def test_what_was_written_is_there_for_the_next_hub_and_only_the_first_reader(self, reopen: Reopen) -> None:
        records = await reopen()
        await records.write(
            [Change(RecordKind.CLAIM, KEY, claim(0.25)), Change(RecordKind.CLAIM, ("d", "b"), claim(2.0**31))]
        )
        await records.write([Change(RecordKind.ELECTION, ("d",), {"node": "n1", "epoch": 3})])
        records = await reopen()
        assert found(records) == {KEY: claim(0.25), ("d", "b"): claim(2.0**31)}
        assert found(records) == {}
        assert found(records, RecordKind.ELECTION) == {("d",): {"node": "n1", "epoch": 3}}

    async def test_the_claims_and_elections_of_a_hub_come_back_as_they_were(self, reopen: Reopen) -> None:
        claims = Claims(await reopen(), now=lambda: 100.0)
        volume, other, group = Thing(VOLUME, "vol-1"), Thing(VOLUME, "vol-2"), Thing(GROUP, 'quoted "g"')
        await claimed(claims, "d", claims.begin("d", "CreateVolume open", "n1", lease_s=60, machine="m"))
        made = claims.begin("d", "CreateVolumeGroupSnapshot g", "n2")
        await claims.record_made("d", made, "n2", [volume, group])
        await claims.record_deleted("d", "n2", [volume], is_pinned_by_hand=False)
        await claims.record_list("d", "n3", VOLUME, [other], began=0.0, at=0.0)
        await claims.record_made("d", claims.begin("d", "CreateVolume gone", "n4"), "n4", [other])
        await claims.forget("n4")
        await claims.elect("d", elected := Elected("n1", 9, 50.5, "first election"))
        later = Claims(await reopen())
        books = [each.book("d") for each in (claims, later)]
        rows = [{name: it.body() for name, it in book.claims.items()} for book in books]
        assert rows[0] == rows[1]
        assert rows[1].keys() == {"CreateVolume open", "CreateVolumeGroupSnapshot g"}
        assert [book.marks for book in books] == [{"n3": Mark.LISTED, "n4": Mark.FORGOTTEN}] * 2
        assert (books[1].claims["CreateVolume open"].in_doubt, later.elections) == (True, {"d": elected})

    async def test_a_dropped_record_is_gone_and_dropping_it_twice_is_no_error(self, reopen: Reopen) -> None:
        records = await reopen()
        await records.write([Change(RecordKind.CLAIM, KEY, claim(1))])
        await records.write([Change(RecordKind.CLAIM, KEY, None)])
        await records.write([Change(RecordKind.CLAIM, KEY, None)])
        assert found(await reopen()) == {}

    async def test_the_last_of_many_changes_of_one_record_is_the_truth(self, reopen: Reopen) -> None:
        records = await reopen()
        for number in range(20):
            change = Change(RecordKind.CLAIM, KEY, claim(number))
            last = records.write([change]) if number % 3 else records.put(change)
        assert last is not None
        await last
        assert found(await reopen()) == {KEY: claim(19)}

    async def test_a_put_is_there_after_a_stop(self, reopen: Reopen) -> None:
        records = await reopen()
        records.put(Change(RecordKind.CLAIM, KEY, claim(1)))
        records.put(Change(RecordKind.CLAIM, KEY, claim(2)))
        assert found(await reopen()) == {KEY: claim(2)}

    async def test_the_write_of_a_caller_that_left_goes_on(self, reopen: Reopen) -> None:
        records = await reopen()
        records.write([Change(RecordKind.CLAIM, KEY, claim(1))]).cancel()
        assert found(await reopen()) == {KEY: claim(1)}

    async def test_a_record_that_its_owner_cannot_read_stops_the_hub_and_says_what_to_do(self, reopen: Reopen) -> None:
        records = await reopen()
        await records.write([Change(RecordKind.CLAIM, KEY, claim(1))])
        records = await reopen()
        with pytest.raises(SettingsError, match="put back a copy"):
            records.take(RecordKind.CLAIM, lambda _key, body: body["colour"])
