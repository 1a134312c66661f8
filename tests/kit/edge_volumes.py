"""The surroundings of a node's volume manager, in memory: a store, a plugin, drivers, rows and a clock.

    edge = EdgeVolumes()
    edge.add_pod("web", claims=("data",))
    await edge.start()
    assert edge.plugin.calls == ["stage h-data", "publish h-data web-uid"]

Nothing waits: the clock stands still until a test advances it.
"""

import asyncio
import base64
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from common.objects.objects import Object, Ref, Stamp, encode_body
from common.observe.metrics import Metrics, VolumeStats
from common.pages.agent import PodVolumeStatus
from edge.calls.node_requests import Inputs
from edge.disk.cdi import CdiFiles
from edge.disk.found_volumes import Found, Published, Staged, Unreadable, published_for, staged_for
from edge.disk.layout import Layout
from edge.disk.mounts import MountTable
from edge.fencing.fencing import Fencing
from edge.manager.facts import VolumeFacts
from edge.manager.host import VolumeHost
from edge.manager.rows import target_of
from edge.stores.fact_store import FactRefused
from edge.volume_errors import NotReady, Uncertain
from edge.volume_manager import VolumeManager
from edge.volumes import PodVolume, Volume, VolumeKey, attachment_name
from edge.wanted.opt_in import OptIn
from edge.wanted.states import Device, Publication, Row
from edge.wanted.wanted import Wanted
from tests.kit.waiting import settle

NODE = "n1"
DRIVER = "d.csi"
GI = 1 << 30

MOUNTED = ["stage h-data", "publish h-data web-uid"]
TAKEN_DOWN = ["unpublish h-data web-uid", "unstage h-data"]  # the steps on the volume of `add_pod`

FOUND = Found(
    published=(Published(driver=DRIVER, handle="h-data", name="pv-data", pod_uid="web-uid"),),
    staged=(Staged(driver=DRIVER, handle="h-data"),),
)
"""What the disk tells of that volume."""


class FakeClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._bells: list[tuple[float, int, _Bell]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return 1_699_999_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "_Bell":
        bell = _Bell(callback)
        heapq.heappush(self._bells, (self.now + max(0.0, delay_s), next(self._order), bell))
        return bell

    async def turn(self, seconds: float) -> None:
        """Advance the clock, and run everything that is due meanwhile."""
        end = self.now + seconds
        while self._bells and self._bells[0][0] <= end:
            at, _, bell = heapq.heappop(self._bells)
            self.now = max(self.now, at)
            if not bell.cancelled:
                bell.callback()
                await settle()
        self.now = end
        await settle()

    @property
    def waiting(self) -> int:
        """The number of timers that are set."""
        return sum(not bell.cancelled for _, _, bell in self._bells)


@dataclass
class _Bell:
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeStore:
    """Objects; the disk does not give those in `withheld`."""

    def __init__(self) -> None:
        self.objects: dict[Ref, Object] = {}
        self.withheld: set[Ref] = set()
        self.in_step = True
        self.ever_in_step = True
        self.reads = 0
        self._subscribers: list[Callable[[frozenset[Ref]], None]] = []
        self._versions = itertools.count(1)

    def get(self, ref: Ref) -> Object | None:
        self.reads += 1
        if ref in self.withheld:
            raise OSError(f"the disk does not give {ref.name}")
        return self.objects.get(ref)

    def uid(self, ref: Ref) -> str:
        found = self.objects.get(ref)
        return found.stamp.uid if found is not None else ""

    def refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self.objects if ref.kind == kind]

    def subscribe(self, callback: Callable[[frozenset[Ref]], None]) -> None:
        self._subscribers.append(callback)

    def put(self, body: Mapping[str, Any]) -> Ref:
        """Create or replace an object."""
        metadata = body["metadata"]
        ref = Ref(body["kind"], metadata.get("namespace", ""), metadata["name"])
        stamp = Stamp(metadata.get("uid", f"{metadata['name']}-uid"), str(next(self._versions)))
        self.objects[ref] = Object(ref, stamp, encode_body(body))
        self.tell(ref)
        return ref

    def drop(self, *refs: Ref) -> None:
        """Delete objects."""
        for ref in refs:
            del self.objects[ref]
        self.tell(*refs)

    def tell(self, *refs: Ref) -> None:
        for subscriber in self._subscribers:
            subscriber(frozenset(refs))

    def body(self, ref: Ref) -> dict[str, Any]:
        return self.objects[ref].read()


