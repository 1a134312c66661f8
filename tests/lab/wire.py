"""A wire: two networks with a bad line of packets between them, so that TCP itself suffers.

    with Wire(delay="50ms", loss=0.01) as wire:
        with wire.at("cloud"):
            ...  # start the hub: it listens on CLOUD
        with wire.at("edge"):
            ...  # start the agent: it dials CLOUD
        wire.command("cut")

Each side is a network namespace with a TUN device. A process of its own (this file) carries the packets: it delays them
and loses some. The rate is the kernel's (tc-tbf), with a queue as a modem has. A gateway is a third namespace, beside
the edge: a NAT with the kernel's connection tracking, or the place of a proxy, past which nothing comes. It takes root.
"""

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import itertools
import math
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

from common.parsers import duration

CLOUD, GATEWAY = "10.77.0.1", "10.77.1.1"
_EDGE, _BEHIND_GATEWAY = "10.77.0.2", "10.77.1.2"

_MTU = 1500
_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF = 0x4004_54CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_QUEUE_PACKETS = 1000
_TCP, _SYN, _SYN_ACK = 6, 0x02, 0x12
_OURS = "/proc/self/fd/"


class Wire:
    """The two networks and their line.

    Args:
        delay: of each packet, one way.
        loss: the part of the packets that is lost.
        rate: of each direction, for tc(8); empty: as fast as it goes.
        nat: the edge is behind a NAT that forgets a silent connection after this many seconds; 0: no NAT.
        closed: the edge reaches a side called `gateway`, and nothing beyond it.
        seed: of the losses.
    """

    def __init__(
        self,
        *,
        delay: str = "0s",
        loss: float = 0.0,
        rate: str = "",
        nat: int = 0,
        closed: bool = False,
        seed: int = 1,
    ) -> None:
        self._delay, self._loss, self._rate, self._seed = delay, loss, rate, seed
        self._nat, self._has_gateway = nat, bool(nat) or closed
        self._spaces: dict[str, int] = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._opened:
            far = "gateway" if self._has_gateway else "edge"
            ends = [self._end("cloud", CLOUD, _EDGE), self._end(far, _EDGE, CLOUD)]
            if self._has_gateway:
                self._add_gateway()
            arguments = [f"--delay={self._delay}", f"--loss={self._loss}", f"--seed={self._seed}"]
            self._relay = self._opened.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, *map(str, ends), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=ends,
                )
            )
            for end in ends:
                os.close(end)
            self._opened.callback(self._relay.kill)
            self.command("stats")
            self._opened = self._opened.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def at(self, side: str) -> Iterator[None]:
        """While this lasts, this thread and what it starts are in the network of a side: cloud, edge or gateway."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(self._spaces[side])
            yield
        finally:
            _enter(before)
            os.close(before)

    def command(self, line: str) -> dict[str, int]:
        """Tell the relay something. Returns what each side has sent so far, in packets and bytes, and packets lost.

        * `cut`: every packet is lost; `stall`: packets wait, as many as a queue holds; `heal`: they go on.
        * `rebind`: the same, but of the TCP connections that were there before nothing passes, and nobody is told: the
          line has another address now, as a mobile one after a gap.
        * `weather cut 5 heal 25`: so many seconds of each, again and again, until another command.
        * `stats`: nothing changes.
        """
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        self._relay.stdin.write(line + "\n")
        self._relay.stdin.flush()
        names = ("packets_up", "bytes_up", "packets_down", "bytes_down", "lost")
        return dict(zip(names, map(int, self._relay.stdout.readline().split()), strict=True))

    def _end(self, space: str, address: str, peer: str) -> int:
        """A new network with one end of the line. Returns the descriptor of its TUN device."""
        self._new(space)
        with self.at(space):
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", b"line", _IFF_TUN | _IFF_NO_PI))
            _run("ip", "address", "add", address, "peer", peer, "dev", "line")
            _run("ip", "link", "set", "line", "up", "mtu", str(_MTU), "txqueuelen", str(_QUEUE_PACKETS))
            if self._rate:
                _run(*f"tc qdisc add dev line root tbf rate {self._rate} burst 5kb latency 2s".split())
        return end

    def _new(self, space: str) -> None:
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _check(_libc.unshare(_CLONE_NEWNET))
            self._spaces[space] = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            self._opened.callback(os.close, self._spaces[space])
            _run("ip", "link", "set", "lo", "up")
        finally:
            _enter(before)
            os.close(before)

    def _add_gateway(self) -> None:
        self._new("edge")
        with self.at("gateway"):
            _run(*["ip", "link", "add", "inside", "type", "veth", "peer", "name", "out"])
            _run("ip", "link", "set", "out", "netns", f"{_OURS}{self._spaces['edge']}")
            _run("ip", "address", "add", f"{GATEWAY}/24", "dev", "inside")
            _run("ip", "link", "set", "inside", "up")
            if self._nat:
                self._let_it_translate()
        with self.at("edge"):
            _run("ip", "address", "add", f"{_BEHIND_GATEWAY}/24", "dev", "out")
            _run("ip", "link", "set", "out", "up")
            _run("ip", "route", "add", "default", "via", GATEWAY)

    def _let_it_translate(self) -> None:
        for setting, value in {
            "ipv4/ip_forward": 1,
            "netfilter/nf_conntrack_tcp_timeout_established": self._nat,
            "netfilter/nf_conntrack_tcp_loose": 0,
        }.items():
            Path("/proc/sys/net", setting).write_text(str(value))
        _run(*["iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "line", "-j", "MASQUERADE"])
        _run(*["iptables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"])


_libc = ctypes.CDLL(None, use_errno=True)


def _enter(space: int) -> None:
    _check(_libc.setns(space, _CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _run(*command: str) -> None:
    passed = [int(word.removeprefix(_OURS)) for word in command if word.startswith(_OURS)]
    subprocess.run(command, check=True, pass_fds=passed)


class _Relay:
    """Carries packets between two TUN devices."""

    def __init__(self, ends: tuple[int, int], *, delay_s: float, loss: float, seed: int) -> None:
        self._ends = ends
        self._delay_s, self._loss, self._random = delay_s, loss, random.Random(seed)
        self._state = "heal"
        self._forgets = False
        self._connections: set[frozenset[bytes]] = set()
        self._weather: Iterator[tuple[str, float]] = iter(())
        self._changes_at = math.inf
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._counts = [0, 0, 0, 0, 0]

    def run(self) -> None:
        cloud, edge = self._ends
        with selectors.DefaultSelector() as selector:
            selector.register(cloud, selectors.EVENT_READ, edge)
            selector.register(edge, selectors.EVENT_READ, cloud)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._wait_s()):
                    if key.data is not None:
                        self._take(key.fd, key.data)
                    elif line := sys.stdin.readline():
                        self._obey(line.split())
                        sys.stdout.write(" ".join(map(str, self._counts)) + "\n")
                        sys.stdout.flush()
                    else:
                        return
                if time.monotonic() >= self._changes_at:
                    self._change()
                self._deliver()

    def _wait_s(self) -> float | None:
        due = self._waiting[0][0] if self._waiting and self._state != "stall" else math.inf
        due = min(due, self._changes_at)
        return max(due - time.monotonic(), 0.0) if due < math.inf else None

    def _obey(self, words: list[str]) -> None:
        if words[0] == "weather":
            self._weather = itertools.cycle(zip(words[1::2], map(float, words[2::2]), strict=True))
            self._change()
        elif words[0] != "stats":
            self._changes_at = math.inf
            self._enter(words[0])

    def _change(self) -> None:
        state, seconds = next(self._weather)
        self._changes_at = time.monotonic() + seconds
        self._enter(state)

    def _enter(self, state: str) -> None:
        self._state = state
        if state == "rebind":
            self._forgets = True
            self._connections.clear()

    def _take(self, source: int, target: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                packet = os.read(source, 2 * _MTU)
                way = 0 if source == self._ends[1] else 2
                self._counts[way] += 1
                self._counts[way + 1] += len(packet)
                is_full = self._state == "stall" and len(self._waiting) >= _QUEUE_PACKETS
                if self._state == "cut" or is_full or self._is_forgotten(packet) or self._random.random() < self._loss:
                    self._counts[4] += 1
                    continue
                self._number += 1
                heapq.heappush(self._waiting, (time.monotonic() + self._delay_s, self._number, target, packet))

    def _is_forgotten(self, packet: bytes) -> bool:
        """Whether it belongs to a TCP connection that has begun before the latest `rebind`."""
        if not self._forgets or packet[9] != _TCP:
            return False
        head = 4 * (packet[0] & 0x0F)
        ends = frozenset((packet[12:16] + packet[head : head + 2], packet[16:20] + packet[head + 2 : head + 4]))
        if packet[head + 13] & _SYN_ACK == _SYN:
            self._connections.add(ends)
        return ends not in self._connections

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now and self._state != "stall":
            _, _, target, packet = heapq.heappop(self._waiting)
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(target, packet)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ends", type=int, nargs=2)
    parser.add_argument("--delay", type=duration)
    parser.add_argument("--loss", type=float)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    _Relay(tuple(given.ends), delay_s=given.delay, loss=given.loss, seed=given.seed).run()
