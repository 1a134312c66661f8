"""A sync stream: a teller or a learner of `common.sync` on a stream of a link.

Rules:

* An idle stream has one task, which waits for a message: a hub has two streams for each node. Sending and storing have
  tasks of their own only while there is work.
* If the peer breaks a rule, the stream ends with the reason, on either side.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from common.link import Stream
from common.objects import Ref, Stamp
from common.sync import Event, Learner, Teller, Truth
from common.sync_messages import Change


class Copy(Protocol):
    """The objects that a learner has on its disk. Only the learner's changes alter it."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        """Every object's state, without those of `PASSING_KINDS`."""

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        """Store these changes in this order, and return when they are on the disk.

        It tries again after a passing failure. If it is cancelled, storing goes on. Returns the reasons of the changes
        that it refuses for good, by `seq`.
        """

    async def settle(self) -> None:
        """Return when all changes that `store` got are on the disk."""


class Telling:
    """A teller on a stream. `changed()` may be called before `run`."""

    def __init__(
        self,
        stream: Stream,
        truth: Truth,
        *,
        hear: Callable[[Event], None],
        is_unknown: Callable[[Ref], bool] = lambda _: False,
    ) -> None:
        """`hear` is called with each event of the teller."""
        self._stream = stream
        self._hear = hear
        limit = stream.link.peer.max_message_bytes
        self._teller = Teller(truth, max_message_bytes=limit, is_unknown=is_unknown)
        self._sender: _Worker | None = None

    def changed(self, refs: Iterable[Ref] | None = None) -> None:
        self._teller.changed(refs)
        if self._sender is not None:
            self._sender.wake()

    async def run(self) -> None:
        async with _worker(self._send, name="sync teller") as self._sender:
            async for message in self._stream:
                self._teller.receive(message)
                self._report()
                self._sender.wake()

    async def _send(self) -> None:
        while message := self._teller.next_message():
            self._report()
            await self._stream.send(message)
        self._report()

    def _report(self) -> None:
        for event in self._teller.events():
            self._hear(event)


async def learn(stream: Stream, copy: Copy) -> None:
    """Learn on a stream until it ends; either side may have opened it."""
    await copy.settle()
    learner = Learner(copy.stamps())
    waiting: list[Change] = []

    async def send() -> None:
        while message := learner.next_message():
            await stream.send(message)

    async def store() -> None:
        while waiting:
            batch = waiting.copy()
            waiting.clear()
            learner.stored(batch[-1].seq, await copy.store(batch))
            sender.wake()

    async with _worker(send, name="sync learner") as sender, _worker(store, name="sync store") as storer:
        sender.wake()
        async for message in stream:
            waiting += learner.receive(message)
            if waiting:
                storer.wake()
            sender.wake()


class _Worker:
    """Runs work in a task of its own while there is any. The task that makes it owns it."""

    def __init__(self, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        self._work = work
        self._name = name
        self._owner = asyncio.current_task()
        self._cancels = self._owner.cancelling() if self._owner is not None else 0
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._stopped = False
        self._failure: Exception | None = None

    def wake(self) -> None:
        self._again = True
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        """Raise the work's error, if the owner was cancelled for that alone."""
        if self._failure is None:
            return
        if self._owner is not None and self._owner.uncancel() > self._cancels:
            return  # another task cancels the owner, too: that must not be lost
        raise self._failure from None

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._work()
        except Exception as error:  # noqa: BLE001  # its owner raises it
            if not self._stopped and self._owner is not None:  # an owner that has called stop() raises nothing
                self._failure = error
                self._owner.cancel()
            self._stopped = True
        finally:
            self._task = None


@asynccontextmanager
async def _worker(work: Callable[[], Awaitable[None]], *, name: str) -> AsyncIterator[_Worker]:
    worker = _Worker(work, name=name)
    try:
        yield worker
    except asyncio.CancelledError:
        worker.check()
        raise
    finally:
        await worker.stop()
