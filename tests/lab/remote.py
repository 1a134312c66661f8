"""A remote link: `Link` in a process of its own, so that a bench's event loop does not carry the bench's line.

    python tests/lab/link.py --to 127.0.0.1:10350 --delay 200ms --rate 64kbit

Commands come as lines on standard input, whose end is the process's end. Each is answered with one line of JSON, the
link's address and stats, and so is the start.

    delay 200ms    rate 64kbit    rate none    stall [up|down|both]    cut [refuse|hold]    rebind    heal    stats

`RemoteLink` starts and commands such a process from synchronous code.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import uvloop

from common.parsers import duration, size
from tests.lab.link import Link

SCRIPT = Path(__file__).with_name("link.py")

_RATE_UNITS = {"bit": 1, "kbit": 1_000, "Mbit": 1_000_000, "Gbit": 1_000_000_000}


def rate(text: str) -> float | None:
    """`64kbit`, `1.5Mbit` or `none` → bits per second. Raises ValueError."""
    if text == "none":
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kMG]?bit)", text)
    if found is None or float(found[1]) == 0:
        raise ValueError("must be a rate like 64kbit, or none")
    return float(found[1]) * _RATE_UNITS[found[2]]


class RemoteLink:
    """A link in a process of its own, as a synchronous context manager."""

    def __init__(self, *, to: str, listen: str = "127.0.0.1:0", delay: str = "0s", rate: str = "none") -> None:
        arguments = ["--to", to, "--listen", listen, "--delay", delay, "--rate", rate]
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = cast("str", self._answer()["address"])  # where to dial

    def command(self, line: str) -> dict[str, Any]:
        """Send a command. Returns the link's stats after it. Raises ValueError when the link refuses it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the link's process ended with exit code {self._process.wait(10)}")
        answer = cast("dict[str, Any]", json.loads(line))
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


async def obey(link: Link, line: str) -> str:
    """Carry out one command. Returns the answer, one line of JSON."""
    name, *arguments = line.split() or ["stats"]
    try:
        match name:
            case "delay":
                link.line.delay_s = duration(*arguments)
            case "rate":
                link.line.rate_bits_s = rate(*arguments)
            case "stall" if set(arguments) <= {"up", "down", "both"}:
                link.stall(*cast("Any", arguments))
            case "cut" if set(arguments) <= {"refuse", "hold"}:
                await link.cut(*cast("Any", arguments))
            case "rebind":
                link.rebind()
            case "heal":
                link.heal()
            case "stats":
                pass
            case _:
                return json.dumps({"error": f"unknown command: {line.strip()}"})
    except (TypeError, ValueError) as error:
        return json.dumps({"error": str(error)})
    return _report(link)


def _report(link: Link) -> str:
    return json.dumps({"address": link.address, **asdict(link.stats)})


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _serve_stdin(link: Link) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        _print(await obey(link, line.decode()))


async def _run(given: argparse.Namespace) -> None:
    shape = {"delay_s": given.delay, "rate_bits_s": given.rate, "buffer_bytes": given.buffer}
    async with Link(to=given.to, listen=given.listen, **shape) as link:
        _print(_report(link))
        await _serve_stdin(link)


def main() -> None:
    """The command line of `tests/lab/link.py`."""
    parser = argparse.ArgumentParser(description="A relay that delays, limits, stalls, cuts and rebinds.")
    parser.add_argument("--to", required=True, help="host:port or unix:///path")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port or unix:///path (default: %(default)s)")
    parser.add_argument("--delay", type=duration, default="0s", help="each way (default: %(default)s)")
    parser.add_argument("--rate", type=rate, default="none", help="each way, like 64kbit (default: %(default)s)")
    parser.add_argument("--buffer", type=size, default="16KiB", help="what may wait, each way (default: %(default)s)")
    with suppress(KeyboardInterrupt):
        uvloop.run(_run(parser.parse_args()))
