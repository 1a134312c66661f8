"""Issuance: the hub's answers to nodes that join and renew, on both kinds of links."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud.trust import join_links
from cloud.trust.audit import Event
from cloud.trust.credentials import Credentials
from cloud.trust.issuance import Issuance
from cloud.trust.join_links import JoinLinks
from cloud.trust.signer import Signer
from common.errors import timestamp
from common.messages import Kind
from common.net.enrolment import Answer, AskCa, Issued, Join, JoinRefused, Renew, Request, decode, encode, rights_in
from common.net.peer import Peer as Address
from common.net.tls import TlsFiles
from common.observe.metrics import Metrics
from common.observe.version import introduce
from common.operator_orders import CreateToken, Deny
from common.session.link import Link, Stream
from common.status import Code
from tests.kit.audit import Line, audited
from tests.kit.certificates import Authority
from tests.kit.enrolling import NodeKey
from tests.kit.linked import Peer, link_pair
from tests.kit.memory_records import MemoryRecords
from tests.kit.waiting import settle

TTL_S, GRACE_S = 900.0, 86_400.0
STRANGER = Address("10.0.0.9:1", local=False)


class EnrollingHub:
    """A hub's issuance, at a time that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.now, self.directory = time.time(), directory
        self.records = MemoryRecords()
        (directory / "ca").mkdir(exist_ok=True)
        self.authority = Authority(directory / "ca", lifetime_s=400 * 86_400.0)
        hub = self.authority.hub()
        files = TlsFiles(hub.ca, hub.cert, hub.key)
        self.signer = Signer(files, self.authority.key_path, ttl_s=TTL_S, now=self.clock)
        self.links: list[Link] = []
        self.start()

    def start(self) -> None:
        """Start the hub, again with what the disk has."""
        self.trust = Credentials(self.records, Metrics(), tls_ca=None, require_rights=False, now=self.clock)
        self.tokens, self.generations = self.trust.tokens, self.trust.generations
        self.store = self.tokens._store
        terms = Issued(
            b"", b"", 0, int(GRACE_S), ("wss://hub.example:7000",), ("wss://hub.example:7443",), one_hub=True
        )
        self.issuance = Issuance(
            self.trust,
            self.signer,
            terms,
            knows=lambda _: False,
            turned_away=lambda _address, _reason, _why: None,
            now=self.clock,
        )
        self.strangers = JoinLinks(self.issuance)

    def clock(self) -> float:
        return self.now

    async def dial(self, node: NodeKey | None = None) -> Link:
        """A link to the join listener, or of an admitted node."""
        handler = self.strangers if node is None else Peer(self.issuance.serve_on_link)
        at_hub, at_node = link_pair(
            handler,
            Peer(accepts=False),
            introduce("edge", "n1", instance="i"),
            identity=STRANGER if node is None else node.peer(),
        )
        await settle()
        self.links.append(at_hub)
        return at_node

    async def ask(self, request: Request, *, over: NodeKey | None = None, kind: Kind | None = None) -> Answer:
        """The answer to a request, at the join listener or over an admitted node's link."""
        return await answer(open_stream(await self.dial(over), request, kind))

    async def token(
        self, nodes: str = "n1", *, uses: int = 1, drivers: tuple[str, ...] = (), replace: bool = False
    ) -> tuple[str, bytes]:
        asked = CreateToken(node=nodes, drivers=list(drivers), ttl_s=60, uses=uses, replace=replace)
        token, secret = await self.tokens.create(asked)
        return token.id, secret

    async def join(self, token: tuple[str, bytes], node: str = "n1", key: NodeKey | None = None) -> NodeKey:
        """A node that has joined, and has not used its certificate yet."""
        key = key or NodeKey()
        issued = await self.ask(Join(*token, node, key.request))
        assert isinstance(issued, Issued), issued
        key.issued = issued
        return key

    async def joined(self, *, replace: bool = False) -> NodeKey:
        """The node n1 after its first connect."""
        node = await self.join(await self.token(replace=replace))
        self.connect(node)
        return node

    async def renew(self, node: NodeKey, following: NodeKey | None = None) -> NodeKey:
        """The next key of a node, after a renewal over its link."""
        following = following or NodeKey()
        issued = await self.ask(Renew(following.request), over=node)
        assert isinstance(issued, Issued), issued
        following.issued = issued
        return following

    def connect(self, node: NodeKey) -> None:
        self.generations.examine("n1", node.peer())
        self.generations.authenticated("n1", node.peer())

    async def refusal(self, request: Request, *, over: NodeKey | None = None) -> str:
        with audited() as lines:
            refused = await self.ask(request, over=over)
        assert isinstance(refused, JoinRefused), refused
        assert lines[-1][0] is Event.REFUSAL
        return refused.reason


