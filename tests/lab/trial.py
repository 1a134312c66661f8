"""A trial of the laboratory: volumes travel over a line, and what became of them is counted.

A journey is a volume's whole life: claim, Bound, a pod that gets it, a snapshot, growth, and the deletion of each.
"""

import contextlib
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.kit.peers import manifests
from tests.kit.peers.claims import Claims
from tests.kit.waiting import NeverCameError, let_pass, wait_for
from tests.lab.rows import Row
from tests.lab.site import DRIVER, NODE, Site
from tests.peers.kubelet.kubelet_process import IMAGE

_CUT_S = 40.0
_CUTS = 3
_LOOK_S = 0.05
_MIB = 1 << 20
_CHOSEN = {"volume.kubernetes.io/selected-node": NODE}
"""What the scheduler writes into a claim whose pod it has put on the node."""

_SLOW_DRIVER = ("CreateVolume=delay:3s", "DeleteVolume=delay:3s", "CreateSnapshot=delay:3s", "NodeStageVolume=delay:3s")
"""Where the line is cut, so that cuts hit calls under way."""

Step: TypeAlias = "tuple[str, Callable[[], bool]]"
Steps: TypeAlias = "Iterator[Step]"  # of a journey: what comes next, and whether it has come


@dataclass
class Outcome:
    """What a trial saw."""

    # The number of csi-sanity's specs that passed directly, and the differences; None: not run.
    sanity: tuple[int, list[str]] | None = None
    bound_s: list[float] = field(default_factory=list)  # for each journey, from the claim's creation until it was Bound
    # From the pod's creation until the driver had published the volume.
    published_s: list[float] = field(default_factory=list)
    # For each cut of an otherwise good line: from its end until a claim, asked for meanwhile, was Bound.
    back_s: list[float] = field(default_factory=list)
    idle_bytes_an_hour: float = 0.0  # over the line, both ways, before the first claim
    journey_bytes: float = 0.0  # the same for each journey; without what passes idly, if the line was not cut
    journeys: int = 0  # how many were made
    unsettled: int = 0  # journeys that did not come to their end
    false_final: int = 0  # errors that tell a sidecar how its call ended, and that the driver did not send
    lost: int = 0  # volumes that neither a PersistentVolume nor a claim knows at the end
    doubled: int = 0  # volumes beyond the first that were made for one claim
    overlaps: int = 0  # calls that began at the driver while one for the same volume and method ran
    restarts: int = 0  # of sidecars
    errors: dict[str, int] = field(default_factory=dict)  # that the sidecars were told, by code
    load: float = 0.0  # the machine's load average over five minutes, at the end

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def run(row: Row, way: str, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run one trial.

    Args:
        row: the line.
        way: one of `WAYS`.
        say: is told what happens.
    """
    directory = tempfile.TemporaryDirectory(prefix="csi-lab-", ignore_cleanup_errors=True)
    with directory as path, Site(Path(path), row, way) as site:
        return _Trial(site, row, way, say).run()


class _Trial:
    def __init__(self, site: Site, row: Row, way: str, say: Callable[[str], None]) -> None:
        self._site, self._row, self._way, self._say = site, row, way, say
        self._outcome = Outcome()
        self._claims = Claims(api=site.api, namespace=site.new_namespace(), storage_class=DRIVER)

    def run(self) -> Outcome:
        found, row = self._outcome, self._row
        self._say("one journey, so that every process has done everything once")
        self._travel(1, "first")
        idle_a_second = 0.0
        if row.idle_s:
            self._say(f"nothing for {row.idle_s:g} s")
            idle_a_second = self._idle_bytes_a_second()
            found.idle_bytes_an_hour = idle_a_second * 3600
        if row.weather:
            self._site.vendor.set_faults(*_SLOW_DRIVER if row.is_cut else ())
            self._site.wire.command(f"weather {row.weather}")
        self._say(f"{row.journeys} journeys")
        began, before = time.monotonic(), self._bytes()
        found.bound_s.clear()
        found.published_s.clear()
        found.unsettled += self._travel(row.journeys, "j")
        idle = 0.0 if row.is_cut else idle_a_second * (time.monotonic() - began)
        found.journey_bytes = (self._bytes() - before - idle) / row.journeys
        found.journeys = row.journeys
        self._site.wire.command("heal")
        self._site.vendor.set_faults()
        if not row.is_cut:
            self._say(f"{_CUTS} cuts of {_CUT_S:g} s")
            found.back_s = [self._back(number) for number in range(_CUTS)]
            found.journeys += _CUTS
        self._count()
        if not row.is_cut and self._way != "node-deployment":
            self._say("csi-sanity")
            found.sanity = self._sanity()
        return found

    def _idle_bytes_a_second(self) -> float:
        let_pass(5.0)
        before = self._bytes()
        let_pass(self._row.idle_s)
        return (self._bytes() - before) / self._row.idle_s

    def _bytes(self) -> int:
        counts = self._site.wire.command("stats")
        return counts["bytes_up"] + counts["bytes_down"]

    def _sanity(self) -> tuple[int, list[str]]:
        direct = self._site.sanity(direct=True)
        if self._row.weather:
            self._site.wire.command(f"weather {self._row.weather}")
        over = self._site.sanity(direct=False)
        return direct.counts["passed"], direct.differences(over)

    def _back(self, number: int) -> float:
        """Cut the line, ask for a claim meanwhile; return the seconds from the cut's end until it is Bound."""
        name = f"back-{number}"
        self._site.wire.command("cut")
        let_pass(_CUT_S / 2)
        self._claims.ask(name, annotations=_CHOSEN)
        let_pass(_CUT_S / 2)
        self._site.wire.command("heal")
        began = time.monotonic()
        try:
            self._claims.wait_bound(name, timeout_s=self._row.limit_s)
        except NeverCameError:
            self._outcome.unsettled += 1
            return math.inf
        back_s = time.monotonic() - began
        self._claims.let_go(name)
        return back_s

    # ---- journeys ----------------------------------------------------------------------------------------------------

    def _travel(self, count: int, prefix: str) -> int:
        """Make journeys. Returns how many did not come to their end."""
        row = self._row
        under_way: list[tuple[str, Steps, Step, float]] = []
        began, unsettled, started, starts_at = time.monotonic(), 0, 0, 0.0
        while started < count or under_way:
            now = time.monotonic()
            if started < count and now - began >= starts_at and (row.every_s or not under_way):
                if prefix != "first":
                    let_pass(row.pause_s)
                steps = self._journey(f"{prefix}{started}")
                under_way.append((f"{prefix}{started}", steps, next(steps), time.monotonic() + row.limit_s))
                started += 1
                starts_at += row.every_s
            still = []
            for name, steps, (what, look), until in under_way:
                if not look():
                    after: Step | None = what, look
                else:
                    after = next(steps, None)
                if after is not None and now < until:
                    still.append((name, steps, after, until))
                elif after is not None:
                    unsettled += 1
                    self._say(f"{name} waits for {after[0]} after {row.limit_s:g} s, and is given up")
            under_way = still
            let_pass(_LOOK_S)
        return unsettled

    def _journey(self, name: str) -> Steps:
        """The steps of a volume's life: each yields what must become true before the next."""
        api, claims, outcome = self._site.api, self._claims, self._outcome
        where = {"namespace": claims.namespace}
        began = time.monotonic()
        claims.ask(name, size_bytes=16 * _MIB, annotations=_CHOSEN)
        yield "its volume", lambda: claims.phase(name) == "Bound"
        outcome.bound_s.append(time.monotonic() - began)

        pod = manifests.pod(name, claim=name, image=IMAGE, nodeName=NODE, automountServiceAccountToken=False, **where)
        began_at, uid = time.time(), api.create(pod)["metadata"]["uid"]
        yield "its pod", lambda: bool(self._published(uid))
        (published,) = self._published(uid)[:1]
        outcome.published_s.append(published - began_at)

        api.create(manifests.snapshot(name, snapshot_class=DRIVER, claim=name, **where))
        yield "its snapshot", lambda: self._has("VolumeSnapshot", name, "readyToUse")
        claims.grow(name, 32 * _MIB)
        yield "its growth", lambda: self._capacity(name) == "32Mi"

        api.delete("VolumeSnapshot", name, **where)
        yield "the snapshot's end", lambda: api.get("VolumeSnapshot", name, **where) is None
        api.delete("Pod", name, grace_s=0, **where)
        volume = (api.get("PersistentVolumeClaim", name, **where) or {})["spec"]["volumeName"]
        handle = (api.get("PersistentVolume", volume) or {})["spec"]["csi"]["volumeHandle"]
        yield "the pod's end", lambda: self._is_unmounted(handle)
        api.delete("PersistentVolumeClaim", name, **where)
        yield "the volume's end", lambda: api.get("PersistentVolume", volume) is None

    def _published(self, uid: str) -> list[float]:
        """When the driver has published a volume for a pod."""
        calls = self._site.vendor.calls("NodePublishVolume")
        return [call.end for call in calls if uid in call.fields["target_path"] and call.code == "OK" and call.end]

    def _is_unmounted(self, handle: str) -> bool:
        calls = self._site.vendor.calls("NodeUnstageVolume")
        return any(call.fields["volume_id"] == handle and call.code == "OK" and call.end for call in calls)

    def _has(self, kind: str, name: str, field: str) -> bool:
        found = self._site.api.get(kind, name, namespace=self._claims.namespace)
        return bool(found and found.get("status", {}).get(field))

    def _capacity(self, name: str) -> str:
        found = self._site.api.get("PersistentVolumeClaim", name, namespace=self._claims.namespace)
        return str((found or {}).get("status", {}).get("capacity", {}).get("storage"))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count what must not be."""
        found, vendor = self._outcome, self._site.vendor
        made = {(it.fields["name"], it.fields["volume_id"]) for it in vendor.calls("CreateVolume") if it.code == "OK"}
        _give_time(lambda: not self._lost(made))
        found.lost = len(self._lost(made))
        found.doubled = len(made) - len({name for name, _ in made})
        methods = ("CreateVolume", "DeleteVolume", "CreateSnapshot", "DeleteSnapshot", "ControllerExpandVolume")
        found.overlaps = sum(self._overlaps(method) for method in methods)
        sent = Counter(_go(call.code) for method in methods for call in vendor.calls(method))
        found.false_final = sum(max(times - sent[code], 0) for code, times in self._site.final_errors_told().items())
        found.restarts = self._site.restarts()
        found.errors = dict(self._site.sidecars_errors())
        found.load = os.getloadavg()[1]

    def _lost(self, made: set[tuple[str, str]]) -> set[str]:
        """The driver's volumes that nobody in the cluster knows; given names and ids of all that it made."""
        api = self._site.api
        known = {it["spec"]["csi"]["volumeHandle"] for it in api.all("PersistentVolume")}
        asked = {f"pvc-{it['metadata']['uid']}" for it in api.all("PersistentVolumeClaim")}
        return {*self._site.vendor.volumes} - known - {volume for name, volume in made if name in asked}

    def _overlaps(self, method: str) -> int:
        last: dict[str, float] = {}
        overlapping = 0
        for call in sorted(self._site.vendor.calls(method), key=lambda it: it.start):
            key = next(call.fields[it] for it in ("name", "volume_id", "snapshot_id") if it in call.fields)
            overlapping += call.start < last.get(key, 0.0)
            last[key] = max(last.get(key, 0.0), call.end or call.start)
        return overlapping


def _give_time(look: Callable[[], bool]) -> None:
    """Wait for something that may come late: a minute at most."""
    with contextlib.suppress(NeverCameError):
        wait_for(look, what="end of volumes that nobody knows", timeout_s=60.0)


def _go(code: str) -> str:
    """A code's name as Go writes it: NOT_FOUND is NotFound."""
    return "".join(word.capitalize() for word in code.split("_"))
