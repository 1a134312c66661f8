"""A scene: a scenario being played on a node, with the words that its script is made of.

Every word waits for what it causes, where the node tells; `let_pass` is for what it does not tell.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.kit.processes import listens_on
from tests.kit.waiting import NeverCameError, let_pass, wait_for
from tests.peers.kubelet import cluster_objects as objects
from tests.peers.kubelet import tree
from tests.peers.kubelet.cluster_objects import Inline, Use
from tests.peers.kubelet.node_under_test import NodeUnderTest, Object
from tests.peers.kubelet.props import Props
from tests.peers.kubelet.recorder import Recorder
from tests.peers.kubelet.registrar_stand_in import RegistrarStandIn
from tests.peers.kubelet.scenario import Scenario
from tests.peers.kubelet.tree import Tree

_PUBLISHED_LIMIT_S = 60.0
_GONE_LIMIT_S = 60.0
_LONGER_THAN_ITS_LOOPS_S = 4.0  # the kubelet's slowest loop that matters here is its housekeeping, every 2 s

_RESIZE_ERROR = "NodeResizeError"
_SETTLED_LOOKS = 5  # equal looks in a row, 50 ms apart: the node removes directories one after the other


class Scene:
    """One scenario on one node. Use it as a context manager: it cleans up whatever the script left.

    Args:
        directory: for the driver and its state; its path must be short.
        number: no other scene of the same node has it.

    Attributes:
        scenario: what is played.
    """

    def __init__(self, scenario: Scenario, *, node: NodeUnderTest, directory: Path, number: int) -> None:
        self.scenario = scenario  # what is played
        self.notes: dict[str, Any] = {}  # what the script wants in the record beside calls and trees
        self._node = node
        self._node_is_dead = False
        self._uids: dict[str, str] = {}
        self._live: dict[str, list[str]] = {}
        self._props = Props(scenario, node=node, directory=directory, number=number)
        self._vendor = self._props.vendor
        self.recorder = Recorder(self._vendor.socket, look=self._look)  # what sees the calls
        self._socket = node.root / "plugins" / self._props.driver / "csi.sock"
        self._registrar = RegistrarStandIn(
            self.recorder,
            driver=self._props.driver,
            endpoint=self._socket,
            registry=node.root / "plugins_registry",
        )

    @property
    def names(self) -> Mapping[str, str]:
        """What this run's names and ids stand for, for the record."""
        return self._props.names

    # Before and after the script.

    def __enter__(self) -> Self:
        """Make all that the script starts from: volumes, objects, a registered driver."""
        try:
            self._props.set_up()
            self._socket.parent.mkdir(parents=True, exist_ok=True)
            self.recorder.listen(self._socket)
            self._registrar.register()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tear_down()

    def _tear_down(self) -> None:
        try:
            self.recorder.let_go()
            self._vendor.set_faults()
            if self._node_is_dead:
                self._node.start_again()
            for pod in list(self._live):
                self._node.delete("Pod", pod, namespace=self._props.namespace)
                self._wait_gone_quietly(pod)
            self._props.remove_objects()
            self._registrar.unregister()
        finally:
            self.recorder.close()
            self._props.stop(pods=self._uids.values())

    def _wait_gone_quietly(self, pod: str) -> None:
        """The script failed, and its error is the one to show."""
        try:
            wait_for(lambda: self._is_gone(pod), what="end", timeout_s=10)
        except NeverCameError:
            return

    # Pods.

    def start_pod(
        self,
        name: str,
        *,
        uses: Sequence[Use] = (),
        inline: tuple[Inline, ...] = (),
        security: Mapping[str, object] | None = None,
        grace_s: int = 1,
        attach: bool = True,
    ) -> None:
        """Create a pod, with all volumes of the scenario unless uses are given, and attach what it needs.

        Args:
            uses: its use of volumes.
            inline: its inline volumes.
            security: its security context.
            grace_s: how long it may take to end; without grace its deletion is a forced one.
            attach: whether its volumes are attached at once.
        """
        props = self._props
        chosen = uses or tuple(Use(volume=volume) for volume in props.volumes)
        volumes = list(dict.fromkeys(use.volume for use in chosen))
        for volume in volumes:
            props.publish_to_node(volume)
        props.create_inline_secrets(inline)
        self.recorder.mark(f"pod {name} is created")
        pod = objects.pod(
            name,
            namespace=props.namespace,
            node=self._node.name,
            uses=[(use, props.volumes[use.volume]) for use in chosen],
            inlines=inline,
            driver=props.driver,
            security=security or {},
            grace_s=grace_s,
        )
        uid = self._uids[name] = self._node.create(pod)["metadata"]["uid"]
        props.name_pod(name, uid, inline)
        self._live[name] = volumes
        if attach:
            for volume in props.unattached(volumes):
                self.attach(volume)

    def run_pod(self, name: str, **pod: Any) -> None:
        """Create a pod as `start_pod` does, and wait until it has its volumes."""
        self.start_pod(name, **pod)
        self.wait_published(name)

    def attach(self, volume: str) -> None:
        self.recorder.mark(f"volume {volume} is attached")
        self._props.attach(volume)

    def wait_published(self, name: str, *, timeout_s: float = _PUBLISHED_LIMIT_S) -> None:
        """Wait until all of a pod's volumes are there, and note the tree."""
        wait_for(
            lambda: self._node.is_published(name, namespace=self._props.namespace),
            what=f"published volumes of pod {name}",
            timeout_s=timeout_s,
            instead=lambda: self._why_not(name),
        )
        self.recorder.mark(f"pod {name} has its volumes", with_tree=True)

    def delete_pod(self, name: str) -> None:
        self.recorder.mark(f"pod {name} is deleted")
        self._node.delete("Pod", name, namespace=self._props.namespace)

    def wait_gone(self, name: str) -> None:
        """Wait until a pod and all that only it used are gone from the node, and note the tree."""
        wait_for(
            lambda: self._is_gone(name),
            what=f"end of pod {name}",
            timeout_s=_GONE_LIMIT_S,
            instead=lambda: self._why_not(name),
        )
        volumes = self._live.pop(name)
        if not self._live:
            self._wait_clean(name)
        self._props.wait_detached(set(volumes).difference(*self._live.values()))
        self.recorder.mark(f"pod {name} is gone", with_tree=True)

    def end_pod(self, name: str) -> None:
        """Delete a pod, and wait until it is gone."""
        self.delete_pod(name)
        self.wait_gone(name)

    # The driver and the node.

    def faults(self, *faults: str) -> None:
        """Let the driver misbehave from the next call on; without any, no more."""
        with self.recorder.paused():
            self.recorder.mark(f"the driver's faults: {', '.join(faults)}" if faults else "the driver works again")
            self._vendor.set_faults(*faults)

    def let_go(self) -> None:
        """Forward the calls that were held back."""
        self.recorder.mark("what was held back goes on")
        self.recorder.let_go()

    def let_pass(self, until: str) -> None:
        """Give the node time for something that it does not announce."""
        let_pass(_LONGER_THAN_ITS_LOOPS_S)
        self.recorder.mark(until)

    def register(self) -> None:
        self.recorder.mark("the driver registers")
        self._registrar.register()

    def unregister(self) -> None:
        """Take the driver's registration away."""
        self.recorder.mark("the driver's registration socket goes")
        self._registrar.unregister()

    def kill_driver(self) -> None:
        self._vendor.process.kill()
        self.recorder.mark("the driver is killed")

    def start_driver(self) -> None:
        self.recorder.mark("the driver starts")
        self._vendor.process.start()
        self._vendor.process.wait_until(lambda: listens_on(self._vendor.socket))

    def kill_node(self) -> None:
        """End the kubelet, or the agent, at once."""
        self._node.kill()
        self._node_is_dead = True
        self.recorder.wait_idle()  # a call that is held back must not go on only because nobody saw yet that it is over
        self.recorder.mark("the node's process is killed")

    def start_node(self) -> None:
        """Start the kubelet, or the agent, again; it finds the driver's registration socket by itself."""
        before = len(self._registrar.told)
        self.recorder.mark("the node's process starts")
        self._node.start_again()
        self._node_is_dead = False
        self._registrar.wait_told(before + 1)

    # Volumes.

    def grow(self, volume: str, size: str) -> None:
        """Let a volume grow: the driver first, then what the resizer writes."""
        node_expansion = self._props.expand(volume, size)
        self.recorder.mark(f"volume {volume} grows to {size}")
        self._node.grow(
            claim=volume,
            namespace=self._props.namespace,
            volume=self._props.pv(volume),
            size=size,
            node_expansion=node_expansion,
        )

    def create_secret(self, volume: str, purpose: str) -> None:
        self.recorder.mark(f"the {purpose} Secret of volume {volume} is created")
        self._props.create_secret(volume, purpose)

    def wait_resize_error(self, volume: str) -> None:
        wait_for(
            lambda: any(it["type"] == _RESIZE_ERROR for it in self._claim_status(volume).get("conditions") or ()),
            what=f"{_RESIZE_ERROR} of claim {volume}",
            instead=lambda: self._claim_status(volume),
        )

    def wait_size(self, volume: str, size: str) -> None:
        """Wait until a claim says that it has this size, and note its status."""
        wait_for(
            lambda: self._claim_status(volume).get("capacity") == {"storage": size},
            what=f"claim {volume} of {size}",
            instead=lambda: self._claim_status(volume),
        )
        self.note_claim(volume)

    def wait_measured(self) -> None:
        wait_for(
            lambda: (
                len({it.request.SerializeToString() for it in self.recorder.recording.calls("NodeGetVolumeStats")})
                == len(self.scenario.volumes)
            ),
            what="measurement of each volume",
            instead=self.recorder.told,
        )

    def put_files(self, volume: str, *, folder: str = "folder") -> None:
        place = self._props.data(volume) / folder
        place.mkdir(mode=0o700)
        (place / "file").touch(mode=0o600)
        (place / "link").symlink_to("file")

    # Notes.

    def note_claim(self, volume: str) -> None:
        """Put a claim's status into the record, without times."""
        status = self._claim_status(volume)
        wanted = ("capacity", "allocatedResources", "allocatedResourceStatuses")
        noted = {key: status[key] for key in wanted if status.get(key)}
        noted["conditions"] = sorted(it["type"] for it in status.get("conditions") or ())
        self.notes.setdefault(f"claim {volume}", []).append(noted)

    def note_published(self, pod: str) -> None:
        """Put into the record whether a pod has its volumes now."""
        published = self._node.is_published(pod, namespace=self._props.namespace)
        self.notes.setdefault(f"pod {pod} has its volumes", []).append(published)

    def wait_registered(self) -> None:
        """Wait until the cluster knows the driver on this node."""

        def is_known() -> bool:
            known = self._node.registration(self._props.driver)
            return bool(known["entry"] and known["node id"])

        wait_for(is_known, what="entry of the driver in CSINode, and its id on the Node", timeout_s=60.0)

    def note_registration(self, when: str) -> None:
        """Put into the record what the cluster knows of the driver on this node."""
        self.notes[when] = self._node.registration(self._props.driver)

    # Inside.

    def _look(self) -> Tree:
        """The tree of this scenario's driver, volumes and pods."""
        return tree.look(self._node.root, self._props.places(list(self._uids.values())), backing=[self._vendor.state])

    def _is_gone(self, pod: str) -> bool:
        return self._node.is_gone(pod, namespace=self._props.namespace, uid=self._uids[pod])

    def _wait_clean(self, pod: str) -> None:
        """Wait until nothing is left of any volume, and no directory goes any more."""
        wait_for(
            lambda: self._node.has_finished(self._props.driver),
            what="node that is done with all volumes",
            timeout_s=_GONE_LIMIT_S,
            instead=lambda: self._why_not(pod),
        )
        if self.scenario.leaves:
            let_pass(_LONGER_THAN_ITS_LOOPS_S)
            return
        looks: list[Tree] = []

        def settled() -> bool:
            looks.append(self._look())
            last = looks[-_SETTLED_LOOKS:]
            return len(last) == _SETTLED_LOOKS and len(set(last)) == 1 and tree.is_clean(last[0])

        wait_for(
            settled,
            what="clean node",
            timeout_s=_GONE_LIMIT_S,
            instead=lambda: "\n".join([*sorted(self._look()), self._why_not(pod)]),
        )

    def _claim_status(self, volume: str) -> Object:
        status: Object = self._node.claim(volume, namespace=self._props.namespace)["status"]
        return status

    def _why_not(self, pod: str) -> str:
        return f"{self.recorder.told()}\n{self._node.why_not(pod, namespace=self._props.namespace)}"
