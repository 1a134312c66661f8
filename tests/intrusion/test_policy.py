"""A hostile node, or a thief with a proxy driver's key, does what the operator's policy forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from common.messages import Chunk, End, Kind, Open, Priority
from common.status import Code
from tests.kit.operator import by_hand, hub_state
from tests.kit.requests import create
from tests.kit.spoken_node import Site, SpokenNode, attend, client_of, report
from tests.kit.stranger import Stranger, hello

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = "vendor.test"
CREATE = "/csi.v1.Controller/CreateVolume"
SECRETS = {"key": "s3cret"}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy that gives the driver to node n2 and to its own proxy driver."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        f"nodes: [{{names: [n2], drivers: [{DRIVER}]}}]\n"
        f"proxies:\n- {{names: ['uid:*'], drivers: [{DRIVER}]}}\n- {{names: [{DRIVER}], drivers: [{DRIVER}]}}\n"
    )
    return path


def change(site: Site, policy: Path, old: str, new: str) -> None:
    """Change a word of the policy, and wait until the hub uses it."""
    times = len(site.hub.logged(" is in force: "))
    policy.write_text(policy.read_text().replace(old, new))
    site.hub.wait_logged(" is in force: ", times=times + 1)


def test_a_node_gets_no_create_and_no_secret_of_a_driver_that_the_policy_does_not_give_it(
    short_dir: Path, tmp_path: Path, policy: Path
) -> None:
    with Site(short_dir, tmp_path, f"--policy={policy}") as site:
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief"))
        sidecar = site.bridge.start_proxy(DRIVER).sidecar()
        outcome = site.call(sidecar, "CreateVolume", create("pvc-1", secrets=SECRETS))
        assert (outcome.code, thief.asked) == (Code.UNAVAILABLE, [])
        why = f"no rule of {policy} allows it to report this driver"
        assert site.state(thief)["refused"] == {DRIVER: why}
        told = by_hand("policy", f"--hub=unix://{site.hub.uds}", "a-thief", DRIVER).stdout
        assert ("DENIED" in told, why in told) == (True, True)
        change(site, policy, "[n2]", "[n2, a-thief]")
        assert site.call(sidecar, "CreateVolume", create("pvc-1", secrets=SECRETS)).ok
        assert [asked.request.secrets["key"] for asked in thief.asked] == ["s3cret"]


class Thief(Stranger):
    """A client with the key and certificate of a proxy driver."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.hub.address, tls=client_of(site.authority, site.authority.driver(DRIVER)))
        self.greet(hello("driver", DRIVER))

    def create(self, stream: int, victim: SpokenNode) -> End:
        """Send a create, and return its end."""
        self.frames(Open(stream, Kind.CALL, Priority.CALL, DRIVER, CREATE, "", "c-1", 0), Chunk(stream, 0, b""))
        ends: list[End] = []

        def has_ended() -> bool:
            if self.has_input():
                frames = self.receive()
                assert isinstance(frames, list), frames
                ends.extend(frame for frame in frames if isinstance(frame, End))
            return bool(ends)

        attend(victim, until=has_ended)
        return ends[0]


def test_a_stolen_key_of_a_proxy_driver_calls_nothing_once_the_policy_leaves_it_out(
    short_dir: Path, tmp_path: Path, policy: Path
) -> None:
    with Site(short_dir, tmp_path, f"--policy={policy}") as site:
        victim = site.told(site.node("n2"), report(DRIVER, "n2"))
        with Thief(site) as thief:
            assert thief.create(1, victim).code == Code.OK
            change(site, policy, f"[{DRIVER}], drivers", "[none.example], drivers")
            refused = thief.create(3, victim)
        assert (refused.code, victim.times_asked("CreateVolume")) == (Code.UNAVAILABLE, 1)
        assert f"no rule of {policy} allows {DRIVER} to call driver {DRIVER}" in refused.message
        (denied,) = hub_state(site.hub.uds)["denied"]
        assert (denied["identity"], denied["driver"]) == (DRIVER, DRIVER)
        assert "DENIED: proxy driver vendor.test" in by_hand("status", f"--hub=unix://{site.hub.uds}").stdout
