"""A reflector: keeps a copy of all objects of one kind in step with the API server, by listing and watching them.

Rules:

* A list comes in parts and counts when its last part is there: what is missing in half a list is not gone.
* A watch goes on from the last version seen, bookmarks included, for as long as the server has it; then (410 Gone) all
  is listed again, and what the list does not have is gone.
* A server that fails is asked again with growing distance, by many reflectors at different times. Only a watch that
  tells of something, or is quiet to its end, ends the growth: one that was opened, or a list, may fail right after it.
* People are told of a trouble until all was listed or a watch is open, and the log is until one works.
* What nobody foresaw ends a list or a watch and not the hub, which carries calls as well: all is listed again.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from cloud.kube import KubeError, Page, Resource
from common.backoff import Backoff

log = logging.getLogger("csi_bridge.hub.cluster")

_PAGE: Final = 250
"""Objects in one part of a list: some ten milliseconds of the loop's time."""

_WATCH_S: Final = 300, 600
"""A watch lasts so long at least and at most: client-go's, so that not all end at once."""

_BACKOFF: Final = Backoff(
    first_s=0.5,
    most_s=30.0,
    jitter=lambda longest_s: longest_s * random.uniform(0.5, 1.0),  # noqa: S311  # no secret
)
"""Between two tries: client-go's reflector begins with 0.8 s, and ends with 30."""


class ListWatchApi(Protocol):
    """What is asked of `cloud.kube.Kube`."""

    async def list(self, resource: Resource, *, limit: int, more: str = "") -> Page:
        """A part of a list."""

    def watch(self, resource: Resource, version: str, *, for_s: int) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What happens after a version; first of all, that it was opened."""


class Copy(Protocol):
    """Where the objects of a kind go. `add`, `put` and `remove` raise KubeError if what came names no object."""

    def begin(self) -> None:
        """All of them follow, by `add`."""

    def add(self, body: Mapping[str, Any]) -> None:
        """One of all of them."""

    def end(self) -> None:
        """These were all of them."""

    def put(self, body: Mapping[str, Any]) -> None:
        """One is new or has changed."""

    def remove(self, body: Mapping[str, Any]) -> None:
        """One is gone."""


class Reflector:
    """Reflects one kind: `run` it.

    Attributes:
        trouble: why the copy may be old, in a sentence; empty as long as it is kept in step.
    """

    def __init__(
        self,
        api: ListWatchApi,
        resource: Resource,
        copy: Copy,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nothing is asked yet.

        Args:
            api: the API server.
            resource: which kind.
            copy: where the objects go.
            pause: waits for so many seconds.
        """
        self.trouble = ""
        self._api, self._resource, self._copy, self._pause = api, resource, copy, pause
        self._logged = ""
        """The trouble that the log tells of, up to now."""
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        """Keep the copy in step until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                heard = await self._watch()
                self._worked()
                if not heard:
                    await self._wait()  # a server that ends each watch at once is not asked all the time
            except KubeError as error:
                if error.is_expired:
                    log.info("%s are listed again: %s", self._resource.plural, error)
                    self._version = ""
                else:
                    self._note(str(error))
                await self._wait()
            except Exception:  # the hub carries calls as well
                why = f"following {self._resource.plural} failed because of a bug in CSI Bridge; see the hub's log"
                if why != self._logged:
                    log.exception("following %s failed because of a bug; they are listed again", self._resource.plural)
                self._note(why)
                self._version = ""
                await self._wait()

    async def _list(self) -> None:
        """All objects.

        Raises:
            KubeError: they could not be listed.
        """
        self._copy.begin()
        more, limit = "", _PAGE
        while True:
            try:
                page = await self._api.list(self._resource, limit=limit, more=more)
            except KubeError as error:
                if not (error.is_expired and more):
                    raise
                # The server forgot the state that the parts are of before the last was asked for: all in one, then.
                self._copy.begin()
                more, limit = "", 0
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
        """Follow what happens, until the server ends it. Whether anything happened.

        Raises:
            KubeError: it broke off, or the version is too old.
        """
        for_s = random.randint(*_WATCH_S)  # noqa: S311  # no secret
        heard = False
        async for what, body in self._api.watch(self._resource, self._version, for_s=for_s):
            match what:
                case "ADDED" | "MODIFIED":
                    self._copy.put(body)
                case "DELETED":
                    self._copy.remove(body)
                case "OPEN" | "BOOKMARK":
                    pass
                case _:
                    log.warning(
                        "%s: the API server sent an event of the unknown type %s, which is ignored",
                        self._resource.plural,
                        what,
                    )
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
