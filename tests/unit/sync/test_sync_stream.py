"""A sync on a stream of a link: what fails in the work beside it ends the stream in its own words, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from common.messages import Kind
from common.objects import Object, Ref, Stamp
from common.sync import Learner
from common.sync_messages import Differ, HeldAll, Put, Stored, SyncMessage, decode, encode, put
from common.sync_stream import Telling, _worker, learn
from tests.kit.linked import Peer, link_pair
from tests.kit.waiting import settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from common.link import Stream
    from common.sync_messages import Change

POD = Object(Ref("Pod", "ns", "a"), Stamp("u", "1"), b"{}")


async def fail() -> None:
    raise OSError("the disk is gone")


class Disk:
    """A copy (`common.sync_stream.Copy`) whose disk takes nothing."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {}

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        await fail()
        return {}

    async def settle(self) -> None:
        return


class Broken:
    """A truth (`common.sync.Truth`) that says what there is, and fails when it is to give it."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {POD.ref: POD.stamp}

    def read(self, ref: Ref) -> Object | None:
        raise LookupError(f"{ref} is not where it was")


async def opened(peer: Peer) -> Stream:
    _, link = link_pair(peer, Peer(accepts=False))
    await settle()
    return link.open(Kind.SYNC)


async def marks_left_by(owner: Callable[[], Awaitable[None]]) -> int:
    """How often this task counts as cancelled when an owner of work has ended with the work's error."""
    with pytest.raises(OSError, match="the disk is gone"):
        await owner()
    task = asyncio.current_task()
    return task.cancelling()


async def test_work_that_fails_ends_its_owner_with_its_error_and_leaves_no_mark_on_it() -> None:
    async def owner() -> None:
        async with _worker(fail, name="failing") as worker, _worker(settle, name="idle"):
            worker.wake()
            await asyncio.Event().wait()

    assert await marks_left_by(owner) == 0


async def test_of_two_that_fail_at_once_one_error_is_raised_and_no_mark_is_left() -> None:
    async def owner() -> None:
        async with _worker(fail, name="one") as one, _worker(fail, name="two") as two:
            one.wake()
            two.wake()
            await asyncio.Event().wait()

    assert await marks_left_by(owner) == 0


async def test_an_owner_that_is_cancelled_just_as_its_work_fails_stays_cancelled() -> None:
    """Whoever ends a stream for good must not see it opened again (`common.standing`) because of a failure."""

    async def fail_too_late() -> None:
        task.cancel()
        await fail()

    async def owner() -> None:
        async with _worker(fail_too_late, name="failing") as worker, _worker(settle, name="idle"):
            worker.wake()
            await asyncio.Event().wait()

    task = asyncio.create_task(owner())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_copy_that_cannot_store_ends_its_stream_and_acknowledges_nothing() -> None:
    heard: list[SyncMessage] = []

    async def tell(stream: Stream) -> None:
        stream.queue(encode(Differ(b"")))
        stream.queue(encode(put(1, POD)))
        async for message in stream:
            heard.extend(decode(message))

    stream = await opened(Peer(tell))
    with pytest.raises(OSError, match="the disk is gone"):
        await learn(stream, Disk())
    await settle()
    assert not [said for said in heard if isinstance(said, Stored)]


async def test_a_truth_that_fails_ends_its_stream_and_tells_nothing() -> None:
    heard: list[SyncMessage] = []

    async def listen(stream: Stream) -> None:
        stream.queue(Learner({}).next_message())  # a learner that holds nothing
        async for message in stream:
            heard.extend(decode(message))
            if isinstance(heard[-1], Differ):
                stream.queue(encode(HeldAll()))

    stream = await opened(Peer(listen))
    with pytest.raises(LookupError, match="is not where it was"):
        await Telling(stream, Broken(), hear=lambda _: None).run()
    await settle()
    assert not [said for said in heard if isinstance(said, Put)]
