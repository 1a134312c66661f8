"""What the doctor makes of what it sees. Sockets and processes are in the integration tests."""

import asyncio
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.doctor import command
from cli.doctor.agent import check_link, check_volumes
from cli.doctor.certificates import check_certificate
from cli.doctor.cluster import POLICIES, check_classes
from cli.doctor.cluster import check as check_cluster
from cli.doctor.command import in_json, show
from cli.doctor.disk import check_directory, check_room, check_state
from cli.doctor.finding import Finding, Level, attempt, ok, warning, wrong
from cli.doctor.hub import checks_of as hub_checks
from cli.doctor.hub import surroundings
from cli.doctor.permissions import HUB, NEEDED, check
from cli.doctor.permissions import examine as examine_permissions
from cli.doctor.proxy import check_driver, check_sidecars
from cli.doctor.sockets import check_socket, connections
from cli.doctor.watchdog import check_watchdog
from cli.operators import status
from cli.operators.hub_state import HubState
from cli.process_options import HUB_OPTIONS
from cloud.kube.client import KubeError, Resource
from cloud.trust.admission import Role
from common.errors import BridgeError
from common.net.tls import TlsFiles
from common.observe.version import SOFTWARE
from common.pages.agent import AgentStatus, NodeVolumes
from common.pages.hub import NodeStatus
from common.pages.json_form import encode
from common.status import Code, Status
from tests.kit.certificates import Authority, Pem, bundle
from tests.kit.deployed import granted, of_kinds, trial
from tests.kit.fake_api import FakeApi
from tests.kit.pages import SINCE, page, proxy, refusal
from tests.kit.pages import node as page_of_node
from tests.kit.pages import state as page_of_hub

# -------------------- findings --------------------


async def test_a_check_that_fails_hides_no_other() -> None:
    async def fail() -> Finding:
        raise ValueError("a bug")

    async def hang() -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    async def refuse() -> Finding:
        raise BridgeError("nobody answers")

    async def pass_() -> Finding:
        return ok("well")

    assert await attempt("a", pass_(), "", limit_s=0.01) == ("a", ok("well"))
    name, failed = await attempt("b", fail(), "", limit_s=0.01)
    assert (name, failed.what) == ("b", "the check itself failed: ValueError('a bug')")
    late = wrong("there was no answer within 0.01 s; a longer --timeout may help", "look")
    assert await attempt("c", hang(), "look", limit_s=0.01) == ("c", late)
    assert await attempt("d", refuse(), "look at it", limit_s=0.01) == ("d", wrong("nobody answers", "look at it"))


REPORT = {
    "hub at unix:///h": [("socket", ok("there")), ("nodes", warning("n1 is\x1b away", "look"))],
    "edge agent at /e": [("link", wrong("none", "mend it"))],
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


def test_where_nothing_runs_the_doctor_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This machine may run a hub or an agent, or keep the directory of one's socket closed."""
    monkeypatch.setattr(command, "_there", lambda _usual: [])
    assert command.run(None, (), None, None, timeout_s=1.0, as_json=False) == 1
    assert "nothing of CSI Bridge was found here (/var/lib/kubeedge/kubeedge.sock, " in capsys.readouterr().out


def test_a_report_for_programs_is_flat() -> None:
    told = json.loads(encode(in_json(REPORT)))
    assert (told["ok"], told["warning"], told["wrong"]) == (1, 1, 1)
    assert told["findings"][2] == {
        "at": "edge agent at /e", "check": "link", "level": "wrong", "what": "none", "do": "mend it",
    }  # fmt: skip


# -------------------- disks --------------------


def test_a_directory_that_is_missing_or_a_file_is_wrong(tmp_path: Path) -> None:
    assert check_directory(tmp_path, flag="--x").what.startswith(f"{tmp_path} can be written (")
    assert check_directory(tmp_path / "no", flag="--x").what.endswith("no cannot be used: No such file or directory")
    (tmp_path / "file").touch()
    assert check_directory(tmp_path / "file", flag="--x").what.endswith("file is not a directory")


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "level"),
    [(1 << 30, 10_000, "ok"), (100 << 20, 10_000, "warning"), (1 << 30, 500, "warning"), (4096, 10_000, "wrong"),
     (1 << 30, 0, "wrong")],
)  # fmt: skip
def test_a_disk_is_full_of_bytes_or_of_files(free_bytes: int, free_files: int, level: str) -> None:
    assert check_room(Path("/d"), free_bytes, free_files).level == level


