"""The node lists: what each node's driver lists, asked anew for each caller, and the last complete list of each node.

Rules:

* A caller gets a list that the hub began to ask for after the caller came: it has all that was made before.
* A node gets one question of a kind at a time. Callers that come meanwhile share the next one.
* A question goes on when its callers leave: a slow node's list becomes its last one.
* All lists together have a limit. Its last quarter is for nodes with few entries (`has_room`).
* The lists are in memory alone.
"""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from cloud.placement.decisions import Send
from cloud.placement.inventory import Entry, Unlisted, entries
from cloud.placement.question import CallNode
from cloud.placement.segment import placed_answer
from common.csi.methods import METHODS
from common.limits import has_room

LIST_AGE_S: Final = 600.0
"""The default of `--list-age`: ten rounds of external-attacher, two of the health monitor."""

_LIMIT_S: Final = 300.0
"""The time of one node's whole list."""

_MOST_BYTES: Final = 128 * 1_048_576
"""All lists together: those that are kept, and those under way. 400,000 volumes with their topology."""

_MOST_KEPT: Final = 4
"""The last lists of one method on a node: its requests may have different secrets."""


class Question(NamedTuple):
    """A question for all that a node's driver lists.

    Attributes:
        driver: the driver.
        node: the node.
        method: the gRPC path.
        digest: that of the request's other fields, such as secrets.
    """

    driver: str
    node: str
    method: str
    digest: bytes


class NodeList(NamedTuple):
    """All that a node's driver has listed.

    Attributes:
        entries: in the order of the driver.
        began: when the hub began to ask, in seconds since the epoch.
        size_bytes: the size of the entries.
    """

    entries: list[Entry]
    began: float
    size_bytes: int


class NodeLists:
    """Asks nodes for their lists, and keeps the last ones."""

    def __init__(self, call: CallNode, *, age_s: float, now: Callable[[], float]) -> None:
        """Begin without lists.

        Args:
            call: sends a call to a node.
            age_s: how long a last list counts.
            now: seconds since the epoch.
        """
        self._call, self._age_s, self._now = call, age_s, now
        self._kept: dict[tuple[str, str, str], dict[bytes, NodeList]] = {}
        """By driver, node and method, and by the digest of the request; the oldest first."""
        self._running: dict[Question, asyncio.Task[NodeList]] = {}
        self._next: dict[Question, asyncio.Task[NodeList]] = {}
        self._bytes: dict[str, int] = {}
        """By node: the size of its lists."""
        self._together = 0

    async def ask(self, send: Send, driver: str, method: str, request: bytes) -> NodeList:
        """The list of a node. To cancel the caller does not end the question.

        Args:
            send: the node.
            driver: the driver.
            method: the gRPC path.
            request: the request (`without_page`).

        Raises:
            Unlisted: the driver does not answer all of it.
            CallError: the node cannot be reached.
        """
        question = Question(driver, send.node, method, hashlib.sha256(request).digest())
        running, task = self._running.get(question), self._next.get(question)
        if task is None:
            work = self._take(question, send, request, running)
            task = asyncio.get_running_loop().create_task(work, name=f"list-{send.node}")
            task.add_done_callback(partial(self._ended, question))
            (self._running if running is None else self._next)[question] = task
        await asyncio.wait([task])
        if task.cancelled():  # this caller goes on, and must get an answer
            raise Unlisted("the hub asks it no more: it is being forgotten, or the hub stops")
        return task.result()

    def last(self, driver: str, node: str, method: str, request: bytes) -> NodeList | None:
        """The last complete list of a node; None: there is none, or it no longer counts."""
        found = self._kept.get((driver, node, method), {}).get(hashlib.sha256(request).digest())
        return found if found is not None and self._now() - found.began < self._age_s else None

    def forget(self, node: str, driver: str = "") -> None:
        """Drop the lists of a node, or of one driver there, and the questions for them."""
        for key in [key for key in self._kept if key[1] == node and driver in ("", key[0])]:
            for kept in self._kept.pop(key).values():
                self._count(node, -kept.size_bytes)
        for tasks in (self._next, self._running):
            for question, task in tasks.items():
                if question.node == node and driver in ("", question.driver):
                    task.cancel()

    async def close(self) -> None:
        """Ask no more."""
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(
        self, question: Question, send: Send, request: bytes, before: asyncio.Task[NodeList] | None
    ) -> NodeList:
        """Ask a node, when the question before this one has ended."""
        if before is not None:
            await asyncio.wait([before])
            self._running[question] = self._next.pop(question)
        driver, node, method, digest = question
        began, size_bytes = self._now(), 0

        def keep(more_bytes: int) -> None:
            nonlocal size_bytes
            own, sharers = self._bytes.get(node, 0) + more_bytes, len(self._bytes) + 1
            if not has_room(own, self._together + more_bytes, _MOST_BYTES, sharers=sharers):
                raise Unlisted(f"its lists have more than {own - more_bytes} bytes, and the hub has no room for more")
            size_bytes += more_bytes
            self._count(node, more_bytes)

        edit = partial(placed_answer, method, send)
        try:
            async with asyncio.timeout(_LIMIT_S):
                found = await entries(self._call, driver, node, method, request, edit=edit, keep=keep)
        except TimeoutError:
            self._count(node, -size_bytes)
            raise Unlisted(f"its list takes longer than {_LIMIT_S:g} s") from None
        except BaseException:
            self._count(node, -size_bytes)
            raise
        result = NodeList(found, began, size_bytes)
        kept = self._kept.setdefault((driver, node, method), {})
        old = kept.pop(digest, None)
        kept[digest] = result
        if old is None and len(kept) > _MOST_KEPT:
            old = kept.pop(next(iter(kept)))
        if old is not None:
            self._count(node, -old.size_bytes)
        return result

    def _count(self, node: str, more_bytes: int) -> None:
        self._together += more_bytes
        self._bytes[node] = self._bytes.get(node, 0) + more_bytes
        if not self._bytes[node]:
            del self._bytes[node]

    def _ended(self, question: Question, task: asyncio.Task[NodeList]) -> None:
        for tasks in (self._running, self._next):
            if tasks.get(question) is task:
                del tasks[question]
        if not task.cancelled():
            task.exception()  # its callers have it, if any are left


def without_page(method: str, request: bytes) -> bytes:
    """A request of one of `LISTINGS` without its page: with the fields that all pages have in common."""
    message: Any = METHODS[method].request.FromString(request)
    message.ClearField("max_entries")
    message.ClearField("starting_token")
    return bytes(message.SerializeToString(deterministic=True))
