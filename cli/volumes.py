"""The command `volumes`: shows every volume that the hub on this host knows, with its node and state."""

from collections.abc import Iterator

from cli.hub_state import VOLUMES, State, tell
from cli.operator_options import OperatorSettings
from cli.table import printable, table


def show(state: State, width: int | None = None) -> Iterator[str]:
    """The volumes as lines for people: a table, and the errors below it."""
    volumes = state["volumes"]
    if not volumes:
        yield (
            "the hub knows no volume of a CSI driver"
            if state["has_source"]
            else "the hub knows no volumes; it was started without --kubeconfig and without --manifests"
        )
        return
    head = ("VOLUME", "DRIVER", "NODE", "PV", "CLAIM", "STATE")
    yield from table(head, [_row(volume) for volume in volumes], width=width)
    wrong = [f"{one['pv']} on {one['node']}: {one['error']}" for one in volumes if one["error"]]
    if wrong:
        yield ""
        yield from map(printable, wrong)


def run(settings: OperatorSettings, *, as_json: bool) -> int:
    """Print the volumes. Returns the exit code: 0, or 1 with the reason on standard error if the hub did not answer."""
    return tell(settings, show, as_json=as_json, only=(VOLUMES,), about=VOLUMES)


def _row(volume: State) -> tuple[str, ...]:
    return (
        volume["volume"],
        volume["driver"],
        volume["node"] or "-",
        volume["pv"] or "-",
        volume["claim"] or "-",
        volume["state"],
    )
