"""A hub that waits for its Lease: whom it accepts, what it refuses, and how its links become the leader's."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from cloud.standby import Standby
from common.csi.reports import encode_reports
from common.messages import Hello, Kind
from common.net.peer import Peer as Address
from common.observe.version import introduce
from common.operator_orders import Deny
from common.pages.hub import HubStatus
from common.session.link import Link
from common.status import Code, Origin, Status
from tests.kit.hub_in_memory import CREATE, DRIVER, NETWORK, SOCKET, Hub, called, report, running
from tests.kit.linked import Peer, cut, link_pair
from tests.kit.shown_peer import ShownPeer
from tests.kit.waiting import settle

WHY = "this hub waits for the Lease ns/csi-bridge-hub: hub-0_5f_a"


class Lease:
    """The Lease, as another hub holds it."""

    is_held = False
    why_not, trouble = WHY, ""
    holder = "hub-0_5f_a", "2026-11-21T09:12:03.000000Z"


class Site:
    """A hub in memory that waits, and the links of its peers at their own ends."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.standby = Standby(hub.settings, None, hub.metrics, cast("Any", Lease()))
        self.standby.listen = _nothing  # type: ignore[method-assign]  # no sockets here
        self.said: dict[Link, list[int]] = {}

    async def come(self, hello: Hello, address: Address = NETWORK) -> Link:
        """The link of one who came, which notes the epochs of the hub's hellos."""

        class Noting(Peer):
            def greeted(_peer, link: Link) -> None:  # noqa: N805  # `self` is the site
                self.said.setdefault(link, []).append(link.peer.epoch)

        at_hub, at_peer = link_pair(self.standby, Noting(accepts=False), hello, identity=address)
        self.hub.links.append(at_hub)
        await settle()
        return at_peer

    async def lead(self) -> None:
        await self.standby.lead(self.hub.hub, self.hub.pages.pages())
        await settle()

    def status(self) -> HubStatus:
        return self.standby._status()


async def _nothing() -> None:
    pass


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running(Hub(tmp_path)) as hub:
        yield Site(hub)


def edge(name: str = "n1", boot: int = 1) -> Hello:
    return introduce("edge", name, instance=f"i-{name}", boot=boot)


async def test_a_standby_accepts_peers_with_epoch_0_and_refuses_streams_on_its_host_in_the_name_of_the_leader(
    site: Site,
) -> None:
    await site.come(edge())
    proxy = await site.come(introduce("driver", DRIVER, instance="p"), SOCKET)
    operator = await site.come(introduce("operator", "", instance="o"), SOCKET)
    why = f"this hub is a standby, and only the hub that leads takes calls and orders: {WHY}"
    refused = Status(Code.UNAVAILABLE, why, Origin.HUB)
    for link, kind in ((proxy, Kind.CALL), (operator, Kind.ORDER)):
        stream = link.open(kind, b"x", subject=DRIVER, method=CREATE)
        assert await stream.receive() is None
        assert stream.status == refused
    assert list(site.said.values()) == [[0]] * 3
    told = site.status()
    assert (told.leads, told.leader, told.links, told.epoch) == (False, "hub-0_5f_a", 3, 0)


async def test_a_link_over_the_network_ends_with_the_first_stream_that_its_peer_opens_at_a_standby(site: Site) -> None:
    """One node may have 64 links there, on each of which unread streams keep 64 MiB."""
    agent, other = await site.come(edge()), await site.come(edge("n2"))
    agent.open(Kind.REPORT, b"x")
    assert await agent.wait_closed() == ("protocol-error", "Open: from a standby")
    assert (other.over, site.status().links) == (False, 1)


async def test_a_standby_checks_the_role_of_a_peer(site: Site) -> None:
    stranger = await site.come(introduce("gardener", "n1", instance="i"))
    assert stranger.over
    (told,) = site.status().refused
    assert (told.role, told.reason) == ("gardener", "role")


