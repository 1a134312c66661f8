"""The rows of the link laboratory: what the line between cloud and edge is like in each."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row."""

    title: str  # for the page
    wire: dict[str, Any] = field(default_factory=dict)  # the arguments of `Wire`
    weather: str = ""  # what becomes of the line again and again, as `Wire.command` takes it; empty: nothing
    journeys: int = 8  # how many volumes travel
    every_s: float = 0.0  # a journey begins so long after the one before; 0: when the one before is over
    pause_s: float = 0.0  # before each journey, while nothing passes but signs of life
    idle_s: float = 60.0  # how long nothing happens before, so that what passes idly is known
    limit_s: float = 300.0  # a journey that is not over within this time has not settled
    # The longest pause of a sidecar between two tries, as deploy/ has it where time is not made short.
    retry_max: str = "1m"
    proxied: bool = False  # the edge reaches the cloud through an HTTP proxy alone
    minutes: float = 4.0  # about how long a trial takes
    waits: bool = False  # it waits so much that it disturbs no other trial

    @property
    def is_cut(self) -> bool:
        """Whether the line is gone for longer than a call waits: csi-sanity, which never retries, is left out."""
        return "cut" in self.weather


ROWS = {
    "lan": Row(title="LAN: no delay, no loss"),
    "lte": Row(title="LTE: 50 ms each way, 1 % of the packets lost", wire={"delay": "50ms", "loss": 0.01}),
    "satellite": Row(title="satellite: 300 ms each way", wire={"delay": "300ms"}, minutes=12),
    "64k": Row(title="64 kbit/s: 20 ms each way", wire={"delay": "20ms", "rate": "64kbit"}, minutes=4),
    "stalls": Row(
        title="stalls: 20 ms each way, 2 % of the packets lost, nothing passes for 3 s of every 20 s",
        wire={"delay": "20ms", "loss": 0.02},
        weather="heal 17 stall 3",
        minutes=5,
    ),
    "cuts": Row(
        title="cuts: 20 ms each way, every packet lost for 5 s twice a minute",
        wire={"delay": "20ms"},
        weather="heal 25 cut 5",
        journeys=16,
        every_s=7.0,
        limit_s=900.0,
        minutes=6,
    ),
    "rebinds": Row(
        title="a mobile line: the same cuts, and another address after each, so that all connections are lost",
        wire={"delay": "20ms"},
        weather="rebind 25 cut 5",
        journeys=16,
        every_s=7.0,
        limit_s=900.0,
        minutes=10,
    ),
    "nat": Row(
        title="NAT: 10 ms each way, silent connections are forgotten after 30 s",
        wire={"delay": "10ms", "nat": 30},
        journeys=4,
        pause_s=40.0,
        minutes=5,
    ),
    "proxy": Row(
        title="proxy: 10 ms each way, HTTP CONNECT alone", wire={"delay": "10ms", "closed": True}, proxied=True
    ),
    "hourly": Row(
        title="five minutes an hour, ten times as fast: 330 s without a line, then 30 s with one of 50 ms each way",
        wire={"delay": "50ms"},
        weather="cut 330 heal 30",
        journeys=6,
        every_s=100.0,
        limit_s=1500.0,
        retry_max="6s",
        minutes=20,
        waits=True,
    ),
    "hourly-real": Row(
        title="five minutes an hour, in real time: 55 minutes without a line, then 5 with one of 50 ms each way",
        wire={"delay": "50ms"},
        weather="cut 3300 heal 300",
        journeys=5,
        every_s=600.0,
        limit_s=3700.0,
        minutes=65,
        waits=True,
    ),
}
"""By the name that replays one."""
