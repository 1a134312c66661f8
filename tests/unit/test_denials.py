"""Denials: nodes and certificates that may not connect, also after a restart, and with a full disk."""

import asyncio

import pytest

from cloud.trust.audit import Event
from cloud.trust.denials import Denials
from cloud.trust.tokens import Tokens
from cloud.trust.trust_store import Certificate, CertificateState, TrustStore
from common.errors import CallError
from common.operator_orders import Allow, CreateToken, Deny
from common.store.database_writer import WriteFailed
from tests.kit.audit import Line
from tests.kit.memory_records import MemoryRecords
from tests.kit.waiting import settle

NOW = 1_800_000_000.0
SERIAL = 0x1A2B3C
BY = "pid 7 uid 0"


class DenyingHub:
    """A hub's denials, and how often links were looked at again."""

    def __init__(self) -> None:
        self.records = MemoryRecords()
        self.changes = 0
        self.start()

    def start(self) -> None:
        """Start the hub, again with what the disk has."""
        self.store = TrustStore(self.records)
        self.denials = Denials(self.store, now=lambda: NOW)
        self.denials.on_change = self._changed

    def _changed(self) -> None:
        self.changes += 1

    async def deny(self, subject: str, why: str = "") -> str:
        return await self.denials.deny(Deny(subject=subject, why=why), BY)

    async def allow(self, subject: str) -> str:
        return await self.denials.allow(Allow(subject=subject), BY)

    def denied(self, node: str = "", serial: int = 0) -> bool:
        return self.denials.find(node, serial) is not None


@pytest.fixture
def hub() -> DenyingHub:
    return DenyingHub()


async def test_a_denied_node_is_denied_with_every_certificate_also_after_a_restart_until_allow(
    hub: DenyingHub,
) -> None:
    assert await hub.deny("n1", "stolen") == "edge node n1 is denied; csi-bridge allow undoes it"
    for _ in range(2):
        assert (hub.denied("n1"), hub.denied("n1", SERIAL), hub.denied("n2", SERIAL)) == (True, True, False)
        assert not hub.denied("", SERIAL)
        (denial,) = hub.denials.all()
        assert (denial.kind, denial.value, denial.at, denial.why) == ("node", "n1", NOW, "stolen")
        hub.start()
    assert await hub.allow("n1") == "edge node n1 is no longer denied"
    assert await hub.allow("n1") == ""
    for _ in range(2):
        assert not hub.denied("n1")
        hub.start()


async def test_a_node_that_is_allowed_again_comes_back_with_no_certificate_of_before(hub: DenyingHub) -> None:
    for number, node in enumerate(("n1", "n2")):
        current = Certificate(
            node, 1, f"key{number}", f"1{number}", NOW, NOW + 60.0, CertificateState.CURRENT, pem="pem"
        )
        hub.store.put_certificates(node, {1: current})
    await hub.deny("n1")
    assert await hub.allow("n1") == (
        "edge node n1 is no longer denied; its certificates stay refused: let it join again "
        "(csi-bridge token create --node n1 --replace)"
    )
    for _ in range(2):
        known = hub.store.certificates
        assert (known["n1"][1].state, known["n1"][1].pem, known["n2"][1].state) == (
            CertificateState.VOID,
            "",
            CertificateState.CURRENT,
        )
        hub.start()


@pytest.mark.parametrize("text", ["serial=1A2B3C", "serial=1a2b3c", "serial=001A2B3C", "1A:2B:3C", "00:1a:2b:3c"])
async def test_a_denied_certificate_is_denied_with_every_name(hub: DenyingHub, text: str) -> None:
    assert await hub.deny(text) == "the certificate serial=1A2B3C is denied; csi-bridge allow undoes it"
    assert (hub.denied("n1", SERIAL), hub.denied("", SERIAL), hub.denied("n1", SERIAL + 1)) == (True, True, False)
    hub.start()
    assert hub.denied("n1", SERIAL)
    assert await hub.allow("serial=1A2B3C") == "the certificate serial=1A2B3C is no longer denied"
    assert not hub.denied("n1", SERIAL)


async def test_a_name_of_digits_is_a_node(hub: DenyingHub) -> None:
    await hub.deny("1234")
    assert (hub.denied("1234"), hub.denied("", 0x1234)) == (True, False)