def test_a_state_directory_is_closed_to_other_users(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert check_state(tmp_path).level == "ok"
    tmp_path.chmod(0o750)
    found = check_state(tmp_path)
    assert (found.level, found.do) == ("warning", f"chmod 0700 {tmp_path}")
    assert check_state(tmp_path / "no").level == "wrong"


# -------------------- sockets --------------------


def test_a_socket_tells_who_listens_and_who_may_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("a.sock")
    assert check_socket(path, start="it").do == "start it; if it runs already, look at its log"
    assert check_socket(tmp_path, start="it").what == f"{tmp_path} is not a socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert check_socket(path, start="it").what == "nobody listens on a.sock: the process that made it has ended"
        listener.listen()
        path.chmod(0o600)
        found = check_socket(path, start="it")
        assert (found.level, "listens on a.sock (mode 0600)" in found.what) == ("ok", True)
        path.chmod(0o666)
        assert check_socket(path, start="it").level == "warning"


@pytest.mark.parametrize("name", ["a.sock", "a\x85b\r.sock"])
def test_connections_are_the_accepted_ends_of_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as one:
        listener.bind(path := f"{tmp_path.name}-{name}")
        listener.listen()
        assert connections(Path(path)) == 0
        one.connect(path)
        listener.accept()[0].close()
        one.close()
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(path)
            accepted, _ = listener.accept()
            with accepted:
                assert connections(Path(path)) == 1


# -------------------- certificates --------------------


def certificate(pem: Pem, *, now: float | None = None, hub: bool = False) -> Finding:
    files = TlsFiles(pem.ca, pem.cert, pem.key)
    pem.key.chmod(0o600)
    at = now if now is not None else pem.cert.stat().st_mtime
    return check_certificate(files, now=at, name="n1", role=None if hub else Role.EDGE)


def test_a_certificate_says_until_when_it_counts_and_for_whom(tmp_path: Path) -> None:
    found = certificate(Authority(tmp_path).edge("n1"))
    assert found.level == "ok"
    assert found.what.endswith("for CN=system:node:n1,O=system:nodes") or found.what.endswith(
        "for O=system:nodes,CN=system:node:n1"
    )
    assert certificate(Authority(tmp_path).hub(), hub=True).level == "ok"


def test_a_certificate_counts_from_its_beginning_to_its_end_and_is_told_to_end_soon(tmp_path: Path) -> None:
    pem = Authority(tmp_path).edge("n1")
    made = pem.cert.stat().st_mtime
    assert "has expired at " in certificate(pem, now=made + 3_601).what
    assert "is not valid before " in certificate(pem, now=made - 600).what
    soon = certificate(pem, now=made + 3_000)
    assert (soon.level, " is valid until " in soon.what) == ("warning", True)


def test_a_certificate_that_its_peer_does_not_take_is_wrong_and_says_why(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, name="another CA")
    n1, n2 = authority.edge("n1"), authority.edge("n2")
    two = authority.issue(["system:node:n1", "system:node:n2"], "system:nodes", file="two")
    refuses = "the hub refuses the certificate in use here: "
    for pem, why in (
        (n2, f"{refuses}the peer says that it is edge n1, but "),
        (two, refuses),
        (Pem(other.path, n1.cert, n1.key), f"{n1.cert} is not signed by a CA in {other.path} that is valid now"),
        (Pem(n1.ca, n1.cert, n2.key), "the TLS files cannot be used: "),
    ):
        found = certificate(pem)
        assert (found.level, found.what[: len(why)]) == ("wrong", why)


def test_while_the_ca_is_changed_an_old_one_that_has_ended_signs_nothing(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, name="old", lifetime_s=-60.0), Authority(tmp_path, name="new")
    both = bundle(tmp_path / "ca.pem", old, new)
    pem = new.edge("n1")
    assert certificate(Pem(both, pem.cert, pem.key)).level == "ok"
    signed_by_old = old.edge("n1")
    assert certificate(Pem(both, signed_by_old.cert, signed_by_old.key)).level == "wrong"


# -------------------- the agent --------------------


def hub_link(address: str, why: str = "", *, epoch: int = 0, software: str = SOFTWARE) -> dict[str, Any]:
    return {"address": address, "why": why, "epoch": epoch, "software": software}


def agent(**changes: Any) -> AgentStatus:
    usual: dict[str, Any] = {
        "software": SOFTWARE,
        "node": "n1",
        "connected": True,
        "since": SINCE,
        "hubs": [hub_link("wss://hub:1", epoch=7)],
        "drivers": [],
        "problems": [],
        "operations": [],
        "registered": [],
        "settings": {},
    }
    return page(AgentStatus, **(usual | changes))


def test_without_a_link_the_hubs_own_words_are_told() -> None:
    connected = "node n1 is connected to wss://hub:1 (epoch 7) since 2026-11-21T09:12:03Z"
    assert check_link(agent()).what == connected
    found = check_link(agent(connected=False, hubs=[hub_link("wss://hub:1", "the hub is full", software="")]))
    assert (found.level, found.what.endswith("Z: wss://hub:1: the hub is full")) == ("wrong", True)
    leads, waits = hub_link("wss://hub:1", epoch=7), hub_link("wss://b:1", "a standby")
    assert check_link(agent(hubs=[leads, waits])) == ("ok", f"{connected}; wss://b:1: a standby", "")
    found = check_link(agent(hubs=[leads, hub_link("wss://b:1", "no answer", software="")]))
    assert (found.level, found.what) == ("warning", f"{connected}, and not to wss://b:1: no answer")


PUBLISHED = {"namespace": "d", "pod": "a", "volume": "v", "state": "published", "error": ""}


def volumes(*found: dict[str, Any], **changes: Any) -> NodeVolumes:
    usual = {
        "node": "n1",
        "connected": True,
        "since": SINCE,
        "as_of": SINCE,
        "in_step": True,
        "started": True,
        "volumes": list(found),
    }
    return page(NodeVolumes, **(usual | changes))


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (volumes(started=False, trouble="disk full"), "disk full"),
        (volumes(as_of=None), "may have more pods"),
        (volumes(PUBLISHED | {"state": "waiting"}), "d/a v is waiting"),
        (volumes(PUBLISHED | {"error": "no such disk"}), "d/a v: no such disk"),
    ],
)
def test_volumes_that_are_not_published_are_told_with_the_reason(state: NodeVolumes, word: str) -> None:
    found = check_volumes(state)
    assert (found.level, word in found.what) == ("warning", True)
    assert check_volumes(volumes(PUBLISHED)).what == "the node knows its pods, and all 1 volumes are published"


