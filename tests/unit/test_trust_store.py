"""The trust store: what outlives the hub, what a failed write changes, and two changes at once."""

import asyncio
from dataclasses import replace

import pytest

from cloud.records.records import RecordKind
from cloud.trust.trust_store import Certificate, CertificateState, Denial, DenialKind, Token, TrustStore
from common.errors import SettingsError
from common.store.database_writer import WriteFailed
from tests.kit.memory_records import MemoryRecords

TOKEN = Token("5f", "c0ffee", "n1", ("a.csi", "b.csi"), 1.0, 2.0, 3, replace=True)
CERTIFICATE = Certificate("n1", 1, "key", "2a", 1.0, 2.0, CertificateState.PENDING, "5f", "pem", "10.0.0.9:1")
DENIAL = Denial(DenialKind.NODE, "n1", 1.0, "stolen")


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


async def add(store: TrustStore, certificate: Certificate = CERTIFICATE, *, uses_token: bool = False) -> None:
    await store.change_certificates(
        certificate.node,
        lambda known: {**known, certificate.generation: certificate},
        used_for=certificate if uses_token else None,
    )


def contents(store: TrustStore) -> tuple[object, ...]:
    return store.tokens, store.certificates, store.denials


async def test_all_is_there_after_a_restart(records: MemoryRecords) -> None:
    store = TrustStore(records)
    await store.save_token(TOKEN)
    await add(store, uses_token=True)
    later = replace(CERTIFICATE, generation=2, state=CertificateState.CURRENT, token="", pem="")
    store.put_certificates("n1", {**store.certificates["n1"], 2: later})
    await store.add_denial(DENIAL, [])
    again = TrustStore(records)
    assert contents(again) == contents(store)
    assert (again.tokens["5f"].used, again.tokens["5f"].last_use) == (1, "n1 1 key")


async def test_what_was_removed_is_gone_after_a_restart(records: MemoryRecords) -> None:
    store = TrustStore(records)
    await store.save_token(TOKEN)
    await store.add_denial(DENIAL, [])
    for _ in range(2):
        await store.remove_denial(DENIAL, lambda known: known)
    await store.save_token(other := replace(TOKEN, id="6a"), gone=["5f"])
    assert contents(TrustStore(records)) == ({"6a": other}, {}, {})


@pytest.mark.parametrize("kind", [RecordKind.TOKEN, RecordKind.CERTIFICATES, RecordKind.DENIAL])
def test_a_record_that_makes_no_sense_stops_the_hub(records: MemoryRecords, kind: RecordKind) -> None:
    records.kept[kind, ("moon", "n1")] = '{"at": 1.0, "why": "", "drivers": [], "certificates": [{"state": "moon"}]}'
    with pytest.raises(SettingsError, match="is damaged"):
        TrustStore(records)


async def test_a_change_that_the_disk_does_not_take_changes_nothing_but_a_denial_counts(records: MemoryRecords) -> None:
    store = TrustStore(records)
    await store.save_token(TOKEN)
    before = dict(store.tokens)
    records.room = 0
    for change in (store.save_token(replace(TOKEN, revoked_at=1.0)), add(store, uses_token=True)):
        with pytest.raises(WriteFailed):
            await change
    assert contents(store) == (before, {}, {})
    denied = store.add_denial(DENIAL, ["5f"])
    assert (store.denials[DenialKind.NODE, "n1"], store.tokens["5f"].revoked_at) == (DENIAL, 1.0)
    with pytest.raises(WriteFailed):
        await denied
    records.retry()
    assert contents(TrustStore(records)) == contents(store)


async def test_a_hello_while_a_certificate_is_written_takes_it_out_of_no_record(records: MemoryRecords) -> None:
    store = TrustStore(records)
    await add(store)
    renewed = replace(CERTIFICATE, generation=2, key="next")
    writing = asyncio.create_task(add(store, renewed))
    await asyncio.sleep(0)  # its write has begun
    current = replace(CERTIFICATE, state=CertificateState.CURRENT)
    store.put_certificates("n1", {1: current})
    await writing
    for found in (store, TrustStore(records)):
        assert found.certificates["n1"] == {1: current, 2: renewed}


async def test_of_a_denial_and_of_its_end_each_first_part_is_safe(records: MemoryRecords) -> None:
    """The hub dies between two writes."""
    store = TrustStore(records)
    await store.save_token(TOKEN)
    await add(store)
    records.room = 1
    with pytest.raises(WriteFailed):
        await store.add_denial(DENIAL, ["5f"])
    store = TrustStore(records)
    assert (list(store.denials.values()), store.tokens["5f"].revoked_at) == ([DENIAL], 0.0)
    records.room = 1
    with pytest.raises(WriteFailed):
        await store.remove_denial(DENIAL, lambda known: {it: known[it].voided() for it in known})
    store = TrustStore(records)
    assert (list(store.denials.values()), store.certificates["n1"][1].state) == ([DENIAL], CertificateState.VOID)
