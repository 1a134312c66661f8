"""The HTTP endpoint over real sockets: what it answers, and what slow, silent and broken clients cannot do to it."""

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from common.errors import SettingsError
from common.observe.httpd import CONNECTION_LIMIT_S, MOST_CONNECTIONS, HttpEndpoint
from common.observe.metrics import Metrics
from common.parsers import HostPort
from tests.kit.bridge import Bridge
from tests.kit.ports import free_ports
from tests.kit.vendor import Vendor
from tests.kit.waiting import wait_for

ANY_PORT = HostPort("127.0.0.1", 0)

SOON_S = CONNECTION_LIMIT_S / 2  # before a silent connection would have ended by itself


class Health:
    """A process's readiness that the test sets."""

    def __init__(self) -> None:
        # A process that has become ready still has its sentence for the time when it was not.
        self.answer: tuple[bool, str] | Exception = (True, "no link to the hub")

    def __call__(self) -> tuple[bool, str]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def endpoint(health: Health, metrics: Metrics) -> Iterator[HttpEndpoint]:
    endpoint = HttpEndpoint(ANY_PORT, metrics=metrics, ready=health)
    yield endpoint
    endpoint.close()


def ask(endpoint: HttpEndpoint, path: str, method: str = "GET") -> tuple[int, str]:
    return ask_at(endpoint.address, path, method)


def ask_at(address: HostPort, path: str, method: str = "GET") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(*address, timeout=20)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_metrics_show_what_was_counted(endpoint: HttpEndpoint, metrics: Metrics) -> None:
    metrics.find("d.example", "/csi.v1.Controller/CreateVolume", 0)
    status, text = ask(endpoint, "/metrics")
    assert status == 200
    assert 'csi_plugin_operations_seconds_count{driver_name="d.example",grpc_status_code="OK"' in text


@pytest.mark.parametrize("headers", [{}, {"Accept-Encoding": "gzip"}])
def test_metrics_say_their_length_so_that_a_cut_answer_does_not_look_whole(
    endpoint: HttpEndpoint, headers: dict[str, str]
) -> None:
    with closing(http.client.HTTPConnection(*endpoint.address, timeout=20)) as connection:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        assert response.headers["Content-Length"] == str(len(response.read()))


def test_readiness_is_the_process_s_own_answer_with_its_reason_and_a_live_process_is_healthy_without_it(
    endpoint: HttpEndpoint, health: Health
) -> None:
    assert ask(endpoint, "/readyz") == (200, "ok\n")
    health.answer = (False, "no link to the hub")
    assert ask(endpoint, "/readyz") == (503, "no link to the hub\n")
    assert ask(endpoint, "/healthz") == (200, "ok\n")


def test_only_a_process_that_may_be_a_standby_says_whether_it_is_active(
    endpoint: HttpEndpoint, health: Health, metrics: Metrics
) -> None:
    assert ask(endpoint, "/readyz/active") == (404, "this endpoint has /metrics, /healthz, /readyz\n")
    with closing(HttpEndpoint(ANY_PORT, metrics=metrics, ready=lambda: (True, ""), active=health)) as hub:
        assert ask(hub, "/readyz/active") == (200, "ok\n")
        health.answer = (False, "it waits")
        assert (ask(hub, "/readyz/active"), ask(hub, "/readyz")) == ((503, "it waits\n"), (200, "ok\n"))


def test_a_readiness_check_that_fails_means_not_ready_and_tells_nothing(endpoint: HttpEndpoint, health: Health) -> None:
    health.answer = RuntimeError("hunter2")
    assert ask(endpoint, "/readyz") == (503, "the readiness check failed; the log says how\n")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_each_page_is_for_reading_only_and_a_script_of_a_web_page_gets_nothing(
    endpoint: HttpEndpoint, path: str
) -> None:
    assert ask(endpoint, path, "POST")[0] == 405
    assert ask(endpoint, f"{path}/")[0] == 404
    with closing(http.client.HTTPConnection(*endpoint.address, timeout=20)) as connection:
        connection.request("GET", path, headers={"Origin": "http://evil.example"})
        response = connection.getresponse()
        assert response.status == 403
        assert b"answers no web page" in response.read()


