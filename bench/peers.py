"""The real peers, as a bench finds them."""

from pathlib import Path

from tests.peers import build


def find_peer(name: str) -> Path:
    """A peer's binary or published file, which is known to be there."""
    found = build.find(name)
    assert found is not None, f"{name} is not built"
    return found


def missing_peers(*names: str) -> str:
    """Why what needs these cannot be measured here; empty if it can."""
    return next((f"{name} is not built (make peers)" for name in names if build.find(name) is None), "")