@pytest.mark.parametrize(
    "text", ["", "N1", "../n1", "serial=", "serial=xyz", f"serial={'1' * 41}", "1A2B", "driver:d", "n" * 300]
)
async def test_an_order_that_names_neither_is_refused(audit_lines: list[Line], hub: DenyingHub, text: str) -> None:
    for order in (hub.deny, hub.allow):
        with pytest.raises(CallError, match="neither a node nor a certificate") as refusal:
            await order(text)
        assert len(str(refusal.value)) < 300
    assert (hub.denials.all(), hub.changes, audit_lines) == ([], 0, [])


async def test_the_denial_of_a_node_revokes_the_tokens_that_name_it_for_good(hub: DenyingHub) -> None:
    tokens = Tokens(hub.store, now=lambda: NOW)

    async def make(nodes: str, *, replace: bool = False) -> str:
        token, _ = await tokens.create(CreateToken(node=nodes, drivers=[], ttl_s=60, uses=1, replace=replace))
        return token.id

    stolen = [await make("n1"), await make("n1", replace=True)]
    others = [await make("n2", replace=True), await make("n*")]
    await hub.deny("serial=1A")
    assert not any(token.revoked_at for token in hub.store.tokens.values())
    await hub.deny("n1")
    await hub.allow("n1")
    later = await make("n1", replace=True)
    for _ in range(2):
        revoked = {token.id for token in hub.store.tokens.values() if token.revoked_at}
        assert (revoked, hub.store.tokens.keys() - revoked) == (set(stolen), {*others, later})
        hub.start()


async def test_each_denial_ends_links_at_once_and_is_in_the_audit_log(audit_lines: list[Line], hub: DenyingHub) -> None:
    await hub.deny("n1", "stolen")
    await hub.allow("n1")
    assert hub.changes == 1
    assert audit_lines == [
        (Event.DENIAL, "operator", BY, {"kind": "node", "subject": "n1", "why": "stolen"}),
        (Event.ALLOWANCE, "operator", BY, {"kind": "node", "subject": "n1"}),
    ]


async def test_with_a_full_disk_a_denial_counts_at_once_and_is_written_when_there_is_room(hub: DenyingHub) -> None:
    hub.records.room = 0
    with pytest.raises(CallError, match=r"edge node n1 is denied, and not yet durably: .*no space left"):
        await hub.deny("n1")
    assert (hub.denied("n1"), hub.changes) == (True, 1)
    with pytest.raises(CallError, match=r"edge node n1 stays denied: .*no space left"):
        await hub.allow("n1")
    assert hub.denied("n1")
    hub.records.retry()
    for _ in range(2):
        assert hub.denied("n1")
        hub.start()
    hub.records.room = 0
    with pytest.raises(CallError, match="not yet durably"):
        await hub.deny("n2")
    hub.records.room = None
    await hub.allow("n2")
    hub.records.retry()
    hub.start()
    assert (hub.denied("n1"), hub.denied("n2")) == (True, False)


async def test_a_denial_outlives_an_allow_that_fails_or_that_another_deny_overtakes(hub: DenyingHub) -> None:
    current = Certificate("n1", 1, "key", "1", NOW, NOW + 60.0, CertificateState.CURRENT, pem="pem")
    hub.store.put_certificates("n1", {1: current})
    await hub.deny("n1")
    hub.records.held = []
    allowing = asyncio.create_task(hub.allow("n1"))
    await settle()
    ((done, changes),), hub.records.held = hub.records.held, None
    await hub.records.write(changes)  # and its answer is lost
    done.set_exception(WriteFailed("memory", "no answer"))
    with pytest.raises(CallError, match=r"edge node n1 stays denied: .*no answer"):
        await allowing
    hub.start()
    assert hub.denied("n1")
    hub.records.held = []
    allowing = asyncio.create_task(hub.allow("n1"))
    await settle()
    hub.store.put_certificates("n1", {1: current})  # the removal is written twice
    denying = asyncio.create_task(hub.deny("n1", "anew"))
    await settle()
    for _ in range(2):
        hub.records.end_writes()
        await settle()
    await asyncio.gather(allowing, denying)
    for _ in range(2):
        assert [it.why for it in hub.denials.all()] == ["anew"]
        hub.start()
