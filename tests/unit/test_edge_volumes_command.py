"""The volumes of a node as a person reads them, and what --wait still waits for."""

from dataclasses import replace
from typing import Any

from cli.edge_volumes import missing, namespaced, select, show
from common.pages.agent import NodeVolumes, PodStatus, PodVolumeStatus
from tests.kit.pages import SINCE, page


def volume(pod: str = "web", name: str = "data", **changes: Any) -> PodVolumeStatus:
    usual = {
        "namespace": "default",
        "pod": pod,
        "uid": f"uid-{pod}",
        "volume": name,
        "driver": "a.example",
        "state": "published",
        "since": SINCE,
        "path": f"/root/pods/uid-{pod}/volumes/kubernetes.io~csi/pv-1/mount",
    }
    return page(PodVolumeStatus, **(usual | changes))


def node(*volumes: PodVolumeStatus, **changes: Any) -> NodeVolumes:
    pods = [
        PodStatus(namespace=namespace, name=name, uid=f"uid-{name}", volumes=1, published=1)
        for namespace, name in sorted({(item.namespace, item.pod) for item in volumes})
    ]
    usual = {"node": "n1", "connected": True, "since": SINCE, "as_of": "2026-11-21T09:12:04Z"}
    return replace(page(NodeVolumes, **(usual | changes)), pods=pods, volumes=list(volumes))


def test_a_node_without_pods_is_one_line() -> None:
    assert list(show(node())) == ["node n1 is connected since 2026-11-21T09:12:03Z; 0 of 0 volumes published"]


def test_volumes_are_a_table_and_the_reasons_stand_below() -> None:
    waiting = volume("db", state="waiting", path="", error="driver a.example is not registered on this node")
    assert list(show(node(volume(), waiting))) == [
        "node n1 is connected since 2026-11-21T09:12:03Z; 1 of 2 volumes published",
        "",
        "POD          VOLUME  DRIVER     STATE      SINCE                 PATH",
        f"default/web  data    a.example  published  2026-11-21T09:12:03Z  {volume().path}",
        "default/db   data    a.example  waiting    2026-11-21T09:12:03Z",
        "",
        "default/db data is waiting: driver a.example is not registered on this node",
    ]


def test_a_node_that_was_never_told_its_pods_says_so() -> None:
    (line,) = show(node(as_of=None))
    assert line.endswith("; the hub has not told this node its pods yet")


def test_a_named_pod_that_is_not_known_is_waited_for() -> None:
    selected = select(node(volume()), ("default", "other"))
    assert missing(selected, ("default", "other")) == ["pod default/other is not known on node n1"]


def test_a_pod_whose_volumes_are_all_published_is_waited_for_no_longer() -> None:
    other = volume("db", state="staging")
    selected = select(node(volume(), volume(name="more"), other), ("default", "web"))
    assert [item.volume for item in selected.volumes] == ["data", "more"]
    assert missing(selected, ("default", "web")) == []


def test_what_nobody_wants_any_more_is_not_waited_for_and_what_is_wrong_with_it_is_shown() -> None:
    leaving = [volume("old", state=state, error="busy") for state in ("unpublishing", "unstaging", "left over")]
    assert missing(node(volume(), *leaving), None) == []
    assert list(show(node(*leaving)))[-1] == "default/old data is left over: busy"
    gone = volume("", "", namespace="", handle="vol-1", state="unstaging", path="", error="busy")
    *_, row, _, why = show(node(gone))
    assert row.split()[:4] == ["-", "vol-1", "a.example", "unstaging"]
    assert why == "volume vol-1 of driver a.example (no pod has it) is unstaging: busy"


def test_a_node_that_was_never_told_its_pods_is_waited_for() -> None:
    assert missing(node(as_of=None), None) == [
        "node n1 may have more pods; the hub has not told this node its pods yet"
    ]


def test_who_waits_on_a_node_with_a_kubelet_is_told_so() -> None:
    assert missing(node(as_of=None, observing=True), None) == [
        "a kubelet mounts the volumes of node n1 (--registration=observe)"
    ]


def test_a_pod_is_named_with_or_without_its_namespace() -> None:
    assert namespaced("shop/web") == ("shop", "web")
    assert namespaced("web") == ("default", "web")


def test_a_disk_that_takes_nothing_is_told_and_waited_for() -> None:
    state = node(started=False, trouble="volumes.db cannot be written: disk is full")
    assert missing(state, None) == ["node n1 mounts nothing yet: volumes.db cannot be written: disk is full"]
    assert list(show(state))[-1] == "node n1: volumes.db cannot be written: disk is full"
