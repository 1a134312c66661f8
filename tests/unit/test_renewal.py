"""When an agent renews its certificate, whom it asks, and what it tells if it cannot. The hub is a function."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from common.errors import DialError, HandshakeRefused, not_carried
from common.links.backoff import Backoff
from common.net.enrolment import Issued, RefusedFor, Renew
from common.session.limits import Limits
from edge.identity.identity import Identity
from edge.identity.key_maker import answer
from edge.identity.renewal import Renewal
from tests.kit.certificates import Authority

LIFE_S = 3600.0


class Hub:
    """Issues certificates, or raises what a test says."""

    def __init__(self, authority: Authority) -> None:
        # The requests on the link, and whether each came to the join listener.
        self.asked: list[tuple[bytes, bool]] = []
        self.failures: list[Exception] = []  # raised one after another, before anything is issued
        self.life_s = LIFE_S  # of the certificates
        self._authority = authority

    async def ask(self, _link: Any, _kind: Any, question: Renew, _wanted: type) -> Issued:
        return self._answer(question, at_listener=False)

    async def ask_at(self, _endpoint: Any, _kind: Any, question: Renew, _wanted: type, **_how: Any) -> Issued:
        return self._answer(question, at_listener=True)

    def issue(self, request: bytes) -> Issued:
        key = x509.load_der_x509_csr(request).public_key()
        chain = self._authority.sign(key, "n1", lifetime_s=self.life_s)
        hubs = ("wss://hub.example:10350",)
        return Issued(chain, self._authority.path.read_bytes(), 1, 60, hubs, ("wss://hub.example:10349",))

    def _answer(self, question: Renew, *, at_listener: bool) -> Issued:
        self.asked.append((question.request, at_listener))
        assert bool(question.signature) is at_listener
        if self.failures:
            raise self.failures.pop(0)
        return self.issue(question.request)


class Moved(Exception):
    """The uplink was told to move."""


class Uplink:
    """Ends the renewal's task when it is told to move."""

    def __init__(self) -> None:
        self.link: Any = object()
        self.is_outdated = self.has_moved = False

    def move(self) -> None:
        self.has_moved = True
        raise Moved


class RenewingNode:
    """A joined node, whose clock the test sets."""

    def __init__(self, directory: Path, hub: Hub) -> None:
        self.hub, self.uplink, self.directory = hub, Uplink(), directory
        self.identity = Identity(directory / "state", answer)
        self.began_at = self.now = time.time()
        self.identity.store(hub.issue(self.identity.request()), "n1", now=self.now)
        os.utime(self.identity.files.cert, (self.now, self.now))
        self.first = self.identity.files.cert.read_bytes()
        self.up_s = 0.0
        self.renewal = Renewal(
            self.identity, "n1", limits=Limits(), clock=lambda: self.now, monotonic=lambda: self.up_s
        )

    @property
    def problem(self) -> str:
        (problem,) = self.renewal.problems()
        return problem

    @property
    def is_renewed(self) -> bool:
        return self.identity.files.cert.read_bytes() != self.first

    async def run(self) -> None:
        """Run the task until it moves the uplink."""
        with pytest.raises(Moved):
            await self.renewal.run(self.uplink)  # type: ignore[arg-type]  # a fake


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RenewingNode:
    hub = Hub(Authority(tmp_path))
    monkeypatch.setattr("edge.identity.renewal.ask", hub.ask)
    monkeypatch.setattr("edge.identity.renewal.ask_at", hub.ask_at)
    monkeypatch.setattr("edge.identity.renewal._FAILED", Backoff(first_s=0.0, most_s=0.0))
    monkeypatch.setattr("edge.identity.renewal._LOOK_S", 0.0)
    return RenewingNode(tmp_path, hub)


async def test_a_certificate_that_is_not_due_is_left_alone(node: RenewingNode) -> None:
    node.now = node.began_at + 0.6 * LIFE_S
    running = asyncio.create_task(node.renewal.run(node.uplink))  # type: ignore[arg-type]  # a fake
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.hub.asked == []


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (DialError("the hub", "it has not answered"), "it has not answered"),
        (HandshakeRefused(RefusedFor.BUSY, "the hub's disk takes nothing"), "the hub's disk takes nothing"),
        (not_carried("the question RENEW", "this hub is older"), "this hub renews no certificates: "),
    ],
)
async def test_a_renewal_that_failed_is_asked_again_with_the_same_request_and_told_meanwhile(
    node: RenewingNode, failure: Exception, why: str
) -> None:
    node.now = node.began_at + 0.75 * LIFE_S
    node.hub.failures = [failure] * 3
    told: list[str] = []
    usual = node.hub.issue

    def issue(request: bytes) -> Issued:
        told.extend(node.renewal.problems())
        return usual(request)

    node.hub.issue = issue  # type: ignore[method-assign]  # looks once more
    await node.run()
    assert len(node.hub.asked) == 4
    assert len({request for request, _ in node.hub.asked}) == 1
    (problem,) = told
    assert problem.startswith("this node's certificate, valid until ")
    assert why in problem
    assert node.renewal.problems() == []


async def test_without_a_link_nothing_is_asked_and_the_certificate_stays(node: RenewingNode) -> None:
    node.now = node.began_at + 0.75 * LIFE_S
    node.uplink.link = None
    running = asyncio.create_task(node.renewal.run(node.uplink))  # type: ignore[arg-type]  # a fake
    while not node.renewal.problems():  # noqa: ASYNC110  # a problem has no event
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.hub.asked == []
    assert not node.is_renewed


