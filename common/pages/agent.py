"""The agent's pages: `/status` and `/volumes`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLink:
    """An address of a hub, as the agent knows it.

    Attributes:
        address: the address.
        why: why the agent does not use it: `a standby`, or why there is no link; empty for the hub that leads.
        epoch: the number of its hub's leadership; 0 if its hub is a standby, or without a link.
        software: its hub's name and version; empty without a link.
    """

    address: str
    why: str
    epoch: int
    software: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSocket:
    """A socket of a vendor's driver on the agent's node.

    Attributes:
        name: the driver's name; empty until it has answered.
        socket: its path.
        services: the services of CSI that it serves.
        relay: the socket where the kubelet calls it through the agent; empty if the kubelet calls it directly.
        trouble: why the agent cannot use it fully; empty if it can.
    """

    name: str
    socket: str
    services: list[str]
    relay: str
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The agent as a whole: the page `/status`.

    Attributes:
        software: the agent's name and version.
        node: the name of its node.
        connected: whether it has a link to the hub that leads.
        since: when it got the link, or lost it, or started.
        hubs: the addresses of the hubs.
        drivers: the sockets of the vendors' drivers.
        problems: what people must solve on this node, or should know, a sentence each.
        operations: the operations that run now, each with its driver, method and key.
        registered: the drivers that are registered for mounting, as in a CSINode's `spec.drivers`.
        settings: the agent's flags: each one's texts, by its name with underscores.
    """

    software: str
    node: str
    connected: bool
    since: datetime
    hubs: list[HubLink]
    drivers: list[DriverSocket]
    problems: list[str]
    operations: list[str]
    registered: list[dict[str, Any]]
    settings: dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """A pod of the agent's node.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        volumes: how many CSI volumes it wants.
        published: how many of them it has.
    """

    namespace: str
    name: str
    uid: str
    volumes: int
    published: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevice:
    """A volume in one container, as a container engine knows it (CDI).

    Attributes:
        container: the container's name in its pod.
        path: where the container finds it.
        name: the device's qualified name, for the engine.
    """

    container: str = ""
    path: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolumeStatus:
    """A volume of a pod on the agent's node, or a volume that is still mounted there without a pod.

    Attributes:
        namespace: the pod's namespace; empty without a pod.
        pod: the pod's name.
        uid: the pod's UID.
        volume: the volume's name in the pod.
        state: `waiting`, `staging`, `publishing`, `published`, `unpublishing` or `unstaging`; `uncertain` if it may be
            mounted and its pod cannot be resolved; `fenced` if the agent has shut its file system down, and its
            driver has not unstaged it yet, or something holds it; `left over` if the agent may not unmount it yet.
        pv: the name of its PersistentVolume; empty for an ephemeral volume.
        driver: the name of its CSI driver.
        handle: its id at the driver.
        mode: `Filesystem` or `Block`; empty if it is not known.
        read_only: whether the pod may only read it.
        path: where the pod finds it.
        since: when it came into this state; None if that is not known.
        error: why the last try failed; else empty.
        size_bytes: its size, if it is known.
        used_bytes: how much of it is used, if the driver tells.
        abnormal: the driver's message about a volume that it reports as abnormal; else empty.
        runtime: the RuntimeClass and the flavour of the runtime that mounts it in its guest; empty if the driver does.
        devices: the names by which a container engine gives it to the pod's containers; empty without --cdi-dir.
    """

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    volume: str = ""
    state: str
    pv: str = ""
    driver: str = ""
    handle: str = ""
    mode: str = ""
    read_only: bool = False
    path: str = ""
    since: datetime | None = None
    error: str = ""
    size_bytes: int | None = None
    used_bytes: int | None = None
    abnormal: str = ""
    runtime: str = ""
    devices: list[ContainerDevice] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVolumes:
    """The pods of the agent's node and their volumes: the page `/volumes`.

    Attributes:
        node: as in `AgentStatus`.
        connected: as in `AgentStatus`.
        since: as in `AgentStatus`.
        as_of: when the hub last sent this node its objects; None if never.
        in_step: whether the agent has all objects that the hub has for this node.
        facts_waiting: how many facts the hub has not acknowledged yet.
        started: whether the agent has read its records and mounts volumes.
        trouble: why it mounts nothing, or cannot keep its records; else empty.
        pods: the pods of this node, those without volumes included.
        volumes: their volumes, and volumes that are mounted without a pod.
        observing: whether a kubelet mounts the volumes (`--registration=observe`); then there are no pods here.
    """

    node: str
    connected: bool
    since: datetime
    as_of: datetime | None = None
    in_step: bool = False
    facts_waiting: int = 0
    started: bool = True
    trouble: str = ""
    pods: list[PodStatus] = field(default_factory=list)
    volumes: list[PodVolumeStatus] = field(default_factory=list)
    observing: bool = False
