"""The agent's pages: `/status` and `/volumes`."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLink:
    """An address of a hub, as the agent knows it."""

    address: str  # the address
    why: str  # why the agent does not use it: `a standby`, or why there is no link; empty for the hub that leads
    epoch: int  # the number of its hub's leadership; 0 if its hub is a standby, or without a link
    software: str  # its hub's name and version; empty without a link


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSocket:
    """A socket of a vendor's driver on the agent's node."""

    name: str  # the driver's name; empty until it has answered
    socket: str  # its path
    services: list[str]  # the services of CSI that it serves
    relay: str  # the socket where the kubelet calls it through the agent; empty if the kubelet calls it directly
    trouble: str  # why the agent cannot use it fully; empty if it can


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The agent as a whole: the page `/status`."""

    software: str  # the agent's name and version
    node: str  # the name of its node
    connected: bool  # whether it has a link to the hub that leads
    since: datetime  # when it got the link, or lost it, or started
    hubs: list[HubLink]  # the addresses of the hubs
    drivers: list[DriverSocket]  # the sockets of the vendors' drivers
    problems: list[str]  # what people must solve on this node, or should know, a sentence each
    operations: list[str]  # the operations that run now, each with its driver, method and key
    registered: list[dict[str, Any]]  # the drivers that are registered for mounting, as in a CSINode's `spec.drivers`
    settings: dict[str, list[str]]  # the agent's flags: each one's texts, by its name with underscores


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """A pod of the agent's node."""

    namespace: str  # its namespace
    name: str  # its name
    uid: str  # its UID
    volumes: int  # how many CSI volumes it wants
    published: int  # how many of them it has


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevice:
    """A volume in one container, as a container engine knows it (CDI)."""

    container: str = ""  # the container's name in its pod
    path: str = ""  # where the container finds it
    name: str = ""  # the device's qualified name, for the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolumeStatus:
    """A volume of a pod on the agent's node, or a volume that is still mounted there without a pod."""

    namespace: str = ""  # the pod's namespace; empty without a pod
    pod: str = ""  # the pod's name
    uid: str = ""  # the pod's UID
    volume: str = ""  # the volume's name in the pod
    # `waiting`, `staging`, `publishing`, `published`, `unpublishing` or `unstaging`; `uncertain` if it may be mounted
    # and its pod cannot be resolved; `fenced` if the agent has shut its file system down, and its driver has not
    # unstaged it yet, or something holds it; `left over` if the agent may not unmount it yet.
    state: str
    pv: str = ""  # the name of its PersistentVolume; empty for an ephemeral volume
    driver: str = ""  # the name of its CSI driver
    handle: str = ""  # its id at the driver
    mode: str = ""  # `Filesystem` or `Block`; empty if it is not known
    read_only: bool = False  # whether the pod may only read it
    path: str = ""  # where the pod finds it
    since: datetime | None = None  # when it came into this state; None if that is not known
    error: str = ""  # why the last try failed; else empty
    size_bytes: int | None = None  # its size, if it is known
    used_bytes: int | None = None  # how much of it is used, if the driver tells
    abnormal: str = ""  # the driver's message about a volume that it reports as abnormal; else empty
    # the RuntimeClass and the flavour of the runtime that mounts it in its guest; empty if the driver does.
    runtime: str = ""
    # the names by which a container engine gives it to the pod's containers; empty without --cdi-dir.
    devices: list[ContainerDevice] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVolumes:
    """The pods of the agent's node and their volumes: the page `/volumes`."""

    node: str  # as in `AgentStatus`
    connected: bool  # as in `AgentStatus`
    since: datetime  # as in `AgentStatus`
    as_of: datetime | None = None  # when the hub last sent this node its objects; None if never
    in_step: bool = False  # whether the agent has all objects that the hub has for this node
    facts_waiting: int = 0  # how many facts the hub has not acknowledged yet
    started: bool = True  # whether the agent has read its records and mounts volumes
    trouble: str = ""  # why it mounts nothing, or cannot keep its records; else empty
    pods: list[PodStatus] = field(default_factory=list)  # the pods of this node, those without volumes included
    # their volumes, and volumes that are mounted without a pod.
    volumes: list[PodVolumeStatus] = field(default_factory=list)
    # whether a kubelet mounts the volumes (`--registration=observe`); then there are no pods here.
    observing: bool = False