async def test_before_a_dial_a_certificate_that_has_ended_is_renewed_at_the_join_listener(node: RenewingNode) -> None:
    node.now = node.began_at + 2 * LIFE_S
    await node.renewal.before_dial(0)
    assert "has ended; compare the clocks" in node.problem  # the hub's new one has ended by this clock, too
    assert [at_listener for _, at_listener in node.hub.asked] == [True]
    assert not node.is_renewed


async def test_by_a_clock_behind_the_hubs_the_certificate_is_renewed_after_its_life_at_the_join_listener(
    node: RenewingNode,
) -> None:
    behind_s = 30 * 86_400.0
    os.utime(node.identity.files.cert, (1.0, node.began_at - behind_s))
    node.now = node.began_at - behind_s + 1.2 * LIFE_S
    await node.renewal.before_dial(0)
    assert [at_listener for _, at_listener in node.hub.asked] == [True]
    assert node.is_renewed


async def test_after_a_clock_was_set_forward_the_agent_dials_although_no_join_listener_answers(
    node: RenewingNode,
) -> None:
    os.utime(node.identity.files.cert, (1.0, 1.0))  # it was stored when the clock stood at its beginning
    node.hub.failures = [DialError("wss://hub.example:10349", "nobody listens there")]
    await node.renewal.before_dial(0)
    assert not node.is_renewed
    assert len(node.renewal.problems()) == 1


@pytest.mark.parametrize(("part", "failures"), [(0.99, 0), (0.5, 3)], ids=["at first", "after dials that failed"])
async def test_before_a_dial_a_certificate_that_is_valid_is_left_alone(
    node: RenewingNode, part: float, failures: int
) -> None:
    node.now = node.began_at + part * LIFE_S
    await node.renewal.before_dial(failures)
    assert node.hub.asked == []


async def test_an_agent_whose_certificate_the_hub_may_have_issued_by_a_clock_ahead_asks_the_listener(
    node: RenewingNode,
) -> None:
    """The hub's clock is right again, and TLS refuses the certificate until it begins."""
    node.now = node.began_at - 86_400.0
    await node.renewal.before_dial(0)
    assert node.hub.asked == [], "a clock that is behind does not matter as long as the hub takes the certificate"
    await node.renewal.before_dial(1)
    assert [at_listener for _, at_listener in node.hub.asked] == [True]
    assert node.is_renewed


async def test_an_agent_whose_clock_was_set_back_asks_the_listener_when_the_certificate_is_due(
    node: RenewingNode,
) -> None:
    node.now = node.began_at + 0.75 * LIFE_S  # the hub's clock is past its end
    await node.renewal.before_dial(0)
    assert node.hub.asked == []
    await node.renewal.before_dial(1)
    assert node.is_renewed


async def test_a_hub_that_issues_lives_of_a_second_is_asked_less_and_less_often(
    node: RenewingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.identity.renewal._FAILED", Backoff(first_s=1.0, most_s=600.0))
    monkeypatch.setattr("edge.identity.renewal._SHORT_S", 50.0)
    asked = []
    for number in range(60):  # dials of a hub that takes the link and ends it
        node.now = time.time() + 2 * LIFE_S + 30 * number  # the last certificate has ended
        node.hub.life_s = 2 * LIFE_S + 20.0 + 30 * number  # a busy machine makes keys slowly
        node.up_s += 1.0
        await node.renewal.before_dial(0)
        asked.append(len(node.hub.asked))
    assert 3 < asked[-1] <= 7
    assert "compare the clocks" in node.problem


async def test_a_renewal_waits_while_a_join_gets_a_certificate_for_the_same_directory(node: RenewingNode) -> None:
    node.now = node.began_at + 2 * LIFE_S
    with Identity(node.directory / "state").held():
        await node.renewal.before_dial(0)
    assert "another process gets a certificate" in node.problem
    assert node.hub.asked == []


async def test_a_hub_that_refuses_the_late_renewal_is_told(node: RenewingNode) -> None:
    node.now = node.began_at + 2 * LIFE_S
    node.hub.failures = [HandshakeRefused(RefusedFor.DENIED, "edge node n1, or its certificate, is denied")]
    await node.renewal.before_dial(0)
    assert node.problem.endswith(", cannot be renewed: edge node n1, or its certificate, is denied")


async def test_without_a_join_listener_an_ended_certificate_says_what_to_do(node: RenewingNode, tmp_path: Path) -> None:
    node.now = node.began_at + 2 * LIFE_S
    path = tmp_path / "state/identity/joined.json"
    path.write_text(path.read_text().replace('"wss://hub.example:10349"', ""))
    await node.renewal.before_dial(0)
    assert "the hub told no join listener for such a case; join again" in node.problem


async def test_a_certificate_that_cannot_be_read_is_told_and_ends_no_agent(node: RenewingNode) -> None:
    node.identity.files.cert.write_bytes(b"half a certi")
    await node.renewal.before_dial(0)
    assert node.problem.startswith("this node's certificate cannot be renewed: ")
    assert node.problem.endswith("; join again with a new token")


async def test_damaged_settings_of_the_join_are_told_and_end_no_agent(node: RenewingNode, tmp_path: Path) -> None:
    node.now = node.began_at + 2 * LIFE_S
    (tmp_path / "state/identity/joined.json").write_text("{")
    await node.renewal.before_dial(0)
    assert "repair it, or join again" in node.problem


async def test_an_agent_moves_to_the_certificate_of_a_join_beside_it(node: RenewingNode) -> None:
    node.uplink.is_outdated = True
    async with asyncio.timeout(5):  # one that does not move looks again and again
        await node.run()
    assert node.hub.asked == []