async def test_lines_of_strangers_at_a_standby_count_for_their_address(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    at_hub, _ = link_pair(site.standby, Peer(accepts=False), identity=NETWORK)
    at_hub.receive(b"\xff", 0.0)
    (line,) = caplog.records
    assert ("no hello from 10.0.0.1:7" in line.message, vars(line)["peer"]) == (True, "10.0.0.1")


async def test_a_thief_of_a_nodes_identity_takes_no_link_of_it_at_a_standby(site: Site) -> None:
    """The standby has read no denials, and does not know which certificate of the node is the last one."""
    agent = await site.come(edge(), ShownPeer("10.0.0.1:7", local=False, key="its own", certificate=b"1"))
    thief = await site.come(edge(boot=2), ShownPeer("10.0.0.9:7", local=False, key="another", certificate=b"2"))
    assert not agent.over
    await site.lead()
    assert ((await thief.wait_closed())[0], agent.over) == ("conflict", False)


async def test_links_of_a_standby_are_those_of_the_leader_from_then_on_and_go_by_it_no_more(site: Site) -> None:
    agent, proxy = await site.come(edge()), await site.come(introduce("driver", DRIVER, instance="p"))
    await site.lead()
    epoch = site.hub.incarnation.epoch
    assert (site.said[agent], site.said[proxy]) == ([0, epoch], [0, epoch])
    assert agent.peer.mark
    assert all(link._handler is site.hub.hub for link in site.hub.links)
    agent.open(Kind.REPORT, encode_reports([report()]))
    await settle()
    assert (await called(proxy, CREATE)).ok
    later = await site.come(edge("n2"))
    assert (site.said[later], site.hub.links[-1]._handler) == ([epoch], site.hub.hub)
    cut(*site.hub.links)
    assert not site.hub.nodes.is_connected("n1")


async def test_a_peer_that_the_leader_does_not_admit_gets_a_goodbye_when_it_begins_to_lead(site: Site) -> None:
    agent, other = await site.come(edge()), await site.come(edge("n2"))
    await site.hub.trust.denials.deny(Deny(subject="n1", why="stolen"), "")
    assert not agent.over
    await site.lead()
    assert (await agent.wait_closed(), other.over) == (("denied", "the hub denies edge n1: ask its operator"), False)
    assert not site.hub.nodes.is_connected("n1")


async def test_a_bug_that_one_link_meets_keeps_no_hub_from_leading_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = await site.come(edge()), await site.come(edge("n2"))
    connect = site.hub.nodes.connect
    monkeypatch.setattr(
        site.hub.nodes, "connect", lambda hello, link: connect(hello, link) if hello.name != "n1" else 1 // 0
    )
    await site.lead()
    assert ((await broken.wait_closed())[0], other.over) == ("failed", False)


async def test_a_process_that_comes_again_has_one_link_and_the_leader_gets_the_last_one(site: Site) -> None:
    former = [await site.come(edge()) for _ in range(6)]
    last = await site.come(edge(boot=2))
    assert [link.over for link in former] == [True] * 6
    cut(site.hub.links[0])
    assert site.status().links == 1
    await site.lead()
    assert (last.over, site.hub.nodes.is_connected("n1")) == (False, True)


async def test_a_hub_that_rises_above_an_epoch_that_an_agent_knows_says_so_on_all_links(site: Site) -> None:
    """The agent refuses a hub with a lower epoch, so after `trust` the hub must have a higher one."""
    other, before = await site.come(edge("n2")), site.hub.incarnation.epoch
    await site.lead()
    known = before + 1_000
    await site.come(edge())
    site.hub.incarnation.meet("n1", f"{'0' * 16} {known} ")
    assert site.hub.incarnation.loss
    await site.hub.order("trust")
    await settle()
    epoch = site.hub.incarnation.epoch
    assert (epoch > known, site.said[other]) == (True, [0, before, epoch])
    assert site.hub.incarnation.meet("n1", f"{'0' * 16} {known} ") == other.peer.mark
    await site.hub.order("trust")
    assert site.hub.incarnation.epoch == epoch
