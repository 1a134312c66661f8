"""The generations of a node's certificate: which one counts, copies, and a hub restored from a backup."""

from dataclasses import replace

import pytest

from cloud.trust.audit import Event
from cloud.trust.generations import MOST_PENDING, MOST_VOID, Generations
from cloud.trust.trust_store import Certificate, CertificateState, TrustStore
from common.errors import HandshakeRefused
from common.net.peer import Peer
from common.observe.exposition import registry_of
from common.observe.metrics import Metrics
from tests.kit.audit import Line
from tests.kit.memory_records import MemoryRecords
from tests.kit.shown_peer import ShownPeer

NOW = 1_800_000_000.0


def shown(generation: int, key: str) -> ShownPeer:
    """The holder of a certificate of node n1."""
    uris = ("csi-bridge:node:n1", *([f"csi-bridge:generation:{generation}"] if generation else ()))
    return ShownPeer("10.0.0.7:1", local=False, uris=uris, serial=42, not_after=2e9, key=key)


class GenerationsOfHub:
    def __init__(self) -> None:
        self.store, self.metrics = TrustStore(MemoryRecords()), Metrics()
        self.generations = Generations(self.store, self.metrics)

    async def issue(self, key: str, *, token: str = "") -> Peer:
        number = self.generations.next_of("n1")
        address = f"10.0.0.{number}:7"
        made = Certificate("n1", number, key, "2a", NOW, 2e9, CertificateState.PENDING, token, "pem", address)
        await self.generations.add(made, uses_token=False)
        return shown(number, key)

    def come(self, shown: Peer) -> None:
        self.generations.examine("n1", shown)
        self.generations.authenticated("n1", shown)

    def refusal(self, shown: Peer) -> HandshakeRefused:
        with pytest.raises(HandshakeRefused) as refused:
            self.come(shown)
        return refused.value

    def states(self) -> dict[int, CertificateState]:
        return {number: it.state for number, it in self.store.certificates["n1"].items()}


@pytest.fixture
def hub() -> GenerationsOfHub:
    return GenerationsOfHub()


async def test_the_present_key_counts_until_the_next_one_has_authenticated(hub: GenerationsOfHub) -> None:
    first = await hub.issue("k1")
    hub.come(first)
    second = await hub.issue("k2")
    hub.come(first)
    assert hub.states() == {1: CertificateState.CURRENT, 2: CertificateState.PENDING}
    hub.come(second)
    assert hub.states() == {1: CertificateState.VOID, 2: CertificateState.CURRENT}


async def test_a_node_may_skip_a_certificate_whose_answer_was_lost(hub: GenerationsOfHub) -> None:
    hub.come(await hub.issue("k1"))
    await hub.issue("k2")
    third = await hub.issue("k3")
    hub.come(third)
    assert hub.states() == {1: CertificateState.VOID, 2: CertificateState.VOID, 3: CertificateState.CURRENT}


async def test_a_generation_above_all_known_ones_becomes_the_current_one(hub: GenerationsOfHub) -> None:
    """The hub was restored from a backup, and the node has renewed since then."""
    hub.come(await hub.issue("k1"))
    hub.come(shown(7, "k7"))
    assert hub.states() == {1: CertificateState.VOID, 7: CertificateState.CURRENT}
    assert hub.generations.next_of("n1") == 8


async def test_a_certificate_without_a_generation_stays_out_when_all_generations_are_void(
    hub: GenerationsOfHub,
) -> None:
    hub.come(await hub.issue("k1"))
    hub.store.put_certificates("n1", {1: hub.store.certificates["n1"][1].voided()})
    hub.refusal(shown(0, "file"))


async def test_a_later_certificate_stays_pending_when_an_earlier_one_is_used(hub: GenerationsOfHub) -> None:
    hub.come(await hub.issue("k1"))
    second, third = await hub.issue("k2"), await hub.issue("k3")
    hub.come(second)
    assert hub.states() == {1: CertificateState.VOID, 2: CertificateState.CURRENT, 3: CertificateState.PENDING}
    hub.come(third)


