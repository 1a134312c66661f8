"""The manifests: the objects of a hub without Kubernetes, from a directory of YAML that is read again when it changes.

Rules:

* A thread reads files and binds objects. The result replaces the objects on the loop, all at once.
* A bug in a scan ends this scan and not the hub, which also carries calls.
* The source is ready when every file was good at one time, in this run of the hub or an earlier one (`good_manifests`).
  If one file never was good, no node gets anything: the file may hold objects that a node still uses.
* The system reports changes. A scan every few seconds finds those that it does not report: on network file systems,
  behind links, or when the directory was replaced.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from watchfiles import awatch

from cloud.sources.manifests.binding import Binder, Told
from cloud.sources.manifests.claim_sizes import ClaimSizes
from cloud.sources.manifests.good_manifests import GoodManifests
from cloud.sources.manifests.manifest_files import ManifestFiles, Now
from cloud.sources.source import Item, Objects
from common.objects import Ref

log = logging.getLogger("csi_bridge.hub.manifests")

logging.getLogger("watchfiles").setLevel(logging.WARNING)  # below that it logs every change and time-out
"""The library's own log."""

RESCAN_S = 5.0
"""The time between two scans without a reported change. A scan of 1,000 files takes 10 ms."""

_TICK_S = 0.01
"""A timer may fire a little early, and a file that has not settled by then would wait another round."""

_FAILED = "failed"
"""The key of the problem that a scan failed."""

_DEBOUNCE_MS, _STEP_MS = 100, 20
"""Changes within one step are joined, for no longer than the debounce."""


class Facts(Protocol):
    """Gives the facts that change other objects (`cloud.sync.fact_table.FactTable`)."""

    def told(self) -> Told:
        """All of them. It is the same object until one changes."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever one changes. Returns a function that ends this."""


