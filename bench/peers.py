"""The real peers, as a bench finds them."""

from pathlib import Path

from tests.peers import build


def find_peer(name: str) -> Path:
    """Return a peer's binary or published file, which must be there."""
    found = build.find(name)
    assert found is not None, f"{name} is not built"
    return found


def missing_peers(*names: str) -> str:
    """Return why a figure that needs these peers cannot be measured here; empty if it can."""
    return next((f"{name} is not built (make peers)" for name in names if build.find(name) is None), "")
