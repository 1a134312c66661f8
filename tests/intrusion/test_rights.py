"""A hostile node, or a thief with a proxy driver's key, wants drivers that its certificate does not name."""

from pathlib import Path

import pytest

from common.messages import Chunk, End, Kind, Open, Priority
from common.status import Code
from tests.kit.certificates import Pem
from tests.kit.operator import by_hand
from tests.kit.requests import create
from tests.kit.spoken_node import Site, SpokenNode, attend, report
from tests.kit.stranger import Stranger, hello

DRIVER = "vendor.test"
CREATE = "/csi.v1.Controller/CreateVolume"
SECRETS = {"key": "s3cret"}


def test_a_node_gets_no_create_and_no_secret_of_a_driver_that_its_certificate_does_not_name(
    short_dir: Path, tmp_path: Path
) -> None:
    with Site(short_dir, tmp_path) as site:
        thief = site.told(site.node("a-thief", "other.test"), report(DRIVER, "a-thief"))
        sidecar = site.bridge.start_proxy(DRIVER).sidecar()
        outcome = site.call(sidecar, "CreateVolume", create("pvc-1", secrets=SECRETS))
        assert (outcome.code, thief.asked) == (Code.UNAVAILABLE, [])
        why = "the node's certificate is for other.test; let it join again with a token for this driver"
        assert site.state(thief)["refused"] == {DRIVER: why}
        site.leave(thief)
        thief = site.told(site.node("a-thief"), report(DRIVER, "a-thief"))
        assert site.call(sidecar, "CreateVolume", create("pvc-1", secrets=SECRETS)).ok
        assert [asked.request.secrets["key"] for asked in thief.asked] == ["s3cret"]


def test_a_hub_that_requires_rights_admits_no_node_whose_certificate_names_no_driver(
    short_dir: Path, tmp_path: Path
) -> None:
    with Site(short_dir, tmp_path, "--require-rights") as site:
        with Stranger(site.hub.address, tls=site.authority.edge("n1").client()) as node:
            node.upgrade()
            node.frames(hello("edge", "n1"))
            reason, why = node.last_word()
        assert (reason, "names no drivers, and the hub runs with --require-rights" in why) == ("certificate", True)
        assert site.told(site.node("n1", DRIVER), report(DRIVER, "n1"))


class Thief(Stranger):
    """A client with the key and certificate of a proxy driver."""

    def __init__(self, site: Site, stolen: Pem) -> None:
        super().__init__(site.hub.address, tls=stolen.client())
        self.greet(hello("driver", DRIVER))

    def create(self, stream: int, victim: SpokenNode, driver: str = DRIVER) -> End:
        self.frames(Open(stream, Kind.CALL, Priority.CALL, driver, CREATE, "", "c-1", 0), Chunk(stream, 0, b""))
        ends: list[End] = []

        def has_ended() -> bool:
            if self.has_input():
                ends.extend(frame for frame in self.next_frames() if isinstance(frame, End))
            return bool(ends)

        attend(victim, until=has_ended)
        return ends[0]


@pytest.mark.parametrize("is_hub", [False, True], ids=["proxy driver", "hub that serves the driver"])
def test_a_stolen_key_of_a_proxy_driver_calls_its_own_driver_alone_and_nothing_once_it_is_denied(
    short_dir: Path, tmp_path: Path, is_hub: bool
) -> None:
    with Site(short_dir, tmp_path) as site:
        victim = site.told(site.node("n2"), report(DRIVER, "n2"), report("other.test", "n2"))
        stolen = site.authority.hub(serves=[DRIVER]) if is_hub else site.authority.driver(DRIVER)
        with Thief(site, stolen) as thief:
            assert thief.create(1, victim).code == Code.OK
            assert thief.create(3, victim, "other.test").code == Code.UNAVAILABLE
            assert by_hand("deny", f"serial={stolen.serial:X}", f"--hub=unix://{site.hub.uds}").returncode == 0
            assert thief.last_word()[0] == "denied"
        assert victim.times_asked("CreateVolume") == 1