# -------------------- the hub --------------------


def node(name: str = "n1", *, connected: bool = True, **changes: Any) -> NodeStatus:
    usual: dict[str, Any] = {"software": SOFTWARE if connected else "", "drivers": ["d.example"]}
    usual |= {"connected": connected, "versions": {"d.example": "1"}}
    return page_of_node(name, **(usual | changes))


def hub(*nodes: NodeStatus, proxies: tuple[str, ...] = ("d.example",), **changes: Any) -> HubState:
    drivers = [proxy(name, software=SOFTWARE) for name in proxies]
    return page_of_hub(*nodes, **({"software": SOFTWARE, "drivers": drivers} | changes))


def of_hub(state: HubState) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for name, finding in hub_checks(state):
        found.setdefault(name, []).append(finding)
    return found


def test_a_hub_that_works_is_well() -> None:
    assert [(name, finding.level) for name, (finding,) in of_hub(hub(node())).items()] == [
        ("version", "ok"), ("nodes", "ok"), ("driver", "ok"),
    ]  # fmt: skip


def test_versions_that_differ_from_the_hubs_are_named_with_those_who_have_them() -> None:
    (found,) = of_hub(hub(node(software="csi-bridge/0"), node("n2", connected=False)))["version"]
    assert found.what == f"the hub is {SOFTWARE}, and n1 is csi-bridge/0"
    assert of_hub(hub(software="csi-bridge/0"))["version"][0].do == "restart the hub"