def open_stream(link: Link, request: Request, kind: Kind | None = None) -> Stream:
    kinds = {AskCa: Kind.CA, Join: Kind.JOIN, Renew: Kind.RENEW}
    return link.open(kind or kinds[type(request)], encode(request))


async def answer(stream: Stream) -> Answer:
    message = await stream.receive()
    assert message is not None, stream.status
    found = decode(message)
    assert await stream.receive() is None
    assert stream.status.ok
    return found  # type: ignore[return-value]  # a hub sends answers


@pytest.fixture
async def enrolling(tmp_path: Path) -> AsyncIterator[EnrollingHub]:
    made = EnrollingHub(tmp_path)
    yield made
    for link in made.links:
        link.lost("the test is over")


# -------------------- joining --------------------


async def test_a_node_joins_with_a_token(audit_lines: list[Line], enrolling: EnrollingHub) -> None:
    node = await enrolling.join(await enrolling.token())
    assert (node.issued.generation, node.issued.renew_grace_s) == (1, int(GRACE_S))
    assert (node.issued.hubs, node.issued.joins) == (("wss://hub.example:7000",), ("wss://hub.example:7443",))
    assert node.issued.ca == enrolling.authority.path.read_bytes()
    assert node.peer().key == node.fingerprint
    assert audit_lines[-1][0] is Event.JOIN
    enrolling.connect(node)


async def test_a_certificate_names_the_drivers_of_the_token_and_so_does_each_renewal(enrolling: EnrollingHub) -> None:
    node = await enrolling.join(await enrolling.token(drivers=("a.csi", "b.csi")))
    assert rights_in(node.peer().uris) == ("a.csi", "b.csi")
    enrolling.connect(node)
    renewed = await enrolling.renew(node)
    assert rights_in(renewed.peer().uris) == ("a.csi", "b.csi")
    late = await enrolling.ask(renewed.late_renewal(following := NodeKey()))
    assert isinstance(late, Issued)
    following.issued = late
    assert rights_in(following.peer().uris) == ("a.csi", "b.csi")
    enrolling.connect(await enrolling.join(await enrolling.token(drivers=("a.csi",), replace=True)))


async def test_a_token_serves_as_many_nodes_as_it_says_and_tells_operators_who_they_are(
    enrolling: EnrollingHub, caplog: pytest.LogCaptureFixture
) -> None:
    token = await enrolling.token("n*", uses=2)
    await enrolling.join(token, "n1")
    first = timestamp(enrolling.now)
    enrolling.now += 1.0
    await enrolling.join(token, "n2")
    refused = await enrolling.ask(Join(*token, "n3", NodeKey().request))
    assert isinstance(refused, JoinRefused)
    assert (refused.reason, STRANGER.address in refused.message) == ("token", False)
    joined = f"n2 at {timestamp(enrolling.now)} from {STRANGER.address}, n1 at {first} from {STRANGER.address}"
    assert caplog.messages[-1].endswith(f"; joined with it: {joined}")
    (status,) = await enrolling.tokens.describe()
    assert [(it.node, timestamp(it.at.timestamp()), it.address) for it in status.joins] == [
        ("n2", timestamp(enrolling.now), STRANGER.address),
        ("n1", first, STRANGER.address),
    ]


