"""Stored copies: state directories that an older version left, rebuilt from the texts in tests/stored."""

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

STORED = Path(__file__).parents[1] / "stored"

_LOSSES_BYTES = 4_096


def restore(copy: str, target: Path, *, instead: Mapping[str, str] | None = None) -> None:
    """Rebuild a state directory.

    Args:
        copy: which one, `before-migrations/hub`.
        target: the directory; made if it is missing.
        instead: texts that take the place of others in all files, as the test's own paths.
    """
    for file in sorted((STORED / copy).rglob("*")):
        if file.is_file():
            _restore(file, target / file.relative_to(STORED / copy), instead or {})


def restore_database(dump: Path, target: Path) -> None:
    """Rebuild a database from its dump."""
    _rebuild(dump.read_text(), target)


def _restore(file: Path, target: Path, instead: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    text = file.read_text()
    for own, other in instead.items():
        text = text.replace(own, other)
    match file.suffix:
        case ".sql":
            _rebuild(text, target.with_suffix(""))
        case ".hex":
            target.with_suffix("").write_bytes(bytes.fromhex(text))
            target.with_suffix("").chmod(0o600)
        case ".losses":
            target.write_bytes(text.encode().ljust(_LOSSES_BYTES, b"\n"))
        case _:
            target.write_text(text)


def _rebuild(dump: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(target)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(f"BEGIN; {dump} COMMIT;")
