"""A session whose certificate ends while it lives."""

import pytest

from common.messages import Reason
from tests.kit.bridge import Hub
from tests.kit.certificates import Authority
from tests.kit.operator import node_state
from tests.kit.stranger import Stranger, hello
from tests.kit.waiting import wait_for


@pytest.mark.parametrize("role", ["edge", "driver"])
def test_a_session_ends_with_its_certificate(hub: Hub, authority: Authority, role: str) -> None:
    issue = authority.edge if role == "edge" else authority.driver
    with Stranger(hub.address, tls=issue("x", lifetime_s=2.0).client(), patience_s=4.0) as peer:
        peer.greet(hello(role, "x"))
        assert peer.last_word() == (
            Reason.EXPIRED,
            f"the certificate of {role} x has ended; connect with a renewed one",
        )
    if role == "edge":
        wait_for(lambda: not node_state(hub.uds, "x")["connected"], what="end of the node's session")
