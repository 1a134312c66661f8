"""Strangers and broken peers at the hub's door: each is turned away in words, and the hub goes on serving others.

After each test the hub must still answer an operator, and its log must hold no traceback.
"""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.messages import Ack, Goodbye, Kind, Open, Ping, Priority, Reason, encode
from tests.kit import needs
from tests.kit.bridge import Bridge, Hub
from tests.kit.certificates import Authority, Pem
from tests.kit.intruder import gets_in, lasting_hub, refusal_of, resident_bytes
from tests.kit.operator import hub_state
from tests.kit.other_user import NOBODY_ELSE, as_user
from tests.kit.ports import free_ports
from tests.kit.stranger import (
    PING,
    TEXT,
    Closed,
    Stranger,
    hello,
    upgrade_request,
    websocket_frame,
)
from tests.kit.waiting import let_pass, wait_for

CALL = Open(1, Kind.CALL, Priority.CALL, "d.example", "/csi.v1.Controller/CreateVolume", "", "c-1", 0)

HELLO_LIMIT = "--hello-timeout=3s"

MOST_GROWTH_BYTES = 24 << 20
"""How much larger the hub may be after a flood: the limits of a few links, and what the allocator keeps."""


def serves_on(hub: Hub) -> None:
    """The hub serves, and nothing happened in it that nobody foresaw."""
    assert hub_state(hub.uds)["software"].startswith("csi-bridge/")
    assert [line for line in hub.lines() if "exc" in line or line["level"] == "error"] == []


def node_of(stranger: Stranger) -> str:
    """A node's name that no other test uses."""
    return f"n{stranger.address.replace(':', '-')}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with lasting_hub(tmp_path_factory.mktemp("logs"), HELLO_LIMIT) as hub:
        yield hub


@pytest.fixture
def hub(_plain: Hub) -> Iterator[Hub]:
    """A hub without TLS. It must serve on afterwards."""
    yield _plain
    serves_on(_plain)


@pytest.fixture(scope="module")
def _secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Hub]:
    with lasting_hub(tmp_path_factory.mktemp("logs"), HELLO_LIMIT, *authority.hub().flags) as hub:
        yield hub


@pytest.fixture
def secure(_secure: Hub) -> Iterator[Hub]:
    """A hub with TLS. It must serve on afterwards."""
    yield _secure
    serves_on(_secure)


# -------------------- no HTTP --------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xfe" * 1000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["garbage", "TLS", "ssh", "HTTP/2"],
)
def test_what_is_no_http_is_hung_up_on(hub: Hub, data: bytes) -> None:
    with Stranger(hub.address) as stranger:
        stranger.send(data)
        stranger.read_to_end()
        hub.wait_logged(f"{stranger.address} got no session: it does")


def test_a_client_that_connects_and_goes_is_no_news(hub: Hub) -> None:
    """Load balancers do so every few seconds."""
    with Stranger(hub.address) as stranger:
        pass
    with Stranger(hub.address) as later:
        later.send(b"nonsense\r\n\r\n")
        later.read_to_end()
        hub.wait_logged(later.address)
    assert hub.logged(stranger.address) == []


# -------------------- HTTP, but no upgrade --------------------


@pytest.mark.parametrize(
    ("request_bytes", "status", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n", b"426", b"You need a WebSocket client"),
        (b"POST / HTTP/1.1\r\nHost: hub\r\nContent-Length: 0\r\n\r\n", b"405", b"Failed to open a WebSocket"),
        (b"GET / HTTP/1.0\r\n\r\n", b"505", b"Failed to open a WebSocket"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"414", b"Failed to open a WebSocket"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"431", b"Failed to open a WebSocket"),
        (upgrade_request(Sec_WebSocket_Key=""), b"400", b"Failed to open a WebSocket"),
        (upgrade_request(Sec_WebSocket_Version="8"), b"400", b"Failed to open a WebSocket"),
        (upgrade_request("chat"), b"400", b"invalid subprotocol; expected one of csi-bridge"),
    ],
    ids=["GET", "POST", "HTTP/1.0", "long path", "long header", "no key", "version", "chat"],
)
def test_what_is_no_upgrade_of_ours_is_told_so_in_http(
    hub: Hub, request_bytes: bytes, status: bytes, text: bytes
) -> None:
    with Stranger(hub.address) as stranger:
        stranger.send(request_bytes)
        answer = stranger.read_to_end()
        assert answer.startswith(b"HTTP/1.1 " + status + b" ")
        assert text in answer
        hub.wait_logged(f"{stranger.address} got no session: it d")


