"""The command `audit`: shows the leaks that the hub on this host finds, and deletes one of them.

A leak is a volume that everybody has forgotten, or an object whose volume is gone. The audit log is another thing
(`cloud.trust.audit`).

Rules:

* Without `--delete` nothing is changed.
* `--delete` takes an orphan alone. The hub has to find it in an audit of this moment, and again after the question,
  which may have stood there for an hour.
"""

import asyncio
from collections.abc import Iterator
from datetime import datetime

from cli.operators import call
from cli.operators.operator_options import OperatorSettings
from cli.operators.order import give_order
from cli.operators.table import age, answer, confirm, paragraph, say, table
from common.csi import csi_pb2 as csi
from common.errors import BridgeError
from common.objects.quantity import format_bytes
from common.operator_orders import Audit, Audited, Leak
from common.pages.json_form import shown
from common.status import code_name

_MARGIN = 0.8  # the share of --timeout that the nodes have for their lists


def show(state: Audited) -> Iterator[str]:
    counts = ", ".join(f"{count} {leak}{'' if count == 1 else 's'}" for leak, count in state.counts.items())
    yield f"leak audit of {shown(state.began_at)}: {counts}"
    if state.leaks:
        head = ("LEAK", "DRIVER", "WHAT", "ID", "NODE", "AGE", "SIZE", "ABOUT")
        yield from paragraph(table(head, [_row(leak, state.ended_at) for leak in state.leaks]))
        settling = dict.fromkeys(leak.settle for leak in state.leaks)
        yield from paragraph(["To settle them:", *(f"  {settle}" for settle in settling)])
    if state.unasked:
        rows = [(it.node, it.driver, f"{it.things}s", it.why) for it in state.unasked]
        yield from paragraph(["Not asked:", *table(("NODE", "DRIVER", "LIST", "WHY"), rows)])
    yield from paragraph(state.notes)


def run(settings: OperatorSettings, *, driver: str, as_json: bool) -> None:
    found = _look(settings, driver)
    answer(show(found), found, as_json=as_json)


def delete(settings: OperatorSettings, wanted: str, *, driver: str, sure: bool) -> None:
    orphan = _find(_look(settings, driver, wanted), wanted)
    say(f"{orphan.thing} {orphan.id} of driver {orphan.driver} on {', '.join(orphan.nodes)}: {orphan.about}")
    if not sure:
        confirm(f"Delete {orphan.thing} {orphan.id} with all its data?", f"{orphan.id} is not deleted")
        orphan = _find(_look(settings, orphan.driver, wanted), wanted)
    _delete(settings, orphan)


def _look(settings: OperatorSettings, driver: str, wanted: str = "") -> Audited:
    order = Audit(driver=driver, within_s=max(1, int(settings.timeout_s * _MARGIN)), wanted=wanted)
    return asyncio.run(give_order(settings, order, Audited))


def _find(state: Audited, wanted: str) -> Leak:
    found = [leak for leak in state.leaks if leak.id == wanted]
    orphans = [leak for leak in found if leak.leak == "orphan"]
    if len(orphans) > 1:
        where = "; ".join(f"{it.thing} of driver {it.driver} on {', '.join(it.nodes)}" for it in orphans)
        raise BridgeError(f"{wanted} is not deleted: several have this id ({where}); {_BY_HAND}")
    if not orphans:
        others = [f"it is a {leak.leak}: {leak.about}" for leak in found]
        if not (others or state.referring):
            others = ["no node lists it, or it cannot be judged now", *state.notes]
        raise BridgeError(
            "\n  ".join([f"{wanted} is not deleted, because it is no orphan:", *others, *state.referring])
        )
    return orphans[0]


_BY_HAND = "csi-bridge call DeleteVolume --node NODE deletes one by hand"


def _delete(settings: OperatorSettings, orphan: Leak) -> None:
    method, request = (
        ("DeleteVolume", csi.DeleteVolumeRequest(volume_id=orphan.id).SerializeToString())
        if orphan.thing == "volume"
        else ("DeleteSnapshot", csi.DeleteSnapshotRequest(snapshot_id=orphan.id).SerializeToString())
    )
    node = orphan.nodes[0]
    path = call.find_method(method)
    status = asyncio.run(call.call(settings, path, request, driver=orphan.driver, node=node))
    if not status.ok:
        by_hand = f"csi-bridge call {method} --driver {orphan.driver} --node {node} @FILE"
        raise BridgeError(
            f"{method} on node {node}: {code_name(status.code)} (from the {status.origin}): {status.message}; if the "
            f"driver wants secrets, pass them with {by_hand}"
        )
    say(f"{orphan.thing} {orphan.id} is deleted")


def _row(leak: Leak, now: datetime) -> tuple[str, ...]:
    return (
        leak.leak,
        leak.driver or "-",
        leak.thing,
        leak.id or "-",
        ", ".join(leak.nodes) or "-",
        age((now - leak.since).total_seconds()) if leak.since is not None else "unknown",
        format_bytes(leak.size_bytes) if leak.size_bytes else "-",
        leak.about,
    )
