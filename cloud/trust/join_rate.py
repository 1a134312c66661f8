"""The join rate: how many connections a second the join listener takes, and how many requests one node may make.

Rules:

* A TLS handshake costs the hub about 2 ms, and anybody can make it do one: the rate bounds this to a tenth of a core.
* While half of the burst is left, an address may take all: a whole fleet may come from behind one NAT.
* Below that, each address has a small rate of its own, so one that floods leaves room for the others.
"""

from collections import OrderedDict
from typing import Final

from common.observe.token_bucket import Bucket

CONNECTIONS_A_SECOND: Final = 50.0  # 10,000 nodes whose certificates ended in a long outage are back within 4 minutes
BURST: Final = 200.0
OF_ADDRESS_A_SECOND: Final = 2.0  # while less than half of the burst is left
BURST_OF_ADDRESS: Final = 10.0

# They take 3 MB. Beyond, the hub forgets the one that it has not heard from for longest.
MOST_ADDRESSES: Final = 10_000


class JoinRate:
    """The rate of one join listener."""

    def __init__(self, now: float) -> None:
        self._all = Bucket(CONNECTIONS_A_SECOND, BURST, now)
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()

    def admits(self, address: str, now: float) -> bool:
        own = self._addresses.pop(address, None) or Bucket(OF_ADDRESS_A_SECOND, BURST_OF_ADDRESS, now)
        self._addresses[address] = own
        if len(self._addresses) > MOST_ADDRESSES:
            self._addresses.popitem(last=False)
        took = own.take(now)  # also while the address may take all: its own rate shall not be full when that ends
        if not took and self._all.count(now) < BURST / 2:
            return False
        return self._all.take(now)