# -------------------- WebSocket --------------------


@pytest.mark.parametrize(
    ("data", "code", "why"),
    [
        (websocket_frame(b"hello", opcode=TEXT), 1003, "text or fragmented"),
        (websocket_frame(b"\x91", fin=False), 1003, "text or fragmented"),
        (websocket_frame(b"", size=1_048_577), 1009, "broke the WebSocket protocol"),
        (b"\x82\x01x", 1002, "broke the WebSocket protocol"),
    ],
    ids=["text", "fragment", "oversized", "unmasked"],
)
@pytest.mark.parametrize("greeted", [False, True])
def test_a_websocket_frame_that_is_not_ours_closes_the_websocket(
    hub: Hub, data: bytes, code: int, why: str, greeted: bool
) -> None:
    with Stranger(hub.address) as stranger:
        if greeted:
            stranger.greet(hello("edge", node_of(stranger)))
        else:
            stranger.upgrade()
        stranger.send(data)
        closed = stranger.receive()
        assert isinstance(closed, Closed)
        assert closed.code == code
        where = f"edge {node_of(stranger)} is gone: " if greeted else f"no hello from {stranger.address}: "
        hub.wait_logged(where)
        assert why in hub.logged(where)[0]["msg"]


@pytest.mark.parametrize("data", [b"", b"\x82\x85\x00"], ids=["between frames", "within one"])
def test_a_connection_that_ends_without_a_goodbye_was_cut_and_broke_no_protocol(hub: Hub, data: bytes) -> None:
    """A killed process leaves so: the kernel closes its socket, perhaps in the middle of a frame."""
    with Stranger(hub.address) as stranger:
        name = node_of(stranger)
        stranger.greet(hello("edge", name))
        stranger.send(data)
    hub.wait_logged(f"edge {name} is gone: the connection was cut at the peer's end, without a goodbye")


# -------------------- session --------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xc1", "is not msgpack"),
        (encode(hello("edge", "n1"))[:40], "ends inside a frame"),
        (encode(CALL), "a Open frame in state GREETING"),
        (encode(hello("edge", "n1", max_streams=0)), "it allows no stream"),
    ],
    ids=["msgpack", "cut hello", "open", "no streams"],
)
def test_a_session_that_begins_wrongly_ends_with_a_goodbye_that_says_why(hub: Hub, data: bytes, why: str) -> None:
    with Stranger(hub.address) as stranger:
        stranger.upgrade()
        stranger.websocket(data)
        (goodbye,) = stranger.all_frames()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.reason == Reason.PROTOCOL_ERROR
        assert why in goodbye.message
        hub.wait_logged(f"no hello from {stranger.address}: {goodbye.message}")


def test_a_hello_that_never_comes_is_said_goodbye_to_whatever_websocket_pings_come(hub: Hub) -> None:
    with Stranger(hub.address) as stranger:
        stranger.upgrade()
        stranger.send(websocket_frame(b"", opcode=PING))
        assert stranger.all_frames() == [Goodbye(Reason.HELLO_TIMEOUT, "no hello within 3 s", 0)]
        hub.wait_logged(f"no hello from {stranger.address}: no hello within 3 s")


# -------------------- who may be what --------------------


def test_an_edge_agent_over_the_unix_socket_is_refused(hub: Hub) -> None:
    refusal = refusal_of(hub.uds, hello("edge", "over-uds"))
    assert refusal == Goodbye(
        Reason.ROLE, "an edge agent must connect over the network (--listen), not to the hub's UNIX socket", 0
    )
    hub.wait_logged(f"refused edge over-uds from pid {os.getpid()} uid {os.getuid()}")
    assert "over-uds" not in {node["node"] for node in hub_state(hub.uds)["nodes"]}


