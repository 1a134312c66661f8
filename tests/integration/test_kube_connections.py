"""Connections to an API server: one that says no goodbye, one in trouble, and a hub that stops while it still asks."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cli.process_options import HUB_OPTIONS
from cloud.kube import client as kube_client
from cloud.kube import kept_connections
from cloud.kube.client import RESOURCES, Kube, KubeError, connect
from cloud.parts.kubernetes_part import following
from cloud.records.objects import NODE
from tests.kit.certificates import Authority
from tests.kit.memory_records import MemoryRecords
from tests.kit.trusting import SaidNodes
from tests.kit.waiting import until

_WATCH_BEGINS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_LAST_TURN = 200  # of the loop: by then a hub has sent its lists


@asynccontextmanager
async def api_server(
    directory: Path,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    tls: bool = False,
    authority: Authority | None = None,
) -> AsyncIterator[str]:
    """Something that answers in an API server's place; the kubeconfig for it."""
    context, cluster = None, {}
    if tls or authority:
        context, pem = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), (authority or Authority(directory)).hub()
        context.load_cert_chain(pem.cert, pem.key)
        cluster = {"certificate-authority": str(pem.ca)}
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        cluster["server"] = f"{'https' if context else 'http'}://127.0.0.1:{port}"
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "cluster", "user": "hub"}}],
                    "clusters": [{"name": "cluster", "cluster": cluster}],
                    "users": [{"name": "hub", "user": {"token": "t"}}],
                }
            )
        )
        yield str(kubeconfig)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_watch_that_is_left_leaves_no_connection_to_a_server_that_says_no_goodbye(
    *, answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    make = kube_client._probed_socket

    def noted(address: Any) -> socket.socket:
        made.append(make(address))
        return made[-1]

    monkeypatch.setattr(kube_client, "_probed_socket", noted)
    asked, begun, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answers:
            writer.write(_WATCH_BEGINS)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # nor does it hear one
        asked.set()
        await over.wait()
        writer.transport.abort()

    async def watch(kube: Kube) -> None:
        async for _ in kube.watch(RESOURCES["Node"], "1", for_s=60):
            begun.set()

    async with api_server(tmp_path, serve, tls=True) as kubeconfig:
        async with connect(kubeconfig) as kube:
            watching = asyncio.create_task(watch(kube))
            await (begun if answers else asked).wait()
            watching.cancel()
            await asyncio.wait({watching})
        assert [each.fileno() for each in made] == [-1]
        over.set()


def answering(answer: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Serve a connection: each of its requests gets this answer, after which the connection may end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
                if b"close" in answer:
                    break
        writer.close()

    return serve


_NOTHING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_request_on_an_open_connection_needs_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with api_server(tmp_path, answering(_NOTHING)) as kubeconfig, connect(kubeconfig) as kube:
        await kube.get(RESOURCES["Node"], "n1")

        def refuse(*_: Any) -> None:
            raise AssertionError("a thread")

        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
        await kube.get(RESOURCES["Node"], "n1")


def renamed_server(kubeconfig: str, url: str) -> str:
    """Give a kubeconfig's server another address. Returns the present one."""
    settings = json.loads(Path(kubeconfig).read_text())
    cluster = settings["clusters"][0]["cluster"]
    before, cluster["server"] = cluster["server"], url
    Path(kubeconfig).write_text(json.dumps(settings))
    return str(before)


async def test_a_proxy_that_the_environment_names_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n"))
        await answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")(reader, writer)

    async with api_server(tmp_path, proxy) as kubeconfig:
        monkeypatch.setenv("http_proxy", renamed_server(kubeconfig, "http://kubernetes.invalid"))
        async with connect(kubeconfig) as kube:
            await kube.get(RESOURCES["Node"], "n1")
            await kube.patch(RESOURCES["Node"], "n1", {})
    assert asked == [
        b"GET http://kubernetes.invalid/api/v1/nodes/n1 HTTP/1.1\r\n",
        b"PATCH http://kubernetes.invalid/api/v1/nodes/n1 HTTP/1.1\r\n",
    ]


@pytest.mark.parametrize("kind", ["without extensions", "of an intermediate CA", "with all extensions"])
async def test_a_certificate_that_kubectl_trusts_is_trusted_on_every_python(kind: str, tmp_path: Path) -> None:
    parent = Authority(tmp_path, name="root") if kind == "of an intermediate CA" else None
    authority = Authority(tmp_path, strict=kind != "without extensions", parent=parent)
    server = api_server(tmp_path, answering(_NOTHING), authority=authority)
    async with server as kubeconfig, connect(kubeconfig) as kube:
        assert not await kube.get(RESOURCES["Node"], "n1")


async def test_a_hub_that_is_not_the_leader_any_more_sends_nothing(tmp_path: Path) -> None:
    heard = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    leads = [False, True, False]  # a read; a change, before and after its connection is made
    async with (
        api_server(tmp_path, serve) as kubeconfig,
        connect(kubeconfig, may_ask=lambda: leads.pop(0)) as kube,
    ):
        for ask in (kube.get(RESOURCES["Node"], "n1"), kube.patch(RESOURCES["Node"], "n1", {})):
            with pytest.raises(KubeError, match="this hub is not the leader any more"):
                await ask
        await until(lambda: heard == [b""], what="end of the connection")


@pytest.mark.parametrize(
    ("status", "told"),
    [(b"503 Away", "503"), (b"404 Not Found", "lacks the kind EdgeNode: apply deploy/chart/templates/crds.yaml")],
)
async def test_an_error_of_the_server_is_told_at_once(tmp_path: Path, status: bytes, told: str) -> None:
    away = answering(b"HTTP/1.1 %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % status)
    async with api_server(tmp_path, away) as kubeconfig, connect(kubeconfig) as kube:
        with pytest.raises(KubeError, match=told):
            async with asyncio.timeout(30):
                await kube.list(NODE, limit=1)


@pytest.mark.slow
async def test_a_hub_that_stops_while_it_still_asks_says_nothing_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = 0
        while not reader.at_eof():
            try:
                asked = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            if b"watch=1" in asked:
                writer.write(_WATCH_BEGINS)
                continue
            parts += 1
            more = {"continue": "more"} if parts < 4 else {}
            body = json.dumps({"metadata": {"resourceVersion": "1", **more}, "items": []}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with api_server(tmp_path, serve) as kubeconfig:
        settings = HUB_OPTIONS.read({"kubeconfig": str(kubeconfig), "state_dir": str(tmp_path)})
        for turns in range(0, _LAST_TURN, 10):
            async with connect(kubeconfig) as kube, following(settings, kube, MemoryRecords(), SaidNodes()):
                for _ in range(turns):
                    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelname not in {"DEBUG", "INFO"}] == []


async def test_after_a_line_of_a_watch_without_an_end_the_objects_are_listed_again_and_it_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_client, "MOST_BYTES", 65_536)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_WATCH_BEGINS + (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 2)
        await reader.read()
        writer.close()

    async with api_server(tmp_path, serve) as kubeconfig, connect(kubeconfig) as kube:
        with pytest.raises(KubeError, match="watch nodes: an event has more than 0 MiB") as caught:
            async for _ in kube.watch(RESOURCES["Node"], "1", for_s=60):
                pass
        assert caught.value.is_expired  # the same version would bring the same event again


# ---- kept connections ------------------------------------------------------------------------------------------------


class Patched:
    """A server that answers patches.

    Attributes:
        came: a request has come.
        hold: answers wait for it.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []  # the number of requests on each connection
        self.serving: list[Any] = []  # the task of each connection
        self.heads: list[bytes] = []  # the head of each request
        self.answers: list[bytes] = []  # the next answers; without one, an empty object
        self.ends = False  # whether the server ends an idle connection at once
        self.came, self.hold = asyncio.Event(), asyncio.Event()
        self.hold.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        number = len(self.asked)
        self.asked.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                self.asked[number] += 1
                self.heads.append(head)
                self.came.set()
                await self.hold.wait()
                answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
                writer.write(answer)
                if self.ends or b"close" in answer:
                    break
        writer.close()


@asynccontextmanager
async def patched(directory: Path, *, tls: bool = False) -> AsyncIterator[tuple[Patched, Kube]]:
    server = Patched()
    async with api_server(directory, server.serve, tls=tls) as kubeconfig:
        async with connect(kubeconfig) as kube:
            yield server, kube
        await asyncio.gather(*server.serving)


async def patch(kube: Kube) -> Any:
    return await kube.patch(RESOURCES["Lease"], "n1", {"spec": {}}, "kube-node-lease")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_patches_one_after_another_share_a_connection(
    run: Callable[[Awaitable[Patched]], Patched], *, tls: bool, tmp_path: Path
) -> None:
    async def patch_thrice() -> Patched:
        async with patched(tmp_path, tls=tls) as (server, kube):
            for _ in range(3):
                assert await patch(kube) == {}
            return server

    server = run(patch_thrice())
    assert server.asked == [3]
    path = b"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
    assert server.heads[0].startswith(b"PATCH " + path + b" HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/merge-patch+json\r\n" in server.heads[0]
    assert b"\r\nauthorization: Bearer t\r\n" in server.heads[0]


async def test_a_connection_that_has_been_idle_for_long_or_that_the_server_has_ended_carries_no_further_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patched(tmp_path) as (server, kube):
        await patch(kube)
        with monkeypatch.context() as patience:
            patience.setattr(kept_connections, "_IDLE_S", -1.0)
            await patch(kube)
        assert server.asked == [1, 1]
        server.ends = True
        await patch(kube)
        await asyncio.sleep(0.05)  # the end of the connection is on its way
        await patch(kube)
        assert server.asked == [1, 2, 1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{}", "the connection ended"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "did not answer in time"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "the answer is not HTTP/1.1"),
    ],
)
async def test_a_patch_without_a_whole_answer_is_sent_once_and_its_outcome_is_unknown(
    answer: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with patched(tmp_path) as (server, kube):
        server.answers = [answer]
        monkeypatch.setattr(kept_connections, "ANSWER_S", 0.5)
        with pytest.raises(KubeError, match=why) as caught:
            await patch(kube)
        monkeypatch.undo()
        assert caught.value.code == 0
        assert server.asked == [1]
        assert await patch(kube) == {}
        assert server.asked == [1, 1]


async def test_a_refused_patch_says_why(tmp_path: Path) -> None:
    async with patched(tmp_path) as (server, kube):
        body = b'{"code": 409, "reason": "Conflict", "message": "another uid"}'
        server.answers = [b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)]
        with pytest.raises(KubeError, match="patch Lease kube-node-lease/n1: another uid") as caught:
            await patch(kube)
        assert caught.value.code == 409
        assert await patch(kube) == {}
        assert server.asked == [2]


async def test_patches_at_once_have_connections_of_their_own_and_after_refused_credentials_none_is_used_again(
    tmp_path: Path,
) -> None:
    async with patched(tmp_path) as (server, kube):
        await asyncio.gather(*(patch(kube) for _ in range(2)))
        assert server.asked == [1, 1]
        server.answers = [b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"]
        with pytest.raises(KubeError, match="are refused"):
            await patch(kube)
        assert await patch(kube) == {}  # it says `Connection: close`, because the credentials may still be the old ones
        assert await patch(kube) == {}
        assert sorted(server.asked) == [1, 1, 1, 2]


async def test_a_token_that_is_no_header_is_sent_to_nobody(tmp_path: Path) -> None:
    async with patched(tmp_path) as (server, kube):
        kube._client.configuration.api_key["BearerToken"] = "Bearer t\r\nHost: elsewhere"
        with pytest.raises(KubeError, match="a header has more than one line"):
            await patch(kube)
        assert server.asked == []