def test_every_problem_that_status_shows_is_a_finding_and_what_stops_calls_is_wrong() -> None:
    state = hub(
        node(refused={"d.example": "line 2"}, lacking={"d.example": ["CLONE_VOLUME"]}, unreported=["d.example"]),
        lost=["state.db was gone"],
        trouble="disk full",
        problems=["p"],
        ending=["the certificate in /c ends at T; renew the file"],
        refused=[refusal("n7", why="it is full")],
    )
    found = of_hub(state)["problem"]
    assert [finding.what for finding in found][:-2] == list(status.problems(state))[:-1]
    assert found[-1].what.endswith(": it is full")
    assert {finding.what.partition(":")[0] for finding in found if finding.level == "wrong"} == {
        "REFUSED", "NOT WRITTEN", "LOST",
    }  # fmt: skip
    places = [finding.do.removeprefix("do what the message names; ").removesuffix(" has more") for finding in found]
    assert {
        finding.what.partition(":")[0]: place.partition("#")[2] for finding, place in zip(found, places, strict=True)
    } == {
        "REFUSED": "an-edge-node-is-offline",
        "PROBLEM": "where-to-look-first",
        "NOT WRITTEN": "the-disk-is-full",
        "EXPIRES": "a-certificate-has-expired-or-does-not-fit",
        "LOST": "the-hub-has-lost-records",
    }


@pytest.mark.parametrize(
    ("leader", "links", "level"), [("hub-0_1_/s", 3, "ok"), ("hub-0_1_/s", 1, "warning"), ("", 3, "wrong")]
)
def test_a_standby_names_the_leader_and_misses_no_nodes(leader: str, links: int, level: str) -> None:
    """One of its links is that of the driver that it serves."""
    settings = {"serve": ["d.example=unix:///csi.sock"]}
    found = of_hub(hub(proxies=(), leads=False, leader=leader, links=links, problems=["p"], settings=settings))
    assert list(found) == ["version", "leader", "problem"]
    (said,) = found["leader"]
    assert (said.level, f": {leader or 'no hub'} leads" in said.what) == (level, True)


def test_a_hub_without_a_listener_is_told(tmp_path: Path) -> None:
    found = [name for name, _ in surroundings(HUB_OPTIONS.read({"state_dir": str(tmp_path)}))]
    assert found == ["state directory", "listen"]


def test_nodes_that_are_away_or_idle_are_named() -> None:
    assert of_hub(hub(node(), node("n2", connected=False)))["nodes"][0].what == (
        "1 of 2 nodes are offline: n2 since 2026-11-21T09:12:03Z"
    )
    assert of_hub(hub())["nodes"][0].what == "no edge node has ever connected to this hub"
    idle = of_hub(hub(node(), node("n2", drivers=[])))["nodes"][0]
    assert idle.what.startswith("these nodes are connected and run no CSI driver: n2; ")


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        (hub(node()), "ok", "driver d.example runs on n1, and its proxy driver is connected"),
        (hub(), "wrong", "no edge node has reported such a driver"),
        (hub(node(), proxies=()), "warning", "no proxy driver of that name is connected"),
        (hub(node(), node("n2", node_only=["d.example"]), proxies=()), "warning", "no proxy driver of that name"),
        (hub(node(node_only=["d.example"]), proxies=()), "ok", "d.example runs on n1, and needs no proxy driver"),
        (hub(node(connected=False)), "wrong", "of which none is connected"),
    ],
)
def test_a_driver_needs_a_proxy_driver_and_a_node(state: HubState, level: str, words: str) -> None:
    (found,) = of_hub(state)["driver"]
    assert (found.level, words in found.what) == (level, True)


# -------------------- the proxy driver --------------------


def test_an_answer_of_the_vendor_is_well_and_one_of_the_bridge_is_wrong_with_its_words() -> None:
    for code in (Code.OK, Code.UNIMPLEMENTED, Code.INTERNAL):
        assert check_driver("d.example", Status(code), is_known=True).level == "ok"
    found = check_driver("d.example", Status(Code.UNAVAILABLE, "edge node n1 is offline"), is_known=True)
    assert (found.level, found.what.endswith("UNAVAILABLE: edge node n1 is offline")) == ("wrong", True)


