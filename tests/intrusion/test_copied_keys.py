"""A thief with a copy of a node's keys, after the node has renewed or before it does."""

import shutil

from common.messages import Kind, Ping, Pong
from common.net.enrolment import Issued, JoinRefused
from tests.kit.enrolling import NodeKey, ask
from tests.kit.joinable_hub import JoinableHub
from tests.kit.operator import hub_state
from tests.kit.stranger import Stranger, hello


def problems(joinable: JoinableHub, node: str) -> list[str]:
    return [one for one in hub_state(joinable.hub.uds)["problems"] if f"edge node {node} " in one]


def test_a_copy_that_appears_after_a_renewal_is_refused_and_shown_and_the_node_goes_on(joinable: JoinableHub) -> None:
    copied = joinable.joined("n1")
    renewed = joinable.renew(copied, "n1")
    with joinable.connect(renewed, "n1") as node:
        node.receive()
        assert joinable.outcome(copied, "n1") == "denied"
        node.frames(Ping(7))
        assert Pong(7) in (node.receive() or [])
    assert "a replaced certificate" in problems(joinable, "n1")[0]
    assert joinable.outcome(renewed, "n1") == "welcome"
    assert joinable.hub.audited("copy")
    joinable.hub.kill()
    joinable.hub.start()
    assert joinable.outcome(copied, "n1") == "denied"
    assert joinable.outcome(renewed, "n1") == "welcome"


def test_a_copy_that_renews_first_locks_the_node_out_until_it_is_denied_and_joins_again(joinable: JoinableHub) -> None:
    node = joinable.joined("n2")
    thief = joinable.renew(node, "n2")
    pending = joinable.renew(thief, "n2")
    assert joinable.outcome(thief, "n2") == "welcome"
    with joinable.connect(node, "n2") as link:
        reason, told = link.last_word()
    assert (reason, "csi-bridge deny n2" in told) == ("denied", True)
    assert "two machines have this node's keys" in problems(joinable, "n2")[0]
    joinable.operator("deny", "n2")
    assert "let it join again" in joinable.operator("allow", "n2")
    for stolen in (node, thief, pending):
        assert joinable.outcome(stolen, "n2") == "denied"
    joinable.hub.kill()
    joinable.hub.start()
    again = joinable.joined("n2", "--replace")
    assert joinable.outcome(again, "n2") == "welcome"
    assert joinable.outcome(thief, "n2") == "denied"
    with joinable.dial() as link:
        answer = ask(link, thief.late_renewal(NodeKey()), Kind.RENEW)
    assert isinstance(answer, JoinRefused)
    assert joinable.outcome(again, "n2") == "welcome"


def test_a_copy_gets_no_certificate_at_the_join_listener(joinable: JoinableHub) -> None:
    copied = joinable.joined("n3")
    renewed = joinable.renew(copied, "n3")
    assert joinable.outcome(renewed, "n3") == "welcome"
    with joinable.dial() as thief:
        answer = ask(thief, copied.late_renewal(NodeKey()), Kind.RENEW)
    assert isinstance(answer, JoinRefused)
    assert answer.reason == "copy"
    assert joinable.outcome(renewed, "n3") == "welcome"


def test_a_renewal_that_the_network_delays_or_sends_twice_locks_no_node(joinable: JoinableHub) -> None:
    node, following = joinable.joined("n7"), NodeKey()
    request = node.late_renewal(following)
    with joinable.dial() as delayed:
        with joinable.dial() as link:
            answer = ask(link, request, Kind.RENEW)
        assert isinstance(answer, Issued)
        following.issued = answer
        assert joinable.outcome(following, "n7") == "welcome"
        late = ask(delayed, request, Kind.RENEW)
    assert isinstance(late, JoinRefused)
    assert late.reason == "request"
    assert joinable.outcome(following, "n7") == "welcome"


def test_a_hello_that_the_network_delays_locks_no_node(joinable: JoinableHub) -> None:
    node = joinable.joined("n8")
    with Stranger(joinable.hub.address, tls=node.client(joinable.authority.path, joinable.directory)) as delayed:
        delayed.upgrade()
        renewed = joinable.renew(node, "n8")
        assert joinable.outcome(renewed, "n8") == "welcome"
        delayed.frames(hello("edge", "n8"))
        assert delayed.last_word()[0] == "denied"
    assert joinable.outcome(renewed, "n8") == "welcome"


def test_whoever_denies_a_certificate_hears_that_a_later_one_counts(joinable: JoinableHub) -> None:
    node = joinable.joined("n9")
    following = joinable.renew(node, "n9")
    told = joinable.operator("deny", f"serial={node.certificate.serial_number:X}")
    assert "edge node n9 has a later certificate (asked for at " in told
    assert "which counts; csi-bridge deny n9 ends that one, too" in told
    joinable.operator("deny", "n9")
    assert joinable.outcome(following, "n9") == "denied"


def test_a_certificate_from_before_the_join_is_worth_nothing(joinable: JoinableHub) -> None:
    stolen = NodeKey()
    pem = joinable.authority.issue(
        "csi-bridge node", "system:nodes", file="n4", uris=["csi-bridge:node:n4"], key=stolen.key
    )
    stolen.issued = Issued(pem.cert.read_bytes(), b"", 0, 0, (), ())
    assert joinable.outcome(stolen, "n4") == "welcome"
    node = joinable.joined("n4", "--replace")
    assert joinable.outcome(node, "n4") == "welcome"
    assert joinable.outcome(stolen, "n4") == "certificate"
    assert joinable.outcome(node, "n4") == "welcome"
    joinable.operator("deny", "n4")
    joinable.operator("allow", "n4")
    assert joinable.outcome(stolen, "n4") == "certificate"


def test_a_hub_restored_from_a_backup_takes_a_node_that_renewed_and_refuses_its_copy(joinable: JoinableHub) -> None:
    copied = joinable.joined("n5")
    assert joinable.outcome(copied, "n5") == "welcome"
    state = joinable.hub.uds.with_name("hub")
    joinable.hub.stop()
    shutil.copytree(state, backup := joinable.directory / "backup")
    joinable.hub.start()
    renewed = joinable.renew(copied, "n5")
    assert joinable.outcome(renewed, "n5") == "welcome"
    joinable.hub.stop()
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    joinable.hub.start()
    assert joinable.outcome(renewed, "n5") == "welcome"
    assert joinable.outcome(copied, "n5") == "denied"
