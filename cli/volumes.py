"""The command `volumes`: shows every volume that the hub on this host knows, with its node and state."""

from collections.abc import Iterator
from dataclasses import dataclass

from cli.hub_state import ask, tell
from cli.operator_options import OperatorSettings
from cli.table import paragraph, table
from common.pages.hub import HubStatus, VolumeStatus


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes that a hub knows, and whether it gets objects from anywhere."""

    volumes: list[VolumeStatus]
    has_source: bool


def show(state: Volumes, width: int | None = None) -> Iterator[str]:
    volumes = state.volumes
    if not volumes:
        yield (
            "the hub knows no volume of a CSI driver"
            if state.has_source
            else "the hub knows no volumes; it was started without --kubeconfig and without --manifests"
        )
        return
    head = ("VOLUME", "DRIVER", "NODE", "PV", "CLAIM", "STATE")
    yield from table(head, [_row(volume) for volume in volumes], width=width)
    yield from paragraph(f"{one.pv} on {one.node}: {one.error}" for one in volumes if one.error)


def run(settings: OperatorSettings, *, as_json: bool) -> None:
    tell(settings, _look, show, (lambda state: {"volumes": state.volumes}) if as_json else None)


def _look(settings: OperatorSettings) -> Volumes:
    hub = ask(settings.hub, "/status", HubStatus, timeout_s=settings.timeout_s)
    volumes = ask(settings.hub, "/volumes", list[VolumeStatus], timeout_s=settings.timeout_s)
    return Volumes(volumes, hub.has_source)


def _row(it: VolumeStatus) -> tuple[str, ...]:
    return it.volume, it.driver, it.node or "-", it.pv or "-", it.claim or "-", it.state
