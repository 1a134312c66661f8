"""The call path: the files that carry a call between two sockets, and how many lines they have.

Placement, trust and the operations' effects are not among them.
"""

from pathlib import Path

from bench.figure import Figure

ROOT = Path(__file__).resolve().parents[1]

FILES = {
    "common": "codec messages",
    "common/session": "batch deadlines inbox link outbox receiver session stream_books",
    "common/net": "tcp",
    "common/links": "dial transport websocket_frames",
    "common/observe": "accounting",
    "cloud": "csi_proxy_driver uds_hub",
    "cloud/calls": "call node_calls",
    "cloud/nodes": "visit",
    "cloud/proxy": "forwarded_call",
    "edge": "hub_call operations",
    "edge/calls": "driver_call",
}
"""By folder: session, link, transport and calls. All of `common/relay` is on the path, too."""

_MOST = 4_800


def paths() -> list[Path]:
    """Return all of them; a name without a file is among them, too."""
    found = sorted((ROOT / "common" / "relay").glob("*.py"))
    return found + [ROOT / folder / f"{name}.py" for folder, names in FILES.items() for name in names.split()]


def lines() -> Figure:
    """Return their lines as a figure."""
    count = sum(len(path.read_text().splitlines()) for path in paths())
    name = "relay, session, link, transport and calls (`bench/call_path.py`): lines"
    return Figure(
        name, f"{count:,} in {len(paths())} files", f"<= {_MOST:,}", count <= _MOST, samples=[count], blur=0.0
    )
