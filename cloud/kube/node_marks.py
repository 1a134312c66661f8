"""A node's marks: the labels and taints that the hub gives a new Node, as a kubelet does when it registers.

Rules:

* The request that makes the Node has them, so neither the scheduler nor a DaemonSet controller sees the Node without.
* The hub sets them in that request only. An operator's later changes stay.
"""

from typing import Final

from common.objects.topology import NODE_SEGMENT
from common.parsers import is_label_key, is_label_value

OURS: Final = "csi-bridge.io"  # the domain of the bridge's own labels

# The label, and the key of the taint, that tells nodes without a kubelet (`agent`) from edge nodes with one
# (`kubelet` or `kubeedge`). Only the hub and administrators set it: DaemonSets and the examples' pods go by it.
EDGE: Final = f"{OURS}/edge"

AGENT: Final = "agent"  # its value on a node where no kubelet runs
EDGECORE: Final = "kubeedge"  # its value on a node whose kubelet is KubeEdge's EdgeCore, which cannot write a CSINode
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
_KUBELETS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")  # domains in which a kubelet sets labels of its Node

# Further labels that a kubelet sets (kubernetes k8s.io/kubelet/pkg/apis/well_known_labels.go).
_KUBELET_LABELS: Final = frozenset({
    "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
    "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
})  # fmt: skip


class Labels(dict[str, str]):
    """Labels, by key. `str()` is the text that `labels` reads."""

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.items())


class Taints(list[dict[str, str]]):
    """Taints as in a Node's spec. No two have the same key and effect. `str()` is the text that `taints` reads."""

    def __str__(self) -> str:
        return ",".join(f"{it['key']}={it['value']}:{it['effect']}" for it in self)


def labels(text: str) -> Labels:
    """Read `a.example/b=c,d=` as a kubelet reads --node-labels. Raises ValueError with what Kubernetes allows."""
    found = Labels()
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not is_label(key, value):
            raise ValueError(
                "must be labels of Kubernetes like example.com/site=north,example.com/rack=7; empty for none"
            )
        if key == NODE_SEGMENT:
            raise ValueError(f"must not set {NODE_SEGMENT}, which is each node's own name")
        if key in found:
            raise ValueError("must not set one label twice")
        found[key] = value
    return found


def taints(text: str) -> Taints:
    """Read `a.example/b=c:NoSchedule` as a kubelet reads --register-with-taints. Raises ValueError as `labels`."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for part in filter(None, text.split(",")):
        rest, _, effect = part.rpartition(":")
        key, _, value = rest.partition("=")
        if not is_label(key, value) or effect not in EFFECTS:
            raise ValueError(
                "must be taints of Kubernetes like example.com/edge=yes:NoSchedule,example.com/slow:PreferNoSchedule, "
                f"with one of the effects {', '.join(EFFECTS)}; empty for none"
            )
        if (key, effect) in found:
            raise ValueError("must not give one key the same effect twice")
        found[key, effect] = {"key": key, "value": value, "effect": effect}
    return Taints(found.values())


def is_label(key: str, value: str) -> bool:
    return is_label_key(key) and is_label_value(value)


def is_reserved(label: str) -> bool:
    """Whether a node may not set a label of its own Node: it is the bridge's, or a kubelet may not set it either.

    Source: kubernetes plugin/pkg/admission/noderestriction.
    """
    domain, slash, _ = label.partition("/")
    if slash and _is_within(domain, (OURS,)):
        return label != NODE_SEGMENT
    if not slash or not _is_within(domain, _KUBERNETES):
        return False
    return label not in _KUBELET_LABELS and not _is_within(domain, _KUBELETS)


def _is_within(domain: str, domains: tuple[str, ...]) -> bool:
    return any(domain == it or domain.endswith(f".{it}") for it in domains)
