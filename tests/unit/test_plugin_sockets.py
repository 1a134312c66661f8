"""A look through a plugin registry: what counts when a part of it cannot be looked at."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.registry import plugin_sockets
from edge.registry.plugin_sockets import Look, look, looks

Fail = Callable[[Path, int], contextlib.AbstractContextManager[None]]


@pytest.fixture
def registry(short_dir: Path) -> Iterator[Path]:
    """A registry directory with a socket in it, and one in a directory below it."""
    (short_dir / "deep").mkdir()
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        one.bind(str(short_dir / "a-reg.sock"))
        other.bind(str(short_dir / "deep" / "b-reg.sock"))
        yield short_dir


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Let looking through one directory fail for a while."""
    real = os.scandir

    @contextlib.contextmanager
    def failing(directory: Path, number: int) -> Iterator[None]:
        def scandir(path: Path) -> object:
            if Path(path) == directory:
                raise OSError(number, os.strerror(number))
            return real(path)

        with monkeypatch.context() as patch:
            patch.setattr(plugin_sockets.os, "scandir", scandir)
            yield

    return failing


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_what_was_seen_in_a_directory_that_cannot_be_read_now_still_counts(
    registry: Path, fail: Fail, number: int
) -> None:
    before = look(registry, Look())
    assert sorted(path.name for path in before.sockets) == ["a-reg.sock", "b-reg.sock"]
    assert not before.unread
    with fail(registry, number):
        found = look(registry, before)
    assert found.sockets == before.sockets
    assert found.unread == {
        registry: f"cannot be read: {os.strerror(number)}; the sockets that were seen there still count"
    }


def test_only_below_the_directory_that_cannot_be_read_what_was_seen_counts(registry: Path, fail: Fail) -> None:
    before = look(registry, Look())
    (registry / "a-reg.sock").unlink()
    (registry / "deep" / "b-reg.sock").unlink()
    with fail(registry / "deep", errno.EIO):
        assert [path.name for path in look(registry, before).sockets] == ["b-reg.sock"]
    assert look(registry, before) == Look()


def test_a_socket_that_does_not_tell_what_it_is_still_counts(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = look(registry, Look()), Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if path.name == "a-reg.sock":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    found = look(registry, before)
    assert found.sockets == before.sockets
    assert list(found.unread) == [registry / "a-reg.sock"]


def test_what_is_gone_is_gone(registry: Path) -> None:
    before = look(registry, Look())
    (registry / "deep" / "b-reg.sock").unlink()
    (registry / "deep").rmdir()
    found = look(registry, before)
    assert [path.name for path in found.sockets] == ["a-reg.sock"]
    assert look(registry / "missing", found) == Look()


async def test_after_a_look_that_failed_it_is_looked_again_without_any_change(
    registry: Path, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.registry.plugin_sockets.LOOK_S", 0.0)
    async with asyncio.timeout(20.0), contextlib.aclosing(looks(registry)) as found:
        first = await anext(found)
        with fail(registry, errno.EMFILE):
            second = await anext(found)
        assert (second.sockets, list(second.unread)) == (first.sockets, [registry])
        assert await anext(found) == first


async def test_a_socket_in_a_new_directory_is_seen(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.registry.plugin_sockets.LOOK_S", 0.0)
    async with asyncio.timeout(20.0), contextlib.aclosing(looks(registry)) as found:
        await anext(found)
        (registry / "new").mkdir()
        with socket.socket(socket.AF_UNIX) as late:
            late.bind(str(registry / "new" / "c-reg.sock"))
            assert "c-reg.sock" in {path.name for path in (await anext(found)).sockets}
