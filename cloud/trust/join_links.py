"""The join links: the links of the join listener, whose peers have shown no certificate.

Rules:

* A link lives `LIFE_S` at most: a node needs it for one or two requests.
* A link serves `MOST_REQUESTS` requests: a signature costs the hub more than its bytes cost a stranger, and the rate
  of the join listener counts connections.
* When there are `MOST` links, the address with the most loses its oldest one: one address cannot keep others out.
* The peer's name is only its word: nothing here believes it.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from cloud.trust.issuance import Issuance
from common.errors import HandshakeRefused, not_carried, shutting_down
from common.links.handshakes import group_of
from common.messages import Reason
from common.net.enrolment import MAX_REQUEST_BYTES
from common.observe.logs import of_peer
from common.session.limits import Limits
from common.session.link import Link, LinkHandler, Stream
from common.status import Origin

log = logging.getLogger("csi_bridge.hub.enrolment")

LIFE_S: Final = 30.0  # A request takes milliseconds at the hub, and some seconds on a slow line
MOST: Final = 256  # at 50 connections a second each may take five seconds
MOST_HANDSHAKES: Final = 256
MOST_REQUESTS: Final = 4  # On one link. An agent makes one.

LIMITS: Final = Limits(
    max_message_bytes=MAX_REQUEST_BYTES,
    stream_window_bytes=131_072,
    session_window_bytes=131_072,
    max_streams=2,
    hello_timeout_s=10.0,
)


_EndTimer = Callable[[], None]


class JoinLinks(LinkHandler):
    """Handles the links of a join listener."""

    origin = Origin.HUB

    def __init__(self, issuance: Issuance) -> None:
        self._issuance = issuance
        self._links: dict[Link, _EndTimer] = {}  # each with the end of its timer; the oldest first
        self._requests: WeakKeyDictionary[Link, int] = WeakKeyDictionary()  # by link: how many it has made
        self._draining = False

    def drain(self) -> None:
        """Refuse new links and requests, and end the links without a request under way."""
        self._draining = True
        for link in list(self._links):
            link.drain("the hub is shutting down")

    def greeted(self, link: Link) -> None:
        if self._draining:
            link.refuse(HandshakeRefused(Reason.DRAINING, "the hub is shutting down"))
        elif link.peer.role != "edge":
            link.refuse(HandshakeRefused(Reason.ROLE, "this port is for edge nodes that join: csi-bridge edge join"))
        else:
            if len(self._links) >= MOST:
                self._drop_one()
            timer = link.loop.call_later(LIFE_S, link.goodbye, Reason.DONE, "a join takes less time")
            self._links[link] = timer.cancel
            link.accept(1)

    async def serve(self, stream: Stream) -> None:
        if self._draining:
            raise shutting_down("hub")
        made = self._requests[stream.link] = self._requests.get(stream.link, 0) + 1
        if made > MOST_REQUESTS:
            stream.link.goodbye(Reason.FULL, f"more than {MOST_REQUESTS} requests on one link; dial again")
            raise not_carried("this request", "the link ends")
        await self._issuance.serve_stranger(stream)

    def refused(self, link: Link, _reason: str, message: str) -> None:
        address = link.peer_identity.address
        log.debug("no hello from %s at the join listener: %s", address, message)

    def closed(self, link: Link, _reason: str, _message: str) -> None:
        if link in self._links:
            self._links.pop(link)()

    def _drop_one(self) -> None:
        by_address: defaultdict[str, list[Link]] = defaultdict(list)
        for link in self._links:
            by_address[group_of(link.peer_identity.host)].append(link)
        address, links = max(by_address.items(), key=lambda item: len(item[1]))
        log.warning(
            "the join listener has %d links, and ends one of %s: it has %d", MOST, address, len(links),
            extra=of_peer(address),
        )  # fmt: skip
        self._links.pop(links[0])()
        links[0].goodbye(Reason.FULL, "too many nodes join at once; try again")