async def test_a_repeated_request_gets_the_same_certificate_and_costs_no_second_use(enrolling: EnrollingHub) -> None:
    """The first answer may have been lost."""
    token, key = await enrolling.token(), NodeKey()
    first = (await enrolling.join(token, key=key)).issued
    enrolling.now += 600.0  # the token has ended meanwhile
    assert (await enrolling.join(token, key=key)).issued == first
    assert await enrolling.refusal(Join(*token, "n1", NodeKey().request)) == "token", "another key is another node"


async def test_only_a_token_that_replaces_lets_a_machine_join_as_a_node_that_exists(
    enrolling: EnrollingHub, caplog: pytest.LogCaptureFixture
) -> None:
    early = await enrolling.token("n1")
    old = await enrolling.joined()
    refused = await enrolling.ask(Join(*early, "n1", NodeKey().request))
    assert isinstance(refused, JoinRefused)
    assert refused.message.endswith("csi-bridge token create --node n1 --replace")
    assert f"(it joined at {timestamp(enrolling.now)} from {STRANGER.address})" in caplog.messages[-1]
    new = await enrolling.join(await enrolling.token("n1", replace=True), "n1")
    enrolling.connect(new)
    assert not enrolling.generations.counts("n1", old.peer()), "the old machine's certificate is void"


@pytest.mark.parametrize("name", ["", "N1", "../../etc", "a/b", "n1\x1b[2J", "n" * 254, "-n", "a..b"])
async def test_a_node_joins_only_under_a_name_of_kubernetes(enrolling: EnrollingHub, name: str) -> None:
    assert await enrolling.refusal(Join(*await enrolling.token("*"), name, NodeKey().request)) == "request"


