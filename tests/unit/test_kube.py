"""A client of the Kubernetes API: its credentials are those that the kubeconfig gives now, and no request waits."""

import asyncio
import base64
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from kubernetes.aio.config import incluster_config

from cloud.kube.client import RESOURCES, Kube, KubeError, connect
from cloud.kube.credentials import IN_CLUSTER
from common.errors import SettingsError
from tests.kit.certificates import Authority, Pem, handshake

MINUTE = 60.0


class Answer:
    """What the library gives for a request, and aiohttp's response in it."""

    def __init__(self, status: int, body: bytes) -> None:
        self.response = self
        self.status, self.body = status, body
        self.headers = {"Date": ""}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> bytes:
        return self.body


class Server:
    """An API server behind the library, and the clock of those who ask it."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []  # what each request had to prove who asks
        self.body = b'{"metadata": {"resourceVersion": "1"}, "items": []}'  # of each answer
        self.takes = ""  # what proves it; empty: anything does
        self.now = 1000.0  # in seconds

    async def request(
        self, method: str, url: str, *, headers: dict[str, str], body: Any, _request_timeout: object
    ) -> Answer:
        self.seen.append(headers.get("authorization"))
        return Answer(200 if self.takes in {"", self.seen[-1]} else 401, self.body)

    @asynccontextmanager
    async def asked_by(self, kubeconfig: Path | str) -> AsyncIterator[Kube]:
        async with connect(str(kubeconfig), now=lambda: self.now) as kube:
            kube._client.rest_client.request = self.request  # type: ignore[method-assign, assignment]  # it has no types
            yield kube

    async def used_by(self, kube: Kube) -> str | None:
        """What proves who asks, once what a request begins to load is there."""
        await ask(kube)
        await settle(kube)
        await ask(kube)
        return self.seen[-1]

    async def keeps(self, kube: Kube, old: str) -> str:
        """A minute later the old credentials are still in use. Returns a refusal, which says why there are no newer."""
        self.now += MINUTE
        assert await self.used_by(kube) == old
        self.takes = "other ones"
        return await refusal(kube)


async def ask(kube: Kube) -> None:
    await kube.list(RESOURCES["Node"], limit=1)


async def settle(kube: Kube) -> None:
    """Wait until the credentials that are being loaded are."""
    loading = kube._credentials._loading
    assert loading is not None
    await asyncio.wait({loading})


async def refusal(kube: Kube) -> str:
    with pytest.raises(KubeError) as caught:
        await ask(kube)
    assert caught.value.code == 401
    return str(caught.value)


def write(file: Path, user: dict[str, Any], *, server: str = "http://api", **cluster: str) -> Path:
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "cluster", "user": "hub"}}],
                "clusters": [{"name": "cluster", "cluster": {"server": server, **cluster}}],
                "users": [{"name": "hub", "user": user}],
            }
        )
    )
    return file


def plugin(directory: Path, *, before: str = "") -> dict[str, Any]:
    """A user with an exec plugin: it notes that it runs, and gives the token that stands in `given`."""
    script = directory / "plugin"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    text = json.dumps({**credential, "status": {"token": "%s"}})
    script.write_text(
        f"#!/bin/sh\ncd {directory}\necho >> runs\n{before}\ntoken=$(cat given) || exit 1\nprintf '{text}' \"$token\"\n"
    )
    script.chmod(0o755)
    return {"exec": {"apiVersion": credential["apiVersion"], "command": str(script), "interactiveMode": "Never"}}


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


# ---- what is taken up ------------------------------------------------------------------------------------------------


async def test_a_token_file_that_has_changed_is_taken_up_after_a_minute(tmp_path: Path) -> None:
    server, token = Server(), tmp_path / "token"
    token.write_text("one\n")
    async with server.asked_by(write(tmp_path / "kubeconfig", {"tokenFile": str(token)})) as kube:
        await ask(kube)
        token.write_text("two\n")
        server.now += MINUTE - 1
        await ask(kube)
        assert kube._credentials._loading is None
        server.now += 1
        assert await server.used_by(kube) == "Bearer two"
    assert server.seen == ["Bearer one", "Bearer one", "Bearer one", "Bearer two"]


async def test_a_token_in_the_kubeconfig_itself_is_taken_up_after_a_minute(tmp_path: Path) -> None:
    server = Server()
    async with server.asked_by(write(tmp_path / "kubeconfig", {"token": "one"})) as kube:
        write(tmp_path / "kubeconfig", {"token": "two"})
        server.now += MINUTE
        assert await server.used_by(kube) == "Bearer two"


async def test_an_exec_plugin_is_asked_every_minute_also_if_it_had_nothing_to_give_at_first(tmp_path: Path) -> None:
    server = Server()
    async with server.asked_by(write(tmp_path / "kubeconfig", plugin(tmp_path))) as kube:
        for token in ("one", "two"):
            (tmp_path / "given").write_text(token)
            server.now += MINUTE
            assert await server.used_by(kube) == f"Bearer {token}"
    assert server.seen[0] is None


async def test_the_service_accounts_token_is_taken_up_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, token = Server(), in_cluster(tmp_path, monkeypatch)
    async with server.asked_by(IN_CLUSTER) as kube:
        token.write_text("two")
        server.now += MINUTE
        assert await server.used_by(kube) == "bearer two"


async def test_a_client_certificate_that_has_changed_is_shown_on_the_next_connection(tmp_path: Path) -> None:
    server, authority = Server(), Authority(tmp_path)
    hub = authority.issue("one", "hubs", file="client")
    user = {"client-certificate": str(hub.cert), "client-key": str(hub.key)}
    kubeconfig = write(tmp_path / "kubeconfig", user, server="https://api", **{"certificate-authority": str(hub.ca)})
    async with server.asked_by(kubeconfig) as kube:
        context = kube._client.rest_client.ssl_context
        assert shown(context, authority.hub()) == "one"
        authority.issue("two", "hubs", file="client")
        server.now += MINUTE
        await server.used_by(kube)
        assert shown(context, authority.hub()) == "two"


# ---- when they are loaded --------------------------------------------------------------------------------------------


async def test_many_requests_at_once_load_the_credentials_once(tmp_path: Path) -> None:
    server = Server()
    (tmp_path / "given").write_text("one")
    async with server.asked_by(write(tmp_path / "kubeconfig", plugin(tmp_path))) as kube:
        assert runs(tmp_path) == 1
        server.now += MINUTE
        await asyncio.gather(*(ask(kube) for _ in range(50)))
        await settle(kube)
        await asyncio.gather(*(ask(kube) for _ in range(50)))
    assert runs(tmp_path) == 2


async def test_credentials_that_are_refused_are_loaded_at_once_but_not_all_the_time(tmp_path: Path) -> None:
    server, given = Server(), tmp_path / "given"
    given.write_text("expired")
    async with server.asked_by(write(tmp_path / "kubeconfig", plugin(tmp_path))) as kube:
        server.takes = "Bearer two"
        server.now += 5
        await refusal(kube)
        await settle(kube)
        assert runs(tmp_path) == 2
        for _ in range(10):
            await refusal(kube)
        await settle(kube)
        assert runs(tmp_path) == 2
        given.write_text("two")
        server.now += 5
        await refusal(kube)
        await settle(kube)
        await ask(kube)
    assert server.seen[-1] == "Bearer two"


async def test_a_plugin_that_hangs_stops_no_request_and_is_started_no_second_time(tmp_path: Path) -> None:
    server = Server()
    (tmp_path / "given").write_text("one")
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    os.write(gate, b"\n")
    async with server.asked_by(write(tmp_path / "kubeconfig", plugin(tmp_path, before="read _ < gate"))) as kube:
        server.now += MINUTE
        await ask(kube)
        server.now += MINUTE
        await ask(kube)
        server.takes = "Bearer two"
        assert "there are no newer ones: loading it has not ended yet" in await refusal(kube)
        assert server.seen == ["Bearer one"] * 3
        (tmp_path / "given").write_text("two")
        os.write(gate, b"\n")
        await settle(kube)
        await ask(kube)
    assert runs(tmp_path) == 2
    os.close(gate)


# ---- what cannot be loaded -------------------------------------------------------------------------------------------


async def test_without_a_new_token_the_old_one_is_tried_and_a_refusal_says_why(
    short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, token = Server(), short_dir / "token"
    token.write_text("one")
    kubeconfig = write(short_dir / "kubeconfig", {"tokenFile": str(token)})
    async with server.asked_by(kubeconfig) as kube:
        token.unlink()
        text = await server.keeps(kube, "Bearer one")
        assert f"the credentials of --kubeconfig={kubeconfig} are refused, and there are no newer ones:" in text
        assert f"No such file or directory: '{token}'" in text

        server.takes = "Bearer two"
        token.write_text("two")
        server.now += MINUTE
        await refusal(kube)
        await settle(kube)
        await ask(kube)
        server.takes = "Bearer three"
        assert (await refusal(kube)).endswith("are refused")
    said = [record.message for record in caplog.records if record.name.startswith("csi_bridge")]
    assert len(said) == 1
    assert "are not renewed, and the old ones are kept" in said[0]


@pytest.mark.parametrize("text", ["", "{", "apiVersion: v1\nkind: Config\n", "- 1\n", "clusters: 3\n", None])
async def test_a_kubeconfig_that_has_become_unusable_leaves_the_old_credentials(
    text: str | None, tmp_path: Path
) -> None:
    server, kubeconfig = Server(), write(tmp_path / "kubeconfig", {"token": "one"})
    async with server.asked_by(kubeconfig) as kube:
        if text is None:
            kubeconfig.unlink()
        else:
            kubeconfig.write_text(text)
        why = await server.keeps(kube, "Bearer one")
        assert f"{kubeconfig} are refused, and there are no newer ones: cannot be used: " in why


async def test_an_exec_plugin_that_fails_leaves_the_old_token(tmp_path: Path) -> None:
    server, given = Server(), tmp_path / "given"
    given.write_text("one")
    async with server.asked_by(write(tmp_path / "kubeconfig", plugin(tmp_path))) as kube:
        given.unlink()
        why = await server.keeps(kube, "Bearer one")
        assert "there are no newer ones: it gives none; if it has an exec plugin, the hub's log" in why


@pytest.mark.parametrize(("text", "why"), [("", "Token file exists but empty"), (None, "token file does not exist")])
async def test_a_service_account_without_its_token_leaves_the_old_one(
    text: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, token = Server(), in_cluster(tmp_path, monkeypatch)
    async with server.asked_by(IN_CLUSTER) as kube:
        if text is None:
            token.unlink()
        else:
            token.write_text(text)
        assert why in await server.keeps(kube, "bearer one")


async def test_a_token_for_another_api_server_is_not_shown_to_this_one(tmp_path: Path) -> None:
    server, kubeconfig = Server(), write(tmp_path / "kubeconfig", {"token": "one"})
    async with server.asked_by(kubeconfig) as kube:
        write(kubeconfig, {"token": "secret"}, server="http://other")
        assert "it names another API server" in await server.keeps(kube, "Bearer one")


async def test_a_client_certificate_without_its_key_leaves_the_old_one(tmp_path: Path) -> None:
    server, authority = Server(), Authority(tmp_path)
    hub = authority.issue("one", "hubs", file="client")
    user = {"client-certificate": str(hub.cert), "client-key": str(hub.key)}
    kubeconfig = write(tmp_path / "kubeconfig", user, server="https://api", **{"certificate-authority": str(hub.ca)})
    async with server.asked_by(kubeconfig) as kube:
        hub.key.write_bytes(authority.issue("two", "hubs", file="other").key.read_bytes())
        server.now += MINUTE
        await server.used_by(kube)
        assert shown(kube._client.rest_client.ssl_context, authority.hub()) == "one"
        server.takes = "a certificate"
        assert "its client certificate cannot be used: " in await refusal(kube)


async def test_of_what_stands_in_the_kubeconfig_itself_no_file_stays_and_none_is_needed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    server, authority = Server(), Authority(tmp_path)
    for name in ("one", "two"):
        hub = authority.issue(name, "hubs", file=name)
        user = {"client-certificate-data": base64_of(hub.cert), "client-key-data": base64_of(hub.key)}
        cluster = {"certificate-authority-data": base64_of(hub.ca)}
        kubeconfig = write(tmp_path / name, user, server="https://api", **cluster)
    async with server.asked_by(tmp_path / "one") as kube:
        assert list(files.iterdir()) == []
        (tmp_path / "one").write_bytes(kubeconfig.read_bytes())
        server.now += MINUTE
        await server.used_by(kube)
        assert shown(kube._client.rest_client.ssl_context, authority.hub()) == "two"
        assert list(files.iterdir()) == []


async def test_a_kubeconfig_that_cannot_be_used_is_named_without_its_tokens(tmp_path: Path) -> None:
    kubeconfig = write(tmp_path / "kubeconfig", {})
    kubeconfig.write_text(kubeconfig.read_text().replace('"user": {}', '"token": "secret"'))
    with pytest.raises(SettingsError, match="Expected key user in") as caught:
        async with connect(str(kubeconfig)):
            pass
    assert "secret" not in str(caught.value)


# ---- what they need --------------------------------------------------------------------------------------------------


def in_cluster(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service account of a pod; the file of its token."""
    token = directory / "token"
    token.write_text("one")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(Authority(directory).path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "api")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return token