def test_a_proxy_driver_that_knows_nothing_of_its_driver_says_what_is_in_the_way() -> None:
    status = Status(Code.UNAVAILABLE, "the proxy driver has no link to the hub")
    found = check_driver("d.example", status, is_known=False)
    assert found.what == (
        "the proxy driver has not been told of driver d.example yet, so its sidecars wait: the proxy driver has no "
        "link to the hub"
    )
    assert "csi-bridge status" in found.do


def test_a_proxy_driver_without_sidecars_is_told() -> None:
    assert check_sidecars(0, Path("/s")).level == "warning"
    assert check_sidecars(4, Path("/s")).level == "ok"


# -------------------- the cluster --------------------


class Cluster(FakeApi):
    """An API server with these CSIDrivers and CSINodes (topology keys by driver).

    It denies some of `verb resource`.
    """

    def __init__(
        self,
        *drivers: str,
        denied: tuple[str, ...] = (),
        **nodes: dict[str, list[str]],
    ) -> None:
        super().__init__()
        self._denied = denied
        for name in drivers:
            self.put({"kind": "CSIDriver", "metadata": {"name": name}})
        for name, keys in nodes.items():
            entries = [{"name": driver, "topologyKeys": its} for driver, its in keys.items()]
            self.put({"kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": entries}})

    async def create(self, resource: Resource, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        await self._fail("create")
        asked = body["spec"]["resourceAttributes"]
        is_namespaced = asked["resource"] in {"leases", "configmaps"}
        assert (asked["namespace"] in {"kube-node-lease", "csi-bridge"}) == is_namespaced
        name = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return {"status": {"allowed": f"{asked['verb']} {name}" not in self._denied}}


async def looked_at(
    cluster: Cluster, *nodes: NodeStatus, proxies: Mapping[str, str] | None = None, as_hub: bool = False
) -> dict[str, Finding]:
    lease_in = "csi-bridge" if as_hub else ""
    return dict(await check_cluster(cluster, nodes, proxies or {}, lease_in=lease_in, limit_s=5.0))


async def test_a_cluster_that_refuses_is_told_with_its_words() -> None:
    cluster = Cluster()
    for verb in ("list", "get", "create"):
        cluster.failures[verb] = [KubeError(f"{verb} objects", 403, "", "no")] * 1_000
    found = await looked_at(cluster, node(), as_hub=True)
    assert found["CSIDriver"].what == "Kubernetes: list objects: no"
    assert {it.level for it in found.values()} == {"wrong"}


@pytest.mark.parametrize(
    ("placement", "keys", "level"),
    [("local", ["k"], "wrong"), ("auto", [], "ok"), ("auto", ["k"], "wrong"), ("pinned", ["k"], "ok")],
)
async def test_a_driver_that_is_placed_by_topology_needs_a_key_on_every_node(
    placement: str, keys: list[str], level: str
) -> None:
    cluster = Cluster("d.example", n1={"d.example": []}, n2={"d.example": keys})
    found = (await looked_at(cluster, node(), node("n2"), proxies={"d.example": placement}))["CSINode"]
    assert found.level == level
    assert level == "ok" or "an entry without a topology key for d.example on n1" in found.what


async def test_the_policies_are_missed_where_kubernetes_has_them_and_their_absence_is_told_where_it_has_none() -> None:
    cluster = Cluster()
    found = (await looked_at(cluster))["policies"]
    assert (found.level, "are missing: csi-bridge-hub-claims, " in found.what) == ("warning", True)
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    made = [cluster.put(policy) for policy in of_kinds(trial(), *kinds)]
    assert {it["metadata"]["name"] for it in made} == set(POLICIES)
    assert (await looked_at(cluster))["policies"].level == "ok"
    cluster.drop("ValidatingAdmissionPolicyBinding", "csi-bridge-hub-pods")
    assert (await looked_at(cluster))["policies"].what.endswith("are missing: csi-bridge-hub-pods")
    cluster.forbidden.add("ValidatingAdmissionPolicy")
    found = (await looked_at(cluster))["policies"]
    assert (found.level, "this account may not see whether" in found.what) == ("ok", True)
    cluster.kubernetes = (1, 29)
    found = (await looked_at(cluster))["policies"]
    assert (found.level, found.what) == (
        "warning", "Kubernetes is 1.29; before 1.30 nothing but its roles limits the hub",
    )  # fmt: skip


def test_a_class_that_almost_names_a_driver_is_wrong_and_a_drivers_sibling_is_not() -> None:
    found = check_classes({"fast": "D.exampel"}, {"d.example"}, {"e.example"})
    assert (found.level, found.what) == (
        "wrong", "StorageClass fast names the provisioner D.exampel; the hub's driver is d.example",
    )  # fmt: skip
    others = {"standard": "rancher.io/local-path", "sibling": "e.example", "fast": "d.example"}
    assert check_classes(others, {"d.example"}, {"e.example"}).what.endswith("hub: fast")


# -------------------- the permissions --------------------


async def test_a_permission_of_the_hub_is_wrong_when_it_is_missing_also_one_to_write() -> None:
    found = (await looked_at(Cluster(denied=("watch pods", "patch pods/status")), as_hub=True))["permissions"]
    assert (found.level, found.what) == (
        "wrong",
        (
            "the ServiceAccount lacks permissions that the hub needs: watch pods; patch pods/status (for nodes without "
            "a kubelet)"
        ),
    )
    assert found.do.startswith("run helm upgrade again")
    found = (await looked_at(Cluster(denied=("patch csinodes",)), as_hub=True))["permissions"]
    assert found.level == "warning"


async def test_a_missing_permission_of_a_sidecar_is_a_warning_that_names_it() -> None:
    cluster = Cluster(denied=("update persistentvolumeclaims",))
    found = await check(cluster, "csi-provisioner", "kube-node-lease")
    assert (found.level, found.what) == (
        "warning",
        (
            "if csi-provisioner runs in this pod: the ServiceAccount lacks permissions that csi-provisioner needs: "
            "update persistentvolumeclaims"
        ),
    )


async def test_outside_a_pod_the_doctor_says_that_it_did_not_look(tmp_path: Path) -> None:
    ((_, found),) = await examine_permissions(limit_s=5.0, account=tmp_path)
    assert (found.level, "are not looked at" in found.what) == ("ok", True)
    (tmp_path / "token").touch()
    ((_, found),) = await examine_permissions(limit_s=1.0, account=tmp_path)
    assert (found.level, "are not known" in found.what) == ("warning", True)


@pytest.mark.parametrize(("of", "processes"), [("csi-bridge-hub", {HUB}), ("csi-bridge-driver", NEEDED.keys() - {HUB})])
def test_the_permissions_looked_for_are_those_that_our_roles_grant(of: str, processes: set[str]) -> None:
    looked_for = {
        (verb, group, resource + slash + part)
        for process in processes
        for rule in NEEDED[process]
        for verb in rule.verbs.split()
        for name, slash, part in (it.partition("/") for it in rule.resources.split())
        for resource, _, group in (name.partition("."),)
    }
    assert looked_for == granted(of_kinds(trial(), "Role", "ClusterRole", of=of))


# -------------------- the watchdog --------------------


def test_another_holder_and_a_short_time_are_wrong(tmp_path: Path) -> None:
    process, device = tmp_path / "7", tmp_path / "devices/watchdog0"
    (process / "fd").mkdir(parents=True)
    device.mkdir(parents=True)
    (process / "comm").write_text("systemd\n")
    (device / "timeout").write_text("60\n")
    assert check_watchdog(proc=tmp_path, devices=tmp_path / "devices").level is Level.OK
    (device / "timeout").write_text("15\n")
    assert "time is 15 s" in check_watchdog(proc=tmp_path, devices=tmp_path / "devices").what
    (process / "fd/3").symlink_to("/dev/watchdog0")
    assert "process 7 'systemd' holds" in check_watchdog(proc=tmp_path, devices=tmp_path / "devices").what
    (process / "comm").write_text("csi-bridge\n")
    assert "time is 15 s" in check_watchdog(proc=tmp_path, devices=tmp_path / "devices").what
    (device / "timeout").unlink()
    assert check_watchdog(proc=tmp_path, devices=tmp_path / "devices").level is Level.WARNING
