"""A thief with a copy of a node's keys, after the node has renewed or before it does."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from common.enrolment import Issued, Refused
from common.messages import Kind, Ping, Pong
from tests.kit.bridge import Bridge
from tests.kit.enrolling import NodeKey, ask
from tests.kit.join_world import JoinWorld
from tests.kit.operator import hub_state
from tests.kit.stranger import Stranger, hello

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinWorld]:
    directory = tmp_path_factory.mktemp("hub")
    with tempfile.TemporaryDirectory(prefix="csi-") as name, Bridge(Path(name), directory) as bridge:
        yield JoinWorld(bridge, directory)


def problems(world: JoinWorld, node: str) -> list[str]:
    return [one for one in hub_state(world.hub.uds)["problems"] if f"edge node {node} " in one]


def test_a_copy_that_appears_after_a_renewal_is_refused_and_shown_and_the_node_goes_on(world: JoinWorld) -> None:
    copied = world.joined("n1")
    renewed = world.renew(copied, "n1")
    with world.connect(renewed, "n1") as node:
        node.receive()
        assert world.outcome(copied, "n1") == "denied"
        node.frames(Ping(7))
        assert Pong(7) in (node.receive() or [])
    assert "a replaced certificate" in problems(world, "n1")[0]
    assert world.outcome(renewed, "n1") == "welcome"
    assert world.hub.audited("copy")
    world.hub.kill()
    world.hub.start()
    assert world.outcome(copied, "n1") == "denied"
    assert world.outcome(renewed, "n1") == "welcome"


def test_a_copy_that_renews_first_locks_the_node_out_until_it_is_denied_and_joins_again(world: JoinWorld) -> None:
    node = world.joined("n2")
    thief = world.renew(node, "n2")
    pending = world.renew(thief, "n2")
    assert world.outcome(thief, "n2") == "welcome"
    with world.connect(node, "n2") as link:
        reason, told = link.last_word()
    assert (reason, "csi-bridge deny n2" in told) == ("denied", True)
    assert "two machines have this node's keys" in problems(world, "n2")[0]
    world.operator("deny", "n2")
    assert "let it join again" in world.operator("allow", "n2")
    for stolen in (node, thief, pending):
        assert world.outcome(stolen, "n2") == "denied"
    world.hub.kill()
    world.hub.start()
    again = world.joined("n2", "--replace")
    assert world.outcome(again, "n2") == "welcome"
    assert world.outcome(thief, "n2") == "denied"
    with world.dial() as link:
        answer = ask(link, thief.late_renewal(NodeKey()), Kind.RENEW)
    assert isinstance(answer, Refused)
    assert world.outcome(again, "n2") == "welcome"


def test_a_copy_gets_no_certificate_at_the_join_listener(world: JoinWorld) -> None:
    copied = world.joined("n3")
    renewed = world.renew(copied, "n3")
    assert world.outcome(renewed, "n3") == "welcome"
    with world.dial() as thief:
        answer = ask(thief, copied.late_renewal(NodeKey()), Kind.RENEW)
    assert isinstance(answer, Refused)
    assert answer.reason == "copy"
    assert world.outcome(renewed, "n3") == "welcome"


def test_a_renewal_that_the_network_delays_or_sends_twice_locks_no_node(world: JoinWorld) -> None:
    node, following = world.joined("n7"), NodeKey()
    request = node.late_renewal(following)
    with world.dial() as delayed:
        with world.dial() as link:
            answer = ask(link, request, Kind.RENEW)
        assert isinstance(answer, Issued)
        following.issued = answer
        assert world.outcome(following, "n7") == "welcome"
        late = ask(delayed, request, Kind.RENEW)
    assert isinstance(late, Refused)
    assert late.reason == "request"
    assert world.outcome(following, "n7") == "welcome"


def test_a_hello_that_the_network_delays_locks_no_node(world: JoinWorld) -> None:
    node = world.joined("n8")
    with Stranger(world.hub.address, tls=node.client(world.authority.path, world.directory)) as delayed:
        delayed.upgrade()
        renewed = world.renew(node, "n8")
        assert world.outcome(renewed, "n8") == "welcome"
        delayed.frames(hello("edge", "n8"))
        assert delayed.last_word()[0] == "denied"
    assert world.outcome(renewed, "n8") == "welcome"


def test_whoever_denies_a_certificate_hears_that_a_later_one_counts(world: JoinWorld) -> None:
    node = world.joined("n9")
    following = world.renew(node, "n9")
    told = world.operator("deny", f"serial={node.certificate.serial_number:X}")
    assert "edge node n9 has a later certificate, which counts; csi-bridge deny n9 ends that one, too" in told
    world.operator("deny", "n9")
    assert world.outcome(following, "n9") == "denied"


def test_a_certificate_from_before_the_join_is_worth_nothing(world: JoinWorld) -> None:
    stolen = NodeKey()
    pem = world.authority.issue(
        "csi-bridge node", "system:nodes", file="n4", uris=["csi-bridge:node:n4"], key=stolen.key
    )
    stolen.issued = Issued(pem.cert.read_bytes(), b"", 0, 0, (), ())
    assert world.outcome(stolen, "n4") == "welcome"
    node = world.joined("n4", "--replace")
    assert world.outcome(node, "n4") == "welcome"
    assert world.outcome(stolen, "n4") == "certificate"
    assert world.outcome(node, "n4") == "welcome"
    world.operator("deny", "n4")
    world.operator("allow", "n4")
    assert world.outcome(stolen, "n4") == "certificate"


def test_a_hub_restored_from_a_backup_takes_a_node_that_renewed_and_refuses_its_copy(world: JoinWorld) -> None:
    copied = world.joined("n5")
    assert world.outcome(copied, "n5") == "welcome"
    state = world.hub.uds.with_name("hub")
    world.hub.stop()
    shutil.copytree(state, backup := world.directory / "backup")
    world.hub.start()
    renewed = world.renew(copied, "n5")
    assert world.outcome(renewed, "n5") == "welcome"
    world.hub.stop()
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    world.hub.start()
    assert world.outcome(renewed, "n5") == "welcome"
    assert world.outcome(copied, "n5") == "denied"