class FakeFacts:
    """Facts, which the hub has at once."""

    def __init__(self) -> None:
        self.kept: dict[Ref, dict[str, Any]] = {}
        self.told: list[tuple[Ref, dict[str, Any]]] = []  # every state that they had

    def put(self, ref: Ref, body: dict[str, Any]) -> None:
        self.kept[ref] = body
        self.told.append((ref, body))

    async def wait_acked(self, _ref: Ref) -> None:
        """The hub has every fact."""

    def drop(self, ref: Ref) -> None:
        self.kept.pop(ref, None)

    def refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self.kept if ref.kind == kind]

    def events(self) -> list[tuple[str, str]]:
        """Return reason and message of every reported event."""
        return [(body["reason"], body["message"]) for ref, body in self.told if ref.kind == "Event"]


class FakeStates:
    """Rows in memory; `trouble` is the reason why writing fails."""

    def __init__(self, *rows: Row) -> None:
        self.kept: dict[object, Row] = {(row.key, target_of(row)): row for row in rows}
        self.trouble = ""
        self.writes: list[str] = []

    def rows(self) -> list[Row]:
        return list(self.kept.values())

    async def put(self, row: Row) -> None:
        await self._pass()
        self.kept[row.key, target_of(row)] = row
        self.writes.append(f"{type(row).__name__.lower()} {row.state}")

    async def drop(self, row: Row) -> None:
        await self._pass()
        self.kept.pop((row.key, target_of(row)), None)
        self.writes.append(f"{type(row).__name__.lower()} gone")

    async def _pass(self) -> None:
        await asyncio.sleep(0)
        if self.trouble:
            raise NotReady(self.trouble)

    def device(self) -> Device | None:
        return next((row for row in self.kept.values() if isinstance(row, Device)), None)

    def publications(self) -> list[Publication]:
        return [row for row in self.kept.values() if isinstance(row, Publication)]


@dataclass
class FakeDriver:
    """A registered driver."""

    name: str = DRIVER
    capabilities: frozenset[int] = frozenset({1, 2, 3})
    registered: bool = True
    file: object = None


class FakeDrivers:
    """The registered drivers."""

    def __init__(self, *drivers: FakeDriver) -> None:
        self.by_name = {driver.name: driver for driver in drivers}
        self._subscribers: list[Callable[[], None]] = []

    def find(self, name: str) -> FakeDriver | None:
        return self.by_name.get(name)

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._subscribers.append(callback)

    def tell(self) -> None:
        for subscriber in self._subscribers:
            subscriber()