# -------------------- floods --------------------


@pytest.mark.parametrize("greeted", [False, True])
def test_a_flood_of_websocket_pings_that_nobody_reads_is_cut_off(hub: Hub, greeted: bool) -> None:
    before = resident_bytes(hub)
    with Stranger(hub.address) as stranger:
        if greeted:
            stranger.greet(hello("edge", node_of(stranger)))
        else:
            stranger.upgrade()
        stranger.flood(websocket_frame(bytes(125), opcode=PING) * 500, most=200 << 20)
        hub.wait_logged(
            f"{node_of(stranger)} is gone: the peer asks" if greeted else f"no hello from {stranger.address}"
        )
    assert resident_bytes(hub) - before < MOST_GROWTH_BYTES


def test_a_flood_of_session_pings_that_nobody_reads_is_cut_off(hub: Hub) -> None:
    before = resident_bytes(hub)
    with Stranger(hub.address) as stranger:
        name = node_of(stranger)
        stranger.greet(hello("edge", name))
        stranger.flood(websocket_frame(encode(Ping(2**40)) * 1_000), most=400 << 20)
        hub.wait_logged(f"edge {name} is gone: the peer asks for answers and does not read them")
    assert resident_bytes(hub) - before < MOST_GROWTH_BYTES


def test_others_are_served_while_somebody_floods(hub: Hub) -> None:
    with Stranger(hub.address) as stranger:
        stranger.greet(hello("edge", node_of(stranger)))
        for _ in range(20):
            stranger.send(websocket_frame(encode(Ping(2**40)) * 100))
            assert hub_state(hub.uds)["software"]


def test_a_peer_that_asks_on_and_on_without_reading_the_answers_is_bounded(hub: Hub) -> None:
    """It releases each stream unread, so that it may open the next one: 200 MB, of which a hub has nothing to keep."""
    before = resident_bytes(hub)
    with Stranger(hub.address) as stranger:
        name = f"d{stranger.address}"
        stranger.greet(hello("driver", name))
        unread = range(0)
        for first in range(1, 400_000, 200):
            numbers = range(first, first + 200, 2)
            opens = (Open(number, Kind.REPORT, Priority.CALL, "s" * 1000, "", "", "", 0) for number in numbers)
            stranger.frames(*(Ack(number, delivered=True) for number in unread), *opens)
            unread = numbers
        hub.wait_logged(f"driver {name} is gone: Ack: of a stream that has not ended")
        assert resident_bytes(hub) - before < MOST_GROWTH_BYTES


# -------------------- limits of a hub of one's own --------------------


