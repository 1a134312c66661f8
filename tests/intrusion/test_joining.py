"""Strangers and thieves at the join listener: with no token, a used one, one for other nodes, or a node's old keys."""

import hashlib
import json
import re
import socket
import time
from contextlib import ExitStack

import pytest

from cloud.records import records
from common.messages import Chunk, End, Kind, Open, Priority, Reason
from common.net.enrolment import MAX_REQUEST_BYTES, AskCa, CaCertificates, JoinRefused, JoinToken, parse_token
from common.status import Code
from tests.kit.enrolling import NodeKey, ask, trusting
from tests.kit.joinable_hub import JoinableHub
from tests.kit.operator import by_hand, hub_state, node_state
from tests.kit.state_db import records_in
from tests.kit.stranger import HungUp, Stranger, hello
from tests.kit.waiting import wait_for


def test_a_token_lets_one_node_join_and_its_thief_comes_too_late(joinable: JoinableHub) -> None:
    token = joinable.token()
    assert token.joins == (f"wss://localhost:{joinable.joins[10:]}", f"wss://{joinable.joins}")
    node = joinable.join(token, "n1")
    assert isinstance(node, NodeKey)
    with Stranger(joinable.hub.address, tls=node.client(joinable.authority.path, joinable.directory)) as link:
        assert link.greet(hello("edge", "n1")).role == "hub"
    thief = joinable.refusal(token, "n2")
    assert thief.reason == "token"
    assert thief.message == (
        "this token is used up (1 of 1): make a new one; csi-bridge token list on the hub's host shows who joined "
        "with it"
    )
    assert f"it gets no certificate: {thief.message}" in joinable.operator("nodes")
    (shown,) = [it for it in joinable.operator("token", "list").splitlines() if it.startswith("JOINED: ")]
    assert re.fullmatch(rf"JOINED: n1 at \S+Z from 127\.0\.0\.1:\d+, with {token.id}", shown)


def test_a_stranger_without_a_token_gets_the_ca_and_nothing_else(joinable: JoinableHub) -> None:
    guess = JoinToken((), b"", joinable.token().id, bytes(32))
    refused = joinable.refusal(guess, "n1")
    assert (refused.reason, refused.message) == ("token", "the hub has no such token")
    with joinable.dial() as stranger:
        assert isinstance(ask(stranger, AskCa(), Kind.CA), CaCertificates)
    for kind in (Kind.CALL, Kind.REPORT, Kind.WATCH, Kind.SYNC, Kind.FACTS, Kind.ORDER):
        with joinable.dial() as stranger:
            stranger.frames(Open(1, kind, Priority.CALL, "", "", "", "", 0), Chunk(1, 0, b"x"))
            (end,) = (frame for frame in stranger.next_frames() if isinstance(frame, End))
            assert end.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize("role", ["operator", "driver", "hub"])
def test_no_other_role_gets_a_link_at_the_join_listener(joinable: JoinableHub, role: str) -> None:
    with Stranger(joinable.joins, tls=trusting(joinable.authority.path)) as stranger:
        stranger.upgrade()
        stranger.frames(hello(role, "n1"))
        assert stranger.last_word()[0] == "role"


def test_a_request_that_claims_to_be_large_ends_the_link(joinable: JoinableHub) -> None:
    with joinable.dial() as stranger:
        stranger.frames(Open(1, Kind.JOIN, Priority.CALL, "", "", "", "", 0), Chunk(1, MAX_REQUEST_BYTES, b"x"))
        assert stranger.last_word()[0] == Reason.PROTOCOL_ERROR


def test_the_main_port_goes_on_asking_everybody_for_a_certificate(joinable: JoinableHub) -> None:
    with (
        pytest.raises((OSError, HungUp)),
        Stranger(joinable.hub.address, tls=trusting(joinable.authority.path)) as stranger,
    ):
        stranger.greet(hello("edge", "n1"))


