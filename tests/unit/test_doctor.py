"""What the doctor makes of what it sees. Sockets and processes are in the integration tests."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cli.doctor.agent import (
    advice,
    check_knowledge,
    check_kubelet,
    check_link,
    check_registered,
    check_relay,
    check_version,
    check_volumes,
    parts_seen,
    service_log,
)
from cli.doctor.certificates import check_certificate, is_refused
from cli.doctor.clock import check_clock, skew_s
from cli.doctor.cluster import NO_PROXIES
from cli.doctor.cluster import checks_of as cluster_checks
from cli.doctor.command import as_json, check_nothing, show
from cli.doctor.disk import check_directory, check_propagation, check_room, check_secret_file, check_state
from cli.doctor.finding import Check, Level, Result, known, listed, ok, perform, warning, wrong
from cli.doctor.hub import (
    _surroundings,
    check_drivers,
    check_expiry,
    check_idle,
    check_nodes,
    check_refused,
    check_reports,
    check_unreported,
    check_versions,
)
from cli.doctor.hub import check_knowledge as check_hub_knowledge
from cli.doctor.permissions import FOR_GROUPS, NEEDED, Rule
from cli.doctor.permissions import checks_of as permission_checks
from cli.doctor.permissions import examine as examine_permissions
from cli.doctor.proxy import check_call, check_sidecars, check_unknown
from cli.doctor.sockets import answers, check_socket, connections
from cli.doctor.storage_classes import check_classes
from cli.process_options import HUB_OPTIONS
from cloud.admission import Role
from cloud.kube import KubeError, Page
from cloud.node_marks import EDGE as EDGE_LABEL
from common.errors import DialError
from common.pages.agent import AgentStatus, DriverSocket, NodeVolumes
from common.pages.hub import NodeStatus, Refusal
from common.status import Code, Status
from common.tls import TlsFiles
from common.version import SOFTWARE
from edge.disk.mounts import parse
from tests.kit.certificates import Authority, Pem, bundle
from tests.kit.pages import SINCE, at, page, proxy, refusal
from tests.kit.pages import node as page_of_node
from tests.kit.pages import state as page_of_hub

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.doctor.finding import Finding
    from cli.hub_state import HubState

NOW = 1_795_252_323.0


# -------------------- findings --------------------


async def test_checks_are_made_in_order_and_one_that_fails_hides_no_other() -> None:
    async def fail() -> Finding:
        raise ValueError("a bug")

    async def hang() -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    checks = [known("a", ok("well")), Check("b", fail), Check("c", hang), known("d", ok("well"))]
    found = await perform(checks, limit_s=0.01)
    assert [(result.name, result.finding.level) for result in found] == [
        ("a", Level.OK), ("b", Level.WRONG), ("c", Level.WRONG), ("d", Level.OK),
    ]  # fmt: skip
    assert found[1].finding.what == "the check itself failed: ValueError('a bug')"
    assert found[2].finding.what == "there was no answer within 0.01 s"


async def test_a_check_that_gets_no_answer_says_what_is_in_the_way() -> None:
    async def hang() -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    slow, dropped = await perform([Check("a", hang), Check("b", hang, "look for a firewall")], limit_s=0.01)
    assert "give a longer --timeout" in slow.finding.do
    assert dropped.finding.do == "look for a firewall"


def test_of_many_names_some_are_listed() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


REPORT = {
    "hub at unix:///h": [Result("socket", ok("there")), Result("nodes", warning("n1 is\x1b away", "look"))],
    "edge agent at /e": [Result("link", wrong("none", "mend it"))],
}


def test_a_report_says_under_each_finding_what_to_do_and_ends_with_a_sum() -> None:
    assert list(show(REPORT)) == [
        "hub at unix:///h:",
        "  ok       socket: there",
        "  warning  nodes: n1 is? away",
        "           -> look",
        "",
        "edge agent at /e:",
        "  wrong    link: none",
        "           -> mend it",
        "",
        "1 wrong, 1 warning, 1 ok",
    ]


def test_a_report_for_programs_is_flat() -> None:
    told = json.loads(as_json(REPORT))
    assert (told["ok"], told["warning"], told["wrong"]) == (1, 1, 1)
    assert told["findings"][2] == {
        "at": "edge agent at /e", "check": "link", "level": "wrong", "what": "none", "do": "mend it",
    }  # fmt: skip


def test_where_nothing_runs_the_units_log_is_named_if_the_unit_is_installed(tmp_path: Path) -> None:
    elsewhere, installed = tmp_path / "run", tmp_path / "etc"
    installed.mkdir()
    assert service_log([elsewhere, installed]) == ""
    (installed / "csi-bridge-edge.service").touch()
    log = service_log([elsewhere, installed])
    assert log == "journalctl -u csi-bridge-edge"
    assert "journalctl" not in check_nothing("").do
    assert check_nothing(log).do.startswith(
        "the agent's unit csi-bridge-edge.service is installed here: read in journalctl -u csi-bridge-edge why it does "
        "not run; "
    )


def test_a_socket_whose_process_has_ended_names_the_place_of_the_log(tmp_path: Path) -> None:
    found = check_socket(tmp_path / "no", start="it", private=True, log="read journalctl -u it")
    assert found.do == "start it; if it runs already, read journalctl -u it"


# -------------------- clocks --------------------


@pytest.mark.parametrize(("ahead_s", "level"), [(0.6, "ok"), (-4.0, "ok"), (9.0, "warning"), (-400.0, "wrong")])
def test_clocks_may_differ_a_little(ahead_s: float, level: str) -> None:
    assert check_clock(ahead_s, of="the hub").level == level


def test_a_clock_is_compared_with_the_date_of_an_answer_which_is_cut_to_seconds() -> None:
    date = "Sat, 21 Nov 2026 09:12:03 GMT"
    assert skew_s(date, asked=NOW - 0.2, answered=NOW + 1.2) == pytest.approx(0.0)
    assert skew_s(date, asked=NOW + 60, answered=NOW + 61) == pytest.approx(60.0)
    assert skew_s("yesterday", asked=NOW, answered=NOW) is None
    assert check_clock(60.0, of="the hub").what == "the clock of this machine is 60 s ahead of that of the hub"
    assert check_clock(None, of="the hub").what == "the hub does not tell its time"


# -------------------- disks --------------------


def test_a_directory_that_can_be_written_is_well(tmp_path: Path) -> None:
    assert check_directory(tmp_path, flag="--x").what.startswith(f"{tmp_path} can be written (")


def test_a_directory_that_is_missing_a_file_or_everybodys_is_wrong(tmp_path: Path) -> None:
    assert check_directory(tmp_path / "no", flag="--x").what.endswith("no cannot be used: No such file or directory")
    (tmp_path / "file").touch()
    assert check_directory(tmp_path / "file", flag="--x").what.endswith("file is not a directory")
    tmp_path.chmod(0o777)
    assert check_directory(tmp_path, flag="--x").do == f"chmod o-rwx {tmp_path}"


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "level"),
    [(1 << 30, 10_000, "ok"), (1 << 30, None, "ok"), (100 << 20, None, "warning"), (1 << 30, 500, "warning"),
     (4096, None, "wrong"), (1 << 30, 0, "wrong")],
)  # fmt: skip
def test_a_disk_is_full_of_bytes_or_of_files(free_bytes: int, free_files: int | None, level: str) -> None:
    assert check_room(Path("/d"), free_bytes=free_bytes, free_files=free_files).level == level


def test_a_state_directory_is_closed_to_other_users(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert check_state(tmp_path).level == "ok"
    tmp_path.chmod(0o750)
    found = check_state(tmp_path)
    assert (found.level, found.do) == ("warning", f"chmod 0700 {tmp_path}")
    assert check_state(tmp_path / "no").level == "wrong"


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 8:2 / /var/lib/kubelet rw,relatime - ext4 /dev/sdb1 rw
23 21 8:2 / /srv/a rw,relatime master:1 - ext4 /dev/sdb1 rw
24 23 8:2 / /srv/a rw,relatime shared:7 master:1 - ext4 /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "level", "point"),
    [("/var/lib/kubelet", "warning", "/var/lib/kubelet"), ("/var/lib/kubelet/pods", "warning", "/var/lib/kubelet"),
     ("/var/lib/kubelets", "ok", "/"), ("/srv/a/b", "ok", "/srv/a"), ("/", "ok", "/")],
)  # fmt: skip
def test_mounts_are_seen_elsewhere_if_the_uppermost_mount_of_the_directory_is_shared(
    path: str, level: str, point: str
) -> None:
    found = check_propagation(Path(path), parse(MOUNTS))
    assert (found.level, point in found.what) == (level, True)


def test_a_directory_with_a_blank_in_its_name_is_on_its_own_mount_and_not_on_the_one_above() -> None:
    own = "25 21 8:3 / /srv/a\\040b rw,relatime - ext4 /dev/sdc1 rw\n"
    assert check_propagation(Path("/srv/a b/kubelet"), parse(MOUNTS + own)).level == "warning"


# -------------------- sockets --------------------


def test_a_socket_tells_who_listens_and_who_may_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("a.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert (
            check_socket(path, start="it", private=True).what
            == "nobody listens on a.sock: the process that made it has ended"
        )
        assert not answers(path)
        listener.listen()
        path.chmod(0o600)
        found = check_socket(path, start="it", private=True)
        assert (found.level, "listens on a.sock (mode 0600)" in found.what) == ("ok", True)
        assert answers(path)
        path.chmod(0o666)
        assert check_socket(path, start="it", private=True).level == "warning"
        assert check_socket(path, start="it", private=False).level == "ok"


def test_a_socket_that_is_not_there_or_is_none_is_wrong(tmp_path: Path) -> None:
    assert check_socket(tmp_path / "no", start="it", private=True).do == "start it; if it runs already, look at its log"
    assert check_socket(tmp_path, start="it", private=True).what == f"{tmp_path} is not a socket"
    assert not answers(tmp_path / ("x" * 200))


def test_connections_are_the_accepted_ends_of_a_path() -> None:
    table = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0: 00000002 00000000 00010000 0001 01 1001 /csi/csi.sock\n"
        "1: 00000003 00000000 00000000 0001 03 1002 /csi/csi.sock\n"
        "2: 00000003 00000000 00000000 0001 03 1003\n"
        "3: 00000003 00000000 00000000 0001 03 1004 /csi/csi.sock\n"
        "4: 00000003 00000000 00000000 0001 03 1005 /csi/csi.sock2\n"
    )
    assert connections(Path("/csi/csi.sock"), table) == 2
    odd = "/csi/a\x85b\r.sock"
    assert connections(Path(odd), table + f"5: 00000003 00000000 00000000 0001 03 1006 {odd}\n") == 1


# -------------------- certificates --------------------


def certificate(pem: Pem, *, now: float | None = None, name: str = "n1", hub: bool = False) -> Finding:
    files = TlsFiles(pem.ca, pem.cert, pem.key)
    pem.key.chmod(0o600)
    at = now if now is not None else pem.cert.stat().st_mtime
    return check_certificate(files, server=hub, now=at, name=name, role=None if hub else Role.EDGE)


def test_a_certificate_says_until_when_it_counts_and_for_whom(tmp_path: Path) -> None:
    found = certificate(Authority(tmp_path).edge("n1"))
    assert found.level == "ok"
    assert found.what.endswith("for CN=system:node:n1 O=system:nodes (localhost, 127.0.0.1)")
    assert certificate(Authority(tmp_path).hub(), hub=True).level == "ok"


def test_a_certificate_counts_from_its_beginning_to_its_end_and_is_told_to_end_soon(tmp_path: Path) -> None:
    pem = Authority(tmp_path).edge("n1")
    made = pem.cert.stat().st_mtime
    assert "has expired at " in certificate(pem, now=made + 3_601).what
    assert "is not valid before " in certificate(pem, now=made - 600).what
    soon = certificate(pem, now=made + 3_000)
    assert (soon.level, " expires at " in soon.what) == ("warning", True)


def test_a_certificate_of_another_node_names_the_one_that_is_needed(tmp_path: Path) -> None:
    found = certificate(Authority(tmp_path).edge("n2"))
    assert found.what.startswith("the hub refuses the certificate in use here: the peer says that it is edge n1, but ")
    assert "CN=system:node:n1 O=system:nodes" in found.what


def test_a_certificate_that_the_hub_would_refuse_is_told_in_the_hubs_words(tmp_path: Path) -> None:
    two = Authority(tmp_path).issue(["system:node:n1", "system:node:n2"], "system:nodes", file="two")
    assert certificate(two).what.startswith("the hub refuses the certificate in use here: ")


def test_while_the_ca_is_changed_an_old_one_that_has_ended_is_a_warning_unless_it_signed(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, name="old", lifetime_s=-60.0), Authority(tmp_path, name="new")
    both = bundle(tmp_path / "ca.pem", old, new)
    pem = new.edge("n1")
    found = certificate(Pem(both, pem.cert, pem.key))
    assert (found.level, found.do) == ("warning", f"remove it from {both}, or renew it")
    assert found.what.startswith(f"a CA in {both} has expired at ")
    signed_by_old = old.edge("n1")
    found = certificate(Pem(both, signed_by_old.cert, signed_by_old.key))
    assert (found.level, found.what.startswith(f"a CA in {both} has expired at ")) == ("wrong", True)


def test_a_certificate_of_another_authority_is_refused_by_every_peer(tmp_path: Path) -> None:
    pem = Authority(tmp_path).edge("n1")
    other = Authority(tmp_path, name="another CA")
    found = certificate(Pem(other.path, pem.cert, pem.key))
    assert found.what == f"{pem.cert} is not signed by a CA in {other.path}"


def test_tls_files_that_do_not_fit_together_and_keys_that_all_may_read_are_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.edge("n1"), authority.edge("n2")
    found = certificate(Pem(first.ca, first.cert, second.key))
    assert "the key is not that certificate's" in found.what
    first.key.chmod(0o644)
    files = TlsFiles(first.ca, first.cert, first.key)
    found = check_certificate(files, server=False, now=first.cert.stat().st_mtime, name="n1", role=Role.EDGE)
    assert (found.level, found.do) == ("warning", f"chmod o-rwx {first.key}")


def test_a_peer_refuses_a_certificate_by_its_dates_and_its_authority_and_not_by_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.edge("n1")
    made = pem.cert.stat().st_mtime

    def refused(ca: Path, now: float) -> bool:
        return is_refused(TlsFiles(ca, pem.cert, pem.key), now=now)

    assert not refused(pem.ca, made)
    assert not refused(pem.ca, made + 3_000)  # it expires soon
    assert refused(pem.ca, made + 3_601)
    assert refused(pem.ca, made - 600)
    assert refused(Authority(tmp_path, name="another CA").path, made)
    assert not refused(tmp_path / "none.pem", made)


# -------------------- the agent --------------------


def agent(**changes: Any) -> AgentStatus:
    usual: dict[str, Any] = {
        "software": SOFTWARE,
        "hub_software": SOFTWARE,
        "node": "n1",
        "connected": True,
        "since": SINCE,
        "hub": "wss://hub:1",
        "why": "",
        "drivers": [],
        "problems": [],
        "operations": [],
        "registered": [],
        "settings": {},
    }
    return page(AgentStatus, **(usual | changes))


def test_an_agent_of_another_version_is_told_apart_from_what_is_installed_and_from_the_hub() -> None:
    assert check_version(agent()).level == "ok"
    assert check_version(agent(hub_software="")).what == f"the agent is {SOFTWARE}"
    assert check_version(agent(software="csi-bridge/9")).do == "restart the agent"
    assert check_version(agent(hub_software="csi-bridge/9")).what.endswith("and the hub is csi-bridge/9")


def test_without_a_link_the_hubs_own_words_are_told() -> None:
    assert check_link(agent()).what == "node n1 is connected to wss://hub:1 since 2026-11-21T09:12:03Z"
    found = check_link(agent(connected=False, why="the hub is full"))
    assert (found.level, found.what.endswith("Z: the hub is full")) == ("wrong", True)


def untrusted(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (untrusted(20), "--tls-ca the CA that signed the hub's certificate"),
        (untrusted(10), "renew the hub's certificate"),
        (untrusted(62), "this host name as subjectAltName"),
        (ssl.SSLError(1, "alert unknown ca"), "see the check of the certificate"),
        (socket.gaierror(-2, "Name or service not known"), "name resolution"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "see that the hub runs"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "firewall"),
        (OSError(errno.EMFILE, "Too many open files"), "no other server or proxy"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_told_with_what_is_in_the_way(cause: OSError, words: str) -> None:
    error = DialError("wss://hub:1", "no")
    error.__cause__ = cause
    assert words in advice(error)


@pytest.mark.parametrize(
    "cause",
    [ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), asyncio.IncompleteReadError(b"", None)],
)
def test_a_connection_that_the_hub_ends_is_put_down_to_a_certificate_that_it_refuses(cause: Exception) -> None:
    error = DialError("wss://hub:1", "no")
    error.__cause__ = cause
    assert "no other server or proxy" in advice(error)
    assert advice(error, refused=True).startswith("see the check of the certificate: the hub ends the connection of ")


def test_a_hub_that_cannot_be_asked_at_all_is_not_put_down_to_the_certificate() -> None:
    error = DialError("wss://hub:1", "no")
    error.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    assert advice(error, refused=True) == advice(error)


@pytest.mark.parametrize(
    ("own", "there", "level"),
    [(True, False, "ok"), (True, True, "wrong"), (False, True, "ok"), (False, False, "warning")],
)
def test_a_kubelet_is_where_the_agent_leaves_the_mounting_to_it(own: bool, there: bool, level: str) -> None:
    assert check_kubelet(own=own, there=there, root=Path("/var/lib/kubelet")).level == level


IN_A_POD = """\
30 20 0:50 / / rw,relatime - overlay overlay rw
31 30 8:1 /var/lib/kubelet/plugins {root}/plugins rw,relatime master:1 - ext4 /dev/sda1 rw
32 30 8:1 /var/lib/kubelet/plugins_registry {root}/plugins_registry rw,relatime master:1 - ext4 /dev/sda1 rw
33 31 0:60 / {root}/plugins/kubernetes.io/csi/d.example/1/globalmount rw,relatime - tmpfs tmpfs rw
"""


def test_an_agent_that_sees_a_part_of_the_root_directory_does_not_miss_the_kubelet(tmp_path: Path) -> None:
    for name in ("plugins", "plugins_registry"):
        (tmp_path / name).mkdir()
    points = [mount.path for mount in parse(IN_A_POD.format(root=tmp_path))]
    assert parts_seen(tmp_path, points) == ["plugins", "plugins_registry"]
    found = check_kubelet(own=False, there=False, root=tmp_path, seen=["plugins", "plugins_registry"])
    assert (found.level, found.what) == (
        "ok",
        f"whether a kubelet runs is not checked: this container sees only plugins, plugins_registry of {tmp_path}",
    )


def test_an_agent_that_sees_the_whole_root_directory_misses_the_kubelet(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    assert parts_seen(tmp_path, ["/", str(tmp_path)]) == []
    (tmp_path / "pods").mkdir()
    assert parts_seen(tmp_path, [mount.path for mount in parse(IN_A_POD.format(root=tmp_path))]) == []


def test_a_driver_that_is_not_registered_is_named() -> None:
    entry = {"name": "a.example", "nodeID": "id-1"}
    assert check_registered([driver("a.example")], [entry]).what == "the CSINode has an entry for a.example as id-1"
    found = check_registered([driver("a.example"), driver("b.example")], [entry])
    assert found.what == "no volume of these drivers can be mounted here: b.example"


@pytest.mark.parametrize(
    ("own_topology", "relay", "words"),
    [
        (True, "", "has a topology of its own and needs no relay"),
        (False, "/r/d.sock", "the relay serves driver d.example at /r/d.sock"),
        (False, "", "right unless its proxy driver runs with --placement=local"),
    ],
)
def test_a_driver_beside_a_kubelet_says_whether_it_needs_the_relay(own_topology: bool, relay: str, words: str) -> None:
    found = check_relay("d.example", own_topology=own_topology, relay=relay)
    assert (found.level, words in found.what) == ("ok", True)


def driver(name: str) -> DriverSocket:
    return DriverSocket(name=name, socket=f"/{name}", services=[], relay="", trouble="")


def volumes(*found: dict[str, Any], **changes: Any) -> NodeVolumes:
    usual = {"node": "n1", "connected": True, "since": SINCE, "as_of": SINCE, "in_step": True, "volumes": list(found)}
    return page(NodeVolumes, **(usual | changes))


@pytest.mark.parametrize(
    ("state", "level", "word"),
    [
        (volumes(), "ok", "the node has its pods"),
        (volumes(trouble="disk full"), "wrong", "disk full"),
        (volumes(as_of=None), "warning", "never sent"),
        (volumes(connected=False, facts_waiting=3), "warning", "3 facts wait"),
        (volumes(in_step=False), "warning", "not yet sent"),
        (volumes(facts_waiting=3), "warning", "3 facts"),
    ],
)
def test_what_a_node_knows_and_has_to_tell(state: NodeVolumes, level: str, word: str) -> None:
    found = check_knowledge(state)
    assert (found.level, word in found.what) == (level, True)


def test_volumes_with_an_error_are_counted_and_one_is_told() -> None:
    well = {"namespace": "d", "pod": "a", "volume": "v", "state": "published", "error": ""}
    assert check_volumes(volumes(well)).what == "1 of 1 volumes are published"
    found = check_volumes(volumes(well, well | {"pod": "b", "state": "waiting", "error": "no such disk"}))
    assert found.what == "1 of 2 volumes have an error; d/b v, for one: no such disk"


# -------------------- the hub --------------------


def node(name: str = "n1", *, connected: bool = True, **changes: Any) -> NodeStatus:
    usual: dict[str, Any] = {"software": SOFTWARE if connected else "", "drivers": ["d.example"]}
    usual |= {"connected": connected, "versions": {"d.example": "1"}}
    return page_of_node(name, **(usual | changes))


def hub(*nodes: NodeStatus, proxies: tuple[str, ...] = ("d.example",), **changes: Any) -> HubState:
    drivers = [proxy(name, software=SOFTWARE) for name in proxies]
    return page_of_hub(*nodes, **({"software": SOFTWARE, "drivers": drivers} | changes))


def test_versions_that_differ_from_the_hubs_are_named_with_those_who_have_them() -> None:
    assert check_versions(hub(node(), node("n2", connected=False))).level == "ok"
    found = check_versions(hub(node(software="csi-bridge/0"), node("n2", software="csi-bridge/0")))
    assert found.what == f"the hub is {SOFTWARE}, and there is csi-bridge/0 at n1, n2"
    assert check_versions(hub(software="csi-bridge/0")).do == "restart the hub"


def test_a_hub_that_lost_something_or_cannot_write_is_wrong_and_has_problems_by_the_dozen() -> None:
    state = hub(lost=["hub.db was gone"], trouble="disk full", problems=[f"p{number}" for number in range(25)])
    found = list(check_hub_knowledge(state))
    assert [finding.level for finding in found] == ["wrong"] * 2 + ["warning"] * 21
    assert found[-1].what == "there are 5 more problems"
    assert list(check_hub_knowledge(hub())) == []


def test_a_kind_that_the_hub_may_not_read_is_wrong_and_a_secret_of_a_volume_is_a_warning() -> None:
    user = 'User "system:serviceaccount:csi-bridge:csi-bridge-hub" cannot'
    problems = [
        f'Kubernetes: list pods: pods is forbidden: {user} list resource "pods"',
        f'Kubernetes: watch nodes: nodes is forbidden: {user} watch resource "nodes"',
        f'Kubernetes: get Secret shop/key: secrets "key" is forbidden: {user} get resource "secrets"',
        "Kubernetes: list pods: https://api did not answer in time",
    ]
    found = list(check_hub_knowledge(hub(problems=problems)))
    assert [finding.level for finding in found] == ["wrong", "wrong", "warning", "warning"]
    assert "kubectl apply -k my-cluster/cloud" in found[0].do


async def test_a_hub_without_a_listener_and_one_on_which_nobody_answers_are_told(tmp_path: Path) -> None:
    texts = {"state_dir": str(tmp_path)}
    *_, without = await perform(_surroundings(HUB_OPTIONS.read(texts)), limit_s=5.0)
    assert without.finding.what == "without --listen no edge agent can connect"
    texts |= {"listen": "127.0.0.1:1", "insecure": "true"}
    *_, dead = await perform(_surroundings(HUB_OPTIONS.read(texts)), limit_s=5.0)
    assert dead.finding.what.startswith("nobody answers at --listen=127.0.0.1:1: ")


def test_certificates_that_end_soon_are_told_with_the_advice() -> None:
    state = hub(ending=["the certificate in /c ends at T; renew the file, and no restart is needed"])
    (found,) = check_expiry(state.hub)
    assert found == warning("the certificate in /c ends at T", "renew the file, and no restart is needed")


def test_refused_reports_and_missing_capabilities_of_nodes_are_told() -> None:
    nodes = [node(refused={"d.example": "line 2"}, lacking={"e.example": ["CLONE_VOLUME"]}, problems=["it did x"])]
    refused, lacking, problem = check_reports(nodes)
    assert (refused.level, refused.what) == ("wrong", "edge node n1 gets no call of driver d.example: line 2")
    assert lacking.what == "driver e.example on edge node n1 lacks CLONE_VOLUME, which it has on most nodes"
    assert (problem.level, problem.what) == ("warning", "it did x")


def test_a_key_is_there_and_closed_to_others(tmp_path: Path) -> None:
    key = tmp_path / "ca.key"
    assert check_secret_file(key, flag="--ca-key").do == "correct --ca-key"
    key.touch(mode=0o600)
    assert check_secret_file(key, flag="--ca-key").level == "ok"
    key.chmod(0o644)
    assert check_secret_file(key, flag="--ca-key").do == f"chmod o-rwx {key}"


def test_nodes_that_are_away_are_named_with_the_time() -> None:
    assert check_nodes([node()]).what == "1 of 1 nodes are connected"
    assert check_nodes([node(), node("n2", connected=False)]).what == (
        "1 of 2 nodes are offline: n2 since 2026-11-21T09:12:03Z"
    )
    assert check_nodes([]).what == "no edge node has ever connected to this hub"


def test_a_connected_node_without_a_driver_is_named() -> None:
    (found,) = check_idle([node(), node("n2", drivers=[]), node("n3", connected=False, drivers=[])])
    assert found.what.startswith("these nodes are connected and run no CSI driver: n2; ")
    assert list(check_idle([node()])) == []


def test_a_driver_that_a_connected_node_no_longer_reports_is_named() -> None:
    (found,) = check_unreported([node(unreported=["d.example"]), node("n2")])
    assert found.what == "edge node n1 is connected and no longer reports driver d.example"
    assert found.do.endswith("csi-bridge forget n1 d.example")


def test_who_was_refused_lately_is_told_and_who_gave_up_is_not() -> None:
    told = {"address": "10.0.0.7:1", "why": "it is full"}
    late, lately = (page(Refusal, **refusal("n7", at=at(NOW - ago_s), **told)) for ago_s in (100, 30))
    (found,) = check_refused([lately, late], NOW)
    assert found.what == "edge n7 from 10.0.0.7:1 was refused at 2026-11-21T09:11:33Z: it is full"


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        (hub(node()), "ok", "driver d.example 1 runs on n1, and its proxy driver is connected"),
        (hub(), "wrong", "no edge node has reported such a driver"),
        (hub(node(), proxies=()), "warning", "no proxy driver of that name is connected"),
        (hub(node(connected=False)), "wrong", "of which none is connected"),
        (hub(node(), node("n2", versions={"d.example": "2"})), "warning", "several versions: 1, 2"),
    ],
)
def test_a_driver_needs_a_proxy_driver_and_a_node(state: HubState, level: str, words: str) -> None:
    (found,) = check_drivers(state)
    assert (found.level, words in found.what) == (level, True)


# -------------------- the proxy driver --------------------


@pytest.mark.parametrize("code", [Code.OK, Code.UNIMPLEMENTED, Code.INTERNAL])
def test_whatever_the_vendor_says_to_a_call_the_call_got_there(code: Code) -> None:
    assert check_call(Status(code)).level == "ok"


def test_a_call_that_the_bridge_answered_itself_is_wrong_with_its_words() -> None:
    found = check_call(Status(Code.UNAVAILABLE, "edge node n1 is offline"))
    assert (found.level, found.what.endswith("UNAVAILABLE: edge node n1 is offline")) == ("wrong", True)


def test_a_proxy_driver_that_knows_nothing_of_its_driver_says_what_is_in_the_way() -> None:
    found = check_unknown("d.example", Status(Code.UNAVAILABLE, "the proxy driver has no link to the hub"))
    assert found.what == (
        "the proxy driver has not been told of driver d.example yet, so its sidecars wait: the proxy driver has no "
        "link to the hub"
    )
    assert "csi-bridge status" in found.do


def test_a_proxy_driver_without_sidecars_is_told() -> None:
    assert check_sidecars(0, Path("/s")).level == "warning"
    assert check_sidecars(4, Path("/s")).level == "ok"


# -------------------- the cluster --------------------


class Cluster:
    """An API server with these CSIDrivers, CSINodes (drivers, or drivers with topology keys), Nodes and classes.

    It lists no kind of `forbidden`.
    """

    def __init__(
        self,
        drivers: tuple[str, ...] = (),
        failure: int = 0,
        labelled: tuple[str, ...] = (),
        classes: dict[str, str] | None = None,
        claims: tuple[dict[str, Any], ...] = (),
        forbidden: frozenset[str] = frozenset(),
        **nodes: list[str] | dict[str, list[str]],
    ) -> None:
        self.date = ""
        self._failure, self._nodes, self._forbidden = failure, nodes, forbidden
        self._objects = {
            "CSIDriver": [{"metadata": {"name": name}} for name in drivers],
            "Node": [{"metadata": {"name": name, "labels": {EDGE_LABEL: "kubelet"}}} for name in labelled]
            + [{"metadata": {"name": "cloud-1"}}],
            "StorageClass": [{"metadata": {"name": n}, "provisioner": it} for n, it in (classes or {}).items()],
            "PersistentVolumeClaim": list(claims),
        }

    async def list(self, resource: Any, *, limit: int, more: str = "") -> Page:
        if self._failure:
            raise KubeError(f"list {resource.plural}", self._failure, "", "no")
        if resource.kind in self._forbidden:
            raise KubeError(f"list {resource.plural}", 403, "Forbidden", "no")
        self.date = "Sat, 21 Nov 2026 09:12:03 GMT"
        return Page(self._objects.get(resource.kind, []), "1", "")

    async def get(self, resource: Any, name: str, namespace: str = "") -> dict[str, Any]:
        if self._failure or name not in self._nodes:
            raise KubeError(f"get CSINode {name}", self._failure or 404, "", "no")
        entries = self._nodes[name]
        keys = entries if isinstance(entries, dict) else {name: ["k"] for name in entries}
        return {"spec": {"drivers": [{"name": it, "topologyKeys": keys[it]} for it in keys]}}


async def looked_at(
    cluster: Cluster, *nodes: NodeStatus, proxies: Mapping[str, str] = NO_PROXIES, as_hub: bool = False
) -> dict[str, Finding]:
    checks = cluster_checks(cluster, nodes, proxies, as_hub=as_hub)
    return {result.name: result.finding for result in await perform(checks, limit_s=5.0)}


async def test_a_cluster_with_all_that_the_drivers_need_is_well() -> None:
    well = Cluster(("d.example",), labelled=("n1",), classes={"fast": "d.example"}, n1=["d.example"])
    found = await looked_at(well, node(), proxies={"d.example": "local"})
    assert found["CSIDriver"].what == "there is a CSIDriver for each driver (d.example)"
    assert found["CSINode"].what == "the CSINodes of 1 nodes have an entry for each of their drivers"
    assert "of the API server" in found["clock"].what
    assert {name: it.level for name, it in found.items() if name != "clock"} == dict.fromkeys(
        ("CSIDriver", "CSINode", "topology", "edge nodes", "StorageClass"), "ok"
    )


async def test_what_a_cluster_lacks_is_named() -> None:
    found = await looked_at(Cluster(n1=["other"]), node(), node("n2"))
    assert found["CSIDriver"].what == "there is no CSIDriver d.example"
    assert found["CSINode"].what.startswith("the CSINode has no entry for d.example on n1, d.example on n2: ")
    assert (await looked_at(Cluster()))["CSIDriver"].what == "no driver is reported yet"


async def test_a_cluster_that_refuses_is_told_with_its_words() -> None:
    found = await looked_at(Cluster(failure=403), node())
    assert found["CSIDriver"].what == "Kubernetes: list csidrivers: no"
    assert {name: it.level for name, it in found.items()} == dict.fromkeys(found, "warning") | {"CSIDriver": "wrong"}


async def test_what_a_hub_may_not_list_is_wrong_and_says_what_to_apply() -> None:
    found = (await looked_at(Cluster(forbidden=frozenset({"Pod", "Node"})), as_hub=True))["permissions"]
    assert (found.level, found.what) == (
        "wrong",
        "the API server does not let the hub list nodes, pods, so it works from old records or none",
    )
    assert found.do.startswith(
        "apply my-cluster/cloud again: kubectl apply -k my-cluster/cloud (its roles are those of "
    )
    assert "deploy/cloud/base/hub-rbac.yaml" in found.do
    assert (await looked_at(Cluster(), as_hub=True))["permissions"].what == (
        "the hub may list the objects that it needs: csidrivers, storageclasses, nodes, persistentvolumes, "
        "persistentvolumeclaims, volumeattachments, pods"
    )


async def test_a_hub_without_any_role_is_wrong_and_each_advice_names_what_to_apply() -> None:
    found = await looked_at(Cluster(failure=403), node(), as_hub=True)
    refused = {name: it for name, it in found.items() if name != "clock"}
    assert {it.do for it in refused.values()} == {found["permissions"].do}
    assert found["permissions"].level == found["CSIDriver"].level == "wrong"


async def test_an_api_server_that_does_not_answer_says_nothing_of_permissions() -> None:
    found = (await looked_at(Cluster(failure=500), as_hub=True))["permissions"]
    assert (found.level, found.what) == (
        "warning", "the permissions of the hub are not known: Kubernetes: list csidrivers: no"
    )  # fmt: skip


async def test_a_user_of_the_doctor_who_is_not_the_hub_needs_no_permission_of_the_hubs() -> None:
    assert "permissions" not in await looked_at(Cluster(forbidden=frozenset({"Pod"})))


async def test_local_placement_without_a_topology_key_is_wrong_and_names_the_relay() -> None:
    bare = Cluster(("d.example",), n1={"d.example": []}, n2={"d.example": ["csi-bridge.io/node"]})
    found = (await looked_at(bare, node(), node("n2"), proxies={"d.example": "local"}))["topology"]
    assert found.level == "wrong"
    assert "an entry without a topology key for d.example on n1:" in found.what
    assert "--relay-dir" in found.do


@pytest.mark.parametrize(
    ("placement", "keys", "level"),
    [("auto", [], "ok"), ("auto", ["k"], "wrong"), ("pinned", ["k"], "ok"), ("", ["k"], "ok")],
)
async def test_a_driver_that_is_not_placed_by_topology_needs_no_key_and_an_old_hub_says_nothing_of_it(
    placement: str, keys: list[str], level: str
) -> None:
    cluster = Cluster(("d.example",), n1={"d.example": []}, n2={"d.example": keys})
    found = await looked_at(cluster, node(), node("n2"), proxies={"d.example": placement})
    assert found["topology"].level == level


async def test_an_edge_node_without_a_driver_is_named_and_whether_an_agent_was_ever_there() -> None:
    cluster = Cluster(("d.example",), labelled=("n1", "n2", "n3"), n1=["d.example"], n2=["other.example"])
    found = (await looked_at(cluster, node(), node("n2", drivers=[])))["edge nodes"]
    assert found.level == "warning"
    assert found.what.startswith("no driver of this hub is registered on n2, n3, labelled csi-bridge.io/edge: ")
    assert found.what.endswith("'no topology key found for node …'; no agent has connected from n3")


# -------------------- the StorageClasses --------------------


def pending(*, node: str = "n1", storage_class: str = "fast", made: str = "2026-11-21T09:02:03Z") -> dict[str, Any]:
    """A claim that waits for its provisioner, on the node that the scheduler chose."""
    metadata = {
        "namespace": "shop",
        "name": "data",
        "annotations": {"volume.kubernetes.io/selected-node": node},
        "creationTimestamp": made,
    }
    return {"metadata": metadata, "spec": {"storageClassName": storage_class}, "status": {"phase": "Pending"}}


def classes(found: dict[str, str], *claims: dict[str, Any], objects: tuple[str, ...] = ()) -> Finding:
    there = [{"metadata": {"name": name}, "provisioner": provisioner} for name, provisioner in found.items()]
    return check_classes(there, {"d.example"}, objects=objects, claims=claims, nodes={"n1"}, now=NOW)


def test_a_class_that_almost_names_a_driver_is_wrong() -> None:
    found = classes({"fast": "D.exampel"})
    assert (found.level, found.what) == (
        "wrong",
        "StorageClass fast names the provisioner D.exampel, which the hub does not know; its driver is d.example",
    )


def test_classes_for_other_storage_and_for_a_drivers_sibling_are_no_concern() -> None:
    others = {"standard": "rancher.io/local-path", "sibling": "e.example"}
    assert classes({**others, "fast": "d.example"}, objects=("e.example",)).what.endswith("hub: fast")
    assert classes(others, objects=("e.example",)).level == "ok"


def test_a_claim_that_waits_on_an_edge_node_for_an_unknown_provisioner_is_wrong() -> None:
    found = classes({"fast": "vendor.test"}, pending())
    assert found.level == "wrong"
    assert found.what == (
        "claim shop/data waits on node n1 for the provisioner vendor.test of StorageClass fast, which the hub does not "
        "know"
    )


def test_a_claim_that_waits_for_another_products_provisioner_is_a_warning() -> None:
    found = classes({"fast": "other.test"}, pending(), objects=("other.test",))
    assert (found.level, found.do.startswith("look at the log of that provisioner")) == ("warning", True)


@pytest.mark.parametrize(
    "claim",
    [pending(node="cloud-1"), pending(made="2026-11-21T09:11:03Z"), pending(storage_class="slow"), pending(made="?")],
)
def test_a_claim_elsewhere_or_a_new_one_may_wait(claim: dict[str, Any]) -> None:
    assert classes({"fast": "vendor.test", "slow": "d.example"}, claim).level == "ok"


# -------------------- the sidecars' permissions --------------------


class Rights:
    """An API server that denies some of `verb resource`, and tells the pod's containers or refuses to."""

    def __init__(
        self,
        *denied: str,
        images: tuple[str, ...] | None = None,
        early: tuple[str, ...] = (),
        args: tuple[str, ...] = (),
    ) -> None:
        self._denied, self._images, self._early, self._args = denied, images, early, list(args)

    async def list(self, resource: Any, *, limit: int, more: str = "") -> Page:
        assert (resource.plural, resource.selector) == ("namespaces/ns/pods", "metadata.name=driver-0")
        if self._images is None:
            raise KubeError("list pods", 403, "Forbidden", "no")
        early = {"initContainers": [{"image": image} for image in self._early]} if self._early else {}
        containers = [{"image": image, "args": self._args} for image in self._images]
        return Page([{"spec": {"containers": containers, **early}}], "1", "")

    async def create(self, resource: Any, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        asked = body["spec"]["resourceAttributes"]
        assert ("namespace" in asked) == (asked["resource"] == "leases")
        name = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return {"status": {"allowed": f"{asked['verb']} {name}" not in self._denied}}


async def permitted(rights: Rights) -> list[Finding]:
    return [it.finding for it in await perform(await permission_checks(rights, "ns", "driver-0"), limit_s=5.0)]


async def test_a_permission_that_every_volume_needs_is_wrong_when_it_is_missing_and_named() -> None:
    images = ("registry.example/csi-bridge/cloud:1", "registry.k8s.io/sig-storage/csi-provisioner:v6@sha256:1")
    (found,) = await permitted(Rights("update persistentvolumeclaims", "get volumesnapshots", images=images))
    assert (found.level, found.what) == (
        "wrong",
        (
            "the pod's ServiceAccount lacks permissions that csi-provisioner needs: update persistentvolumeclaims; "
            "get volumesnapshots.snapshot.storage.k8s.io (for volumes from snapshots)"
        ),
    )
    assert found.do.startswith(
        "apply my-cluster/cloud, or my-cluster/<your driver>, again (deploy/cloud/driver/rbac.yaml has the roles)"
    )


async def test_a_permission_that_some_features_need_is_a_warning() -> None:
    (found,) = await permitted(Rights("create leases", images=("csi-attacher:v4",)))
    assert (found.level, "create leases.coordination.k8s.io (for --leader-election)" in found.what) == ("warning", True)


async def test_where_the_pod_cannot_be_read_every_sidecar_is_looked_at_and_none_is_wrong_for_certain() -> None:
    provisioner, *others = await permitted(Rights("update persistentvolumeclaims"))
    assert (provisioner.level, provisioner.what.startswith("if csi-provisioner runs in this pod: ")) == (
        "warning",
        True,
    )
    assert [found.level for found in others] == ["ok"] * 3


async def test_outside_a_pod_the_doctor_says_that_it_did_not_look(tmp_path: Path) -> None:
    (found,) = await examine_permissions(limit_s=5.0, account=tmp_path)
    assert (found.finding.level, "are not looked at" in found.finding.what) == ("ok", True)


async def test_a_token_without_a_namespace_hides_no_other_check(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    (found,) = await examine_permissions(limit_s=1.0, account=tmp_path)
    assert (found.finding.level, "are not looked at" in found.finding.what) == ("warning", True)


async def test_a_sidecar_among_the_init_containers_is_looked_at_too() -> None:
    rights = Rights(images=("registry.example/csi-bridge/cloud:1",), early=("registry.k8s.io/csi-attacher:v4",))
    (found,) = await permitted(rights)
    assert found.what == "the pod's ServiceAccount has all permissions that csi-attacher needs"


async def test_a_snapshotter_that_takes_groups_needs_the_permissions_of_the_overlay() -> None:
    denied, images = "watch volumegroupsnapshotcontents", ("registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0",)
    (found,) = await permitted(Rights(denied, images=images))
    assert found.level == "ok"
    gates = ("--v=5", "--feature-gates=Other=false,CSIVolumeGroupSnapshot=true")
    (found,) = await permitted(Rights(denied, images=images, args=gates))
    assert (found.level, found.what) == (
        "wrong",
        (
            "the pod's ServiceAccount lacks permissions that csi-snapshotter needs: "
            "watch volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io"
        ),
    )
    assert found.do.startswith("add the component deploy/cloud/group-snapshots, or take its feature gate")
    (found,) = await permitted(Rights(images=images, args=gates))
    assert found.level == "ok"


@pytest.mark.parametrize(
    ("file", "needed"),
    [
        ("driver/rbac.yaml", [rule for rules in NEEDED.values() for rule in rules]),
        ("group-snapshots/rbac.yaml", FOR_GROUPS),
    ],
)
def test_the_permissions_looked_for_are_those_that_our_roles_grant(file: str, needed: Sequence[Rule]) -> None:
    looked_for = {(verb, rule.group, rule.resource) for rule in needed for verb in rule.verbs}
    roles = (Path(__file__).parents[2] / "deploy" / "cloud" / file).read_text()
    granted = {
        (verb, group, resource)
        for it in yaml.safe_load_all(roles)
        for rule in it.get("rules", ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert looked_for == granted