def test_a_proxy_driver_is_ready_once_it_knows_its_driver_and_a_lone_hub_is_active(
    bridge: Bridge, vendor: Vendor
) -> None:
    address, of_hub = (HostPort("127.0.0.1", port) for port in free_ports(2))
    bridge.start_hub(f"--http={of_hub}")
    assert [ask_at(of_hub, path) for path in ("/readyz", "/readyz/active")] == [(200, "ok\n")] * 2
    proxy = bridge.start_proxy(vendor.identity.name, f"--http={address}")
    assert ask_at(address, "/readyz") == (503, "the driver is not known yet\n")
    bridge.start_agent("n1", vendor.socket)
    bridge.wait_routed(proxy.sidecar())
    wait_for(lambda: ask_at(address, "/readyz") == (200, "ok\n"), what="ready proxy driver")


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/healthz", 200), ("/readyz", 503), ("/debug", 404)])
def test_a_head_request_gets_the_head_of_the_answer_and_no_body(
    endpoint: HttpEndpoint, health: Health, path: str, status: int
) -> None:
    """Asked on the socket itself: Python's HTTP client reads no body after HEAD, whether there is one or not."""
    health.answer = (False, "no link to the hub")
    with socket.create_connection(endpoint.address, timeout=20) as client:
        client.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: client.recv(65_536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.0 {status} ".encode())
    assert b"\r\nContent-Type: text/plain" in head
    assert body == b""


def test_beyond_the_limit_the_oldest_connection_is_closed_and_silent_clients_keep_nobody_out(
    endpoint: HttpEndpoint,
) -> None:
    with ExitStack() as silent:
        oldest = silent.enter_context(socket.create_connection(endpoint.address, timeout=SOON_S))
        oldest.sendall(b"GET /metr")
        for _ in range(2 * MOST_CONNECTIONS):
            silent.enter_context(socket.create_connection(endpoint.address))
        assert oldest.recv(1) == b""
        assert ask(endpoint, "/healthz") == (200, "ok\n")


@pytest.mark.parametrize(
    "sent", [b"\0\xff garbage\r\n\r\n", b"GET " + b"/x" * 50_000 + b" HTTP/1.1\r\n\r\n", b"GET\r\n\r\n"]
)
def test_garbage_is_refused(endpoint: HttpEndpoint, sent: bytes) -> None:
    with socket.create_connection(endpoint.address, timeout=20) as client:
        client.sendall(sent)
        answer = client.recv(1000)
    assert b" 4" in answer.splitlines()[0] or b"<!DOCTYPE" in answer
    assert ask(endpoint, "/healthz") == (200, "ok\n")


def test_closing_frees_the_port_and_cuts_the_connections(health: Health, metrics: Metrics) -> None:
    endpoint = HttpEndpoint(ANY_PORT, metrics=metrics, ready=health)
    with socket.create_connection(endpoint.address, timeout=SOON_S) as silent:
        ask(endpoint, "/healthz")  # the connection before this one has been accepted too
        endpoint.close()
        assert silent.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(endpoint.address)
    HttpEndpoint(endpoint.address, metrics=metrics, ready=health).close()
    endpoint.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "csi-bridge-http"]


def test_it_listens_on_ipv6(health: Health, metrics: Metrics) -> None:
    try:
        endpoint = HttpEndpoint(HostPort("::1", 0), metrics=metrics, ready=health)
    except SettingsError as error:
        pytest.skip(f"needs IPv6 ({error})")
    assert ask(endpoint, "/healthz") == (200, "ok\n")
    endpoint.close()


def test_a_process_ends_while_it_serves() -> None:
    program = (
        "from common.observe.httpd import *; from common.observe.metrics import Metrics; import socket\n"
        "e = HttpEndpoint(HostPort('127.0.0.1', 0), metrics=Metrics(), ready=lambda: (True, ''))\n"
        "c = socket.create_connection(e.address); print('served')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "served\n")