class Manifests(Objects):
    """A source (`source.Source`) that reads a directory. `run()` does the work."""

    def __init__(
        self,
        directory: Path,
        *,
        facts: Facts | None = None,
        sizes: ClaimSizes | None = None,
        kept: GoodManifests | None = None,
        rescan_s: float = RESCAN_S,
    ) -> None:
        """A source that has read nothing yet.

        Args:
            directory: the directory, which need not exist yet.
            facts: the nodes' reports, which go into the objects.
            sizes: the sizes that bound claims had.
            kept: the last good content of each file.
            rescan_s: the time between two scans without a reported change.
        """
        super().__init__()
        self._directory, self._rescan_s = directory, rescan_s
        self._facts = facts
        self._files = ManifestFiles(directory, kept=kept)
        self._loader = _Loader(self._files, sizes)
        self._problems: Mapping[str, str] = {}
        self._wake = asyncio.Event()

    def problems(self) -> list[str]:
        """The problems of the files and their objects, in sentences."""
        silent = bool(self._problems) and not self.is_ready
        return [*self._problems.values(), *(["no node is told anything until every manifest is good"] * silent)]

    async def run(self) -> None:
        """Read the directory, and again whenever it changes, until cancelled."""
        unsubscribe = self._facts.subscribe(self._wake.set) if self._facts is not None else None
        watch: asyncio.Task[None] | None = None
        watched = None
        try:
            while True:
                self._wake.clear()
                await self._load()
                if self._files.identity != watched:
                    await _end(watch)
                    watched = self._files.identity
                    watch = asyncio.create_task(self._watch(), name="manifests-watch") if watched else None
                    await asyncio.sleep(0)  # let the watch begin, so that the next scan misses no change
                    self._wake.set()
                await self._sleep()
        finally:
            if unsubscribe is not None:
                unsubscribe()
            await _end(watch)

    async def _load(self) -> None:
        told = self._facts.told() if self._facts is not None else Told()
        try:
            loaded = await asyncio.to_thread(self._loader.load, told, _now())
        except Exception:  # the hub also carries calls
            if _FAILED not in self._problems:
                log.exception("reading %s failed", self._directory)
            why = "reading it failed because of a bug in CSI Bridge; its objects stay as they were"
            self._problems = {**self._problems, _FAILED: f"{self._directory}: {why}"}
            return
        self.update(loaded.changes, ready=self.is_ready or loaded.complete)
        for key, text in loaded.problems.items():
            if self._problems.get(key) != text:
                log.error("%s", text)
        for key in self._problems.keys() - loaded.problems.keys():
            log.info("settled: %s", self._problems[key])
        self._problems = loaded.problems

    async def _sleep(self) -> None:
        """Wait for a reported change or for the next scan."""
        pause_s = self._files.settle_s + _TICK_S if self._files.unsettled else self._rescan_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()

    async def _watch(self) -> None:
        changes = awatch(
            self._directory, watch_filter=None, recursive=False, debounce=_DEBOUNCE_MS, step=_STEP_MS, rust_timeout=0
        )
        try:
            async for _ in changes:
                self._wake.set()
        except (OSError, RuntimeError) as error:  # too many watches, a file system without them, …
            log.warning(
                "%s is read every %g s, because it cannot be watched: %s", self._directory, self._rescan_s, error
            )


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The result of a scan.

    Attributes:
        changes: the changed objects; None for removed ones.
        problems: all problems.
        complete: whether every file was good at one time.
    """

    changes: Mapping[Ref, Item | None]
    problems: Mapping[str, str]
    complete: bool


class _Loader:
    """The thread's work and its memory. One scan runs at a time."""

    def __init__(self, files: ManifestFiles, sizes: ClaimSizes | None) -> None:
        self._files, self._store = files, sizes
        self._binder = Binder()
        self._sizes: Mapping[str, str] = sizes.sizes if sizes is not None else {}
        self._seen: tuple[int, Told] | None = None
        self._items: Mapping[Ref, Item] = {}
        self._inner: Mapping[str, str] = {}
        """Problems that do not belong to one file."""
        self._kept = True

    def load(self, told: Told, now: Now) -> _Loaded:
        """Scan, and bind again if files or reports have changed."""
        self._files.scan(now)
        items = self._items
        if self._seen is None or self._seen[0] != self._files.revision or self._seen[1] is not told:
            entries, self._inner = self._files.objects()
            bound = self._binder.bind(entries, told, self._sizes)
            self._inner = {**self._inner, **bound.problems}
            # A claim that is missing now may be in a file that is not read yet.
            sizes = bound.sizes if self._files.was_complete else {**self._sizes, **bound.sizes}
            self._kept = self._kept and sizes == self._sizes
            self._sizes = sizes
            self._seen, items = (self._files.revision, told), bound.items
        problems = {**self._files.problems(), **self._inner, **self._keep_sizes()}
        changes, self._items = _changes(self._items, items), items
        return _Loaded(changes, problems, self._files.was_complete)

    def _keep_sizes(self) -> dict[str, str]:
        """Write the sizes if they are not written yet. A problem if that fails; it is tried again at the next look."""
        if self._kept or self._store is None or not self._files.was_complete:
            return {}
        try:
            self._store.keep(self._sizes)
        except OSError as error:
            return {"sizes": f"the sizes of claims cannot be written, and a restart forgets them: {error.strerror}"}
        self._kept = True
        return {}


def _changes(old: Mapping[Ref, Item], new: Mapping[Ref, Item]) -> dict[Ref, Item | None]:
    """The changes between the old objects and the new ones. The thread finds them: most objects stay."""
    if old is new:
        return {}
    changes: dict[Ref, Item | None] = dict.fromkeys(old.keys() - new.keys())
    for ref, item in new.items():
        known = old.get(ref)
        if known is None or known.stamp != item.stamp:
            changes[ref] = item
    return changes


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _now() -> Now:
    return Now(steady=time.monotonic(), wall=time.time())
