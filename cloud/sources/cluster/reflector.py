"""A reflector: keeps a copy of all objects of one kind up to date, by listing and watching them.

Rules:

* A list comes in parts, and counts when the last part is there.
* A watch continues from the last version, bookmarks included. When the server no longer has this version (410 Gone),
  the reflector lists again, and objects that the list lacks are gone.
* After failures, the tries come at growing, random intervals. They start anew after a watch that has sent an event or
  ended quietly. An opened watch or a list is no proof yet: the next request may fail.
* `trouble` stays until a list is complete or a watch is open. The log reports the end of a trouble when a watch works.
* A bug ends a list or a watch and not the hub, which also carries calls. The reflector then lists again.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from cloud.kube.client import PAGE, Kube, KubeError, Resource
from common.links.backoff import Backoff

log = logging.getLogger("csi_bridge.hub.cluster")

_WATCH_S: Final = 300, 600  # the shortest and the longest watch, as in client-go, so that not all end at once

# client-go's reflector begins with 0.8 s and ends with 30 s.
_BACKOFF: Final = Backoff(
    first_s=0.5,
    most_s=30.0,
    jitter=lambda longest_s: longest_s * random.uniform(0.5, 1.0),  # noqa: S311  # no secret
)


class KindCache(Protocol):
    """A copy of a kind's objects. `add` and `take` raise KubeError if the body names no object."""

    def begin(self) -> None:
        """A whole list follows, by `add`."""

    def add(self, body: Mapping[str, Any]) -> None:
        """Add an object of the list."""

    def end(self) -> None:
        """Replace the copy by the list."""

    def take(self, body: Mapping[str, Any], *, is_gone: bool) -> None:
        """Add, replace or remove one object."""


class Reflector:
    """Keeps the copy of one kind up to date. `run()` does the work."""

    def __init__(
        self,
        api: Kube,
        resource: Resource,
        copy: KindCache,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.trouble = ""  # the reason why the copy may be out of date, in a sentence; empty while it is up to date
        self._api = api
        self._resource = resource
        self._copy = copy
        self._pause = pause
        self._logged = ""  # the trouble that the log has reported last
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                heard = await self._watch()
                self._worked()
                if not heard:
                    await self._wait()  # some servers end each watch at once
            except KubeError as error:
                if error.is_expired:
                    log.info("%s are listed again: %s", self._resource.plural, error)
                    self._version = ""
                else:
                    self._note(str(error))
                await self._wait()
            except Exception:  # the hub also carries calls
                why = f"following {self._resource.plural} failed because of a bug in CSI Bridge; see the hub's log"
                if why != self._logged:
                    log.exception("following %s failed because of a bug; they are listed again", self._resource.plural)
                self._note(why)
                self._version = ""
                await self._wait()

    async def _list(self) -> None:
        self._copy.begin()
        more = ""
        limit = PAGE
        while True:
            try:
                page = await self._api.list(self._resource, limit=limit, more=more)
            except KubeError as error:
                if not (error.is_expired and more):
                    raise
                # The server has forgotten the state of the first parts: list all in one part.
                self._copy.begin()
                more = ""
                limit = 0
                continue
            for body in page.items:
                self._copy.add(body)
            more = page.more
            if not more:
                break
        self._copy.end()
        self._version = page.version
        self.trouble = ""

    async def _watch(self) -> bool:
        for_s = random.randint(*_WATCH_S)  # noqa: S311  # no secret
        heard = False
        async for what, body in self._api.watch(self._resource, self._version, for_s=for_s):
            if what in {"ADDED", "MODIFIED", "DELETED"}:
                self._copy.take(body, is_gone=what == "DELETED")
            elif what not in {"OPEN", "BOOKMARK"}:
                why = "%s: the API server sent an event of the unknown type %s, which is ignored"
                log.warning(why, self._resource.plural, what)
            self._version = (body.get("metadata") or {}).get("resourceVersion") or self._version
            self.trouble = ""
            if what != "OPEN":
                heard = True
                self._worked()
        return heard

    def _worked(self) -> None:
        self._failures = 0
        if self._logged:
            log.info("the copy of %s is up to date again", self._resource.plural)
            self._logged = ""

    def _note(self, why: str) -> None:
        if why != self._logged:
            log.warning("the copy of %s may be out of date: %s", self._resource.plural, why)
        self.trouble = self._logged = why

    async def _wait(self) -> None:
        self._failures += 1
        await self._pause(_BACKOFF.wait_s(self._failures))
