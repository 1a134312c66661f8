"""The lines of the audit log, for tests of those who write them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from cloud.trust.audit import Event, log

Line = tuple[Event, str, str, dict[str, str | int]]  # the event, who, the address, and the other fields


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(vars(record)["fields"])
        self.lines.append((fields.pop("event"), fields.pop("who", ""), fields.pop("address", ""), fields))


@contextmanager
def audited() -> Iterator[list[Line]]:
    keeper, before = _Keeper(), log.level
    log.addHandler(keeper)
    log.setLevel(logging.INFO)
    try:
        yield keeper.lines
    finally:
        log.removeHandler(keeper)
        log.setLevel(before)