async def test_a_void_key_that_appears_again_is_refused_and_shown_and_the_newest_one_goes_on(
    audit_lines: list[Line], hub: GenerationsOfHub, caplog: pytest.LogCaptureFixture
) -> None:
    first = await hub.issue("k1", token="5f")
    hub.come(first)
    second = await hub.issue("k2")
    hub.come(second)
    asked = "asked for at 2027-01-15T08:00:00Z from 10.0.0.2:7"
    for _ in range(2):
        refused = hub.refusal(first)
        assert refused.reason == "denied"
        assert "a later certificate of edge node n1 has replaced this one" in refused.why
        assert f"a later certificate of edge node n1, {asked}, has replaced this one" in refused.shown
    hub.come(second)
    (problem,) = hub.generations.problems()
    assert problem.startswith("a replaced certificate of edge node n1 appeared at ")
    assert "from 10.0.0.7:1 (generation 1 of 2, serial 2a) and is refused" in problem
    assert f"; the one that counts was {asked}" in problem
    assert [details["generation"] for event, _, _, details in audit_lines if event is Event.COPY] == [1, 1]
    assert caplog.text.count("a replaced certificate of edge node n1 appeared") == 1
    samples = registry_of(hub.metrics)
    assert samples.get_sample_value("csi_bridge_node_conflicts_total", {"cause": "copy"}) == 2


async def test_a_replaced_certificate_is_shown_until_the_next_one_is_in_use_or_an_operator_settles_it(
    hub: GenerationsOfHub,
) -> None:
    first = await hub.issue("k1")
    hub.come(first)
    hub.come(await hub.issue("k2"))
    assert not hub.generations.settle("n1")
    hub.refusal(first)
    assert hub.generations.settle("n1")
    assert list(hub.generations.problems()) == []
    hub.refusal(first)
    hub.come(await hub.issue("k3"))
    assert list(hub.generations.problems()) == []


async def test_of_two_keys_of_one_generation_the_one_on_record_counts(hub: GenerationsOfHub) -> None:
    """After a restore, a copy of generation 1 has renewed, and so has had the node before the restore."""
    hub.come(await hub.issue("k1"))
    hub.come(await hub.issue("the copy's"))
    hub.refusal(shown(2, "the node's"))
    assert list(hub.generations.problems())


async def test_a_certificate_without_a_generation_counts_only_before_the_node_has_joined(hub: GenerationsOfHub) -> None:
    hub.come(shown(0, "file"))
    first = await hub.issue("k1")
    hub.come(shown(0, "file"))
    hub.come(first)
    assert "has joined, and this certificate has no generation" in hub.refusal(shown(0, "file")).why
    assert list(hub.generations.problems()) == [], "an operator may have put an old file back"


async def test_a_hello_that_was_refused_for_another_reason_voids_nothing(hub: GenerationsOfHub) -> None:
    first = await hub.issue("k1")
    hub.come(first)
    second = await hub.issue("k2")
    hub.generations.examine("n1", second)
    hub.come(first)


async def test_certificates_that_are_asked_for_and_not_used_are_few(hub: GenerationsOfHub) -> None:
    first = await hub.issue("k1")
    hub.come(first)
    for number in range(2, 60):
        await hub.issue(f"k{number}")
    assert len(hub.states()) == 1 + MOST_PENDING + MOST_VOID
    hub.come(first)
    hub.come(shown(59, "k59"))


async def test_the_last_join_of_a_node_is_known_however_often_it_has_renewed(hub: GenerationsOfHub) -> None:
    assert hub.generations.joined("n1") == ""
    for number in range(3 * MOST_VOID):
        hub.come(await hub.issue(f"k{number}", token="5f" if number < 2 else ""))
    assert hub.generations.joined("n1") == " (it joined at 2027-01-15T08:00:00Z from 10.0.0.2:7)"
    assert len([it for it in hub.states().values() if it is CertificateState.VOID]) == MOST_VOID + 1


async def test_generations_of_one_node_do_not_touch_another(hub: GenerationsOfHub) -> None:
    hub.come(await hub.issue("k1"))
    hub.generations.examine("n2", shown(0, "file"))
    assert not hub.generations.has_joined("n2")


@pytest.mark.parametrize("uris", [("csi-bridge:generation:1", "csi-bridge:generation:2"), ("csi-bridge:generation:x",)])
async def test_a_certificate_with_an_odd_generation_is_refused(hub: GenerationsOfHub, uris: tuple[str, ...]) -> None:
    odd = replace(shown(0, "k"), uris=uris)
    assert "generation" in hub.refusal(odd).why
