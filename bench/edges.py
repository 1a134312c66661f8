"""Edges: many idle agents in one process, for measuring a hub's cost of each.

Every edge is a real session over a real WebSocket, without drivers. With TLS each edge has a certificate of its own.

    python bench/edges.py --hub ws://127.0.0.1:7001 --count 2000

Prints a line of JSON when all are up, and another for each line on standard input; ends with standard input.
"""

import argparse
import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.errors import DialError, HandshakeRefused  # noqa: E402
from common.links.dial import dial  # noqa: E402
from common.links.uplink import Dialling, Uplink  # noqa: E402
from common.net.endpoint import Endpoint, hub_endpoint  # noqa: E402  # a script outside the package
from common.net.tls import TlsFiles, TlsIdentity  # noqa: E402
from common.observe.version import introduce  # noqa: E402
from common.session.limits import Limits  # noqa: E402
from common.session.link import Link, LinkHandler  # noqa: E402
from common.status import Origin  # noqa: E402

Identity = Callable[[int], TlsIdentity] | None


def _identity(ca: Path, directory: Path) -> Identity:
    """Return the certificates of each edge; the figures name the files."""

    def identity(number: int) -> TlsIdentity:
        name = directory / f"edge-e{number}"
        return TlsIdentity(TlsFiles(ca, name.with_suffix(".crt"), name.with_suffix(".key")), server=False)

    return identity


class Idle(LinkHandler):
    """An edge that only stays connected."""

    origin = Origin.EDGE

    def __init__(self) -> None:
        self._up: set[Link] = set()

    @property
    def up(self) -> int:
        """The number of links."""
        return len(self._up)

    def greeted(self, link: Link) -> None:
        """Count one more link."""
        self._up.add(link)

    def closed(self, link: Link, _reason: str, _message: str) -> None:
        """Count one link less, unless its dial was given up before the hub's hello came."""
        self._up.discard(link)


async def dial_all(hub: Endpoint, count: int, idle: Idle, tls: Identity, at_once: int) -> dict[str, object]:
    """Dial all edges, `at_once` at a time. Each dials again until it is up, as an agent would, but without waiting."""
    limits = Limits(hello_timeout_s=60, keepalive_s=60)
    gate = asyncio.Semaphore(at_once)
    retries = 0

    async def one(number: int) -> None:
        nonlocal retries
        hello = introduce("edge", f"e{number}", instance=secrets.token_hex(8), boot=1)
        async with gate:
            while True:
                try:
                    context = tls(number).context() if tls is not None else None
                    links.append(await dial(hub, hello, idle, limits=limits, tls=context))
                except (DialError, HandshakeRefused) as error:
                    if not retries:
                        print(error, file=sys.stderr, flush=True)
                    retries += 1
                    await asyncio.sleep(0.2)
                else:
                    return

    links: list[Link] = []
    started = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    return {"up": idle.up, "seconds": round(time.monotonic() - started, 3), "retries": retries}


async def keep_all(hub: Endpoint, count: int, idle: Idle) -> list[asyncio.Task[None]]:
    """Run all edges as uplinks, with the agents' own redial and back-off."""
    limits = Limits(hello_timeout_s=60, keepalive_s=60)
    tasks = []
    for number in range(count):
        hello = introduce("edge", f"e{number}", instance=secrets.token_hex(8), boot=1)
        uplink = Uplink([hub], idle, Dialling(hello=lambda hello=hello: hello, limits=limits))
        tasks.append(asyncio.create_task(uplink.run()))
    return tasks


async def main() -> None:
    """Dial, report, and stay until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hub", type=hub_endpoint, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=20_000)
    parser.add_argument("--uplinks", action="store_true", help="redial and back off as agents do")
    parser.add_argument(
        "--tls", nargs=2, metavar=("CA", "DIR"), help="DIR holds edge-eN.crt and edge-eN.key of each edge"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # ten thousand edges would log the same
    tls = _identity(*map(Path, options.tls)) if options.tls else None
    idle = Idle()
    tasks = []
    if options.uplinks:
        tasks = await keep_all(options.hub, options.count, idle)
        print(json.dumps({"up": idle.up}), flush=True)
    else:
        print(json.dumps(await dial_all(options.hub, options.count, idle, tls, options.at_once)), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(json.dumps({"up": idle.up}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    uvloop.run(main())
