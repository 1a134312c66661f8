"""A hostile node with a good certificate tells facts without end. That costs the hub a few MiB."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.objects.objects import Object, Ref, Stamp, encode_body
from tests.kit.bridge import Bridge
from tests.kit.certificates import Authority
from tests.kit.fact_teller import FactTeller, claim_fact, wait_judging
from tests.kit.operator import hub_state
from tests.kit.stranger import Stranger

_MIB = 1 << 20

SECRET = "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: default}}"


def event(number: int, *, padding: int) -> Object:
    """An Event of about `padding` bytes about a pod that the node does not have."""
    involved = {"kind": "Pod", "namespace": "default", "name": f"stranger-{number}"}
    body = {"involvedObject": involved, "reason": "Spam", "message": "x" * padding}
    return Object(Ref("Event", "default", f"spam-{number}"), Stamp("", "1"), encode_body(body))


@pytest.fixture
def bridge(short_dir: Path, tmp_path: Path, authority: Authority) -> Iterator[Bridge]:
    (tmp_path / "manifests").mkdir()
    with Bridge(short_dir, tmp_path) as bridge:
        bridge.start_hub(*authority.hub().flags, f"--manifests={tmp_path / 'manifests'}")
        yield bridge


def facts_bytes(bridge: Bridge) -> int:
    """The size of the hub's records, with their journal."""
    return sum(path.stat().st_size for path in (bridge.hub.uds.parent / "hub").glob("state.db*"))


def test_a_node_cannot_fill_the_hubs_disk_with_facts_about_objects_that_it_does_not_have(
    bridge: Bridge, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "manifests" / "secret.yaml").write_text(SECRET)
    tls = authority.edge("n1").client()
    with Stranger(bridge.hub.address, tls=tls) as stranger:
        wait_judging(stranger, "n1")
    with Stranger(bridge.hub.address, tls=tls) as stranger:
        teller = FactTeller(stranger, "n1")
        said = teller.tell(*(claim_fact(f"c{number}", padding=15_000) for number in range(600)))
        assert said.count("") < 20
        assert "more than 262144 bytes of facts about objects that the hub did not give it" in said[-1]
        teller.tell(*(event(number, padding=15_000) for number in range(300)))
        assert facts_bytes(bridge) < _MIB
        assert any("--fact-quota" in problem for problem in hub_state(bridge.hub.uds)["problems"])


def test_a_node_cannot_fill_the_hubs_disk_before_the_hub_knows_which_objects_the_node_has(
    bridge: Bridge, authority: Authority
) -> None:
    """The directory of manifests is empty, as before it is mounted: no object is known."""
    with Stranger(bridge.hub.address, tls=authority.edge("n1").client()) as stranger:
        teller = FactTeller(stranger, "n1")
        said = teller.tell(*(claim_fact(f"c{number}", padding=15_000) for number in range(700)))
        assert 500 < said.count("") < 600
        assert "more than 8388608 bytes of facts" in said[-1]
        assert facts_bytes(bridge) < 16 * _MIB