def test_a_token_for_new_nodes_does_not_give_away_a_node_that_exists(joinable: JoinableHub) -> None:
    tls = joinable.authority.edge("with-volumes").client()
    with Stranger(joinable.hub.address, tls=tls) as node:
        node.greet(hello("edge", "with-volumes"))
    early = joinable.token("--node=named")
    joinable.joined("named")
    token = joinable.token("--node=*", "--uses=9")
    assert isinstance(joinable.join(token, "new-node"), NodeKey)
    for given, name in ((token, "with-volumes"), (token, "new-node"), (early, "named")):
        assert joinable.refusal(given, name).reason == "node"
    told = by_hand("token", "create", "--node=named", f"--hub=unix://{joinable.hub.uds}")
    assert (told.returncode, "edge node named exists (it joined at " in told.stderr) == (1, True)


def test_a_node_reports_no_driver_that_its_token_does_not_name(joinable: JoinableHub) -> None:
    node = joinable.join(joinable.token("--node=n4", "--driver=mine.csi"), "n4")
    assert isinstance(node, NodeKey)
    with Stranger(joinable.hub.address, tls=node.client(joinable.authority.path, joinable.directory)) as link:
        link.greet(hello("edge", "n4"))
        link.report("n4", "other.csi")
        found = wait_for(lambda: node_state(joinable.hub.uds, "n4")["refused"], what="refused report")
    assert found == {
        "other.csi": "the node's certificate is for mine.csi; let it join again with a token for this driver"
    }


def test_a_denied_node_comes_back_neither_by_renewal_nor_by_a_token(joinable: JoinableHub) -> None:
    stolen = joinable.joined("n5")
    token = joinable.token("--node=n5", "--replace")
    joinable.operator("deny", "n5")
    with joinable.dial() as thief:
        answer = ask(thief, stolen.late_renewal(NodeKey()), Kind.RENEW)
    assert isinstance(answer, JoinRefused)
    assert answer.reason == "denied"
    later = joinable.token("--node=n5", "--replace")
    for shown, reason in ((token, "token"), (later, "denied")):
        assert joinable.refusal(shown, "n5").reason == reason
    assert joinable.outcome(stolen, "n5") == "denied"
    joinable.operator("allow", "n5")
    assert joinable.refusal(token, "n5")
    assert isinstance(joinable.join(later, "n5"), NodeKey)


def test_a_revoked_token_is_worth_nothing_also_after_a_restart(joinable: JoinableHub) -> None:
    token = joinable.token("--node=n6")
    assert joinable.operator("token", "revoke", token.id).startswith(f"token {token.id} is revoked")
    joinable.hub.kill()
    joinable.hub.start()
    assert joinable.refusal(token, "n6").message == "this token was revoked"
    listed = json.loads(joinable.operator("token", "list", "--output=json"))["tokens"]
    assert (token.id, "revoked") in [(one["id"], one["state"]) for one in listed]


def test_neither_the_disk_nor_a_log_nor_a_page_has_a_tokens_secret(joinable: JoinableHub) -> None:
    line = joinable.operator("token", "create", "--node=secret").strip()
    token = parse_token(line)
    assert isinstance(joinable.join(token, "secret"), NodeKey)
    shown = json.dumps(hub_state(joinable.hub.uds)) + joinable.operator("token", "list")
    joinable.hub.stop()
    texts = [shown.encode(), joinable.hub.process.output().encode()]
    texts += [path.read_bytes() for path in joinable.hub.uds.with_name("hub").rglob("*") if path.is_file()]
    assert len(texts) == 4  # with state.db and hub.lock
    for secret in (token.secret, token.secret.hex().encode(), line[-30:].encode()):
        assert not any(secret in text for text in texts)
    tokens = records_in(joinable.hub.uds.with_name("hub"), records.RecordKind.TOKEN)
    assert tokens[token.id,]["secret_hash"] == hashlib.sha256(token.secret).hexdigest()
    joinable.hub.start()


def test_a_flood_at_the_join_listener_locks_neither_nodes_nor_joins_out(joinable: JoinableHub) -> None:
    """600 silent connections from one address."""
    token = joinable.token("--node=n3")
    host, _, port = joinable.joins.rpartition(":")
    tls = joinable.authority.edge("n2").client()
    with ExitStack() as opened:
        for _ in range(600):
            opened.enter_context(
                socket.create_connection((host, int(port)), timeout=10, source_address=("127.0.0.2", 0))
            )
        began = time.monotonic()
        with Stranger(joinable.hub.address, tls=tls) as node:
            node.greet(hello("edge", "n2"))
        assert time.monotonic() - began < 2.0
        assert isinstance(joinable.join(token, "n3"), NodeKey)
