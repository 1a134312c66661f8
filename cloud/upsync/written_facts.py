"""The written facts: stores the nodes' facts and writes them to Kubernetes.

A fact is an object as an agent reports it: its Node, its CSINode, the status of a claim or a pod, or an Event.

Rules:

* The hub acknowledges a fact when it is stored. The agent keeps its facts, and sends a restarted hub its Node and all
  facts that the hub lacks, so none is lost while the API server is away. The hub writes each if Kubernetes differs.
* The hub acknowledges a Node fact only when the Node in Kubernetes has all volumes of the fact's `volumesInUse`. The
  agent stages a volume for the first time only then, because the attach-detach controller must see it there first
  (docs/csi-contract.md#volumesinuse-comes-before-staging). Meanwhile the node's later facts wait, because the hub
  stores the facts of a node one after another. For that reason no other acknowledgement waits for Kubernetes.
* Each kind has a queue of its own, so that Events that the API server refuses do not delay Nodes.
* Events wait for their write in memory (`FactTable.events`): a hub that stops loses them. A node with very many takes
  no place from the others, and does not fill the cluster.
* For a node that a kubelet serves the hub writes no facts, and only removes its own marks (`handover`). Earlier facts
  of the node's agent no longer count.
* If an object is deleted during a write, the hub tries the write once more before it reports a problem.
* When an operator says that a node is gone for good, the hub deletes the objects that it made for the node, unless the
  node comes back first. A deletion that fails is tried again, and is among the problems. A restarted hub does not
  continue it.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Final

from cloud.kinds.nodes import in_use
from cloud.kinds.pods import claim_names, node_of
from cloud.kinds.rules.fields import Body
from cloud.kube.client import KubeError
from cloud.kube.work_queue import WorkQueue
from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import NODE_KINDS, Fact, read_fact
from cloud.sync.fact_table import FactTable
from cloud.sync.facts import FactSink
from cloud.sync.in_use import InUse
from cloud.upsync.handover import GONE, KUBELET
from cloud.upsync.heartbeats import Heartbeats
from cloud.upsync.ownership import has_edgecore
from cloud.upsync.writer import FactWriter
from common.objects import sole_use
from common.objects.objects import Object, Ref, Stamp
from common.observe.logs import of_peer
from common.observe.token_bucket import Bucket

log = logging.getLogger("csi_bridge.hub.upsync")

_EVENT_BURST: Final = 500  # of a node: as many as wait at an agent. Then there is one a second.

Key = tuple[str, Ref]  # A node, and the object of one of its facts; or a task for the node (`GONE`, `KUBELET`)


class WrittenFacts(FactSink):
    """Takes the nodes' facts, stores them and queues them for their writers."""

    def __init__(
        self,
        closures: Closures,
        table: FactTable,
        claim: Callable[[str, Ref, Fact], Awaitable[None]],
        writers: Mapping[str, FactWriter],
        *,
        hearts: Heartbeats,
        in_use: InUse,
    ) -> None:
        super().__init__(closures, table, claim)
        self._hearts = hearts
        self._in_use = in_use
        self._writers = writers
        self._closed = False
        self._streams: Counter[str] = Counter()
        self._observed: set[str] = set()  # the nodes that a kubelet serves, as their agents said last
        self._buckets: dict[str, Bucket] = {}  # by node: the Events that it may still let the hub write
        self._uids: dict[str, str] = {}  # the UID of each existing Node, as the cluster's watch showed it last
        self._queues: dict[str, WorkQueue[Key]] = {kind: WorkQueue(self._write) for kind in writers}

    def judge_again(self, node: str) -> None:
        """Write what the hub may believe now of a node's facts about itself, or may not believe any more."""
        for kind in NODE_KINDS:
            self._add_if_told(node, Ref(kind, "", node))
        if node in self._observed:
            self._add((node, Ref(KUBELET, "", node)))

    async def close(self) -> None:
        """Write no more, and take no fact: the nodes keep theirs for the next hub, and send an Event once."""
        self._closed = True
        for queue in self._queues.values():
            await queue.close()

    def problems(self) -> list[str]:
        unwritten = [text for queue in self._queues.values() for text in queue.problems()]
        return unwritten + [text for writer in self._writers.values() for text in writer.problems()]

    def stamps(self, node: str) -> Mapping[Ref, Stamp]:
        """The stored facts of a node, without its events, and without its Node until `volumesInUse` is written."""
        stamps = super().stamps(node)
        ref = Ref("Node", "", node)
        fact = self.table.of(node).get(ref)
        if fact is None or self._in_use.has(node, in_use(fact.body)):
            return stamps
        return {it: stamp for it, stamp in stamps.items() if it != ref}

    def up(self, node: str) -> None:
        self._observed.discard(node)
        for kind in (GONE, KUBELET):  # the node is back, and no kubelet serves it
            self._discard(kind, node)
        self._streams[node] += 1
        self._hearts.up(node)

    def down(self, node: str) -> None:
        self._streams[node] -= 1
        if not self._streams[node]:
            del self._streams[node]
            self._hearts.down(node)

    def observed(self, node: str) -> None:
        self._observed.add(node)
        self._in_use.end(node)
        for ref in (Ref(KUBELET, "", node), *self.table.of(node)):
            self._add((node, ref))

    def changed(self, ref: Ref, body: Body | None) -> None:
        """Write the facts about, or dependent on, an object that has changed; without a body, it is gone.

        Such a fact may not have been writable before, or another client may have overwritten it.
        """
        match ref.kind:
            case "Node" if self._is_gone(ref.name, body):
                self._in_use.lose(ref.name)
                for told in self.table.of(ref.name):  # the pod writer writes only if the hub made the Node
                    self._add((ref.name, told))
            case "Node" if body is not None and (fact := self.table.of(ref.name).get(ref)) is not None:
                if set(in_use(fact.body)) != set(in_use(body)):  # the request of a hub before this one may come late
                    self._add((ref.name, ref))
            case "Node" if body is not None and ref.name in self._observed and has_edgecore(body):
                self._add((ref.name, Ref(KUBELET, "", ref.name)))
            case "PersistentVolumeClaim" if body is not None:
                for node in self.table.nodes_with_fact(ref):
                    self._add((node, ref))
            case "Pod" if body is not None:
                for name in claim_names(body):
                    self._add_if_told(node_of(body), Ref("PersistentVolumeClaim", ref.namespace, name))

    def _is_gone(self, node: str, body: Body | None) -> bool:
        if body is None:
            self._uids.pop(node, None)
            return True
        # After an interruption the watch may show only the Node that has replaced it.
        uid = body["metadata"]["uid"]
        before, self._uids[node] = self._uids.get(node, uid), uid
        return bool(before != uid)

    def _add(self, key: Key) -> None:
        if key[1].kind != sole_use.KIND:  # it has no object in Kubernetes
            self._queues[key[1].kind].add(key)

    def _discard(self, kind: str, node: str) -> None:
        ref = Ref(kind, "", node)
        self._queues[kind].discard((node, ref))
        self._writers[kind].forget(node, ref)

    def _add_if_told(self, node: str, ref: Ref) -> None:
        if ref in self.table.of(node):
            self._add((node, ref))

    async def store(self, node: str, obj: Object) -> bool:
        """Store a fact, and queue it for its writer. For a Node, wait until its `volumesInUse` is in Kubernetes.

        Returns False, and queues nothing, for a fact that does not count, as an Event above the node's rate. When its
        pod comes to the node, it is queued. Errors as of `FactSink.store`.
        """
        if self._closed:
            raise OSError("the hub stops")
        now = monotonic()
        bucket = self._buckets.setdefault(node, Bucket(1.0, _EVENT_BURST, now))
        if obj.ref.kind == "Event" and not bucket.take(now):
            why = "an event of node %s is dropped, because the node sends too many"
            log.warning(why, node, extra=of_peer(f"edge {node}"))
            return False
        if not await super().store(node, obj):
            return False
        self._add((node, obj.ref))
        if obj.ref.kind == "Node" and node not in self._observed:
            await self._in_use.wait(node, in_use(read_fact(obj)))
        return True

    async def drop(self, node: str, ref: Ref, uid: str) -> None:
        await super().drop(node, ref, uid)
        if ref.kind != "Event":
            self._add((node, ref))

    async def forget(self, node: str) -> None:
        self._in_use.end(node)
        self._observed.discard(node)  # else nothing of it could be removed
        self._discard(KUBELET, node)
        told = dict.fromkeys((*(Ref(kind, "", node) for kind in NODE_KINDS), *self.table.of(node)))
        self._buckets.pop(node, None)
        await super().forget(node)
        if node not in self._streams:  # it may have reconnected meanwhile
            self._add((node, Ref(GONE, "", node)))
        for ref in told:
            self._add((node, ref))

    async def _write(self, key: Key) -> float | None:
        node, ref = key
        if node in self._observed and ref.kind != KUBELET:
            self._writers[ref.kind].forget(node, ref)
            return None
        if ref.kind == "Event":
            if (event := self.table.events.get(key)) is not None:
                await self._writers[ref.kind].write(node, ref, dict(event.body))
                if self.table.events.get(key) is event:
                    del self.table.events[key]
            return None
        try:
            return await self._write_told(node, ref)
        except KubeError as error:
            if not error.is_missing:
                raise
        return await self._write_told(node, ref)  # the object was deleted meanwhile, perhaps with its Node

    async def _write_told(self, node: str, ref: Ref) -> float | None:
        fact = self.table.of(node).get(ref)
        body = self.table.permitted_body(node, ref)
        if fact is not None and fact.is_part:
            return None
        if fact is not None and body != fact.body:
            log.info("node %s tells of drivers or segments that its reports do not have: not written to %s", node, ref)
        return await self._writers[ref.kind].write(node, ref, dict(body) if body is not None else None)
