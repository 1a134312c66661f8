"""Labels and taints of the Nodes that the hub makes: read as a kubelet reads them, refused before Kubernetes does."""

import pytest

from cli.process_options import HUB_OPTIONS
from cloud.kube.node_marks import labels, taints
from common.errors import SettingsError
from common.net.settings import as_texts


def test_an_empty_flag_turns_the_marks_off() -> None:
    settings = HUB_OPTIONS.read({"node_labels": "", "register_with_taints": ""})
    assert settings.node_labels == {}
    assert settings.register_with_taints == []
    assert HUB_OPTIONS.read(as_texts(settings)) == settings


def test_several_labels_and_taints_are_read_and_written_alike() -> None:
    assert labels("example.com/site=north,rack=,a.b_c=1") == {
        "example.com/site": "north",
        "rack": "",
        "a.b_c": "1",
    }
    assert taints("example.com/slow:PreferNoSchedule,k=v:NoExecute,k=w:NoSchedule") == [
        {"key": "example.com/slow", "value": "", "effect": "PreferNoSchedule"},
        {"key": "k", "value": "v", "effect": "NoExecute"},
        {"key": "k", "value": "w", "effect": "NoSchedule"},
    ]
    for parser, text in ((labels, "a/b=c,d="), (taints, "a/b=c:NoSchedule,d:NoExecute")):
        assert parser(str(parser(text))) == parser(text)


@pytest.mark.parametrize(
    "text", ["a", "=b", "a=b=c", "a/=b", "/a=b", "A.example/b=c", "a=b c", "-a=b", "a=b-", f"a={'b' * 64}", "a/b/c=d"]
)
def test_a_label_that_kubernetes_would_refuse_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--node-labels.*must be labels of Kubernetes like"):
        HUB_OPTIONS.read({"node_labels": text})


@pytest.mark.parametrize("text", ["a", "a=b", "a=b:Never", "a=b:noschedule", ":NoSchedule", "a=b=c:NoSchedule", "a-"])
def test_a_taint_that_kubernetes_would_refuse_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--register-with-taints.*must be taints of Kubernetes like"):
        HUB_OPTIONS.read({"register_with_taints": text})


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="one label twice"):
        labels("a=b,a=c")
    with pytest.raises(ValueError, match="the same effect twice"):
        taints("a=b:NoSchedule,a=c:NoSchedule")


def test_no_label_says_of_all_nodes_that_they_are_one() -> None:
    with pytest.raises(ValueError, match="each node's own name"):
        labels("csi-bridge.io/node=n1")
