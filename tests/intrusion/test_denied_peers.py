"""A node or a certificate that an operator denies, with its valid certificate."""

import time
from pathlib import Path

from common.messages import Reason
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority, Pem, bundle
from tests.kit.intruder import outcome
from tests.kit.operator import by_hand, node_state
from tests.kit.stranger import Stranger, hello
from tests.kit.waiting import wait_for

SOON_S = 1.0  # within this time a denial ends the live links


def order(hub: Hub, *words: str) -> str:
    """Give an order of an operator by the command line, and return its output."""
    told = by_hand(*words, f"--hub=unix://{hub.uds}")
    assert (told.returncode, told.stderr) == (0, "")
    return told.stdout


def test_a_denied_node_is_cut_within_a_second_and_stays_out_after_a_restart_and_a_forget(
    bridge: Bridge, authority: Authority
) -> None:
    hub, thief = bridge.start_hub(*authority.hub().flags), authority.edge("n1")
    with Stranger(hub.address, tls=thief.client()) as link:
        link.greet(hello("edge", "n1"))
        order(hub, "deny", "n1", "--why=stolen from the van")
        began = time.monotonic()
        assert link.last_word()[0] == Reason.DENIED
        assert time.monotonic() - began < SOON_S
    assert outcome(hub, hello("edge", "n1"), thief.client()) == Reason.DENIED
    assert outcome(hub, hello("edge", "n1"), authority.edge("n1").client()) == Reason.DENIED
    assert outcome(hub, hello("edge", "n2"), authority.edge("n2").client()) == "welcome"

    order(hub, "forget", "n1")
    hub.kill()
    hub.start()
    assert outcome(hub, hello("edge", "n1"), thief.client()) == Reason.DENIED
    order(hub, "allow", "n1")
    assert outcome(hub, hello("edge", "n1"), thief.client()) == "welcome"


def test_a_denied_certificate_is_cut_and_another_one_of_the_same_name_is_not(
    bridge: Bridge, authority: Authority
) -> None:
    hub = bridge.start_hub(*authority.hub().flags)
    leaked, renewed = authority.driver("d.example"), authority.driver("d.example")
    with (
        Stranger(hub.address, tls=leaked.client()) as thief,
        Stranger(hub.address, tls=renewed.client()) as proxy,
    ):
        thief.greet(hello("driver", "d.example"))
        proxy.greet(hello("driver", "d.example"))
        order(hub, "deny", f"serial={leaked.serial:X}")
        assert thief.last_word()[0] == Reason.DENIED
    assert outcome(hub, hello("driver", "d.example"), leaked.client()) == Reason.DENIED
    assert outcome(hub, hello("driver", "d.example"), renewed.client()) == "welcome"


def test_a_certificate_of_a_ca_that_was_taken_out_is_cut_and_those_of_the_other_ca_stay(
    bridge: Bridge, authority: Authority, tmp_path: Path
) -> None:
    (elsewhere := tmp_path / "old").mkdir()
    leaked = Authority(elsewhere, name="leaked CA")
    authorities = bundle(tmp_path / "ca.crt", authority, leaked)
    hub = bridge.start_hub(*authority.hub().flags, f"--tls-ca={authorities}")
    stolen, good = leaked.edge("n1"), authority.edge("n2")
    with (
        Stranger(hub.address, tls=Pem(authority.path, stolen.cert, stolen.key).client()) as thief,
        Stranger(hub.address, tls=good.client()) as node,
    ):
        thief.greet(hello("edge", "n1"))
        node.greet(hello("edge", "n2"))
        (new := tmp_path / "new.crt").write_bytes(authority.path.read_bytes())
        new.replace(authorities)
        assert thief.last_word()[0] == Reason.EXPIRED
        wait_for(lambda: not node_state(hub.uds, "n1")["connected"], what="end of the link")
        assert node_state(hub.uds, "n2")["connected"]
