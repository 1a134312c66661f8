"""The hub's mark: the agent keeps the last one and the highest epoch, for a hub that has lost its records or the lead.

Rules:

* The agent shows the mark and does not read it (`cloud.leadership.incarnation` does). A hub of a lower epoch is
  refused, also after a restart of the agent (`common.links.uplink`). The epoch counts while one address of the hubs
  stays: those of another cluster count their own.
* Both are written soon. A failure costs a witness: other agents have the mark, too. An agent that restarts before the
  write hears the epoch again from the hub that leads. Until then it takes calls only of a former leader that can be
  reached and has not noticed the end of its Lease, after which a hub sends nothing (`Link.may_send`).
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from common.store.state_file import read_state, write_state

log = logging.getLogger("csi_bridge.edge.hub_mark")

_LONGEST_CHARS = 200


class HubMark:
    """`hub.json` in the state directory."""

    def __init__(self, state_dir: Path, hubs: Sequence[str]) -> None:
        self._path, self._hubs, self.text, self.epoch = state_dir / "hub.json", list(hubs), "", 0
        self._news = asyncio.Event()
        try:
            found = read_state(self._path, "edge agent")
            self.text = _fitting(found["mark"])
            if not set(hubs).isdisjoint(found.get("hubs", [])):
                self.epoch = int(found["epoch"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is unreadable (%s), and the next mark of the hub replaces it", self._path, error)

    def take(self, mark: str, epoch: int) -> None:
        before = self.text, self.epoch
        self.text, self.epoch = _fitting(mark) or self.text, max(epoch, self.epoch)
        if before != (self.text, self.epoch):
            self._news.set()

    async def write_changes(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await asyncio.to_thread(self._write)
            except OSError as error:
                log.error("%s cannot be written: %s", self._path, error.strerror or error)  # noqa: TRY400  # not a bug

    def _write(self) -> None:
        write_state(self._path, {"mark": self.text, "epoch": self.epoch, "hubs": self._hubs})


def _fitting(mark: object) -> str:
    return mark if isinstance(mark, str) and len(mark) <= _LONGEST_CHARS else ""
