"""The manifests: the objects of a hub without Kubernetes, from a directory of YAML that is read again when it changes.

Rules:

* A thread reads files and binds objects. The result replaces the objects on the loop, all at once.
* A bug in a scan ends this scan and not the hub, which also carries calls.
* The source is ready when all files were good at one time. Before that no node gets anything, and each keeps its
  objects: a file that is broken may have some that a node still uses.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from cloud.sources.manifests.binding import Bound, NodeReports, bind
from cloud.sources.manifests.manifest_files import SETTLE_S, ManifestFiles, Now
from cloud.sources.manifests.pairs import read_pairs, write_pairs
from cloud.sources.source import Item, Source
from common.objects.objects import Ref

log = logging.getLogger("csi_bridge.hub.manifests")

_SCAN_S = 0.5  # The time between two scans. A scan of 1,000 files takes 10 ms.
_TICK_S = 0.01  # A timer may fire a little early, and a file that has not settled by then would wait another round
_FAILED = "failed"  # the key of the problem that a scan failed


class Manifests(Source):
    """A source that reads a directory. `run()` does the work."""

    def __init__(self, directory: Path, told: Callable[[], NodeReports], bindings: Path) -> None:
        """`told` returns the reports of nodes, the same object until one changes; call `wake` then.

        `bindings` is the file of the pairs that are bound. Raises SettingsError if a newer hub wrote it.
        """
        super().__init__()
        self._directory = directory
        self._told = told
        self._bindings = bindings
        self._files = ManifestFiles(directory)
        self._bound_from: tuple[object, NodeReports] | None = None  # the last files' objects and reports
        self._last = Bound(pairs=read_pairs(bindings))  # what they gave
        self._problems: Mapping[str, str] = {}
        self._is_named_empty = False
        self._woken = asyncio.Event()
        self.wake = self._woken.set  # scan now

    def problems(self) -> list[str]:
        found = list(self._problems.values())
        if self._files.problems and self.is_ready:
            found.append("the objects of all manifests stay as they were until every manifest is good")
        elif self._files.problems:
            found.append("no node is told anything until every manifest is good")
        return found

    async def run(self) -> None:
        while True:
            self._woken.clear()
            await self._load()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S + _TICK_S if self._files.unsettled else _SCAN_S):
                    await self._woken.wait()

    async def _load(self) -> None:
        now = Now(steady=time.monotonic(), wall=time.time())
        try:
            changes = await asyncio.to_thread(self._scan, self._told(), now)
        except Exception:  # the hub also carries calls
            if _FAILED not in self._problems:
                log.exception("reading %s failed", self._directory)
            why = "reading it failed because of a bug in CSI Bridge; its objects stay as they were"
            self._problems = {**self._problems, _FAILED: f"{self._directory}: {why}"}
            return
        self.update(changes, ready=self._bound_from is not None)
        problems = {**self._files.problems, **self._last.problems}
        for key, text in problems.items():
            if self._problems.get(key) != text:
                log.error("%s", text)
        for key in self._problems.keys() - problems.keys():
            log.info("settled: %s", self._problems[key])
        self._problems = problems
        if not (self.is_ready or problems or self._files.unsettled or self._is_named_empty):
            log.info("%s has no manifest yet: no node is told anything until it has one", self._directory)
            self._is_named_empty = True

    # Runs in a thread.
    def _scan(self, told: NodeReports, now: Now) -> Mapping[Ref, Item | None]:
        self._files.scan(now)
        objects = self._files.objects
        before = self._bound_from
        if objects is None or (before is not None and before[0] is objects and before[1] is told):
            return {}
        bound = bind(objects, told, self._last)
        if bound.pairs != self._last.pairs:
            try:
                write_pairs(self._bindings, bound.pairs)
            except OSError as error:  # after a restart, the claim would perhaps get another volume
                why = (
                    f"{self._bindings} cannot be written ({error.strerror or error}), and no change counts before it is"
                )
                self._last = replace(self._last, problems={**self._last.problems, "bindings": why})
                return {}
        gone = self._last.items.keys() - bound.items.keys()
        self._bound_from = (objects, told)
        self._last = bound
        return {**dict.fromkeys(gone), **bound.items}
