"""An audit log in memory, for tests of its callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloud.trust.audit_log import Event


class RecordedAudit:
    """Keeps the events (`cloud.trust.audit_log.Audit`): event, who, address and details."""

    trouble = ""

    def __init__(self) -> None:
        self.lines: list[tuple[Event, str, str, dict[str, str | int | list[str]]]] = []

    def add(self, event: Event, *, who: str, address: str = "", **details: str | int | list[str]) -> None:
        """Keep an event."""
        self.lines.append((event, who, address, details))

    @property
    def events(self) -> list[Event]:
        """The events alone."""
        return [event for event, *_ in self.lines]
