"""The handshakes: a listener's connections with peers that it has not admitted yet.

Rules:

* They have a limit of their own. So strangers, who never get further, take no place of an admitted peer.
* Below the limit, an address may have any number: a whole fleet may come from behind one NAT.
* Above the limit, the address with the most handshakes loses one. It is the oldest if that has had its share of time,
  else the newest, because a handshake that has begun costs the hub more than one that has not. So an address keeps its
  place against one that floods, and a fleet that dials all at once gets in a part at a time. TCP stacks recycle
  half-open connections in the same way (RFC 4987, 3.4).
"""

import functools
import ipaddress
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Connection = TypeVar("Connection")

_IPV6_SITE_BITS: Final = 64  # a host with IPv6 has a whole /64 (RFC 7421), so its addresses count as one


class Handshakes(Generic[Connection]):
    """The connections under way, grouped by their address."""

    def __init__(self, most: int, *, share_s: float) -> None:
        self.most = most
        self._share_s = share_s
        self._groups: dict[str, dict[Connection, float]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._largest = 0
        self._groups_of: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._groups_of)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._groups_of)

    def add(self, connection: Connection, address: str, now: float) -> Connection | None:
        """Add a connection. Above the limit, remove and return one, which may be this one, for the caller to end."""
        group = self._groups.setdefault(address, {})
        group[connection] = now
        self._groups_of[connection] = address
        self._resized(address, len(group) - 1, len(group))
        if len(self) <= self.most:
            return None
        surplus = self._surplus(address, now)
        self.remove(surplus)
        return surplus

    def remove(self, connection: Connection) -> None:
        """The peer was admitted, or the connection has ended. Does nothing if it was removed before."""
        address = self._groups_of.pop(connection, None)
        if address is None:
            return
        group = self._groups[address]
        del group[connection]
        if not group:
            del self._groups[address]
        self._resized(address, len(group) + 1, len(group))

    def _surplus(self, newest: str, now: float) -> Connection:
        largest = self._by_size[self._largest]
        address = newest if newest in largest else next(iter(largest))
        group = self._groups[address]
        oldest = next(iter(group))
        return oldest if now - group[oldest] >= self._share_s else next(reversed(group))

    def _resized(self, address: str, before: int, after: int) -> None:
        if before:
            peers = self._by_size[before]
            del peers[address]
            if not peers:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[address] = None
        self._largest = max(self._largest, after)
        if self._largest not in self._by_size:
            self._largest = after  # it has changed by one, and was alone


@functools.lru_cache(maxsize=1_024)
def group_of(host: str) -> str:
    """The group that a host's handshakes and log lines count for: its IPv4 address, or its IPv6 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
