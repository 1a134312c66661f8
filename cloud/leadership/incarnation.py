"""The incarnation of the records: the mark by which a hub notices that its records were lost or are an older copy.

Rules:

* New records get a random id, and each start and each hour of a hub that leads a number, the epoch. Both are the mark.
  The records have the last epochs. That of the start is the hub's own, which its hello has (`Hello.epoch`).
* The agents are the witnesses: the hub gives each its mark, and the agent shows the last one that it got. A mark of
  another id, or of an epoch that the records do not know, is of records that the hub has lost.
* New records beside a PersistentVolume of an earlier hub are a loss, too. Until all are read, the loss is possible.
* While a loss stands, the nodes may have volumes that the records lack. The hub refuses a create that several nodes
  could take, and a call that names no node. Agents keep their marks, so that the witness is not lost before the loss is
  written.
* `csi-bridge trust` settles the loss, and all marks of before. Agents refuse a hub with a lower epoch than they know:
  if one has shown such a mark, the hub gets an epoch above it, and announces that.
* A mark is signed with the CA's key, if the hub has it: else a hostile node can invent one (SECURITY.md).
"""

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cloud.claims.claims import Claims
from cloud.claims.rules import VOLUME, Thing
from cloud.kinds.persistentvolumes import node_terms
from cloud.kinds.rules.fields import Body, part
from cloud.records.records import Change, Key, RecordKind, Records
from cloud.sources.source import Source
from common.errors import LeadershipLost, SettingsError, timestamp
from common.objects.node_selector import choices
from common.objects.objects import Ref
from common.objects.topology import NODE_SEGMENT
from common.store.database_writer import WriteFailed

log = logging.getLogger("csi_bridge.hub.incarnation")

SIGNED: Final = b"csi-bridge mark of the records"  # the label of the key that signs marks
_KEY: Final = ("incarnation",)
_MARK: Final = re.compile(r"([0-9a-f]{16}) (\d{1,11}) ([0-9a-f]*)", re.ASCII)
_UNREAD: Final = "the hub's records are new, and it has not read all PersistentVolumes yet"

_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
_EPOCH_S: Final = 3_600.0

# A later epoch without a signature is invented. If the hub rose above that, its marks would be too long to be read.
_FARTHEST_S: Final = 2**33
_MOST_EPOCHS: Final = 200  # Older ones count as known. So many are a week, in 3 KiB.


class _MarkState(NamedTuple):
    """The record: `loss` is a sentence, `checked` whether the volumes were read, `trusted` the newest settled epoch."""

    id: str
    epochs: list[int]
    loss: str = ""
    checked: bool = False
    trusted: int = 0


