"""A sync on a stream of a link: what fails in the work beside it ends the stream in its own words, and nothing else."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from common.messages import Kind
from common.objects.objects import Object, Ref, Stamp
from common.objects.sync import Learner
from common.objects.sync_messages import Change, Differ, HeldAll, Put, Stored, SyncMessage, decode, encode, put
from common.objects.sync_stream import Telling, _Worker, learn
from common.observe.tasks import supervised
from common.session.link import Stream
from tests.kit.linked import Peer, link_pair
from tests.kit.waiting import settle

POD = Object(Ref("Pod", "ns", "a"), Stamp("u", "1"), b"{}")


async def fail() -> None:
    raise OSError("the disk is gone")


class Disk:
    """A copy (`common.objects.sync_stream.Copy`) whose disk takes nothing."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {}

    async def store(self, changes: Sequence[Change]) -> Mapping[int, str]:
        await fail()
        return {}

    async def settle(self) -> None:
        return


class Broken:
    """A truth (`common.objects.sync.Truth`) that says what there is, and fails when it is to give it."""

    def stamps(self) -> Mapping[Ref, Stamp]:
        return {POD.ref: POD.stamp}

    def read(self, ref: Ref) -> Object | None:
        raise LookupError(f"{ref} is not where it was")


async def opened(peer: Peer) -> Stream:
    _, link = link_pair(peer, Peer(accepts=False))
    await settle()
    return link.open(Kind.SYNC)


async def test_work_that_has_failed_is_not_done_again() -> None:
    """A store that went on after a failure would acknowledge the lost change with a later one."""
    tries: list[str] = []
    tried = asyncio.Event()

    async def work() -> None:
        tries.append("tried")
        tried.set()
        await fail()

    async def owner() -> None:
        async with supervised(quiet=True) as tasks:
            worker = _Worker(tasks, work, name="failing")
            worker.wake()
            await tried.wait()
            worker.wake()
            await asyncio.Event().wait()

    with pytest.raises(OSError, match="the disk is gone"):
        await owner()
    assert tries == ["tried"]


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
        await Telling(stream, Broken(), on_event=lambda _: None).run()
    await settle()
    assert not [said for said in heard if isinstance(said, Put)]
