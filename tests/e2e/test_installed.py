"""Somebody types what docs/install.md and docs/first-volume.md say, on a cluster with edge nodes of both kinds.

The pods of deploy/ run: hub, proxy driver, stock sidecars, agents, the example driver, the examples. The test adds what
the pages leave to the reader: a cluster, images, a name in DNS, and patience.
"""

import functools
import json
import re
from typing import Any

from common.net.enrolment import parse_token
from tests.e2e.installed.site import Site
from tests.kit.waiting import wait_for

Object = dict[str, Any]

_LIMIT_S = 120.0


def test_what_the_pages_say_works_on_both_kinds_of_nodes_and_leaves_nothing(site: Site) -> None:
    _install(site)
    _first_volume(site)
    _upgrade_roll_back_and_install_again(site)
    _without_a_kubelet(site)
    _two_hubs(site)
    _remove(site)
    wait_for(lambda: not site.left_over(), what="clean cluster", timeout_s=_LIMIT_S, instead=site.left_over)


def _install(site: Site) -> None:
    page = site.page("install")
    site.type(page.under("## 2. Certificates"))
    site.type(page.plain("kubectl label node edge-1"))
    site.type(page.under("## 3. The cloud"))
    _, way_in = page.under("## 3. The cloud", kind="yaml")[:2]
    site.write("my-cluster/way-in.yaml", way_in)
    site.helm("upgrade")
    # A later step of the page changes what an earlier one applied: a ready pod may be about to be replaced.
    site.kubectl("-n", "csi-bridge", "rollout", "status", "statefulset/csi-bridge-hub", f"--timeout={_LIMIT_S:g}s")
    site.wait_ready("csi-bridge", "csi-bridge-hub-0")

    site.join("edge-1")
    site.type(page.under("## 4. Edge nodes with a kubelet"))
    site.join("edge-2")
    site.start_agent("edge-2")
    wait_for(
        lambda: "node/edge-2" in site.kubectl("get", "nodes", "--output=name"),
        what="Node edge-2",
        timeout_s=_LIMIT_S,
        instead=site.tell,
    )
    node = site.get("node", "edge-2")
    assert node["metadata"]["labels"]["csi-bridge.io/edge"] == "agent"
    assert {"key": "csi-bridge.io/edge", "value": "agent", "effect": "NoSchedule"} in node["spec"]["taints"]


def _first_volume(site: Site) -> None:
    page = site.page("first-volume")
    site.start_driver("edge-2")
    site.type(page.under("## A driver"))
    for node in ("edge-1", "edge-2"):
        wait_for(
            functools.partial(_has_driver, site, node),
            what=f"driver on {node}",
            timeout_s=_LIMIT_S,
            instead=site.tell,
        )
    site.wait_ready("csi-bridge", "csi-bridge-driver-0")
    site.type(site.page("install").under("## 6. Look"), strict=False)

    first, again, larger = page.under("## Dynamic")
    site.type([first])
    site.wait_ready("default", "dynamic")
    assert site.get("pod", "dynamic")["spec"]["nodeName"] == "edge-1"
    began = site.log("dynamic")[0]
    site.type([again])
    site.wait_ready("default", "dynamic")
    assert site.log("dynamic")[0] == began

    site.type([larger])
    wait_for(
        lambda: site.get("pvc", "dynamic")["status"]["capacity"]["storage"] == "2Gi", what="volume of 2 GiB",
        timeout_s=_LIMIT_S, instead=site.tell,
    )  # fmt: skip
    site.type(page.under("## Snapshot"))
    site.wait_ready("default", "restored")
    assert site.log("restored")[0] == began

    site.static = json.loads(site.shell(page.command("csi-bridge call CreateVolume")))["volume"]["volume_id"]
    site.replace("deploy/examples/static/volume.yaml", "vol-0123456789abcdef", site.static)
    site.type(page.under("## Static"))
    site.wait_ready("default", "static")


def _has_driver(site: Site, node: str) -> bool:
    found = site.kubectl("get", "csinode", node, "--ignore-not-found", "--output=jsonpath={.spec.drivers[*].name}")
    return "dirdriver.csi" in found.split()


def _upgrade_roll_back_and_install_again(site: Site) -> None:
    """The pods' volumes stay mounted, and the hub's records are found again."""
    before = site.log("dynamic")

    def hubs_cpu() -> str:
        return site.of_bridge("statefulset/csi-bridge-hub", ".spec.template.spec.containers[0].resources.requests.cpu")

    def records() -> list[str]:
        return sorted(site.kubectl("get", "volumeplacements,edgenodes", "--output=name").split())

    site.helm("upgrade", "--set=hub.resources.requests.cpu=50m")
    assert hubs_cpu() == "50m"
    _wait_served(site)
    site.shell("helm rollback csi-bridge --namespace csi-bridge")
    assert hubs_cpu() == "100m"
    _wait_served(site)
    had = records()
    assert any(it.startswith("volumeplacement") for it in had)

    site.shell("helm uninstall csi-bridge --namespace csi-bridge --wait")
    assert records() == had
    assert site.log("dynamic")[: len(before)] == before
    site.helm("install")
    _wait_served(site)
    assert records() == had
    log = site.log("dynamic")
    assert (log[: len(before)], len(log) > len(before)) == (before, True)