def base64_of(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def shown(context: ssl.SSLContext, server: Pem) -> str:
    """The name in the certificate that a client shows to a server."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asking.load_cert_chain(server.cert, server.key)
    asking.load_verify_locations(server.ca)
    asking.verify_mode = ssl.CERT_REQUIRED
    _, there = handshake(context, asking)
    certificate: Any = there.getpeercert()
    return str(dict(field[0] for field in certificate["subject"])["commonName"])


# ---- what is no list -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"items": []}',
        b'{"metadata": [], "items": []}',
        b'{"metadata": {"resourceVersion": ""}, "items": []}',
        b'{"metadata": {"resourceVersion": "1"}, "items": {"a": 1}}',
    ],
)
async def test_an_answer_that_is_no_list_is_not_taken_for_an_empty_one(tmp_path: Path, body: bytes) -> None:
    server = Server()
    server.body = body
    async with server.asked_by(write(tmp_path / "kubeconfig", {"token": "t"})) as kube:
        with pytest.raises(KubeError, match="list nodes: the answer is not a list"):
            await ask(kube)


async def test_a_connection_that_the_loop_refuses_is_an_error_of_the_request(tmp_path: Path) -> None:
    """uvloop takes no descriptor that it still counts as a dying connection's, as when an API server was killed."""

    async def request(*_: object, **_how: object) -> Answer:
        raise RuntimeError("File descriptor 14 is used by transport <TCPTransport closed=False>")

    server = Server()
    async with server.asked_by(write(tmp_path / "config", {})) as kube:
        kube._client.rest_client.request = request  # type: ignore[method-assign, assignment]  # it has no types
        with pytest.raises(KubeError, match="is used by transport"):
            await ask(kube)