class Incarnation:
    """The incarnation of one hub's records."""

    def __init__(self, records: Records, *, now: Callable[[], float] = time.time) -> None:
        """Read the mark, or make one for new records. Raises SettingsError."""
        self._records = records
        self._now = now
        self.sign = b""  # the key of marks; empty: they are not signed
        self.epoch = 0  # the number of this hub's leadership, above those of all earlier ones; 0: not counted yet
        self.announce: Callable[[], None] = lambda: None  # called when the epoch has changed
        self.settled: Callable[[], None] = lambda: None  # called when a loss counts no more
        found = records.take(RecordKind.MARK, _read)
        self._state = found[0] if found else _MarkState(secrets.token_hex(8), [])
        self._unread = ""
        self._heard = 0  # the highest epoch in a mark that has shown a loss
        records.watch(RecordKind.MARK, lambda _key: _record(self._state))
        if self.loss:
            log.warning("calls that name no node are refused, until csi-bridge trust: %s", self.loss)

    @property
    def loss(self) -> str:
        """The loss for which the hub refuses calls; empty: none stands."""
        return self._state.loss or self._unread

    async def count(self, *, is_one_of_several: bool = False) -> None:
        """Write the next epoch; at a start, before any other record.

        Raises:
            SettingsError: new records cannot be written.
            LeadershipLost: they cannot be, and this hub is one of several: no agent could tell it from its predecessor.
        """
        epochs = self._state.epochs
        raised = max([int(self._now()), *(it + 1 for it in epochs[-1:])])
        try:
            await self._write(epochs=[*epochs, raised][-_MOST_EPOCHS:])
        except WriteFailed as error:
            if is_one_of_several:
                raise LeadershipLost(f"this hub ends, because it cannot write its epoch: {error}") from error
            if not epochs:
                raise SettingsError("--state-dir", str(error.place), f"cannot be written: {error.why}") from error
            log.warning("the records get no new epoch, so an older copy may pass for them: %s", error)
        self.epoch = self.epoch or self._state.epochs[-1]

    async def follow(self) -> None:
        # So a copy that was made while this hub ran is noticed, too.
        while True:
            await asyncio.sleep(_EPOCH_S)
            await self.count()

    def meet(self, node: str, shown: str) -> str:
        """Judge the mark that an agent shows. Returns the one that it gets; empty: it keeps its own."""
        state = self._state
        mark = _MARK.fullmatch(shown)
        if mark is not None and self._is_credible(shown, mark[1], int(mark[2])):
            id_ = mark[1]
            epoch = int(mark[2])
            is_known = id_ == state.id and (epoch in state.epochs or epoch < state.epochs[0])
            if not is_known and epoch > state.trusted:
                self._heard = max(self._heard, epoch)
                what = "a later state of the hub's records" if id_ == state.id else "other records of this hub"
                self._lose(f"edge node {node} knows {what} ({id_} of {timestamp(epoch)}) than these ({state.id})")
        elif shown:
            log.debug("edge node %s shows a mark that this hub has not signed: %r", node, shown[:100])
        return "" if self.loss else self._mark(state.id, state.epochs[-1])

    def look(self, cluster: Source | None, claims: Claims) -> None:
        """Look for volumes of an earlier hub once the cluster can be read, if the records are new."""

        def read(_refs: frozenset[Ref] = frozenset()) -> None:
            if self._state.checked or not (cluster is None or cluster.is_ready):
                return
            self._unread, self._state = "", self._state._replace(checked=True)
            if cluster is not None and (found := _find_earlier(cluster, claims)):
                self._lose(found)
            self._records.put(_record(self._state))
            self.settled()

        if cluster is not None and not self._state.checked:
            self._unread = _UNREAD
            cluster.subscribe(read)
        read()

    async def trust(self) -> list[str]:
        """Settle the loss, because an operator says that all is back. Returns the loss; empty if none stood.

        Raises OSError: the loss stands.
        """
        loss = self.loss
        epochs = self._state.epochs
        trusted = max(int(self._now()), epochs[-1], self._heard)
        rises = self._heard >= self.epoch
        if rises:
            epochs = [*epochs, trusted + 1][-_MOST_EPOCHS:]
        try:
            await self._write(loss="", checked=True, trusted=trusted, epochs=epochs)
        except WriteFailed:
            self._records.put(_record(self._state))  # the write that failed may have worked
            raise
        self._unread = ""
        if rises:
            self._heard = 0
            self.epoch = trusted + 1
            self.announce()
        self.settled()
        return [loss] if loss else []

    async def _write(self, **changes: Any) -> None:
        while True:  # a change that was put during the write came after it
            before = self._state
            state = self._state._replace(**changes)
            await self._records.write([_record(state)])
            if self._state is before:
                self._state = state
                return

    def _lose(self, what: str) -> None:
        if not self._state.loss:
            log.error("%s; calls that name no node are refused from now on, until csi-bridge trust", what)
            self._state = self._state._replace(loss=f"{timestamp(self._now())} {what}")
            self._records.put(_record(self._state))

    def _is_credible(self, shown: str, id_: str, epoch: int) -> bool:
        if not self.sign:
            return epoch < self._now() + _FARTHEST_S
        return hmac.compare_digest(shown, self._mark(id_, epoch))

    def _mark(self, id_: str, epoch: int) -> str:
        text = f"{id_} {epoch}"
        return f"{text} {hmac.digest(self.sign, text.encode(), 'sha256').hex() if self.sign else ''}"


def _record(state: _MarkState) -> Change:
    return Change(RecordKind.MARK, _KEY, state._asdict())


def _read(_key: Key, body: Body) -> _MarkState:
    return _MarkState(
        str(body["id"]), [int(it) for it in body["epochs"]], body["loss"], body["checked"], body["trusted"]
    )


def _find_earlier(cluster: Source, claims: Claims) -> str:
    # A provisioner has made such a volume, and its nodeAffinity has the bridge's own segment. So a first install beside
    # static volumes, or in KubeEdge's place, finds none. A volume that this hub has made is none: until a cluster can
    # be read, an hour may go by.
    for ref in sorted(cluster.refs("PersistentVolume"), key=lambda ref: ref.name):
        body = cluster.body(ref)
        if body is not None and (node := _own_segment(body)):
            csi = body["spec"]["csi"]
            if Thing(VOLUME, str(csi.get("volumeHandle", ""))) not in claims.book(csi["driver"]).ids:
                return (
                    f"the hub's records are new, but PersistentVolume {ref.name} of driver {csi['driver']} was made on "
                    f"edge node {node}"
                )
    return ""


def _own_segment(volume: Body) -> str:
    driver = part(volume, "spec", "csi").get("driver", "")
    if not driver or (volume["metadata"].get("annotations") or {}).get(_PROVISIONED_BY) != driver:
        return ""
    terms = node_terms(volume)
    found = (value for term in terms for key, values in choices(term) if key == NODE_SEGMENT for value in values)
    return next(found, "")
