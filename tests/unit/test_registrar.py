"""The registrar as an observer, whose looks can fail."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.registrar import Registrar


class Registry:
    """That of an observer. Notes what was found and lost."""

    own = False

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def register(self, _offer: object) -> None:
        raise AssertionError("an observer registers nothing")

    def deregister(self, _socket: str) -> None:
        raise AssertionError("an observer registers nothing")

    def is_registered(self, _name: str, _socket: str) -> bool:
        return False

    def found(self, finder: str, _endpoint: str, *, name: str = "") -> None:
        self.heard.append(f"found {finder} {name}".strip())

    def lost(self, finder: str) -> None:
        self.heard.append(f"lost {finder}")

    def subscribe(self, _callback: Callable[[], None]) -> None:
        """Nothing changes here."""


class EnoughError(Exception):
    """All looks of a test are done."""


async def watched(
    root: Path, monkeypatch: pytest.MonkeyPatch, *looks: list[Path] | Exception, **how: Callable[[str], bool]
) -> list[str]:
    """Let each look in the directory of the drivers end so; what the registry heard of them."""
    script: list[list[Path] | Exception] = [*looks, EnoughError()]

    def glob(_path: Path, _pattern: str) -> list[Path]:
        answer = script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("pathlib.Path.glob", glob)
    monkeypatch.setattr("edge.registrar.LOOK_S", 0.0)
    registry = Registry()
    with pytest.raises(EnoughError):
        await Registrar(root, registry, **how)._look_for_drivers()
    return registry.heard


async def test_an_observer_that_cannot_look_for_drivers_says_so_once_and_keeps_those_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = tmp_path / "plugins" / "v" / "csi.sock"
    trouble = OSError(errno.EMFILE, "Too many open files")
    heard = await watched(tmp_path, monkeypatch, [driver], trouble, trouble, [driver], trouble, [])
    assert heard == [f"found {driver}", f"lost {driver}"]
    assert caplog.messages == [
        f"cannot look for drivers in {tmp_path / 'plugins'}: {trouble}; those that were seen stay"
    ] * 2  # fmt: skip  # once for each time that it begins to fail


async def test_an_observer_takes_no_socket_of_the_agents_own_relay_for_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, relayed = tmp_path / "plugins" / "v" / "csi.sock", tmp_path / "plugins" / "csi-bridge" / "csi.sock"
    heard = await watched(tmp_path, monkeypatch, [driver, relayed], is_relay=str(relayed).__eq__)
    assert heard == [f"found {driver}"]
