"""The hub reports each volume of a pod as the node's volume manager knows it, whatever a driver writes in an error."""

from typing import Any

from cloud.parts.volume_report import report
from cloud.sources.source import Source
from cloud.sync.fact_kinds import Fact, read_fact
from common.objects.objects import Object, Ref, Stamp, encode_body
from edge.reports.pod_facts import PodFacts
from edge.volume_errors import VolumeRefused
from tests.kit.cluster_objects import claim, entries, pod, volume
from tests.kit.edge_volumes import EdgeVolumes
from tests.unit.test_volume_report import Facts

WEB = Ref("Pod", "default", "web")


async def reported(*errors: str) -> dict[Any, tuple[Any, Any]]:
    """By volume: its state and error in the hub's report, after a driver refused to publish some of a pod's two."""
    edge = EdgeVolumes()
    edge.plugin.fails("publish", *(VolumeRefused(error) for error in errors))
    edge.add_pod(claims=("data", "logs"))
    await edge.start()
    PodFacts(edge.facts, edge.manager.pod_states).tell()
    sent = Object(WEB, Stamp("", "1"), encode_body(edge.facts.kept[WEB]))
    facts = Facts(n1={WEB: Fact(sent.stamp, read_fact(sent))})
    web = pod("web", claims=("data", "logs"))
    web["metadata"]["uid"] = "web-uid"
    bound = [(claim(name, volume=name), volume(name, claim=f"default/{name}")) for name in ("data", "logs")]
    objects = Source()
    objects.update({ref: it.item for ref, it in entries(web, *sum(bound, ())).items()}, ready=True)
    return {it.pv: (it.state, it.error) for it in report(objects, facts, {})}


async def test_a_volume_that_is_not_mounted_is_never_reported_mounted_however_long_anothers_error_is() -> None:
    found = await reported("x" * 2_000, "y" * 2_000)
    assert {name: state for name, (state, _) in found.items()} == {"data": "error", "logs": "error"}


async def test_an_error_that_names_another_volume_gives_that_one_no_reason() -> None:
    found = await reported("disk full; logs: rotated")
    (wrong,) = [name for name, (state, _) in found.items() if state == "error"]
    (right,) = {"data", "logs"} - {wrong}
    assert (found[wrong], found[right]) == (("error", "disk full; logs: rotated"), ("mounted", ""))
