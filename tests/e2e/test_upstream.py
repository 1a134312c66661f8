"""A few of Kubernetes' own storage tests through the bridge; `make e2e-upstream` runs all, with and without it."""

import re

from tests.e2e.upstream.cluster import UpstreamCluster
from tests.e2e.upstream.suite import Outcome, Spec

_SPECS = [
    f"[Testpattern: {pattern}] {suite} {spec}"
    for pattern, suite, spec in (
        ("CSI Ephemeral-volume (default fs)", "ephemeral", "should create read/write inline ephemeral volume"),
        ("Dynamic PV (block volmode)", "volumes", "should store data"),
        (
            "Dynamic PV (default fs)(allowExpansion)",
            "volume-expand",
            "should resize volume when PVC is edited while pod is using it",
        ),
        ("Dynamic PV (default fs)", "capacity", "provides storage capacity information"),
        (
            "Dynamic PV (default fs)",
            "fsgroupchangepolicy",
            "(Always)[LinuxOnly], pod created with an initial fsgroup, new pod fsgroup applied to volume contents",
        ),
        ("Dynamic PV (default fs)", "provisioning", "should provision storage with pvc data source"),
        (
            "Dynamic PV (default fs)",
            "provisioning",
            "should provision storage with snapshot data source [Feature:VolumeSnapshotDataSource]",
        ),
        (
            "Dynamic PV (default fs)",
            "read-write-once-pod",
            "should block a second pod from using an in-use ReadWriteOncePod volume on the same node",
        ),
        (
            "Dynamic PV (default fs)",
            "subPath",
            "should be able to unmount after the subpath directory is deleted [LinuxOnly]",
        ),
        ("Dynamic PV (default fs)", "subPath", "should support existing directory"),
        (
            "Dynamic PV (delayed binding)",
            "topology",
            "should provision a volume and schedule a pod with AllowedTopologies",
        ),
        ("Dynamic PV (ext4)", "volumes", "should store data"),
    )
]


def test_specs_of_kubernetes_own_pass_through_the_bridge(upstream_cluster: UpstreamCluster) -> None:
    with upstream_cluster.bridged():
        ended = upstream_cluster.run("bridge", focus=[f"{re.escape(name)}$" for name in _SPECS])

    assert ended == {name: Spec(name, Outcome.PASSED) for name in _SPECS}
