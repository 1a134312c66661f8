"""The hub's mark: the agent keeps the last one, so that a hub that has lost its records hears of it.

Rules:

* The agent does not read it (`cloud.incarnation` does).
* It is written soon, and a failure costs a witness: other agents have the mark, too.
"""

import asyncio
import logging
from pathlib import Path

from common.errors import NewerState
from common.state_file import Form, read_state, write_state

log = logging.getLogger("csi_bridge.edge.hub_mark")

FORM = Form("edge agent")
"""Of `hub.json`."""

_LONGEST_CHARS = 200


class HubMark:
    """`hub.json` in the state directory. `text` is the mark; empty: this agent has none."""

    def __init__(self, state_dir: Path) -> None:
        """Read the file. Raises NewerState if a newer agent wrote it."""
        self._path, self.text = state_dir / "hub.json", ""
        self._news = asyncio.Event()
        try:
            self.text = _fitting(read_state(self._path, FORM)["mark"])
        except NewerState:
            raise
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError) as error:
            log.warning("%s is unreadable (%s), and the next mark of the hub replaces it", self._path, error)

    def take(self, mark: str) -> None:
        """Keep the mark that the hub gives; an empty one changes nothing."""
        if mark and mark != self.text and _fitting(mark):
            self.text = mark
            self._news.set()

    async def keep(self) -> None:
        """Write each new mark, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await asyncio.to_thread(write_state, self._path, FORM, {"mark": self.text})
            except OSError as error:
                log.error("%s cannot be written: %s", self._path, error.strerror or error)  # noqa: TRY400  # not a bug


def _fitting(mark: object) -> str:
    return mark if isinstance(mark, str) and len(mark) <= _LONGEST_CHARS else ""