@pytest.fixture
def own(short_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    with Bridge(short_dir, tmp_path) as bridge:
        yield bridge.start_hub


def test_beyond_the_limit_connections_are_turned_away_and_taken_again_when_one_leaves(own: Callable[..., Hub]) -> None:
    hub = own("--max-connections=2")
    wait_for(lambda: gets_in(hub, "n0"), what="place: the probes of the start are gone")
    first, second = Stranger(hub.address), Stranger(hub.address)
    first.greet(hello("edge", "n1"))
    second.greet(hello("edge", "n2"))
    assert refusal_of(hub.address, hello("edge", "n3")) == Goodbye(
        Reason.FULL, "the hub's listener is full: 2 connections is the limit (--max-connections)", 0
    )
    hub.wait_logged("was refused: 2 connections is the limit")
    serves_on(hub)
    first.close()
    wait_for(lambda: gets_in(hub, "n3"), what="place for another one")
    second.close()


def test_every_end_is_counted_by_its_reason(own: Callable[..., Hub]) -> None:
    (port,) = free_ports(1)
    hub = own(HELLO_LIMIT, f"--http=127.0.0.1:{port}")
    refusal_of(hub.address, hello("operator", "o"))
    refusal_of(hub.address, hello("edge", ""))
    with Stranger(hub.address) as stranger:
        stranger.upgrade()
        stranger.all_frames()
    with Stranger(hub.address) as stranger:
        stranger.greet(hello("edge", "n1"))
        stranger.frames(CALL, CALL)
        stranger.all_frames()
    hub.wait_logged("edge n1 is gone")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    for reason in (Reason.ROLE, Reason.NAME, Reason.HELLO_TIMEOUT, Reason.PROTOCOL_ERROR):
        assert f'csi_bridge_link_downs_total{{reason="{reason}"}} 1.0' in lines
    assert f'csi_bridge_link_downs_total{{reason="{Reason.REPLACED}"}} 0.0' in lines


@needs.skip_without(needs.root())
def test_a_user_who_is_on_the_list_is_let_in_and_others_are_not(own: Callable[..., Hub]) -> None:
    listed, other = NOBODY_ELSE, NOBODY_ELSE + 1
    hub = own(f"--uds-group={os.getgid()}", f"--uds-allow-uid={listed}", f"--uds-allow-uid={os.getuid()}")
    hub.uds.parent.chmod(0o711)

    def status(uid: int) -> tuple[int, str, str]:
        command = [*as_user(uid), "status", "--output=json", f"--hub=unix://{hub.uds}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    code, said, why = status(listed)
    assert (code, why) == (0, "")
    assert json.loads(said)["software"].startswith("csi-bridge/")
    code, said, why = status(other)
    assert (code, said) == (1, "")
    assert f"uid {other} is not on --uds-allow-uid" in why
    serves_on(hub)


# -------------------- TLS --------------------


def test_clients_that_spoke_before_the_hub_came_to_accept_them_get_in(secure: Hub, authority: Authority) -> None:
    """Ten thousand agents after a restart do. A first flight that the hub drops is a handshake that hangs."""
    tls = authority.driver("d.example").client()  # there may be many, unlike a node's agents

    def come(_: int) -> bool:
        with Stranger(secure.address, tls=tls) as stranger:
            return stranger.greet(hello("driver", "d.example")).role == "hub"

    with ThreadPoolExecutor(20) as threads:
        secure.process.signal(signal.SIGSTOP)
        coming = [threads.submit(come, number) for number in range(20)]
        let_pass(0.3)
        secure.process.signal(signal.SIGCONT)
        assert all(one.result() for one in coming)


def test_insecure_beside_tls_files_lets_nobody_in_without_its_certificate(secure: Hub, authority: Authority) -> None:
    """The hub of these tests has both: the bridge's tests always say --insecure."""
    assert "--insecure" in secure.process.command
    refusal = refusal_of(secure.address, hello("edge", "n9"), tls=authority.edge("n1").client())
    assert refusal.reason == Reason.CERTIFICATE


def test_a_renewed_certificate_is_shown_to_new_connections_and_broken_files_keep_the_old_one(
    own: Callable[..., Hub], authority: Authority, tmp_path: Path
) -> None:
    first = authority.hub()
    pem = Pem(first.ca, tmp_path / "tls.crt", tmp_path / "tls.key")
    shutil.copy(first.cert, pem.cert)
    shutil.copy(first.key, pem.key)
    hub = own(*pem.flags)
    tls = authority.edge("n1").client()

    def shown() -> bytes:
        with Stranger(hub.address, tls=tls) as stranger:
            return stranger.peer_certificate()

    with Stranger(hub.address, tls=tls) as staying:
        staying.greet(hello("edge", "n1"))
        old = shown()
        renewed = authority.issue("csi-bridge:hub", "csi-bridge:hubs", file="renewed")
        for source, target in ((renewed.key, pem.key), (renewed.cert, pem.cert)):
            source.replace(target)
        new = shown()
        assert new != old
        hub.wait_logged(f"the TLS files changed; new connections use {pem.cert}")
        pem.cert.write_text("half a certificate")
        assert shown() == new
        hub.wait_logged("the TLS files changed and cannot be used, so the old ones stay in use: ")
        staying.frames(Ping(1))
        assert staying.receive() != []