async def test_a_stranger_gets_no_more_log_lines_by_the_many_addresses_of_its_network(
    enrolling: EnrollingHub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        monkeypatch.setitem(globals(), "STRANGER", Address(f"2001:db8::{number}:7000", local=False))
        assert await enrolling.refusal(Join("0123", b"x" * 32, "n1", NodeKey().request)) == "token"
    refused = [it for it in caplog.records if "no certificate for" in it.msg or it.msg == "refusal"]
    assert {it.__dict__["peer"] for it in refused} == {"2001:db8::/64"}


async def test_a_request_that_is_none_costs_no_use(enrolling: EnrollingHub) -> None:
    token = await enrolling.token()
    assert await enrolling.refusal(Join(*token, "n1", b"noise")) == "request"
    assert enrolling.store.tokens[token[0]].used == 0


async def test_a_disk_that_takes_nothing_costs_no_use_and_the_node_asks_again(enrolling: EnrollingHub) -> None:
    token = await enrolling.token()
    enrolling.records.room = 0
    answer = await enrolling.ask(Join(*token, "n1", NodeKey().request))
    assert isinstance(answer, JoinRefused)
    assert (answer.reason, answer.retry_s > 0) == ("busy", True)
    assert (enrolling.store.tokens[token[0]].used, enrolling.store.certificates) == (0, {})


async def test_a_hub_that_died_between_the_use_and_the_certificate_gives_the_same_request_its_certificate(
    enrolling: EnrollingHub,
) -> None:
    token, key = await enrolling.token("n*"), NodeKey()
    enrolling.records.room = 1
    assert await enrolling.refusal(Join(*token, "n1", key.request)) == "busy"
    enrolling.records.room = None
    enrolling.start()
    assert (enrolling.store.tokens[token[0]].used, enrolling.store.certificates) == (1, {})
    assert await enrolling.refusal(Join(*token, "n1", NodeKey().request)) == "token"
    assert await enrolling.refusal(Join(*token, "n2", key.request)) == "token"
    enrolling.now += 600.0  # the token has ended meanwhile
    node = await enrolling.join(token, key=key)
    assert enrolling.store.tokens[token[0]].used == 1
    enrolling.connect(node)
    for _ in range(2):  # its own certificate is void then, and the token is worth nothing
        await enrolling.joined(replace=True)
        assert await enrolling.refusal(Join(*token, "n1", key.request)) == "token"


async def test_a_nodes_record_stays_small(enrolling: EnrollingHub) -> None:
    drivers = ("csi.vendor-of-storage.example", "nfs.csi.k8s.io")
    node = await enrolling.join(await enrolling.token(drivers=drivers))
    for _ in range(8):
        enrolling.connect(node)
        node = await enrolling.renew(node)
    enrolling.connect(node)
    token = await enrolling.token(drivers=drivers, uses=9, replace=True)
    for _ in range(9):
        await enrolling.join(token)
    (body,) = (body for (kind, _), body in enrolling.records.kept.items() if kind == "certificates")
    assert len(body) < 6_144


# -------------------- renewing over the link --------------------


async def test_a_lost_answer_is_repeated_and_signed_anew_when_the_certificate_is_about_to_end(
    enrolling: EnrollingHub,
) -> None:
    node, following = await enrolling.joined(), NodeKey()
    first = (await enrolling.renew(node, following)).issued
    assert (await enrolling.renew(node, following)).issued == first
    before = following.peer()
    enrolling.now += TTL_S - 10
    again = await enrolling.renew(node, following)
    assert again.issued.generation == 2
    assert again.peer().not_after > before.not_after + TTL_S - 20
    enrolling.connect(again)


async def test_the_next_key_must_be_new(enrolling: EnrollingHub) -> None:
    first = await enrolling.joined()
    assert await enrolling.refusal(Renew(first.request), over=first) == "request"
    second = await enrolling.renew(first)
    enrolling.connect(second)
    assert await enrolling.refusal(Renew(second.request), over=second) == "request"


async def test_a_renewal_over_the_old_link_after_the_next_key_is_in_use_is_refused_without_an_alarm(
    audit_lines: list[Line], enrolling: EnrollingHub
) -> None:
    first = await enrolling.joined()
    second = await enrolling.renew(first)
    enrolling.connect(second)
    assert await enrolling.refusal(Renew(NodeKey().request), over=first) == "copy"
    assert Event.COPY not in [event for event, *_ in audit_lines]
    enrolling.connect(second)


async def test_a_certificate_from_files_is_not_renewed(enrolling: EnrollingHub) -> None:
    pem = enrolling.authority.edge("n1")
    node = NodeKey(issued=Issued(pem.cert.read_bytes(), b"", 0, 0, (), ()))
    assert await enrolling.refusal(Renew(NodeKey().request), over=node) == "certificate"


async def test_a_node_that_asks_again_and_again_is_told_to_wait(enrolling: EnrollingHub) -> None:
    node = await enrolling.joined()
    link = await enrolling.dial(node)
    answers = [await answer(open_stream(link, Renew(NodeKey().request))) for _ in range(8)]
    last = answers[-1]
    assert isinstance(last, JoinRefused)
    assert (last.reason, last.retry_s) == ("busy", 10)


# -------------------- the hub's clock --------------------

DAY_S = 86_400.0


async def test_after_the_hubs_clock_was_ahead_a_pending_certificate_is_signed_anew(enrolling: EnrollingHub) -> None:
    """The first one begins in the future: TLS would refuse it until then."""
    node, following = await enrolling.joined(), NodeKey()
    enrolling.now += DAY_S
    ahead = (await enrolling.renew(node, following)).peer()
    enrolling.now -= DAY_S
    assert ahead.not_before > enrolling.now
    again = await enrolling.renew(node, following)
    assert again.peer().not_before <= enrolling.now
    assert again.issued.generation == 2


async def test_after_the_hubs_clock_was_ahead_a_repeated_join_gets_a_good_certificate_without_another_use(
    enrolling: EnrollingHub,
) -> None:
    enrolling.now += DAY_S
    token, key = await enrolling.token(), NodeKey()
    await enrolling.join(token, key=key)
    enrolling.now -= DAY_S
    assert (await enrolling.join(token, key=key)).peer().not_before <= enrolling.now
    assert enrolling.store.tokens[token[0]].used == 1


async def test_a_token_from_a_clock_that_was_ahead_does_not_live_for_a_year(enrolling: EnrollingHub) -> None:
    enrolling.now += 365 * DAY_S
    token = await enrolling.token()
    enrolling.now -= 365 * DAY_S
    assert await enrolling.refusal(Join(*token, "n1", NodeKey().request)) == "token"
    await enrolling.join(await enrolling.token())


@pytest.mark.parametrize(
    ("years", "why"), [(-30, "not valid yet by the hub's clock"), (30, "ended by the hub's clock")]
)
async def test_a_hub_whose_clock_is_outside_of_its_cas_life_says_so(
    enrolling: EnrollingHub, years: int, why: str
) -> None:
    enrolling.now += years * 365 * DAY_S
    refused = await enrolling.ask(Join(*await enrolling.token(), "n1", NodeKey().request))
    assert isinstance(refused, JoinRefused)
    assert why in refused.message


# -------------------- renewing at the join listener --------------------


async def test_after_the_grace_the_node_has_to_join_again(enrolling: EnrollingHub) -> None:
    node = await enrolling.joined()
    enrolling.now += TTL_S + GRACE_S + 10
    assert await enrolling.refusal(node.late_renewal(NodeKey())) == "certificate"


async def test_a_denied_certificate_is_not_renewed(enrolling: EnrollingHub) -> None:
    node = await enrolling.joined()
    await enrolling.trust.denials.deny(Deny(subject=f"serial={node.peer().serial:x}"), "uid 0")
    assert await enrolling.refusal(node.late_renewal(NodeKey())) == "denied"


async def test_a_request_that_the_void_key_has_not_signed_is_no_copy(
    audit_lines: list[Line], enrolling: EnrollingHub
) -> None:
    first = await enrolling.joined()
    second = await enrolling.renew(first)
    enrolling.connect(second)
    assert await enrolling.refusal(first.late_renewal(NodeKey(), signer=NodeKey())) == "request"
    assert Event.COPY not in [event for event, *_ in audit_lines]


async def test_a_hub_restored_from_a_backup_renews_what_it_has_no_record_of(enrolling: EnrollingHub) -> None:
    await enrolling.joined()
    later = NodeKey()
    signed = enrolling.signer.sign(later.request, node="n1", generation=9, rights=())
    later.issued = Issued(signed.pem.encode(), b"", 9, 0, (), ())
    issued = await enrolling.ask(later.late_renewal(NodeKey()))
    assert isinstance(issued, Issued)
    assert issued.generation == 10


# -------------------- strangers --------------------


@pytest.mark.parametrize("noise", [b"", b"\xff" * 100, encode(JoinRefused("busy", "later", 5)), encode(AskCa())])
async def test_what_is_no_join_is_refused_in_a_sentence(
    enrolling: EnrollingHub, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    link = await enrolling.dial()
    stream = link.open(Kind.JOIN, noise)
    assert await stream.receive() is None
    assert stream.status.code == Code.UNIMPLEMENTED
    assert "Traceback" not in caplog.text


async def test_one_address_does_not_keep_the_others_out(
    enrolling: EnrollingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_links, "MOST", 4)
    flooders = [await enrolling.dial() for _ in range(4)]
    at_hub, other = link_pair(
        enrolling.strangers,
        Peer(accepts=False),
        introduce("edge", "n2", instance="i"),
        identity=Address("10.0.0.5:1", local=False),
    )
    enrolling.links.append(at_hub)
    await settle()
    assert await answer(open_stream(other, AskCa()))
    assert flooders[0].state.name == "CLOSED"
    assert await answer(open_stream(flooders[1], AskCa()))


async def test_a_link_that_stays_is_ended_after_its_time(
    enrolling: EnrollingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_links, "LIFE_S", 0.0)
    link = await enrolling.dial()
    assert link.state.name == "CLOSED"


async def test_a_hub_that_stops_takes_no_more_joins(enrolling: EnrollingHub) -> None:
    enrolling.strangers.drain()
    peer = Peer(accepts=False)
    link_pair(enrolling.strangers, peer, introduce("edge", "n1", instance="i"), identity=STRANGER)
    await settle()
    assert peer.ends[0][0] == "draining"
