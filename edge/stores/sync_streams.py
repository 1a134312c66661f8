"""The agent's sync streams: one brings objects from the hub into the metastore, one sends the node's facts to the hub.

Both run on each link, with a lower priority than calls, and begin with a comparison of digests. An agent beside a
kubelet opens one other stream instead, which only tells the hub of this mode; with `--direct-runtime` also the first
one, without credentials.
"""

import asyncio
from functools import partial

from common.links.standing import Standing
from common.messages import Kind, Priority
from common.objects.sync_stream import WITHOUT_CREDENTIALS, Telling, learn
from common.session.link import Stream
from edge.stores.fact_store import FactStore
from edge.stores.metastore import Metastore
from edge.stores.object_store import ObjectStore

# The interval at which the agent writes that its objects are current. One row a minute wears out no flash disk.
_REFRESH_S = 60.0


def sync_streams(metastore: Metastore) -> tuple[Standing, ...]:
    return (
        Standing(Kind.SYNC, partial(_get_objects, metastore.objects), priority=Priority.SYNC),
        Standing(Kind.FACTS, partial(_send_facts, metastore.facts), priority=Priority.SYNC),
    )


def observe_streams() -> tuple[Standing, ...]:
    return (Standing(Kind.OBSERVE, _hold_open, priority=Priority.SYNC),)


def pods_stream(metastore: Metastore) -> Standing:
    get_objects = partial(_get_objects, metastore.objects)
    return Standing(Kind.SYNC, get_objects, subject=WITHOUT_CREDENTIALS, priority=Priority.SYNC)


async def _get_objects(objects: ObjectStore, stream: Stream) -> None:
    refreshing = asyncio.get_running_loop().create_task(_refresh(objects), name="age of the metastore")
    try:
        await learn(stream, objects)
    finally:
        refreshing.cancel()
        objects.out_of_step()


async def _refresh(objects: ObjectStore) -> None:
    while True:
        await asyncio.sleep(_REFRESH_S)
        await objects.still_in_step()


async def _send_facts(facts: FactStore, stream: Stream) -> None:
    telling = Telling(stream, facts, on_event=facts.on_event)
    unlisten = facts.listen(telling.changed)
    try:
        await telling.run()
    finally:
        unlisten()


async def _hold_open(stream: Stream) -> None:
    async for _ in stream:  # no message comes
        pass
