"""Listening on UNIX sockets: nobody else's is taken, nobody gets in too early, and nothing is left behind."""

import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.net import sockets
from common.net.sockets import UnixListener, listen_unix, peer_credentials
from tests.kit import needs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.sock"


@pytest.fixture
def umask(path: Path, request: pytest.FixtureRequest) -> Iterator[None]:  # after the directory of the path
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_socket_is_not_taken_for_dead_by_a_process_without_a_descriptor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(sockets.socket, "socket", none_left)
    with pytest.raises(OSError, match="open files"):
        sockets.knock(path)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True


@pytest.mark.parametrize("umask", [0, 0o777], indirect=True)
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.usefixtures("umask")
def test_a_socket_has_the_mode_asked_for_whatever_the_umask(path: Path, mode: int) -> None:
    with listen_unix(path, mode=mode):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert answers(path)


@pytest.mark.parametrize("umask", [0], indirect=True)
@pytest.mark.usefixtures("umask")
def test_a_socket_is_never_reachable_for_others_on_the_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []

    def spying(real: object) -> object:
        def spy(*args: object) -> object:
            if path.exists():
                seen.append((stat.S_IMODE(path.stat().st_mode), answers(path)))
            return real(*args)  # type: ignore[operator]  # the patched function

        return spy

    monkeypatch.setattr(sockets.os, "chown", spying(os.chown))
    monkeypatch.setattr(UnixListener, "listen", spying(socket.socket.listen))
    with listen_unix(path, mode=0o660, gid=os.getgid()):
        pass
    assert seen == [(0o600, False), (0o660, False)]


@needs.skip_without(needs.root())
def test_a_socket_has_the_group_asked_for(path: Path) -> None:
    with listen_unix(path, mode=0o660, gid=12_345):
        assert path.stat().st_gid == 12_345


def test_closing_removes_the_file_and_is_no_error_when_it_is_gone(path: Path) -> None:
    listen_unix(path, mode=0o600).close()
    assert not path.exists()
    listener = listen_unix(path, mode=0o600)
    path.unlink()
    listener.close()
    listener.close()


def test_closing_leaves_a_file_that_is_another_ones_now(path: Path) -> None:
    ours = listen_unix(path, mode=0o600)
    path.unlink()
    with listen_unix(path, mode=0o600):
        ours.close()
        assert answers(path)


def test_a_socket_left_by_a_dead_process_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with listen_unix(path, mode=0o600):
        assert answers(path)


def test_a_socket_that_answers_is_left_alone(path: Path) -> None:
    with listen_unix(path, mode=0o600):
        with pytest.raises(OSError, match="another process is serving there"):
            listen_unix(path, mode=0o600)
        assert answers(path)


def test_a_socket_whose_queue_is_full_counts_as_answering(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(OSError, match="another process is serving there"):
            listen_unix(path, mode=0o600)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_that_is_no_socket_is_left_alone(path: Path, tmp_path: Path, kind: str) -> None:
    path.write_text("precious") if kind == "file" else path.symlink_to(tmp_path / "elsewhere")
    before = path.lstat()
    with pytest.raises(OSError, match="exists and is not a socket"):
        listen_unix(path, mode=0o600)
    assert path.lstat() == before


def test_a_socket_of_another_kind_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(OSError, match="cannot be tried"):
            listen_unix(path, mode=0o600)
        assert path.exists()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"the directory .*/none does not exist"):
        listen_unix(tmp_path / "none" / "x.sock", mode=0o600)


def test_a_path_too_long_names_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="107 at most"):
        listen_unix(tmp_path / ("x" * 107), mode=0o600)


def test_of_many_that_start_at_once_one_serves(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listeners: list[UnixListener] = []
    refused: list[OSError] = []
    start = threading.Barrier(8)

    def begin() -> None:
        start.wait()
        try:
            listeners.append(listen_unix(path, mode=0o600))
        except OSError as error:
            refused.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listeners) == 1
    assert len(refused) == 7
    assert answers(path)
    listeners[0].close()


def test_a_directory_that_somebody_keeps_locked_is_an_error_in_the_end(path: Path) -> None:
    holder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="holds a lock"):
            listen_unix(path, mode=0o600, lock_wait_s=0.05)
    finally:
        os.close(holder)


def test_a_connected_peer_is_known_by_process_user_and_group(path: Path) -> None:
    with listen_unix(path, mode=0o600) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = listener.accept()
        with accepted:
            assert peer_credentials(accepted) == (os.getpid(), os.getuid(), os.getgid())
