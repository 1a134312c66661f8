"""The records on a hub's disk, as somebody else reads and writes them."""

import json
from contextlib import closing
from pathlib import Path

from cloud.records.records import Body, Key, RecordKind
from common.store.database import connect_to_read


def records_in(state_dir: Path, kind: RecordKind) -> dict[Key, Body]:
    """All records of a kind in a state directory. A hub may be using it."""
    with closing(connect_to_read(state_dir / "state.db")) as database:
        rows = database.execute("SELECT key, body FROM records WHERE kind = ?", (kind,)).fetchall()
    return {tuple(json.loads(key)): json.loads(body) for key, body in rows}
