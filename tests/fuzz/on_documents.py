"""The targets of documents: manifests, reports of drivers, facts of nodes, and mount infos."""

import contextlib
import json
from collections.abc import Mapping

from cloud.nodes.fleet import Fleet, _member
from cloud.sources.manifests.binding import Bound, ClaimStatus, NodeReports, bind
from cloud.sources.manifests.manifest_objects import BrokenFile, read_objects
from cloud.sources.source import Source
from cloud.sync.closures import Closures
from cloud.sync.fact_kinds import MOST_FACT_BYTES, as_object, check_ref, keep, read_fact
from common.csi.reports import decode_reports, encode_reports, vendor_version
from common.objects.objects import Object, Ref, Stamp, encode_body
from common.objects.pod_fact import read_volumes
from edge.direct.mount_info import device_of
from edge.volume_errors import Uncertain
from tests.fuzz.cutter import Cutter
from tests.kit.trusting import TRUSTING

_KINDS = (*MOST_FACT_BYTES, "Secret")


def manifests(data: bytes) -> None:
    """A manifest file: broken ones are told by name and line; good ones are bound, and told to their nodes."""
    try:
        entries = {entry.ref: entry for entry in read_objects("case.yaml", data)}
    except BrokenFile as error:
        assert str(error).startswith("case.yaml:")
        return
    told = {ref: (ClaimStatus("n1", "", {"capacity": {"storage": "1Gi"}}),) for ref in entries}
    bound = bind(entries, NodeReports(told), Bound())
    source = Source()
    source.update(dict(bound.items), ready=True)
    closures = Closures(source, TRUSTING)
    nodes = {item.body["spec"]["nodeName"] for ref, item in bound.items.items() if ref.kind == "Pod"}
    for node in sorted(nodes):
        for ref in closures.stamps(node):
            assert closures.read(ref) is not None


def reports(data: bytes) -> None:
    """An agent's report, as the hub reads it and places calls by it."""
    try:
        found = decode_reports(data)
    except ValueError:
        return
    with contextlib.suppress(UnicodeEncodeError):
        assert decode_reports(encode_reports(found)) == found
    for report in found:
        vendor_version(report)
        Fleet({report.node: _member(report)})


def mount_infos(data: bytes) -> None:
    """A driver's or an operator's mountInfo.json: a broken one is refused; a good one names a path."""
    try:
        found = device_of(data)
    except Uncertain:
        return
    assert found.encode().decode() == found


def facts(data: bytes) -> None:
    """A node's fact: a broken one is refused; the kept part is kept again unchanged."""
    cut = Cutter(data)
    kind = cut.choose(_KINDS)
    namespace, name = ("", "n1") if kind in {"Node", "CSINode"} else ("default", cut.choose(("data", cut.text())))
    fact = Object(Ref(kind, namespace, name), Stamp(cut.choose(("", "u-1", cut.text())), "1"), cut.rest())
    try:
        check_ref("n1", fact.ref)
        body = read_fact(fact)
    except ValueError:
        return
    assert len(encode_body(body)) <= 3 * MOST_FACT_BYTES[kind]
    again = json.loads(encode_body(body))
    assert keep(again, fact.ref) == again
    as_object(fact.ref, body)
    if kind == "Pod":
        assert _reads(body["status"])


def _reads(status: Mapping[str, object]) -> bool:
    read_volumes(status)
    return True