class FakeFence(Fencing):
    """The fencing, as a test sets it.

    Attributes:
        why_not: why no volume is fenced.
        waits: why no volume can be held now.
        holding: why a volume cannot be released.
    """

    def __init__(self) -> None:
        self.why_not = self.waits = self.holding = ""
        self.held: list[VolumeKey] = []  # the volumes that it fences
        self.done: dict[VolumeKey, str] = {}  # by fenced volume, what was done; empty while it is being shut down
        self.kept: dict[VolumeKey, str] = {}  # why a volume turned out to be one that cannot be fenced
        self._changed: list[Callable[[Collection[VolumeKey]], None]] = []

    def refusal(self, _volume: Volume) -> str:
        return self.why_not

    def obstacle(self, volume: Volume) -> str:
        return "it is fenced" if self.is_fenced(volume.key) else self.waits

    def is_held(self, key: VolumeKey) -> bool:
        return key in self.held

    def is_fenced(self, key: VolumeKey) -> bool:
        return key in self.done

    def fence_report(self, key: VolumeKey) -> str:
        return self.done.get(key, "")

    def why_exempt(self, key: VolumeKey) -> str:
        return self.kept.get(key, "")

    async def exempt(self, key: VolumeKey, why: str) -> None:
        self.kept[key] = why
        if key in self.held:
            await self._acked()
            self.held.remove(key)

    async def hold(self, volume: Volume) -> None:
        self.held = [*dict.fromkeys((*self.held, volume.key))]

    async def unmounted(self, _key: VolumeKey, _call: str) -> None:
        """The calls of these tests end."""

    @asynccontextmanager
    async def mounting(self, volume: Volume, _call: str) -> AsyncIterator[Callable[[], bool]]:
        if volume.key in self.held and (why := self.obstacle(volume)):
            raise NotReady(why)
        yield lambda: not self.is_fenced(volume.key)

    async def check_released(self, _key: VolumeKey) -> None:
        if self.holding:
            raise Uncertain(self.holding)

    async def let_go(self, key: VolumeKey) -> None:
        if key in self.held:
            self.held.remove(key)
            self.done.pop(key, None)
            self.tell(key)

    async def release_others(self, keys: Iterable[VolumeKey]) -> None:
        self.held = [key for key in keys if key in self.held]

    def subscribe(
        self,
        changed: Callable[[Collection[VolumeKey]], None],
        _tell_hub: Callable[[], None],
        acked: Callable[[], Awaitable[None]],
    ) -> None:
        self._changed.append(changed)
        self._acked = acked

    def tell(self, *keys: VolumeKey) -> None:
        for changed in self._changed:
            changed(keys)

    def fence(self, key: VolumeKey, done: str) -> None:
        """The lease has ended."""
        self.done[key] = done
        self.tell(key)


Outcome = Exception | asyncio.Event | None


class FakePlugin:
    """Records each step, and ends it as a test has set."""

    def __init__(self) -> None:
        self.calls: list[str] = []  # the steps, with the volume's handle and the pod's uid
        self.given: list[dict[str, Any]] = []  # each step's further arguments
        # By step, the ends of the next ones: an error, an event to wait for, or None.
        self.outcomes: dict[str, list[Outcome]] = {}
        self.mounted: set[Published | Staged] = set()  # the present mounts
        self.found = Found()
        self.told_stats: VolumeStats | None = None
        self.cleaned: list[Published | Unreadable] = []
        self.at_once: dict[str, int] = {}  # by volume, the most steps that ran at the same time
        self.mounts_something = True
        self._now: dict[str, int] = {}

    def fails(self, step: str, *outcomes: Outcome) -> None:
        self.outcomes.setdefault(step, []).extend(outcomes)

    async def stage(self, wanted: PodVolume, _inputs: Inputs, *, may_go_on: Callable[[], bool], **given: Any) -> None:
        assert may_go_on()
        await self._step("stage", wanted.volume.handle, given={"wanted": wanted, **given})
        self._mount(staged_for(wanted.volume))

    async def publish(self, wanted: PodVolume, _inputs: Inputs, *, may_go_on: Callable[[], bool], **given: Any) -> None:
        assert may_go_on()
        if "tell" not in given:  # a refresh
            await self._step("republish", wanted.volume.handle, wanted.pod.uid, given=given)
            return
        await self._step("publish", wanted.volume.handle, wanted.pod.uid, given={"wanted": wanted, **given})
        self._mount(published_for(wanted))

    async def unpublish(self, published: Published) -> None:
        await self._step("unpublish", published.handle, published.pod_uid, given={"published": bare(published)})
        self.mounted.discard(bare(published))

    async def unstage(self, staged: Staged, *, recorded: bool = True) -> None:
        await self._step("unstage", staged.handle, given={"staged": bare(staged), "recorded": recorded})
        self.mounted.discard(bare(staged))

    async def expand(
        self,
        volume: Volume,
        pod_uid: str,
        inputs: Inputs,
        *,
        required_bytes: int,
        may_go_on: Callable[[], bool],
    ) -> None:
        assert may_go_on()
        given = {"required_bytes": required_bytes, "secrets": inputs.secrets}
        await self._step("expand", volume.handle, pod_uid, given=given)

    async def stats(self, published: Published) -> VolumeStats | None:
        await self._step("stats", published.handle, published.pod_uid, given={})
        return self.told_stats

    async def scan(self) -> Found:
        return self.found

    async def mount_table(self) -> MountTable:
        return MountTable(())

    def is_mounted(self, what: Published | Staged, mounts: MountTable) -> bool:
        return bare(what) in self.mounted

    def has_mounts(self, what: Published | Staged, mounts: MountTable) -> bool:
        return bare(what) in self.mounted

    def path(self, published: Published) -> Path:
        return Path("/root") / published.pod_uid / published.name

    async def clean_leftovers(self, published: Published | Unreadable) -> bool:
        self.cleaned.append(published if isinstance(published, Unreadable) else bare(published))
        return True

    def _mount(self, what: Published | Staged) -> None:
        if self.mounts_something:
            self.mounted.add(what)

    async def _step(self, step: str, handle: str, pod: str = "", *, given: dict[str, Any]) -> None:
        self.calls.append(" ".join(filter(None, (step, handle, pod))))
        self.given.append(given)
        self._now[handle] = self._now.get(handle, 0) + 1
        self.at_once[handle] = max(self.at_once.get(handle, 0), self._now[handle])
        try:
            outcome = self.outcomes[step].pop(0) if self.outcomes.get(step) else None
            if isinstance(outcome, asyncio.Event):
                await outcome.wait()
            elif outcome is not None:
                raise outcome
            else:
                await asyncio.sleep(0)
        finally:
            self._now[handle] -= 1