def _wait_served(site: Site) -> None:
    """Wait until the bridge is whole again: a new volume could be made."""
    rollout = ("-n", "csi-bridge", "rollout", "status", f"--timeout={_LIMIT_S:g}s")
    for name in ("csi-bridge-hub", "csi-bridge-driver"):
        site.kubectl(*rollout, f"statefulset/{name}")
    site.wait_ready("csi-bridge", "csi-bridge-driver-0")


def _without_a_kubelet(site: Site) -> None:
    """As on a cluster where no other node takes the pod."""
    site.kubectl("cordon", "edge-1")
    site.kubectl("apply", "-f", "deploy/examples/block")
    wait_for(
        lambda: "VolumesMounted" in site.kubectl("get", "events", "--output=jsonpath={.items[*].reason}"),
        what="event that the pod's volume is mounted", timeout_s=_LIMIT_S, instead=site.tell,
    )  # fmt: skip
    pod = site.get("pod", "block")
    assert (pod["spec"]["nodeName"], pod["status"]["phase"]) == ("edge-2", "Pending")
    site.kubectl("uncordon", "edge-1")


def _two_hubs(site: Site) -> None:
    """The second hub comes to a cluster with volumes. Then the leader's pod goes, and the nightly audit comes early."""
    page = site.page("install")
    _, _, renewal = page.plain("--dry-run=client")[0].partition("\n")
    (certificate,) = page.plain("csi-bridge-hub-1.csi-bridge.svc")
    site.type([f"{certificate.rstrip()} hub.example\n", renewal])
    (two_hubs,) = page.under("### Two hubs", kind="yaml")
    site.write(
        "my-cluster/way-in.yaml",
        f"{two_hubs}  minReadySeconds: 5\n  service: {{shared: true}}\naudit: {{enabled: true}}\n",
    )
    made = "helm template csi-bridge deploy/chart --values my-cluster/values.yaml --set audit.enabled=true"
    site.shell(f"{made} | deploy/images/digests.sh >my-cluster/digests.yaml")
    site.helm("upgrade")
    wait_for(lambda: _has_two_hubs(site), what="two hubs", timeout_s=2 * _LIMIT_S, instead=site.tell)
    site.kubectl("-n", "csi-bridge", "rollout", "status", "statefulset/csi-bridge-driver", "--timeout=100s")
    assert _leader(site) == "csi-bridge-hub-1"  # it took over when the first one was updated

    site.kubectl("-n", "csi-bridge", "delete", "pod", "csi-bridge-hub-1", "--wait=false")
    wait_for(lambda: _leader(site) == "csi-bridge-hub-0", what="other leader", timeout_s=_LIMIT_S, instead=site.tell)
    joins = {f"wss://{host}.example:10355" for host in ("hub-0", "hub-1", "hub")}
    assert set(parse_token(site.token("edge-3")).joins) == joins
    site.kubectl("-n", "csi-bridge", "create", "job", "audit", "--from=cronjob/csi-bridge-audit")
    site.kubectl("-n", "csi-bridge", "wait", "job/audit", "--for=condition=Complete", "--timeout=100s")
    said = site.kubectl("-n", "csi-bridge", "logs", "-l", "app.kubernetes.io/component=audit", "--tail=-1")
    assert "leak audit of " in said


def _has_two_hubs(site: Site) -> bool:
    counts = (".status.availableReplicas", ".status.updatedReplicas")
    return [site.of_bridge("statefulset/csi-bridge-hub", it) for it in counts] == ["2", "2"]


def _leader(site: Site) -> str:
    return site.of_bridge("lease/csi-bridge-hub", ".spec.holderIdentity").partition("_")[0]


def _remove(site: Site) -> None:
    examples, page = site.page("first-volume"), site.page("install")
    site.type(examples.under("## To remove the examples"))
    handle = re.escape("vol-d02c6c4d494a4a31b2423ac7020dd6ba")
    site.shell(re.sub(handle, site.static, examples.plain("csi-bridge call DeleteVolume")[0]))
    volumes, snapshots = page.plain("kubectl get persistentvolumes,")[0].splitlines()
    wait_for(lambda: not site.shell(volumes).count("dirdriver.csi"), what="end of volumes", timeout_s=_LIMIT_S)
    wait_for(lambda: not site.shell(snapshots), what="end of snapshots", timeout_s=_LIMIT_S)

    site.stop_agent("edge-2")
    site.type(page.plain("csi-bridge forget edge-2"))
    site.type(page.under("## To remove it"))
