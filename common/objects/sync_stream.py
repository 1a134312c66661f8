"""A sync stream: a teller or a learner of `common.objects.sync` on a stream of a link.

Rules:

* An idle stream has one task, which waits for a message: a hub has two streams for each node. Sending and storing have
  tasks of their own only while there is work.
* If the peer breaks a rule, the stream ends with the reason, on either side.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from common.objects.objects import Ref, Stamp
from common.objects.sync import Event, Learner, Teller, Truth
from common.objects.sync_messages import Change
from common.observe.tasks import Tasks, supervised
from common.session.link import Stream

# The subject of an agent's sync stream that is to bring no Secrets, tokens and attachments: beside a kubelet, the
# kubelet's calls have what the agent needs of them.
WITHOUT_CREDENTIALS = "without credentials"


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
        on_event: Callable[[Event], None],
        is_unknown: Callable[[Ref], bool] = lambda _: False,
    ) -> None:
        """`on_event` is called with each event of the teller."""
        self._stream = stream
        self._on_event = on_event
        limit = stream.link.peer.max_message_bytes
        self._teller = Teller(truth, max_message_bytes=limit, is_unknown=is_unknown)
        self._sender: _Worker | None = None

    def changed(self, refs: Iterable[Ref] | None = None) -> None:
        self._teller.changed(refs)
        if self._sender is not None:
            self._sender.wake()

    async def run(self) -> None:
        async with supervised(quiet=True) as tasks:
            sender = self._sender = _Worker(tasks, self._send, name="sync teller")
            try:
                async for message in self._stream:
                    self._teller.receive(message)
                    self._report()
                    sender.wake()
            finally:
                self._sender = None

    async def _send(self) -> None:
        while message := self._teller.next_message():
            self._report()
            await self._stream.send(message)
        self._report()

    def _report(self) -> None:
        for event in self._teller.events():
            self._on_event(event)


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

    async with supervised(quiet=True) as tasks:
        sender = _Worker(tasks, send, name="sync learner")
        storer = _Worker(tasks, store, name="sync store")
        sender.wake()
        async for message in stream:
            waiting += learner.receive(message)
            if waiting:
                storer.wake()
            sender.wake()


class _Worker:
    # Runs work in a task of its own while there is any. Once it has failed, it runs no more.

    def __init__(self, tasks: Tasks, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        self._tasks = tasks
        self._work = work
        self._name = name
        self._again = self._runs = False

    def wake(self) -> None:
        self._again = True
        if not self._runs:
            self._runs = True
            self._tasks.start(self._run(), name=self._name)

    async def _run(self) -> None:
        while self._again:
            self._again = False
            await self._work()
        self._runs = False
