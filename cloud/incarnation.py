"""The incarnation of the records: the mark by which a hub notices that its records were lost.

Rules:

* New records get a random id.
* While a loss stands, another node may have what the records lack: the hub refuses a create that several nodes could
  take, and a call that names no node. `csi-bridge trust` settles the loss.
* New records beside a PersistentVolume of an earlier hub are a loss. A provisioner has made such a volume, and its
  nodeAffinity has the bridge's own segment. So a first install beside static volumes, or in KubeEdge's place, is not
  stopped. A volume that this hub has made is none: until a cluster can be read, an hour may go by.
* Until the hub has read all PersistentVolumes once since its records were new, the loss counts as possible.
"""

import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from cloud.kinds.fields import Body
from cloud.placement.claims import Claims
from cloud.placement.requests import VOLUME, Thing
from cloud.records.records import Body as RecordBody
from cloud.records.records import Change, Key, Kind, Records
from cloud.sources.source import Source
from common.database_writer import WriteFailed
from common.errors import SettingsError, timestamp
from common.node_selector import choices
from common.objects import Ref
from common.topology import NODE_SEGMENT

log = logging.getLogger("csi_bridge.hub.incarnation")

_KEY: Final = ("incarnation",)
_UNREAD: Final = "the hub's records are new, and it has not read all PersistentVolumes yet"
_PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"


class Incarnation:
    """The incarnation of one hub's records: `id`, `loss` (a sentence), `checked` (whether the volumes were read)."""

    def __init__(self, records: Records, *, now: Callable[[], float] = time.time) -> None:
        """Read the mark, or make one for new records. Raises SettingsError if it cannot be read."""
        self._records, self._now = records, now
        found = records.take(Kind.MARK, _read)
        self._is_new, self._unread = not found, ""
        self._id, self._loss, self._checked = found[0] if found else (secrets.token_hex(8), "", False)

    @property
    def loss(self) -> str:
        """The loss for which the hub refuses calls; empty: none stands."""
        return self._loss or self._unread

    async def begin(self) -> None:
        """Write the mark of new records, before there is any other record. Raises SettingsError if that fails."""
        try:
            if self._is_new:
                await self._records.write([self._change()])
        except WriteFailed as error:
            raise SettingsError("--state-dir", str(error.place), f"cannot be written: {error.why}") from error
        if self._loss:
            log.warning("calls that name no node are refused, until csi-bridge trust: %s", self._loss)

    def look(self, cluster: Source | None, claims: Claims, *, settled: Callable[[], None]) -> None:
        """Look for volumes of an earlier hub once the cluster can be read, if the records are new.

        Args:
            cluster: the PersistentVolumes; None: the hub follows no cluster, and there is nothing to look at.
            claims: the volumes that this hub has made.
            settled: called when the hub has looked.
        """
        if self._checked:
            return
        if cluster is None:
            self._end_look("")
            return
        self._unread = _UNREAD

        def read(_refs: frozenset[Ref] = frozenset()) -> None:
            if cluster.is_ready and not self._checked:
                self._end_look(_earlier_volume(cluster, claims))
                settled()

        cluster.subscribe(read)
        read()

    async def trust(self) -> list[str]:
        """Settle the loss, because an operator says that all of it is back. Returns it.

        Raises:
            OSError: the records cannot be written, and the loss stands.
        """
        settled, loss = self.loss, self._loss
        await self._records.write([self._change(loss="", checked=True)])
        self._checked, self._unread = True, ""
        if self._loss == loss:
            self._loss = ""
        else:  # a new one came meanwhile
            self._records.put(self._change())
        return [settled] if settled else []

    def _end_look(self, found: str) -> None:
        self._checked, self._unread = True, ""
        if found:
            self._lose(found)
        self._records.put(self._change())

    def _lose(self, what: str) -> None:
        log.error("%s; calls that name no node are refused from now on, until csi-bridge trust", what)
        self._loss = f"{timestamp(self._now())} {what}"

    def _change(self, **values: object) -> Change:
        body = {"id": self._id, "loss": self._loss, "checked": self._checked}
        return Change(Kind.MARK, _KEY, body | values)


def _read(_key: Key, body: RecordBody) -> tuple[str, str, bool]:
    return str(body["id"]), str(body["loss"]), bool(body["checked"])


def _earlier_volume(cluster: Source, claims: Claims) -> str:
    """A sentence about a volume of an earlier hub; empty if there is none."""
    for ref in sorted(cluster.refs("PersistentVolume"), key=lambda ref: ref.name):
        body = cluster.body(ref)
        if body is not None and (node := _own_segment(body)):
            csi = body["spec"]["csi"]
            if Thing(VOLUME, str(csi.get("volumeHandle", ""))) not in claims.book(csi["driver"]).ids:
                made = f"PersistentVolume {ref.name} of driver {csi['driver']} was made on edge node {node}"
                return f"the hub's records are new, but {made}"
    return ""


def _own_segment(body: Body) -> str:
    """The value of the bridge's own segment in a volume that a provisioner has made; empty if it is none."""
    spec = body.get("spec") or {}
    driver = (spec.get("csi") or {}).get("driver", "")
    if not driver or (body["metadata"].get("annotations") or {}).get(_PROVISIONED_BY) != driver:
        return ""
    terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    found = (value for term in terms for key, values in choices(term) if key == NODE_SEGMENT for value in values)
    return next(found, "")