@dataclass
class EdgeVolumes:
    """A node with one driver that stages and needs no attachment, unless a test changes that."""

    clock: FakeClock = field(default_factory=FakeClock)
    store: FakeStore = field(default_factory=FakeStore)
    facts: FakeFacts = field(default_factory=FakeFacts)
    states: FakeStates = field(default_factory=FakeStates)
    plugin: FakePlugin = field(default_factory=FakePlugin)
    drivers: FakeDrivers = field(default_factory=lambda: FakeDrivers(FakeDriver()))
    fencing: FakeFence = field(default_factory=FakeFence)
    boot: str = "boot-1"
    stats_interval_s: float = 0.0
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str = ""  # why another node has the volume that is one node's at a time
    asked: int = 0  # how often the hub was asked for such a volume
    in_use: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.acked.set()
        self.add_driver(attachRequired=False)
        self.manager = self._manager()

    async def start(self) -> None:
        """Start the manager, and let it do everything that is possible now."""
        await self.manager.start()
        await settle()

    async def mount(self) -> Ref:
        """Start the manager with a pod that gets its volume."""
        ref = self.add_pod()
        await self.start()
        assert self.take_calls() == MOUNTED
        return ref

    async def restart(self, *, boot: str = "boot-1") -> None:
        """End the agent in the middle of its work, and start another one."""
        await self.manager.close(0.0)
        self.plugin.calls.clear()
        self.plugin.given.clear()
        self.boot = boot
        self.manager = self._manager()
        await self.start()

    def _manager(self) -> VolumeManager:
        async def in_use_acked(sole: VolumeKey | None) -> None:
            await self.acked.wait()
            if sole is not None:
                self.asked += 1
                if self.refusal:
                    raise FactRefused(self.refusal)

        host = VolumeHost(
            node=NODE,
            objects=self.store,
            facts=VolumeFacts(self.facts, node=NODE, clock=self.clock),
            states=self.states,
            plugin=self.plugin,
            drivers=self.drivers,
            wanted=Wanted(self.store, node=NODE, own_labels=dict, selinux=True, opt_in=self.opt_in(), complain=print),
            fencing=self.fencing,
            clock=self.clock,
            boot=self.boot,
            may_defer=bool(self.opt_in().runtimes),
            in_use_acked=in_use_acked,
            in_use_changed=lambda: self.in_use.append(self.manager.volumes_in_use()),
            stats_interval_s=self.stats_interval_s,
            republish_interval_s=60.0,
            cdi=CdiFiles(None, Layout(Path("/"))),
            **self.more(),
        )
        return VolumeManager(host)

    def opt_in(self) -> OptIn:
        return OptIn({}, Layout(Path("/")))

    def more(self) -> dict[str, Any]:
        """Return the parts of the host about volumes that a pod's runtime mounts: none knows any."""

        def direct() -> Any:
            raise NotReady("no runtime is known")

        return {
            "direct": direct,
            "metrics": Metrics(),
        }

    # ---- objects

    def add_driver(self, name: str = DRIVER, **spec: Any) -> Ref:
        return self.store.put({"kind": "CSIDriver", "metadata": {"name": name}, "spec": spec})

    def add_volume(self, name: str = "data", *, pv: Any = None, claim: Any = None, **csi: Any) -> Ref:
        """Add a PV and a claim bound to it; both may get more fields of their spec, or a status."""
        self.store.put(persistent_volume(name, csi=csi, **(pv or {})))
        return self.store.put(persistent_claim(name, **(claim or {})))

    def add_pod(self, name: str = "web", *, claims: tuple[str, ...] = ("data",), **more: Any) -> Ref:
        """Add a pod with claims, and the claims if they are missing."""
        for claim in claims:
            if Ref("PersistentVolumeClaim", "default", claim) not in self.store.objects:
                self.add_volume(claim)
        return self.store.put(pod(name, claims=claims, **more))

    def attach(self, name: str = "data", *, driver: str = DRIVER, **change: Any) -> Ref:
        """Add the attachment of a volume to this node."""
        return self.store.put(attachment(name, driver=driver, **change))

    def change(self, ref: Ref, **parts: Any) -> None:
        """Replace parts of an object."""
        self.store.put({**self.store.body(ref), **parts})

    # ---- results

    def entry(self, pod_name: str = "web", volume: str = "data") -> PodVolumeStatus:
        (found,) = [one for one in self.manager.describe() if (one.pod, one.volume) == (pod_name, volume)]
        return found

    def take_calls(self) -> list[str]:
        """Return the steps since the last call."""
        calls, self.plugin.calls = self.plugin.calls, []
        return calls


