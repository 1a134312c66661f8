"""The trust store: rows that outlive the hub, and a damaged file."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cloud.trust.trust_store import Certificate, Denial, DenialKind, State, Token, TrustStore
from common.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = Token("5f", b"hash", "n1", ("a.csi", "b.csi"), 1.0, 2.0, 3, replace=True)
CERTIFICATE = Certificate("n1", 1, "key", "2a", 1.0, 2.0, State.PENDING, "5f", b"pem", "10.0.0.9:1")
DENIAL = Denial(DenialKind.NODE, "n1", 1.0, "stolen")


async def test_all_rows_are_there_after_a_restart(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    await store.save_token(TOKEN)
    await store.add_certificate(CERTIFICATE, uses=TOKEN.id)
    store.put_certificate(replace(CERTIFICATE, generation=2, state=State.CURRENT))
    await store.add_denial(DENIAL, [])
    before = store.tokens, store.certificates, store.denials
    await store.close()
    again = TrustStore(tmp_path)
    await again.close()
    assert (again.tokens, again.certificates, again.denials) == before
    assert again.tokens["5f"].used == 1


async def test_removed_rows_are_gone_after_a_restart(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    await store.save_token(TOKEN)
    await store.add_certificate(CERTIFICATE)
    await store.add_denial(DENIAL, [])
    store.drop_certificate("n1", 1)
    await store.drop_tokens(["5f"])
    await store.remove_denial(DenialKind.NODE, "n1", [])
    await store.remove_denial(DenialKind.NODE, "n1", [])
    await store.close()
    again = TrustStore(tmp_path)
    await again.close()
    assert (again.tokens, again.certificates, again.denials) == ({}, {}, {})


async def test_only_the_hub_reads_the_file(tmp_path: Path) -> None:
    await TrustStore(tmp_path).close()
    assert (tmp_path / "trust.db").stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_stops_the_hub_and_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "trust.db").write_bytes(b"no database at all" * 1_000)
    with pytest.raises(SettingsError, match="denials of stolen nodes"):
        TrustStore(tmp_path)
    assert (tmp_path / "trust.db").read_bytes().startswith(b"no database")


async def test_a_row_that_makes_no_sense_stops_the_hub(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    await store.add_denial(DENIAL, [])
    await store.close()
    with sqlite3.connect(tmp_path / "trust.db") as database:
        database.execute("UPDATE denials SET kind = 'moon'")
    database.close()
    with pytest.raises(SettingsError, match="is damaged"):
        TrustStore(tmp_path)


async def test_a_change_that_the_disk_does_not_take_changes_nothing(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    with sqlite3.connect(tmp_path / "trust.db") as database:
        for table in ("tokens", "certificates", "denials"):
            database.execute(f"DROP TABLE {table}")
    database.close()
    for change in (
        store.save_token(TOKEN),
        store.add_certificate(CERTIFICATE, uses=TOKEN.id),
        store.add_denial(DENIAL, []),
    ):
        with pytest.raises(OSError, match="cannot be written"):
            await change
    assert (store.tokens, store.certificates, store.denials) == ({}, {}, {})
    assert store.trouble
    await store.close()