def pod(
    name: str = "web",
    *,
    uid: str = "",
    claims: tuple[str, ...] = (),
    volumes: list[dict[str, Any]] | None = None,
    read_only: bool = False,
    devices: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a pod that mounts all its volumes, or maps those in `devices`."""
    given = [{"name": c, "persistentVolumeClaim": {"claimName": c, "readOnly": read_only}} for c in claims]
    given += volumes or []
    names = [one["name"] for one in given]
    container = {
        "name": "c",
        "volumeMounts": [{"name": one, "mountPath": f"/{one}"} for one in names if one not in devices],
        "volumeDevices": [{"name": one, "devicePath": f"/dev/{one}"} for one in devices],
    }
    return {
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"{name}-uid", **(metadata or {})},
        "spec": {"nodeName": NODE, "containers": [container], "volumes": given, **(spec or {})},
        "status": {"phase": "Running", **(status or {})},
    }


def persistent_volume(
    name: str = "data", *, csi: Mapping[str, Any] | None = None, size: str = "1Gi", **spec: Any
) -> dict[str, Any]:
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": f"pv-{name}"},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": name, "uid": f"{name}-uid"},
            "csi": {"driver": DRIVER, "volumeHandle": f"h-{name}", **(csi or {})},
            **spec,
        },
    }


def persistent_claim(
    name: str = "data",
    *,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": name, **(metadata or {})},
        "spec": {"volumeName": f"pv-{name}", "accessModes": ["ReadWriteOnce"], **spec},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, **(status or {})},
    }


def attachment(
    name: str = "data",
    *,
    driver: str = DRIVER,
    spec: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    given = {"attacher": driver, "nodeName": NODE, "source": {"persistentVolumeName": f"pv-{name}"}}
    return {
        "kind": "VolumeAttachment",
        "metadata": {"name": attachment_name(driver, f"h-{name}", NODE), **(metadata or {})},
        "spec": {**given, **(spec or {})},
        "status": {"attached": True, "attachmentMetadata": {"lun": "7"}, **(status or {})},
    }


def secret(name: str, **values: str) -> dict[str, Any]:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"kind": "Secret", "metadata": {"namespace": "default", "name": name}, "data": data}


def bare(what: Published | Staged) -> Published | Staged:
    """Return a mount without the state that a row has of it."""
    kind = Published if isinstance(what, Published) else Staged
    return kind(**{field.name: getattr(what, field.name) for field in fields(kind)})
